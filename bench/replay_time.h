/* replay_time.h - time of an operator that is repeated in a captured graph.
 *
 * A sample is the time between two waits for the device, over about 2 ms of replays, minus the
 * start cost of each replay, divided by the number of operators. Thread: the device's. */
#ifndef RP_BENCH_REPLAY_TIME_H
#define RP_BENCH_REPLAY_TIME_H

#include "device/device.h"

struct rp_replay {
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_graph *graph;
    struct rp_graph *start; /* the start of every replay, captured separately; NULL: none */
    uint32_t repeats;       /* repetitions of the operator in the graph */
};

struct rp_replay_times { /* ns of one operator, and of a replay's start */
    uint32_t samples;
    double min, p50, p99, start;
};

#define RP_REPLAY_KERNELS_MAX 64

/* The names of the kernels of one repetition, joined with '+'. */
void rp_replay_kernels(const struct rp_replay *replay, char out[RP_REPLAY_KERNELS_MAX]);

/* Nanoseconds of `count` replays and the wait for them; negative when the device failed. */
double rp_replay_ns(const struct rp_replay *replay, uint32_t count);

/* Repetitions of an operator of `ns` in a graph, a multiple of `copies`: enough to last one sample.
 * A long operator is not repeated just to use all copies. */
uint32_t rp_replay_repeats(double ns, uint32_t copies);

/* Samples until `budget_ns` is spent, counted from begin_ns (rp_clock_ns), but at least a few.
 * RP_STATUS_DEVICE: the device failed. */
int rp_replay_measure(const struct rp_replay *replay, uint64_t begin_ns, double budget_ns,
                      struct rp_replay_times *out) RP_MUST_USE;

#endif
