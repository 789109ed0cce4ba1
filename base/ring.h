/* ring.h - bounded ring of pointers-sized slots between exactly one producer and one consumer.
 * Full is an answer (false), never growth. All atomics of the hand-over live here.
 *
 *   head: next slot to read, written by the consumer only
 *   tail: next slot to write, written by the producer only
 *
 * Release on publishing and acquire on reading the other side's index make the slot's bytes
 * visible; each side keeps a private copy of the other's index and reloads it only when it seems
 * full/empty. */
#ifndef RP_BASE_RING_H
#define RP_BASE_RING_H

#include "base/base.h"
#include "base/memory.h"

#include <stdatomic.h>
#include <string.h>

struct rp_ring {
    unsigned char *slots;
    uint32_t mask; /* capacity - 1; the capacity is a power of two */
    uint32_t slot_bytes;
    _Alignas(RP_CACHE_LINE) _Atomic uint32_t tail;
    uint32_t head_seen; /* producer's copy of head */
    _Alignas(RP_CACHE_LINE) _Atomic uint32_t head;
    uint32_t tail_seen; /* consumer's copy of tail */
};

/* capacity is rounded up to a power of two. False when memory is out. */
static inline bool rp_ring_init(struct rp_ring *ring, uint32_t capacity, uint32_t slot_bytes) {
    uint32_t rounded = 1;
    while (rounded < capacity)
        rounded *= 2;
    memset(ring, 0, sizeof *ring);
    ring->slots = (unsigned char *)rp_calloc(rounded, slot_bytes);
    ring->mask = rounded - 1;
    ring->slot_bytes = slot_bytes;
    return ring->slots != NULL;
}

static inline void rp_ring_deinit(struct rp_ring *ring) {
    rp_free(ring->slots);
    ring->slots = NULL;
}

static inline uint32_t rp_ring_capacity(const struct rp_ring *ring) { return ring->mask + 1; }

/* Producer. */
static inline uint32_t rp_ring_free_count(struct rp_ring *ring) {
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    ring->head_seen = atomic_load_explicit(&ring->head, memory_order_acquire);
    return rp_ring_capacity(ring) - (tail - ring->head_seen);
}

/* Producer: copies one slot in; false when full. */
static inline bool rp_ring_try_push(struct rp_ring *ring, const void *slot) {
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    if (tail - ring->head_seen > ring->mask) {
        ring->head_seen = atomic_load_explicit(&ring->head, memory_order_acquire);
        if (tail - ring->head_seen > ring->mask)
            return false;
    }
    memcpy(ring->slots + (size_t)(tail & ring->mask) * ring->slot_bytes, slot, ring->slot_bytes);
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    return true;
}

/* Consumer: copies one slot out; false when empty. */
static inline bool rp_ring_try_pop(struct rp_ring *ring, void *out_slot) {
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (head == ring->tail_seen) {
        ring->tail_seen = atomic_load_explicit(&ring->tail, memory_order_acquire);
        if (head == ring->tail_seen)
            return false;
    }
    memcpy(out_slot, ring->slots + (size_t)(head & ring->mask) * ring->slot_bytes,
           ring->slot_bytes);
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return true;
}

/* Either side, a hint only. */
static inline bool rp_ring_is_empty(struct rp_ring *ring) {
    return atomic_load_explicit(&ring->head, memory_order_acquire) ==
           atomic_load_explicit(&ring->tail, memory_order_acquire);
}

#endif
