#include "engine/weights_on_device.h"

#include "model/model.h"

enum { MATRICES_OF_LAYER = 4 };
/* Uniform with a standard deviation of 0.02, as rp_model_random has it. */
#define RANDOM_SCALE 0.0346f

static bool is_card(const struct rp_backend *backend, struct rp_device *device) {
    struct rp_device_info info;
    backend->info(device, &info);
    return info.separate_memory;
}

/* Matrix number `index` in the order of preparing, or NULL past the last. Only a card needs an
 * embedding that is not the head too: the host looks its rows up as they were read. */
static struct rp_matrix *matrix_at(struct rp_model *model, bool card, uint32_t index) {
    uint32_t layer = index / MATRICES_OF_LAYER, last = model->config.layers * MATRICES_OF_LAYER;
    if (index < last) {
        struct rp_layer_weights *weights = &model->layers[layer];
        struct rp_matrix *matrices[MATRICES_OF_LAYER] = {&weights->qkv, &weights->o,
                                                         &weights->gate_up, &weights->down};
        return matrices[index % MATRICES_OF_LAYER];
    }
    if (index == last)
        return model->config.tied ? &model->embed : &model->lm_head;
    return index == last + 1 && card && !model->config.tied ? &model->embed : NULL;
}

int rp_weights_prepare(const struct rp_backend *backend, struct rp_device *device,
                       struct rp_model *model, uint32_t *prepared,
                       void (*progress)(void *ctx, const char *stage, uint32_t done,
                                        uint32_t total),
                       void *progress_ctx, struct rp_error *err) {
    bool card = is_card(backend, device);
    uint32_t total = model->config.layers + 1;
    struct rp_matrix *matrix;
    for (*prepared = 0; (matrix = matrix_at(model, card, *prepared)) != NULL;) {
        int status = matrix->data
                         ? backend->matrix_prepare(device, matrix, err)
                         : backend->matrix_random(device, matrix, *prepared + 1, RANDOM_SCALE, err);
        if (status != RP_OK)
            return status;
        if (matrix == &model->embed && model->config.tied)
            model->lm_head = model->embed;
        if (++*prepared % MATRICES_OF_LAYER == 0 && progress)
            progress(progress_ctx, "prepare", *prepared / MATRICES_OF_LAYER, total);
    }
    if (progress)
        progress(progress_ctx, "prepare", total, total);
    return RP_OK;
}

void rp_weights_release(const struct rp_backend *backend, struct rp_device *device,
                        struct rp_model *model, uint32_t prepared) {
    if (prepared == 0 || !is_card(backend, device)) /* without any, no device is needed */
        return;
    for (uint32_t i = 0; i < prepared; i++) {
        struct rp_matrix *matrix = matrix_at(model, true, i);
        backend->matrix_release(device, matrix);
        matrix->data = NULL;
        if (matrix == &model->embed && model->config.tied) {
            model->lm_head.data = NULL;
            model->lm_head.scales = NULL;
        }
    }
}
