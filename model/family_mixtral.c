/* Mixtral: Mistral with a mixture of experts in place of the MLP:
 *
 *   p = softmax(in Wrouter^T);  y = sum over the best k of p_e / (their sum) * mlp_e(in) */
#include "model/config_reader.h"
#include "model/network.h"

static const struct rp_tensor_rule tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    RP_TENSORS_QKV,
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    {RP_WEIGHT_ROUTER, RP_SPAN_ALL, "block_sparse_moe.gate.weight"},
    {RP_WEIGHT_EXPERT_GATE_UP, RP_SPAN_GATE, "block_sparse_moe.experts.*.w1.weight"},
    {RP_WEIGHT_EXPERT_GATE_UP, RP_SPAN_UP, "block_sparse_moe.experts.*.w3.weight"},
    {RP_WEIGHT_EXPERT_DOWN, RP_SPAN_ALL, "block_sparse_moe.experts.*.w2.weight"},
};

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    static const struct rp_config_experts_keys keys = {
        .count = "num_local_experts", .count_default = 8, .used_default = 2};
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_no_bias(reader, "attention_bias");
    config->window = rp_config_window(reader, 0);
    rp_config_experts(reader, &keys, config);
    config->experts.renormalize = true;
}

const struct rp_model_family rp_family_mixtral = {
    .id = RP_FAMILY_MIXTRAL,
    .architecture = "MixtralForCausalLM",
    .model_type = "mixtral",
    .kv_heads_default = 8,
    .vocab_default = 32000,
    .max_position_default = 131072,
    .norm_eps_default = 1e-5,
    .rope_theta_default = 1e6,
    .configure = configure,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = rp_llama_layer,
};
