#include "device/read_cuda.h"

#include "device/cuda_kernel.cuh"

/* Sixteen blocks of 1024 threads an SM, in turn, with loads that the cache may drop first. */
static constexpr uint32_t read_threads = 1024, blocks_per_sm = 16, unrolled = 4;

static __global__ void __launch_bounds__(read_threads) read_kernel(rp_read_cuda args) {
    rp_pdl_begin();
    const uint4 *data = (const uint4 *)args.data;
    size_t count = args.bytes / sizeof *data, stride = (size_t)gridDim.x * read_threads;
    uint32_t seen = 0;
    for (size_t at = (size_t)blockIdx.x * read_threads + threadIdx.x; at < count;
         at += unrolled * stride) {
        uint4 value[unrolled] = {};
#pragma unroll
        for (uint32_t i = 0; i < unrolled; i++)
            if (at + i * stride < count)
                value[i] = __ldcs(data + at + i * stride);
#pragma unroll
        for (uint32_t i = 0; i < unrolled; i++)
            seen ^= value[i].x ^ value[i].y ^ value[i].z ^ value[i].w;
    }
    if (seen == 0x9E3779B9u && args.sink) /* or the loads would be taken away */
        *args.sink = seen;
}

int rp_read_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_read_cuda *args = (const rp_read_cuda *)args_void;
    return rp_cuda_start(read_kernel, dim3(args->sm_count * blocks_per_sm), dim3(read_threads), 0,
                         stream, false, *args);
}
