#include "engine/sample_hold.h"

#include "base/clock.h"
#include "engine/engine_internal.h"

/* How long forward is waited for, and the thread sleeps, between two looks at the holds. */
#define FORWARD_POLL_NS 100000u
#define RELEASE_POLL_NS 1000000u

void rp_watchdog_start(struct rp_watchdog *watchdog, struct rp_engine *engine) {
    watchdog->progress = engine->backend->progress(engine->device);
    watchdog->moved_ns = rp_clock_ns();
}

bool rp_watchdog_check(struct rp_watchdog *watchdog, struct rp_engine *engine, uint64_t now_ns) {
    uint64_t patience_ns = (uint64_t)(engine->config.watchdog_seconds * 1e9);
    uint64_t progress = engine->backend->progress(engine->device);
    if (progress != watchdog->progress) {
        atomic_store_explicit(&engine->last_progress_ns, now_ns, memory_order_relaxed);
        watchdog->moved_ns = now_ns;
        watchdog->progress = progress;
    } else if (patience_ns && now_ns - watchdog->moved_ns >= patience_ns) {
        engine->hangs = true;
    }
    return !engine->hangs;
}

/* The row's request if sampling of the row waits for a hold. A request that ended since the step
 * was planned holds nothing: the device skips its row. */
static struct rp_request *holder(const struct rp_engine *engine, const struct rp_sched_row *row) {
    uint32_t pages;
    struct rp_request *request =
        row->samples ? rp_scheduler_request_of(engine->scheduler, row->slot, &pages) : NULL;
    return request && request->hold ? request : NULL;
}

static bool is_released(struct rp_request *request, const struct rp_sched_row *row) {
    return atomic_load_explicit(&request->hold->released, memory_order_acquire) > row->output;
}

/* Whether a row is worth waiting for: its owner may still release it. */
static bool must_wait(const struct rp_engine *engine, const struct rp_sched_step *step) {
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct rp_request *request = holder(engine, &step->rows[i]);
        if (request && !is_released(request, &step->rows[i]) &&
            !atomic_load_explicit(&request->cancelled, memory_order_relaxed))
            return true;
    }
    return false;
}

static uint64_t deadline_clock(const struct rp_engine *engine) {
    return engine->config.hold_clock ? engine->config.hold_clock(engine->config.hold_clock_ctx)
                                     : rp_clock_ns();
}

static int await_holds(struct rp_engine *engine, const struct rp_sched_step *step) {
    struct rp_watchdog watchdog;
    bool has_ended = false;
    uint64_t ended_ns = 0;
    rp_watchdog_start(&watchdog, engine);
    while (must_wait(engine, step)) {
        if (atomic_load(&engine->stopping))
            return RP_STATUS_SHUTTING_DOWN;
        if (has_ended) {
            if (deadline_clock(engine) - ended_ns >= engine->config.mask_deadline_ns)
                return RP_OK;
            rp_engine_wait_for_post(engine, RELEASE_POLL_NS);
            continue;
        }
        int status = engine->backend->wait_idle(engine->device, rp_clock_ns() + FORWARD_POLL_NS);
        if (status == RP_OK) {
            has_ended = true;
            ended_ns = deadline_clock(engine);
        } else if (status != RP_STATUS_NOT_FOUND) {
            return status;
        } else if (!rp_watchdog_check(&watchdog, engine, rp_clock_ns())) {
            return RP_STATUS_DEVICE;
        }
    }
    return RP_OK;
}

static uint32_t late_flags_of(struct rp_engine *engine, const struct rp_sched_row *row,
                              uint64_t device_step) {
    struct rp_request *request = holder(engine, row);
    if (!request)
        return 0;
    if (!is_released(request, row))
        return RP_ROW_WITHHELD;
    if (!request->hold->allowed)
        return 0;
    uint32_t index = rp_mask_pool_place(&engine->mask_pool, request->hold, device_step);
    return RP_ROW_MASK | index << RP_ROW_MASK_SHIFT;
}

int rp_sample_hold_resolve(struct rp_engine *engine, const struct rp_pending_step *step) {
    const struct rp_step_view *view = &engine->batch.view;
    size_t entry = rp_late_entry(view, step->device_step);
    uint32_t *late_flags = (uint32_t *)view->late_inputs + entry;
    int status = await_holds(engine, &step->plan);
    for (uint32_t i = 0; i < step->plan.row_count && status == RP_OK; i++)
        late_flags[i] = late_flags_of(engine, &step->plan.rows[i], step->device_step);
    rp_counter_add(&engine->metrics.masks_placed, engine->mask_pool.new_count);
    if (status == RP_OK)
        status = rp_mask_pool_upload(&engine->mask_pool, engine->backend, engine->device);
    if (status == RP_OK && view->late_flags != view->late_inputs)
        status = engine->backend->copy(engine->device, (uint32_t *)view->late_flags + entry,
                                       late_flags, step->plan.row_count * sizeof *late_flags);
    return status;
}
