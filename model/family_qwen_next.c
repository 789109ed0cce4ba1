/* Qwen3-Next and Qwen3.5: three of four layers have a gated delta rule in place of attention
 * (network_state.c); attention has an output gate and rotates a quarter of each head. Norms add 1
 * to their weights. Qwen3-Next and Qwen3.5-MoE have experts and a shared one, as Qwen2-MoE has. */
#include "model/config_reader.h"
#include "model/network.h"

/* Tensors that these families have in common, before and after those of the delta rule's input. */
#define ATTENTION_TENSORS                                                                          \
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},                                  \
        {RP_WEIGHT_QKV, RP_SPAN_Q, "self_attn.q_proj.weight"},                                     \
        {RP_WEIGHT_QKV, RP_SPAN_K, "self_attn.k_proj.weight"},                                     \
        {RP_WEIGHT_QKV, RP_SPAN_V, "self_attn.v_proj.weight"},                                     \
        {RP_WEIGHT_QKV_BIAS, RP_SPAN_Q, "self_attn.q_proj.bias"},                                  \
        {RP_WEIGHT_QKV_BIAS, RP_SPAN_K, "self_attn.k_proj.bias"},                                  \
        {RP_WEIGHT_QKV_BIAS, RP_SPAN_V, "self_attn.v_proj.bias"},                                  \
        {RP_WEIGHT_Q_NORM, RP_SPAN_ALL, "self_attn.q_norm.weight"},                                \
        {RP_WEIGHT_K_NORM, RP_SPAN_ALL, "self_attn.k_norm.weight"},                                \
        {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"}, {                                   \
        RP_WEIGHT_O_BIAS, RP_SPAN_ALL, "self_attn.o_proj.bias"                                     \
    }
#define DELTA_TENSORS                                                                              \
    {RP_WEIGHT_CONV, RP_SPAN_ALL, "linear_attn.conv1d.weight"},                                    \
        {RP_WEIGHT_A_LOG, RP_SPAN_ALL, "linear_attn.A_log"},                                       \
        {RP_WEIGHT_DT_BIAS, RP_SPAN_ALL, "linear_attn.dt_bias"},                                   \
        {RP_WEIGHT_DELTA_NORM, RP_SPAN_ALL, "linear_attn.norm.weight"}, {                          \
        RP_WEIGHT_MIX_OUT, RP_SPAN_ALL, "linear_attn.out_proj.weight"                              \
    }
#define MLP_TENSORS                                                                                \
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},                          \
        {RP_WEIGHT_GATE_UP, RP_SPAN_GATE, "mlp.gate_proj.weight"},                                 \
        {RP_WEIGHT_GATE_UP, RP_SPAN_UP, "mlp.up_proj.weight"},                                     \
        {RP_WEIGHT_DOWN, RP_SPAN_ALL, "mlp.down_proj.weight"},                                     \
        {RP_WEIGHT_ROUTER, RP_SPAN_ALL, "mlp.gate.weight"},                                        \
        {RP_WEIGHT_EXPERT_GATE_UP, RP_SPAN_ALL, "mlp.experts.gate_up_proj"},                       \
        {RP_WEIGHT_EXPERT_DOWN, RP_SPAN_ALL, "mlp.experts.down_proj"},                             \
        {RP_WEIGHT_EXPERT_GATE_UP, RP_SPAN_GATE, "mlp.experts.*.gate_proj.weight"},                \
        {RP_WEIGHT_EXPERT_GATE_UP, RP_SPAN_UP, "mlp.experts.*.up_proj.weight"},                    \
        {RP_WEIGHT_EXPERT_DOWN, RP_SPAN_ALL, "mlp.experts.*.down_proj.weight"},                    \
        {RP_WEIGHT_SHARED_GATE_UP, RP_SPAN_GATE, "mlp.shared_expert.gate_proj.weight"},            \
        {RP_WEIGHT_SHARED_GATE_UP, RP_SPAN_UP, "mlp.shared_expert.up_proj.weight"},                \
        {RP_WEIGHT_SHARED_DOWN, RP_SPAN_ALL, "mlp.shared_expert.down_proj.weight"}, {              \
        RP_WEIGHT_SHARED_GATE, RP_SPAN_ALL, "mlp.shared_expert_gate.weight"                        \
    }

static const struct rp_tensor_rule next_tensors[] = {
    ATTENTION_TENSORS,
    {RP_WEIGHT_MIX_IN, RP_SPAN_GROUPED, "linear_attn.in_proj_qkvz.weight"},
    {RP_WEIGHT_MIX_BA, RP_SPAN_GROUPED, "linear_attn.in_proj_ba.weight"},
    DELTA_TENSORS,
    MLP_TENSORS,
};

