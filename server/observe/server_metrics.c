#include "server/observe/server_metrics.h"

#include "engine/engine.h"
#include "metrics/tick.h"
#include "server/observe/trace_context.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Each includes the bucket edges of vLLM and OpenTelemetry, and finer ones below: a small model
 * answers within 1 ms. */
static const double ttft_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06,
                                     0.08,   0.1,   0.25,   0.5,   0.75, 1,    2.5,  5,
                                     7.5,    10,    20,     40,    80,   160,  640,  2560};
static const double token_time_bounds[] = {
    0.0005, 0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15,
    0.2,    0.3,   0.4,   0.5,   0.75,  1,     2.5,   5,    7.5,   10,    20,   40,    80};
/* Bounds for request durations; they include OpenTelemetry's edges 0.01 to 81.92, doubling. */
static const double phase_bounds[] = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.025, 0.04, 0.05, 0.08, 0.1,  0.16, 0.2,   0.3, 0.32,
    0.5,    0.64,  0.8,    1,     1.28, 1.5,  2,     2.5,  2.56, 5,    5.12, 10,   10.24, 15,  20,
    20.48,  30,    40,     40.96, 50,   60,   81.92, 120,  240,  480,  960,  1920, 7680};
static const double token_bounds[] = {1,     2,      5,      10,     20,   50,    100,
                                      200,   500,    1000,   2000,   5000, 10000, 20000,
                                      50000, 100000, 200000, 500000, 1e6,  2e6,   5e6};
static const double choice_bounds[] = {1, 2, 5, 10, 20};

#define INIT(histogram, bounds) rp_histogram_init(histogram, bounds, RP_ARRAY_COUNT(bounds))

void rp_server_metrics_init(struct rp_server_metrics *metrics) {
    memset(metrics, 0, sizeof *metrics);
    INIT(&metrics->ttft, ttft_bounds);
    INIT(&metrics->inter_token, token_time_bounds);
    INIT(&metrics->inter_write, token_time_bounds);
    INIT(&metrics->tpot, token_time_bounds);
    struct rp_histogram *const phases[] = {&metrics->e2e, &metrics->queue, &metrics->prefill,
                                           &metrics->decode, &metrics->inference};
    struct rp_histogram *const tokens[] = {&metrics->prompt_tokens, &metrics->generation_tokens,
                                           &metrics->max_tokens, &metrics->computed_tokens};
    for (size_t i = 0; i < RP_ARRAY_COUNT(phases); i++)
        INIT(phases[i], phase_bounds);
    for (size_t i = 0; i < RP_ARRAY_COUNT(tokens); i++)
        INIT(tokens[i], token_bounds);
    INIT(&metrics->choices, choice_bounds);
    metrics->ttft.exemplars = &metrics->traced[RP_TRACED_TTFT];
    metrics->inter_token.exemplars = &metrics->traced[RP_TRACED_ITL];
    metrics->inter_write.exemplars = &metrics->traced[RP_TRACED_WRITE];
    metrics->tpot.exemplars = &metrics->traced[RP_TRACED_TPOT];
    metrics->e2e.exemplars = &metrics->traced[RP_TRACED_E2E];
    metrics->queue.exemplars = &metrics->traced[RP_TRACED_QUEUE];
    rp_gauge_set(&metrics->start_time, (int64_t)time(NULL));
}

void rp_server_metrics_register(struct rp_server_metrics *metrics,
                                const struct rp_metric_sources *sources,
                                struct rp_registry *registry) {
    double longest = rp_engine_max_model_len(sources->engine);
    metrics->engine = sources->engine;
    metrics->recorder = sources->recorder;
    metrics->price_per_hour = sources->price_per_hour;
    memcpy(metrics->startup, sources->startup, sizeof metrics->startup);
    while (metrics->token_bound_count < RP_ARRAY_COUNT(token_bounds) &&
           token_bounds[metrics->token_bound_count] <= longest)
        metrics->token_bound_count++;
    rp_server_metrics_add_own(metrics, registry);
    rp_server_latency_register(&metrics->latency, registry);
    rp_server_metrics_add_vllm(metrics, sources->model_name, registry);
    rp_server_metrics_add_otel(metrics, sources->model_name, registry);
}

/* --- Requests -------------------------------------------------------------------------------- */

static void observe(struct rp_histogram *histogram, double seconds,
                    const struct rp_trace_context *trace) {
    if (trace)
        rp_histogram_observe_at(histogram, seconds, trace->trace_high, trace->trace_low,
                                rp_unix_ms());
    else
        rp_histogram_observe(histogram, seconds);
}

