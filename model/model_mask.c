/* model_mask.c - the attention mask of each layer: its configuration's window, or a mask
 * program. */
#include "base/memory.h"
#include "model/model.h"

struct rp_mask_limits rp_model_mask_limits(const struct rp_model_config *config, uint32_t longest) {
    uint32_t length = longest ? RP_MIN(longest, config->max_position) : config->max_position;
    return (struct rp_mask_limits){
        .length = length, .heads = config->heads, .layers = config->layers};
}

/* Adds the model's score cap to *mask: a program without score rules replaces only the window, not
 * the model's arithmetic. */
static int add_cap(const struct rp_model_config *config, struct rp_mask **mask,
                   struct rp_error *err) {
    struct rp_mask_limits limits = rp_model_mask_limits(config, 0);
    struct rp_mask *capped = NULL;
    struct rp_buffer text;
    rp_buffer_init(&text, 0);
    rp_buffer_printf(&text, "%s; soft_cap(%.9g)", rp_mask_text(*mask),
                     (double)config->attention_cap);
    int status = text.failed ? rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory")
                             : rp_mask_parse(text.data, text.len, &limits, &capped, err);
    rp_buffer_deinit(&text);
    if (status != RP_OK)
        return status;
    rp_mask_free(*mask);
    *mask = capped;
    return RP_OK;
}

int rp_model_set_mask(struct rp_model *model, struct rp_mask *mask, struct rp_error *err) {
    rp_model_drop_mask(model);
    model->mask = mask;
    if (model->config.attention_cap > 0 && !rp_mask_has_score(mask)) {
        int status = add_cap(&model->config, &model->mask, err);
        if (status != RP_OK)
            return status;
        mask = model->mask;
    }
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
    return (struct rp_layer_mask){.window = rp_model_window(config, layer),
                                  .soft_cap = config->attention_cap};
}

void rp_model_drop_mask(struct rp_model *model) {
    for (uint32_t layer = 0; model->layer_masks && layer < model->config.layers; layer++)
        rp_mask_free(model->layer_masks[layer].program);
    rp_free(model->layer_masks);
    rp_mask_free(model->mask);
    model->layer_masks = NULL;
    model->mask = NULL;
}
