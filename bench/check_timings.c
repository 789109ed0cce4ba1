/* check_timings.c - times decode steps on this machine, as `bench decode` does. */
#include "bench/bench_decode.h"
#include "bench/check_internal.h"

#include <string.h>

struct timings {
    struct rp_expectations *out;
    const char *shape;
    bool on_gpu, full;
};

static void on_result(void *ctx, const struct rp_bench_ready *ready,
                      const struct rp_bench_decode_result *result) {
    struct timings *timings = ctx;
    (void)ready;
    if (result->skipped)
        return;
    struct rp_expectation *row =
        rp_expectations_add(timings->out, "decode.%s.batch_%u.context_%u.ms_per_step",
                            timings->shape, result->batch, result->context);
    if (!row) {
        timings->full = true;
        return;
    }
    row->value = result->ms_p50;
    row->direction = RP_EXPECT_LOWER;
    /* The GPU is assumed to be exclusive, the CPU shared. */
    row->relative = timings->on_gpu ? 0.03 : 0.25;
}

int rp_check_timings(const struct rp_check_config *config, const struct rp_backend *backend,
                     struct rp_device *device, struct rp_expectations *out, struct rp_error *err) {
    static const uint32_t batches[] = {1, 8, 64}, contexts[] = {512};
    struct rp_device_info info;
    backend->info(device, &info);
    struct timings timings = {.out = out, .on_gpu = info.separate_memory};
    timings.shape = timings.on_gpu ? "llama-3.1-8b" : "demo";
    const struct rp_bench_decode_config decode = {
        .target = {.backend = backend,
                   .opened = device,
                   .device = {.slow_share = config->slow_share},
                   .shape = timings.shape,
                   .dtype = RP_DTYPE_BF16,
                   .run_ahead = true},
        .batches = batches,
        .contexts = contexts,
        .batch_count = timings.on_gpu ? 3 : 2,
        .context_count = 1,
        .tokens = 64,
        .warm_up = 8,
        .rounds = 5,
        .report = on_result,
        .report_ctx = &timings};
    int status = rp_bench_decode(&decode, err);
    return status == RP_OK && timings.full ? rp_check_no_memory(err) : status;
}
