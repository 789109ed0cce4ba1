/* engine_run.h - runs lists of requests to completion on an engine of any configuration.
 *
 * Requests submitted before the engine thread starts are all queued at the first plan: the steps of
 * such a run, and their counts, are reproducible.
 *
 * Thread: one, in the role of the engine's loop thread. Memory: rp_engine_run_close frees all of
 * it. */
#ifndef RP_BENCH_ENGINE_RUN_H
#define RP_BENCH_ENGINE_RUN_H

#include "engine/engine.h"
#include "model/model.h"

#include <semaphore.h>
#include <stdatomic.h>

/* The model to run. */
struct rp_engine_run_model {
    const char *dir;                           /* NULL: random weights of `shape` */
    const struct rp_model_config *shape;       /* borrowed during open */
    enum rp_dtype dtype;                       /* RP_MODEL_DTYPE_AUTO only with a directory */
    struct rp_model_quantization quantization; /* for a directory; a shape has its own */
};

struct rp_engine_run {
    struct rp_model model;
    struct rp_engine *engine; /* NULL: not made */
    sem_t wake;               /* posted at each wake */
    _Atomic uint64_t wakes;
    bool started;
};

/* Creates model and engine. config->wake is overwritten; a kv_dtype of RP_MODEL_DTYPE_AUTO follows
 * the weights; takes ownership of config->opened, also on failure. Call close in any case. */
int rp_engine_run_open(const struct rp_engine_run_model *model,
                       const struct rp_engine_config *config, struct rp_engine_run *out,
                       struct rp_error *err) RP_MUST_USE;
void rp_engine_run_close(struct rp_engine_run *run);

/* Submits all requests (at most the queue's capacity), starts the engine if needed, passes every
 * event to on_event, and returns when all requests are closed and the engine is idle.
 * RP_STATUS_DEVICE: one was closed for a reason other than a stop id or its length. */
int rp_engine_run_requests(struct rp_engine_run *run, struct rp_request *requests, uint32_t count,
                           void (*on_event)(void *ctx, const struct rp_event *event), void *ctx,
                           struct rp_error *err) RP_MUST_USE;

#endif
