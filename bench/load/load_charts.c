#include "bench/load/load_charts.h"

#include "base/memory.h"
#include "bench/load/load_warmup.h"
#include "bench/load/svg_chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIME_PARTS  160u
#define GAP_BARS    60u
#define TAIL_POINTS 240u
#define DOTS_MAX    20000u /* per class; more are sampled, but the highest are always drawn */

struct points {
    double *x, *y;
    uint32_t count;
};

static bool points_open(struct points *points, size_t room, struct rp_buffer *out) {
    points->count = 0;
    points->x = rp_calloc(room + 1, sizeof(double));
    points->y = rp_calloc(room + 1, sizeof(double));
    if (points->x && points->y)
        return true;
    out->failed = true;
    return false;
}

static void points_close(struct points *points) {
    rp_free(points->x);
    rp_free(points->y);
}

static void add(struct points *points, double x, double y) {
    points->x[points->count] = x;
    points->y[points->count++] = y;
}

static double highest(const struct points *points) {
    double most = 0.0;
    for (uint32_t i = 0; i < points->count; i++)
        most = RP_MAX(most, points->y[i]);
    return most;
}

static double lowest(const struct points *points) {
    double least = INFINITY;
    for (uint32_t i = 0; i < points->count; i++)
        if (points->y[i] > 0)
            least = RP_MIN(least, points->y[i]);
    return least;
}

/* ---- figures -------------------------------------------------------------------------------- */

struct key {
    const char *css_class, *name;
};

static void figure_begin(struct rp_buffer *out, const char *title, const struct key *keys,
                         uint32_t key_count) {
    rp_buffer_printf(out, "<figure><figcaption><b>%s</b>", title);
    for (uint32_t i = 0; i < key_count; i++)
        rp_buffer_printf(out, "<span class=\"key\"><i class=\"%s\"></i>%s</span>",
                         keys[i].css_class, keys[i].name);
    rp_buffer_puts(out, "</figcaption>\n");
}

static void figure_end(struct rp_buffer *out) { rp_buffer_puts(out, "</figure>\n"); }

static struct rp_svg_axis time_axis(const struct rp_load_records *records) {
    return (struct rp_svg_axis){RP_SVG_LINEAR, 0,
                                (double)(records->end_ns - records->begin_ns) * 1e-9,
                                "seconds since the run began"};
}

static double seconds_at(const struct rp_load_records *records, uint64_t at_ns) {
    return at_ns > records->begin_ns ? (double)(at_ns - records->begin_ns) * 1e-9 : 0.0;
}

static void shade_warm_up(const struct rp_svg_chart *chart, const struct rp_load_report *report) {
    if (report->summary->warm_up_seconds > 0)
        rp_svg_shade(chart, 0, report->summary->warm_up_seconds);
}

/* ---- latency over time ---------------------------------------------------------------------- */

/* Latency of a request; `failed`: the time until it failed. Negative: not applicable. */
static double request_ms(const struct rp_load_record *record, enum rp_load_quantity quantity,
                         bool failed) {
    if (record->outcome == RP_LOAD_NOT_SENT || failed != (record->outcome != RP_LOAD_OK))
        return -1.0;
    if (!failed)
        return rp_load_latency_ms(record, record->intended_ns, quantity);
    return record->end_ns > record->intended_ns
               ? (double)(record->end_ns - record->intended_ns) * 1e-6
               : 0.0;
}

static void add_dots(const struct rp_load_records *records, enum rp_load_quantity quantity,
                     bool failed, double always_from_ms, struct points *out) {
    uint32_t step = records->count / DOTS_MAX + 1;
    for (uint32_t i = 0; i < records->count; i++) {
        const struct rp_load_record *record = &records->records[i];
        double ms = request_ms(record, quantity, failed);
        if (ms >= 0 && (failed || i % step == 0 || ms >= always_from_ms))
            add(out, seconds_at(records, record->intended_ns), RP_MAX(ms, 1e-3));
    }
}

