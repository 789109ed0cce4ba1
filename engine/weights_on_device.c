#include "engine/weights_on_device.h"

#include "model/model.h"

/* Uniform with a standard deviation of 0.02, as in rp_model_random. */
#define RANDOM_SCALE 0.0346f

struct preparation {
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_model *model;
    bool separate_memory;
    uint32_t *prepared;
    void (*progress)(void *ctx, const char *stage, uint32_t done, uint32_t total);
    void *progress_ctx;
};

static bool has_separate_memory(const struct rp_backend *backend, struct rp_device *device) {
    struct rp_device_info info;
    backend->info(device, &info);
    return info.separate_memory;
}

/* Where the host's memory is the device's, an embedding that is not the head too is looked up row
 * by row as it was read. */
static bool is_prepared(const struct rp_model *model, bool separate_memory,
                        const struct rp_weight *weight) {
    return rp_weight_is_matrix(weight) &&
           (separate_memory || weight->role != RP_WEIGHT_EMBED || model->config.tied);
}

static int prepare_matrix(const struct preparation *p, struct rp_matrix *matrix,
                          struct rp_error *err) {
    return matrix->data
               ? p->backend->matrix_prepare(p->device, matrix, err)
               : p->backend->matrix_random(p->device, matrix, *p->prepared + 1, RANDOM_SCALE, err);
}

static void weight_done(const struct preparation *p, const struct rp_weight *weight) {
    ++*p->prepared;
    bool last = weight->role == RP_WEIGHT_DOWN || weight->role == RP_WEIGHT_EXPERT_DOWN;
    if (last && p->progress)
        p->progress(p->progress_ctx, "weights", weight->layer + 1u, p->model->config.layers + 1);
}

static int prepare_weight(void *ctx, struct rp_weight *weight, struct rp_error *err) {
    const struct preparation *p = ctx;
    int status = rp_weight_divide(p->model, weight, err);
    struct rp_matrix *matrices = weight->shards ? weight->shards : &weight->matrix;
    uint32_t count = weight->shards ? p->model->ranks : 1;
    bool prepares = is_prepared(p->model, p->separate_memory, weight);
    for (uint32_t i = 0; i < count && prepares && status == RP_OK; i++)
        status = prepare_matrix(p, &matrices[i], err);
    if (status == RP_OK)
        weight_done(p, weight);
    return status;
}

static int quantize_shard(const struct preparation *p, const struct rp_weight *weight,
                          uint32_t rank, const struct rp_matrix *values, struct rp_error *err) {
    struct rp_matrix part;
    uint32_t col;
    int status = rp_weight_divide_values(p->model, weight, rank, values, &part, &col, err);
    if (status != RP_OK)
        return status;
    status = p->backend->matrix_quantize(p->device, &part, col, &weight->shards[rank], err);
    if (part.data != values->data)
        rp_matrix_deinit(&part);
    return status;
}

static int quantize_weight(void *ctx, struct rp_weight *weight, const struct rp_matrix *values,
                           struct rp_error *err) {
    const struct preparation *p = ctx;
    int status = RP_OK;
    if (!weight->shards)
        status = p->backend->matrix_quantize(p->device, values, 0, &weight->matrix, err);
    for (uint32_t rank = 0; weight->shards && rank < p->model->ranks && status == RP_OK; rank++)
        status = quantize_shard(p, weight, rank, values, err);
    if (status == RP_OK)
        weight_done(p, weight);
    return status;
}

int rp_weights_prepare(const struct rp_backend *backend, struct rp_device *device,
                       struct rp_model *model, uint32_t *prepared,
                       void (*progress)(void *ctx, const char *stage, uint32_t done,
                                        uint32_t total),
                       void *progress_ctx, struct rp_error *err) {
    struct preparation p = {backend,  device,   model,       has_separate_memory(backend, device),
                            prepared, progress, progress_ctx};
    int status = RP_OK;
    *prepared = 0;
    if (model->source) {
        struct rp_weight_consumer consumer = {.consume = prepare_weight,
                                              .ctx = &p,
                                              .window_bytes = RP_MODEL_STREAM_BYTES,
                                              .quantize = backend->matrix_quantize ? quantize_weight
                                                                                   : NULL};
        status = rp_model_stream(model, &consumer, err);
    } else {
        for (uint32_t i = 0; i < model->weights.count && status == RP_OK; i++)
            if (rp_weight_is_matrix(&model->weights.entries[i]))
                status = prepare_weight(&p, &model->weights.entries[i], err);
    }
    if (backend->matrices_end)
        backend->matrices_end(device);
    if (status == RP_OK && progress)
        progress(progress_ctx, "weights", model->config.layers + 1, model->config.layers + 1);
    return status;
}

bool rp_weights_can_reserve(const struct rp_backend *backend, const struct rp_model *model) {
    bool can = backend->matrix_reserve && model->source;
    for (uint32_t i = 0; i < model->weights.count && can; i++)
        can = model->weights.entries[i].matrix.dtype != RP_DTYPE_BLOCKS;
    return can;
}

int rp_weights_reserve(const struct rp_backend *backend, struct rp_device *device,
                       struct rp_model *model, uint32_t *prepared, struct rp_error *err) {
    int status = RP_OK;
    *prepared = 0;
    for (uint32_t i = 0; i < model->weights.count && status == RP_OK; i++) {
        struct rp_weight *weight = &model->weights.entries[i];
        if (!rp_weight_is_matrix(weight))
            continue;
        status = backend->matrix_reserve(device, &weight->matrix, err);
        *prepared += status == RP_OK;
    }
    if (status == RP_OK && backend->synchronize(device) != RP_OK)
        status =
            rp_error_set(err, RP_STATUS_DEVICE, "the weights' memory cannot be cleared: %.300s",
                         backend->last_error(device));
    return status;
}

static int fill_weight(void *ctx, struct rp_weight *weight, const struct rp_matrix *values,
                       struct rp_error *err) {
    struct rp_weights_fill *fill = ctx;
    int status = fill->backend->matrix_fill(fill->device, values, &weight->matrix, err);
    return status == RP_OK ? fill->filled(fill->ctx, ++fill->done, fill->total) : status;
}

int rp_weights_fill(struct rp_weights_fill *fill, struct rp_error *err) {
    struct rp_weight_consumer consumer = {.fill = fill_weight,
                                          .ctx = fill,
                                          .window_bytes = RP_MODEL_STREAM_BYTES,
                                          .quantize =
                                              fill->backend->matrix_quantize ? fill_weight : NULL};
    fill->done = fill->total = 0;
    for (uint32_t i = 0; i < fill->model->weights.count; i++)
        fill->total += rp_weight_is_matrix(&fill->model->weights.entries[i]);
    return rp_model_stream(fill->model, &consumer, err);
}

void rp_weights_release(const struct rp_backend *backend, struct rp_device *device,
                        struct rp_model *model, uint32_t prepared) {
    if (prepared == 0 ||
        !has_separate_memory(backend, device)) /* no device is needed without any */
        return;
    for (uint32_t i = 0; i < model->weights.count && prepared > 0; i++) {
        struct rp_weight *weight = &model->weights.entries[i];
        if (!rp_weight_is_matrix(weight))
            continue;
        struct rp_matrix *matrices = weight->shards ? weight->shards : &weight->matrix;
        uint32_t count = weight->shards ? model->ranks : 1;
        for (uint32_t rank = 0; rank < count; rank++) {
            backend->matrix_release(device, &matrices[rank]);
            matrices[rank].data = NULL;
        }
        prepared--;
    }
}
