/* kv_events.h - changes of the prefix cache, for a thread that publishes them.
 *
 * A bounded ring from the engine thread to one consumer. The engine thread never waits: when the
 * ring is full the change is dropped and counted, and the next one that fits is marked, so that the
 * consumer knows where changes are missing.
 * Memory: all at init, rp_kv_event_bytes for each place. */
#ifndef RP_ENGINE_KV_EVENTS_H
#define RP_ENGINE_KV_EVENTS_H

#include "base/ring.h"
#include "kvcache/kv_prefix.h"
#include "metrics/metrics.h"

struct rp_kv_event {
    uint64_t hash, parent; /* the low halves of the links (kv_prefix.h); parent: of a stored page */
    bool is_stored;        /* false: removed */
    bool has_parent;       /* false: it is the first page of its prompts */
    bool follows_gap;
    int32_t tokens[]; /* (page_tokens) of a stored page */
};

struct rp_kv_events {
    struct rp_ring ring;
    uint32_t page_tokens;
    struct rp_kv_event *next; /* the producer's: what is pushed next */
    bool lost;                /* the producer's: dropped since the last push */
    struct rp_counter dropped;
};

/* capacity is rounded up to a power of two. False when memory is out. */
bool rp_kv_events_init(struct rp_kv_events *events, uint32_t capacity, uint32_t page_tokens);
void rp_kv_events_deinit(struct rp_kv_events *events); /* legal on a zeroed struct */
static inline size_t rp_kv_event_bytes(uint32_t page_tokens) {
    size_t bytes = sizeof(struct rp_kv_event) + page_tokens * sizeof(int32_t);
    return (bytes + 7) & ~(size_t)7;
}

/* rp_kv_prefix.note: ctx is a struct rp_kv_events. Engine thread. */
void rp_kv_events_note(void *ctx, const struct rp_kv_prefix_change *change);
/* Consumer: copies rp_kv_event_bytes; false: none. */
static inline bool rp_kv_events_take(struct rp_kv_events *events, struct rp_kv_event *out) {
    return rp_ring_try_pop(&events->ring, out);
}

#endif
