/* page_watch.h - what other threads may see of the KV pages: counts, peaks, a map, and a history on
 * request.
 *
 * Thread: the engine thread writes; the calls below are for any one other thread (the loop's).
 * Memory: the history's ring is made when it is first switched on, and kept. */
#ifndef RP_ENGINE_PAGE_WATCH_H
#define RP_ENGINE_PAGE_WATCH_H

#include "engine/observe/page_life.h"
#include "metrics/metrics.h"
#include "metrics/trace_ring.h"

struct rp_engine;
struct rp_sched_stats;
struct rp_scheduler;

#define RP_PAGE_HISTORY_EVENTS 65536u

/* Part of an engine. */
struct rp_page_watch {
    struct rp_gauge pending, host_total, host_free, wasted_tokens, peak_held, peak_host;
    uint64_t waste_ns;            /* when wasted_tokens were counted */
    _Atomic bool reset;           /* the peaks restart; taken by the engine thread */
    _Atomic bool noting;          /* the history is on */
    struct rp_trace_ring history; /* of RP_TRACE_PAGE events; written while `noting` */
    struct rp_page_life life;
};

/* What the pages are used for now. Counts without the padding page. */
struct rp_page_use {
    uint64_t page_bytes;
    uint32_t page_tokens;
    int64_t total, free, held, cached; /* held: pending ones included */
    int64_t pending;                   /* of those: nobody's, waiting for a step that names them */
    int64_t host_total, host_free;     /* swap pool */
    int64_t peak_held, peak_host;      /* since the start or the last reset */
    int64_t wasted_tokens; /* places in pages of running requests that hold nothing yet */
};

void rp_engine_page_use(const struct rp_engine *engine, struct rp_page_use *out);
/* Words of kv_pool.h's map, the padding page (0) first; returns the pages there are, however many
 * fit. */
uint32_t rp_engine_page_map(const struct rp_engine *engine, uint32_t *out, uint32_t capacity);
void rp_engine_page_reset_peaks(struct rp_engine *engine);
/* Every change of a page's state becomes an event from now on, the newest RP_PAGE_HISTORY_EVENTS
 * are kept. False when memory is out. */
bool rp_engine_page_history_start(struct rp_engine *engine);
void rp_engine_page_history_stop(struct rp_engine *engine);
bool rp_engine_page_history_is_on(const struct rp_engine *engine);
/* Never started: an empty ring. */
const struct rp_trace_ring *rp_engine_page_history(const struct rp_engine *engine);
/* Where the pool's memory begins, on the device. */
uint64_t rp_engine_page_address(const struct rp_engine *engine);

/* Engine thread: the numbers of this moment. */
void rp_page_watch_update(struct rp_page_watch *watch, const struct rp_sched_stats *stats);
/* wasted_tokens, which takes a walk over all that run: once a millisecond, and when nothing
 * runs. */
void rp_page_watch_waste(struct rp_page_watch *watch, const struct rp_scheduler *scheduler,
                         uint32_t running, uint64_t now_ns);
/* rp_kv_pool.note: ctx is a struct rp_page_watch. */
void rp_page_watch_note(void *ctx, uint32_t page, enum rp_kv_state from, enum rp_kv_state to);

#endif
