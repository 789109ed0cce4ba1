/* step_loop.c - the engine thread: accept, plan, launch, wait, commit, emit.
 *
 *   launch n+1 | device runs n | read n, commit n, emit its tokens | plan n+2 | ...
 *
 * With run-ahead one step is always queued on the device while another runs, so the device never
 * waits for the host. Nothing here allocates or takes a lock; it sleeps only when there is nothing
 * to do or when it waits for the device. */
#include "engine/engine_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/threads.h"
#include "metrics/tick.h"

#include <stdio.h>

/* failure_text is written before any other thread can see that the device has failed. */
static void fail(struct rp_engine *engine, const char *what) {
    const char *said = engine->backend->last_error(engine->device);
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

/* Waiting for a step has ended with `status`, RP_OK: with a result of another step. */
static void fail_wait(struct rp_engine *engine, int status) {
    char hangs[96];
    snprintf(hangs, sizeof hangs, "a step made no progress for %g s: the device hangs",
             engine->config.watchdog_seconds);
    fail(engine, engine->hangs                   ? hangs
                 : status == RP_STATUS_NOT_FOUND ? "a step was lost"
                 : status != RP_OK               ? rp_status_text(status)
                                                 : "step numbers disagree");
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

static void check_invariants(struct rp_engine *engine) {
    if (RP_DEBUG) {
        const char *broken = rp_scheduler_check(engine->scheduler);
        if (broken)
            rp_log(RP_LOG_ERROR, "scheduler: broken invariant: %s", broken);
        RP_ASSERT(!broken);
    }
}

/* --- Launch ----------------------------------------------------------------------------------- */

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

/* Page moves and forward, and sample unless rows of the step have holds. */
static int launch_graphs(struct rp_engine *engine, struct rp_graph_entry *entry,
                         const struct rp_sched_step *step) {
    int status = move_pages(engine, step);
    if (status == RP_OK)
        status = rp_graph_set_launch_forward(engine->graphs, entry, step->token_count);
    if (status == RP_OK && !step->holds)
        status = rp_graph_set_launch_sample(engine->graphs, entry);
    return status;
}

/* plan_ns, planned_ns: when planning began, and ended. */
static void launch_step(struct rp_engine *engine, const struct rp_sched_step *step,
                        uint64_t plan_ns, uint64_t planned_ns) {
    struct rp_graph_entry *entry = rp_graph_set_pick(
        engine->graphs, step->token_count, step->row_count, step->sample_count, step->decode_only);
    if (!entry) {
        rp_observe_miss(engine);
        fail(engine, "no captured graph holds the step");
        return;
    }
    inject_fault(engine);
    if (engine->config.plant_allocation)
        rp_free(rp_alloc(1));
    uint64_t device_step = ++engine->device_step;
    uint32_t flags = rp_observe_launching(engine, step, entry, plan_ns);
    uint32_t packet_bytes = rp_batch_encode(&engine->batch, step, device_step, flags);
    int status = launch_graphs(engine, entry, step);
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
                                        .planned_ns = planned_ns,
                                        .launch_ns = planned_ns,
                                        .behind = engine->pending_count > 0,
                                        .held = step->holds,
                                        .stamped = (flags & RP_PACKET_STAMP) != 0,
                                        .miss = rp_graph_set_miss(engine->graphs)};
    engine->pending_count++;
    atomic_fetch_sub_explicit(&engine->queued, step->join_count, memory_order_release);
    rp_observe_launched(engine, pending, packet_bytes);
}

/* The sample graph of a held step, once all steps before it were read. False: none is held. */
static bool launch_held_sample(struct rp_engine *engine) {
    struct rp_pending_step *oldest = &engine->pending[0];
    if (engine->pending_count == 0 || !oldest->held)
        return false;
    uint64_t began = rp_tick_ns();
    int status = rp_sample_hold_resolve(engine, oldest);
    rp_observe_waited(engine, began, oldest->device_step);
    if (status == RP_STATUS_SHUTTING_DOWN)
        return true;
    if (status == RP_OK)
        status = rp_graph_set_launch_sample(engine->graphs, oldest->entry);
    if (status != RP_OK)
        fail_wait(engine, status);
    oldest->held = false;
    return true;
}

/* --- Wait and commit -------------------------------------------------------------------------- */

/* Watchdog poll interval. */
#define WATCH_NS 100000000u

/* Waits for a step as long as the device makes progress. RP_STATUS_DEVICE: it failed or hangs. */
static int await_step(struct rp_engine *engine, uint64_t device_step) {
    struct rp_watchdog watchdog;
    rp_watchdog_start(&watchdog, engine);
    for (;;) {
        uint64_t deadline = rp_clock_ns() + WATCH_NS;
        int status =
            engine->backend->wait_step(engine->device, &engine->batch.view, device_step, deadline);
        uint64_t now = rp_clock_ns();
        if (status != RP_STATUS_NOT_FOUND || now < deadline)
            return status;
        if (!rp_watchdog_check(&watchdog, engine, now))
            return RP_STATUS_DEVICE;
    }
}

/* Waits for the oldest step, and commits it. */
static void complete_step(struct rp_engine *engine) {
    struct rp_pending_step oldest = engine->pending[0];
    uint64_t began = rp_tick_ns();
    int status = await_step(engine, oldest.device_step);
    uint64_t now = rp_observe_waited(engine, began, oldest.device_step);
    if (status != RP_OK || !rp_batch_decode(&engine->batch, oldest.device_step, &oldest.plan)) {
        fail_wait(engine, status);
        return;
    }
    engine->pending[0] = engine->pending[1];
    engine->pending_count--;
    rp_observe_read(engine, &oldest, now);
    rp_scheduler_commit(engine->scheduler, oldest.plan.id, engine->batch.results, now);
    atomic_store_explicit(&engine->last_progress_ns, now, memory_order_relaxed);
    check_invariants(engine);
    rp_observe_committed(engine, &oldest);
}

/* --- A turn ----------------------------------------------------------------------------------- */

/* Steps that may be on the device at once. */
static uint32_t pending_limit(const struct rp_engine *engine) {
    return engine->config.run_ahead ? RP_PENDING_MAX : 1;
}

/* No forward may be launched between the forward and the sample of a held step. */
static bool may_launch(struct rp_engine *engine) {
    bool profiling = rp_device_profile_turn(engine);
    uint32_t count = engine->pending_count;
    return count < pending_limit(engine) && !engine->failed && !profiling &&
           !(count && engine->pending[count - 1].held);
}

static bool plan_and_launch(struct rp_engine *engine, uint64_t began_ns) {
    struct rp_sched_step step;
    uint32_t room = rp_ring_free_count(&engine->events);
    bool planned = rp_scheduler_plan(engine->scheduler, began_ns, room, &step);
    check_invariants(engine);
    uint64_t now = rp_observe_planned(engine, planned ? &step : NULL, room, began_ns);
    if (planned)
        launch_step(engine, &step, began_ns, now);
    return planned;
}

static bool emit_events(struct rp_engine *engine) {
    uint32_t count = rp_engine_pump_events(engine);
    if (count)
        rp_observe_emitted(engine, count);
    return count > 0;
}

/* Whether there is a step to wait for, and nothing else can be launched first. */
static bool must_complete(const struct rp_engine *engine, bool planned) {
    uint32_t count = engine->pending_count;
    return count && !engine->pending[0].held && (count == pending_limit(engine) || !planned);
}

/* False: nothing to do. */
static bool turn(struct rp_engine *engine) {
    uint64_t began = rp_observe_turn_begin(engine);
    bool sampled = launch_held_sample(engine);
    bool planned = may_launch(engine) && plan_and_launch(engine, began);
    bool emitted = emit_events(engine);
    bool completes = must_complete(engine, planned);
    rp_invariant_watch_turn(engine, began);
    if (completes) {
        complete_step(engine);
        emit_events(engine);
    }
    rp_observe_turn_end(engine, began, completes);
    return sampled || planned || emitted || completes;
}

/* Every open request gets its CLOSED event; those that the event ring has no room for follow when
 * the loop thread has drained it (rp_engine_next_event). */
static void close_everything(struct rp_engine *engine) {
    if (!engine->failed && engine->backend->synchronize(engine->device) != RP_OK)
        fail(engine, "while shutting down");
    engine->pending_count = 0;
    if (!engine->failed)
        rp_scheduler_fail_all(engine->scheduler, RP_FINISH_ERROR, rp_tick_ns());
    rp_engine_flush(engine);
}

void *rp_engine_main(void *arg) {
    struct rp_engine *engine = arg;
    rp_thread_begin("rp-engine", RP_THREAD_STEP);
    rp_observe_start(engine);
    while (!atomic_load(&engine->stopping)) {
        uint32_t accepted = rp_engine_accept(engine);
        if (accepted)
            rp_observe_accepted_all(engine, accepted);
        if (turn(engine))
            continue;
        uint64_t now = rp_clock_ns();
        atomic_store_explicit(&engine->last_progress_ns, now, memory_order_relaxed);
        rp_observe_idle(engine, now);
        rp_engine_sleep(engine);
    }
    close_everything(engine);
    rp_thread_end();
    return NULL;
}

/* Waits for the first replay that was launched last. */
static int await_first_replay(struct rp_engine *engine, struct rp_error *err) {
    const struct rp_sched_step empty = {0};
    struct rp_graph_entry *entry = engine->first_replay;
    char what[64];
    engine->first_replay = NULL;
    if (!entry)
        return RP_OK;
    if (await_step(engine, engine->device_step) == RP_OK &&
        rp_batch_decode(&engine->batch, engine->device_step, &empty)) {
        atomic_store(&entry->replays.value, 0);
        atomic_store(&entry->padded_tokens.value, 0);
        return RP_OK;
    }
    snprintf(what, sizeof what, "the first replay of the graph of %u tokens failed",
             entry->bucket.tokens);
    return rp_engine_device_error(engine, what, err);
}

int rp_engine_replay_first(void *ctx, struct rp_graph_set *set, struct rp_graph_entry *entry,
                           struct rp_error *err) {
    struct rp_engine *engine = ctx;
    const struct rp_sched_step empty = {0};
    int status = await_first_replay(engine, err);
    if (status != RP_OK)
        return status;
    rp_batch_encode(&engine->batch, &empty, ++engine->device_step, 0);
    engine->first_replay = entry;
    return rp_graph_set_launch(set, entry, 0) == RP_OK
               ? RP_OK
               : rp_engine_device_error(engine, "the first replay of a graph failed", err);
}

int rp_engine_end_replays(struct rp_engine *engine, struct rp_error *err) {
    int status = await_first_replay(engine, err);
    /* Results are published before the last launch has returned. */
    if (status == RP_OK && engine->backend->synchronize(engine->device) != RP_OK)
        return rp_engine_device_error(engine, "the first replays failed", err);
    return status;
}
