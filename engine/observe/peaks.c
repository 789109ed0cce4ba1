/* peaks.c - the device's peak bandwidth and compute rate: the roofline in profiles.
 *
 * Measured once, on the idle device, before it is ready, with the backend's own kernels: a range of
 * memory that no cache holds is read, and a GEMM of a large chunk is computed. The best of a few
 * counts, since anything else that runs can only lower it. Tens of milliseconds; what cannot be
 * measured stays 0. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "quant/matrix.h"

#include <math.h>
#include <unistd.h>

#define READS        3
#define GPU_BYTES    ((size_t)1 << 30)
#define HOST_BYTES   ((size_t)64 << 20)
#define GEMMS        4
#define BUDGET_NS    30000000u  /* of the reads and of the GEMMs: then no further one is started */
#define LONG_NS      100000000u /* a GEMM that would take longer is run with few rows */
#define PRODUCT_ROWS 256u
#define FEW_ROWS     16u
#define PRODUCT_SIDE 512u
#define GPU_ROWS     2048u
#define GPU_SIDE     4096u

/* Many times the last level of the caches. */
static size_t read_bytes(const struct rp_engine *engine) {
    size_t bytes = HOST_BYTES;
    if (engine->device_info.separate_memory) {
        struct rp_device_memory memory;
        engine->backend->memory(engine->device, &memory);
        return RP_MIN(GPU_BYTES, (size_t)(memory.free_bytes / 2));
    }
#ifdef _SC_LEVEL3_CACHE_SIZE
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0)
        bytes = RP_MAX(bytes, RP_MIN((size_t)cache * 2, 4 * HOST_BYTES));
#endif
    return bytes;
}

static int measure_read(struct rp_engine *engine) {
    const struct rp_backend *backend = engine->backend;
    size_t bytes = read_bytes(engine);
    void *data = backend->read ? backend->alloc(engine->device, bytes, RP_MEMORY_DEVICE) : NULL;
    if (!data)
        return RP_OK;
    int status = backend->fill(engine->device, data, 0x3C, bytes);
    if (status == RP_OK)
        status = backend->synchronize(engine->device);
    uint64_t first = rp_clock_ns();
    for (int i = 0; i < READS && status == RP_OK && (i == 0 || rp_clock_ns() - first < BUDGET_NS);
         i++) {
        uint64_t begin = rp_clock_ns();
        status = backend->read(engine->device, data, bytes);
        if (status == RP_OK)
            status = backend->synchronize(engine->device);
        double rate = (double)bytes * 1e9 / (double)RP_MAX(rp_clock_ns() - begin, 1u);
        if (status == RP_OK)
            engine->peaks.read_bytes = RP_MAX(engine->peaks.read_bytes, rate);
    }
    backend->free(engine->device, data, RP_MEMORY_DEVICE);
    return status;
}

/* One GEMM: (rows, side) times a (side, side) matrix of the model's dtype. */
struct gemm {
    struct rp_program program;
    struct rp_matrix matrix;
    struct rp_graph *graph;
    unsigned char *arena;
    uint32_t rows, side;
};

static int emit_gemm(struct gemm *gemm) {
    struct rp_op op = {.kind = RP_OP_LINEAR, .rows = RP_ROWS_TOKEN, .name = "gemm"};
    struct rp_program *program = &gemm->program;
    int32_t in =
        rp_program_add_tensor(program, RP_ROWS_TOKEN, gemm->matrix.dtype, gemm->side, "in");
    int32_t out = rp_program_add_tensor(program, RP_ROWS_TOKEN, RP_DTYPE_F32, gemm->side, "out");
    if (in < 0 || out < 0)
        return RP_STATUS_NO_MEMORY;
    rp_op_add_input(&op, rp_view_all(program, in));
    op.out = rp_view_all(program, out);
    op.weight = &gemm->matrix;
    return rp_program_add_op(program, &op) < 0 ? RP_STATUS_NO_MEMORY : RP_OK;
}

