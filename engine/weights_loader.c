#include "engine/weights_loader.h"

#include "base/clock.h"
#include "base/log.h"

/* The loader's thread, after each matrix. */
static int note_filled(void *ctx, uint32_t done, uint32_t total) {
    struct rp_weights_loader *loader = ctx;
    (void)total;
    pthread_mutex_lock(&loader->lock);
    loader->done = done;
    bool cancelled = loader->cancelled;
    pthread_cond_signal(&loader->changed);
    pthread_mutex_unlock(&loader->lock);
    return cancelled ? RP_STATUS_SHUTTING_DOWN : RP_OK;
}

static void *load(void *arg) {
    struct rp_weights_loader *loader = arg;
    uint64_t began = rp_clock_ns();
    loader->status = rp_weights_fill(&loader->fill, &loader->err);
    rp_log(RP_LOG_DEBUG, "start: weights filled seconds=%.3f",
           (double)(rp_clock_ns() - began) * 1e-9);
    pthread_mutex_lock(&loader->lock);
    loader->ended = true;
    pthread_cond_signal(&loader->changed);
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

void rp_weights_loader_begin(struct rp_weights_loader *loader, const struct rp_backend *backend,
                             struct rp_device *device, struct rp_model *model) {
    loader->fill = (struct rp_weights_fill){
        .backend = backend, .device = device, .model = model, .filled = note_filled, .ctx = loader};
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->changed, NULL);
    loader->begun = true;
    loader->has_thread = pthread_create(&loader->thread, NULL, load, loader) == 0;
    if (!loader->has_thread)
        load(loader);
}

/* Waits for more matrices than `told`, or for the end; returns how many there are. */
static uint32_t await_more(struct rp_weights_loader *loader, uint32_t told, bool *out_ended) {
    pthread_mutex_lock(&loader->lock);
    while (loader->done <= told && !loader->ended)
        pthread_cond_wait(&loader->changed, &loader->lock);
    uint32_t done = loader->done;
    *out_ended = loader->ended;
    pthread_mutex_unlock(&loader->lock);
    return done;
}

static void join(struct rp_weights_loader *loader) {
    if (loader->has_thread)
        pthread_join(loader->thread, NULL);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->lock);
    loader->begun = false;
    if (loader->fill.backend->matrices_end)
        loader->fill.backend->matrices_end(loader->fill.device);
}

int rp_weights_loader_end(struct rp_weights_loader *loader,
                          void (*progress)(void *ctx, const char *stage, uint32_t done,
                                           uint32_t total),
                          void *progress_ctx, struct rp_error *err) {
    bool ended = !loader->begun;
    if (ended)
        return RP_OK;
    for (uint32_t told = 0; !ended;) {
        uint32_t done = await_more(loader, told, &ended);
        if (progress && done > told)
            progress(progress_ctx, "weights", done, loader->fill.total);
        told = done;
    }
    join(loader);
    if (loader->status != RP_OK && err)
        *err = loader->err;
    return loader->status;
}

int rp_weights_loader_cancel(struct rp_weights_loader *loader, struct rp_error *err) {
    if (!loader->begun)
        return RP_OK;
    pthread_mutex_lock(&loader->lock);
    loader->cancelled = true;
    pthread_mutex_unlock(&loader->lock);
    join(loader);
    if (loader->status == RP_STATUS_SHUTTING_DOWN)
        return RP_OK;
    if (loader->status != RP_OK && err)
        *err = loader->err;
    return loader->status;
}
