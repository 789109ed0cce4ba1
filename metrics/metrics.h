/* metrics.h - counters, gauges and histograms, and the registry of those that are shown.
 *
 * The owner of a number keeps the struct and updates it from one thread (relaxed atomics: a reader
 * may see a slightly older value, never a wrong one); the registry has only addresses, names and
 * labels, and is filled before the first update. Values that another thread reads are never locked.
 * exposition.h writes the text.
 *
 * Names follow Prometheus and OpenMetrics: base units, `_seconds`, `_bytes`; counters end in
 * `_total`.
 * Thread: registry set-up before threads start.
 * Memory: registry fixed capacity; nothing allocates in updates. */
#ifndef RP_METRICS_METRICS_H
#define RP_METRICS_METRICS_H

#include "base/buffer.h"
#include "base/status.h"

#include <stdatomic.h>

struct rp_counter {
    _Atomic uint64_t value;
};

struct rp_gauge {
    _Atomic int64_t value; /* integers only: counts, bytes, 0/1; ratios are computed when written */
};

#define RP_HISTOGRAM_BUCKETS_MAX 64

/* The last value of a bucket that belongs to a trace. Five words after a sequence number: odd
 * while it is being written, 0 before the first. */
struct rp_exemplar {
    _Atomic uint64_t sequence, trace_high, trace_low, value_bits, unix_ms;
};

struct rp_exemplars {
    struct rp_exemplar buckets[RP_HISTOGRAM_BUCKETS_MAX + 1];
};

/* Fixed upper bounds (le), ascending, +Inf implied. Single writer. */
struct rp_histogram {
    const double *bounds;
    uint32_t bound_count;
    _Atomic uint64_t buckets[RP_HISTOGRAM_BUCKETS_MAX + 1]; /* not cumulative */
    _Atomic uint64_t sum_bits;                              /* a double */
    struct rp_exemplars *exemplars;                         /* NULL: none are kept */
};

static inline void rp_counter_add(struct rp_counter *counter, uint64_t n) {
    /* Single writer: a plain load and store, no read-modify-write. */
    uint64_t value = atomic_load_explicit(&counter->value, memory_order_relaxed);
    atomic_store_explicit(&counter->value, value + n, memory_order_relaxed);
}

static inline uint64_t rp_counter_read(const struct rp_counter *counter) {
    return atomic_load_explicit(&((struct rp_counter *)counter)->value, memory_order_relaxed);
}

static inline void rp_gauge_set(struct rp_gauge *gauge, int64_t value) {
    atomic_store_explicit(&gauge->value, value, memory_order_relaxed);
}

static inline int64_t rp_gauge_read(const struct rp_gauge *gauge) {
    return atomic_load_explicit(&((struct rp_gauge *)gauge)->value, memory_order_relaxed);
}

void rp_histogram_init(struct rp_histogram *histogram, const double *bounds, uint32_t count);
/* NaN is not a value and is left out. */
void rp_histogram_observe(struct rp_histogram *histogram, double value);

/* A trace as W3C Trace Context writes it: 32 lower-case hexadecimal digits, not all 0, and a
 * NUL. */
#define RP_TRACE_ID_BYTES 33

/* The same, and keeps the trace as the exemplar of the value's bucket. Any thread may read
 * meanwhile. The trace as two numbers, both 0: none; the time in ms since 1970. */
void rp_histogram_observe_at(struct rp_histogram *histogram, double value, uint64_t trace_high,
                             uint64_t trace_low, uint64_t unix_ms);

uint64_t rp_unix_ms(void);

struct rp_exemplar_copy {
    char trace_id[RP_TRACE_ID_BYTES];
    double value;
    uint64_t unix_ms;
};
/* False: the bucket has none, or it was being written during a few tries. Any thread. */
bool rp_histogram_exemplar(const struct rp_histogram *histogram, uint32_t bucket,
                           struct rp_exemplar_copy *out);

double rp_histogram_sum(const struct rp_histogram *histogram);

/* --- The registry ---------------------------------------------------------------------------- */

/* INFO: always 1, what it says is in its labels; the name ends in _info. To Prometheus it is a
 * gauge. */
enum rp_metric_type { RP_METRIC_COUNTER, RP_METRIC_GAUGE, RP_METRIC_HISTOGRAM, RP_METRIC_INFO };

/* Which names: ours, or the same numbers by the names of somebody else. */
enum rp_metric_set { RP_METRICS_OWN = 1, RP_METRICS_VLLM = 2, RP_METRICS_OTEL = 4 };

/* Name, type and help of a family. Static: borrowed forever. Two families that OpenMetrics could
 * confuse (a gauge `a` and a counter `a_total`) are refused. */
struct rp_metric_family {
    const char *name; /* as Prometheus' text has it: reprise_requests_total */
    const char *unit; /* what the name ends in (before _total): "seconds", "bytes"; NULL: none */
    const char *help;
    enum rp_metric_type type;
    enum rp_metric_set set; /* 0: ours */
};

struct rp_metric_out; /* exposition.h: takes samples of the family that is being written */
/* Writes the samples of one family on a scrape: on the loop thread, quickly,
 * without waiting. The number of its label sets is bounded by what they count (causes, operators,
 * windows), never by what clients send; beyond RP_FAMILY_SERIES_MAX they are dropped and
 * counted. */
typedef void (*rp_metric_collect)(void *ctx, struct rp_metric_out *out);

#define RP_REGISTRY_SERIES_MAX 768
#define RP_FAMILY_SERIES_MAX   160

struct rp_series {
    const struct rp_metric_family *family;
    const char *labels; /* `finish_reason="stop"` or NULL: already escaped; borrowed forever */
    /* struct rp_counter, rp_gauge or rp_histogram; NULL: collected, or an info's 1 */
    const void *value;
    const double *bounds; /* of a histogram: those that are shown; NULL: all it has */
    uint32_t bound_count;
    rp_metric_collect collect;
    void *ctx;
};

struct rp_registry {
    struct rp_series series[RP_REGISTRY_SERIES_MAX];
    uint32_t count;
    struct rp_counter dropped; /* samples beyond RP_FAMILY_SERIES_MAX; written by the loop thread */
};

/* Series of one family must be added one after the other. Programmer errors (duplicate series,
 * names that clash or are malformed, a unit that the name does not end in, too many) are
 * assertions. */
void rp_registry_add(struct rp_registry *registry, const struct rp_metric_family *family,
                     const char *labels, const void *value);
/* A histogram with fewer buckets than it was recorded in. Each bound must be one of the original's.
 * */
void rp_registry_add_projected(struct rp_registry *registry, const struct rp_metric_family *family,
                               const char *labels, const struct rp_histogram *histogram,
                               const double *bounds, uint32_t bound_count);
/* A family whose samples a function writes. */
void rp_registry_add_collected(struct rp_registry *registry, const struct rp_metric_family *family,
                               rp_metric_collect collect, void *ctx);
/* The family's name as OpenMetrics has it: without _total or _info. Its length; the text is
 * family->name's. */
size_t rp_metric_base_len(const struct rp_metric_family *family);

#endif