static const struct rp_tensor_rule tensors[] = {
    ATTENTION_TENSORS,
    {RP_WEIGHT_MIX_IN, RP_SPAN_MIX_QKV, "linear_attn.in_proj_qkv.weight"},
    {RP_WEIGHT_MIX_IN, RP_SPAN_MIX_Z, "linear_attn.in_proj_z.weight"},
    {RP_WEIGHT_MIX_BA, RP_SPAN_MIX_B, "linear_attn.in_proj_b.weight"},
    {RP_WEIGHT_MIX_BA, RP_SPAN_MIX_A, "linear_attn.in_proj_a.weight"},
    DELTA_TENSORS,
    MLP_TENSORS,
};

static bool is_linear(struct rp_config_reader *reader, uint32_t layer) {
    uint32_t interval = rp_config_uint(reader, "full_attention_interval", 4, 1, 1u << 16);
    return (layer + 1) % interval != 0;
}

static void read_state(struct rp_config_reader *reader, struct rp_model_config *config) {
    struct rp_model_state *state = &config->state;
    bool any = false;
    state->conv_width = rp_config_uint(reader, "linear_conv_kernel_dim", 4, 2, RP_CONV_WIDTH_MAX);
    state->key_dim = rp_config_uint(reader, "linear_key_head_dim", 128, 1, RP_DELTA_HEAD_DIM_MAX);
    state->value_dim =
        rp_config_uint(reader, "linear_value_head_dim", 128, 1, RP_DELTA_HEAD_DIM_MAX);
    state->key_heads = rp_config_uint(reader, "linear_num_key_heads", 16, 1, 1024);
    state->value_heads = rp_config_uint(reader, "linear_num_value_heads", 32, 1, 1024);
    if (state->value_heads % state->key_heads != 0)
        rp_config_refuse(reader, RP_STATUS_RANGE, "linear_num_value_heads",
                         "must be a multiple of linear_num_key_heads");
    rp_config_state_layers(reader, "linear_attention", is_linear, config);
    for (uint32_t i = 0; i < config->layers; i++)
        any = any || rp_model_has_state(config, i);
    if (!any)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "layer_types",
                         "must have a linear_attention in this family");
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    if (config->activation != RP_ACTIVATION_SILU)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "hidden_act",
                         "must be silu in this family");
    rp_config_attention_bias(reader, config);
    if (!rp_config_bool(reader, "attn_output_gate", true))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "attn_output_gate", "must be true");
    config->output_gate = true;
    config->qk_norm = RP_QK_NORM_HEAD;
    config->norm_offset = 1.0f;
    read_state(reader, config);
}

static void configure_experts(struct rp_config_reader *reader, struct rp_model_config *config,
                              double count, double used, bool renormalize) {
    const struct rp_config_experts_keys keys = {.count = "num_experts",
                                                .count_default = count,
                                                .used_default = used,
                                                .intermediate = "moe_intermediate_size",
                                                .intermediate_default = 512};
    configure(reader, config);
    rp_config_experts(reader, &keys, config);
    config->experts.renormalize = renormalize;
    config->experts.shared =
        rp_config_uint(reader, "shared_expert_intermediate_size", 512, 1, 1u << 20);
    config->experts.shared_gate = true;
}

static void configure_moe(struct rp_config_reader *reader, struct rp_model_config *config) {
    configure_experts(reader, config, 256, 8, true);
}

static void configure_next(struct rp_config_reader *reader, struct rp_model_config *config) {
    configure_experts(reader, config, 512, 10, rp_config_bool(reader, "norm_topk_prob", true));
    rp_config_sparse_layers(reader, config);
}

#define COMMON                                                                                     \
    .head_dim_default = 256, .heads_default = 16, .max_position_default = 32768,                   \
    .partial_rotary_default = 0.25, .image_rope = true, .layer = rp_state_layer

const struct rp_model_family rp_family_qwen3_next = {
    .id = RP_FAMILY_QWEN3_NEXT,
    .architecture = "Qwen3NextForCausalLM",
    .model_type = "qwen3_next",
    .kv_heads_default = 2,
    .vocab_default = 151936,
    .intermediate_default = 5632,
    .configure = configure_next,
    .tensors = next_tensors,
    .tensor_count = RP_ARRAY_COUNT(next_tensors),
    COMMON,
};

const struct rp_model_family rp_family_qwen3_5 = {
    .id = RP_FAMILY_QWEN3_5,
    .architecture = "Qwen3_5ForCausalLM",
    .model_type = "qwen3_5_text",
    .kv_heads_default = 4,
    .vocab_default = 248320,
    .intermediate_default = 12288,
    .configure = configure,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    COMMON,
};

/* Every layer has experts: intermediate_size is nowhere used. */
const struct rp_model_family rp_family_qwen3_5_moe = {
    .id = RP_FAMILY_QWEN3_5_MOE,
    .architecture = "Qwen3_5MoeForCausalLM",
    .model_type = "qwen3_5_moe_text",
    .kv_heads_default = 2,
    .vocab_default = 248320,
    .intermediate_default = 512,
    .configure = configure_moe,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    COMMON,
};
