/* Command R and R+ (cohere), Command R7B and Command A (cohere2): LayerNorm without biases,
 * attention and MLP read the same norm, RoPE by neighboring pairs, scaled logits. cohere2 has a
 * window in three of four layers and no RoPE in the others. */
#include "model/config_reader.h"
#include "model/network.h"

static void layer(struct rp_emit *e, struct rp_view x) {
    struct rp_view in = rp_emit_norm(e, "attn.norm", x, RP_WEIGHT_ATTN_NORM);
    struct rp_qkv qkv = rp_emit_qkv(e, in);
    if (e->config->qk_norm)
        rp_emit_qk_norms(e, &qkv);
    rp_emit_add(e, "attn.add", x, rp_emit_attention(e, &qkv));
    rp_emit_add(e, "mlp.add", x, rp_emit_mlp(e, in));
}

static void configure_common(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_attention_bias(reader, config);
    rp_config_no_bias(reader, "mlp_bias");
    config->layer_norm = config->parallel = true;
    config->logit_factor = (float)rp_config_double(reader, "logit_scale", 0.0625, 0, true, 1e6);
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    configure_common(reader, config);
    if (rp_config_bool(reader, "use_qk_norm", false))
        config->qk_norm = RP_QK_NORM_EACH_HEAD;
}

static void configure2(struct rp_config_reader *reader, struct rp_model_config *config) {
    configure_common(reader, config);
    config->nope_full_layers = true;
    config->window = rp_config_window(reader, 4096);
    rp_config_window_pattern(reader, "sliding_window_pattern", 4, config);
    if (config->head_dim * config->heads != config->hidden)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "head_dim",
                         "must be hidden_size / num_attention_heads in this family");
}

/* The trainer's names of what the class always does. */
static const char *const ignored[] = {"rotary_pct", "position_embedding_type",
                                      "use_gated_activation", NULL};

const struct rp_model_family rp_family_cohere = {
    .id = RP_FAMILY_COHERE,
    .architecture = "CohereForCausalLM",
    .model_type = "cohere",
    .tied_default = true,
    .norm_eps_key = "layer_norm_eps",
    .norm_eps_default = 1e-5,
    .rope_theta_default = 500000,
    .qkv_order = RP_QKV_PAIRS,
    .configure = configure,
    .tensors = rp_llama_tensors,
    .tensor_count = RP_LLAMA_TENSOR_COUNT,
    .layer = layer,
};

const struct rp_model_family rp_family_cohere2 = {
    .id = RP_FAMILY_COHERE2,
    .architecture = "Cohere2ForCausalLM",
    .model_type = "cohere2",
    .tied_default = true,
    .norm_eps_key = "layer_norm_eps",
    .norm_eps_default = 1e-5,
    .qkv_order = RP_QKV_PAIRS,
    .ignored_keys = ignored,
    .configure = configure2,
    .tensors = rp_llama_tensors,
    .tensor_count = RP_LLAMA_TENSOR_COUNT,
    .layer = layer,
};
