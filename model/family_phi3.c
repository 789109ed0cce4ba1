/* Phi-3, Phi-4 and Phi-4-mini: Llama whose q, k and v are one tensor, and gate and up another; RoPE
 * of a part of each head, with other frequencies for long contexts (longrope). */
#include "model/config_reader.h"
#include "model/network.h"

static const struct rp_tensor_rule tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    {RP_WEIGHT_QKV, RP_SPAN_ALL, "self_attn.qkv_proj.weight"},
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    {RP_WEIGHT_GATE_UP, RP_SPAN_ALL, "mlp.gate_up_proj.weight"},
    {RP_WEIGHT_DOWN, RP_SPAN_ALL, "mlp.down_proj.weight"},
};

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_no_bias(reader, "attention_bias");
    rp_config_no_bias(reader, "mlp_bias");
    rp_config_no_bias(reader, "lm_head_bias");
    config->window = rp_config_window(reader, 0);
}

static const char *const ignored[] = {"full_attn_mod", NULL};

const struct rp_model_family rp_family_phi3 = {
    .id = RP_FAMILY_PHI3,
    .architecture = "Phi3ForCausalLM",
    .model_type = "phi3",
    .norm_eps_default = 1e-5,
    .partial_rotary_default = 1,
    .ignored_keys = ignored,
    .configure = configure,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = rp_llama_layer,
};