void rp_server_metrics_token(struct rp_server_metrics *metrics, bool first, uint64_t now_ns,
                             uint64_t since_ns, const struct rp_trace_context *trace) {
    rp_latency_record(&metrics->latency.series[first ? RP_LATENCY_TTFT : RP_LATENCY_INTER_TOKEN],
                      now_ns, since_ns);
    observe(first ? &metrics->ttft : &metrics->inter_token, (double)since_ns * 1e-9, trace);
}

void rp_server_metrics_written(struct rp_server_metrics *metrics, uint32_t tokens,
                               uint64_t since_ns, const struct rp_trace_context *trace) {
    observe(&metrics->inter_write, (double)since_ns * 1e-9, trace);
    for (uint32_t i = 1; i < tokens; i++)
        rp_histogram_observe(&metrics->inter_write, 0);
}

static void record_windows(struct rp_server_latency *latency,
                           const struct rp_closed_request *closed) {
    const struct rp_request *request = closed->request;
    uint64_t now = rp_tick_ns(), first = request->first_token_ns, last = closed->last_token_ns;
    if (request->scheduled_ns)
        rp_server_latency_span(latency, RP_LATENCY_QUEUE, now, request->submit_ns,
                               request->scheduled_ns);
    if (closed->outcome > RP_OUTCOME_LENGTH)
        return;
    rp_server_latency_span(latency, RP_LATENCY_E2E, now, closed->first_byte_ns, now);
    rp_server_latency_span(latency, RP_LATENCY_PREFILL, now, request->scheduled_ns, first);
    rp_server_latency_span(latency, RP_LATENCY_DECODE, now, first, last);
    if (closed->tokens > 1 && last >= first)
        rp_server_latency_span(latency, RP_LATENCY_PER_TOKEN, now, first,
                               first + (last - first) / (closed->tokens - 1));
}

/* Engine times may be missing (0) or, for a failed request, out of order: no duration is
 * recorded. */
static bool spans(uint64_t from_ns, uint64_t to_ns, double *out_seconds) {
    *out_seconds = (double)(to_ns - from_ns) * 1e-9;
    return from_ns && to_ns >= from_ns;
}

void rp_server_metrics_closed(struct rp_server_metrics *metrics,
                              const struct rp_closed_request *closed) {
    const struct rp_request *request = closed->request;
    double seconds;
    record_windows(&metrics->latency, closed);
    rp_counter_add(&metrics->finished[closed->outcome], 1);
    rp_histogram_observe(&metrics->prompt_tokens, request->prompt_count);
    rp_histogram_observe(&metrics->generation_tokens, closed->tokens);
    rp_histogram_observe(&metrics->max_tokens, request->max_tokens);
    if (closed->choices)
        rp_histogram_observe(&metrics->choices, closed->choices);
    if (request->scheduled_ns && spans(request->submit_ns, request->scheduled_ns, &seconds))
        observe(&metrics->queue, seconds, closed->trace);
    if (closed->outcome > RP_OUTCOME_LENGTH)
        return;
    rp_histogram_observe(&metrics->computed_tokens,
                         request->prompt_count -
                             RP_MIN(request->prompt_count, request->cached_tokens));
    if (spans(closed->first_byte_ns, rp_tick_ns(), &seconds))
        observe(&metrics->e2e, seconds, closed->trace);
    if (spans(request->scheduled_ns, request->first_token_ns, &seconds))
        rp_histogram_observe(&metrics->prefill, seconds);
    if (spans(request->scheduled_ns, closed->last_token_ns, &seconds))
        rp_histogram_observe(&metrics->inference, seconds);
    if (!spans(request->first_token_ns, closed->last_token_ns, &seconds))
        return;
    rp_histogram_observe(&metrics->decode, seconds);
    if (closed->tokens > 1)
        observe(&metrics->tpot, seconds / (closed->tokens - 1), closed->trace);
}

/* --- The system ------------------------------------------------------------------------------ */

void rp_server_metrics_sample(struct rp_server_metrics *metrics) {
    unsigned long long pages, resident;
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%llu %llu", &pages, &resident) == 2) {
            rp_gauge_set(&metrics->virtual_bytes, (int64_t)(pages * page_bytes));
            rp_gauge_set(&metrics->resident_bytes, (int64_t)(resident * page_bytes));
        }
        fclose(file);
    }
    DIR *dir = opendir("/proc/self/fd");
    if (dir) {
        int64_t count = -3; /* excludes ".", ".." and the descriptor of this directory */
        while (readdir(dir))
            count++;
        closedir(dir);
        rp_gauge_set(&metrics->open_fds, count);
    }
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        rp_gauge_set(&metrics->max_fds, (int64_t)RP_MIN(limit.rlim_cur, (rlim_t)INT64_MAX));
}
