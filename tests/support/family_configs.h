/* family_configs.h - fields of configurations that make each family emit its own operators. */
#ifndef RP_TESTS_SUPPORT_FAMILY_CONFIGS_H
#define RP_TESTS_SUPPORT_FAMILY_CONFIGS_H

#include "model/model.h"

static inline void rp_test_set_gpt_oss(struct rp_model_config *config) {
    config->window = 7;
    config->full_layers[0] = 2;
    config->qkv_bias = config->o_bias = config->attention_sinks = true;
    config->activation = RP_ACTIVATION_SWIGLU_CLAMPED;
    config->experts = (struct rp_model_experts){.count = 6,
                                                .used = 3,
                                                .intermediate = 32,
                                                .score = RP_ROUTE_SOFTMAX_CHOSEN,
                                                .groups = 1,
                                                .factor = 1,
                                                .linear_bias = true};
}

/* Layers 1 and 3 see all; 2 and 3 read K and V of 0 and 1. */
static inline void rp_test_set_gemma4(struct rp_model_config *config) {
    config->layers = 4;
    config->window = 7;
    config->full_layers[0] = 2 | 8;
    config->full_head_dim = config->head_dim / 4 * 2;
    config->full_kv_heads = 1;
    config->qk_norm = RP_QK_NORM_HEAD;
    config->v_norm = config->full_k_is_v = config->wide_shared = config->layer_scalars = true;
    config->kv_shared = 2;
    config->layer_embed = 8;
    config->layer_embed_vocab = config->vocab;
    config->post_norms = config->embed_scaled = config->tied = true;
    config->attention_scale = 1;
    config->logit_cap = 3;
    config->activation = RP_ACTIVATION_GELU_TANH;
    config->rope =
        (struct rp_rope){.kind = RP_ROPE_PROPORTIONAL, .theta = 1e4, .factor = 1, .live_pairs = 2};
    config->local_rope.theta = 500;
    config->experts = (struct rp_model_experts){.count = 6,
                                                .used = 3,
                                                .intermediate = 32,
                                                .renormalize = true,
                                                .groups = 1,
                                                .factor = 1,
                                                .parallel = true};
}

/* What families with recurrent state have; nothing in the others. */
static inline void rp_test_set_state(struct rp_model_config *config) {
    switch (config->family) {
    case RP_FAMILY_LFM2: /* layer 0 has the state */
        config->qk_norm = RP_QK_NORM_HEAD;
        config->state = (struct rp_model_state){.layers = {1}, .conv_width = 3};
        break;
    case RP_FAMILY_QWEN3_NEXT: /* layer 0 has the state, too */
        config->qk_norm = RP_QK_NORM_HEAD;
        config->norm_offset = 1;
        config->output_gate = true;
        config->rope.rotary_dim = config->head_dim / 4 / 2 * 2;
        config->state = (struct rp_model_state){.layers = {1},
                                                .conv_width = 4,
                                                .key_heads = 2,
                                                .value_heads = 6,
                                                .key_dim = 12,
                                                .value_dim = 20};
        config->experts = (struct rp_model_experts){.count = 7,
                                                    .used = 3,
                                                    .intermediate = 32,
                                                    .shared = 24,
                                                    .shared_gate = true,
                                                    .renormalize = true,
                                                    .groups = 1,
                                                    .factor = 1};
        break;
    case RP_FAMILY_QWEN3_5: /* layers 0 and 1; heads of the usual size */
        config->qk_norm = RP_QK_NORM_HEAD;
        config->norm_offset = 1;
        config->output_gate = true;
        config->rope.rotary_dim = config->head_dim / 4;
        config->state = (struct rp_model_state){.layers = {3},
                                                .conv_width = 4,
                                                .key_heads = 2,
                                                .value_heads = 4,
                                                .key_dim = 128,
                                                .value_dim = 128};
        break;
    default:
        break;
    }
}

