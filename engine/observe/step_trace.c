#include "engine/observe/step_trace.h"

#include "engine/engine_internal.h"
#include "metrics/recorder.h"
#include "metrics/tick.h"

#include <string.h>

#define LOAD_NS  1000000u
#define STILL_NS 100000000u
/* A period of idle time is recorded at its end, or after this time. */
#define IDLE_PIECE_NS 50000000u

void rp_step_trace_begin(struct rp_engine *engine) {
    struct rp_step_trace *trace = &engine->observer.trace;
    memset(trace, 0, sizeof *trace);
    trace->ring = engine->config.ring ? engine->config.ring : &rp_trace_nowhere;
    trace->clock.same = !engine->device_info.separate_memory;
    trace->mark_ns = trace->idle_from_ns = rp_tick_ns();
}

/* --- Idle time -------------------------------------------------------------------------------- */

static void tell_idle(struct rp_engine *engine) {
    struct rp_step_trace *trace = &engine->observer.trace;
    struct rp_idle_piece *idle = &trace->idle;
    if (idle->end_ns > idle->begin_ns)
        rp_trace_put(trace->ring, RP_TRACE_IDLE, idle->begin_ns, 0, (uint16_t)idle->cause,
                     trace->read_step + 1, idle->end_ns - idle->begin_ns);
    idle->begin_ns = idle->end_ns;
}

/* The device was idle from idle_from_ns to end_ns. */
static void settle(struct rp_engine *engine, uint64_t end_ns, uint64_t launched_ns) {
    struct rp_step_trace *trace = &engine->observer.trace;
    struct rp_idle_piece pieces[RP_IDLE_PIECES_MAX];
    uint32_t count =
        rp_idle_timeline_split(&trace->timeline, trace->idle_from_ns, end_ns, launched_ns, pieces);
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_idle_piece *piece = &pieces[i];
        uint64_t ns = piece->end_ns - piece->begin_ns;
        trace->gap_ns[piece->cause] += ns;
        rp_counter_add(&engine->metrics.idle_ns[piece->cause], ns);
        if (piece->cause != trace->idle.cause || piece->begin_ns != trace->idle.end_ns) {
            tell_idle(engine);
            trace->idle = *piece;
        }
        trace->idle.end_ns = piece->end_ns;
        if (trace->idle.end_ns - trace->idle.begin_ns >= IDLE_PIECE_NS)
            tell_idle(engine);
    }
    trace->idle_from_ns = RP_MAX(trace->idle_from_ns, end_ns);
}

enum rp_idle_cause rp_step_trace_why_idle(const struct rp_engine *engine) {
    /* A row needs room for its token and for its end. */
    if (rp_ring_free_count((struct rp_ring *)&engine->events) < 2)
        return RP_IDLE_CLIENT;
    return engine->held || !rp_scheduler_is_idle(engine->scheduler) ? RP_IDLE_ADMISSION
                                                                    : RP_IDLE_NO_WORK;
}

/* --- Spans and steps -------------------------------------------------------------------------- */

uint64_t rp_step_trace_span(struct rp_engine *engine, enum rp_trace_kind kind,
                            enum rp_idle_cause cause, uint32_t a, uint16_t b, uint64_t id) {
    struct rp_step_trace *trace = &engine->observer.trace;
    uint64_t now = RP_MAX(rp_tick_ns(), trace->mark_ns);
    if (RP_UNLIKELY(engine->config.no_recording))
        return now;
    rp_idle_timeline_add(&trace->timeline, trace->mark_ns, now, cause);
    rp_trace_put(trace->ring, kind, trace->mark_ns, a, b, id, now - trace->mark_ns);
    trace->mark_ns = now;
    if (engine->pending_count == 0 && !engine->failed)
        settle(engine, now, UINT64_MAX);
    return now;
}

struct rp_swap_bytes rp_step_swap_bytes(const struct rp_engine *engine,
                                        const struct rp_sched_step *step) {
    struct rp_swap_bytes bytes = {0, 0};
    for (uint32_t i = 0; i < step->swap_count; i++)
        *(step->swaps[i].out ? &bytes.out : &bytes.in) +=
            step->swaps[i].page_count * engine->layout.kv.page_stride;
    return bytes;
}

/* Records each step that swaps, and zeros with the first step after it. */
static void tell_swap(struct rp_engine *engine, const struct rp_sched_step *step,
                      uint64_t plan_ns) {
    struct rp_step_trace *trace = &engine->observer.trace;
    struct rp_swap_bytes bytes = rp_step_swap_bytes(engine, step);
    if (step->swap_count || trace->swapped)
        rp_trace_put(trace->ring, RP_TRACE_SWAP, plan_ns, 0, 0, bytes.out, bytes.in);
    trace->swapped = step->swap_count > 0;
}

