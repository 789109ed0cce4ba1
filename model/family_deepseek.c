/* DeepSeek-V2, V2-Lite, V3, R1, Kimi K2, Moonlight: latent attention (network.h), MLPs in the first
 * layers and a mixture of experts beside shared ones in the others:
 *
 *   V2: s = softmax(in Wrouter^T), the best k, or those within the groups with the best experts
 *       y = factor * sum over them of s_e * mlp_e(in) + mlp_shared(in)
 *   V3: as GLM-4.5's (family_glm_moe.c) */
#include "attention/attention.h"
#include "model/config_reader.h"
#include "model/network.h"

#include <stdio.h>
#include <string.h>

static const struct rp_tensor_rule tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    {RP_WEIGHT_QKV, RP_SPAN_Q, "self_attn.q_proj.weight"},
    {RP_WEIGHT_QKV, RP_SPAN_Q_A, "self_attn.q_a_proj.weight"},
    {RP_WEIGHT_QKV, RP_SPAN_K, "self_attn.kv_a_proj_with_mqa.weight"},
    {RP_WEIGHT_Q_NORM, RP_SPAN_ALL, "self_attn.q_a_layernorm.weight"},
    {RP_WEIGHT_Q_B, RP_SPAN_ALL, "self_attn.q_b_proj.weight"},
    {RP_WEIGHT_K_NORM, RP_SPAN_ALL, "self_attn.kv_a_layernorm.weight"},
    {RP_WEIGHT_K_B, RP_SPAN_ALL, "self_attn.kv_b_proj.weight"},
    {RP_WEIGHT_V_B, RP_SPAN_ALL, "self_attn.kv_b_proj.weight"},
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    RP_TENSORS_MLP,
    {RP_WEIGHT_ROUTER, RP_SPAN_ALL, "mlp.gate.weight"},
    {RP_WEIGHT_ROUTER_BIAS, RP_SPAN_ALL, "mlp.gate.e_score_correction_bias"},
    RP_TENSORS_EXPERTS,
    RP_TENSORS_SHARED_EXPERT("mlp.shared_experts."),
};

static void layer(struct rp_emit *e, struct rp_view x) {
    struct rp_view h = rp_emit_norm(e, "attn.norm", x, RP_WEIGHT_ATTN_NORM);
    rp_emit_add(e, "attn.add", x, rp_emit_latent_attention(e, h));
    h = rp_emit_norm(e, "mlp.norm", x, RP_WEIGHT_MLP_NORM);
    rp_emit_add(e, "mlp.add", x, rp_emit_mlp(e, h));
}

/* Columns of attention: `panels` of them are outputs of a head's own matrix. */
static uint32_t read_dim(struct rp_config_reader *reader, const char *key, uint32_t fallback,
                         uint32_t max, bool panels) {
    uint32_t value = rp_config_uint(reader, key, fallback, 1, max), unit = panels ? 16 : 2;
    char message[64];
    snprintf(message, sizeof message, "is %u, must be a multiple of %u", value, unit);
    if (value % unit != 0)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, key, message);
    return value;
}

/* A size that transformers derives: what it writes, or nothing. */
static void check_dim(struct rp_config_reader *reader, const char *key, uint32_t value,
                      uint32_t other) {
    char message[64];
    snprintf(message, sizeof message, "must be %u in this family", value);
    if (!rp_config_get(reader, key))
        return;
    uint32_t found = rp_config_uint(reader, key, value, 1, 1u << 16);
    if (found != value && found != other)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, key, message);
}

static void read_latent(struct rp_config_reader *reader, struct rp_model_config *config) {
    struct rp_model_latent *latent = &config->latent;
    latent->rank = read_dim(reader, "kv_lora_rank", 512, RP_ATTENTION_HEAD_DIM_MAX, true);
    latent->rope_dim = read_dim(reader, "qk_rope_head_dim", 64, 128, false);
    latent->nope_dim = read_dim(reader, "qk_nope_head_dim", 128, 512, false);
    latent->value_dim = read_dim(reader, "v_head_dim", 128, 512, true);
    bool direct = rp_config_has(reader, "q_lora_rank") && !rp_config_get(reader, "q_lora_rank");
    latent->q_rank = direct ? 0 : rp_config_uint(reader, "q_lora_rank", 1536, 1, 1u << 16);
    if (rp_model_latent_cols(latent) > RP_ATTENTION_HEAD_DIM_MAX)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "kv_lora_rank",
                         "and qk_rope_head_dim must be at most 640 together");
    uint32_t dim = latent->nope_dim + latent->rope_dim;
    check_dim(reader, "head_dim", latent->rope_dim, dim);
    check_dim(reader, "qk_head_dim", dim, dim);
    if (config->kv_heads != config->heads)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "num_key_value_heads",
                         "must equal num_attention_heads in this family");
    config->head_dim = dim;
    config->kv_heads = 1;
    config->rope.rotary_dim = latent->rope_dim;
    rp_config_no_bias(reader, "attention_bias");
}

