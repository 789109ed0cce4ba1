/* Qwen3: Llama with an RMSNorm over each head of q and k before RoPE. */
#include "model/config_reader.h"
#include "model/network.h"

void rp_qwen3_layer(struct rp_emit *e, struct rp_view x) {
    struct rp_view in = rp_emit_norm(e, "attn.norm", x, RP_WEIGHT_ATTN_NORM);
    struct rp_qkv qkv = rp_emit_qkv(e, in);
    rp_emit_qk_norms(e, &qkv);
    rp_emit_add(e, "attn.add", x, rp_emit_attention(e, &qkv));
    in = rp_emit_norm(e, "mlp.norm", x, RP_WEIGHT_MLP_NORM);
    rp_emit_add(e, "mlp.add", x, rp_emit_mlp(e, in));
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_attention_bias(reader, config);
    rp_config_no_bias(reader, "mlp_bias");
    config->qk_norm = RP_QK_NORM_HEAD;
    rp_config_qwen_window(reader, config);
}

const struct rp_model_family rp_family_qwen3 = {
    .id = RP_FAMILY_QWEN3,
    .architecture = "Qwen3ForCausalLM",
    .model_type = "qwen3",
    .head_dim_default = 128,
    .configure = configure,
    .tensors = rp_llama_tensors,
    .tensor_count = RP_LLAMA_TENSOR_COUNT,
    .layer = rp_qwen3_layer,
};
