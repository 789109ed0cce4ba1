/* engine_mask.c - what the engine says of the model's mask program. */
#include "engine/engine_internal.h"

#include <stdio.h>
#include <string.h>

void rp_engine_init_mask(struct rp_engine *engine) {
    const struct rp_mask *mask = engine->model->mask;
    uint32_t count = mask ? rp_mask_param_count(mask) : 0;
    RP_ASSERT_CMP(count, <=, RP_MASK_PARAMS_MAX);
    engine->batch.mask_param_count = count;
    for (uint32_t i = 0; i < count; i++)
        engine->batch.mask_defaults[i] = rp_mask_param(mask, i)->value;
}

uint32_t rp_engine_whole_prompt_max(const struct rp_engine *engine, bool scored) {
    return rp_scheduler_whole_prompt_max(&engine->scheduler_config, scored);
}

uint32_t rp_engine_layer_count(const struct rp_engine *engine) {
    return engine->model->config.layers;
}

/* The kernel of a layer's attention in a bucket; "" when there is none. */
static const char *kernel_of(const struct rp_engine *engine, uint32_t graph, uint32_t layer) {
    const struct rp_profile_nodes *nodes = &engine->observer.profile->nodes;
    const struct rp_profile_bucket *bucket = &nodes->buckets[graph];
    for (uint32_t i = 0; i < bucket->count; i++)
        if (rp_profile_node_attention(nodes, &bucket->nodes[i]) &&
            rp_profile_node_layer(nodes, &bucket->nodes[i]) == layer)
            return bucket->nodes[i].kernel;
    return "";
}

void rp_engine_layer_mask(const struct rp_engine *engine, uint32_t layer,
                          struct rp_engine_layer_mask *out) {
    struct rp_layer_mask mask = rp_model_layer_mask(engine->model, layer);
    uint32_t count = rp_engine_graph_count(engine);
    const char *small = count ? kernel_of(engine, 0, layer) : "";
    const char *large = count ? kernel_of(engine, count - 1, layer) : "";
    *out = (struct rp_engine_layer_mask){.program = mask.program,
                                         .window = mask.window,
                                         .heads = engine->model->config.heads,
                                         .soft_cap = mask.soft_cap};
    bool same = strcmp(small, large) == 0;
    snprintf(out->kernels, sizeof out->kernels, "%s%s%s", small, same ? "" : ", ",
             same ? "" : large);
}
