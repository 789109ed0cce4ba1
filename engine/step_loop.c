/* step_loop.c - the engine thread: accept, plan, launch, wait, commit, emit.
 *
 *   launch n+1 | device works on n | read n, commit n, emit its tokens | plan n+2 | ...
 *
 * With run-ahead one step is always queued behind the one in work, so the device never waits for the
 * host. Nothing here allocates or takes a lock; it sleeps only when there is nothing to do or when it
 * waits for the device. */
#include "engine/engine_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "metrics/tick.h"

#include <stdio.h>
#include <string.h>

/* Wakes nobody: the caller does. False when the ring is full. */
static bool push_event(struct rp_engine *engine, const struct rp_event *event) {
    rp_step_trace_event(engine, event);
    if (event->kind == RP_EVENT_TOKEN)
        rp_counter_add(&engine->metrics.generation_tokens, 1);
    else if (event->kind == RP_EVENT_CLOSED &&
             event->request->scheduled_ns == 0) /* before it was ever admitted */
        atomic_fetch_sub_explicit(&engine->queued, 1, memory_order_release);
    return rp_ring_try_push(&engine->events, event);
}

/* Closes a request that the scheduler does not take any more. */
static bool close_refused(struct rp_engine *engine, struct rp_request *request) {
    request->closed_ns = rp_tick_ns();
    /* The scheduler did not touch it: it may hold anything. */
    request->scheduled_ns = request->first_token_ns = 0;
    memset(&request->stats, 0, sizeof request->stats);
    struct rp_event event = {.request = request,
                             .kind = RP_EVENT_CLOSED,
                             .finish_reason = RP_FINISH_ERROR,
                             .token = -1,
                             .time_ns = request->closed_ns};
    if (rp_ring_free_count(&engine->events) == 0 || !push_event(engine, &event))
        return false;
    if (engine->config.wake)
        engine->config.wake(engine->config.wake_ctx);
    return true;
}

/* Hands new requests to the scheduler. One that it cannot take now (its own event store is full because
 * the loop does not drain) is held and offered again; the loop thread's count keeps the others back. Returns how
 * many were taken. */
static uint32_t accept_requests(struct rp_engine *engine) {
    uint32_t count = 0;
    while (engine->held || rp_ring_try_pop(&engine->requests, &engine->held)) {
        int status = rp_scheduler_submit(engine->scheduler, engine->held);
        if (status == RP_STATUS_FULL)
            break;
        if (status != RP_OK && !close_refused(engine, engine->held))
            break;
        if (status == RP_OK)
            rp_step_profile_open(engine->profile, engine->held);
        engine->held = NULL;
        count++;
    }
    return count;
}

/* Moves events to the loop's ring as far as it has room; returns how many went. */
static uint32_t pump_events(struct rp_engine *engine) {
    struct rp_event event;
    uint32_t count = 0;
    while (rp_ring_free_count(&engine->events) > 0 &&
           rp_scheduler_next_event(engine->scheduler, &event)) {
        if (event.kind == RP_EVENT_CLOSED) {
            rp_step_profile_close(engine->profile, event.request);
            rp_account_close(&engine->account, event.request);
        }
        bool pushed = push_event(engine, &event);
        RP_ASSERT(pushed);
        count++;
    }
    if (count && engine->config.wake)
        engine->config.wake(engine->config.wake_ctx);
    return count;
}

static bool emit_events(struct rp_engine *engine) {
    uint32_t count = pump_events(engine);
    if (count)
        rp_step_trace_span(engine, RP_TRACE_EMIT, RP_IDLE_EMIT, count, 0, 0);
    return count > 0;
}

/* The cause is there before anybody sees that the device has failed. */
static void fail(struct rp_engine *engine, const char *what) {
    const char *said = engine->hangs ? "" : engine->backend->last_error(engine->device);
    if (engine->failed)
        return;
    engine->failed = true;
    engine->pending_count = 0;
    snprintf(engine->failure_text, sizeof engine->failure_text, "%s%s%.300s", what,
             *said ? ": " : "", said);
    atomic_store_explicit(&engine->failure, engine->failure_text, memory_order_release);
    rp_gauge_set(&engine->metrics.healthy, 0);
    rp_log(RP_LOG_ERROR, "engine: device failed step=%llu cause=\"%s\"",
           (unsigned long long)engine->device_step, engine->failure_text);
    if (engine->scheduler)
        rp_scheduler_fail_all(engine->scheduler, RP_FINISH_ERROR, rp_tick_ns());
}

