/* trace_kernels.c - records the begin and end of every kernel of a run, including those inside
 * replayed graphs.
 *
 * Not part of the build. A library that the CUDA driver loads into any program:
 *   gcc -O2 -shared -fPIC -I/usr/local/cuda/include tools/trace_kernels.c -L/usr/local/cuda/lib64 -lcupti \
 *       -o libtrace_kernels.so
 *   CUDA_INJECTION64_PATH=$PWD/libtrace_kernels.so TRACE_KERNELS=FILE ./reprise bench step ...
 *
 * FILE has one line per kernel, in the order of their start:
 *   begin ns, end ns, graph, node, grid, block, shared bytes, name
 * Recording costs about a microsecond of device time per kernel, and dependent launches overlap
 * less: use shares, not totals. */
#include <cupti.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFER_BYTES (8u << 20)

static FILE *out;

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *most) {
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *most = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t valid) {
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)size;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        const CUpti_ActivityKernel10 *kernel = (const void *)record;
        fprintf(out, "%llu\t%llu\t%u\t%llu\t%d,%d,%d\t%d,%d,%d\t%d\t%s\n",
                (unsigned long long)kernel->start, (unsigned long long)kernel->end, kernel->graphId,
                (unsigned long long)kernel->graphNodeId, kernel->gridX, kernel->gridY,
                kernel->gridZ, kernel->blockX, kernel->blockY, kernel->blockZ,
                kernel->dynamicSharedMemory, kernel->name);
    }
    free(buffer);
}

static void finish(void) {
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    fclose(out);
}

/* Entry point, called by the driver at startup. */
int InitializeInjection(void) {
    const char *path = getenv("TRACE_KERNELS");
    out = fopen(path ? path : "kernels.tsv", "w");
    if (!out)
        return 0;
    cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    atexit(finish);
    return 1;
}
