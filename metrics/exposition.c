#include "metrics/exposition.h"

#include "base/json_writer.h"
#include "base/utf8.h"
#include "metrics/exposition_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct rp_exposition_format *const formats[RP_EXPOSITION_COUNT] = {
    [RP_EXPOSITION_PROMETHEUS] = &rp_exposition_prometheus,
    [RP_EXPOSITION_OPENMETRICS] = &rp_exposition_openmetrics};

const char *rp_exposition_type(enum rp_exposition format) { return formats[format]->content_type; }

/* --- Text ------------------------------------------------------------------------------------ */

void rp_exposition_escape(struct rp_buffer *out, const char *text, bool quotes) {
    while (*text) {
        size_t plain = strcspn(text, quotes ? "\\\n\"" : "\\\n");
        rp_buffer_append(out, text, plain);
        text += plain;
        if (*text)
            rp_buffer_puts(out, *text == '\n' ? "\\n" : *text == '"' ? "\\\"" : "\\\\");
        text += *text != '\0';
    }
}

void rp_exposition_number(double value, char out[RP_NUMBER_TEXT]) {
    if (isnan(value) || isinf(value)) {
        snprintf(out, RP_NUMBER_TEXT, "%s", isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
        return;
    }
    if (fabs(value) < 1e6) {
        rp_double_shortest(value, out);
        return;
    }
    for (int digits = 0; digits <= 16; digits++) {
        snprintf(out, RP_NUMBER_TEXT, "%.*e", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

bool rp_label_append(char *labels, size_t size, const char *name, const char *value) {
    size_t begin = strlen(labels), at = begin;
    int head = snprintf(labels + at, size - at, "%s%s=\"", begin ? "," : "", name);
    bool fits = head > 0 && (size_t)head < size - at;
    at += fits ? (size_t)head : 0;
    while (fits && *value) {
        int n = rp_utf8_decode(value, strlen(value), NULL);
        const char *from = value;
        size_t len = n > 0 ? (size_t)n : 3;
        if (n <= 0)
            from = "\xEF\xBF\xBD";
        bool escaped = *value == '\\' || *value == '"' || *value == '\n';
        fits = len + escaped + 2 <= size - at; /* the quote and the 0 that end it */
        if (!fits)
            break;
        if (escaped)
            labels[at++] = '\\';
        if (*value == '\n')
            labels[at++] = 'n';
        else
            memcpy(labels + at, from, len), at += len;
        value += n > 0 ? n : 1;
    }
    if (!fits || at + 2 > size) {
        labels[begin] = '\0';
        return false;
    }
    memcpy(labels + at, "\"", 2);
    return true;
}

/* --- Samples --------------------------------------------------------------------------------- */

/* Whether one more series may be written. */
static bool begin_series(struct rp_metric_out *out) {
    if (out->series >= RP_FAMILY_SERIES_MAX) {
        out->dropped++;
        return false;
    }
    out->series++;
    return true;
}

/* Everything before the value. */
static void write_name(struct rp_metric_out *out, const char *suffix, const char *labels,
                       const char *le) {
    bool any = (labels && *labels) || le;
    struct rp_buffer *buffer = out->buffer;
    rp_buffer_puts(buffer, out->family->name);
    rp_buffer_puts(buffer, suffix);
    if (any)
        rp_buffer_puts(buffer, "{");
    if (labels && *labels)
        rp_buffer_puts(buffer, labels);
    if (le) {
        rp_buffer_puts(buffer, labels && *labels ? ",le=\"" : "le=\"");
        rp_buffer_puts(buffer, le);
        rp_buffer_puts(buffer, "\"");
    }
    rp_buffer_puts(buffer, any ? "} " : " ");
}

static void put_text(struct rp_metric_out *out, const char *labels, const char *value) {
    RP_ASSERT_CMP(out->family->type, !=, RP_METRIC_HISTOGRAM);
    if (!begin_series(out))
        return;
    write_name(out, "", labels, NULL);
    rp_buffer_puts(out->buffer, value);
    rp_buffer_puts(out->buffer, "\n");
}

void rp_metric_put(struct rp_metric_out *out, const char *labels, double value) {
    char text[RP_NUMBER_TEXT];
    if (out->format->number) {
        if (begin_series(out))
            out->format->number(out, labels, value);
        return;
    }
    rp_exposition_number(value, text);
    put_text(out, labels, text);
}

void rp_metric_put_count(struct rp_metric_out *out, const char *labels, uint64_t value) {
    char text[RP_NUMBER_TEXT];
    if (out->format->number) {
        rp_metric_put(out, labels, (double)value);
        return;
    }
    snprintf(text, sizeof text, "%" PRIu64, value);
    put_text(out, labels, text);
}

/* The newest exemplar of the buckets [from, to]. */
static bool newest_exemplar(const struct rp_histogram *histogram, uint32_t from, uint32_t to,
                            struct rp_exemplar_copy *out) {
    struct rp_exemplar_copy copy;
    bool any = false;
    for (uint32_t i = from; i <= to; i++) {
        if (!rp_histogram_exemplar(histogram, i, &copy) || (any && copy.unix_ms < out->unix_ms))
            continue;
        *out = copy;
        any = true;
    }
    return any;
}

void rp_metric_put_histogram(struct rp_metric_out *out, const char *labels,
                             const struct rp_histogram *histogram, const double *bounds,
                             uint32_t bound_count) {
    RP_ASSERT_CMP(out->family->type, ==, RP_METRIC_HISTOGRAM);
    if (!begin_series(out))
        return;
    struct rp_histogram *read = (struct rp_histogram *)histogram;
    uint32_t count = bounds ? bound_count : read->bound_count;
    uint64_t total = 0, counts[RP_HISTOGRAM_BUCKETS_MAX + 1];
    char text[RP_NUMBER_TEXT];
    for (uint32_t i = 0, own = 0; i <= count; i++) {
        /* The histogram's own buckets that make up this one. */
        uint32_t first = own;
        double bound = i == count ? INFINITY : bounds ? bounds[i] : read->bounds[i];
        uint32_t end = i == count ? read->bound_count + 1 : read->bound_count;
        counts[i] = 0;
        while (own < end && (i == count || read->bounds[own] <= bound))
            counts[i] += atomic_load_explicit(&read->buckets[own++], memory_order_relaxed);
        total += counts[i];
        if (out->format->histogram)
            continue;
        out->format->bound(bound, text);
        write_name(out, "_bucket", labels, text);
        rp_buffer_printf(out->buffer, "%" PRIu64, total);
        struct rp_exemplar_copy exemplar;
        if (out->format->exemplar && read->exemplars && own > first &&
            newest_exemplar(read, first, own - 1, &exemplar))
            out->format->exemplar(out->buffer, &exemplar);
        rp_buffer_puts(out->buffer, "\n");
    }
    if (out->format->histogram) {
        out->format->histogram(out, labels, bounds ? bounds : read->bounds, counts, count,
                               rp_histogram_sum(read));
        return;
    }
    rp_exposition_number(rp_histogram_sum(read), text);
    write_name(out, "_sum", labels, NULL);
    rp_buffer_printf(out->buffer, "%s\n", text);
    write_name(out, "_count", labels, NULL);
    rp_buffer_printf(out->buffer, "%" PRIu64 "\n", total);
}

static void write_series(struct rp_metric_out *out, const struct rp_series *series) {
    char text[RP_NUMBER_TEXT];
    if (series->collect) {
        series->collect(series->ctx, out);
        return;
    }
    switch (series->family->type) {
    case RP_METRIC_COUNTER:
        rp_metric_put_count(out, series->labels,
                            rp_counter_read((const struct rp_counter *)series->value));
        break;
    case RP_METRIC_GAUGE:
        if (out->format->number) {
            rp_metric_put(out, series->labels,
                          (double)rp_gauge_read((const struct rp_gauge *)series->value));
            break;
        }
        snprintf(text, sizeof text, "%" PRId64,
                 rp_gauge_read((const struct rp_gauge *)series->value));
        put_text(out, series->labels, text);
        break;
    case RP_METRIC_INFO:
        rp_metric_put_count(out, series->labels, 1);
        break;
    case RP_METRIC_HISTOGRAM:
        rp_metric_put_histogram(out, series->labels, (const struct rp_histogram *)series->value,
                                series->bounds, series->bound_count);
        break;
    }
}

void rp_exposition_walk(struct rp_registry *registry, unsigned sets, struct rp_metric_out *out) {
    for (uint32_t i = 0; i < registry->count; i++) {
        const struct rp_series *series = &registry->series[i];
        unsigned set = series->family->set ? series->family->set : RP_METRICS_OWN;
        if (!(set & sets))
            continue;
        if (series->family != out->family) {
            out->family = series->family;
            out->series = 0;
            if (out->format->header)
                out->format->header(out->buffer, out->family);
        }
        write_series(out, series);
    }
    rp_counter_add(&registry->dropped, out->dropped);
}

void rp_exposition_write(struct rp_registry *registry, enum rp_exposition format, unsigned sets,
                         struct rp_buffer *buffer) {
    struct rp_metric_out out = {.buffer = buffer, .format = formats[format]};
    rp_exposition_walk(registry, sets, &out);
    rp_buffer_puts(buffer, out.format->end);
}

/* --- Accept (RFC 9110, 12.5.1) --------------------------------------------------------------- */

struct media_range {
    char type[64];    /* lower case; "" when it is too long to be one of ours */
    char version[16]; /* "": none requested */
    double weight;
};

static size_t copy_token(const char *from, const char *stops, char *out, size_t size) {
    size_t n = 0, kept = 0;
    bool quoted = false;
    for (; from[n] && (quoted || !strchr(stops, from[n])); n++) {
        char c = from[n];
        if (c == '"')
            quoted = !quoted;
        else if (c != ' ' && c != '\t' && kept + 1 < size)
            out[kept++] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    out[kept] = '\0';
    return n;
}

/* A weight has up to three decimals; anything else counts as 0. */
static double read_weight(const char *text) {
    char *end;
    double weight = strtod(text, &end);
    return end == text || *end || !(weight >= 0 && weight <= 1) ? 0 : weight;
}

/* One element of the list; returns the rest after its comma, or NULL at the end. */
static const char *read_range(const char *text, struct media_range *out) {
    char name[16], value[16];
    *out = (struct media_range){.weight = 1};
    text += copy_token(text, ",;", out->type, sizeof out->type);
    while (*text == ';') {
        text++;
        text += copy_token(text, "=,;", name, sizeof name);
        value[0] = '\0';
        if (*text == '=')
            text += 1 + copy_token(text + 1, ",;", value, sizeof value);
        if (strcmp(name, "q") == 0)
            out->weight = read_weight(value);
        else if (strcmp(name, "version") == 0)
            memcpy(out->version, value, sizeof value);
    }
    return *text == ',' ? text + 1 : NULL;
}

/* How closely a range names the type: 0 not at all, 1 everything, 2 its family, 3 itself. */
static int closeness(const struct media_range *range, const char *type,
                     const char *const versions[3]) {
    char family[16];
    snprintf(family, sizeof family, "%.*s/*", (int)strcspn(type, "/"), type);
    if (strcmp(range->type, "*/*") == 0 || strcmp(range->type, family) == 0)
        return range->type[0] == '*' ? 1 : 2;
    if (strcmp(range->type, type) != 0)
        return 0;
    bool known = range->version[0] == '\0';
    for (int i = 0; i < 3 && versions[i]; i++)
        known = known || strcmp(range->version, versions[i]) == 0;
    return known ? 3 : 0;
}

enum rp_exposition rp_exposition_accepted(const char *accept) {
    static const struct {
        const char *type, *versions[3];
    } wanted[RP_EXPOSITION_COUNT] = {
        [RP_EXPOSITION_PROMETHEUS] = {"text/plain", {"0.0.4", NULL, NULL}},
        [RP_EXPOSITION_OPENMETRICS] = {"application/openmetrics-text", {"1.0.0", "0.0.1", NULL}}};
    double weights[RP_EXPOSITION_COUNT] = {0, 0};
    int close[RP_EXPOSITION_COUNT] = {0, 0};
    struct media_range range;
    while (accept) {
        accept = read_range(accept, &range);
        for (int i = 0; i < RP_EXPOSITION_COUNT; i++) {
            int level = closeness(&range, wanted[i].type, wanted[i].versions);
            /* The closest range decides; of equals (two versions) the one with more weight. */
            if (level && (level > close[i] || (level == close[i] && range.weight > weights[i]))) {
                close[i] = level;
                weights[i] = range.weight;
            }
        }
    }
    return close[RP_EXPOSITION_OPENMETRICS] == 3 && weights[RP_EXPOSITION_OPENMETRICS] > 0 &&
                   weights[RP_EXPOSITION_OPENMETRICS] >= weights[RP_EXPOSITION_PROMETHEUS]
               ? RP_EXPOSITION_OPENMETRICS
               : RP_EXPOSITION_PROMETHEUS;
}
