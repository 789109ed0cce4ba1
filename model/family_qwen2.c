/* Qwen2 and 2.5: Llama with a bias on q, k and v and none on o, whatever attention_bias says. */
#include "model/config_reader.h"
#include "model/network.h"

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    (void)rp_config_bool(reader, "attention_bias", false);
    config->qkv_bias = true;
    rp_config_no_bias(reader, "mlp_bias");
    rp_config_qwen_window(reader, config);
}

const struct rp_model_family rp_family_qwen2 = {
    .id = RP_FAMILY_QWEN2,
    .architecture = "Qwen2ForCausalLM",
    .model_type = "qwen2",
    .configure = configure,
    .tensors = rp_llama_tensors,
    .tensor_count = RP_LLAMA_TENSOR_COUNT,
    .layer = rp_llama_layer,
};