void rp_step_trace_launch(struct rp_engine *engine, const struct rp_sched_step *step,
                          uint64_t device_step, uint64_t plan_ns) {
    struct rp_trace_ring *ring = engine->observer.trace.ring;
    if (!ring->slots)
        return;
    tell_swap(engine, step, plan_ns);
    for (uint32_t i = 0; i < step->swap_count; i++)
        rp_trace_put(ring, step->swaps[i].out ? RP_TRACE_SWAP_OUT : RP_TRACE_SWAP_IN, plan_ns,
                     step->swaps[i].page_count, 0, step->swaps[i].request_id, device_step);
    for (uint32_t i = 0; i < step->join_count; i++)
        rp_trace_put(ring, RP_TRACE_ADMITTED, plan_ns, step->joins[i].length,
                     (uint16_t)step->joins[i].slot, step->joins[i].request->id, device_step);
    for (uint32_t i = 0; i < step->row_count; i++)
        if (!step->rows[i].decode)
            rp_trace_put(ring, RP_TRACE_ROW, plan_ns, step->rows[i].count, step->rows[i].samples,
                         step->rows[i].request->id, device_step);
}

/* Begin and end on the device in the host's clock; in order with the step before and with its
 * launch. */
static void map_times(struct rp_engine *engine, const struct rp_pending_step *step,
                      struct rp_step_record *record) {
    struct rp_step_trace *trace = &engine->observer.trace;
    uint64_t begin = engine->batch.begin_ns, end = engine->batch.end_ns, read = record->read_ns;
    rp_device_clock_note(&trace->clock, end, read);
    record->end_ns = RP_MIN(rp_device_clock_map(&trace->clock, end), read);
    begin = RP_MAX(rp_device_clock_map(&trace->clock, begin), step->launch_ns);
    begin = RP_MAX(begin, trace->idle_from_ns);
    record->end_ns = RP_MAX(record->end_ns, trace->idle_from_ns);
    record->begin_ns = RP_MIN(begin, record->end_ns);
}

static void tell_step(struct rp_engine *engine, const struct rp_step_record *record) {
    struct rp_trace_ring *ring = engine->observer.trace.ring;
    rp_trace_put(ring, RP_TRACE_REPLAY, record->begin_ns, record->tokens, (uint16_t)record->graph,
                 record->step, record->end_ns - record->begin_ns);
    rp_trace_put(ring, RP_TRACE_PADDING, record->begin_ns, record->padded_tokens,
                 (uint16_t)record->graph, record->step, record->rows);
    if (record->miss != RP_MISS_NONE)
        rp_trace_put(ring, RP_TRACE_MISS, record->begin_ns, record->tokens, record->miss,
                     record->step, 0);
}

/* The copies of a step between host and device: from the moment at which the device was free and
 * they were being queued, to the step's begin. The stream runs them in that time, in order. */
static void tell_copies(struct rp_engine *engine, const struct rp_step_record *record) {
    const struct rp_step_trace *trace = &engine->observer.trace;
    uint32_t pages = record->copied_in + record->copied_out;
    uint64_t begin = RP_MAX(record->launch_ns, trace->read_end_ns);
    if (!pages || !engine->device_info.separate_memory)
        return;
    rp_trace_put(trace->ring, RP_TRACE_COPY, begin, pages,
                 !record->copied_out  ? RP_COPIES_IN
                 : !record->copied_in ? RP_COPIES_OUT
                                      : RP_COPIES_BOTH,
                 record->step, record->begin_ns - RP_MIN(begin, record->begin_ns));
}

static uint32_t count_preempted(const struct rp_sched_step *plan) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->swap_count; i++)
        count += plan->swaps[i].out;
    return count;
}