/* What families with experts have; nothing in the others. */
static inline void rp_test_set_experts(struct rp_model_config *config) {
    switch (config->family) {
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
    case RP_FAMILY_GRANITE_MOE:
        config->embed_factor = 3;
        config->residual_factor = 0.3f;
        config->attention_scale = 0.2;
        config->logit_factor = 2;
        config->experts = (struct rp_model_experts){.count = 20,
                                                    .used = 6,
                                                    .intermediate = 48,
                                                    .score = RP_ROUTE_SOFTMAX_CHOSEN,
                                                    .groups = 1,
                                                    .factor = 1};
        break;
    case RP_FAMILY_QWEN3_MOE:
    case RP_FAMILY_OLMOE:
        config->qk_norm = config->family == RP_FAMILY_OLMOE ? RP_QK_NORM_WHOLE : RP_QK_NORM_HEAD;
        config->experts =
            (struct rp_model_experts){.count = 32,
                                      .used = 8,
                                      .intermediate = 64,
                                      .renormalize = config->family == RP_FAMILY_QWEN3_MOE,
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
    case RP_FAMILY_DEEPSEEK_V2: /* q of the layer's input */
    case RP_FAMILY_DEEPSEEK_V3: /* q of a low rank; layer 0 has an MLP */
        config->kv_heads = 1;
        config->rope.rotary_dim = 8;
        config->latent =
            (struct rp_model_latent){.rank = 32,
                                     .rope_dim = 8,
                                     .nope_dim = config->head_dim - 8,
                                     .value_dim = 48,
                                     .q_rank = config->family == RP_FAMILY_DEEPSEEK_V3 ? 20 : 0};
        config->experts = (struct rp_model_experts){.count = 6,
                                                    .used = 2,
                                                    .intermediate = 16,
                                                    .shared = 32,
                                                    .groups = 3,
                                                    .groups_used = 2,
                                                    .group_best = 1,
                                                    .factor = 1.5f};
        if (config->family == RP_FAMILY_DEEPSEEK_V3) {
            config->experts.score = RP_ROUTE_SIGMOID;
            config->experts.bias = config->experts.renormalize = true;
            config->experts.group_best = 2;
            config->experts.dense_layers[0] = 1;
        }
        break;
    case RP_FAMILY_GPT_OSS:
        rp_test_set_gpt_oss(config);
        break;
    case RP_FAMILY_GEMMA4:
        rp_test_set_gemma4(config);
        break;
    default:
        break;
    }
}

/* Sets what the family's configurations have: scales, LayerNorm, norms of all heads, layers without
 * RoPE, two tables of angles, partial RoPE, experts. Sizes and most windows are the caller's. */
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
    case RP_FAMILY_GEMMA3:
        config->post_norms = config->embed_scaled = true;
        config->full_layers[0] = 2;
        config->norm_offset = 1;
        config->qk_norm = RP_QK_NORM_HEAD;
        config->activation = RP_ACTIVATION_GELU_TANH;
        config->local_rope.theta = 500;
        break;
    case RP_FAMILY_PHI3:
        config->rope.rotary_dim = config->head_dim * 3 / 4 / 2 * 2;
        break;
    case RP_FAMILY_GRANITE_HYBRID:
    case RP_FAMILY_GRANITE:
        config->embed_factor = 3;
        config->residual_factor = 0.3f;
        config->attention_scale = 0.2;
        config->logit_factor = 2;
        break;
    case RP_FAMILY_OLMO2:
        config->qk_norm = RP_QK_NORM_WHOLE;
        config->no_pre_norms = config->post_norms = true;
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
    case RP_FAMILY_MINISTRAL:
        config->full_layers[0] = 2;
        break;
    case RP_FAMILY_INTERNLM3:
        config->qkv_bias = config->o_bias = config->mlp_bias = true;
        break;
    case RP_FAMILY_GLM4:
    case RP_FAMILY_GLM:
        config->post_norms = config->family == RP_FAMILY_GLM4;
        config->qkv_bias = true;
        config->rope.rotary_dim = config->head_dim / 2;
        break;
    case RP_FAMILY_MINISTRAL3:
        config->q_scale_beta = 0.5;
        config->rope.original_max_position = 8;
        break;
    case RP_FAMILY_STABLELM:
        config->layer_norm = config->norm_bias = config->qkv_bias = true;
        config->rope.rotary_dim = config->head_dim / 3 / 2 * 2;
        break;
    case RP_FAMILY_COHERE2:
        config->layer_norm = config->parallel = config->nope_full_layers = true;
        config->full_layers[0] = 2;
        config->logit_factor = 0.5f;
        break;
    case RP_FAMILY_COHERE:
        config->layer_norm = config->parallel = true;
        config->qk_norm = RP_QK_NORM_EACH_HEAD;
        config->logit_factor = 0.5f;
        break;
    default:
        rp_test_set_experts(config);
        rp_test_set_state(config);
    }
}

/* Sinks as large as scores and larger, which random weights do not fill where the files of a family
 * have none; factors of layers near 1. */
static inline void rp_test_set_vectors(struct rp_model *model) {
    for (uint32_t i = 0; i < model->weights.count; i++) {
        struct rp_weight *weight = &model->weights.entries[i];
        if (weight->role == RP_WEIGHT_LAYER_SCALAR)
            weight->vector[0] = 0.75f;
        for (uint32_t h = 0; weight->role == RP_WEIGHT_SINKS && h < model->config.heads; h++)
            weight->vector[h] = (float)((h * 7 + weight->layer * 3) % 11) - 5.0f;
    }
}

#endif
