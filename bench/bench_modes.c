#include "bench/bench_modes.h"

#include "base/memory.h"
#include "bench/target_logits.h"

#include <stdio.h>
#include <string.h>

static const struct mode {
    const char *name;
    enum rp_quant_scheme scheme;
    enum rp_dtype pages; /* RP_DTYPE_BF16: as the target's */
    bool eager, fast;
} modes[RP_BENCH_MODES] = {
    {"eager", RP_QUANT_NONE, RP_DTYPE_BF16, true, false},
    {"graphs", RP_QUANT_NONE, RP_DTYPE_BF16, false, false},
    {"fast", RP_QUANT_NONE, RP_DTYPE_BF16, false, true},
    {"int8", RP_QUANT_INT8, RP_DTYPE_BF16, false, false},
    {"fp8", RP_QUANT_FP8, RP_DTYPE_BF16, false, false},
    {"int8-w8a16", RP_QUANT_INT8_W8A16, RP_DTYPE_BF16, false, false},
    {"pages-int8", RP_QUANT_NONE, RP_DTYPE_INT8, false, false},
    {"pages-fp8", RP_QUANT_NONE, RP_DTYPE_FP8_E4M3, false, false},
    {"int8+pages", RP_QUANT_INT8, RP_DTYPE_INT8, false, false},
};

const char *rp_bench_mode_name(uint32_t mode) { return modes[mode].name; }

static struct rp_bench_target target_of(const struct rp_bench_target *base,
                                        const struct mode *mode) {
    struct rp_bench_target target = *base;
    target.enforce_eager = mode->eager;
    target.device.fast_numerics = mode->fast;
    target.quantization.scheme = mode->scheme;
    target.kv_dtype = mode->pages == RP_DTYPE_BF16 ? base->kv_dtype : mode->pages;
    return target;
}

struct timing {
    struct rp_bench_mode_result *result;
    uint32_t count;
};

static void on_pair(void *ctx, const struct rp_bench_ready *ready,
                    const struct rp_bench_decode_result *decode) {
    struct timing *timing = ctx;
    memcpy(timing->result->device, ready->device, sizeof timing->result->device);
    timing->result->weight_bytes = decode->weight_bytes;
    timing->result->decode[timing->count++] = *decode;
}

/* Takes ownership of target->opened. */
static int time_mode(const struct rp_bench_modes_config *config,
                     const struct rp_bench_target *target, struct rp_bench_mode_result *out,
                     struct rp_error *err) {
    struct timing timing = {.result = out};
    const struct rp_bench_decode_config decode = {.target = *target,
                                                  .batches = config->batches,
                                                  .contexts = &config->context,
                                                  .batch_count = config->batch_count,
                                                  .context_count = 1,
                                                  .tokens = config->tokens,
                                                  .rounds = config->rounds,
                                                  .warm_up = config->warm_up,
                                                  .no_bandwidth = true,
                                                  .report = on_pair,
                                                  .report_ctx = &timing};
    return rp_bench_decode(&decode, err);
}

static int compare(const struct rp_bench_modes_config *config, uint32_t vocab, const float *logits,
                   const float *reference, struct rp_bench_mode_result *out, struct rp_error *err) {
    struct rp_eval_sums sums;
    int status =
        rp_target_compare(logits, reference, vocab, config->ids, config->count, &sums, err);
    if (status != RP_OK)
        return status;
    out->tokens = config->count;
    out->logit_max = sums.difference.logit_max;
    out->kl_mean = sums.difference.kl_sum / config->count;
    out->kl_max = sums.difference.kl_max;
    out->cosine_min = sums.difference.cosine_min;
    out->top1_share = (double)sums.difference.top1_same / config->count;
    return RP_OK;
}

/* *reference: the logits of the first mode, made by it. */
static int run_mode(const struct rp_bench_modes_config *config, const struct mode *mode,
                    uint32_t vocab, float **reference, struct rp_bench_mode_result *out,
                    struct rp_error *err) {
    struct rp_bench_target target = target_of(&config->target, mode);
    struct rp_device_info info;
    float *logits = NULL;
    int status = target.backend->open(&target.device, &target.opened, err);
    if (status != RP_OK)
        return status;
    target.backend->info(target.opened, &info);
    if (mode->fast && !info.separate_memory)
        status = rp_error_set(err, RP_STATUS_UNSUPPORTED, "fast numerics are of GPUs only");
    if (status == RP_OK)
        status = rp_target_logits(&target, target.opened, config->ids, config->count, &logits, err);
    if (status == RP_OK)
        status = compare(config, vocab, logits, *reference ? *reference : logits, out, err);
    if (status == RP_OK && !*reference) {
        *reference = logits;
        logits = NULL;
    }
    rp_free(logits);
    if (status == RP_OK)
        return time_mode(config, &target, out, err);
    target.backend->close(target.opened);
    return status;
}

int rp_bench_modes(const struct rp_bench_modes_config *config, struct rp_error *err) {
    struct rp_model_config model;
    float *reference = NULL;
    int status = rp_bench_model_config(&config->target, &model, err);
    for (uint32_t i = 0; i < RP_BENCH_MODES && status == RP_OK; i++) {
        struct rp_bench_mode_result result = {.name = modes[i].name};
        if (i > 0 && !(config->modes & 1u << i))
            continue;
        status = run_mode(config, &modes[i], model.vocab, &reference, &result, err);
        if (status != RP_OK && i > 0 && status != RP_STATUS_NO_MEMORY) {
            snprintf(result.left_out, sizeof result.left_out, "%.190s", err->text);
            status = RP_OK;
        }
        if (status == RP_OK)
            config->report(config->report_ctx, &result);
    }
    rp_free(reference);
    return status;
}
