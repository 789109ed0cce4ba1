#include "engine/observe/observer.h"

#include "base/clock.h"
#include "engine/engine_internal.h"
#include "metrics/tick.h"

int rp_observer_init(struct rp_engine *engine, const struct rp_program *program,
                     struct rp_error *err) {
    struct rp_observer *observer = &engine->observer;
    uint32_t graphs = rp_graph_set_count(engine->graphs);
    observer->step_latency = rp_calloc(graphs, sizeof *observer->step_latency);
    if (!observer->step_latency || !rp_engine_times_init(engine))
        return rp_engine_no_memory(err, "step times", RP_STEP_TIMES);
    if (rp_step_profile_create(engine->backend, program, engine->graphs, engine->config.kv_dtype,
                               engine->layout.step.row_capacity, engine->config.profile_every,
                               &observer->profile) != RP_OK)
        return rp_engine_no_memory(err, "profiles", 0);
    return rp_engine_account_init(engine, program, err);
}

void rp_observer_deinit(struct rp_observer *observer) {
    rp_trace_ring_deinit(&observer->page_watch.history);
    rp_page_life_deinit(&observer->page_watch.life);
    rp_free(observer->times);
    rp_step_profile_destroy(observer->profile);
    rp_step_records_deinit(&observer->records);
    rp_free(observer->step_latency);
    rp_account_deinit(&observer->account);
}

void rp_observe_start(struct rp_engine *engine) { rp_step_trace_begin(engine); }

/* --- Turns ------------------------------------------------------------------------------------ */

uint64_t rp_observe_turn_begin(struct rp_engine *engine) {
    engine->observer.waited_ns = 0;
    return rp_tick_ns();
}

void rp_observe_turn_end(struct rp_engine *engine, uint64_t began_ns, bool has_read) {
    rp_engine_update_gauges(engine);
    rp_step_trace_counters(engine);
    if (has_read && !engine->failed)
        rp_engine_note_turn(engine, rp_tick_ns() - began_ns);
}

/* --- Requests --------------------------------------------------------------------------------- */

void rp_observe_accepted(struct rp_engine *engine, const struct rp_request *request) {
    rp_step_profile_open(engine->observer.profile, request);
}

void rp_observe_accepted_all(struct rp_engine *engine, uint32_t count) {
    rp_step_trace_span(engine, RP_TRACE_ACCEPT, RP_IDLE_PLAN, count, 0, 0);
}

void rp_observe_emitted(struct rp_engine *engine, uint32_t count) {
    rp_step_trace_span(engine, RP_TRACE_EMIT, RP_IDLE_EMIT, count, 0, 0);
}

void rp_observe_event(struct rp_engine *engine, const struct rp_event *event) {
    rp_step_trace_event(engine, event);
    if (event->kind == RP_EVENT_TOKEN)
        rp_counter_add(&engine->metrics.generation_tokens, 1);
    else if (event->finish_reason == RP_FINISH_MASK_DEADLINE)
        rp_counter_add(&engine->metrics.mask_deadlines, 1);
}

void rp_observe_closed(struct rp_engine *engine, struct rp_request *request) {
    rp_step_profile_close(engine->observer.profile, request);
    rp_account_close(&engine->observer.account, request);
}

/* --- Steps ------------------------------------------------------------------------------------ */

uint64_t rp_observe_planned(struct rp_engine *engine, const struct rp_sched_step *step,
                            uint32_t event_room, uint64_t began_ns) {
    /* A sequence may need two events in each step in flight. */
    if (event_room < 4 * (uint64_t)rp_gauge_read(&engine->metrics.running))
        engine->observer.account.squeezed_ns = began_ns;
    return step ? rp_step_trace_span(engine, RP_TRACE_PLAN, RP_IDLE_PLAN, step->row_count, 0,
                                     engine->device_step + 1)
                : began_ns;
}

void rp_observe_miss(struct rp_engine *engine) {
    rp_counter_add(&engine->metrics.misses[rp_graph_set_miss(engine->graphs)], 1);
}

uint32_t rp_observe_launching(struct rp_engine *engine, const struct rp_sched_step *step,
                              const struct rp_graph_entry *entry, uint64_t plan_ns) {
    rp_observe_miss(engine);
    rp_step_trace_launch(engine, step, engine->device_step, plan_ns);
    bool stamped = rp_step_profile_launch(
        engine->observer.profile, step, rp_engine_graph_index(engine, entry), engine->device_step);
    return stamped ? RP_PACKET_STAMP : 0;
}

