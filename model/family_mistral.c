/* Mistral: Llama without biases, with a sliding window in all layers. */
#include "model/config_reader.h"
#include "model/network.h"

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_no_bias(reader, "attention_bias");
    rp_config_no_bias(reader, "mlp_bias");
    config->window = rp_config_window(reader, 4096);
}

const struct rp_model_family rp_family_mistral = {
    .id = RP_FAMILY_MISTRAL,
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    .configure = configure,
    .tensors = rp_llama_tensors,
    .tensor_count = RP_LLAMA_TENSOR_COUNT,
    .layer = rp_llama_layer,
};
