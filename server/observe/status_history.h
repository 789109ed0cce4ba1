/* status_history.h - the past five minutes of a server, one sample a second.
 *
 * A sample holds what happened since the sample before it: counts, the device's time, percentiles
 * of that second alone; and the gauges at its end. Samples end at whole seconds of rp_tick_ns as
 * far as the loop thread gets there in time. Where it was late, or the machine was suspended, one
 * longer sample takes the place of the missing ones, so that counts add up and rates stay true.
 *
 * Thread: loop. Memory: the struct; nothing allocates. */
#ifndef RP_SERVER_STATUS_HISTORY_H
#define RP_SERVER_STATUS_HISTORY_H

#include "metrics/event.h"
#include "metrics/latency.h"

struct rp_engine_metrics;
struct rp_server_latency;

#define RP_HISTORY_SECONDS 300u

/* Series with percentiles in each sample. */
enum rp_history_series {
    RP_HISTORY_TTFT,
    RP_HISTORY_INTER_TOKEN,
    RP_HISTORY_DURATION,
    RP_HISTORY_SERIES_COUNT
};
/* Their names in rp_server_latency. */
extern const enum rp_latency_series rp_history_series[RP_HISTORY_SERIES_COUNT];

/* Counters of the engine, in ns where they are times. */
#define RP_HISTORY_COUNTERS(X)                                                                     \
    X(prompt, prompt_tokens)                                                                       \
    X(generated, generation_tokens)                                                                \
    X(cached, cached_tokens)                                                                       \
    X(padded, padded_tokens)                                                                       \
    X(decode, decode_steps)                                                                        \
    X(mixed, mixed_steps)                                                                          \
    X(preemptions, preemptions)                                                                    \
    X(busy_ns, device_busy_ns)
#define RP_HISTORY_GAUGES(X)                                                                       \
    X(running, running)                                                                            \
    X(waiting, waiting)                                                                            \
    X(swapped, swapped)                                                                            \
    X(free, pages_free)                                                                            \
    X(held, pages_held)                                                                            \
    X(cached_pages, pages_cached)

struct rp_history_counts {
#define X(name, counter) uint64_t name;
    RP_HISTORY_COUNTERS(X)
#undef X
    uint64_t idle_ns[RP_IDLE_CAUSE_COUNT];
};

struct rp_history_sample {
    uint64_t sequence;         /* from 1 */
    uint64_t begin_ns, end_ns; /* rp_tick_ns; begin: the end of the sample before */
    struct rp_history_counts counts;
#define X(name, gauge) int64_t name;
    RP_HISTORY_GAUGES(X)
#undef X
    struct rp_latency_stats latency[RP_HISTORY_SERIES_COUNT];
};

struct rp_status_history {
    uint64_t last_ns;  /* end of the newest sample; 0: nothing was read yet */
    uint64_t sequence; /* samples so far */
    struct rp_history_counts last;
    struct rp_latency_mark marks[RP_HISTORY_SERIES_COUNT];
    struct rp_history_sample samples[RP_HISTORY_SECONDS]; /* by sequence % RP_HISTORY_SECONDS */
};

/* Call often; takes a sample once a second has begun since the last one. The first call only notes
 * where the counters are. Zeroed memory is a valid, empty history. */
void rp_status_history_tick(struct rp_status_history *history, uint64_t now_ns,
                            const struct rp_engine_metrics *engine,
                            const struct rp_server_latency *latency);

/* The oldest sample that is kept, has a sequence above `after`, and ended at most
 * RP_HISTORY_SECONDS before now_ns; NULL: none. Continue with its sequence. */
const struct rp_history_sample *rp_status_history_next(const struct rp_status_history *history,
                                                       uint64_t after, uint64_t now_ns);

#endif
