/* SmolLM3: Llama that does not rotate q and k in every fourth layer. */
#include "model/config_reader.h"
#include "model/network.h"

#include <stdio.h>

/* no_rope_layers, in spite of its name, has 1 for layers with RoPE. */
static bool rotates(struct rp_config_reader *reader, const json_t *list, uint32_t interval,
                    uint32_t layer) {
    char key[32];
    if (!list)
        return (layer + 1) % interval != 0;
    snprintf(key, sizeof key, "no_rope_layers[%u]", layer);
    return rp_config_uint_value(reader, json_array_get(list, layer), key, 0, 1) != 0;
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    char message[64];
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_attention_bias(reader, config);
    config->mlp_bias = rp_config_bool(reader, "mlp_bias", false);
    bool windows = rp_config_bool(reader, "use_sliding_window", false);
    config->window = windows ? rp_config_window(reader, 0) : 0;
    uint32_t interval = rp_config_uint(reader, "no_rope_layer_interval", 4, 1, 1u << 16);
    const json_t *list = rp_config_get(reader, "no_rope_layers");
    if (list && (!json_is_array(list) || json_array_size(list) < config->layers)) {
        snprintf(message, sizeof message, "must be a list of num_hidden_layers %u numbers",
                 config->layers);
        rp_config_refuse(reader, RP_STATUS_FORMAT, "no_rope_layers", message);
        return;
    }
    for (uint32_t i = 0; i < config->layers; i++) {
        bool rope = rotates(reader, list, interval, i);
        if (!rope)
            config->nope_layers[i / 32] |= 1u << i % 32;
        rp_config_set_full(config, i, rope); /* a window, if any, is that of the other layers */
    }
}

const struct rp_model_family rp_family_smollm3 = {
    .id = RP_FAMILY_SMOLLM3,
    .architecture = "SmolLM3ForCausalLM",
    .model_type = "smollm3",
    .tied_default = true,
    .rope_theta_default = 2e6,
    .configure = configure,
    .tensors = rp_llama_tensors,
    .tensor_count = RP_LLAMA_TENSOR_COUNT,
    .layer = rp_llama_layer,
};
