/* Gemma 2: the outputs of attention and MLP are normed before they are added; norm weights are
 * stored less one; embeddings are scaled; scores and logits are capped; every second layer has a
 * window. */
#include "model/config_reader.h"
#include "model/network.h"

const struct rp_tensor_rule rp_gemma_tensors[RP_GEMMA_TENSOR_COUNT] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    RP_TENSORS_QK_NORMS,
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_O_BIAS, RP_SPAN_ALL, "self_attn.o_proj.bias"},
    {RP_WEIGHT_ATTN_POST_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "pre_feedforward_layernorm.weight"},
    RP_TENSORS_MLP,
    {RP_WEIGHT_MLP_POST_NORM, RP_SPAN_ALL, "post_feedforward_layernorm.weight"},
};

static void layer(struct rp_emit *e, struct rp_view x) {
    struct rp_view in = rp_emit_norm(e, "attn.norm", x, RP_WEIGHT_ATTN_NORM);
    struct rp_qkv qkv = rp_emit_qkv(e, in);
    struct rp_view o = rp_emit_attention(e, &qkv);
    rp_emit_norm_in_place(e, "attn.post_norm", o, RP_WEIGHT_ATTN_POST_NORM);
    rp_emit_add(e, "attn.add", x, o);
    in = rp_emit_norm(e, "mlp.norm", x, RP_WEIGHT_MLP_NORM);
    struct rp_view down = rp_emit_mlp(e, in);
    rp_emit_norm_in_place(e, "mlp.post_norm", down, RP_WEIGHT_MLP_POST_NORM);
    rp_emit_add(e, "mlp.add", x, down);
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    /* The files have both hidden_act and this key; the class reads this one. */
    rp_config_activation(reader, "hidden_activation", "gelu_pytorch_tanh", config);
    config->norm_offset = 1.0f;
    config->post_norms = config->embed_scaled = true;
    config->attention_cap = rp_config_cap(reader, "attn_logit_softcapping", 50);
    config->logit_cap = rp_config_cap(reader, "final_logit_softcapping", 30);
    config->query_scalar = rp_config_double(reader, "query_pre_attn_scalar", 256, 0, true, 1e6);
    if (rp_config_bool(reader, "use_bidirectional_attention", false))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "use_bidirectional_attention",
                         "must be false");
    rp_config_attention_bias(reader, config);
    rp_config_no_bias(reader, "mlp_bias");
    config->window = rp_config_window(reader, 4096);
    for (uint32_t i = 1; i < config->layers; i += 2)
        rp_config_set_full(config, i, true);
}

static const char *const ignored[] = {"hidden_act", NULL};

const struct rp_model_family rp_family_gemma2 = {
    .id = RP_FAMILY_GEMMA2,
    .architecture = "Gemma2ForCausalLM",
    .model_type = "gemma2",
    .head_dim_default = 256,
    .tied_default = true,
    .configure = configure,
    .ignored_keys = ignored,
    .tensors = rp_gemma_tensors,
    .tensor_count = RP_GEMMA_TENSOR_COUNT,
    .layer = layer,
};
