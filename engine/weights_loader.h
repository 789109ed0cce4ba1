/* weights_loader.h - a thread that fills the reserved matrices of a model (weights_on_device.h)
 * while the engine's thread captures graphs and replays them once.
 *
 * Progress is reported by the engine's thread, for weights only once it waits for them.
 * Thread: the engine's, for all calls. Memory: the window of rp_model_stream, until the end. */
#ifndef RP_ENGINE_WEIGHTS_LOADER_H
#define RP_ENGINE_WEIGHTS_LOADER_H

#include "engine/weights_on_device.h"

#include <pthread.h>

struct rp_weights_loader {
    struct rp_weights_fill fill; /* used by the loader's thread */
    pthread_t thread;
    bool begun, has_thread;
    int status; /* with err: the result of the fill, once it has ended */
    struct rp_error err;
    pthread_mutex_t lock; /* protects the following fields */
    pthread_cond_t changed;
    uint32_t done;
    bool ended, cancelled;
};

/* *loader is zeroed, the matrices are reserved. When no thread can be created, it fills them before
 * it returns; an error is returned by the end. */
void rp_weights_loader_begin(struct rp_weights_loader *loader, const struct rp_backend *backend,
                             struct rp_device *device, struct rp_model *model);
/* Waits until all matrices are filled, or an error ended that, which is returned. RP_OK when
 * nothing was begun or the end was reached before. progress may be NULL. */
int rp_weights_loader_end(struct rp_weights_loader *loader,
                          void (*progress)(void *ctx, const char *stage, uint32_t done,
                                           uint32_t total),
                          void *progress_ctx, struct rp_error *err) RP_MUST_USE;
/* The same when the engine cannot be made: waits for the matrix in progress alone. Returns an error
 * of the loader, not that it was cancelled. */
int rp_weights_loader_cancel(struct rp_weights_loader *loader, struct rp_error *err) RP_MUST_USE;

#endif
