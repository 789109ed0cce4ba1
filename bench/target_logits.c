#include "bench/target_logits.h"

#include "base/memory.h"
#include "engine/weights_on_device.h"

#include <string.h>

void rp_target_random_ids(uint32_t vocab, int32_t *out, uint32_t count) {
    uint32_t state = 1;
    for (uint32_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u; /* Numerical Recipes' generator */
        out[i] = (int32_t)((uint64_t)state * vocab >> 32);
    }
}

static const struct rp_backend *backend_of(const struct rp_bench_target *target) {
    return target->backend ? target->backend : rp_backend_cpu();
}

static int run_model(const struct rp_bench_target *target, struct rp_device *device,
                     const struct rp_model *model, const int32_t *ids, uint32_t count,
                     float *logits, struct rp_error *err) {
    uint32_t vocab = model->config.vocab;
    const struct rp_eval_run_config config = {.backend = backend_of(target),
                                              .device = device,
                                              .model = model,
                                              .window = count,
                                              .chunk = rp_eval_run_chunk(vocab, count),
                                              .kv_dtype = target->kv_dtype,
                                              .no_fusion = target->no_fusion,
                                              .eager = target->enforce_eager};
    struct rp_eval_run run;
    const float *values;
    int status = rp_eval_run_open(&config, &run, err);
    for (uint32_t at = 0; status == RP_OK && at < count; at += config.chunk) {
        uint32_t tokens = RP_MIN(config.chunk, count - at);
        status = rp_eval_run_feed(&run, ids + at, tokens, at == 0, &values, err);
        if (status == RP_OK)
            memcpy(logits + (size_t)at * vocab, values, (size_t)tokens * vocab * sizeof *logits);
    }
    rp_eval_run_close(&run);
    return status;
}

int rp_target_logits(const struct rp_bench_target *target, struct rp_device *device,
                     const int32_t *ids, uint32_t count, float **out, struct rp_error *err) {
    const struct rp_backend *backend = backend_of(target);
    struct rp_device_info info;
    struct rp_model model = {0};
    uint32_t prepared = 0;
    *out = NULL;
    backend->info(device, &info);
    int status = rp_bench_make_model(target, count, info.separate_memory, &model, err);
    if (status == RP_OK)
        status = rp_model_shard(&model, info.ranks, err);
    if (status == RP_OK)
        status = rp_weights_prepare(backend, device, &model, &prepared, NULL, NULL, err);
    if (status == RP_OK) {
        *out = rp_calloc((size_t)count * model.config.vocab, sizeof **out);
        status = *out ? run_model(target, device, &model, ids, count, *out, err)
                      : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    }
    rp_weights_release(backend, device, &model, prepared);
    rp_model_deinit(&model);
    return status;
}

int rp_target_compare(const float *logits, const float *other, uint32_t vocab, const int32_t *ids,
                      uint32_t count, struct rp_eval_sums *out, struct rp_error *err) {
    memset(out, 0, sizeof *out);
    for (uint32_t t = 0; t < count; t++) {
        size_t at = (size_t)t * vocab;
        if (!rp_eval_count(out, logits + at, other + at, vocab, (uint32_t)ids[t + 1]))
            return rp_error_set(err, RP_STATUS_FORMAT, "a logit of token %u is not finite", t);
    }
    return RP_OK;
}