static void chart_latency(const struct rp_load_report *report, struct rp_buffer *out) {
    static const struct key keys[] = {{"c0", "TTFT"}, {"c1", "E2EL"}, {"c5", "failed"}};
    const struct rp_load_records *records = report->records;
    const struct rp_load_summary *summary = report->summary;
    struct points sets[3] = {{0}};
    bool ready = true;
    for (int i = 0; i < 3; i++)
        ready &= points_open(&sets[i], records->count, out);
    if (ready) {
        add_dots(records, RP_LOAD_TTFT, false, summary->latency[RP_LOAD_TTFT].p99, &sets[0]);
        add_dots(records, RP_LOAD_E2EL, false, summary->latency[RP_LOAD_E2EL].p99, &sets[1]);
        add_dots(records, RP_LOAD_E2EL, true, 0, &sets[2]);
        double most = RP_MAX(highest(&sets[0]), highest(&sets[1]));
        double least = RP_MIN(lowest(&sets[0]), lowest(&sets[1]));
        struct rp_svg_chart chart = {
            out, time_axis(records), {RP_SVG_LOG, least, RP_MAX(most, highest(&sets[2])), "ms"}};
        figure_begin(out, "Latency by intended send time", keys, sets[2].count ? 3 : 2);
        rp_svg_begin(&chart, "TTFT and E2EL of each request over time");
        shade_warm_up(&chart, report);
        for (int i = 1; i >= 0; i--)
            rp_svg_dots(&chart, sets[i].x, sets[i].y, sets[i].count, keys[i].css_class);
        rp_svg_dots(&chart, sets[2].x, sets[2].y, sets[2].count, "c5");
        rp_svg_end(&chart);
        figure_end(out);
    }
    for (int i = 0; i < 3; i++)
        points_close(&sets[i]);
}

/* ---- percentiles ---------------------------------------------------------------------------- */

/* Values of the requests included in latencies, ascending. NULL: out of memory. */
static double *sorted_values(const struct rp_load_report *report, enum rp_load_quantity quantity,
                             bool service, uint64_t *count) {
    const struct rp_load_records *records = report->records;
    bool gaps = quantity == RP_LOAD_ITL;
    double *values = rp_calloc((gaps ? records->chunk_total : records->count) + 1, sizeof *values);
    *count = 0;
    for (uint32_t i = 0; values && i < records->count; i++) {
        const struct rp_load_record *record = &records->records[i];
        if (record->outcome != RP_LOAD_OK || record->intended_ns < report->summary->counted_ns)
            continue;
        const uint64_t *chunk = records->chunk_ns + record->chunks;
        for (uint32_t c = 1; gaps && c < record->chunk_count; c++)
            values[(*count)++] = (double)(chunk[c] - chunk[c - 1]) * 1e-6;
        double ms = gaps ? -1.0
                         : rp_load_latency_ms(
                               record, service ? record->sent_ns : record->intended_ns, quantity);
        if (ms >= 0)
            values[(*count)++] = ms;
    }
    if (values)
        rp_load_sort(values, *count);
    return values;
}

/* Adds quantiles up to 1 - 1 / count. */
static void add_quantiles(const double *sorted, uint64_t count, struct points *out) {
    double end = log10((double)RP_MAX(count, (uint64_t)2));
    for (uint32_t i = 0; count && i <= TAIL_POINTS; i++) {
        double q = 1 - pow(10, -end * i / TAIL_POINTS);
        add(out, q, RP_MAX(rp_load_quantile(sorted, count, q), 1e-3));
    }
}

