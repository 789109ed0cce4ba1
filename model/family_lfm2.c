/* LFM2: most layers have a short convolution in place of attention; the others are Qwen3's, with a
 * norm over each head of q and k. */
#include "model/config_reader.h"
#include "model/network.h"

#include <math.h>

static const struct rp_tensor_rule tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "operator_norm.weight"},
    RP_TENSORS_QKV,
    {RP_WEIGHT_Q_NORM, RP_SPAN_ALL, "self_attn.q_layernorm.weight"},
    {RP_WEIGHT_K_NORM, RP_SPAN_ALL, "self_attn.k_layernorm.weight"},
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.out_proj.weight"},
    {RP_WEIGHT_MIX_IN, RP_SPAN_ALL, "conv.in_proj.weight"},
    {RP_WEIGHT_CONV, RP_SPAN_ALL, "conv.conv.weight"},
    {RP_WEIGHT_MIX_OUT, RP_SPAN_ALL, "conv.out_proj.weight"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "ffn_norm.weight"},
    {RP_WEIGHT_GATE_UP, RP_SPAN_GATE, "feed_forward.w1.weight"},
    {RP_WEIGHT_GATE_UP, RP_SPAN_UP, "feed_forward.w3.weight"},
    {RP_WEIGHT_DOWN, RP_SPAN_ALL, "feed_forward.w2.weight"},
};

/* full_attn_idxs of older files; without it all layers have attention. */
static bool has_conv(struct rp_config_reader *reader, uint32_t layer) {
    const json_t *list = rp_config_get(reader, "full_attn_idxs");
    if (list && !json_is_array(list))
        rp_config_refuse(reader, RP_STATUS_FORMAT, "full_attn_idxs", "must be a list of layers");
    bool found = !json_is_array(list);
    for (size_t i = 0; i < json_array_size(list); i++)
        found = found || rp_config_uint_value(reader, json_array_get(list, i), "full_attn_idxs", 0,
                                              RP_LAYERS_MAX - 1) == layer;
    return !found;
}

/* The MLP is two thirds as wide as the key says, times a factor, rounded up to a multiple. */
static void adjust_width(struct rp_config_reader *reader, struct rp_model_config *config) {
    double factor = rp_config_double(reader, "block_ffn_dim_multiplier", 1, 0, true, 64);
    uint32_t multiple = rp_config_uint(reader, "block_multiple_of", 256, 1, 1u << 20);
    if (!rp_config_bool(reader, "block_auto_adjust_ff_dim", true))
        return;
    double width = floor(floor(2.0 * config->intermediate / 3) * factor);
    uint32_t rounded = RP_CEIL_DIV((uint32_t)width, multiple) * multiple;
    if (rounded == 0 || rounded > 1u << 22)
        rp_config_refuse(reader, RP_STATUS_RANGE, "intermediate_size",
                         "gives an MLP of no width, "
                         "or too wide, after block_ffn_dim_multiplier and block_multiple_of");
    else
        config->intermediate = rounded;
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    config->activation = RP_ACTIVATION_SILU;
    config->qk_norm = RP_QK_NORM_HEAD;
    config->tied = rp_config_bool(reader, "tie_embedding", config->tied);
    rp_config_no_bias(reader, "conv_bias");
    config->state.conv_width = rp_config_uint(reader, "conv_L_cache", 3, 2, RP_CONV_WIDTH_MAX);
    rp_config_state_layers(reader, "conv", has_conv, config);
    (void)rp_config_get(reader, "full_attn_idxs"); /* newer files have layer_types, too */
    adjust_width(reader, config);
}

/* Keys of training, or with the same value as keys that are read. */
static const char *const ignored[] = {"block_norm_eps", "block_mlp_init_scale",
                                      "block_out_init_scale", NULL};

const struct rp_model_family rp_family_lfm2 = {
    .id = RP_FAMILY_LFM2,
    .architecture = "Lfm2ForCausalLM",
    .model_type = "lfm2",
    .heads_default = 32,
    .kv_heads_default = 8,
    .vocab_default = 65536,
    .max_position_default = 128000,
    .intermediate_default = 12288,
    .intermediate_key = "block_ff_dim",
    .tied_default = true,
    .norm_eps_key = "norm_eps",
    .norm_eps_default = 1e-5,
    .rope_theta_default = 1000000,
    .final_norm_name = "model.embedding_norm.weight",
    .ignored_keys = ignored,
    .configure = configure,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = rp_state_layer,
};