/* --debug-fault. */
static void inject_fault(struct rp_engine *engine) {
    if (!engine->config.fault_step ||
        rp_counter_read(&engine->metrics.steps) + 1 != engine->config.fault_step)
        return;
    int status = engine->backend->inject_fault(engine->device, engine->config.fault);
    rp_log(RP_LOG_WARN, "engine: fault injected step=%llu status=%s",
           (unsigned long long)engine->config.fault_step, rp_status_name(status));
}

static unsigned char *page_address(struct rp_engine *engine, bool host, uint32_t page) {
    unsigned char *base = host ? engine->host_pages : engine->layout.kv.base;
    return base + (size_t)page * engine->layout.kv.page_stride;
}

/* Page copies and zeroing that must precede the step, in stream order. */
static int move_pages(struct rp_engine *engine, const struct rp_sched_step *step) {
    size_t bytes = engine->layout.kv.page_stride;
    int status = RP_OK;
    for (uint32_t i = 0; i < step->copy_count && status == RP_OK; i++) {
        const struct rp_sched_copy *copy = &step->copies[i];
        status = engine->backend->copy(
            engine->device, page_address(engine, copy->kind == RP_COPY_TO_HOST, copy->to),
            page_address(engine, copy->kind == RP_COPY_TO_DEVICE, copy->from), bytes);
    }
    for (uint32_t i = 0; i < step->zero_page_count && status == RP_OK; i++)
        status = engine->backend->fill(engine->device,
                                       page_address(engine, false, step->zero_pages[i]), 0, bytes);
    return status;
}

static void count_step(struct rp_engine *engine, const struct rp_sched_step *step,
                       const struct rp_graph_entry *entry, uint32_t packet_bytes) {
    struct rp_engine_metrics *metrics = &engine->metrics;
    rp_counter_add(&metrics->steps, 1);
    rp_counter_add(step->decode_only ? &metrics->decode_steps : &metrics->mixed_steps, 1);
    rp_counter_add(&metrics->padded_tokens, entry->bucket.tokens - step->token_count);
    rp_counter_add(&metrics->packet_bytes, packet_bytes);
    rp_histogram_observe(&metrics->step_tokens, step->token_count);
    for (uint32_t i = 0; i < step->row_count; i++)
        if (!step->rows[i].decode)
            rp_counter_add(&metrics->prompt_tokens, step->rows[i].count);
    for (uint32_t i = 0; i < step->join_count; i++)
        rp_counter_add(&metrics->cached_tokens, step->joins[i].length);
    atomic_fetch_sub_explicit(&engine->queued, step->join_count, memory_order_release);
}

/* plan_ns, launch_ns: when planning began, and ended. */
static void launch_step(struct rp_engine *engine, const struct rp_sched_step *step,
                        uint64_t plan_ns, uint64_t launch_ns) {
    struct rp_graph_entry *entry = rp_graph_set_pick(
        engine->graphs, step->token_count, step->row_count, step->sample_count, step->decode_only);
    if (!entry) {
        fail(engine, "no captured graph holds the step");
        return;
    }
    rp_counter_add(&engine->metrics.graph_fallbacks, rp_graph_set_passed_over(engine->graphs));
    inject_fault(engine);
    if (engine->config.plant_allocation)
        rp_free(rp_alloc(1));
    uint64_t device_step = ++engine->device_step;
    bool stamped = rp_step_profile_launch(engine->profile, step,
                                          rp_engine_graph_index(engine, entry), device_step);
    uint32_t packet_bytes =
        rp_batch_encode(&engine->batch, step, device_step, stamped ? RP_PACKET_STAMP : 0);
    rp_step_trace_launch(engine, step, device_step, plan_ns);
    int status = move_pages(engine, step);
    if (status == RP_OK)
        status = rp_graph_set_launch(engine->graphs, entry, step->token_count);
    if (status != RP_OK) {
        fail(engine, rp_status_text(status));
        return;
    }
    RP_ASSERT_CMP(engine->pending_count, <, RP_PENDING_MAX);
    struct rp_pending_step *pending = &engine->pending[engine->pending_count];
    *pending = (struct rp_pending_step){.plan = *step,
                                        .entry = entry,
                                        .device_step = device_step,
                                        .plan_ns = plan_ns,
                                        .planned_ns = launch_ns,
                                        .launch_ns = launch_ns,
                                        .behind = engine->pending_count > 0,
                                        .stamped = stamped};
    engine->pending_count++;
    count_step(engine, step, entry, packet_bytes);
    pending->launched_ns =
        rp_step_trace_span(engine, RP_TRACE_LAUNCH, RP_IDLE_LAUNCH, packet_bytes,
                           (uint16_t)rp_engine_graph_index(engine, entry), device_step);
}