static void chart_percentiles(const struct rp_load_report *report, struct rp_buffer *out) {
    static const struct {
        struct key key;
        enum rp_load_quantity quantity;
        bool service;
    } lines[] = {{{"c0", "TTFT"}, RP_LOAD_TTFT, false},
                 {{"c0 dashed", "TTFT from actual send"}, RP_LOAD_TTFT, true},
                 {{"c1", "E2EL"}, RP_LOAD_E2EL, false},
                 {{"c1 dashed", "E2EL from actual send"}, RP_LOAD_E2EL, true},
                 {{"c2", "ITL"}, RP_LOAD_ITL, false},
                 {{"c3", "TPOT"}, RP_LOAD_TPOT, false}};
    struct points sets[RP_ARRAY_COUNT(lines)] = {{0}};
    struct key keys[RP_ARRAY_COUNT(lines)];
    double least = INFINITY, most = 0, tail = 0.99;
    for (size_t i = 0; i < RP_ARRAY_COUNT(lines) && !out->failed; i++) {
        uint64_t count;
        double *sorted = sorted_values(report, lines[i].quantity, lines[i].service, &count);
        keys[i] = lines[i].key;
        if (!sorted)
            out->failed = true;
        else if (points_open(&sets[i], TAIL_POINTS + 1, out))
            add_quantiles(sorted, count, &sets[i]);
        rp_free(sorted);
        least = RP_MIN(least, lowest(&sets[i]));
        most = RP_MAX(most, highest(&sets[i]));
        tail = RP_MAX(tail, 1 - 1 / (double)RP_MAX(count, (uint64_t)1));
    }
    if (!out->failed) {
        struct rp_svg_chart chart = {
            out, {RP_SVG_TAIL, 0, tail, "percentile"}, {RP_SVG_LOG, least, most, "ms"}};
        figure_begin(out, "Percentiles", keys, RP_ARRAY_COUNT(lines));
        rp_svg_begin(&chart, "Latency at each percentile");
        for (size_t i = 0; i < RP_ARRAY_COUNT(lines); i++)
            rp_svg_line(&chart, sets[i].x, sets[i].y, sets[i].count, keys[i].css_class);
        rp_svg_end(&chart);
        figure_end(out);
    }
    for (size_t i = 0; i < RP_ARRAY_COUNT(lines); i++)
        points_close(&sets[i]);
}

/* ---- gaps between tokens -------------------------------------------------------------------- */

static void chart_gaps(const struct rp_load_report *report, struct rp_buffer *out) {
    uint64_t count, bars[GAP_BARS] = {0}, most = 0;
    double *sorted = sorted_values(report, RP_LOAD_ITL, false, &count);
    if (!sorted)
        out->failed = true;
    if (sorted && count) {
        double high = RP_MAX(sorted[count - 1], 1e-2);
        double low = RP_MAX(rp_load_quantile(sorted, count, 0.001), high * 1e-5);
        double width = RP_MAX(log10(high / low), 0.1) / GAP_BARS;
        for (uint64_t i = 0; i < count; i++) {
            double at = sorted[i] > low ? log10(sorted[i] / low) / width : 0;
            uint64_t *bar = &bars[RP_MIN((uint32_t)at, GAP_BARS - 1)];
            most = RP_MAX(most, ++*bar);
        }
        struct rp_svg_chart chart = {out,
                                     {RP_SVG_LOG, low, high, "ms between two chunks"},
                                     {RP_SVG_LINEAR, 0, (double)most, "gaps"}};
        figure_begin(out, "Inter-token latency", NULL, 0);
        rp_svg_begin(&chart, "Histogram of the gaps between chunks");
        for (uint32_t i = 0; i < GAP_BARS; i++)
            if (bars[i])
                rp_svg_bar(&chart, low * pow(10, width * i), low * pow(10, width * (i + 1)),
                           (double)bars[i], "c2");
        rp_svg_mark_x(&chart, report->summary->latency[RP_LOAD_ITL].p50, "p50");
        rp_svg_mark_x(&chart, report->summary->latency[RP_LOAD_ITL].p99, "p99");
        rp_svg_end(&chart);
        figure_end(out);
    }
    rp_free(sorted);
}

/* ---- the run over time ---------------------------------------------------------------------- */

