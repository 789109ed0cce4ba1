#include "engine/observe/device_counting.h"

#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine_internal.h"
#include "metrics/tick.h"

#include <string.h>
#include <time.h>

#define BEFORE_NS   10000000000u
#define AFTER_NS    1000000000u
#define AFTER_STEPS 64u
#define LOOK_NS     20000000u

static void wait_for_steps(const struct rp_engine *engine) {
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    const struct rp_counter *steps = &rp_engine_metrics(engine)->steps;
    uint64_t until = rp_clock_ns() + AFTER_NS, enough = rp_counter_read(steps) + AFTER_STEPS;
    while (rp_clock_ns() < until && rp_counter_read(steps) < enough)
        (void)nanosleep(&pause, NULL);
}

/* Steps that were read since a time, or begun since then. The ring holds few seconds of short
 * steps: what is to be compared is copied when it is there. */
struct steps {
    struct rp_step_record *records;
    uint32_t count;
};

static void copy_steps(const struct rp_engine *engine, uint64_t since_ns, bool begun,
                       struct steps *out) {
    uint32_t kept = 0;
    out->records = rp_alloc(RP_STEP_RECORDS * sizeof *out->records);
    if (!out->records)
        return;
    uint32_t count = rp_engine_copy_steps(engine, since_ns, out->records, RP_STEP_RECORDS);
    for (uint32_t i = 0; i < count; i++)
        if (!begun || out->records[i].begin_ns >= since_ns)
            out->records[kept++] = out->records[i];
    out->count = kept;
}

static struct rp_profile_ratio compare(const struct steps *a, const struct steps *b) {
    if (a->count == 0 || b->count == 0)
        return (struct rp_profile_ratio){0};
    return rp_profile_compare(a->records, a->count, b->records, b->count);
}

int rp_engine_count_device(struct rp_engine *engine,
                           const struct rp_device_counter_options *options,
                           struct rp_device_counters *out, struct rp_profile_slowdown *slowdown,
                           struct rp_error *err) {
    struct steps before = {0}, during = {0}, after = {0};
    memset(slowdown, 0, sizeof *slowdown);
    if (!engine->backend->counting)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "the %s backend has no counters of a device", engine->backend->name);
    uint64_t begun = rp_tick_ns();
    copy_steps(engine, begun - RP_MIN(begun, (uint64_t)BEFORE_NS), false, &before);
    int status = engine->backend->counting->measure(engine->device, options, out, err);
    if (status == RP_OK) {
        uint64_t ended = rp_tick_ns();
        copy_steps(engine, begun, true, &during);
        if (during.count > 0)
            wait_for_steps(engine);
        copy_steps(engine, ended, true, &after);
        slowdown->before_steps = before.count;
        slowdown->during = compare(&during, &before);
        slowdown->after = compare(&after, &before);
    }
    rp_free(before.records);
    rp_free(during.records);
    rp_free(after.records);
    return status;
}
