/* trace_ring.h - the events of one thread, the newest of them: written at any time, read at any
 * time.
 *
 * Thread: one writer; any number of readers, which never hold it up. A reader copies, looks again
 * how far the writer has come, and drops what may have been overwritten meanwhile.
 * Memory: all at init. Units: events. */
#ifndef RP_METRICS_TRACE_RING_H
#define RP_METRICS_TRACE_RING_H

#include "metrics/event.h"

#include <stdatomic.h>

/* An event as four words, so that a reader that races with the writer reads old or new words, no
 * mixtures of bytes: ns; kind, b, a from the lowest bit up; id; v. */
struct rp_trace_slot {
    _Atomic uint64_t words[4];
};

struct rp_trace_ring {
    struct rp_trace_slot *slots; /* (mask + 1); NULL: nothing is recorded */
    uint64_t mask;
    _Atomic uint64_t head; /* events written since init */
    char thread[16];       /* "engine", "loop": the ring's name in a trace */
};

/* The event that a slot's words say. */
static inline struct rp_trace_event rp_trace_unpack(const uint64_t words[4]) {
    return (struct rp_trace_event){.ns = words[0],
                                   .kind = (uint16_t)words[1],
                                   .b = (uint16_t)(words[1] >> 16),
                                   .a = (uint32_t)(words[1] >> 32),
                                   .id = words[2],
                                   .v = words[3]};
}

/* capacity: rounded up to a power of two. False when memory is out. */
bool rp_trace_ring_init(struct rp_trace_ring *ring, const char *thread, uint64_t capacity);
void rp_trace_ring_deinit(struct rp_trace_ring *ring); /* legal on a zeroed struct */

/* The writer. A ring without memory (zeroed) stores nothing. */
static inline void rp_trace_put(struct rp_trace_ring *ring, enum rp_trace_kind kind, uint64_t ns,
                                uint32_t a, uint16_t b, uint64_t id, uint64_t v) {
    if (!ring->slots)
        return;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    _Atomic uint64_t *words = ring->slots[head & ring->mask].words;
    /* release: a reader that sees a word of this event sees that `head` events came before it, and
     * so that what it copied from this place is no longer there. */
    atomic_store_explicit(&words[0], ns, memory_order_release);
    atomic_store_explicit(&words[1], (uint64_t)kind | (uint64_t)b << 16 | (uint64_t)a << 32,
                          memory_order_release);
    atomic_store_explicit(&words[2], id, memory_order_release);
    atomic_store_explicit(&words[3], v, memory_order_release);
    /* release: who sees the count sees the event. */
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
}

/* Copies events that ended at or after since_ns (rp_tick_ns), in the order in which they were
 * written, at most `capacity` of them (the newest ones); returns how many. *out_whole (may be
 * NULL): false when events of that time were overwritten or did not fit. Any thread. Events are
 * written about in the order in which they end. One that was written late (a request's first byte,
 * a device's step) does not hide the events before it: only RP_TRACE_RING_OLD consecutive events
 * that are too old end a copy. */
#define RP_TRACE_RING_OLD 64
uint64_t rp_trace_ring_copy(const struct rp_trace_ring *ring, uint64_t since_ns,
                            struct rp_trace_event *out, uint64_t capacity, bool *out_whole);
/* How many a copy would have at this moment. */
uint64_t rp_trace_ring_count(const struct rp_trace_ring *ring, uint64_t since_ns);

#endif