static void chart_parts(const struct rp_load_report *report, const double *values,
                        const char *title, const char *unit, const char *css_class,
                        struct rp_buffer *out) {
    struct rp_svg_axis axis = time_axis(report->records);
    double part = axis.max / TIME_PARTS;
    struct points points = {0};
    if (points_open(&points, TIME_PARTS, out)) {
        for (uint32_t i = 0; i < TIME_PARTS; i++)
            add(&points, (i + 0.5) * part, values[i]);
        struct rp_svg_chart chart = {out, axis, {RP_SVG_LINEAR, 0, highest(&points), unit}};
        figure_begin(out, title, NULL, 0);
        rp_svg_begin(&chart, title);
        shade_warm_up(&chart, report);
        rp_svg_line(&chart, points.x, points.y, points.count, css_class);
        rp_svg_end(&chart);
        figure_end(out);
    }
    points_close(&points);
}

static void chart_over_time(const struct rp_load_report *report, struct rp_buffer *out) {
    const struct rp_load_records *records = report->records;
    double values[TIME_PARTS] = {0};
    double span = (double)(records->end_ns - records->begin_ns);
    double part_s = span * 1e-9 / TIME_PARTS;
    rp_load_in_flight(records, records->begin_ns, records->end_ns, values, TIME_PARTS);
    chart_parts(report, values, "Requests in flight", "requests", "c4", out);
    memset(values, 0, sizeof values);
    for (uint32_t i = 0; i < records->count; i++) {
        const struct rp_load_record *record = &records->records[i];
        double tokens =
            record->chunk_count ? (double)record->output_tokens / record->chunk_count : 0.0;
        for (uint32_t c = 0; c < record->chunk_count; c++) {
            uint64_t at_ns = records->chunk_ns[record->chunks + c];
            double at = at_ns > records->begin_ns
                            ? (double)(at_ns - records->begin_ns) / span * TIME_PARTS
                            : 0.0;
            values[RP_MIN((uint32_t)RP_MIN(at, 1e6), TIME_PARTS - 1)] += tokens / part_s;
        }
    }
    chart_parts(report, values, "Output tokens per second", "tokens/s", "c3", out);
}

void rp_load_charts_run(const struct rp_load_report *report, struct rp_buffer *out) {
    if (report->records->end_ns <= report->records->begin_ns)
        return;
    chart_latency(report, out);
    chart_percentiles(report, out);
    chart_gaps(report, out);
    chart_over_time(report, out);
}

/* ---- several runs --------------------------------------------------------------------------- */

double rp_load_offered(const struct rp_load_report *report, const char **out_unit) {
    *out_unit = "requests/s offered";
    if (report->summary->offered_rate > 0)
        return report->summary->offered_rate;
    if (isfinite(report->request_rate) && report->request_rate > 0 && !report->rules->closed)
        return report->request_rate;
    *out_unit = "requests at a time";
    return report->max_concurrency ? report->max_concurrency : report->summary->max_in_flight;
}

/* Runs in ascending order of offered load. */
struct list {
    const struct rp_load_report *reports;
    const uint32_t *order;
    uint32_t count;
    const struct rp_load_objective *objective;
    struct rp_buffer *out;
};

enum metric { REQUESTS, GOOD, TOKENS, P99 };

static double metric_of(const struct rp_load_report *report, enum metric metric,
                        enum rp_load_quantity quantity) {
    switch (metric) {
    case REQUESTS:
        return report->summary->request_rate;
    case GOOD:
        return report->summary->goodput;
    case TOKENS:
        return report->summary->output_rate;
    default:
        return report->summary->latency[quantity].p99;
    }
}

static void add_runs(const struct list *list, enum metric metric, enum rp_load_quantity quantity,
                     struct points *out) {
    const char *unit;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct rp_load_report *report = &list->reports[list->order[i]];
        add(out, rp_load_offered(report, &unit), metric_of(report, metric, quantity));
    }
}

static void draw_runs(const struct rp_svg_chart *chart, const struct points *points,
                      const char *css_class) {
    rp_svg_line(chart, points->x, points->y, points->count, css_class);
    rp_svg_dots(chart, points->x, points->y, points->count, css_class);
}

static void mark_objective(const struct list *list, const struct rp_svg_chart *chart) {
    char text[96];
    if (!list->objective || !(list->objective->highest_rate > 0))
        return;
    snprintf(text, sizeof text, "objective met up to %.4g/s", list->objective->highest_rate);
    rp_svg_mark_x(chart, list->objective->highest_rate, text);
}

