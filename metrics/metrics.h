/* metrics.h - counters, gauges and histograms, and their Prometheus text.
 *
 * The owner of a number keeps the struct and updates it from one thread (relaxed atomics: a reader may
 * be a moment behind, never wrong); the registry only knows addresses, names and labels, and is filled
 * before the first update. Values that another thread reads are never locked.
 *
 * Names follow Prometheus: base units, `_seconds`, `_bytes`, counters end in `_total`.
 * Thread: registry set-up before threads start; rp_registry_write any thread.
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

#define RP_HISTOGRAM_BUCKETS_MAX 40

/* Fixed upper bounds (le), ascending, +Inf implied. Single writer. */
struct rp_histogram {
    const double *bounds;
    uint32_t bound_count;
    _Atomic uint64_t buckets[RP_HISTOGRAM_BUCKETS_MAX + 1]; /* not cumulative */
    _Atomic uint64_t sum_bits;                              /* a double */
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
void rp_histogram_observe(struct rp_histogram *histogram, double value);

enum rp_metric_type { RP_METRIC_COUNTER, RP_METRIC_GAUGE, RP_METRIC_HISTOGRAM };

#define RP_REGISTRY_SERIES_MAX 256

struct rp_series {
    const char *name; /* reprise_requests_total; borrowed for ever */
    const char *help;
    enum rp_metric_type type;
    const char *labels; /* `finish_reason="stop"` or NULL: already escaped; borrowed for ever */
    const void *value;  /* struct rp_counter, rp_gauge or rp_histogram */
};

struct rp_registry {
    struct rp_series series[RP_REGISTRY_SERIES_MAX];
    uint32_t count;
};

/* Series of one family (same name) must be added one after the other. Programmer errors (duplicate
 * series, bad name, too many) are assertions. */
void rp_registry_add(struct rp_registry *registry, const char *name, const char *help,
                     enum rp_metric_type type, const char *labels, const void *value);

/* Prometheus text format 0.0.4. */
void rp_registry_write(const struct rp_registry *registry, struct rp_buffer *out);

#endif
