#include "metrics/metrics.h"

#include "base/json_writer.h"

#include <ctype.h>
#include <inttypes.h>
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

void rp_histogram_observe(struct rp_histogram *histogram, double value) {
    uint32_t low = 0, high = histogram->bound_count;
    if (isnan(value))
        return;
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
}

static bool name_is_valid(const char *name) {
    if (!isalpha((unsigned char)name[0]) && name[0] != '_')
        return false;
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && *name != '_')
            return false;
    return true;
}

static bool labels_equal(const char *a, const char *b) {
    return strcmp(a ? a : "", b ? b : "") == 0;
}

void rp_registry_add(struct rp_registry *registry, const char *name, const char *help,
                     enum rp_metric_type type, const char *labels, const void *value) {
    RP_ASSERT_CMP(registry->count, <, RP_REGISTRY_SERIES_MAX);
    RP_ASSERT(name_is_valid(name));
    RP_ASSERT(help && value);
    size_t len = strlen(name);
    bool ends_in_total = len > 6 && strcmp(name + len - 6, "_total") == 0;
    RP_ASSERT_CMP(ends_in_total, ==, type == RP_METRIC_COUNTER);
    for (uint32_t i = 0; i < registry->count; i++) {
        const struct rp_series *other = &registry->series[i];
        if (strcmp(other->name, name) != 0)
            continue;
        RP_ASSERT(!labels_equal(other->labels, labels));
        RP_ASSERT_CMP(other->type, ==, type);
        /* A family stands together: the series before this one has the same name. */
        RP_ASSERT(strcmp(registry->series[registry->count - 1].name, name) == 0);
    }
    registry->series[registry->count++] = (struct rp_series){
        .name = name, .help = help, .type = type, .labels = labels, .value = value};
}

static void write_help(struct rp_buffer *out, const char *help) {
    for (; *help; help++) {
        if (*help == '\\')
            rp_buffer_puts(out, "\\\\");
        else if (*help == '\n')
            rp_buffer_puts(out, "\\n");
        else
            rp_buffer_append(out, help, 1);
    }
}

static void write_name(struct rp_buffer *out, const char *name, const char *suffix,
                       const char *labels, const char *le) {
    bool any = (labels && *labels) || le;
    rp_buffer_printf(out, "%s%s", name, suffix);
    if (any)
        rp_buffer_puts(out, "{");
    if (labels && *labels)
        rp_buffer_printf(out, le ? "%s," : "%s", labels);
    if (le)
        rp_buffer_printf(out, "le=\"%s\"", le);
    rp_buffer_puts(out, any ? "} " : " ");
}

static void write_histogram(struct rp_buffer *out, const struct rp_series *series) {
    struct rp_histogram *histogram = (struct rp_histogram *)series->value;
    uint64_t total = 0;
    char text[32];
    for (uint32_t i = 0; i <= histogram->bound_count; i++) {
        const char *le = "+Inf";
        if (i < histogram->bound_count) {
            rp_double_shortest(histogram->bounds[i], text);
            le = text;
        }
        total += atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
        write_name(out, series->name, "_bucket", series->labels, le);
        rp_buffer_printf(out, "%" PRIu64 "\n", total);
    }
    rp_double_shortest(
        bits_to_double(atomic_load_explicit(&histogram->sum_bits, memory_order_relaxed)), text);
    write_name(out, series->name, "_sum", series->labels, NULL);
    rp_buffer_printf(out, "%s\n", text);
    write_name(out, series->name, "_count", series->labels, NULL);
    rp_buffer_printf(out, "%" PRIu64 "\n", total);
}

void rp_registry_write(const struct rp_registry *registry, struct rp_buffer *out) {
    static const char *const types[] = {"counter", "gauge", "histogram"};
    for (uint32_t i = 0; i < registry->count; i++) {
        const struct rp_series *series = &registry->series[i];
        if (i == 0 || strcmp(series->name, registry->series[i - 1].name) != 0) {
            rp_buffer_printf(out, "# HELP %s ", series->name);
            write_help(out, series->help);
            rp_buffer_printf(out, "\n# TYPE %s %s\n", series->name, types[series->type]);
        }
        switch (series->type) {
        case RP_METRIC_COUNTER:
            write_name(out, series->name, "", series->labels, NULL);
            rp_buffer_printf(out, "%" PRIu64 "\n",
                             rp_counter_read((const struct rp_counter *)series->value));
            break;
        case RP_METRIC_GAUGE:
            write_name(out, series->name, "", series->labels, NULL);
            rp_buffer_printf(out, "%" PRId64 "\n",
                             rp_gauge_read((const struct rp_gauge *)series->value));
            break;
        case RP_METRIC_HISTOGRAM:
            write_histogram(out, series);
            break;
        }
    }
}