/* Charts up to two metrics over the offered load. */
static void chart_runs(const struct list *list, const char *title, const char *unit,
                       const struct key *keys, const enum metric *metrics, uint32_t lines) {
    struct points sets[2] = {{0}};
    const char *offered;
    bool ready = true, rates;
    (void)rp_load_offered(&list->reports[list->order[0]], &offered);
    rates = metrics[0] == REQUESTS && strstr(offered, "/s") != NULL;
    for (uint32_t i = 0; i < lines; i++)
        ready &= points_open(&sets[i], list->count, list->out);
    if (ready) {
        for (uint32_t i = 0; i < lines; i++)
            add_runs(list, metrics[i], RP_LOAD_TTFT, &sets[i]);
        double widest = sets[0].x[list->count - 1];
        double top = RP_MAX(highest(&sets[0]), lines > 1 ? highest(&sets[1]) : 0);
        struct rp_svg_chart chart = {
            list->out, {RP_SVG_LINEAR, 0, widest, offered}, {RP_SVG_LINEAR, 0, top, unit}};
        figure_begin(list->out, title, keys, lines);
        rp_svg_begin(&chart, title);
        if (rates) {
            double most = RP_MIN(chart.x.max, chart.y.max), ends[] = {0, most};
            rp_svg_line(&chart, ends, ends, 2, "grid dashed");
        }
        mark_objective(list, &chart);
        for (uint32_t i = 0; i < lines; i++)
            draw_runs(&chart, &sets[i], keys[i].css_class);
        rp_svg_end(&chart);
        figure_end(list->out);
    }
    for (uint32_t i = 0; i < lines; i++)
        points_close(&sets[i]);
}

static void chart_tail(const struct list *list, enum rp_load_quantity quantity, const char *title,
                       const char *css_class) {
    struct points points = {0};
    const char *offered;
    double bound = list->objective ? list->objective->bounds.ms[quantity] : 0;
    (void)rp_load_offered(&list->reports[list->order[0]], &offered);
    if (points_open(&points, list->count, list->out)) {
        add_runs(list, P99, quantity, &points);
        double least = bound > 0 ? RP_MIN(lowest(&points), bound) : lowest(&points);
        struct rp_svg_chart chart = {list->out,
                                     {RP_SVG_LINEAR, 0, points.x[list->count - 1], offered},
                                     {RP_SVG_LOG, least, RP_MAX(highest(&points), bound), "ms"}};
        figure_begin(list->out, title, NULL, 0);
        rp_svg_begin(&chart, title);
        mark_objective(list, &chart);
        if (bound > 0)
            rp_svg_mark_y(&chart, bound, "objective");
        draw_runs(&chart, &points, css_class);
        rp_svg_end(&chart);
        figure_end(list->out);
    }
    points_close(&points);
}

void rp_load_charts_list(const struct rp_load_report *reports, const uint32_t *order,
                         uint32_t count, const struct rp_load_objective *objective,
                         struct rp_buffer *out) {
    static const struct key requests[] = {{"c0", "completed"}, {"c3", "good"}};
    static const struct key tokens[] = {{"c1", "output tokens"}};
    static const enum metric rates[] = {REQUESTS, GOOD}, token_rates[] = {TOKENS};
    const struct list list = {reports, order, count, objective, out};
    bool bounded = false;
    for (uint32_t i = 0; i < count; i++)
        bounded |= reports[i].summary->goodput > 0;
    if (count == 0)
        return;
    chart_runs(&list, "Requests per second", "requests/s", requests, rates, bounded ? 2 : 1);
    chart_runs(&list, "Output tokens per second", "tokens/s", tokens, token_rates, 1);
    chart_tail(&list, RP_LOAD_TTFT, "TTFT at p99", "c0");
    chart_tail(&list, RP_LOAD_TPOT, "TPOT at p99", "c3");
    chart_tail(&list, RP_LOAD_E2EL, "E2EL at p99", "c1");
}
