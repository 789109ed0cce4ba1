/* page_life.h - how long KV pages are in use, rest in the prefix cache, and are evicted: histograms
 * of struct rp_engine_metrics, from the changes of state that kv_pool.h reports.
 *
 *   FREE -> HELD .. PENDING .. CACHED -> HELD .. CACHED -> FREE
 *     |------------------ lifetime ----------------------|
 *                   |---- reuse gap ----|    |-- idle ---|  (eviction)
 *
 * The gap and the idle time begin when the page's last request gives it up; a page that a second
 * request shares meanwhile has no gap. A request that is swapped out gives its pages up.
 * Thread: one writer, the engine thread. Memory: at init. */
#ifndef RP_ENGINE_PAGE_LIFE_H
#define RP_ENGINE_PAGE_LIFE_H

#include "kvcache/kv_pool.h"

struct rp_engine_metrics;

struct rp_page_life {
    struct rp_engine_metrics *metrics; /* borrowed */
    struct rp_page_times {
        uint64_t taken_ns, released_ns; /* from the free list; by its last request */
    } * pages;                          /* (page_count) */
    uint32_t page_count;
};

/* False when memory is out. Initializes the histograms. */
bool rp_page_life_init(struct rp_page_life *life, uint32_t page_count,
                       struct rp_engine_metrics *metrics);
void rp_page_life_deinit(struct rp_page_life *life); /* legal on a zeroed struct */

/* A page changed its state at now_ns. */
void rp_page_life_note(struct rp_page_life *life, uint32_t page, enum rp_kv_state from,
                       enum rp_kv_state to, uint64_t now_ns);

#endif
