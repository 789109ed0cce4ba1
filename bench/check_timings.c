/* check_timings.c - times decode steps and prompts on this machine, as `bench decode` does. */
#include "bench/bench_decode.h"
#include "bench/check_internal.h"

#include <stdio.h>
#include <string.h>

struct timings {
    struct rp_expectations *out;
    char label[80];
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
                            timings->label, result->batch, result->context);
    if (row) {
        row->value = result->ms_p50;
        row->direction = RP_EXPECT_LOWER;
        /* The GPU is assumed to be exclusive, the CPU shared. */
        row->relative = timings->on_gpu ? 0.03 : 0.25;
        row = rp_expectations_add(timings->out, "prompts.%s.batch_%u.context_%u.tokens_per_second",
                                  timings->label, result->batch, result->context);
    }
    if (row) {
        row->value = result->prefill_tokens_per_second;
        row->direction = RP_EXPECT_HIGHER;
        row->relative = timings->on_gpu ? 0.05 : 0.4; /* one pass over the prompts */
    }
    timings->full = timings->full || !row;
}

/* Takes ownership of the device. */
static int time_weights(const struct rp_check_config *config, const struct rp_backend *backend,
                        struct rp_device *device, enum rp_quant_scheme scheme,
                        struct rp_expectations *out, struct rp_error *err) {
    static const uint32_t batches[] = {1, 8, 64};
    const uint32_t context = config->timed_context ? config->timed_context : 512;
    struct rp_device_info info;
    backend->info(device, &info);
    struct timings timings = {.out = out, .on_gpu = info.separate_memory};
    const char *shape = config->timed_shape && *config->timed_shape ? config->timed_shape
                        : timings.on_gpu                            ? "llama-3.1-8b"
                                                                    : "demo";
    snprintf(timings.label, sizeof timings.label, "%.48s%s%s", shape,
             scheme == RP_QUANT_NONE ? "" : ".",
             scheme == RP_QUANT_NONE ? "" : rp_quant_scheme_name(scheme));
    const struct rp_bench_decode_config decode = {
        .target = {.backend = backend,
                   .opened = device,
                   .device = {.slow_share = config->slow_share},
                   .shape = shape,
                   .dtype = RP_DTYPE_BF16,
                   .kv_dtype = RP_DTYPE_BF16,
                   .quantization = {scheme, false},
                   .run_ahead = true},
        .batches = batches,
        .contexts = &context,
        .batch_count = timings.on_gpu ? 3 : 2,
        .context_count = 1,
        .tokens = 64,
        .warm_up = 8,
        .rounds = 5,
        .no_bandwidth = true,
        .report = on_result,
        .report_ctx = &timings};
    int status = rp_bench_decode(&decode, err);
    return status == RP_OK && timings.full ? rp_check_no_memory(err) : status;
}

bool rp_check_merge(const struct rp_expectations *runs, uint32_t count,
                    struct rp_expectations *out) {
    double values[RP_CHECK_REPEATS_MAX];
    for (uint32_t i = 0; count && i < runs[0].count; i++) {
        const struct rp_expectation *first = &runs[0].rows[i];
        uint32_t found = 0;
        for (uint32_t r = 0; r < count; r++) {
            const struct rp_expectation *row = rp_expectations_find(&runs[r], first->metric);
            if (row)
                values[found++] = row->value;
        }
        struct rp_expectation *row = rp_expectations_add(out, "%s", "");
        if (!row)
            return false;
        *row = *first;
        row->value = rp_bench_quantile(values, found, 0.5); /* sorts */
        if (row->value > 0)
            row->relative = RP_MAX(row->relative, (values[found - 1] - values[0]) / row->value);
    }
    return true;
}

int rp_check_timings(const struct rp_check_config *config, const struct rp_backend *backend,
                     struct rp_device *device, struct rp_expectations *out, struct rp_error *err) {
    static const enum rp_quant_scheme schemes[] = {RP_QUANT_NONE, RP_QUANT_FP8};
    const struct rp_device_config opened = {.slow_share = config->slow_share,
                                            .cache_dir = config->cache_dir};
    struct rp_expectations runs[RP_CHECK_REPEATS_MAX] = {{.count = 0}};
    uint32_t repeats = RP_MIN(RP_MAX(config->repeats, 1u), RP_CHECK_REPEATS_MAX);
    struct rp_device_info info;
    int status = RP_OK;
    backend->info(device, &info);
    uint32_t scheme_count = info.separate_memory ? 2 : 1;
    for (uint32_t i = 0; i < repeats * scheme_count && status == RP_OK; i++) {
        if (!device)
            status = backend->open(&opened, &device, err);
        if (status == RP_OK)
            status = time_weights(config, backend, device, schemes[i % scheme_count],
                                  &runs[i / scheme_count], err);
        device = NULL;
    }
    if (status == RP_OK && !rp_check_merge(runs, repeats, out))
        status = rp_check_no_memory(err);
    for (uint32_t r = 0; r < repeats; r++)
        rp_expectations_deinit(&runs[r]);
    return status;
}
