/* kv_pool.h - which pages are free, held, cached or waiting; no page knows whose it is.
 *
 *            try_alloc                 release to 0 references
 *     FREE ------------> HELD ---------------------------------> PENDING
 *      ^                  ^  \                                      |
 *      |                  |   \ fence already retired               | retire(step >= fence)
 *      |          acquire |    v                                    v
 *      +---- forget ---- CACHED (retained for reuse) or FREE <----------+
 *
 * A release names a fence: the last planned step that may touch the page. Until that step is
 * retired the page is PENDING: nobody may be given it for writing. A page with `retained` set holds
 * something that may be used again (kv_prefix.h) and becomes CACHED instead of FREE; acquire takes
 * it back from HELD, CACHED or PENDING alike. CACHED pages are in the order in which they lost
 * their last reference.
 *
 * Thread: engine thread only, but for the map. Memory: all at init. Errors: init only; a full pool
 * is an answer. */
#ifndef RP_KVCACHE_KV_POOL_H
#define RP_KVCACHE_KV_POOL_H

#include "base/status.h"

#include <stdatomic.h>

#define RP_KV_NO_PAGE 0xFFFFFFFFu

enum rp_kv_state { RP_KV_RESERVED, RP_KV_FREE, RP_KV_HELD, RP_KV_CACHED, RP_KV_PENDING };
#define RP_KV_STATE_COUNT 5

struct rp_kv_page {
    uint64_t fence; /* last step that may touch it, of all releases since it was allocated */
    uint32_t refs;
    uint32_t previous, next; /* neighbors in the list of its state; HELD pages are in none */
    uint8_t state;           /* rp_kv_state */
    bool retained;
    bool dirty; /* may hold NaN: to be zeroed before its next use */
};

struct rp_kv_list {
    uint32_t first, last;
};

struct rp_kv_pool {
    struct rp_kv_page *pages;
    uint32_t page_count;
    uint32_t reserved_count; /* pages [0, reserved_count) are never given out (the padding page) */
    uint64_t retired_step;
    struct rp_kv_list lists[RP_KV_STATE_COUNT];
    uint32_t counts[RP_KV_STATE_COUNT];
    /* (page_count) for other threads: state | references << RP_KV_MAP_STATE_BITS of each page, each
     * word by itself true at some moment. */
    _Atomic uint32_t *map;
    /* NULL, or called whenever a page changes its state. */
    void (*note)(void *ctx, uint32_t page, enum rp_kv_state from, enum rp_kv_state to);
    void *note_ctx;
};
#define RP_KV_MAP_STATE_BITS 3
extern const char *const rp_kv_states[RP_KV_STATE_COUNT]; /* "reserved", "free", ... */

int rp_kv_pool_init(struct rp_kv_pool *pool, uint32_t page_count, uint32_t reserved_count,
                    struct rp_error *err) RP_MUST_USE;
void rp_kv_pool_deinit(struct rp_kv_pool *pool); /* legal on a zeroed struct */

/* A free page with one reference, the one that is free for longest; RP_KV_NO_PAGE: none. */
uint32_t rp_kv_pool_try_alloc(struct rp_kv_pool *pool);
/* One more reference to a page that is HELD, CACHED or PENDING. */
void rp_kv_pool_acquire(struct rp_kv_pool *pool, uint32_t page);
/* One reference less; fence as above, 0 when no planned step matters. */
void rp_kv_pool_release(struct rp_kv_pool *pool, uint32_t page, uint64_t fence);
/* Steps up to this one are over: their PENDING pages become CACHED or FREE. */
void rp_kv_pool_retire(struct rp_kv_pool *pool, uint64_t step);

/* The page's contents may be used again. Only while it is referenced. */
void rp_kv_pool_keep(struct rp_kv_pool *pool, uint32_t page);
/* Takes that back; a CACHED page becomes FREE. */
void rp_kv_pool_forget(struct rp_kv_pool *pool, uint32_t page);
/* The CACHED page that was used longest ago; RP_KV_NO_PAGE when there is none. */
uint32_t rp_kv_pool_oldest_cached(const struct rp_kv_pool *pool);

static inline uint32_t rp_kv_pool_count(const struct rp_kv_pool *pool, enum rp_kv_state state) {
    return pool->counts[state];
}
/* Pages that an allocation can get: free ones, and cached ones by eviction. */
static inline uint32_t rp_kv_pool_available(const struct rp_kv_pool *pool) {
    return pool->counts[RP_KV_FREE] + pool->counts[RP_KV_CACHED];
}

/* expected_refs: references per page as the owner counts them. NULL, or the name of what is broken.
 */
const char *rp_kv_pool_check(const struct rp_kv_pool *pool, const uint32_t *expected_refs);

#endif
