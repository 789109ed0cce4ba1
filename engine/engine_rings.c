/* engine_rings.c - the engine thread's side of the two rings: requests in, events out, and its
 * sleep when neither has anything. */
#include "engine/engine_internal.h"

#include "base/threads.h"
#include "metrics/tick.h"

#include <string.h>

/* Does not wake the loop thread. False when the ring is full. */
static bool push_event(struct rp_engine *engine, const struct rp_event *event) {
    rp_observe_event(engine, event);
    if (event->kind == RP_EVENT_CLOSED && event->request->scheduled_ns == 0)
        atomic_fetch_sub_explicit(&engine->queued, 1, memory_order_release); /* never admitted */
    return rp_ring_try_push(&engine->events, event);
}

static void wake_loop(struct rp_engine *engine) {
    if (engine->config.wake)
        engine->config.wake(engine->config.wake_ctx);
}

/* Closes a request that the scheduler has refused. False when the event ring is full. */
static bool close_refused(struct rp_engine *engine, struct rp_request *request) {
    request->closed_ns = rp_tick_ns();
    /* The scheduler has not set these. */
    request->scheduled_ns = request->first_token_ns = 0;
    memset(&request->stats, 0, sizeof request->stats);
    struct rp_event event = {.request = request,
                             .kind = RP_EVENT_CLOSED,
                             .finish_reason = RP_FINISH_ERROR,
                             .token = -1,
                             .time_ns = request->closed_ns};
    if (rp_ring_free_count(&engine->events) == 0 || !push_event(engine, &event))
        return false;
    wake_loop(engine);
    return true;
}

uint32_t rp_engine_accept(struct rp_engine *engine) {
    uint32_t count = 0;
    while (engine->held || rp_ring_try_pop(&engine->requests, &engine->held)) {
        int status = rp_scheduler_submit(engine->scheduler, engine->held);
        if (status == RP_STATUS_FULL)
            break;
        if (status != RP_OK && !close_refused(engine, engine->held))
            break;
        if (status == RP_OK)
            rp_observe_accepted(engine, engine->held);
        engine->held = NULL;
        count++;
    }
    return count;
}

uint32_t rp_engine_pump_events(struct rp_engine *engine) {
    struct rp_event event;
    uint32_t count = 0;
    while (rp_ring_free_count(&engine->events) > 0 &&
           rp_scheduler_next_event(engine->scheduler, &event)) {
        if (event.kind == RP_EVENT_CLOSED)
            rp_observe_closed(engine, event.request);
        bool pushed = push_event(engine, &event);
        RP_ASSERT(pushed);
        count++;
    }
    if (count)
        wake_loop(engine);
    return count;
}

void rp_engine_flush(struct rp_engine *engine) {
    rp_engine_pump_events(engine);
    rp_engine_accept(engine); /* refused and closed, one by one */
}

void rp_engine_wait_for_post(struct rp_engine *engine, uint32_t ns) {
    if (rp_sem_wait_ns(&engine->wake_up, ns))
        while (sem_trywait(&engine->wake_up) == 0) {
        } /* many posts, one look at the ring */
}

/* Longest sleep without a post: covers a drain of the event ring just before wants_room was set. */
#define SLEEP_NS 100000000u

void rp_engine_sleep(struct rp_engine *engine) {
    enum rp_idle_cause cause = rp_step_trace_why_idle(engine);
    if (!rp_scheduler_is_idle(engine->scheduler) || rp_ring_free_count(&engine->events) == 0)
        atomic_store(&engine->wants_room, true);
    rp_engine_wait_for_post(engine, SLEEP_NS);
    rp_observe_slept(engine, cause);
}
