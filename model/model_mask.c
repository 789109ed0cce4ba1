/* model_mask.c - what the layers of a model see: its configuration's window, or a mask program in its place. */
#include "base/memory.h"
#include "model/model.h"

struct rp_mask_limits rp_model_mask_limits(const struct rp_model_config *config, uint32_t longest) {
    uint32_t length = longest ? RP_MIN(longest, config->max_position) : config->max_position;
    return (struct rp_mask_limits){
        .length = length, .heads = config->heads, .layers = config->layers};
}

int rp_model_set_mask(struct rp_model *model, struct rp_mask *mask, struct rp_error *err) {
    rp_model_drop_mask(model);
    model->mask = mask;
    model->layer_masks = rp_calloc(model->config.layers, sizeof *model->layer_masks);
    if (!model->layer_masks)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for mask programs");
    for (uint32_t layer = 0; layer < model->config.layers; layer++) {
        struct rp_layer_mask *out = &model->layer_masks[layer];
        int status = rp_mask_at_layer(mask, layer, &out->program, err);
        if (status != RP_OK)
            return status;
        if (!rp_mask_is_plain(out->program, &out->window, &out->soft_cap))
            continue;
        rp_mask_free(out->program);
        out->program = NULL;
    }
    return RP_OK;
}

struct rp_layer_mask rp_model_layer_mask(const struct rp_model *model, uint32_t layer) {
    const struct rp_model_config *config = &model->config;
    if (model->layer_masks)
        return model->layer_masks[layer];
    return (struct rp_layer_mask){.window =
                                      layer >= config->window_layer_begin ? config->window : 0};
}

void rp_model_drop_mask(struct rp_model *model) {
    for (uint32_t layer = 0; model->layer_masks && layer < model->config.layers; layer++)
        rp_mask_free(model->layer_masks[layer].program);
    rp_free(model->layer_masks);
    rp_mask_free(model->mask);
    model->layer_masks = NULL;
    model->mask = NULL;
}
