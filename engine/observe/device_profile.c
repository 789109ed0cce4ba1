#include "engine/observe/device_profile.h"

#include "base/memory.h"
#include "engine/engine_internal.h"
#include "metrics/tick.h"

#include <string.h>

static struct rp_device_profile *own(const struct rp_engine *engine) {
    return &((struct rp_engine *)engine)->observer.device_profile;
}

static uint32_t state_of(const struct rp_engine *engine) {
    return atomic_load_explicit(&own(engine)->state, memory_order_acquire);
}

static void set_state(struct rp_engine *engine, enum rp_device_profile_state state) {
    atomic_store_explicit(&engine->observer.device_profile.state, state, memory_order_release);
}

bool rp_engine_has_profiler(const struct rp_engine *engine) {
    return engine->backend->profiler != NULL;
}

int rp_engine_profiler_open(struct rp_engine *engine, struct rp_error *err) {
    struct rp_device_profile *profile = &engine->observer.device_profile;
    if (!engine->backend->profiler)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "this device has no profiler");
    if (state_of(engine) != RP_DEVICE_PROFILE_NONE)
        return rp_error_set(err, RP_STATUS_IN_USE, "the device is being profiled");
    int status = engine->backend->profiler->open(engine->device, 0, &profile->profile, err);
    if (status != RP_OK)
        return status;
    memset(&profile->failed, 0, sizeof profile->failed);
    set_state(engine, RP_DEVICE_PROFILE_OPEN);
    rp_engine_notify(engine);
    return RP_OK;
}

enum rp_device_profile_state rp_engine_profiler_state(const struct rp_engine *engine,
                                                      struct rp_error *err) {
    uint32_t state = state_of(engine);
    if (err && state == RP_DEVICE_PROFILE_FAILED)
        *err = engine->observer.device_profile.failed;
    return (enum rp_device_profile_state)state;
}

void rp_engine_profiler_end(struct rp_engine *engine) {
    uint32_t open = RP_DEVICE_PROFILE_OPEN, running = RP_DEVICE_PROFILE_RUNNING;
    _Atomic uint32_t *state = &engine->observer.device_profile.state;
    if (!atomic_compare_exchange_strong(state, &open, RP_DEVICE_PROFILE_ENDED))
        atomic_compare_exchange_strong(state, &running, RP_DEVICE_PROFILE_ENDING);
    rp_engine_notify(engine);
}

void rp_engine_profiler_close(struct rp_engine *engine) {
    if (engine->observer.device_profile.profile)
        engine->backend->profiler->close(engine->observer.device_profile.profile);
    engine->observer.device_profile.profile = NULL;
    set_state(engine, RP_DEVICE_PROFILE_NONE);
}

/* --- engine thread ---------------------------------------------------------------------------- */

static void fail_profile(struct rp_engine *engine) { set_state(engine, RP_DEVICE_PROFILE_FAILED); }

static void begin(struct rp_engine *engine) {
    struct rp_device_profile *profile = &engine->observer.device_profile;
    uint32_t open = RP_DEVICE_PROFILE_OPEN;
    /* Taken first: a request to end it from here on is handled by end(). */
    if (!atomic_compare_exchange_strong(&profile->state, &open, RP_DEVICE_PROFILE_RUNNING))
        return;
    profile->first_step = engine->device_step + 1;
    if (engine->backend->synchronize(engine->device) != RP_OK ||
        engine->backend->profiler->begin(profile->profile, &profile->failed) != RP_OK)
        fail_profile(engine);
}

static void end(struct rp_engine *engine) {
    struct rp_device_profile *profile = &engine->observer.device_profile;
    if (engine->backend->synchronize(engine->device) != RP_OK ||
        engine->backend->profiler->end(profile->profile, &profile->failed) != RP_OK)
        fail_profile(engine);
    else
        set_state(engine, RP_DEVICE_PROFILE_ENDED);
}

bool rp_device_profile_turn(struct rp_engine *engine) {
    uint32_t state = state_of(engine);
    if (state != RP_DEVICE_PROFILE_OPEN && state != RP_DEVICE_PROFILE_ENDING &&
        state != RP_DEVICE_PROFILE_RUNNING)
        return false;
    if (state == RP_DEVICE_PROFILE_RUNNING &&
        !engine->backend->profiler->is_due(engine->observer.device_profile.profile, rp_tick_ns()))
        return false;
    if (engine->failed)
        return false;
    if (engine->pending_count > 0)
        return true;
    if (state == RP_DEVICE_PROFILE_OPEN)
        begin(engine);
    else
        end(engine);
    return false;
}

/* --- tables ----------------------------------------------------------------------------------- */

int rp_engine_profiler_read(struct rp_engine *engine, struct rp_profile_records *out,
                            struct rp_error *err) {
    return engine->backend->profiler->read(engine->observer.device_profile.profile, out, err);
}

/* Steps of the copy that were traced, each node from its first kernel's begin to its last one's
 * end. */
static bool lay_over(const struct rp_engine *engine, const struct rp_profile_records *records,
                     struct rp_profile_copy *copy) {
    const struct rp_profile_nodes *nodes = &engine->observer.profile->nodes;
    uint64_t first_step = engine->observer.device_profile.first_step;
    struct rp_node_stamp *stamps =
        rp_alloc(((size_t)copy->count * nodes->nodes_max + 1) * sizeof *stamps);
    if (!stamps)
        return false;
    for (size_t i = 0; i < (size_t)copy->count * nodes->nodes_max; i++)
        stamps[i] = RP_NODE_STAMP_NONE;
    for (uint32_t i = 0, at = 0; i < records->count && copy->count; i++) {
        const struct rp_kernel_record *record = &records->records[i];
        if (record->replay == UINT32_MAX)
            continue;
        /* Two replays a step: forward, then sample. Records come in order, but for neighbors that
         * overlap. */
        uint64_t step = first_step + record->replay / 2;
        while (at + 1 < copy->count && copy->steps[at].step < step)
            at++;
        while (at > 0 && copy->steps[at].step > step)
            at--;
        const struct rp_profile_bucket *bucket = &nodes->buckets[copy->steps[at].graph];
        uint32_t node = record->launch + (record->replay % 2 ? bucket->forward_count : 0);
        if (copy->steps[at].step != step || node >= bucket->count)
            continue;
        struct rp_node_stamp *stamp = &stamps[(size_t)at * nodes->nodes_max + node];
        stamp->begin_ns = RP_MIN(stamp->begin_ns, record->begin_ns);
        stamp->end_ns = RP_MAX(stamp->end_ns, record->end_ns);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < copy->count; i++)
        if (rp_profile_step_replace(&copy->steps[i], stamps + (size_t)i * nodes->nodes_max))
            copy->steps[kept++] = copy->steps[i];
    copy->count = kept;
    rp_free(stamps);
    return true;
}

int rp_engine_profile_kernels(const struct rp_engine *engine, const struct rp_profile_query *query,
                              const struct rp_profile_records *records,
                              struct rp_profile_table *out) {
    struct rp_profile_copy copy;
    rp_profile_table_init(out);
    if (!rp_step_profile_copy(engine->observer.profile, query->since_ns, &copy))
        return RP_STATUS_NO_MEMORY;
    int status = lay_over(engine, records, &copy) ? RP_OK : RP_STATUS_NO_MEMORY;
    if (status == RP_OK)
        status = rp_profile_table_of(engine, query, &copy, out);
    rp_profile_copy_deinit(&copy);
    return status;
}
