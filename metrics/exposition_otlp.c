#include "metrics/exposition_otlp.h"

#include "base/json_writer.h"
#include "metrics/exposition_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CUMULATIVE = 2 };

struct rp_otlp_out {
    struct rp_json json;
    const struct rp_metric_family *open; /* its metric has been begun; NULL: none */
    const struct rp_otlp_resource *resource;
    uint64_t now_unix_ns;
};

static void write_u64(struct rp_json *json, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    rp_json_string(json, key, text);
}

static void write_attribute(struct rp_json *json, const char *key, size_t key_len,
                            const char *value, size_t len) {
    rp_json_object_begin(json, NULL);
    rp_json_string_len(json, "key", key, key_len);
    rp_json_object_begin(json, "value");
    rp_json_string_len(json, "stringValue", value, len);
    rp_json_object_end(json);
    rp_json_object_end(json);
}

/* Labels as rp_label_append writes them: name="value", with \\, \" and \n. */
static void write_labels(struct rp_json *json, const char *labels) {
    struct rp_buffer value = {.data = NULL};
    while (labels && *labels) {
        size_t name = strcspn(labels, "=");
        const char *at = labels + name + (labels[name] ? 2 : 0);
        rp_buffer_clear(&value);
        for (; *at && *at != '"'; at++) {
            bool escaped = *at == '\\' && at[1];
            at += escaped;
            rp_buffer_append(&value, escaped && *at == 'n' ? "\n" : at, 1);
        }
        write_attribute(json, labels, name, value.len ? value.data : "", value.len);
        labels = *at ? at + 1 : at;
        labels += *labels == ',';
    }
    rp_buffer_deinit(&value);
}

static const char *unit_of(const struct rp_metric_family *family) {
    static const char *const units[][2] = {{"seconds", "s"}, {"bytes", "By"}, {"joules", "J"},
                                           {"watts", "W"},   {"hertz", "Hz"}, {"celsius", "Cel"},
                                           {"ratio", "1"}};
    for (size_t i = 0; family->unit && i < RP_ARRAY_COUNT(units); i++)
        if (strcmp(family->unit, units[i][0]) == 0)
            return units[i][1];
    return "";
}

static void end_metric(struct rp_otlp_out *out) {
    if (!out->open)
        return;
    rp_json_array_end(&out->json);
    rp_json_object_end(&out->json);
    rp_json_object_end(&out->json);
    out->open = NULL;
}

/* Begins the family's metric with its first point: one without points is not allowed. */
static void begin_metric(struct rp_otlp_out *out, const struct rp_metric_family *family) {
    static const char *const kinds[] = {[RP_METRIC_COUNTER] = "sum",
                                        [RP_METRIC_GAUGE] = "gauge",
                                        [RP_METRIC_HISTOGRAM] = "histogram",
                                        [RP_METRIC_INFO] = "gauge"};
    struct rp_json *json = &out->json;
    if (out->open == family)
        return;
    end_metric(out);
    out->open = family;
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "name", family->name);
    rp_json_string(json, "description", family->help);
    rp_json_string(json, "unit", unit_of(family));
    rp_json_object_begin(json, kinds[family->type]);
    if (family->type == RP_METRIC_COUNTER || family->type == RP_METRIC_HISTOGRAM)
        rp_json_int(json, "aggregationTemporality", CUMULATIVE);
    if (family->type == RP_METRIC_COUNTER)
        rp_json_bool(json, "isMonotonic", true);
    rp_json_array_begin(json, "dataPoints");
}

static void begin_point(struct rp_metric_out *out, const char *labels) {
    struct rp_json *json = &out->otlp->json;
    begin_metric(out->otlp, out->family);
    rp_json_object_begin(json, NULL);
    rp_json_array_begin(json, "attributes");
    write_labels(json, labels);
    rp_json_array_end(json);
    if (out->family->type == RP_METRIC_COUNTER || out->family->type == RP_METRIC_HISTOGRAM)
        write_u64(json, "startTimeUnixNano", out->otlp->resource->start_unix_ns);
    write_u64(json, "timeUnixNano", out->otlp->now_unix_ns);
}

static void put_number(struct rp_metric_out *out, const char *labels, double value) {
    if (!isfinite(value))
        return;
    begin_point(out, labels);
    rp_json_double(&out->otlp->json, "asDouble", value);
    rp_json_object_end(&out->otlp->json);
}

static void put_histogram(struct rp_metric_out *out, const char *labels, const double *bounds,
                          const uint64_t *counts, uint32_t bound_count, double sum) {
    struct rp_json *json = &out->otlp->json;
    uint64_t total = 0;
    for (uint32_t i = 0; i <= bound_count; i++)
        total += counts[i];
    begin_point(out, labels);
    write_u64(json, "count", total);
    rp_json_double(json, "sum", sum);
    rp_json_array_begin(json, "bucketCounts");
    for (uint32_t i = 0; i <= bound_count; i++)
        write_u64(json, NULL, counts[i]);
    rp_json_array_end(json);
    rp_json_array_begin(json, "explicitBounds");
    for (uint32_t i = 0; i < bound_count; i++)
        rp_json_double(json, NULL, bounds[i]);
    rp_json_array_end(json);
    rp_json_object_end(json);
}

void rp_exposition_otlp(struct rp_registry *registry, unsigned sets,
                        const struct rp_otlp_resource *resource, uint64_t now_unix_ns,
                        struct rp_buffer *buffer) {
    static const struct rp_exposition_format format = {.number = put_number,
                                                       .histogram = put_histogram};
    struct rp_otlp_out otlp = {.resource = resource, .now_unix_ns = now_unix_ns};
    struct rp_metric_out out = {.buffer = buffer, .format = &format, .otlp = &otlp};
    struct rp_json *json = &otlp.json;
    rp_json_init(json, buffer);
    rp_json_object_begin(json, NULL);
    rp_json_array_begin(json, "resourceMetrics");
    rp_json_object_begin(json, NULL);
    rp_json_object_begin(json, "resource");
    rp_json_array_begin(json, "attributes");
    write_attribute(json, "service.name", 12, resource->name, strlen(resource->name));
    write_attribute(json, "service.version", 15, resource->version, strlen(resource->version));
    write_attribute(json, "service.instance.id", 19, resource->instance,
                    strlen(resource->instance));
    rp_json_array_end(json);
    rp_json_object_end(json);
    rp_json_array_begin(json, "scopeMetrics");
    rp_json_object_begin(json, NULL);
    rp_json_object_begin(json, "scope");
    rp_json_string(json, "name", "reprise.metrics");
    rp_json_string(json, "version", resource->version);
    rp_json_object_end(json);
    rp_json_array_begin(json, "metrics");
    rp_exposition_walk(registry, sets, &out);
    end_metric(&otlp);
    rp_json_array_end(json);
    rp_json_object_end(json);
    rp_json_array_end(json);
    rp_json_object_end(json);
    rp_json_array_end(json);
    rp_json_object_end(json);
}