static void count_swap(struct rp_engine *engine, const struct rp_sched_step *step) {
    if (!step->swap_count)
        return;
    struct rp_swap_bytes bytes = rp_step_swap_bytes(engine, step);
    rp_counter_add(&engine->metrics.swap_out_bytes, bytes.out);
    rp_counter_add(&engine->metrics.swap_in_bytes, bytes.in);
    rp_histogram_observe(&engine->metrics.step_swap_bytes, (double)(bytes.out + bytes.in));
}

static void count_step(struct rp_engine *engine, const struct rp_sched_step *step,
                       const struct rp_graph_entry *entry, uint32_t packet_bytes) {
    struct rp_engine_metrics *metrics = &engine->metrics;
    rp_counter_add(&metrics->steps, 1);
    rp_counter_add(step->decode_only ? &metrics->decode_steps : &metrics->mixed_steps, 1);
    rp_counter_add(&metrics->padded_tokens, entry->bucket.tokens - step->token_count);
    rp_counter_add(&metrics->packet_bytes, packet_bytes);
    rp_histogram_observe(&metrics->step_tokens, step->token_count);
    count_swap(engine, step);
    for (uint32_t i = 0; i < step->row_count; i++)
        if (!step->rows[i].decode)
            rp_counter_add(&metrics->prompt_tokens, step->rows[i].count);
    for (uint32_t i = 0; i < step->join_count; i++)
        rp_counter_add(&metrics->cached_tokens, step->joins[i].length);
}

void rp_observe_launched(struct rp_engine *engine, struct rp_pending_step *step,
                         uint32_t packet_bytes) {
    count_step(engine, &step->plan, step->entry, packet_bytes);
    step->launched_ns =
        rp_step_trace_span(engine, RP_TRACE_LAUNCH, RP_IDLE_LAUNCH, packet_bytes,
                           (uint16_t)rp_engine_graph_index(engine, step->entry), step->device_step);
}

uint64_t rp_observe_waited(struct rp_engine *engine, uint64_t began_ns, uint64_t device_step) {
    uint64_t now = rp_step_trace_span(engine, RP_TRACE_WAIT, RP_IDLE_RESULT, 0, 0, device_step);
    engine->observer.waited_ns += now - RP_MIN(began_ns, now);
    return now;
}

/* The nodes of the other ranks of a group, each with its own stamps; that they wait for each other
 * shows as the launch that exchanges data. */
static void trace_ranks(struct rp_engine *engine, const struct rp_profile_read *read) {
    uint32_t count = engine->observer.profile->nodes.buckets[read->graph].count;
    for (uint32_t rank = 1; rank < engine->device_info.ranks; rank++) {
        const struct rp_node_stamp *stamps =
            engine->backend->rank_address(engine->device, rank, read->stamps);
        for (uint32_t i = 0; i < count; i++) {
            struct rp_node_stamp stamp = rp_node_stamp_at(stamps, count, i);
            if (stamp.end_ns > stamp.begin_ns)
                rp_trace_put(read->trace, RP_TRACE_RANK_NODE,
                             stamp.begin_ns + (uint64_t)read->to_host_ns,
                             rp_trace_rank_node(rank, i), (uint16_t)read->graph, read->device_step,
                             stamp.end_ns - stamp.begin_ns);
        }
    }
}

/* The node times of a stamped step, which stay in the ring until its entry is used again. */
static void read_stamps(struct rp_engine *engine, const struct rp_pending_step *step,
                        uint64_t read_ns) {
    const struct rp_step_view *view = &engine->batch.view;
    struct rp_step_trace *trace = &engine->observer.trace;
    uint64_t begin_ns = engine->batch.begin_ns;
    const struct rp_profile_read read = {
        .device_step = step->device_step,
        .begin_ns = begin_ns,
        .end_ns = engine->batch.end_ns,
        .read_ns = read_ns,
        .graph = rp_engine_graph_index(engine, step->entry),
        .plan = &step->plan,
        .trace = trace->ring,
        .to_host_ns = (int64_t)(rp_device_clock_map(&trace->clock, begin_ns) - begin_ns),
        .stamps = view->stamp_ring +
                  step->device_step % RP_STEP_RING_ENTRIES * view->config.stamp_capacity};
    rp_step_profile_read(engine->observer.profile, &read);
    trace_ranks(engine, &read);
}

