/* gpt-oss: attention with a learned logit in the softmax of each head, layers with and without a
 * window in turn, and a mixture of experts in every layer whose GEMMs have biases:
 *
 *   l = in Wrouter^T + b;  y = sum over the best k of softmax(their l)_e * mlp_e(in)
 *   mlp(in) = Wdown (g * sigmoid(1.702 g) * (u + 1)) + bdown
 *   g = min(in Wgate^T + bgate, 7), u = clamp(in Wup^T + bup, -7, 7)
 *
 * The experts' weights are MXFP4 in the published files (RP_QUANT_MXFP4_EXPERTS), 16 bits in files
 * that transformers has written. */
#include "device/ops.h"
#include "model/config_reader.h"
#include "model/network.h"

#include <string.h>

static const struct rp_tensor_rule tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    RP_TENSOR(SINKS, ALL, "self_attn.sinks"),
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_O_BIAS, RP_SPAN_ALL, "self_attn.o_proj.bias"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    {RP_WEIGHT_ROUTER, RP_SPAN_ALL, "mlp.router.weight"},
    {RP_WEIGHT_ROUTER_LOGIT_BIAS, RP_SPAN_ALL, "mlp.router.bias"},
    {RP_WEIGHT_EXPERT_GATE_UP, RP_SPAN_ALL, "mlp.experts.gate_up_proj"},
    {RP_WEIGHT_EXPERT_GATE_UP_BIAS, RP_SPAN_ALL, "mlp.experts.gate_up_proj_bias"},
    {RP_WEIGHT_EXPERT_DOWN, RP_SPAN_ALL, "mlp.experts.down_proj"},
    {RP_WEIGHT_EXPERT_DOWN_BIAS, RP_SPAN_ALL, "mlp.experts.down_proj_bias"},
};

/* The activation's constants are built into the kernels. */
static void read_activation(struct rp_config_reader *reader, struct rp_model_config *config) {
    const char *act = rp_config_string(reader, "hidden_act");
    if (act && strcmp(act, "silu") != 0)
        rp_config_refuse_name(reader, "hidden_act", act, "silu");
    if (rp_config_double(reader, "swiglu_limit", RP_SWIGLU_LIMIT, 0, false, 1e6) != RP_SWIGLU_LIMIT)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "swiglu_limit", "must be 7");
    if ((float)rp_config_double(reader, "swiglu_alpha", RP_SWIGLU_ALPHA, 0, false, 1e6) !=
        RP_SWIGLU_ALPHA)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "swiglu_alpha", "must be 1.702");
    config->activation = RP_ACTIVATION_SWIGLU_CLAMPED;
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    static const struct rp_config_experts_keys keys = {
        .count = "num_local_experts", .count_default = 128, .used_default = 4};
    read_activation(reader, config);
    config->qkv_bias = config->o_bias = rp_config_bool(reader, "attention_bias", true);
    config->attention_sinks = true;
    config->window = rp_config_window(reader, 128);
    rp_config_window_pattern(reader, NULL, 2, config);
    rp_config_experts(reader, &keys, config);
    config->experts.score = RP_ROUTE_SOFTMAX_CHOSEN;
    config->experts.linear_bias = true;
    /* Another name of num_experts_per_tok, which the published files have beside it. */
    if (rp_config_uint(reader, "experts_per_token", config->experts.used, 1, RP_EXPERTS_MAX) !=
        config->experts.used)
        rp_config_refuse(reader, RP_STATUS_FORMAT, "experts_per_token",
                         "differs from num_experts_per_tok");
    /* Absent, the class uses YaRN with parameters that no published file relies on. */
    if (!rp_config_get(reader, "rope_scaling") && !rp_config_get(reader, "rope_parameters"))
        rp_config_refuse(reader, RP_STATUS_FORMAT, "rope_scaling", "is missing");
}

const struct rp_model_family rp_family_gpt_oss = {
    .id = RP_FAMILY_GPT_OSS,
    .architecture = "GptOssForCausalLM",
    .model_type = "gpt_oss",
    .head_dim_default = 64,
    .heads_default = 64,
    .kv_heads_default = 8,
    .vocab_default = 201088,
    .max_position_default = 131072,
    .norm_eps_default = 1e-5,
    .rope_theta_default = 150000,
    .expert_pairs = true,
    .expert_transposed = true,
    .configure = configure,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = rp_llama_layer,
};