void rp_step_trace_read(struct rp_engine *engine, const struct rp_pending_step *step,
                        uint64_t read_ns) {
    struct rp_step_trace *trace = &engine->observer.trace;
    const struct rp_sched_step *plan = &step->plan;
    struct rp_swap_bytes swapped = rp_step_swap_bytes(engine, plan);
    struct rp_step_record record = {.step = step->device_step,
                                    .graph = rp_engine_graph_index(engine, step->entry),
                                    .rows = plan->row_count,
                                    .tokens = plan->token_count,
                                    .samples = plan->sample_count,
                                    .padded_tokens = step->entry->bucket.tokens - plan->token_count,
                                    .decode_only = plan->decode_only,
                                    .behind = step->behind,
                                    .preempted = count_preempted(plan),
                                    .swap_out_bytes = swapped.out,
                                    .swap_in_bytes = swapped.in,
                                    .stamped = step->stamped,
                                    .miss = (uint8_t)step->miss,
                                    .plan_ns = step->plan_ns,
                                    .planned_ns = step->planned_ns,
                                    .launch_ns = step->launch_ns,
                                    .launched_ns = step->launched_ns,
                                    .read_ns = read_ns};
    if (RP_UNLIKELY(engine->config.no_recording))
        return;
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const struct rp_sched_row *row = &plan->rows[i];
        record.decode_rows += row->decode;
        record.prompt_tokens += row->decode ? 0 : row->count;
        record.kv_tokens += (uint64_t)row->start + row->count;
    }
    for (uint32_t i = 0; i < plan->copy_count; i++) {
        record.copied_in += plan->copies[i].kind == RP_COPY_TO_DEVICE;
        record.copied_out += plan->copies[i].kind == RP_COPY_TO_HOST;
    }
    map_times(engine, step, &record);
    tell_copies(engine, &record);
    if (record.begin_ns > trace->idle_from_ns)
        settle(engine, record.begin_ns, step->launched_ns);
    tell_idle(engine);
    memcpy(record.idle_ns, trace->gap_ns, sizeof record.idle_ns);
    memset(trace->gap_ns, 0, sizeof trace->gap_ns);
    trace->idle_from_ns = record.end_ns;
    trace->read_step = step->device_step;
    trace->read_begin_ns = record.begin_ns;
    trace->read_end_ns = record.end_ns;
    rp_counter_add(&engine->metrics.device_busy_ns, record.end_ns - record.begin_ns);
    rp_latency_record(&engine->observer.step_latency[record.graph], read_ns,
                      record.end_ns - record.begin_ns);
    tell_step(engine, &record);
    rp_step_records_put(&engine->observer.records, &record);
}

/* --- Requests and counters -------------------------------------------------------------------- */

void rp_step_trace_event(struct rp_engine *engine, const struct rp_event *event) {
    struct rp_trace_ring *ring = engine->observer.trace.ring;
    if (!ring || !ring->slots) /* NULL: never started, closed by the loop thread */
        return;
    if (event->kind == RP_EVENT_TOKEN)
        rp_trace_put(ring, RP_TRACE_TOKEN, event->time_ns, event->index, 0, event->request->id,
                     engine->observer.trace.read_step);
    else
        rp_trace_put(ring, RP_TRACE_CLOSED, event->time_ns, event->index, event->finish_reason,
                     event->request->id, 0);
}

static uint32_t per_second(uint64_t tokens, uint64_t ns) {
    return (uint32_t)RP_MIN((double)tokens * 1e9 / (double)ns + 0.5, 4e9);
}

void rp_step_trace_counters(struct rp_engine *engine) {
    struct rp_step_trace *trace = &engine->observer.trace;
    const struct rp_engine_metrics *metrics = &engine->metrics;
    uint64_t now = trace->mark_ns, since = now - trace->load_ns;
    if (!trace->ring->slots)
        return;
    if (since >= LOAD_NS) {
        uint64_t load[6] = {(uint64_t)rp_gauge_read(&metrics->running),
                            (uint64_t)rp_gauge_read(&metrics->waiting),
                            (uint64_t)rp_gauge_read(&metrics->swapped),
                            (uint64_t)rp_gauge_read(&metrics->pages_free),
                            (uint64_t)rp_gauge_read(&metrics->pages_held),
                            (uint64_t)rp_gauge_read(&metrics->pages_cached)};
        bool still = memcmp(load, trace->load, sizeof load) == 0 && since < STILL_NS;
        if (!still) {
            rp_trace_put(trace->ring, RP_TRACE_LOAD, now, (uint32_t)load[0], 0, load[1], load[2]);
            rp_trace_put(trace->ring, RP_TRACE_PAGES, now, (uint32_t)load[3], 0, load[4], load[5]);
            memcpy(trace->load, load, sizeof load);
            trace->load_ns = now;
        }
    }
    since = now - trace->rate_ns;
    if (since >= STILL_NS) {
        uint64_t prompt = rp_counter_read(&metrics->prompt_tokens);
        uint64_t generated = rp_counter_read(&metrics->generation_tokens);
        rp_trace_put(trace->ring, RP_TRACE_RATE, now,
                     per_second(prompt - trace->rate_prompt, since), 0,
                     per_second(generated - trace->rate_generated, since), 0);
        trace->rate_prompt = prompt;
        trace->rate_generated = generated;
        trace->rate_ns = now;
    }
}
