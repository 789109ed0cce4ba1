#include "engine/invariant_watch.h"

#include "base/log.h"
#include "engine/engine_internal.h"

#define INTERVAL_NS 1000000000u

/* The engine's own counts, beside the scheduler's. */
static const char *check_engine(const struct rp_engine *engine) {
    struct rp_sched_stats stats;
    rp_scheduler_stats(engine->scheduler, &stats);
    uint32_t queued = atomic_load_explicit(&engine->queued, memory_order_acquire);
    /* The loop thread counts a request before it submits it, so more may be counted, never less. */
    if (queued < stats.waiting + (engine->held != NULL))
        return "more requests wait than are counted as queued";
    if (engine->pending_count != rp_scheduler_in_flight(engine->scheduler))
        return "the steps in flight are not those that the scheduler has planned";
    return NULL;
}

void rp_invariant_watch_turn(struct rp_engine *engine, uint64_t now_ns) {
    struct rp_invariant_watch *watch = &engine->invariants;
    if (now_ns < watch->next_ns || engine->failed)
        return;
    watch->next_ns = now_ns + INTERVAL_NS;
    const char *broken = rp_scheduler_check(engine->scheduler);
    if (!broken)
        broken = check_engine(engine);
    atomic_store_explicit(&watch->broken, broken != NULL, memory_order_relaxed);
    if (!broken)
        return;
    rp_counter_add(&engine->metrics.invariant_violations, 1);
    if (!watch->logged)
        rp_log(RP_LOG_ERROR, "engine: broken invariant (please report it): %s", broken);
    watch->logged = true;
}