static int make_gemm(struct rp_engine *engine, struct gemm *gemm) {
    const struct rp_backend *backend = engine->backend;
    size_t in_bytes =
        RP_ALIGN_UP((size_t)gemm->rows * gemm->side * rp_dtype_bytes(gemm->matrix.dtype), 256);
    size_t out_bytes = (size_t)gemm->rows * gemm->side * sizeof(float);
    const size_t offsets[] = {0, in_bytes};
    const struct rp_bucket bucket = {.tokens = gemm->rows, .rows = 1, .logit_rows = 1};
    const struct rp_lower_options options = {.no_fusion = false};
    struct rp_error err;
    int status = backend->matrix_random(engine->device, &gemm->matrix, 1,
                                        1.0f / sqrtf((float)gemm->side), &err);
    if (status != RP_OK)
        gemm->matrix = (struct rp_matrix){.rows = 0};
    if (status == RP_OK)
        status = emit_gemm(gemm);
    gemm->arena = status == RP_OK
                      ? backend->alloc(engine->device, in_bytes + out_bytes, RP_MEMORY_DEVICE)
                      : NULL;
    if (!gemm->arena)
        return status == RP_OK ? RP_STATUS_NO_MEMORY : status;
    struct rp_bindings bindings = {.arena = gemm->arena,
                                   .tensor_offsets = offsets,
                                   .step = engine->batch.view,
                                   .kv = &engine->layout.kv};
    bindings.step.config.stamp_capacity = 0;
    status = backend->fill(engine->device, gemm->arena, 0, in_bytes + out_bytes);
    if (status == RP_OK)
        status = backend->capture(engine->device, &gemm->program, 0, 1, &bucket, &bindings,
                                  &options, engine->config.enforce_eager, &gemm->graph, &err);
    return status;
}

static void free_gemm(struct rp_engine *engine, struct gemm *gemm) {
    if (gemm->graph)
        engine->backend->graph_destroy(engine->device, gemm->graph);
    if (gemm->arena)
        engine->backend->free(engine->device, gemm->arena, RP_MEMORY_DEVICE);
    if (gemm->matrix.rows)
        engine->backend->matrix_release(engine->device, &gemm->matrix);
    rp_program_deinit(&gemm->program);
}

/* Nanoseconds of the fastest of a few GEMMs of `rows` live rows; 0: it failed. */
static uint64_t time_gemm(struct rp_engine *engine, const struct gemm *gemm, uint32_t rows,
                          uint32_t times) {
    const struct rp_backend *backend = engine->backend;
    /* The kernels read the number of rows from the step; its counter does not change. */
    const struct rp_live_counts counts = {.step = engine->device_step, .token_count = rows};
    uint64_t best = UINT64_MAX, first = rp_clock_ns();
    if (backend->copy(engine->device, engine->batch.view.counts, &counts, sizeof counts) != RP_OK ||
        backend->synchronize(engine->device) != RP_OK)
        return 0;
    for (uint32_t i = 0; i < times && (i < 2 || rp_clock_ns() - first < BUDGET_NS); i++) {
        uint64_t begin = rp_clock_ns();
        if (backend->launch(engine->device, gemm->graph) != RP_OK ||
            backend->synchronize(engine->device) != RP_OK)
            return 0;
        best = RP_MIN(best, rp_clock_ns() - begin);
    }
    return RP_MAX(best, 1u);
}

static int measure_gemm(struct rp_engine *engine) {
    bool gpu = engine->device_info.separate_memory;
    uint32_t most = engine->layout.step.token_capacity;
    struct gemm gemm = {.rows = RP_MIN(most, gpu ? GPU_ROWS : PRODUCT_ROWS),
                        .side = gpu ? GPU_SIDE : PRODUCT_SIDE};
    gemm.matrix =
        (struct rp_matrix){.rows = gemm.side, .cols = gemm.side, .dtype = engine->model->dtype};
    rp_program_init(&gemm.program);
    int status = make_gemm(engine, &gemm);
    if (status == RP_OK) {
        uint32_t rows = RP_MIN(gemm.rows, FEW_ROWS);
        uint64_t ns = time_gemm(engine, &gemm, rows, GEMMS);
        if (ns && ns * (gemm.rows / rows) < LONG_NS) {
            rows = gemm.rows;
            ns = time_gemm(engine, &gemm, rows, GEMMS);
        }
        status = ns ? RP_OK : RP_STATUS_DEVICE;
        if (ns)
            engine->peaks.flops = 2.0 * rows * gemm.side * (double)gemm.side * 1e9 / (double)ns;
        const struct rp_live_counts counts = {.step = engine->device_step};
        if (engine->backend->copy(engine->device, engine->batch.view.counts, &counts,
                                  sizeof counts) != RP_OK ||
            engine->backend->synchronize(engine->device) != RP_OK)
            status = RP_STATUS_DEVICE;
    }
    free_gemm(engine, &gemm);
    return status;
}

int rp_engine_measure_peaks(struct rp_engine *engine, struct rp_error *err) {
    if (!engine->config.measure_peaks)
        return RP_OK;
    int status = measure_read(engine);
    if (status == RP_OK)
        status = measure_gemm(engine);
    if (status == RP_STATUS_DEVICE)
        return rp_engine_device_error(engine, "measuring the device's peaks", err);
    rp_log(RP_LOG_DEBUG, "start: peaks read_gb_s=%.1f gflop_s=%.1f",
           engine->peaks.read_bytes * 1e-9, engine->peaks.flops * 1e-9);
    return RP_OK;
}
