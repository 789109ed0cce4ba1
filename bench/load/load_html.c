/* load_html.c - the HTML page of one or several runs (load_report.h). */
#include "base/memory.h"
#include "bench/load/load_charts.h"
#include "bench/load/svg_chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c1e21;--dim:#5f6368;--grid:#e3e5e8;"
    "--card:#f6f7f9;--c0:#1f6fd0;--c1:#c2510c;--c2:#7a3fb8;--c3:#1a8554;--c4:#0f7c8c;--c5:#c4262e;"
    "--warn:#fdecea}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e6e8eb;--dim:#9aa0a6;"
    "--grid:#2d3136;--card:#1e2125;--c0:#6cabf7;--c1:#f0955c;--c2:#b892ea;--c3:#5cc795;"
    "--c4:#58c0d0;--c5:#f2777d;--warn:#3b2022}}\n"
    "body{margin:0 auto;padding:24px 20px;max-width:1240px;background:var(--bg);color:var(--fg);"
    "font:14px/1.45 system-ui,sans-serif}h1{font-size:22px;margin:0 0 4px}h2{font-size:18px;"
    "margin:32px 0 8px}p{margin:4px 0}.dim{color:var(--dim)}code{overflow-wrap:anywhere}\n"
    ".warn{background:var(--warn);border-left:4px solid var(--c5);padding:8px 12px;margin:12px 0}"
    ".cards{display:flex;flex-wrap:wrap;gap:10px;margin:14px 0}.card{background:var(--card);"
    "border-radius:8px;padding:8px 14px}.card b{display:block;font-size:19px}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;margin:10px 0;"
    "font-variant-numeric:tabular-nums}th,td{padding:4px 12px;text-align:right;"
    "border-bottom:1px solid var(--grid)}th:first-child,td:first-child{text-align:left}"
    ".names td{text-align:left;overflow-wrap:anywhere}\n"
    ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));"
    "gap:18px}figure{margin:0;background:var(--card);border-radius:8px;padding:10px}"
    "figcaption b{margin-right:14px}.key{margin-right:12px;color:var(--dim)}.key i{"
    "display:inline-block;width:14px;height:0;margin-right:4px;vertical-align:middle;"
    "border-top:3px solid currentColor}.key .dashed{border-top-style:dashed}svg{width:100%;"
    "height:auto;display:block}\n"
    ".tick{font-size:11px;fill:var(--dim)}.name{font-size:12px;fill:var(--dim)}.grid{"
    "stroke:var(--grid);stroke-width:1}.axis{stroke:var(--dim);stroke-width:1}.mark{"
    "stroke:var(--fg);stroke-width:1;stroke-dasharray:5 4}.shade{fill:var(--dim);"
    "fill-opacity:.14}.line{fill:none;stroke:currentColor;stroke-width:1.8}.line.grid{"
    "stroke:var(--dim)}.line.dashed{stroke-dasharray:5 4}.dots{fill:none;stroke:currentColor;"
    "stroke-width:3.2;stroke-linecap:round;stroke-opacity:.55}rect{fill:currentColor}"
    ".c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}"
    ".c4{color:var(--c4)}.c5{color:var(--c5)}\n";

static const char *title_of(const struct rp_load_report *report) {
    return report->model ? report->model : "a load test";
}

static void write_tile(struct rp_buffer *out, const char *name, double value, const char *unit) {
    rp_buffer_printf(out, "<div class=\"card\"><b>%.*f%s</b>%s</div>\n",
                     value >= 1000 || value == floor(value) ? 0 : 2, value, unit, name);
}

static void write_tiles(const struct rp_load_report *report, struct rp_buffer *out) {
    const struct rp_load_summary *summary = report->summary;
    double prompt = (double)RP_MAX(summary->prompt_tokens, (uint64_t)1);
    rp_buffer_puts(out, "<div class=\"cards\">\n");
    write_tile(out, "requests completed", summary->completed, "");
    write_tile(out, "failed", rp_load_failed(summary), "");
    write_tile(out, "seconds", summary->seconds, "");
    if (summary->offered_rate > 0)
        write_tile(out, "requests offered", summary->offered_rate, "/s");
    write_tile(out, "requests", summary->request_rate, "/s");
    if (summary->goodput > 0)
        write_tile(out, "goodput", summary->goodput, "/s");
    write_tile(out, "output tokens", summary->output_rate, "/s");
    write_tile(out, "all tokens", summary->total_rate, "/s");
    write_tile(out, "most in flight", summary->max_in_flight, "");
    if (summary->cached_reported)
        write_tile(out, "prompt tokens cached", 100 * (double)summary->cached_tokens / prompt,
                   " %");
    if (summary->expected_cached_tokens)
        write_tile(out, "cached by an unbounded cache",
                   100 * (double)summary->expected_cached_tokens / prompt, " %");
    write_tile(out, "client lag at p99", summary->lag.p99, " ms");
    rp_buffer_puts(out, "</div>\n");
}

