/* StableLM 2: LayerNorm with biases, RoPE of a quarter of each head; the larger one norms each
 * head of q and k with weights of its own, and its attention and MLP read the same norm. */
#include "model/config_reader.h"
#include "model/network.h"

static const struct rp_tensor_rule tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    {RP_WEIGHT_ATTN_NORM_BIAS, RP_SPAN_ALL, "input_layernorm.bias"},
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    {RP_WEIGHT_Q_NORM, RP_SPAN_EACH_HEAD, "self_attn.q_layernorm.norms.*.weight"},
    {RP_WEIGHT_K_NORM, RP_SPAN_EACH_HEAD, "self_attn.k_layernorm.norms.*.weight"},
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    {RP_WEIGHT_MLP_NORM_BIAS, RP_SPAN_ALL, "post_attention_layernorm.bias"},
    RP_TENSORS_MLP,
};

static void layer(struct rp_emit *e, struct rp_view x) {
    struct rp_view in = rp_emit_norm(e, "attn.norm", x, RP_WEIGHT_ATTN_NORM);
    struct rp_qkv qkv = rp_emit_qkv(e, in);
    if (e->config->qk_norm)
        rp_emit_qk_norms(e, &qkv);
    rp_emit_add(e, "attn.add", x, rp_emit_attention(e, &qkv));
    if (!e->config->parallel)
        in = rp_emit_norm(e, "mlp.norm", x, RP_WEIGHT_MLP_NORM);
    rp_emit_add(e, "mlp.add", x, rp_emit_mlp(e, in));
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_no_bias(reader, "attention_bias");
    rp_config_no_bias(reader, "mlp_bias");
    config->qkv_bias = rp_config_bool(reader, "use_qkv_bias", false);
    config->layer_norm = config->norm_bias = true;
    config->parallel = rp_config_bool(reader, "use_parallel_residual", false);
    if (rp_config_bool(reader, "qk_layernorm", false))
        config->qk_norm = RP_QK_NORM_EACH_HEAD;
    if (config->head_dim * config->heads != config->hidden)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "head_dim",
                         "must be hidden_size / num_attention_heads in this family");
}

/* Keys of the files' own code; transformers reads layer_norm_eps and partial_rotary_factor. */
static const char *const ignored[] = {"norm_eps", "rope_pct", "rotary_scaling_factor", NULL};

const struct rp_model_family rp_family_stablelm = {
    .id = RP_FAMILY_STABLELM,
    .architecture = "StableLmForCausalLM",
    .model_type = "stablelm",
    .norm_eps_key = "layer_norm_eps",
    .norm_eps_default = 1e-5,
    .partial_rotary_default = 0.25,
    .ignored_keys = ignored,
    .configure = configure,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = layer,
};
