/* Mistral (with Mistral Small, Devstral and Magistral): Llama without biases, with a sliding
 * window in all layers or in none. Ministral has it in some layers; Ministral 3 multiplies q by
 * a factor of its position, after RoPE. */
#include "model/config_reader.h"
#include "model/network.h"

static void configure_common(struct rp_config_reader *reader, struct rp_model_config *config,
                             uint32_t window) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_no_bias(reader, "attention_bias");
    rp_config_no_bias(reader, "mlp_bias");
    config->window = rp_config_window(reader, window);
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    configure_common(reader, config, 4096);
}

/* The factors of q are read with rope_parameters (config_rope.c). */
static void configure3(struct rp_config_reader *reader, struct rp_model_config *config) {
    configure_common(reader, config, 0);
    if (!rp_config_get(reader, "rope_parameters") && !rp_config_get(reader, "rope_scaling"))
        rp_config_refuse(reader, RP_STATUS_FORMAT, "rope_parameters", "is missing");
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

const struct rp_model_family rp_family_ministral = {
    .id = RP_FAMILY_MINISTRAL,
    .architecture = "MinistralForCausalLM",
    .model_type = "ministral",
    .configure = configure,
    .tensors = rp_llama_tensors,
    .tensor_count = RP_LLAMA_TENSOR_COUNT,
    .layer = rp_llama_layer,
};

const struct rp_model_family rp_family_ministral3 = {
    .id = RP_FAMILY_MINISTRAL3,
    .architecture = "Ministral3ForCausalLM",
    .model_type = "ministral3",
    .head_dim_default = 128,
    .norm_eps_default = 1e-5,
    .scales_q = true,
    .configure = configure3,
    .tensors = rp_llama_tensors,
    .tensor_count = RP_LLAMA_TENSOR_COUNT,
    .layer = rp_llama_layer,
};
