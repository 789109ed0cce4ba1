/* Keys of config.json that say which layers have a recurrent state in place of attention. */
#include "model/config_reader.h"

#include <stdio.h>
#include <string.h>

void rp_config_state_layers(struct rp_config_reader *reader, const char *name,
                            bool (*rule)(struct rp_config_reader *reader, uint32_t layer),
                            struct rp_model_config *config) {
    const json_t *types = rp_config_get(reader, "layer_types");
    char at[40], message[96], supported[64];
    uint32_t count = 0;
    if (types && (!json_is_array(types) || json_array_size(types) != config->layers)) {
        snprintf(message, sizeof message, "must be a list of num_hidden_layers %u strings",
                 config->layers);
        rp_config_refuse(reader, RP_STATUS_FORMAT, "layer_types", message);
        return;
    }
    for (uint32_t i = 0; i < config->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool state = types ? type && strcmp(type, name) == 0 : rule && rule(reader, i);
        if (types && !state && !(type && strcmp(type, "full_attention") == 0)) {
            snprintf(at, sizeof at, "layer_types[%u]", i);
            snprintf(supported, sizeof supported, "full_attention, %s", name);
            rp_config_refuse_name(reader, at, type ? type : "", supported);
        }
        config->state.layers[i / 32] |= (uint32_t)state << i % 32;
        count += state;
    }
    if (count == config->layers)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, types ? "layer_types" : "num_hidden_layers",
                         "leaves no layer with attention");
}
