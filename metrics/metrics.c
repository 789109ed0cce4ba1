#include "metrics/metrics.h"

#include "base/clock.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

static double bits_to_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t double_to_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void rp_histogram_init(struct rp_histogram *histogram, const double *bounds, uint32_t count) {
    RP_ASSERT_CMP(count, <=, RP_HISTOGRAM_BUCKETS_MAX);
    for (uint32_t i = 1; i < count; i++)
        RP_ASSERT(bounds[i - 1] < bounds[i]);
    memset(histogram, 0, sizeof *histogram);
    histogram->bounds = bounds;
    histogram->bound_count = count;
}

/* The bucket that took it; none: NaN. */
static bool observe(struct rp_histogram *histogram, double value, uint32_t *out_bucket) {
    uint32_t low = 0, high = histogram->bound_count;
    if (isnan(value))
        return false;
    /* The first bound that is not below the value; none: +Inf. */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (histogram->bounds[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    /* Single writer: plain loads and stores. A reader may see the bucket before the sum. */
    uint64_t sum = atomic_load_explicit(&histogram->sum_bits, memory_order_relaxed);
    uint64_t n = atomic_load_explicit(&histogram->buckets[low], memory_order_relaxed);
    atomic_store_explicit(&histogram->sum_bits, double_to_bits(bits_to_double(sum) + value),
                          memory_order_relaxed);
    atomic_store_explicit(&histogram->buckets[low], n + 1, memory_order_relaxed);
    *out_bucket = low;
    return true;
}

void rp_histogram_observe(struct rp_histogram *histogram, double value) {
    uint32_t bucket;
    observe(histogram, value, &bucket);
}

double rp_histogram_sum(const struct rp_histogram *histogram) {
    return bits_to_double(
        atomic_load_explicit(&((struct rp_histogram *)histogram)->sum_bits, memory_order_relaxed));
}

/* --- Exemplars ------------------------------------------------------------------------------- */

/* 16 digits. */
static void write_hex(uint64_t value, char out[16]) {
    for (int i = 15; i >= 0; i--, value >>= 4)
        out[i] = "0123456789abcdef"[value & 15];
}

void rp_histogram_observe_at(struct rp_histogram *histogram, double value, uint64_t trace_high,
                             uint64_t trace_low, uint64_t unix_ms) {
    uint32_t bucket;
    if (!observe(histogram, value, &bucket) || !histogram->exemplars ||
        (trace_high | trace_low) == 0)
        return;
    struct rp_exemplar *exemplar = &histogram->exemplars->buckets[bucket];
    uint64_t sequence = atomic_load_explicit(&exemplar->sequence, memory_order_relaxed);
    atomic_store_explicit(&exemplar->sequence, sequence + 1, memory_order_relaxed);
    /* release: who sees one of these words sees the odd number before it. */
    atomic_store_explicit(&exemplar->trace_high, trace_high, memory_order_release);
    atomic_store_explicit(&exemplar->trace_low, trace_low, memory_order_release);
    atomic_store_explicit(&exemplar->value_bits, double_to_bits(value), memory_order_release);
    atomic_store_explicit(&exemplar->unix_ms, unix_ms, memory_order_release);
    /* release: who sees the even number sees the words. */
    atomic_store_explicit(&exemplar->sequence, sequence + 2, memory_order_release);
}

uint64_t rp_unix_ms(void) { return rp_unix_ns() / 1000000u; }

bool rp_histogram_exemplar(const struct rp_histogram *histogram, uint32_t bucket,
                           struct rp_exemplar_copy *out) {
    if (!histogram->exemplars)
        return false;
    struct rp_exemplar *exemplar = &histogram->exemplars->buckets[bucket];
    for (int tries = 0; tries < 4; tries++) {
        uint64_t before = atomic_load_explicit(&exemplar->sequence, memory_order_acquire);
        if (before == 0)
            return false;
        uint64_t high = atomic_load_explicit(&exemplar->trace_high, memory_order_acquire);
        uint64_t low = atomic_load_explicit(&exemplar->trace_low, memory_order_acquire);
        uint64_t value = atomic_load_explicit(&exemplar->value_bits, memory_order_acquire);
        uint64_t unix_ms = atomic_load_explicit(&exemplar->unix_ms, memory_order_acquire);
        uint64_t after = atomic_load_explicit(&exemplar->sequence, memory_order_relaxed);
        if (before != after || before % 2 != 0)
            continue;
        write_hex(high, out->trace_id);
        write_hex(low, out->trace_id + 16);
        out->trace_id[32] = '\0';
        out->value = bits_to_double(value);
        out->unix_ms = unix_ms;
        return true;
    }
    return false;
}

/* --- The registry ---------------------------------------------------------------------------- */

static bool ends_in(const char *text, size_t len, const char *suffix) {
    size_t n = strlen(suffix);
    return len > n && memcmp(text + len - n, suffix, n) == 0;
}

size_t rp_metric_base_len(const struct rp_metric_family *family) {
    size_t len = strlen(family->name);
    if (family->type == RP_METRIC_COUNTER)
        return len - strlen("_total");
    return family->type == RP_METRIC_INFO ? len - strlen("_info") : len;
}

static void check_family(const struct rp_metric_family *family) {
    const char *name = family->name;
    size_t len = strlen(name), base = rp_metric_base_len(family);
    RP_ASSERT(family->help && family->help[0]);
    RP_ASSERT(isalpha((unsigned char)name[0]) || name[0] == '_');
    for (const char *c = name; *c; c++)
        RP_ASSERT(isalnum((unsigned char)*c) || *c == '_' ||
                  (*c == ':' && family->set == RP_METRICS_VLLM));
    if (family->type == RP_METRIC_COUNTER)
        RP_ASSERT(ends_in(name, len, "_total"));
    else if (family->type == RP_METRIC_INFO)
        RP_ASSERT(ends_in(name, len, "_info") && !family->unit);
    else
        RP_ASSERT(!ends_in(name, len, "_total") || family->set == RP_METRICS_VLLM);
    if (family->unit)
        RP_ASSERT(ends_in(name, base, family->unit) &&
                  name[base - strlen(family->unit) - 1] == '_');
}

/* The names that a family's samples may have in OpenMetrics: the base and these. */
static const char *const suffixes[][5] = {
    [RP_METRIC_COUNTER] = {"", "_total", "_created", NULL, NULL},
    [RP_METRIC_GAUGE] = {"", NULL, NULL, NULL, NULL},
    [RP_METRIC_HISTOGRAM] = {"", "_bucket", "_count", "_sum", "_created"},
    [RP_METRIC_INFO] = {"", "_info", NULL, NULL, NULL},
};

static bool is_sample_name(const struct rp_metric_family *family, const char *name, size_t len) {
    size_t base = rp_metric_base_len(family);
    if (len < base || memcmp(name, family->name, base) != 0)
        return false;
    for (int i = 0; i < 5 && suffixes[family->type][i]; i++)
        if (strlen(suffixes[family->type][i]) == len - base &&
            memcmp(suffixes[family->type][i], name + base, len - base) == 0)
            return true;
    return false;
}

static bool families_clash(const struct rp_metric_family *a, const struct rp_metric_family *b) {
    char name[256];
    size_t base = rp_metric_base_len(b);
    RP_ASSERT_CMP(base + 16, <, sizeof name);
    memcpy(name, b->name, base);
    for (int i = 0; i < 5 && suffixes[b->type][i]; i++) {
        size_t n = strlen(suffixes[b->type][i]);
        memcpy(name + base, suffixes[b->type][i], n);
        if (is_sample_name(a, name, base + n))
            return true;
    }
    return false;
}

static bool labels_equal(const char *a, const char *b) {
    return strcmp(a ? a : "", b ? b : "") == 0;
}

static struct rp_series *add(struct rp_registry *registry, const struct rp_metric_family *family,
                             const char *labels) {
    RP_ASSERT_CMP(registry->count, <, RP_REGISTRY_SERIES_MAX);
    check_family(family);
    for (uint32_t i = 0; i < registry->count; i++) {
        const struct rp_series *other = &registry->series[i];
        if (other->family != family) {
            RP_ASSERT(!families_clash(other->family, family));
            continue;
        }
        RP_ASSERT(!labels_equal(other->labels, labels));
        RP_ASSERT(!other->collect);
        /* The series of a family are contiguous: the one before this one belongs to it. */
        RP_ASSERT(registry->series[registry->count - 1].family == family);
    }
    struct rp_series *series = &registry->series[registry->count++];
    *series = (struct rp_series){.family = family, .labels = labels};
    return series;
}

void rp_registry_add(struct rp_registry *registry, const struct rp_metric_family *family,
                     const char *labels, const void *value) {
    RP_ASSERT_CMP(value == NULL, ==, family->type == RP_METRIC_INFO);
    add(registry, family, labels)->value = value;
}

void rp_registry_add_projected(struct rp_registry *registry, const struct rp_metric_family *family,
                               const char *labels, const struct rp_histogram *histogram,
                               const double *bounds, uint32_t bound_count) {
    RP_ASSERT_CMP(family->type, ==, RP_METRIC_HISTOGRAM);
    for (uint32_t i = 0, own = 0; i < bound_count; i++, own++) {
        while (own < histogram->bound_count && histogram->bounds[own] < bounds[i])
            own++;
        RP_ASSERT(own < histogram->bound_count && histogram->bounds[own] == bounds[i]);
    }
    struct rp_series *series = add(registry, family, labels);
    series->value = histogram;
    series->bounds = bounds;
    series->bound_count = bound_count;
}

void rp_registry_add_collected(struct rp_registry *registry, const struct rp_metric_family *family,
                               rp_metric_collect collect, void *ctx) {
    struct rp_series *series = add(registry, family, NULL);
    series->collect = collect;
    series->ctx = ctx;
}