static void write_stat_row(struct rp_buffer *out, const char *name,
                           const struct rp_load_stat *stat) {
    const double values[] = {stat->mean, stat->std, stat->p50, stat->p90,
                             stat->p95,  stat->p99, stat->max};
    rp_buffer_printf(out, "<tr><td>%s</td>", name);
    for (size_t i = 0; i < RP_ARRAY_COUNT(values); i++)
        if (stat->count)
            rp_buffer_printf(out, "<td>%.2f</td>", values[i]);
        else
            rp_buffer_puts(out, "<td>-</td>");
    rp_buffer_printf(out, "<td>%llu</td></tr>\n", (unsigned long long)stat->count);
}

static void write_stats(const struct rp_load_report *report, struct rp_buffer *out) {
    const struct rp_load_summary *summary = report->summary;
    rp_buffer_puts(out, "<div class=\"wide\"><table><tr><th>ms</th><th>mean</th><th>std</th>"
                        "<th>p50</th><th>p90</th><th>p95</th><th>p99</th><th>max</th>"
                        "<th>samples</th></tr>\n");
    write_stat_row(out, "TTFT, time to first token", &summary->latency[RP_LOAD_TTFT]);
    write_stat_row(out, "TPOT, time per output token after the first",
                   &summary->latency[RP_LOAD_TPOT]);
    write_stat_row(out, "ITL, time between two chunks", &summary->latency[RP_LOAD_ITL]);
    write_stat_row(out, "E2EL, end to end", &summary->latency[RP_LOAD_E2EL]);
    write_stat_row(out, "TTFT from the actual send", &summary->service[RP_LOAD_TTFT]);
    write_stat_row(out, "E2EL from the actual send", &summary->service[RP_LOAD_E2EL]);
    write_stat_row(out, "client lag", &summary->lag);
    rp_buffer_puts(out, "</table></div>\n");
}

static void write_name(struct rp_buffer *out, const char *name, const char *value) {
    if (!value || !*value)
        return;
    rp_buffer_puts(out, "<tr><td>");
    rp_html_escape(out, name);
    rp_buffer_puts(out, "</td><td>");
    rp_html_escape(out, value);
    rp_buffer_puts(out, "</td></tr>\n");
}

static void write_failures(const struct rp_load_report *report, struct rp_buffer *out) {
    const struct rp_load_records *records = report->records;
    for (int i = 1; i < RP_LOAD_OUTCOMES; i++) {
        char text[160] = "";
        if (report->summary->outcomes[i] == 0)
            continue;
        for (uint32_t r = 0; records && r < records->count && !*text; r++)
            if ((int)records->records[r].outcome == i && *records->records[r].error)
                snprintf(text, sizeof text, "%u; first: %.96s", report->summary->outcomes[i],
                         records->records[r].error);
        if (!*text)
            snprintf(text, sizeof text, "%u", report->summary->outcomes[i]);
        write_name(out, rp_load_outcome_name((enum rp_load_outcome)i), text);
    }
}

static void write_names(const struct rp_load_report *report, struct rp_buffer *out) {
    char text[160];
    rp_buffer_puts(out, "<div class=\"wide\"><table class=\"names\">\n");
    write_name(out, "model", report->model);
    write_name(out, "label", report->label);
    write_name(out, "backend", report->backend);
    write_name(out, "server", report->server_version);
    write_name(out, "date", report->date);
    write_name(out, "command", report->command);
    write_name(out, "reprise", RP_VERSION);
    if (report->source) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)report->source->seed);
        write_name(out, "seed", text);
        write_name(out, "trace or text", report->source->path);
    }
    if (report->summary->skipped) {
        snprintf(text, sizeof text, "%u", report->summary->skipped);
        write_name(out, "skipped, beyond the model's context", text);
    }
    if (report->summary->warm_up) {
        snprintf(text, sizeof text, "%.2f s, %u requests excluded",
                 report->summary->warm_up_seconds, report->summary->warm_up);
        write_name(out, "warm-up", text);
    }
    for (uint32_t i = 0; i < report->metadata_count; i++) {
        char *key = rp_strndup(report->metadata[i].key, report->metadata[i].key_len);
        if (key)
            write_name(out, key, report->metadata[i].value);
        rp_free(key);
    }
    write_failures(report, out);
    rp_buffer_puts(out, "</table></div>\n");
}

static void write_run(const struct rp_load_report *report, struct rp_buffer *out) {
    if (!report->summary->reliable) {
        rp_buffer_puts(out, "<p class=\"warn\"><b>Unreliable:</b> ");
        rp_html_escape(out, report->summary->why_not);
        rp_buffer_puts(out, "</p>\n");
    }
    write_tiles(report, out);
    write_stats(report, out);
    if (report->records) {
        rp_buffer_puts(out, "<div class=\"figures\">\n");
        rp_load_charts_run(report, out);
        rp_buffer_puts(out, "</div>\n");
    }
    write_names(report, out);
}

/* ---- several runs --------------------------------------------------------------------------- */

