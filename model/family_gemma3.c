/* Gemma 3, text: Gemma 2 without caps on scores, with norms of q and k, five layers with a
 * window for each one without, and RoPE of another theta in these five. */
#include "model/config_reader.h"
#include "model/network.h"

static void layer(struct rp_emit *e, struct rp_view x) {
    struct rp_view in = rp_emit_norm(e, "attn.norm", x, RP_WEIGHT_ATTN_NORM);
    struct rp_qkv qkv = rp_emit_qkv(e, in);
    rp_emit_qk_norms(e, &qkv);
    struct rp_view o = rp_emit_attention(e, &qkv);
    rp_emit_norm_in_place(e, "attn.post_norm", o, RP_WEIGHT_ATTN_POST_NORM);
    rp_emit_add(e, "attn.add", x, o);
    in = rp_emit_norm(e, "mlp.norm", x, RP_WEIGHT_MLP_NORM);
    struct rp_view down = rp_emit_mlp(e, in);
    rp_emit_norm_in_place(e, "mlp.post_norm", down, RP_WEIGHT_MLP_POST_NORM);
    rp_emit_add(e, "mlp.add", x, down);
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_activation", "gelu_pytorch_tanh", config);
    config->norm_offset = 1.0f;
    config->post_norms = config->embed_scaled = true;
    config->qk_norm = RP_QK_NORM_HEAD;
    config->logit_cap = rp_config_cap(reader, "final_logit_softcapping", 0);
    config->query_scalar = rp_config_double(reader, "query_pre_attn_scalar", 256, 0, true, 1e6);
    /* transformers' class has the key and does not use it. */
    if (rp_config_get(reader, "attn_logit_softcapping"))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "attn_logit_softcapping", "must be null");
    if (rp_config_bool(reader, "use_bidirectional_attention", false))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "use_bidirectional_attention",
                         "must be false");
    rp_config_attention_bias(reader, config);
    rp_config_no_bias(reader, "mlp_bias");
    config->window = rp_config_window(reader, 4096);
    rp_config_window_pattern(reader, "sliding_window_pattern", 6, config);
    config->local_rope.theta =
        rp_config_double(reader, "rope_local_base_freq", 10000, 0, true, 1e12);
}

/* Its files have layer_types as well. */
static const char *const ignored[] = {"hidden_act", "_sliding_window_pattern", NULL};

const struct rp_model_family rp_family_gemma3 = {
    .id = RP_FAMILY_GEMMA3,
    .architecture = "Gemma3ForCausalLM",
    .model_type = "gemma3_text",
    .head_dim_default = 256,
    .heads_default = 8,
    .kv_heads_default = 4,
    .vocab_default = 262208,
    .max_position_default = 131072,
    .tied_default = true,
    .rope_theta_default = 1e6,
    .ignored_keys = ignored,
    .configure = configure,
    .tensors = rp_gemma_tensors,
    .tensor_count = RP_GEMMA_TENSOR_COUNT,
    .layer = layer,
};
