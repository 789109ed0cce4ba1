/* recorder.h - all rings of a process: who writes into which, and a copy of what they hold.
 *
 * Sized once: --trace-seconds says how far back a trace should reach (RP_RECORDER_BYTES_A_SECOND
 * for each), and --trace-mib what the rings may take at most; the smaller of the two counts. Rings
 * keep what fits: under a load of more events the past is shorter, and a copy says so (`whole`).
 *
 * Threads: rings are added before the threads that write them start, by one thread;
 * rp_recorder_worker_ring, copies and everything else by any thread at any time. Memory: rings at
 * create; a copy is the caller's. */
#ifndef RP_METRICS_RECORDER_H
#define RP_METRICS_RECORDER_H

#include "base/status.h"
#include "metrics/trace_ring.h"

#define RP_RECORDER_RINGS_MAX 24
#define RP_RECORDER_WORKERS   8
/* 32,768 events: a server that makes 20,000 tokens a second in 400 steps. */
#define RP_RECORDER_BYTES_A_SECOND ((uint64_t)1 << 20)

struct rp_recorder_config {
    uint32_t seconds; /* 0: nothing is recorded, and nothing allocated */
    uint32_t mib;     /* at most; 0: nothing is recorded */
};

/* What share of the memory a ring gets. */
enum rp_recorder_share {
    RP_RECORDER_ENGINE, /* half: spans, rows, tokens */
    RP_RECORDER_LOOP,   /* a quarter: what is written to clients */
    RP_RECORDER_SMALL   /* 1/256: a few events a second */
};

struct rp_recorder {
    struct rp_recorder_config config;
    struct rp_trace_ring rings[RP_RECORDER_RINGS_MAX];
    _Atomic uint32_t ring_count;
    _Atomic uint32_t workers_taken;
    uint32_t worker_begin; /* the first worker's ring */
    uint64_t start_ns;
};

/* A ring that stores nothing, for threads without one. */
extern struct rp_trace_ring rp_trace_nowhere;

/* Makes it and the rings of RP_RECORDER_WORKERS worker threads. NO_MEMORY otherwise. With 0 seconds
 * or MiB it exists, and all its rings take nothing. */
int rp_recorder_create(const struct rp_recorder_config *config, struct rp_recorder **out,
                       struct rp_error *err) RP_MUST_USE;
void rp_recorder_destroy(struct rp_recorder *recorder); /* NULL is allowed; no writer is left */

/* A ring for one thread, named after it. Never NULL: rp_trace_nowhere when nothing is recorded,
 * when memory is out or when there are too many. */
struct rp_trace_ring *rp_recorder_add(struct rp_recorder *recorder, const char *thread,
                                      enum rp_recorder_share share);
/* The calling thread's own ring, for threads of a pool: taken at its first call, kept to the
 * thread's end. The first RP_RECORDER_WORKERS threads get one, others rp_trace_nowhere. recorder:
 * NULL is allowed. */
struct rp_trace_ring *rp_recorder_worker_ring(struct rp_recorder *recorder);

/* What was recorded since a moment: the events of one ring after the other, oldest first in each
 * (by the time at which they were written; the times of spans may go back a little). */
struct rp_recording {
    uint64_t since_ns, taken_ns; /* rp_tick_ns */
    struct rp_trace_event *events;
    uint64_t event_count;
    struct rp_recording_ring {
        char thread[16];
        uint64_t first, count; /* into events */
        bool whole;            /* false: some of that time had been overwritten */
    } rings[RP_RECORDER_RINGS_MAX];
    uint32_t ring_count; /* those that hold any event, or lost some */
};

/* Copies what ended at or after since_ns. Allocates what it copies (twice that for a moment); takes
 * milliseconds for a full recorder: not for the loop thread. False when memory is out. */
bool rp_recorder_copy(const struct rp_recorder *recorder, uint64_t since_ns,
                      struct rp_recording *out);
void rp_recording_deinit(struct rp_recording *recording); /* legal on a zeroed struct */

/* Bytes of all rings, and events written since the start and those of them that were
 * overwritten. */
struct rp_recorder_stats {
    uint64_t bytes, events, overwritten;
    uint32_t rings;
};
void rp_recorder_stats(const struct rp_recorder *recorder, struct rp_recorder_stats *out);

#endif