static bool meets_bounds(const struct rp_load_summary *summary,
                         const struct rp_load_goodput *bounds) {
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        if (bounds->ms[q] > 0 && summary->latency[q].p99 > bounds->ms[q])
            return false;
    return summary->completed > 0;
}

static void write_runs(const struct rp_load_report *reports, const uint32_t *order, uint32_t count,
                       const struct rp_load_objective *objective, struct rp_buffer *out) {
    const char *unit;
    (void)rp_load_offered(&reports[order[0]], &unit);
    rp_buffer_printf(out,
                     "<div class=\"wide\"><table><tr><th>run</th><th>%s</th><th>requests/s</th>"
                     "<th>goodput</th><th>tokens/s</th><th>TTFT p99</th><th>TPOT p99</th>"
                     "<th>E2EL p99</th><th>failed</th><th>reliable</th>%s</tr>\n",
                     unit, objective ? "<th>objective</th>" : "");
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_load_report *report = &reports[order[i]];
        const struct rp_load_summary *summary = report->summary;
        rp_buffer_puts(out, "<tr><td>");
        rp_html_escape(out, report->label ? report->label : title_of(report));
        rp_buffer_printf(out,
                         "</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.1f</td><td>%.2f</td>"
                         "<td>%.2f</td><td>%.2f</td><td>%u</td><td>%s</td>",
                         rp_load_offered(report, &unit), summary->request_rate, summary->goodput,
                         summary->output_rate, summary->latency[RP_LOAD_TTFT].p99,
                         summary->latency[RP_LOAD_TPOT].p99, summary->latency[RP_LOAD_E2EL].p99,
                         rp_load_failed(summary), summary->reliable ? "yes" : "no");
        if (objective)
            rp_buffer_puts(out, meets_bounds(summary, &objective->bounds) ? "<td>met</td>"
                                                                          : "<td>failed</td>");
        rp_buffer_puts(out, "</tr>\n");
    }
    rp_buffer_puts(out, "</table></div>\n");
}

static void write_objective(const struct rp_load_objective *objective, struct rp_buffer *out) {
    rp_buffer_puts(out, "<p>Objective");
    if (objective->name) {
        rp_buffer_puts(out, " ");
        rp_html_escape(out, objective->name);
    }
    rp_buffer_puts(out, ", at p99:");
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        if (objective->bounds.ms[q] > 0)
            rp_buffer_printf(out, " %s %.6g ms", rp_load_quantity_name((enum rp_load_quantity)q),
                             objective->bounds.ms[q]);
    if (objective->highest_rate > 0)
        rp_buffer_printf(out, ". It is met up to <b>%.4g requests/s</b>.</p>\n",
                         objective->highest_rate);
    else
        rp_buffer_puts(out, ".</p>\n");
}

/* Stable sort by ascending offered load. */
static void sort_runs(const struct rp_load_report *reports, uint32_t *order, uint32_t count) {
    const char *unit;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        double load = rp_load_offered(&reports[i], &unit);
        for (; at > 0 && rp_load_offered(&reports[order[at - 1]], &unit) > load; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

static void write_list(const struct rp_load_report *reports, uint32_t count,
                       const struct rp_load_objective *objective, struct rp_buffer *out) {
    uint32_t *order = rp_calloc(count, sizeof *order);
    if (!order) {
        out->failed = true;
        return;
    }
    sort_runs(reports, order, count);
    if (objective)
        write_objective(objective, out);
    rp_buffer_puts(out, "<div class=\"figures\">\n");
    rp_load_charts_list(reports, order, count, objective, out);
    rp_buffer_puts(out, "</div>\n");
    write_runs(reports, order, count, objective, out);
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_load_report *report = &reports[order[i]];
        const char *unit;
        if (!report->records)
            continue;
        double load = rp_load_offered(report, &unit);
        rp_buffer_puts(out, "<h2>");
        rp_html_escape(out, report->label ? report->label : title_of(report));
        rp_buffer_printf(out, ", %.4g %s</h2>\n", load, unit);
        write_run(report, out);
    }
    rp_free(order);
}

void rp_load_html_write(const struct rp_load_report *reports, uint32_t count,
                        const struct rp_load_objective *objective, struct rp_buffer *out) {
    const char *title = count ? title_of(&reports[0]) : "no run";
    rp_buffer_puts(out,
                   "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                   "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                   "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                   "style-src 'unsafe-inline'\">\n<title>");
    rp_html_escape(out, title);
    rp_buffer_puts(out, ": load test</title>\n<style>\n");
    rp_buffer_puts(out, style);
    rp_buffer_puts(out, "</style></head><body>\n<h1>");
    rp_html_escape(out, title);
    rp_buffer_puts(out, "</h1>\n<p class=\"dim\">Latencies count from the intended send time. "
                        "Shaded: the warm-up, which is excluded.</p>\n");
    if (count == 1)
        write_run(&reports[0], out);
    else if (count > 1)
        write_list(reports, count, objective, out);
    rp_buffer_puts(out, "</body></html>\n");
}
