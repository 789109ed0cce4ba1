#include "engine/observe/page_watch.h"

#include "engine/engine_internal.h"
#include "metrics/tick.h"

#define WASTE_NS 1000000u

void rp_page_watch_note(void *ctx, uint32_t page, enum rp_kv_state from, enum rp_kv_state to) {
    struct rp_page_watch *watch = ctx;
    uint64_t now_ns = rp_tick_ns();
    rp_page_life_note(&watch->life, page, from, to, now_ns);
    /* acquire: the ring was made before. */
    if (atomic_load_explicit(&watch->noting, memory_order_acquire))
        rp_trace_put(&watch->history, RP_TRACE_PAGE, now_ns, page, (uint16_t)to, from, 0);
}

static void raise(struct rp_gauge *peak, int64_t value, bool reset) {
    if (reset || value > rp_gauge_read(peak))
        rp_gauge_set(peak, value);
}

void rp_page_watch_update(struct rp_page_watch *watch, const struct rp_sched_stats *stats) {
    bool reset = atomic_load_explicit(&watch->reset, memory_order_relaxed) &&
                 atomic_exchange_explicit(&watch->reset, false, memory_order_relaxed);
    rp_gauge_set(&watch->pending, stats->pages_pending);
    rp_gauge_set(&watch->host_total, stats->host_pages_total);
    rp_gauge_set(&watch->host_free, stats->host_pages_free);
    raise(&watch->peak_held, (int64_t)stats->pages_held + stats->pages_pending, reset);
    raise(&watch->peak_host, (int64_t)stats->host_pages_total - stats->host_pages_free, reset);
}

void rp_page_watch_waste(struct rp_page_watch *watch, const struct rp_scheduler *scheduler,
                         uint32_t running, uint64_t now_ns) {
    if (running > 0 && now_ns - watch->waste_ns < WASTE_NS)
        return;
    watch->waste_ns = now_ns;
    rp_gauge_set(&watch->wasted_tokens, (int64_t)rp_scheduler_wasted_tokens(scheduler));
}

void rp_engine_page_use(const struct rp_engine *engine, struct rp_page_use *out) {
    const struct rp_engine_metrics *metrics = &engine->metrics;
    const struct rp_page_watch *watch = &engine->observer.page_watch;
    *out = (struct rp_page_use){.page_bytes = engine->layout.kv.page_stride,
                                .page_tokens = engine->layout.kv.page_tokens,
                                .total = rp_gauge_read(&metrics->pages_total),
                                .free = rp_gauge_read(&metrics->pages_free),
                                .held = rp_gauge_read(&metrics->pages_held),
                                .cached = rp_gauge_read(&metrics->pages_cached),
                                .pending = rp_gauge_read(&watch->pending),
                                .host_total = rp_gauge_read(&watch->host_total),
                                .host_free = rp_gauge_read(&watch->host_free),
                                .peak_held = rp_gauge_read(&watch->peak_held),
                                .peak_host = rp_gauge_read(&watch->peak_host),
                                .wasted_tokens = rp_gauge_read(&watch->wasted_tokens)};
    /* Counted a moment ago: some of those pages may be free by now. */
    out->wasted_tokens = RP_MIN(out->wasted_tokens, out->held * (int64_t)out->page_tokens);
}

uint32_t rp_engine_page_map(const struct rp_engine *engine, uint32_t *out, uint32_t capacity) {
    return rp_scheduler_page_map(engine->scheduler, out, capacity);
}

void rp_engine_page_reset_peaks(struct rp_engine *engine) {
    atomic_store_explicit(&engine->observer.page_watch.reset, true, memory_order_relaxed);
    rp_engine_notify(engine);
}

bool rp_engine_page_history_start(struct rp_engine *engine) {
    struct rp_page_watch *watch = &engine->observer.page_watch;
    if (!watch->history.slots &&
        !rp_trace_ring_init(&watch->history, "pages", RP_PAGE_HISTORY_EVENTS))
        return false;
    atomic_store_explicit(&watch->noting, true, memory_order_release);
    return true;
}

void rp_engine_page_history_stop(struct rp_engine *engine) {
    atomic_store_explicit(&engine->observer.page_watch.noting, false, memory_order_release);
}

bool rp_engine_page_history_is_on(const struct rp_engine *engine) {
    return atomic_load_explicit(&((struct rp_engine *)engine)->observer.page_watch.noting,
                                memory_order_relaxed);
}

const struct rp_trace_ring *rp_engine_page_history(const struct rp_engine *engine) {
    return &engine->observer.page_watch.history;
}

uint64_t rp_engine_page_address(const struct rp_engine *engine) {
    return (uint64_t)(uintptr_t)engine->layout.kv.base;
}