/* How often a step that is awaited is looked after. */
#define WATCH_NS 100000000u

/* Waits for a step as long as the device is at work; meanwhile last_progress_ns follows that work, so that
 * a long step is not taken for a device that hangs. One that stands still for longer than the watchdog
 * allows does hang: RP_STATUS_DEVICE. */
static int await_step(struct rp_engine *engine, uint64_t device_step) {
    uint64_t seen = engine->backend->progress(engine->device), moved = rp_clock_ns();
    uint64_t patience = (uint64_t)(engine->config.watchdog_seconds * 1e9);
    for (;;) {
        uint64_t deadline = rp_clock_ns() + WATCH_NS;
        int status =
            engine->backend->wait_step(engine->device, &engine->batch.view, device_step, deadline);
        uint64_t now = rp_clock_ns(), progress = engine->backend->progress(engine->device);
        if (status != RP_STATUS_NOT_FOUND || now < deadline)
            return status;
        if (progress != seen) {
            atomic_store_explicit(&engine->last_progress_ns, now, memory_order_relaxed);
            moved = now;
        } else if (patience && now - moved >= patience) {
            engine->hangs = true;
            return RP_STATUS_DEVICE;
        }
        seen = progress;
    }
}

/* The node times of a stamped step, which lie in the ring until its entry is used again. */
static void read_stamps(struct rp_engine *engine, const struct rp_pending_step *step,
                        uint64_t read_ns) {
    const struct rp_step_view *view = &engine->batch.view;
    const struct rp_profile_read read = {
        .device_step = step->device_step,
        .begin_ns = engine->batch.begin_ns,
        .end_ns = engine->batch.end_ns,
        .read_ns = read_ns,
        .graph = rp_engine_graph_index(engine, step->entry),
        .plan = &step->plan,
        .trace = engine->trace.ring,
        .to_host_ns = (int64_t)(rp_device_clock_map(&engine->trace.clock, engine->batch.begin_ns) -
                                engine->batch.begin_ns),
        .stamps = view->stamp_ring +
                  step->device_step % RP_STEP_RING_ENTRIES * view->config.stamp_capacity};
    rp_step_profile_read(engine->profile, &read);
}

/* Waits for the oldest step, and commits it. */
static void complete_step(struct rp_engine *engine) {
    struct rp_pending_step oldest = engine->pending[0];
    uint64_t began = rp_tick_ns();
    int status = await_step(engine, oldest.device_step);
    uint64_t now =
        rp_step_trace_span(engine, RP_TRACE_WAIT, RP_IDLE_RESULT, 0, 0, oldest.device_step);
    engine->waited_ns = now - RP_MIN(began, now);
    if (status != RP_OK || !rp_batch_decode(&engine->batch, oldest.device_step, &oldest.plan)) {
        char hangs[96];
        snprintf(hangs, sizeof hangs, "a step made no progress for %g s: the device hangs",
                 engine->config.watchdog_seconds);
        fail(engine, engine->hangs                   ? hangs
                     : status == RP_STATUS_NOT_FOUND ? "a step was lost"
                     : status != RP_OK               ? rp_status_text(status)
                                                     : "step numbers disagree");
        return;
    }
    rp_step_trace_read(engine, &oldest, now);
    if (oldest.stamped)
        read_stamps(engine, &oldest, now);
    engine->pending[0] = engine->pending[1];
    engine->pending_count--;
    rp_histogram_observe(&engine->metrics.step_seconds[!oldest.plan.decode_only],
                         (double)(now - oldest.launched_ns) * 1e-9);
    rp_engine_note_step(engine, &oldest);
    if (!engine->config.no_recording)
        rp_engine_account_step(engine, &oldest, now);
    rp_scheduler_commit(engine->scheduler, oldest.plan.id, engine->batch.results, now);
    atomic_store_explicit(&engine->last_progress_ns, now, memory_order_relaxed);
    rp_step_trace_span(engine, RP_TRACE_COMMIT, RP_IDLE_RESULT, oldest.plan.sample_count, 0,
                       oldest.device_step);
}

