#include "metrics/latency.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const rp_latency_windows[RP_LATENCY_WINDOWS] = {"10s", "1m", "5m", "total"};

const struct rp_latency_series_info rp_latency_series[RP_LATENCY_SERIES_COUNT] = {
#define X(series, text, what)                                                                      \
    [RP_LATENCY_##series] = {.name = text,                                                         \
                             .family = "reprise_" text "_recent_seconds",                          \
                             .help = what " Percentiles over sliding windows.",                    \
                             .meaning = what},
    RP_LATENCY_SERIES(X)
#undef X
};

#define SECOND_NS ((uint64_t)1000000000)
/* Five of them are the window. */
static const uint64_t slice_ns[RP_LATENCY_TOTAL] = {2 * SECOND_NS, 12 * SECOND_NS, 60 * SECOND_NS};

double rp_latency_middle(uint32_t slot) {
    if (slot < (1u << RP_LATENCY_SUB_BITS))
        return (double)slot;
    uint32_t octave = slot >> RP_LATENCY_SUB_BITS; /* 1: slots as wide as those below */
    uint64_t first = (slot & ((1u << RP_LATENCY_SUB_BITS) - 1)) + (1u << RP_LATENCY_SUB_BITS);
    uint64_t width = (uint64_t)1 << (octave - 1);
    return (double)(first * width) + (double)(width - 1) / 2.0;
}

/* Release throughout: a reader that sees a count of a slice's new life sees that its number had
 * gone. */
static void begin_slice(struct rp_latency_slice *slice, uint64_t number) {
    atomic_store_explicit(&slice->number, 0, memory_order_release);
    for (uint32_t i = 0; i < RP_LATENCY_SLOTS; i++)
        if (atomic_load_explicit(&slice->counts[i], memory_order_relaxed))
            atomic_store_explicit(&slice->counts[i], 0, memory_order_release);
    atomic_store_explicit(&slice->sum, 0, memory_order_release);
    atomic_store_explicit(&slice->max, 0, memory_order_release);
    atomic_store_explicit(&slice->number, number, memory_order_release);
}

RP_COLD static void turn_slices(struct rp_latency *latency, uint64_t now_ns) {
    latency->next_ns = UINT64_MAX;
    for (uint32_t w = 0; w < RP_LATENCY_TOTAL; w++) {
        uint64_t number = now_ns / slice_ns[w] + 1;
        struct rp_latency_slice *slice = &latency->slices[w][number % RP_LATENCY_SLICES];
        if (atomic_load_explicit(&slice->number, memory_order_relaxed) != number)
            begin_slice(slice, number);
        latency->current[w] = slice;
        latency->next_ns = RP_MIN(latency->next_ns, number * slice_ns[w]);
    }
}

static void add_u64(_Atomic uint64_t *to, uint64_t n) {
    atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n,
                          memory_order_release);
}

static void raise_to(_Atomic uint64_t *to, uint64_t value) {
    if (value > atomic_load_explicit(to, memory_order_relaxed))
        atomic_store_explicit(to, value, memory_order_release);
}

void rp_latency_record(struct rp_latency *latency, uint64_t now_ns, uint64_t ns) {
    /* A time before the slice in work (another thread's clock, a moment ago) counts in it. */
    if (RP_UNLIKELY(now_ns >= latency->next_ns))
        turn_slices(latency, now_ns);
    uint32_t slot = rp_latency_slot(ns);
    for (uint32_t w = 0; w < RP_LATENCY_TOTAL; w++) {
        struct rp_latency_slice *slice = latency->current[w];
        /* The count last: who sees it sees a sum and a largest value that hold it. */
        raise_to(&slice->max, ns);
        add_u64(&slice->sum, ns);
        uint32_t count = atomic_load_explicit(&slice->counts[slot], memory_order_relaxed);
        atomic_store_explicit(&slice->counts[slot], count + 1, memory_order_release);
    }
    raise_to(&latency->total.max, ns);
    add_u64(&latency->total.sum, ns);
    add_u64(&latency->total.counts[slot], 1);
}

struct merged {
    uint64_t counts[RP_LATENCY_SLOTS];
    uint64_t count, sum, max;
};

