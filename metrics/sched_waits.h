/* sched_waits.h - how long threads were runnable and had no processor (run-queue wait), over any
 * recent span of time.
 *
 * A sampler calls take every few milliseconds; it reads /proc/self/task/TID/schedstat through
 * descriptors that stay open, about 0.3 us a thread. The sampled threads execute nothing for it.
 * Thread: one owner. Memory: fixed. */
#ifndef RP_METRICS_SCHED_WAITS_H
#define RP_METRICS_SCHED_WAITS_H

#include "base/base.h"

#define RP_SCHED_WAITS_THREADS 32
#define RP_SCHED_WAITS_SAMPLES 256

struct rp_sched_sample {
    uint64_t at_ns;                             /* rp_tick_ns */
    uint64_t waited_ns[RP_SCHED_WAITS_THREADS]; /* since the thread's start */
};

struct rp_sched_waits {
    int32_t tids[RP_SCHED_WAITS_THREADS]; /* 0: unused place */
    int fds[RP_SCHED_WAITS_THREADS];
    uint32_t thread_count;
    struct rp_sched_sample samples[RP_SCHED_WAITS_SAMPLES]; /* ring */
    uint64_t sample_count;                                  /* since the threads were chosen */
};

/* The wait of the thread that waited longest. */
struct rp_sched_wait {
    int32_t tid;
    uint64_t waited_ns, window_ns; /* window: the time between two samples in which it waited */
};

/* Chooses the registered threads that compute steps (base/threads.h), at most
 * RP_SCHED_WAITS_THREADS; cheap when they are the same as before, otherwise earlier samples are
 * dropped. Zeroed struct: no threads. A kernel without schedstat leaves no threads. */
void rp_sched_waits_choose(struct rp_sched_waits *waits);
void rp_sched_waits_deinit(struct rp_sched_waits *waits);
/* Takes one sample. */
void rp_sched_waits_take(struct rp_sched_waits *waits, uint64_t now_ns);
/* The wait between the last sample at or before begin_ns and the first at or after end_ns. False:
 * no samples enclose the span. */
bool rp_sched_waits_between(const struct rp_sched_waits *waits, uint64_t begin_ns, uint64_t end_ns,
                            struct rp_sched_wait *out);

#endif
