/* model_kv.c - what a token's K and V take. */
#include "model/model.h"

static uint32_t key_cols(const struct rp_model_config *config, uint32_t layer) {
    return config->latent.rank ? rp_model_latent_cols(&config->latent)
                               : rp_model_layer_heads(config, layer).head_dim;
}

bool rp_model_kv_layout(const struct rp_model *model, uint32_t page_tokens, enum rp_dtype dtype,
                        struct rp_kv_layout *out) {
    uint32_t layers = model->config.layers, cols = key_cols(&model->config, 0);
    return model->config.latent.rank
               ? rp_kv_layout_init_latent(out, layers, cols, page_tokens, dtype)
               : rp_kv_layout_init(out, layers, rp_model_rank_kv_heads(model), cols, page_tokens,
                                   dtype);
}

uint64_t rp_model_kv_token_bytes(const struct rp_model *model, enum rp_dtype dtype) {
    const struct rp_model_config *config = &model->config;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < config->layers; i++) {
        const struct rp_layer_heads heads = rp_model_layer_heads(config, i);
        uint32_t kv_heads = model->ranks > 1 ? rp_model_rank_kv_heads(model) : heads.kv_heads;
        if (heads.source == i && !rp_model_has_state(config, i))
            bytes += rp_kv_layer_token_bytes(dtype, kv_heads, key_cols(config, i),
                                             config->latent.rank != 0);
    }
    return bytes;
}