static void refuse_null(struct rp_config_reader *reader, const char *key) {
    if (rp_config_has(reader, key) && !rp_config_get(reader, key))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, key, "must be a number");
}

/* `wanted` is what the family's routers do. */
static void check_name(struct rp_config_reader *reader, const char *key, const char *wanted) {
    const char *name = rp_config_string(reader, key);
    if (name && strcmp(name, wanted) != 0)
        rp_config_refuse_name(reader, key, name, wanted);
}

struct defaults {
    double count, used, intermediate, shared, dense, factor;
};

static void read_experts(struct rp_config_reader *reader, const struct defaults *defaults,
                         struct rp_model_config *config) {
    struct rp_model_experts *experts = &config->experts;
    const struct rp_config_experts_keys keys = {.count = "n_routed_experts",
                                                .count_default = defaults->count,
                                                .used_default = defaults->used,
                                                .intermediate = "moe_intermediate_size",
                                                .intermediate_default = defaults->intermediate};
    refuse_null(reader, "n_routed_experts");
    refuse_null(reader, "n_shared_experts");
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_experts(reader, &keys, config);
    experts->factor =
        (float)rp_config_double(reader, "routed_scaling_factor", defaults->factor, 0, true, 1e6);
    experts->shared =
        experts->intermediate * rp_config_uint(reader, "n_shared_experts", defaults->shared, 0, 64);
    if (rp_config_uint(reader, "moe_layer_freq", 1, 0, RP_LAYERS_MAX) != 1)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "moe_layer_freq", "must be 1");
    uint32_t dense =
        rp_config_uint(reader, "first_k_dense_replace", defaults->dense, 0, RP_LAYERS_MAX);
    for (uint32_t i = 0; i < dense; i++)
        experts->dense_layers[i / 32] |= 1u << i % 32;
}

static void configure_v2(struct rp_config_reader *reader, struct rp_model_config *config) {
    static const struct defaults defaults = {64, RP_CONFIG_REQUIRED, 1407, 2, 0, 1};
    read_latent(reader, config);
    rp_config_no_bias(reader, "mlp_bias");
    read_experts(reader, &defaults, config);
    check_name(reader, "scoring_func", "softmax");
    /* transformers never divides by the sum, DeepSeek's own code divides in place of the factor. */
    if (rp_config_bool(reader, "norm_topk_prob", false))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "norm_topk_prob", "must be false");
    const char *method = rp_config_string(reader, "topk_method");
    bool greedy = !method || strcmp(method, "greedy") == 0;
    if (!greedy && strcmp(method, "group_limited_greedy") != 0)
        rp_config_refuse_name(reader, "topk_method", method, "greedy, group_limited_greedy");
    if (!greedy)
        rp_config_expert_groups(reader, RP_CONFIG_REQUIRED, RP_CONFIG_REQUIRED, 1,
                                &config->experts);
}

static void configure_v3(struct rp_config_reader *reader, struct rp_model_config *config) {
    static const struct defaults defaults = {256, 8, 2048, 1, 3, 2.5};
    struct rp_model_experts *experts = &config->experts;
    read_latent(reader, config);
    read_experts(reader, &defaults, config);
    check_name(reader, "scoring_func", "sigmoid");
    check_name(reader, "topk_method", "noaux_tc");
    experts->score = RP_ROUTE_SIGMOID;
    experts->bias = true;
    experts->renormalize = rp_config_bool(reader, "norm_topk_prob", true);
    refuse_null(reader, "n_group");
    refuse_null(reader, "topk_group");
    rp_config_expert_groups(reader, 8, 4, 2, experts);
    if (!rp_config_bool(reader, "rope_interleave", true))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "rope_interleave", "must be true");
}

const struct rp_model_family rp_family_deepseek_v2 = {
    .id = RP_FAMILY_DEEPSEEK_V2,
    .architecture = "DeepseekV2ForCausalLM",
    .model_type = "deepseek_v2",
    .head_dim_default = 64,
    .heads_default = 32,
    .vocab_default = 102400,
    .qkv_order = RP_QKV_PAIRS,
    .configure = configure_v2,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = layer,
};

const struct rp_model_family rp_family_deepseek_v3 = {
    .id = RP_FAMILY_DEEPSEEK_V3,
    .architecture = "DeepseekV3ForCausalLM",
    .model_type = "deepseek_v3",
    .other_type = "kimi_k2",
    .head_dim_default = 64,
    .heads_default = 128,
    .vocab_default = 129280,
    .max_position_default = 4096,
    .qkv_order = RP_QKV_PAIRS,
    .configure = configure_v3,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = layer,
};
