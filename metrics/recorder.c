#include "metrics/recorder.h"

#include "base/checked.h"
#include "base/memory.h"
#include "metrics/tick.h"

#include <stdio.h>
#include <string.h>

struct rp_trace_ring rp_trace_nowhere;

/* Bytes of a ring before it is cut to a power of two; 0: nothing is recorded. */
static uint64_t share_bytes(const struct rp_recorder_config *config, enum rp_recorder_share share) {
    static const uint64_t parts[] = {
        [RP_RECORDER_ENGINE] = 2, [RP_RECORDER_LOOP] = 4, [RP_RECORDER_SMALL] = 256};
    uint64_t bytes =
        RP_MIN((uint64_t)config->mib << 20, (uint64_t)config->seconds * RP_RECORDER_BYTES_A_SECOND);
    return bytes / parts[share];
}

struct rp_trace_ring *rp_recorder_add(struct rp_recorder *recorder, const char *thread,
                                      enum rp_recorder_share share) {
    uint64_t events = share_bytes(&recorder->config, share) / sizeof(struct rp_trace_slot);
    uint32_t count = atomic_load_explicit(&recorder->ring_count, memory_order_relaxed);
    if (events == 0 || count == RP_RECORDER_RINGS_MAX)
        return &rp_trace_nowhere;
    uint64_t capacity = 2;
    while (capacity <= events / 2) /* down: the sum stays below what may be taken */
        capacity *= 2;
    struct rp_trace_ring *ring = &recorder->rings[count];
    if (!rp_trace_ring_init(ring, thread, capacity))
        return &rp_trace_nowhere;
    /* release: who sees the count sees the ring. */
    atomic_store_explicit(&recorder->ring_count, count + 1, memory_order_release);
    return ring;
}

int rp_recorder_create(const struct rp_recorder_config *config, struct rp_recorder **out,
                       struct rp_error *err) {
    struct rp_recorder *recorder = rp_calloc(1, sizeof *recorder);
    *out = NULL;
    if (!recorder)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the flight recorder");
    recorder->config = *config;
    recorder->start_ns = rp_tick_ns();
    bool on = config->seconds > 0 && config->mib > 0;
    for (uint32_t i = 0; on && i < RP_RECORDER_WORKERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "worker %u", i);
        if (rp_recorder_add(recorder, name, RP_RECORDER_SMALL) == &rp_trace_nowhere) {
            rp_recorder_destroy(recorder);
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the flight recorder");
        }
    }
    *out = recorder;
    return RP_OK;
}

void rp_recorder_destroy(struct rp_recorder *recorder) {
    if (!recorder)
        return;
    for (uint32_t i = 0; i < RP_RECORDER_RINGS_MAX; i++)
        rp_trace_ring_deinit(&recorder->rings[i]);
    rp_free(recorder);
}

struct rp_trace_ring *rp_recorder_worker_ring(struct rp_recorder *recorder) {
    /* The start distinguishes a recorder from an earlier one at the same address (tests). */
    static _Thread_local struct rp_recorder *owner;
    static _Thread_local uint64_t owner_start;
    static _Thread_local struct rp_trace_ring *mine;
    if (!recorder ||
        atomic_load_explicit(&recorder->ring_count, memory_order_acquire) < RP_RECORDER_WORKERS)
        return &rp_trace_nowhere;
    if (owner != recorder || owner_start != recorder->start_ns) {
        uint32_t index =
            atomic_fetch_add_explicit(&recorder->workers_taken, 1, memory_order_relaxed);
        mine = index < RP_RECORDER_WORKERS ? &recorder->rings[recorder->worker_begin + index]
                                           : &rp_trace_nowhere;
        owner = recorder;
        owner_start = recorder->start_ns;
    }
    return mine;
}

/* Appends a copy of one ring to out. False when memory is out. */
static bool copy_ring(const struct rp_trace_ring *ring, struct rp_recording *out,
                      uint64_t *capacity) {
    /* What is written meanwhile pushes older ones out of a copy that is too small. */
    uint64_t count = rp_trace_ring_count(ring, out->since_ns), room = count + count / 8 + 4096;
    room = RP_MIN(room, ring->mask + 1);
    if (out->event_count + room > *capacity) {
        uint64_t wanted = RP_MAX(out->event_count + room, *capacity + *capacity / 2);
        size_t bytes = 0;
        if (rp_mul_overflow(wanted, sizeof *out->events, &bytes))
            return false;
        struct rp_trace_event *events = rp_realloc(out->events, bytes);
        if (!events)
            return false;
        out->events = events;
        *capacity = wanted;
    }
    struct rp_recording_ring *entry = &out->rings[out->ring_count];
    entry->first = out->event_count;
    entry->count = rp_trace_ring_copy(ring, out->since_ns, out->events + out->event_count, room,
                                      &entry->whole);
    memcpy(entry->thread, ring->thread, sizeof entry->thread);
    out->event_count += entry->count;
    out->ring_count += entry->count > 0 || !entry->whole;
    return true;
}

bool rp_recorder_copy(const struct rp_recorder *recorder, uint64_t since_ns,
                      struct rp_recording *out) {
    uint64_t capacity = 0;
    *out = (struct rp_recording){.since_ns = since_ns, .taken_ns = rp_tick_ns()};
    uint32_t count =
        atomic_load_explicit(&((struct rp_recorder *)recorder)->ring_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++) {
        if (!copy_ring(&recorder->rings[i], out, &capacity)) {
            rp_recording_deinit(out);
            return false;
        }
    }
    return true;
}

void rp_recording_deinit(struct rp_recording *recording) {
    rp_free(recording->events);
    memset(recording, 0, sizeof *recording);
}

void rp_recorder_stats(const struct rp_recorder *recorder, struct rp_recorder_stats *out) {
    memset(out, 0, sizeof *out);
    out->rings =
        atomic_load_explicit(&((struct rp_recorder *)recorder)->ring_count, memory_order_acquire);
    for (uint32_t i = 0; i < out->rings; i++) {
        struct rp_trace_ring *ring = (struct rp_trace_ring *)&recorder->rings[i];
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire),
                 size = ring->mask + 1;
        out->bytes += size * sizeof *ring->slots;
        out->events += head;
        out->overwritten += head > size ? head - size : 0;
    }
}
