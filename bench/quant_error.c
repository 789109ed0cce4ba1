#include "bench/quant_error.h"

#include "base/memory.h"
#include "bench/target_logits.h"

#include <string.h>

/* The same target without quantization; false when it has none. */
static bool without_quantization(const struct rp_bench_target *target,
                                 const struct rp_model_config *config,
                                 struct rp_bench_target *out) {
    bool file = target->dir && config->quant.scales != RP_SCALE_NONE;
    /* Random 4-bit weights that a device makes are no rounding of others. */
    bool unrelated = !target->dir && rp_quant_scheme_has_blocks(target->quantization.scheme) &&
                     target->backend && target->backend != rp_backend_cpu();
    *out = *target;
    out->quantization = (struct rp_model_quantization){0};
    if (file)
        out->dtype = RP_DTYPE_F32; /* dequantized exactly: measures the quantized inputs */
    out->kv_dtype = out->dtype;
    return !unrelated && (file || target->quantization.scheme != RP_QUANT_NONE ||
                          rp_dtype_bytes(target->kv_dtype) == 1);
}

int rp_quant_error_measure(const struct rp_bench_target *target, struct rp_quant_error *out,
                           struct rp_error *err) {
    const struct rp_backend *backend = target->backend ? target->backend : rp_backend_cpu();
    struct rp_model_config config;
    struct rp_bench_target plain;
    struct rp_device *device = target->opened;
    struct rp_eval_sums sums = {0};
    int32_t ids[RP_QUANT_ERROR_TOKENS + 1];
    float *logits = NULL, *other = NULL;
    memset(out, 0, sizeof *out);
    int status = rp_bench_model_config(target, &config, err);
    if (status != RP_OK || !without_quantization(target, &config, &plain))
        return status;
    rp_target_random_ids(config.vocab, ids, RP_QUANT_ERROR_TOKENS + 1);
    if (!target->opened)
        status = backend->open(&target->device, &device, err);
    if (status == RP_OK)
        status = rp_target_logits(target, device, ids, RP_QUANT_ERROR_TOKENS, &logits, err);
    if (status == RP_OK)
        status = rp_target_logits(&plain, device, ids, RP_QUANT_ERROR_TOKENS, &other, err);
    if (status == RP_OK)
        status =
            rp_target_compare(logits, other, config.vocab, ids, RP_QUANT_ERROR_TOKENS, &sums, err);
    if (status == RP_OK)
        *out = (struct rp_quant_error){
            .tokens = RP_QUANT_ERROR_TOKENS,
            .against = plain.dtype,
            .cosine_mean = sums.difference.cosine_sum / RP_QUANT_ERROR_TOKENS,
            .cosine_min = sums.difference.cosine_min,
            .kl_mean = sums.difference.kl_sum / RP_QUANT_ERROR_TOKENS,
            .top1_share = (double)sums.difference.top1_same / RP_QUANT_ERROR_TOKENS};
    if (!target->opened && device)
        backend->close(device);
    rp_free(logits);
    rp_free(other);
    return status;
}
