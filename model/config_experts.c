/* Keys of config.json that describe a mixture of experts. */
#include "model/config_reader.h"

#include <stdio.h>

/* Panels of the CPU's GEMMs have 16 rows, and those of an expert are its own. */
#define WIDTH_UNIT 16u

static void check_width(struct rp_config_reader *reader, const char *key, uint32_t value) {
    char message[64];
    if (value % WIDTH_UNIT == 0)
        return;
    snprintf(message, sizeof message, "is %u, must be a multiple of %u in models with experts",
             value, WIDTH_UNIT);
    rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, key, message);
}

void rp_config_experts(struct rp_config_reader *reader, const struct rp_config_experts_keys *keys,
                       struct rp_model_config *config) {
    struct rp_model_experts *experts = &config->experts;
    const char *width = keys->intermediate ? keys->intermediate : "intermediate_size";
    const char *used = keys->used ? keys->used : "num_experts_per_tok";
    char message[64];
    experts->count = rp_config_uint(reader, keys->count, keys->count_default, 1, RP_EXPERTS_MAX);
    experts->used = rp_config_uint(reader, used, keys->used_default, 1, RP_EXPERTS_MAX);
    experts->intermediate =
        keys->intermediate ? rp_config_uint(reader, width, keys->intermediate_default, 1, 1u << 20)
                           : config->intermediate;
    experts->score = RP_ROUTE_SOFTMAX;
    experts->groups = 1;
    experts->factor = 1.0f;
    check_width(reader, width, experts->intermediate);
    check_width(reader, "hidden_size", config->hidden);
    if (experts->used > experts->count) {
        snprintf(message, sizeof message, "is %u, more than the %u experts", experts->used,
                 experts->count);
        rp_config_refuse(reader, RP_STATUS_RANGE, used, message);
    }
    /* One matrix holds all experts of a layer. */
    uint64_t most = RP_MAX(2ull * experts->intermediate, (uint64_t)config->hidden);
    if (most * experts->count > INT32_MAX) {
        snprintf(message, sizeof message, "is %u: too many experts of that size", experts->count);
        rp_config_refuse(reader, RP_STATUS_RANGE, keys->count, message);
    }
}

void rp_config_expert_groups(struct rp_config_reader *reader, double groups_default,
                             double used_default, uint32_t best, struct rp_model_experts *experts) {
    char message[64];
    experts->groups = rp_config_uint(reader, "n_group", groups_default, 1, RP_EXPERTS_MAX);
    experts->groups_used = rp_config_uint(reader, "topk_group", used_default, 1, experts->groups);
    experts->group_best = best;
    uint32_t size = experts->count / experts->groups;
    snprintf(message, sizeof message, "leaves less than %u experts a group", best);
    if (size * experts->groups != experts->count)
        rp_config_refuse(reader, RP_STATUS_RANGE, "n_group",
                         "must divide the experts (n_routed_experts) into equal groups");
    else if (experts->groups > 1 && size < best)
        rp_config_refuse(reader, RP_STATUS_RANGE, "n_group", message);
    else if (size * experts->groups_used < experts->used)
        rp_config_refuse(reader, RP_STATUS_RANGE, "topk_group",
                         "groups have less experts than num_experts_per_tok");
}

void rp_config_sparse_layers(struct rp_config_reader *reader, struct rp_model_config *config) {
    uint32_t step = rp_config_uint(reader, "decoder_sparse_step", 1, 1, 1u << 16);
    const json_t *dense = rp_config_get(reader, "mlp_only_layers");
    uint32_t *bits = config->experts.dense_layers;
    if (dense && !json_is_array(dense)) {
        rp_config_refuse(reader, RP_STATUS_FORMAT, "mlp_only_layers", "must be a list of layers");
        return;
    }
    for (uint32_t i = 0; i < config->layers; i++)
        if ((i + 1) % step != 0)
            bits[i / 32] |= 1u << i % 32;
    for (size_t i = 0; i < json_array_size(dense); i++) {
        char key[40];
        snprintf(key, sizeof key, "mlp_only_layers[%zu]", i);
        uint32_t layer =
            rp_config_uint_value(reader, json_array_get(dense, i), key, 0, RP_LAYERS_MAX - 1);
        bits[layer / 32] |= 1u << layer % 32;
    }
}
