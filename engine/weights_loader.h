/* weights_loader.h - a thread that fills the reserved matrices of a model (weights_on_device.h)
 * while the thread that makes the engine captures graphs and replays them once.
 *
 * Only the making thread reports progress: the weights' once it waits for them.
 * Thread: the one that makes the engine, for all calls. Memory: the model's window, freed at the
 * end. */
#ifndef RP_ENGINE_WEIGHTS_LOADER_H
#define RP_ENGINE_WEIGHTS_LOADER_H

#include "engine/weights_on_device.h"

#include <pthread.h>

struct rp_weights_loader {
    struct rp_weights_fill fill; /* the loader's */
    pthread_t thread;
    bool begun, has_thread;
    int status; /* of the fill, with err; after it has ended */
    struct rp_error err;
    pthread_mutex_t lock; /* protects the following fields */
    pthread_cond_t changed;
    uint32_t done;
    bool ended, cancelled;
};

/* Zeroed storage. The matrices are reserved. Without a thread it fills them before it returns; its
 * error comes with the end. */
void rp_weights_loader_begin(struct rp_weights_loader *loader, const struct rp_backend *backend,
                             struct rp_device *device, struct rp_model *model);
/* Waits until all is filled, or an error ended it, which is returned; legal when nothing was begun
 * or all has ended, and OK then. progress may be NULL. */
int rp_weights_loader_end(struct rp_weights_loader *loader,
                          void (*progress)(void *ctx, const char *stage, uint32_t done,
                                           uint32_t total),
                          void *progress_ctx, struct rp_error *err) RP_MUST_USE;
/* The same when the engine cannot be made: no further matrix is filled. An error that was there
 * before is returned. */
int rp_weights_loader_cancel(struct rp_weights_loader *loader, struct rp_error *err) RP_MUST_USE;

#endif
