/* Qwen2-MoE and Qwen3-MoE: the dense models' attention, with a mixture of experts in some or all
 * layers. Qwen2's has a shared expert besides:
 *
 *   p = softmax(in Wrouter^T);  y = sum over the best k of p_e [/ their sum] * mlp_e(in)
 *                               [+ sigmoid(in Wgate^T) * mlp_shared(in)] */
#include "model/config_reader.h"
#include "model/network.h"

const struct rp_tensor_rule rp_expert_tensors[RP_EXPERT_TENSOR_COUNT] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    RP_TENSORS_QK_NORMS,
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_O_BIAS, RP_SPAN_ALL, "self_attn.o_proj.bias"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    RP_TENSORS_MLP,
    {RP_WEIGHT_ROUTER, RP_SPAN_ALL, "mlp.gate.weight"},
    {RP_WEIGHT_ROUTER_BIAS, RP_SPAN_ALL, "mlp.gate.e_score_correction_bias"},
    RP_TENSORS_EXPERTS,
    RP_TENSORS_SHARED_EXPERT("mlp.shared_expert."),
    {RP_WEIGHT_SHARED_GATE, RP_SPAN_ALL, "mlp.shared_expert_gate.weight"},
};

static void configure2(struct rp_config_reader *reader, struct rp_model_config *config) {
    static const struct rp_config_experts_keys keys = {.count = "num_experts",
                                                       .count_default = 60,
                                                       .used_default = 4,
                                                       .intermediate = "moe_intermediate_size",
                                                       .intermediate_default = 1408};
    rp_config_activation(reader, "hidden_act", "silu", config);
    config->qkv_bias = rp_config_bool(reader, "qkv_bias", true);
    rp_config_no_bias(reader, "attention_bias");
    /* Versions of transformers differ in which layers have one. */
    if (rp_config_bool(reader, "use_sliding_window", false))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "use_sliding_window",
                         "must be false in this family");
    rp_config_experts(reader, &keys, config);
    rp_config_sparse_layers(reader, config);
    config->experts.renormalize = rp_config_bool(reader, "norm_topk_prob", false);
    config->experts.shared =
        rp_config_uint(reader, "shared_expert_intermediate_size", 5632, 1, 1u << 20);
    config->experts.shared_gate = true;
}

static void configure3(struct rp_config_reader *reader, struct rp_model_config *config) {
    /* Newer files call it num_local_experts. */
    struct rp_config_experts_keys keys = {
        .count = rp_config_get(reader, "num_local_experts") ? "num_local_experts" : "num_experts",
        .count_default = 128,
        .used_default = 8,
        .intermediate = "moe_intermediate_size",
        .intermediate_default = 768};
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_attention_bias(reader, config);
    config->qk_norm = RP_QK_NORM_HEAD;
    if (rp_config_bool(reader, "use_sliding_window", false))
        config->window = rp_config_window(reader, 4096);
    rp_config_experts(reader, &keys, config);
    rp_config_sparse_layers(reader, config);
    config->experts.renormalize = rp_config_bool(reader, "norm_topk_prob", false);
}

const struct rp_model_family rp_family_qwen2_moe = {
    .id = RP_FAMILY_QWEN2_MOE,
    .architecture = "Qwen2MoeForCausalLM",
    .model_type = "qwen2_moe",
    .heads_default = 16,
    .kv_heads_default = 16,
    .vocab_default = 151936,
    .max_position_default = 32768,
    .configure = configure2,
    .tensors = rp_expert_tensors,
    .tensor_count = RP_EXPERT_TENSOR_COUNT,
    .layer = rp_llama_layer,
};

const struct rp_model_family rp_family_qwen3_moe = {
    .id = RP_FAMILY_QWEN3_MOE,
    .architecture = "Qwen3MoeForCausalLM",
    .model_type = "qwen3_moe",
    .heads_default = 32,
    .kv_heads_default = 4,
    .vocab_default = 151936,
    .max_position_default = 32768,
    .configure = configure3,
    .tensors = rp_expert_tensors,
    .tensor_count = RP_EXPERT_TENSOR_COUNT,
    .layer = rp_qwen3_layer,
};
