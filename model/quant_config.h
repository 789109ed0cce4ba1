/* quant_config.h - the 8-bit or 4-bit weight scheme of a checkpoint: quantization_config of
 * config.json, or ModelOpt's hf_quant_config.json. docs/quantization.md has the table of what is
 * read and what is refused.
 *
 *   quant_method        weights                          scale tensor                input rows
 *   compressed-tensors  F8_E4M3 or I8, tensor, channel   weight_scale (1) or (n, 1)  8 bits, or
 *   bf16 without input_activations
 *                       or (F8_E4M3) block 128 x 128     weight_scale (n/128, k/128)
 *   fp8                 F8_E4M3, per tensor              weight_scale () or (1)      8 bits
 *                       F8_E4M3, blocks of 128 x 128     weight_scale_inv            8 bits
 *   modelopt            F8_E4M3, per tensor              weight_scale () or (1)      8 bits
 *
 *   compressed-tensors  4-bit integers in groups of K,   weight_packed, weight_scale, bf16
 *                       E2M1 (nvfp4, mxfp4)              weight_zero_point, weight_g_idx,
 *                                                        weight_global_scale
 *   awq, gptq           4-bit integers in groups of K    qweight, scales, qzeros, g_idx  bf16
 *   modelopt            NVFP4                            weight_scale, weight_scale_2    bf16
 *   mxfp4               E2M1 in gpt-oss's experts        _blocks, _scales            bf16
 *
 * Everything else is rejected by name. Thread: any. */
#ifndef RP_MODEL_QUANT_CONFIG_H
#define RP_MODEL_QUANT_CONFIG_H

#include "model/model.h"

#include <jansson.h>

/* `object` is the value of `key` in `file`. Fills config->quant; config->layers is known. */
int rp_quant_config_read(const json_t *object, const char *file, const char *key,
                         struct rp_model_config *config, struct rp_error *err) RP_MUST_USE;

/* Modules of layers whose experts have MXFP4 weights. */
#define RP_MXFP4_MODULES                                                                           \
    (1u << RP_MODULE_EXPERT_GATE | 1u << RP_MODULE_EXPERT_UP | 1u << RP_MODULE_EXPERT_DOWN)
/* Fills config->quant, except for which modules they are. */
void rp_quant_set_mxfp4_experts(struct rp_model_config *config);

/* Whether a list names the module ("model.layers.3.mlp.up_proj"): a full name, a name in front of a
 * dot, its last words behind a dot, "re:" and a pattern that matches from the begin, "*" for any
 * text, or "Linear", which is every module. RP_STATUS_FORMAT: an entry is no string, or its pattern
 * is none. */
int rp_quant_list_names(const json_t *list, const char *module, const char *what, bool *out,
                        struct rp_error *err) RP_MUST_USE;

#endif