static void check_invariants(struct rp_engine *engine) {
    if (RP_DEBUG) {
        const char *broken = rp_scheduler_check(engine->scheduler);
        if (broken)
            rp_log(RP_LOG_ERROR, "scheduler: broken invariant: %s", broken);
        RP_ASSERT(!broken);
    }
}

void rp_engine_update_gauges(struct rp_engine *engine) {
    struct rp_engine_metrics *metrics = &engine->metrics;
    struct rp_sched_stats stats;
    rp_scheduler_stats(engine->scheduler, &stats);
    rp_gauge_set(&metrics->running, stats.running);
    rp_gauge_set(&metrics->waiting, stats.waiting);
    rp_gauge_set(&metrics->swapped, stats.swapped);
    rp_gauge_set(&metrics->pages_total, stats.pages_total);
    rp_gauge_set(&metrics->pages_free, stats.pages_free);
    rp_gauge_set(&metrics->pages_cached, stats.pages_cached);
    rp_gauge_set(&metrics->pages_held, (int64_t)stats.pages_held + stats.pages_pending);
    rp_page_watch_update(&engine->page_watch, &stats);
    rp_page_watch_waste(&engine->page_watch, engine->scheduler, stats.running,
                        engine->trace.mark_ns);
    for (int i = 0; i < RP_PREEMPTED_COUNT; i++) {
        uint64_t more = stats.preempted[i] - engine->seen_preempted[i];
        if (!more)
            continue;
        engine->seen_preempted[i] += more;
        rp_counter_add(&metrics->preempted[i], more);
        rp_counter_add(&metrics->preemptions, more);
    }
    rp_counter_add(&metrics->prefix_query_tokens,
                   stats.prefix_query_tokens - engine->seen_query_tokens);
    rp_counter_add(&metrics->prefix_hit_tokens, stats.prefix_hit_tokens - engine->seen_hit_tokens);
    engine->seen_query_tokens = stats.prefix_query_tokens;
    engine->seen_hit_tokens = stats.prefix_hit_tokens;
}

void rp_engine_count_allocations(struct rp_engine *engine) {
    struct rp_device_memory memory;
    engine->backend->memory(engine->device, &memory);
    engine->memory_seen_ns = rp_clock_ns();
    uint64_t counted = rp_counter_read(&engine->metrics.allocations);
    rp_counter_add(&engine->metrics.allocations, memory.allocation_count - counted);
}

/* One turn: plans and launches if it may, waits for a step if it must. False: nothing to do. */
static bool turn(struct rp_engine *engine) {
    uint32_t limit = engine->config.run_ahead ? 2 : 1;
    uint64_t began = rp_tick_ns();
    bool planned = false;
    bool held = rp_device_profile_turn(engine);
    if (engine->pending_count < limit && !engine->failed && !held) {
        struct rp_sched_step step;
        uint32_t room = rp_ring_free_count(&engine->events);
        planned = rp_scheduler_plan(engine->scheduler, began, room, &step);
        /* A sequence may need two events of each step in flight. */
        if (room < 4 * (uint64_t)rp_gauge_read(&engine->metrics.running))
            engine->account.squeezed_ns = began;
        check_invariants(engine);
        if (planned) {
            uint64_t now = rp_step_trace_span(engine, RP_TRACE_PLAN, RP_IDLE_PLAN, step.row_count,
                                              0, engine->device_step + 1);
            launch_step(engine, &step, began, now);
        }
    }
    bool emitted = emit_events(engine);
    bool waited = engine->pending_count == limit || (!planned && engine->pending_count > 0);
    if (waited) {
        complete_step(engine);
        check_invariants(engine);
        emit_events(engine);
    }
    rp_engine_update_gauges(engine);
    rp_step_trace_counters(engine);
    if (waited && !engine->failed)
        rp_engine_note_turn(engine, rp_tick_ns() - began);
    return planned || waited || emitted;
}

