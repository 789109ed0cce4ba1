/* family_configs.h - fields of configurations that make each family emit its own operators. */
#ifndef RP_TESTS_SUPPORT_FAMILY_CONFIGS_H
#define RP_TESTS_SUPPORT_FAMILY_CONFIGS_H

#include "model/model.h"

/* Sets what the family's configurations have: scales, LayerNorm, norms of all heads, layers without
 * RoPE, two tables of angles, partial RoPE, experts. Sizes and windows are the caller's. */
static inline void rp_test_set_family(struct rp_model_config *config) {
    switch (config->family) {
    case RP_FAMILY_QWEN2:
        config->qkv_bias = true;
        break;
    case RP_FAMILY_QWEN3:
        config->qk_norm = RP_QK_NORM_HEAD;
        break;
    case RP_FAMILY_GEMMA2:
        config->post_norms = config->embed_scaled = true;
        config->full_layers[0] = 2;
        config->norm_offset = 1;
        config->attention_cap = 2;
        config->logit_cap = 3;
        config->activation = RP_ACTIVATION_GELU_TANH;
        break;
    case RP_FAMILY_GRANITE:
        config->embed_factor = 3;
        config->residual_factor = 0.3f;
        config->attention_scale = 0.2;
        config->logit_factor = 2;
        break;
    case RP_FAMILY_OLMO3:
        config->qk_norm = RP_QK_NORM_WHOLE;
        config->no_pre_norms = config->post_norms = true;
        config->full_layers[0] = 2;
        config->local_rope.theta = 500;
        break;
    case RP_FAMILY_SMOLLM3:
        config->nope_layers[0] = 2;
        break;
    case RP_FAMILY_MINISTRAL3:
        config->q_scale_beta = 0.5;
        config->rope.original_max_position = 8;
        break;
    case RP_FAMILY_STABLELM:
        config->layer_norm = config->norm_bias = config->qkv_bias = true;
        config->rope.rotary_dim = config->head_dim / 3 / 2 * 2;
        break;
    case RP_FAMILY_COHERE:
        config->layer_norm = config->parallel = true;
        config->qk_norm = RP_QK_NORM_EACH_HEAD;
        config->logit_factor = 0.5f;
        break;
    case RP_FAMILY_MIXTRAL:
        config->experts = (struct rp_model_experts){.count = 5,
                                                    .used = 2,
                                                    .intermediate = 32,
                                                    .renormalize = true,
                                                    .groups = 1,
                                                    .factor = 1};
        break;
    case RP_FAMILY_QWEN2_MOE:
        config->qkv_bias = true;
        config->experts = (struct rp_model_experts){.count = 7,
                                                    .used = 7,
                                                    .intermediate = 16,
                                                    .shared = 40,
                                                    .shared_gate = true,
                                                    .groups = 1,
                                                    .factor = 1};
        break;
    case RP_FAMILY_GLM4_MOE: /* layer 0 has an MLP */
        config->rope.rotary_dim = config->head_dim / 2;
        config->experts = (struct rp_model_experts){.count = 12,
                                                    .used = 3,
                                                    .intermediate = 48,
                                                    .shared = 48,
                                                    .score = RP_ROUTE_SIGMOID,
                                                    .bias = true,
                                                    .renormalize = true,
                                                    .groups = 4,
                                                    .groups_used = 2,
                                                    .group_best = 2,
                                                    .factor = 1.5f,
                                                    .dense_layers = {1}};
        break;
    default:
        break;
    }
}

#endif
