/* GLM-4: RoPE of half of each head, by neighboring pairs; biases on q, k and v; gate and up are one
 * tensor. The 0414 models (glm4) norm what attention and MLP add. */
#include "model/config_reader.h"
#include "model/network.h"

/* glm has no post-norms: rules of weights that a model lacks are skipped. */
static const struct rp_tensor_rule tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_ATTN_POST_NORM, RP_SPAN_ALL, "post_self_attn_layernorm.weight"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    {RP_WEIGHT_GATE_UP, RP_SPAN_ALL, "mlp.gate_up_proj.weight"},
    {RP_WEIGHT_DOWN, RP_SPAN_ALL, "mlp.down_proj.weight"},
    {RP_WEIGHT_MLP_POST_NORM, RP_SPAN_ALL, "post_mlp_layernorm.weight"},
};

static void layer(struct rp_emit *e, struct rp_view x) {
    struct rp_view in = rp_emit_norm(e, "attn.norm", x, RP_WEIGHT_ATTN_NORM);
    struct rp_qkv qkv = rp_emit_qkv(e, in);
    struct rp_view o = rp_emit_attention(e, &qkv);
    if (e->config->post_norms)
        rp_emit_norm_in_place(e, "attn.post_norm", o, RP_WEIGHT_ATTN_POST_NORM);
    rp_emit_add(e, "attn.add", x, o);
    in = rp_emit_norm(e, "mlp.norm", x, RP_WEIGHT_MLP_NORM);
    struct rp_view down = rp_emit_mlp(e, in);
    if (e->config->post_norms)
        rp_emit_norm_in_place(e, "mlp.post_norm", down, RP_WEIGHT_MLP_POST_NORM);
    rp_emit_add(e, "mlp.add", x, down);
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    config->qkv_bias = rp_config_bool(reader, "attention_bias", true);
    rp_config_no_bias(reader, "mlp_bias");
}

static void configure4(struct rp_config_reader *reader, struct rp_model_config *config) {
    configure(reader, config);
    config->post_norms = true;
}

const struct rp_model_family rp_family_glm = {
    .id = RP_FAMILY_GLM,
    .architecture = "GlmForCausalLM",
    .model_type = "glm",
    .head_dim_default = 128,
    .norm_eps_default = 1.5625e-07,
    .partial_rotary_default = 0.5,
    .qkv_order = RP_QKV_PAIRS,
    .configure = configure,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = layer,
};

const struct rp_model_family rp_family_glm4 = {
    .id = RP_FAMILY_GLM4,
    .architecture = "Glm4ForCausalLM",
    .model_type = "glm4",
    .head_dim_default = 128,
    .norm_eps_default = 1.5625e-07,
    .partial_rotary_default = 0.5,
    .qkv_order = RP_QKV_PAIRS,
    .configure = configure4,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = layer,
};
