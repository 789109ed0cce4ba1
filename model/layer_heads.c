/* Layers of one model that differ in their heads, in whose K and V they read, and in width. */
#include "model/model.h"

/* The last layer of the same kind that has K and V of its own. */
static uint32_t source_of(const struct rp_model_config *config, uint32_t layer) {
    uint32_t own = config->layers - RP_MIN(config->kv_shared, config->layers);
    bool full = rp_model_window(config, layer) == 0;
    if (layer < own)
        return layer;
    for (uint32_t i = own; i-- > 0;)
        if ((rp_model_window(config, i) == 0) == full)
            return i;
    return layer; /* the configuration is refused */
}

struct rp_layer_heads rp_model_layer_heads(const struct rp_model_config *config, uint32_t layer) {
    bool full = rp_model_window(config, layer) == 0;
    return (struct rp_layer_heads){
        .head_dim = full && config->full_head_dim ? config->full_head_dim : config->head_dim,
        .kv_heads = full && config->full_kv_heads ? config->full_kv_heads : config->kv_heads,
        .source = source_of(config, layer),
        .k_is_v = full && config->full_k_is_v};
}

void rp_model_qkv_rows(const struct rp_model_config *config, uint32_t layer, uint32_t out_rows[3]) {
    const struct rp_layer_heads heads = rp_model_layer_heads(config, layer);
    out_rows[0] = out_rows[1] = out_rows[2] = 0;
    if (rp_model_has_state(config, layer))
        return;
    out_rows[0] = config->heads * heads.head_dim * (config->output_gate ? 2 : 1);
    const struct rp_model_latent *latent = &config->latent;
    if (latent->rank) { /* q, or what it is made of, and the row of latents */
        out_rows[0] = latent->q_rank ? latent->q_rank : out_rows[0];
        out_rows[1] = rp_model_latent_cols(latent);
        return;
    }
    out_rows[1] = heads.source == layer ? heads.kv_heads * heads.head_dim : 0;
    out_rows[2] = heads.k_is_v ? 0 : out_rows[1];
}

uint32_t rp_model_intermediate(const struct rp_model_config *config, uint32_t layer) {
    bool wide = config->wide_shared && rp_model_layer_heads(config, layer).source != layer;
    return config->intermediate * (wide ? 2 : 1);
}

bool rp_model_has_equal_layers(const struct rp_model_config *config) {
    for (uint32_t i = 0; i < config->layers; i++) {
        const struct rp_layer_heads heads = rp_model_layer_heads(config, i);
        if (heads.source != i || heads.k_is_v || heads.head_dim != config->head_dim ||
            heads.kv_heads != config->kv_heads)
            return false;
    }
    return true;
}
