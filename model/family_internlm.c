/* InternLM2: Llama whose q, k and v are one tensor, by KV heads, with tensor names of its own.
 * InternLM3: Llama. */
#include "model/config_reader.h"
#include "model/network.h"

static const struct rp_tensor_rule tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "attention_norm.weight"},
    {RP_WEIGHT_QKV, RP_SPAN_ALL, "attention.wqkv.weight"},
    {RP_WEIGHT_QKV_BIAS, RP_SPAN_ALL, "attention.wqkv.bias"},
    {RP_WEIGHT_O, RP_SPAN_ALL, "attention.wo.weight"},
    {RP_WEIGHT_O_BIAS, RP_SPAN_ALL, "attention.wo.bias"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "ffn_norm.weight"},
    {RP_WEIGHT_GATE_UP, RP_SPAN_GATE, "feed_forward.w1.weight"},
    {RP_WEIGHT_GATE_UP, RP_SPAN_UP, "feed_forward.w3.weight"},
    {RP_WEIGHT_DOWN, RP_SPAN_ALL, "feed_forward.w2.weight"},
};

static void configure2(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    config->qkv_bias = config->o_bias = rp_config_bool(reader, "bias", true);
}

/* Two names for each of the switches, which must agree. */
static void configure3(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    bool biased =
        rp_config_bool(reader, "qkv_bias", rp_config_bool(reader, "attention_bias", false));
    static const char *const keys[] = {"attention_bias", "mlp_bias", "bias"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(keys); i++)
        if (rp_config_bool(reader, keys[i], biased) != biased)
            rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, keys[i], "must be as qkv_bias");
    if (biased && !rp_config_get(reader, "bias") && !rp_config_get(reader, "mlp_bias"))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "bias", "must be as qkv_bias");
    config->qkv_bias = config->o_bias = config->mlp_bias = biased;
}

const struct rp_model_family rp_family_internlm2 = {
    .id = RP_FAMILY_INTERNLM2,
    .architecture = "InternLM2ForCausalLM",
    .model_type = "internlm2",
    .qkv_order = RP_QKV_GROUPS,
    .embed_name = "model.tok_embeddings.weight",
    .head_name = "output.weight",
    .configure = configure2,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = rp_llama_layer,
};

const struct rp_model_family rp_family_internlm3 = {
    .id = RP_FAMILY_INTERNLM3,
    .architecture = "InternLM3ForCausalLM",
    .model_type = "internlm3",
    .configure = configure3,
    .tensors = rp_llama_tensors,
    .tensor_count = RP_LLAMA_TENSOR_COUNT,
    .layer = rp_llama_layer,
};
