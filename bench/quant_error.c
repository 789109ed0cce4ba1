#include "bench/quant_error.h"

#include "base/memory.h"
#include "bench/eval_ppl.h"
#include "engine/weights_on_device.h"

#include <string.h>

struct comparison {
    const struct rp_backend *backend;
    struct rp_device *device;
    bool on_gpu;
    uint32_t vocab;
    int32_t ids[RP_QUANT_ERROR_TOKENS + 1];
};

static void fill_ids(struct comparison *c) {
    uint32_t state = 1;
    for (uint32_t i = 0; i <= RP_QUANT_ERROR_TOKENS; i++) {
        state = state * 1664525u + 1013904223u; /* Numerical Recipes' generator */
        c->ids[i] = (int32_t)((uint64_t)state * c->vocab >> 32);
    }
}

/* Logits of all tokens, (RP_QUANT_ERROR_TOKENS, vocab). */
static int run_model(const struct comparison *c, const struct rp_model *model,
                     const struct rp_bench_target *target, float *logits, struct rp_error *err) {
    const struct rp_eval_run_config config = {
        .backend = c->backend,
        .device = c->device,
        .model = model,
        .window = RP_QUANT_ERROR_TOKENS,
        .chunk = rp_eval_run_chunk(c->vocab, RP_QUANT_ERROR_TOKENS),
        .kv_dtype = target->kv_dtype,
        .no_fusion = target->no_fusion,
        .eager = target->enforce_eager};
    struct rp_eval_run run;
    const float *values;
    int status = rp_eval_run_open(&config, &run, err);
    for (uint32_t at = 0; status == RP_OK && at < RP_QUANT_ERROR_TOKENS; at += config.chunk) {
        uint32_t count = RP_MIN(config.chunk, RP_QUANT_ERROR_TOKENS - at);
        status = rp_eval_run_feed(&run, c->ids + at, count, at == 0, &values, err);
        if (status == RP_OK)
            memcpy(logits + (size_t)at * c->vocab, values,
                   (size_t)count * c->vocab * sizeof *logits);
    }
    rp_eval_run_close(&run);
    return status;
}

static int compute(struct comparison *c, const struct rp_bench_target *target, float **out,
                   struct rp_error *err) {
    struct rp_model model = {0};
    uint32_t prepared = 0;
    int status = rp_bench_make_model(target, RP_QUANT_ERROR_TOKENS, c->on_gpu, &model, err);
    if (status == RP_OK)
        status = rp_weights_prepare(c->backend, c->device, &model, &prepared, NULL, NULL, err);
    if (status == RP_OK) {
        c->vocab = model.config.vocab;
        fill_ids(c);
        *out = rp_calloc((size_t)RP_QUANT_ERROR_TOKENS * c->vocab, sizeof **out);
        status = *out ? run_model(c, &model, target, *out, err)
                      : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    }
    rp_weights_release(c->backend, c->device, &model, prepared);
    rp_model_deinit(&model);
    return status;
}

/* The same target without quantization; false when it has none. */
static bool without_quantization(const struct rp_bench_target *target,
                                 const struct rp_model_config *config,
                                 struct rp_bench_target *out) {
    bool file = target->dir && config->quant.scales != RP_SCALE_NONE;
    *out = *target;
    out->quantization = (struct rp_model_quantization){0};
    if (file)
        out->dtype = RP_DTYPE_F32; /* dequantized exactly: measures the quantized inputs */
    out->kv_dtype = out->dtype;
    return file || target->quantization.scheme != RP_QUANT_NONE ||
           rp_dtype_bytes(target->kv_dtype) == 1;
}

static int compare(const struct comparison *c, const float *logits, const float *other,
                   struct rp_quant_error *out, struct rp_error *err) {
    struct rp_eval_sums sums = {0};
    for (uint32_t t = 0; t < RP_QUANT_ERROR_TOKENS; t++) {
        size_t at = (size_t)t * c->vocab;
        if (!rp_eval_count(&sums, logits + at, other + at, c->vocab, (uint32_t)c->ids[t + 1]))
            return rp_error_set(err, RP_STATUS_FORMAT, "a logit of token %u is not finite", t);
    }
    out->tokens = RP_QUANT_ERROR_TOKENS;
    out->cosine_mean = sums.difference.cosine_sum / out->tokens;
    out->cosine_min = sums.difference.cosine_min;
    out->kl_mean = sums.difference.kl_sum / out->tokens;
    out->top1_share = (double)sums.difference.top1_same / out->tokens;
    return RP_OK;
}

int rp_quant_error_measure(const struct rp_bench_target *target, struct rp_quant_error *out,
                           struct rp_error *err) {
    struct rp_model_config config;
    struct rp_bench_target plain;
    struct comparison c = {.backend = target->backend ? target->backend : rp_backend_cpu(),
                           .device = target->opened,
                           .on_gpu = rp_bench_on_gpu(target)};
    float *logits = NULL, *other = NULL;
    memset(out, 0, sizeof *out);
    int status = rp_bench_model_config(target, &config, err);
    if (status != RP_OK || !without_quantization(target, &config, &plain))
        return status;
    out->against = plain.dtype;
    if (!target->opened)
        status = c.backend->open(&target->device, &c.device, err);
    if (status == RP_OK)
        status = compute(&c, target, &logits, err);
    if (status == RP_OK)
        status = compute(&c, &plain, &other, err);
    if (status == RP_OK)
        status = compare(&c, logits, other, out, err);
    if (!target->opened && c.device)
        c.backend->close(c.device);
    rp_free(logits);
    rp_free(other);
    return status;
}