void rp_engine_flush(struct rp_engine *engine) {
    pump_events(engine);
    accept_requests(engine); /* refused and closed, one by one */
}

/* Every request that is open gets its CLOSED event; those that the ring has no room for follow when the
 * loop thread has drained it (rp_engine_next_event). */
static void close_everything(struct rp_engine *engine) {
    if (!engine->failed && engine->backend->synchronize(engine->device) != RP_OK)
        fail(engine, "while shutting down");
    engine->pending_count = 0;
    if (!engine->failed)
        rp_scheduler_fail_all(engine->scheduler, RP_FINISH_ERROR, rp_tick_ns());
    rp_engine_flush(engine);
}

/* Sleeps until the loop thread posts: for a request, a cancel, or, when something could not be planned or an
 * event could not be handed on for want of room in the event ring, for having drained it. The time-out covers a
 * drain that came just before the flag. */
static void sleep_until_posted(struct rp_engine *engine) {
    enum rp_idle_cause cause = rp_step_trace_why_idle(engine);
    if (!rp_scheduler_is_idle(engine->scheduler) || rp_ring_free_count(&engine->events) == 0)
        atomic_store(&engine->wants_room, true);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    if (sem_timedwait(&engine->wake_up, &until) == 0)
        while (sem_trywait(&engine->wake_up) == 0) {
        } /* many posts, one look at the ring */
    rp_step_trace_span(engine, RP_TRACE_SLEEP, cause, 0, 0, 0);
}

void *rp_engine_main(void *arg) {
    struct rp_engine *engine = arg;
    rp_step_trace_begin(engine);
    while (!atomic_load(&engine->stopping)) {
        uint32_t accepted = accept_requests(engine);
        if (accepted)
            rp_step_trace_span(engine, RP_TRACE_ACCEPT, RP_IDLE_PLAN, accepted, 0, 0);
        if (turn(engine))
            continue;
        uint64_t now = rp_clock_ns();
        atomic_store_explicit(&engine->last_progress_ns, now, memory_order_relaxed);
        /* Asking the driver takes a while: only when there is nothing else to do. */
        if (!engine->failed && now - engine->memory_seen_ns > 1000000000u)
            rp_engine_count_allocations(engine);
        sleep_until_posted(engine);
    }
    close_everything(engine);
    return NULL;
}

int rp_engine_warm_up(struct rp_engine *engine, struct rp_error *err) {
    const struct rp_sched_step empty = {0};
    char what[64];
    for (uint32_t i = 0; i < rp_graph_set_count(engine->graphs); i++) {
        struct rp_graph_entry *entry = rp_graph_set_entry(engine->graphs, i);
        if (!entry->forward)
            continue;
        uint64_t step = ++engine->device_step;
        rp_batch_encode(&engine->batch, &empty, step, 0);
        int status = rp_graph_set_launch(engine->graphs, entry, 0);
        if (status == RP_OK)
            status = await_step(engine, step);
        if (status != RP_OK || !rp_batch_decode(&engine->batch, step, &empty)) {
            snprintf(what, sizeof what, "the first replay of the graph of %u tokens failed",
                     entry->bucket.tokens);
            return rp_engine_device_error(engine, what, err);
        }
        atomic_store(&entry->replays.value, 0);
        atomic_store(&entry->padded_tokens.value, 0);
    }
    /* Results are published before the last launch has returned. */
    if (engine->backend->synchronize(engine->device) != RP_OK)
        return rp_engine_device_error(engine, "the first replays failed", err);
    return RP_OK;
}