/* Adds a slice, unless it is not one of the window's, or turned into another one meanwhile. */
static void add_slice(struct rp_latency_slice *slice, uint64_t newest, struct merged *to) {
    uint32_t counts[RP_LATENCY_SLOTS];
    uint64_t number = atomic_load_explicit(&slice->number, memory_order_acquire);
    if (number == 0 || number > newest || number + RP_LATENCY_SLICES <= newest)
        return;
    for (uint32_t i = 0; i < RP_LATENCY_SLOTS; i++)
        counts[i] = atomic_load_explicit(&slice->counts[i], memory_order_acquire);
    uint64_t sum = atomic_load_explicit(&slice->sum, memory_order_acquire);
    uint64_t max = atomic_load_explicit(&slice->max, memory_order_acquire);
    if (atomic_load_explicit(&slice->number, memory_order_acquire) != number)
        return;
    for (uint32_t i = 0; i < RP_LATENCY_SLOTS; i++) {
        to->counts[i] += counts[i];
        to->count += counts[i];
    }
    to->sum += sum;
    to->max = RP_MAX(to->max, max);
}

static void add_total(struct rp_latency *latency, struct merged *to) {
    for (uint32_t i = 0; i < RP_LATENCY_SLOTS; i++) {
        uint64_t count = atomic_load_explicit(&latency->total.counts[i], memory_order_acquire);
        to->counts[i] += count;
        to->count += count;
    }
    to->sum += atomic_load_explicit(&latency->total.sum, memory_order_acquire);
    to->max = RP_MAX(to->max, atomic_load_explicit(&latency->total.max, memory_order_acquire));
}

/* The ceil(share * count)-th smallest value. */
static double percentile(const struct merged *merged, double share) {
    uint64_t rank = (uint64_t)ceil(share * (double)merged->count), seen = 0;
    rank = RP_MAX(rank, (uint64_t)1);
    for (uint32_t i = 0; i < RP_LATENCY_SLOTS; i++) {
        seen += merged->counts[i];
        if (seen >= rank)
            return RP_MIN(rp_latency_middle(i), (double)merged->max);
    }
    return (double)merged->max;
}

static void summarize(const struct merged *merged, struct rp_latency_stats *out) {
    *out = (struct rp_latency_stats){.count = merged->count};
    if (merged->count == 0)
        return;
    *out = (struct rp_latency_stats){.count = merged->count,
                                     .mean = (double)merged->sum / (double)merged->count,
                                     .p50 = percentile(merged, 0.5),
                                     .p90 = percentile(merged, 0.9),
                                     .p95 = percentile(merged, 0.95),
                                     .p99 = percentile(merged, 0.99),
                                     .max = (double)merged->max};
}

void rp_latency_read(const struct rp_latency *const *shards, uint32_t shard_count,
                     enum rp_latency_window window, uint64_t now_ns, struct rp_latency_stats *out) {
    struct merged merged;
    memset(&merged, 0, sizeof merged);
    for (uint32_t s = 0; s < shard_count; s++) {
        struct rp_latency *shard = (struct rp_latency *)shards[s]; /* atomic loads take no const */
        if (window == RP_LATENCY_TOTAL) {
            add_total(shard, &merged);
            continue;
        }
        uint64_t newest = now_ns / slice_ns[window] + 1;
        for (uint32_t i = 0; i < RP_LATENCY_SLICES; i++)
            add_slice(&shard->slices[window][i], newest, &merged);
    }
    summarize(&merged, out);
}

void rp_latency_since(const struct rp_latency *latency, struct rp_latency_mark *mark,
                      struct rp_latency_stats *out) {
    struct rp_latency *from = (struct rp_latency *)latency; /* atomic loads take no const */
    struct merged merged = {.count = 0};
    for (uint32_t i = 0; i < RP_LATENCY_SLOTS; i++) {
        uint64_t count = atomic_load_explicit(&from->total.counts[i], memory_order_acquire);
        merged.counts[i] = count - mark->counts[i];
        merged.count += merged.counts[i];
        if (merged.counts[i])
            merged.max = (uint64_t)rp_latency_middle(i);
        mark->counts[i] = count;
    }
    uint64_t sum = atomic_load_explicit(&from->total.sum, memory_order_acquire);
    merged.sum = sum - mark->sum;
    mark->sum = sum;
    summarize(&merged, out);
}

void rp_latency_gauges(const struct rp_latency *latency, enum rp_latency_window window,
                       uint64_t now_ns, void (*emit)(void *ctx, const char *labels, double value),
                       void *ctx) {
    static const char *const names[RP_LATENCY_GAUGES] = {"50", "90", "95", "99", "100"};
    struct rp_latency_stats stats;
    char labels[64];
    rp_latency_read(&latency, 1, window, now_ns, &stats);
    const double values[RP_LATENCY_GAUGES] = {stats.p50, stats.p90, stats.p95, stats.p99,
                                              stats.max};
    for (uint32_t p = 0; p < RP_LATENCY_GAUGES; p++) {
        snprintf(labels, sizeof labels, "window=\"%s\",percentile=\"%s\"",
                 rp_latency_windows[window], names[p]);
        emit(ctx, labels, stats.count ? values[p] * 1e-9 : (double)NAN);
    }
}
