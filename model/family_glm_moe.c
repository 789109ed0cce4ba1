/* GLM-4.5, 4.6 and their Air: Llama with biases on q, k and v and RoPE of half of each head; the
 * first layers have an MLP, the others a mixture of experts beside a shared expert:
 *
 *   s = sigmoid(in Wrouter^T);  the best k by s + bias, within the best groups
 *   y = factor * sum over them of s_e / (their sum) * mlp_e(in) + mlp_shared(in) */
#include "model/config_reader.h"
#include "model/network.h"

static const struct rp_tensor_rule tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    RP_TENSORS_QK_NORMS,
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    RP_TENSORS_MLP,
    {RP_WEIGHT_ROUTER, RP_SPAN_ALL, "mlp.gate.weight"},
    {RP_WEIGHT_ROUTER_BIAS, RP_SPAN_ALL, "mlp.gate.e_score_correction_bias"},
    RP_TENSORS_EXPERTS,
    RP_TENSORS_SHARED_EXPERT("mlp.shared_experts."),
};

static void layer(struct rp_emit *e, struct rp_view x) {
    if (e->config->qk_norm)
        rp_qwen3_layer(e, x);
    else
        rp_llama_layer(e, x);
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    static const struct rp_config_experts_keys keys = {.count = "n_routed_experts",
                                                       .count_default = 128,
                                                       .used_default = 8,
                                                       .intermediate = "moe_intermediate_size",
                                                       .intermediate_default = 1408};
    struct rp_model_experts *experts = &config->experts;
    rp_config_activation(reader, "hidden_act", "silu", config);
    config->qkv_bias = rp_config_bool(reader, "attention_bias", false);
    if (rp_config_bool(reader, "use_qk_norm", false))
        config->qk_norm = RP_QK_NORM_HEAD;
    rp_config_experts(reader, &keys, config);
    experts->score = RP_ROUTE_SIGMOID;
    experts->bias = true;
    experts->renormalize = rp_config_bool(reader, "norm_topk_prob", true);
    experts->factor = (float)rp_config_double(reader, "routed_scaling_factor", 1, 0, true, 1e6);
    experts->shared = experts->intermediate * rp_config_uint(reader, "n_shared_experts", 1, 0, 64);
    rp_config_expert_groups(reader, 1, 1, 2, experts);
    uint32_t dense = rp_config_uint(reader, "first_k_dense_replace", 1, 0, RP_LAYERS_MAX);
    for (uint32_t i = 0; i < dense; i++)
        experts->dense_layers[i / 32] |= 1u << i % 32;
}

const struct rp_model_family rp_family_glm4_moe = {
    .id = RP_FAMILY_GLM4_MOE,
    .architecture = "Glm4MoeForCausalLM",
    .model_type = "glm4_moe",
    .heads_default = 96,
    .kv_heads_default = 8,
    .vocab_default = 151552,
    .max_position_default = 131072,
    .norm_eps_default = 1e-5,
    .partial_rotary_default = 0.5,
    .configure = configure,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = layer,
};
