/* Llama 2 and 3.x:
 *
 *   q, k, v = norm(x) Wqkv^T;  q, k = rope(q, k);  x += attention(q, K, V) Wo^T
 *   g, u = norm(x) Wgate_up^T;  x += (act(g) * u) Wdown^T */
#include "model/config_reader.h"
#include "model/network.h"

const struct rp_tensor_rule rp_llama_tensors[RP_LLAMA_TENSOR_COUNT] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    RP_TENSORS_QK_NORMS,
    RP_TENSOR(SINKS, ALL, "self_attn.sinks"),
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_O_BIAS, RP_SPAN_ALL, "self_attn.o_proj.bias"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    {RP_WEIGHT_GATE_UP, RP_SPAN_GATE, "mlp.gate_proj.weight"},
    {RP_WEIGHT_GATE_UP_BIAS, RP_SPAN_GATE, "mlp.gate_proj.bias"},
    {RP_WEIGHT_GATE_UP, RP_SPAN_UP, "mlp.up_proj.weight"},
    {RP_WEIGHT_GATE_UP_BIAS, RP_SPAN_UP, "mlp.up_proj.bias"},
    {RP_WEIGHT_DOWN, RP_SPAN_ALL, "mlp.down_proj.weight"},
    {RP_WEIGHT_DOWN_BIAS, RP_SPAN_ALL, "mlp.down_proj.bias"},
};

void rp_llama_layer(struct rp_emit *e, struct rp_view x) {
    struct rp_view in = rp_emit_norm(e, "attn.norm", x, RP_WEIGHT_ATTN_NORM);
    struct rp_qkv qkv = rp_emit_qkv(e, in);
    rp_emit_add(e, "attn.add", x, rp_emit_attention(e, &qkv));
    in = rp_emit_norm(e, "mlp.norm", x, RP_WEIGHT_MLP_NORM);
    rp_emit_add(e, "mlp.add", x, rp_emit_mlp(e, in));
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_attention_bias(reader, config);
    config->mlp_bias = rp_config_bool(reader, "mlp_bias", false);
    /* LlamaForCausalLM has no window, whatever sliding_window says. */
}

const struct rp_model_family rp_family_llama = {.id = RP_FAMILY_LLAMA,
                                                .architecture = "LlamaForCausalLM",
                                                .model_type = "llama",
                                                .configure = configure,
                                                .tensors = rp_llama_tensors,
                                                .tensor_count = RP_ARRAY_COUNT(rp_llama_tensors),
                                                .layer = rp_llama_layer};