void rp_observe_read(struct rp_engine *engine, const struct rp_pending_step *step,
                     uint64_t read_ns) {
    rp_step_trace_read(engine, step, read_ns);
    if (step->stamped)
        read_stamps(engine, step, read_ns);
    rp_histogram_observe(&engine->metrics.step_seconds[!step->plan.decode_only],
                         (double)(read_ns - step->launched_ns) * 1e-9);
    rp_engine_note_step(engine, step);
    if (!engine->config.no_recording)
        rp_engine_account_step(engine, step, read_ns);
}

void rp_observe_committed(struct rp_engine *engine, const struct rp_pending_step *step) {
    rp_step_trace_span(engine, RP_TRACE_COMMIT, RP_IDLE_RESULT, step->plan.sample_count, 0,
                       step->device_step);
}

/* --- Idle ------------------------------------------------------------------------------------- */

void rp_observe_slept(struct rp_engine *engine, enum rp_idle_cause cause) {
    rp_step_trace_span(engine, RP_TRACE_SLEEP, cause, 0, 0, 0);
}

void rp_observe_idle(struct rp_engine *engine, uint64_t now_ns) {
    /* A call into the driver is slow: only when there is nothing else to do. */
    if (!engine->failed && now_ns - engine->observer.memory_seen_ns > 1000000000u)
        rp_engine_count_allocations(engine);
}

void rp_engine_count_allocations(struct rp_engine *engine) {
    struct rp_device_memory memory;
    engine->backend->memory(engine->device, &memory);
    engine->observer.memory_seen_ns = rp_clock_ns();
    uint64_t counted = rp_counter_read(&engine->metrics.allocations);
    rp_counter_add(&engine->metrics.allocations, memory.allocation_count - counted);
}

/* Only models with recurrent state have these. */
static void update_snapshots(struct rp_engine_metrics *metrics,
                             const struct rp_sched_stats *stats) {
    rp_gauge_set(&metrics->snapshots_kept, stats->snapshots_kept);
    rp_counter_add(&metrics->snapshots_saved,
                   stats->snapshots_saved - rp_counter_read(&metrics->snapshots_saved));
    rp_counter_add(&metrics->snapshot_hits,
                   stats->snapshot_hits - rp_counter_read(&metrics->snapshot_hits));
    rp_counter_add(&metrics->snapshot_evictions,
                   stats->snapshot_evictions - rp_counter_read(&metrics->snapshot_evictions));
}

void rp_engine_update_gauges(struct rp_engine *engine) {
    struct rp_engine_metrics *metrics = &engine->metrics;
    struct rp_observer *observer = &engine->observer;
    struct rp_sched_stats stats;
    rp_scheduler_stats(engine->scheduler, &stats);
    rp_gauge_set(&metrics->running, stats.running);
    rp_gauge_set(&metrics->waiting, stats.waiting);
    rp_gauge_set(&metrics->swapped, stats.swapped);
    rp_gauge_set(&metrics->pages_total, stats.pages_total);
    rp_gauge_set(&metrics->pages_free, stats.pages_free);
    rp_gauge_set(&metrics->pages_cached, stats.pages_cached);
    rp_gauge_set(&metrics->pages_held, (int64_t)stats.pages_held + stats.pages_pending);
    rp_page_watch_update(&observer->page_watch, &stats);
    rp_page_watch_waste(&observer->page_watch, engine->scheduler, stats.running,
                        observer->trace.mark_ns);
    for (int i = 0; i < RP_PREEMPTED_COUNT; i++) {
        uint64_t more = stats.preempted[i] - observer->seen_preempted[i];
        if (!more)
            continue;
        observer->seen_preempted[i] += more;
        rp_counter_add(&metrics->preempted[i], more);
        rp_counter_add(&metrics->preemptions, more);
    }
    rp_counter_add(&metrics->prefix_query_tokens,
                   stats.prefix_query_tokens - observer->seen_query_tokens);
    rp_counter_add(&metrics->prefix_hit_tokens,
                   stats.prefix_hit_tokens - observer->seen_hit_tokens);
    if (rp_gauge_read(&metrics->snapshots_capacity))
        update_snapshots(metrics, &stats);
    observer->seen_query_tokens = stats.prefix_query_tokens;
    observer->seen_hit_tokens = stats.prefix_hit_tokens;
}
