/* engine_run.h - an engine of any configuration, and lists of requests run to their end on it.
 *
 * Requests that are submitted before the engine's thread begins are all in its queue at the first
 * plan: the steps of such a run, and what is counted in them, are the same every time.
 *
 * Thread: one, which stands for the engine's loop thread. Memory: rp_engine_run_close frees all of
 * it. */
#ifndef RP_BENCH_ENGINE_RUN_H
#define RP_BENCH_ENGINE_RUN_H

#include "engine/engine.h"
#include "model/model.h"

#include <semaphore.h>
#include <stdatomic.h>

/* Which model. */
struct rp_engine_run_model {
    const char *dir;                           /* NULL: random weights of `shape` */
    const struct rp_model_config *shape;       /* borrowed while it is opened */
    enum rp_dtype dtype;                       /* RP_MODEL_DTYPE_AUTO with a directory only */
    struct rp_model_quantization quantization; /* of a directory; a shape says it by itself */
};

struct rp_engine_run {
    struct rp_model model;
    struct rp_engine *engine; /* NULL: not made */
    sem_t wake;               /* posted at each wake */
    _Atomic uint64_t wakes;
    bool started;
};

/* Makes model and engine. config->wake is ours; a kv_dtype of RP_MODEL_DTYPE_AUTO is the matrices'
 * own; config->opened is taken over, also when it fails. Close it in any case. */
int rp_engine_run_open(const struct rp_engine_run_model *model,
                       const struct rp_engine_config *config, struct rp_engine_run *out,
                       struct rp_error *err) RP_MUST_USE;
void rp_engine_run_close(struct rp_engine_run *run);

/* Submits all requests (no more than the queue holds), starts the engine if need be, hands every
 * event to on_event, and returns when each request is closed and the engine has come to rest.
 * RP_STATUS_DEVICE: one was closed for another reason than a stop id or its length. */
int rp_engine_run_requests(struct rp_engine_run *run, struct rp_request *requests, uint32_t count,
                           void (*on_event)(void *ctx, const struct rp_event *event), void *ctx,
                           struct rp_error *err) RP_MUST_USE;

#endif
