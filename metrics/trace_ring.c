#include "metrics/trace_ring.h"

#include "base/checked.h"
#include "base/memory.h"

#include <string.h>

bool rp_trace_ring_init(struct rp_trace_ring *ring, const char *thread, uint64_t capacity) {
    uint64_t count = 2;
    size_t bytes = 0;
    memset(ring, 0, sizeof *ring);
    while (count < capacity && count <= UINT64_MAX / 2)
        count *= 2;
    if (rp_mul_overflow(count, sizeof *ring->slots, &bytes))
        return false;
    ring->slots = rp_alloc_aligned(bytes, RP_CACHE_LINE);
    if (!ring->slots)
        return false;
    memset(ring->slots, 0, bytes); /* its pages are there before the first event */
    ring->mask = count - 1;
    size_t len = strnlen(thread, sizeof ring->thread - 1);
    memcpy(ring->thread, thread, len);
    return true;
}

void rp_trace_ring_deinit(struct rp_trace_ring *ring) {
    rp_free_aligned(ring->slots);
    memset(ring, 0, sizeof *ring);
}

static struct rp_trace_event read_slot(const struct rp_trace_slot *slot) {
    uint64_t words[4];
    /* acquire: see rp_trace_put. */
    for (int i = 0; i < 4; i++)
        words[i] =
            atomic_load_explicit(&((struct rp_trace_slot *)slot)->words[i], memory_order_acquire);
    return rp_trace_unpack(words);
}

static uint64_t end_of(const struct rp_trace_event *event) {
    bool span =
        event->kind < RP_TRACE_KIND_COUNT && rp_trace_kinds[event->kind].shape == RP_TRACE_SPAN;
    return event->ns + (span ? event->v : 0);
}

static uint64_t load_head(const struct rp_trace_ring *ring) {
    return atomic_load_explicit(&((struct rp_trace_ring *)ring)->head, memory_order_acquire);
}

/* A walk from the newest event to older ones. */
struct walk {
    const struct rp_trace_ring *ring;
    uint64_t since_ns, at, oldest;
    uint32_t old_run; /* consecutive events that were too old */
    bool reached;     /* one that is too old was there: all newer ones are */
};

static struct walk walk_from(const struct rp_trace_ring *ring, uint64_t head, uint64_t since_ns) {
    uint64_t size = ring->mask + 1;
    return (struct walk){
        .ring = ring, .since_ns = since_ns, .at = head, .oldest = head > size ? head - size : 0};
}

/* The next one that is young enough; false: there is none. walk->at is its number. */
static bool walk_next(struct walk *walk, struct rp_trace_event *out) {
    while (walk->at > walk->oldest && walk->old_run < RP_TRACE_RING_OLD) {
        *out = read_slot(&walk->ring->slots[--walk->at & walk->ring->mask]);
        if (end_of(out) >= walk->since_ns) {
            walk->old_run = 0;
            return true;
        }
        walk->old_run++;
        walk->reached = true;
    }
    return false;
}

uint64_t rp_trace_ring_count(const struct rp_trace_ring *ring, uint64_t since_ns) {
    struct rp_trace_event event;
    uint64_t count = 0;
    if (!ring->slots)
        return 0;
    struct walk walk = walk_from(ring, load_head(ring), since_ns);
    while (walk_next(&walk, &event))
        count++;
    return count;
}

uint64_t rp_trace_ring_copy(const struct rp_trace_ring *ring, uint64_t since_ns,
                            struct rp_trace_event *out, uint64_t capacity, bool *out_whole) {
    struct rp_trace_event event;
    bool fitted = true;
    if (out_whole)
        *out_whole = true;
    if (!ring->slots)
        return 0;
    uint64_t size = ring->mask + 1, head = load_head(ring), count = 0, lost = 0;
    struct walk walk = walk_from(ring, head, since_ns);
    /* From the back of `out`. What the writer may have begun to overwrite by now is everything up
     * to its head less the size of the ring; the walk goes on into it only for a moment. */
    while (fitted && walk_next(&walk, &event)) {
        if (walk.at + size <= load_head(ring)) {
            lost = 1;
            break;
        }
        fitted = count < capacity;
        if (fitted)
            out[capacity - ++count] = event;
    }
    memmove(out, out + (capacity - count), count * sizeof *out);
    if (out_whole)
        *out_whole = fitted && !lost && (walk.reached || walk.oldest == 0);
    return count;
}
