/* latency.h - durations as log-linear histograms over sliding windows: percentiles of the last 10
 * s, minute, five minutes, and since the start.
 *
 * A slot is a 32nd of an octave: at most 3.2 % wide, so that its middle is at most 1.6 % off.
 * Counts of a window lie in slices of a fifth of it, each cleared when its turn comes again; a
 * window read reaches back by its length and up to a fifth more. The largest value and the sum are
 * kept exactly.
 *
 * Thread: one writer (a shard); any number of readers, which merge shards of several writers.
 * Readers never hold the writer up; a slice that is cleared while it is read is left out. Memory:
 * the struct; nothing allocates. Units: ns; above RP_LATENCY_MAX_NS values count as that. */
#ifndef RP_METRICS_LATENCY_H
#define RP_METRICS_LATENCY_H

#include "base/base.h"

#include <stdatomic.h>

#define RP_LATENCY_SUB_BITS 5
#define RP_LATENCY_OCTAVES  42 /* up to 2^42 ns, 73 minutes */
#define RP_LATENCY_MAX_NS   (((uint64_t)1 << RP_LATENCY_OCTAVES) - 1)
/* Values below 32 ns have a slot each. */
#define RP_LATENCY_SLOTS ((RP_LATENCY_OCTAVES - RP_LATENCY_SUB_BITS + 1) << RP_LATENCY_SUB_BITS)

enum rp_latency_window {
    RP_LATENCY_10S,
    RP_LATENCY_1M,
    RP_LATENCY_5M,
    RP_LATENCY_TOTAL,
    RP_LATENCY_WINDOWS
};
extern const char *const rp_latency_windows[RP_LATENCY_WINDOWS]; /* "10s", "1m", "5m", "total" */

/* The slice being filled, and the five before it. */
#define RP_LATENCY_SLICES 6u
struct rp_latency_slice {
    _Atomic uint64_t number; /* since the clock's zero, + 1; 0: being cleared, or never used */
    _Atomic uint64_t sum, max;
    _Atomic uint32_t counts[RP_LATENCY_SLOTS];
};

struct rp_latency {
    struct rp_latency_slice slices[RP_LATENCY_TOTAL][RP_LATENCY_SLICES];
    struct {
        _Atomic uint64_t sum, max;
        _Atomic uint64_t counts[RP_LATENCY_SLOTS];
    } total;
    /* The writer's: slices in work, and when the next one of them is over. */
    struct rp_latency_slice *current[RP_LATENCY_TOTAL];
    uint64_t next_ns;
};

/* Index of a value's slot, and the middle of a slot (exact below 32 ns). */
static inline uint32_t rp_latency_slot(uint64_t ns) {
    if (ns > RP_LATENCY_MAX_NS)
        ns = RP_LATENCY_MAX_NS;
    if (ns < (1u << RP_LATENCY_SUB_BITS))
        return (uint32_t)ns;
    uint32_t octave = 63u - (uint32_t)__builtin_clzll(ns);
    return ((octave - RP_LATENCY_SUB_BITS) << RP_LATENCY_SUB_BITS) +
           (uint32_t)(ns >> (octave - RP_LATENCY_SUB_BITS));
}
double rp_latency_middle(uint32_t slot);

/* Zeroed memory is valid and empty; nothing else is to be done. */
/* Writer: a duration that ended at now_ns (rp_tick_ns). */
void rp_latency_record(struct rp_latency *latency, uint64_t now_ns, uint64_t ns);

struct rp_latency_stats {
    uint64_t count;
    double mean, p50, p90, p95, p99, max; /* ns; 0 when count is 0 */
};

/* What shards hold in a window that ends at now_ns. Any thread; takes some 10 us. */
void rp_latency_read(const struct rp_latency *const *shards, uint32_t shard_count,
                     enum rp_latency_window window, uint64_t now_ns, struct rp_latency_stats *out);

/* What had been recorded at some moment. Zeroed: nothing. */
struct rp_latency_mark {
    uint64_t counts[RP_LATENCY_SLOTS], sum;
};
/* What was recorded since the mark, which moves to now. The largest value: the middle of its slot.
 * Any thread that owns the mark; takes some us. */
void rp_latency_since(const struct rp_latency *latency, struct rp_latency_mark *mark,
                      struct rp_latency_stats *out);

/* The series of a server; server/observe/server_latency.h defines the begin and end of each. */
/* clang-format off */
#define RP_LATENCY_SERIES(X)                                                                       \
    X(TTFT, "time_to_first_token", "From a request's first byte on the socket to its first token's.") \
    X(INTER_TOKEN, "inter_token_latency", "Between two tokens of a request, when the engine read them.") \
    X(PER_TOKEN, "time_per_output_token", "From a request's first token to its last one, divided by the tokens after the first.") \
    X(E2E, "request_duration", "From a request's first byte to its end, of those that finished.")  \
    X(QUEUE, "queue_wait", "From being handed to the engine to being planned into a step.")     \
    X(PREFILL, "request_prefill", "From being planned into a step to the first token.")            \
    X(DECODE, "request_decode", "From the first token to the last one.")
/* clang-format on */
enum rp_latency_series {
#define X(name, text, help) RP_LATENCY_##name,
    RP_LATENCY_SERIES(X)
#undef X
        RP_LATENCY_SERIES_COUNT
};
struct rp_latency_series_info {
    const char *name;   /* time_to_first_token */
    const char *family; /* reprise_time_to_first_token_recent_seconds */
    const char *help;   /* of the family */
    const char *meaning;
};
extern const struct rp_latency_series_info rp_latency_series[RP_LATENCY_SERIES_COUNT];

/* Gauges of one series in one window, for the family rp_latency_series[i].family: labels
 * `window="10s",percentile="99"` (percentile 100 is the largest value; `quantile` is kept for
 * summaries by Prometheus' rules), values in seconds, NaN when the window is empty. Any thread. */
#define RP_LATENCY_GAUGES 5
void rp_latency_gauges(const struct rp_latency *latency, enum rp_latency_window window,
                       uint64_t now_ns, void (*emit)(void *ctx, const char *labels, double value),
                       void *ctx);

#endif
