#include "engine/observe/page_life.h"

#include "base/memory.h"
#include "engine/engine.h"

#include <string.h>

static const double bounds[] = {0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600};

bool rp_page_life_init(struct rp_page_life *life, uint32_t page_count,
                       struct rp_engine_metrics *metrics) {
    rp_histogram_init(&metrics->page_lifetime_seconds, bounds, RP_ARRAY_COUNT(bounds));
    rp_histogram_init(&metrics->page_reuse_gap_seconds, bounds, RP_ARRAY_COUNT(bounds));
    rp_histogram_init(&metrics->page_eviction_idle_seconds, bounds, RP_ARRAY_COUNT(bounds));
    life->metrics = metrics;
    life->page_count = page_count;
    life->pages = rp_calloc(page_count, sizeof *life->pages);
    return life->pages != NULL;
}

void rp_page_life_deinit(struct rp_page_life *life) {
    rp_free(life->pages);
    memset(life, 0, sizeof *life);
}

static void observe(struct rp_histogram *histogram, uint64_t since_ns, uint64_t now_ns) {
    rp_histogram_observe(histogram, (double)(now_ns - RP_MIN(since_ns, now_ns)) * 1e-9);
}

void rp_page_life_note(struct rp_page_life *life, uint32_t page, enum rp_kv_state from,
                       enum rp_kv_state to, uint64_t now_ns) {
    struct rp_page_times *times = &life->pages[page];
    struct rp_engine_metrics *metrics = life->metrics;
    RP_ASSERT_CMP(page, <, life->page_count);
    if (from == RP_KV_FREE)
        times->taken_ns = now_ns;
    else if (from == RP_KV_HELD)
        times->released_ns = now_ns;
    else if (to == RP_KV_HELD)
        observe(&metrics->page_reuse_gap_seconds, times->released_ns, now_ns);
    else if (from == RP_KV_CACHED)
        observe(&metrics->page_eviction_idle_seconds, times->released_ns, now_ns);
    if (to == RP_KV_FREE)
        observe(&metrics->page_lifetime_seconds, times->taken_ns, now_ns);
}
