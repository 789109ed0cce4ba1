/* OLMo 2 and 3: no norms before attention and MLP, but of what they add; RMSNorm of q and k over
 * all heads at once. OLMo 3 has a window in three of four layers, which rotate without scaling. */
#include "model/config_reader.h"
#include "model/network.h"

static const struct rp_tensor_rule tensors[] = {
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    RP_TENSORS_QK_NORMS,
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_O_BIAS, RP_SPAN_ALL, "self_attn.o_proj.bias"},
    {RP_WEIGHT_ATTN_POST_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    RP_TENSORS_MLP,
    {RP_WEIGHT_MLP_POST_NORM, RP_SPAN_ALL, "post_feedforward_layernorm.weight"},
};

static void layer(struct rp_emit *e, struct rp_view x) {
    struct rp_qkv qkv = rp_emit_qkv(e, rp_emit_rounded(e, "attn.in", x));
    rp_emit_qk_norms(e, &qkv);
    struct rp_view o = rp_emit_attention(e, &qkv);
    rp_emit_norm_in_place(e, "attn.post_norm", o, RP_WEIGHT_ATTN_POST_NORM);
    rp_emit_add(e, "attn.add", x, o);
    struct rp_view down = rp_emit_mlp(e, rp_emit_rounded(e, "mlp.in", x));
    rp_emit_norm_in_place(e, "mlp.post_norm", down, RP_WEIGHT_MLP_POST_NORM);
    rp_emit_add(e, "mlp.add", x, down);
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_attention_bias(reader, config);
    rp_config_no_bias(reader, "mlp_bias");
    config->qk_norm = RP_QK_NORM_WHOLE;
    config->no_pre_norms = config->post_norms = true;
}

#define OLMO3_THETA 500000.0

static void configure3(struct rp_config_reader *reader, struct rp_model_config *config) {
    configure(reader, config);
    config->window = rp_config_window(reader, 4096);
    rp_config_window_pattern(reader, NULL, 4, config);
    config->local_rope.theta = OLMO3_THETA;
    /* Some versions of transformers take this key for the layers with a window, too, others do
     * not. */
    if (rp_config_double(reader, "rope_theta", OLMO3_THETA, 0, true, 1e12) != OLMO3_THETA)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "rope_theta",
                         "must be 500000; rope_parameters gives others per layer type");
}

const struct rp_model_family rp_family_olmo2 = {
    .id = RP_FAMILY_OLMO2,
    .architecture = "Olmo2ForCausalLM",
    .model_type = "olmo2",
    .norm_eps_default = 1e-5,
    .configure = configure,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = layer,
};

const struct rp_model_family rp_family_olmo3 = {
    .id = RP_FAMILY_OLMO3,
    .architecture = "Olmo3ForCausalLM",
    .model_type = "olmo3",
    .norm_eps_default = 1e-5,
    .rope_theta_default = OLMO3_THETA,
    .configure = configure3,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = layer,
};
