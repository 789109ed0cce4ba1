#include "engine/observe/engine_diagnose.h"

#include "base/memory.h"
#include "engine/engine_internal.h"
#include "engine/observe/profile_report.h"
#include "metrics/tick.h"

#include <string.h>

/* Steps, and the idle time before each and after the last one while there is nothing to do. */
static void add_records(struct rp_step_record *records, uint32_t count, uint64_t since_ns,
                        uint64_t now_ns, struct rp_diagnose_input *out) {
    uint64_t idle[RP_IDLE_CAUSE_COUNT] = {0}, busy = 0, tokens = 0, host = 0, last = since_ns;
    for (uint32_t i = 0; i < count; i++) {
        struct rp_step_record *record = &records[i];
        rp_step_record_clip(record, since_ns);
        out->preempted += record->preempted;
        for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
            idle[cause] += record->idle_ns[cause];
        busy += record->end_ns - RP_MIN(record->begin_ns, record->end_ns);
        tokens += record->tokens;
        host += record->launched_ns - RP_MIN(record->plan_ns, record->launched_ns);
        last = record->end_ns;
    }
    if (now_ns > last && out->running + out->waiting == 0)
        idle[RP_IDLE_NO_WORK] += now_ns - last;
    uint64_t window = busy;
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        window += idle[cause];
    out->seconds = (double)window * 1e-9;
    out->steps = count;
    if (window == 0)
        return;
    out->busy_share = (double)busy / (double)window;
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        out->idle_share[cause] = (double)idle[cause] / (double)window;
    if (count) {
        out->step_seconds = (double)busy * 1e-9 / count;
        out->host_seconds = (double)host * 1e-9 / count;
        out->tokens_per_step = (double)tokens / count;
    }
}

/* Launches: how their time divides by what bounds them. */
static void add_launches(const struct rp_profile_table *table, struct rp_diagnose_input *out) {
    const struct rp_profile_footer *footer = &table->footer;
    double shares[RP_BOUND_CACHE + 1] = {0}, bytes = 0, flops = 0,
                                   seconds = (double)footer->replay_ns * 1e-9;
    out->stamped_steps = footer->steps_stamped;
    for (uint32_t i = 0; i < table->count; i++) {
        shares[table->lines[i].bound] += table->lines[i].self_share;
        bytes += table->lines[i].bytes;
        flops += table->lines[i].flops;
    }
    if (footer->peak_bytes <= 0 || footer->peak_flops <= 0 || seconds <= 0)
        return;
    out->memory_share = shares[RP_BOUND_MEMORY] + shares[RP_BOUND_CACHE];
    out->compute_share = shares[RP_BOUND_COMPUTE];
    out->latency_share = shares[RP_BOUND_LATENCY] + shares[RP_BOUND_UNKNOWN];
    out->bandwidth_used = bytes / seconds / footer->peak_bytes;
    out->flops_used = flops / seconds / footer->peak_flops;
}

int rp_engine_diagnose_input(const struct rp_engine *engine, double seconds,
                             struct rp_diagnose_input *out) {
    const struct rp_engine_metrics *metrics = &engine->metrics;
    uint64_t now = rp_tick_ns(), back = (uint64_t)(seconds * 1e9);
    struct rp_profile_query query = {.group = RP_PROFILE_BY_OP,
                                     .since_ns = now - RP_MIN(now, back)};
    struct rp_step_record *records = rp_calloc(RP_STEP_RECORDS, sizeof *records);
    struct rp_profile_table table;
    memset(out, 0, sizeof *out);
    if (!records)
        return RP_STATUS_NO_MEMORY;
    out->running = (uint32_t)rp_gauge_read(&metrics->running);
    out->waiting = (uint32_t)rp_gauge_read(&metrics->waiting);
    out->swapped = (uint32_t)rp_gauge_read(&metrics->swapped);
    out->slots = engine->layout.step.slot_count;
    double pages = (double)rp_gauge_read(&metrics->pages_total);
    double free_pages =
        (double)(rp_gauge_read(&metrics->pages_free) + rp_gauge_read(&metrics->pages_cached));
    out->pages_free_share = pages > 0 ? free_pages / pages : 0.0;
    uint32_t count = rp_engine_copy_steps(engine, query.since_ns, records, RP_STEP_RECORDS);
    add_records(records, count, query.since_ns, now, out);
    rp_free(records);
    int status = rp_engine_profile_table(engine, &query, &table);
    if (status == RP_OK)
        add_launches(&table, out);
    rp_profile_table_deinit(&table);
    return status;
}
