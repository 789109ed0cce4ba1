/* load_table.c - the table of a run for a terminal: the lines of `vllm bench serve`, and more. */
#include "bench/load/load_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 50 /* as in vllm */

static void rule(struct rp_buffer *out, char fill, const char *title) {
    size_t len = strlen(title), left = (WIDTH - RP_MIN(len, (size_t)WIDTH)) / 2;
    char line[WIDTH + 1];
    memset(line, fill, WIDTH);
    line[WIDTH] = '\0';
    rp_buffer_append(out, line, left);
    rp_buffer_puts(out, title);
    rp_buffer_append(out, line, len < WIDTH ? WIDTH - left - len : 0);
    rp_buffer_puts(out, "\n");
}

static void line_uint(struct rp_buffer *out, const char *name, uint64_t value) {
    rp_buffer_printf(out, "%-40s %llu\n", name, (unsigned long long)value);
}

static void line_real(struct rp_buffer *out, const char *name, double value) {
    rp_buffer_printf(out, "%-40s %.2f\n", name, value);
}

/* Replaces control and non-ASCII characters: a server's text must not control the terminal. */
static void put_plain(struct rp_buffer *out, const char *text, size_t max) {
    for (size_t i = 0; text[i] && i < max; i++) {
        unsigned char c = (unsigned char)text[i];
        char plain = (char)(c < 0x20 || c >= 0x7f ? '?' : c);
        rp_buffer_append(out, &plain, 1);
    }
}

static void write_section(struct rp_buffer *out, const char *title, const char *name,
                          const struct rp_load_stat *latency, const struct rp_load_stat *service) {
    const struct {
        const char *name;
        double value, service;
    } lines[] = {{"Mean", latency->mean, service->mean}, {"Median", latency->p50, service->p50},
                 {"P90", latency->p90, service->p90},    {"P95", latency->p95, service->p95},
                 {"P99", latency->p99, service->p99},    {"Max", latency->max, service->max}};
    bool same = memcmp(latency, service, sizeof *latency) == 0;
    rule(out, '-', title);
    if (latency->count == 0) {
        rp_buffer_printf(out, "no samples\n");
        return;
    }
    for (size_t i = 0; i < RP_ARRAY_COUNT(lines); i++) {
        char label[48];
        snprintf(label, sizeof label, "%s %s (ms):", lines[i].name, name);
        if (same)
            line_real(out, label, lines[i].value);
        else
            rp_buffer_printf(out, "%-40s %-10.2f from actual send: %.2f\n", label, lines[i].value,
                             lines[i].service);
    }
}

static void write_failures(struct rp_buffer *out, const struct rp_load_report *report) {
    static const char *const names[RP_LOAD_OUTCOMES] = {
        [RP_LOAD_NOT_SENT] = "  not sent before the end of the run:",
        [RP_LOAD_CONNECT] = "  no connection:",
        [RP_LOAD_RESET] = "  connection closed in the middle:",
        [RP_LOAD_STATUS] = "  HTTP status other than 200:",
        [RP_LOAD_BAD_ANSWER] = "  malformed answer:",
        [RP_LOAD_SERVER_ERROR] = "  error object in the stream:",
        [RP_LOAD_SHORT] = "  fewer tokens than requested:",
        [RP_LOAD_TIMEOUT] = "  timeout:"};
    const struct rp_load_summary *summary = report->summary;
    for (int i = 0; i < RP_LOAD_OUTCOMES; i++) {
        if (i == RP_LOAD_OK || summary->outcomes[i] == 0)
            continue;
        line_uint(out, names[i], summary->outcomes[i]);
        for (uint32_t r = 0; report->records && r < report->records->count; r++) {
            const struct rp_load_record *record = &report->records->records[r];
            if ((int)record->outcome != i || !*record->error)
                continue;
            rp_buffer_puts(out, "    first: ");
            put_plain(out, record->error, sizeof record->error);
            rp_buffer_puts(out, "\n");
            break;
        }
    }
}

static void write_cache(struct rp_buffer *out, const struct rp_load_summary *summary) {
    double prompt = (double)RP_MAX(summary->prompt_tokens, (uint64_t)1);
    if (summary->cached_reported)
        line_real(out, "Prefix cache hits (% of prompt tokens):",
                  100.0 * (double)summary->cached_tokens / prompt);
    if (summary->expected_cached_tokens)
        line_real(out, "  of an unbounded cache (%):",
                  100.0 * (double)summary->expected_cached_tokens / prompt);
}

static void write_head(struct rp_buffer *out, const struct rp_load_report *report) {
    const struct rp_load_summary *summary = report->summary;
    const struct rp_load_goodput *bounds = &report->rules->goodput;
    line_uint(out, "Successful requests:", summary->completed);
    line_uint(out, "Failed requests:", rp_load_failed(summary));
    write_failures(out, report);
    if (summary->skipped)
        line_uint(out, "Skipped, beyond the model's context:", summary->skipped);
    if (report->max_concurrency)
        line_uint(out, "Maximum request concurrency:", report->max_concurrency);
    if (isfinite(report->request_rate))
        line_real(out, "Request rate configured (RPS):", report->request_rate);
    if (summary->offered_rate > 0)
        line_real(out, "Request rate offered (RPS):", summary->offered_rate);
    line_real(out, "Benchmark duration (s):", summary->seconds);
    if (summary->warm_up) {
        line_real(out, "  preceding warm-up (s):", summary->warm_up_seconds);
        line_uint(out, "  requests excluded as warm-up:", summary->warm_up);
    }
    line_uint(out, "Total input tokens:", summary->input_tokens);
    line_uint(out, "Total generated tokens:", summary->output_tokens);
    line_real(out, "Request throughput (req/s):", summary->request_rate);
    if (bounds->ms[RP_LOAD_TTFT] > 0 || bounds->ms[RP_LOAD_TPOT] > 0 ||
        bounds->ms[RP_LOAD_E2EL] > 0)
        line_real(out, "Request goodput (req/s):", summary->goodput);
    line_real(out, "Output token throughput (tok/s):", summary->output_rate);
    line_real(out, "Total token throughput (tok/s):", summary->total_rate);
    line_uint(out, "Peak concurrent requests:", summary->max_in_flight);
    write_cache(out, summary);
    line_real(out, "Client lag, p99 (ms):", summary->lag.p99);
}

void rp_load_table_write(const struct rp_load_report *report, struct rp_buffer *out) {
    static const struct {
        const char *title, *name;
    } sections[RP_LOAD_QUANTITIES] = {
        [RP_LOAD_TTFT] = {"Time to First Token", "TTFT"},
        [RP_LOAD_TPOT] = {"Time per Output Token (excl. 1st token)", "TPOT"},
        [RP_LOAD_ITL] = {"Inter-token Latency", "ITL"},
        [RP_LOAD_E2EL] = {"End-to-end Latency", "E2EL"}};
    const struct rp_load_summary *summary = report->summary;
    rule(out, '=', " Serving Benchmark Result ");
    if (report->model) {
        rp_buffer_puts(out, "Model: ");
        put_plain(out, report->model, 256);
        rp_buffer_puts(out, "\n");
    }
    write_head(out, report);
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        write_section(out, sections[q].title, sections[q].name, &summary->latency[q],
                      &summary->service[q]);
    rule(out, '=', "");
    if (!summary->reliable)
        rp_buffer_printf(out, "UNRELIABLE: %s.\n", summary->why_not);
}
