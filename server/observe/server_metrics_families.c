/* server_metrics_families.c - metric families under our own names, with their help texts. */
#include "base/log.h"
#include "engine/engine.h"
#include "engine/observe/page_watch.h"
#include "metrics/recorder.h"
#include "server/http/router.h"
#include "server/observe/server_metrics.h"

#include <stdio.h>
#include <sys/resource.h>

#define COUNTER(name, unit, help)                                                                  \
    { name, unit, help, RP_METRIC_COUNTER, RP_METRICS_OWN }
#define GAUGE(name, unit, help)                                                                    \
    { name, unit, help, RP_METRIC_GAUGE, RP_METRICS_OWN }
#define HISTOGRAM(name, unit, help)                                                                \
    { name, unit, help, RP_METRIC_HISTOGRAM, RP_METRICS_OWN }

/* Families with a single series, and the offset of the value in its struct. */
struct single {
    struct rp_metric_family family;
    size_t offset;
};

static void add_singles(const struct single *table, size_t count, const void *base,
                        struct rp_registry *registry) {
    for (size_t i = 0; i < count; i++)
        rp_registry_add(registry, &table[i].family, NULL, (const char *)base + table[i].offset);
}

/* --- Of requests ----------------------------------------------------------------------------- */

#define AT(field) offsetof(struct rp_server_metrics, field)

static const struct rp_metric_family requests =
    COUNTER("reprise_requests_total", NULL, "Requests that the engine has closed.");
static const struct rp_metric_family rejected =
    COUNTER("reprise_requests_rejected_total", NULL,
            "Requests answered with 429 or 503 before they reached the engine.");
static const struct rp_metric_family tool_calls =
    COUNTER("reprise_tool_calls_total", NULL,
            "Tool calls in answers: complete, or cut by the end of the answer.");
static const struct rp_metric_family tool_misses =
    COUNTER("reprise_tool_parse_misses_total", NULL,
            "Times that output began like a tool call and was text, or a call was malformed.");
static const struct single of_requests[] = {
    {HISTOGRAM("reprise_time_to_first_token_seconds", "seconds",
               "From a request's first byte on the socket to its first token."),
     AT(ttft)},
    {HISTOGRAM("reprise_inter_token_latency_seconds", "seconds",
               "Time between two tokens of a request, when the engine read them."),
     AT(inter_token)},
};
static const struct rp_metric_family prompt_tokens =
    HISTOGRAM("reprise_request_prompt_tokens", NULL, "Prompt tokens of a request.");
static const struct rp_metric_family generation_tokens =
    HISTOGRAM("reprise_request_generation_tokens", NULL, "Tokens in the answer to a request.");

/* Exposed with fewer buckets than recorded. */
static const double phase_bounds[] = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 0.5,
                                      1,     2.5,   5,    10,    20,   60,  240};
static const double mean_bounds[] = {0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.01,
                                     0.015, 0.025, 0.05,  0.1,   0.2,   0.5,   1};
static const struct {
    struct rp_metric_family family;
    size_t offset;
    const double *bounds;
    uint32_t count;
} projected[] = {
    {HISTOGRAM(
         "reprise_inter_token_write_seconds", "seconds",
         "Time between two tokens of a stream when the kernel took them for the socket; longer "
         "than the inter-token latency where the client or the loop thread is late. Tokens "
         "taken together: 0 after the first."),
     AT(inter_write), mean_bounds, RP_ARRAY_COUNT(mean_bounds)},
    {HISTOGRAM("reprise_time_per_output_token_seconds", "seconds",
               "Mean time between the tokens of a request that finished, from its first to its "
               "last."),
     AT(tpot), mean_bounds, RP_ARRAY_COUNT(mean_bounds)},
    {HISTOGRAM("reprise_request_duration_seconds", "seconds",
               "From the first byte of a request to its end, for requests that finished."),
     AT(e2e), phase_bounds, RP_ARRAY_COUNT(phase_bounds)},
    {HISTOGRAM("reprise_queue_wait_seconds", "seconds",
               "From submission to the engine to being scheduled into a step."),
     AT(queue), phase_bounds, RP_ARRAY_COUNT(phase_bounds)},
    {HISTOGRAM("reprise_request_prefill_seconds", "seconds",
               "From being scheduled into a step to the first token, for requests that finished."),
     AT(prefill), phase_bounds, RP_ARRAY_COUNT(phase_bounds)},
    {HISTOGRAM("reprise_request_decode_seconds", "seconds",
               "From the first token to the last, for requests that finished."),
     AT(decode), phase_bounds, RP_ARRAY_COUNT(phase_bounds)},
};

static void add_requests(const struct rp_server_metrics *m, struct rp_registry *r) {
    static const char *const outcomes[RP_OUTCOME_COUNT] = {
        "finish_reason=\"stop\"",      "finish_reason=\"length\"",
        "finish_reason=\"cancelled\"", "finish_reason=\"numerical_error\"",
        "finish_reason=\"error\"",     "finish_reason=\"timeout\""};
    static const char *const reasons[RP_REJECTED_COUNT] = {
        "reason=\"queue_full\"", "reason=\"draining\"", "reason=\"unhealthy\"",
        "reason=\"overload\"", "reason=\"key_limit\""};
    for (int i = 0; i < RP_OUTCOME_COUNT; i++)
        rp_registry_add(r, &requests, outcomes[i], &m->finished[i]);
    for (int i = 0; i < RP_REJECTED_COUNT; i++)
        rp_registry_add(r, &rejected, reasons[i], &m->rejected[i]);
    rp_registry_add(r, &tool_calls, "state=\"complete\"", &m->tool_calls[0]);
    rp_registry_add(r, &tool_calls, "state=\"cut\"", &m->tool_calls[1]);
    rp_registry_add(r, &tool_misses, NULL, &m->tool_misses);
    add_singles(of_requests, RP_ARRAY_COUNT(of_requests), m, r);
    for (size_t i = 0; i < RP_ARRAY_COUNT(projected); i++) {
        const char *at = (const char *)m + projected[i].offset;
        rp_registry_add_projected(r, &projected[i].family, NULL, (const struct rp_histogram *)at,
                                  projected[i].bounds, projected[i].count);
    }
    rp_registry_add_projected(r, &prompt_tokens, NULL, &m->prompt_tokens, m->prompt_tokens.bounds,
                              m->token_bound_count);
    rp_registry_add_projected(r, &generation_tokens, NULL, &m->generation_tokens,
                              m->generation_tokens.bounds, m->token_bound_count);
}

/* --- Of the engine --------------------------------------------------------------------------- */

#undef AT
#define AT(field) offsetof(struct rp_engine_metrics, field)

static const struct single of_engine[] = {
    {GAUGE("reprise_requests_running", NULL, "Requests in the batch."), AT(running)},
    {GAUGE("reprise_requests_waiting", NULL, "Requests in the queue."), AT(waiting)},
    {GAUGE("reprise_requests_swapped", NULL, "Requests whose pages are in host memory."),
     AT(swapped)},
    {GAUGE("reprise_kv_pages_capacity", NULL, "KV pages on the device."), AT(pages_total)},
    {COUNTER("reprise_prompt_tokens_total", NULL, "Prompt tokens processed."), AT(prompt_tokens)},
    {COUNTER("reprise_cached_prompt_tokens_total", NULL,
             "Prompt tokens taken from the prefix cache."),
     AT(cached_tokens)},
    {COUNTER("reprise_generated_tokens_total", NULL, "Tokens generated."), AT(generation_tokens)},
    {COUNTER("reprise_prefix_cache_queries_total", NULL, "Tokens looked up in the prefix cache."),
     AT(prefix_query_tokens)},
    {COUNTER("reprise_prefix_cache_hits_total", NULL, "Tokens found in the prefix cache."),
     AT(prefix_hit_tokens)},
    {COUNTER("reprise_padded_tokens_total", NULL, "Padding rows computed to fill a captured size."),
     AT(padded_tokens)},
    {COUNTER("reprise_step_packet_bytes_total", "bytes",
             "Bytes of step packets sent to the device."),
     AT(packet_bytes)},
    {HISTOGRAM("reprise_step_device_seconds", "seconds",
               "Device time of a step, from its first kernel to its published result."),
     AT(step_device_seconds)},
    {HISTOGRAM("reprise_step_gap_seconds", "seconds",
               "Time that the device was idle between two steps launched back to back."),
     AT(step_gap_seconds)},
    {HISTOGRAM("reprise_step_host_seconds", "seconds",
               "Engine thread time of a step: planning, launching, committing."),
     AT(step_host_seconds)},
    {HISTOGRAM("reprise_kv_page_lifetime_seconds", "seconds",
               "From taking a KV page off the free list to its return, over all requests that used "
               "it."),
     AT(page_lifetime_seconds)},
    {HISTOGRAM("reprise_kv_page_reuse_gap_seconds", "seconds",
               "Time that a cached KV page was unused before a request used it again."),
     AT(page_reuse_gap_seconds)},
    {HISTOGRAM("reprise_kv_page_eviction_idle_seconds", "seconds",
               "Time that a KV page was unused before it was evicted from the prefix cache; its "
               "count is the number of evictions."),
     AT(page_eviction_idle_seconds)},
    {HISTOGRAM("reprise_step_swap_bytes", "bytes",
               "KV page bytes that a step copied to and from host memory, of steps that swapped."),
     AT(step_swap_bytes)},
    {HISTOGRAM("reprise_step_tokens", NULL, "Tokens computed in a step, without padding."),
     AT(step_tokens)},
    {GAUGE("reprise_engine_healthy", NULL, "1, or 0 after a device error."), AT(healthy)},
    {COUNTER("reprise_device_allocations_total", NULL,
             "Allocations of device memory: none after the server is ready."),
     AT(allocations)},
    {COUNTER("reprise_invariant_violations_total", NULL,
             "Checks of the engine's invariants, one a second, that found one broken: an error of "
             "this program."),
     AT(invariant_violations)},
};
static const struct single of_experts[] = {
    {HISTOGRAM("reprise_expert_rows", NULL,
               "Rows of an expert in one layer of a step, of experts that had any."),
     AT(expert_rows)},
    {HISTOGRAM("reprise_expert_imbalance_ratio", "ratio",
               "Rows of the fullest expert divided by the mean of all experts, for each layer of a "
               "step: 1 is even."),
     AT(expert_imbalance)},
};
/* Only of models with recurrent state and a prefix cache. */
static const struct single of_snapshots[] = {
    {GAUGE("reprise_state_snapshots_capacity", NULL,
           "Snapshots of recurrent state that there is room for."),
     AT(snapshots_capacity)},
    {GAUGE("reprise_state_snapshots_kept", NULL,
           "Snapshots of recurrent state that a prompt with the same beginning can use."),
     AT(snapshots_kept)},
    {COUNTER("reprise_state_snapshots_saved_total", NULL, "Snapshots of recurrent state kept."),
     AT(snapshots_saved)},
    {COUNTER("reprise_state_snapshot_hits_total", NULL,
             "Prompts that began with a snapshot of recurrent state."),
     AT(snapshot_hits)},
    {COUNTER("reprise_state_snapshot_evictions_total", NULL,
             "Snapshots of recurrent state evicted for newer ones."),
     AT(snapshot_evictions)},
};
static const struct rp_metric_family pages =
    GAUGE("reprise_kv_pages", NULL,
          "KV pages by state: free ones are empty, held ones belong to admitted requests, cached "
          "ones to none and can be reused by equal prompts. The sum is the capacity.");
static const struct rp_metric_family steps =
    COUNTER("reprise_steps_total", NULL, "Steps: with decode rows only, or also with prompts.");
static const struct rp_metric_family preemptions =
    COUNTER("reprise_preemptions_total", NULL,
            "Requests swapped out, by reason (pages: an older request needed a page for its next "
            "token) and by "
            "phase.");
static const struct rp_metric_family swapped_bytes =
    COUNTER("reprise_kv_swapped_bytes_total", "bytes",
            "KV page bytes copied between device and host memory by swaps, by direction.");
static const struct rp_metric_family step_duration =
    HISTOGRAM("reprise_step_duration_seconds", "seconds",
              "From launching a step to reading its result, by kind of step.");
static const struct rp_metric_family memory =
    GAUGE("reprise_device_memory_bytes", "bytes",
          "Device memory allocated when the server is ready, by use.");

static const struct rp_metric_family fragmentation =
    GAUGE("reprise_kv_fragmentation_ratio", "ratio",
          "Share of token slots in the pages of running requests that are still empty.");

static void collect_fragmentation(void *ctx, struct rp_metric_out *out) {
    struct rp_page_use use = {.held = 0};
    rp_engine_page_use(ctx, &use);
    double places = (double)(use.held - use.pending) * use.page_tokens;
    rp_metric_put(out, NULL, places > 0 ? RP_MIN((double)use.wasted_tokens / places, 1) : 0);
}

static void add_engine(const struct rp_engine_metrics *e, struct rp_registry *r) {
    static const char *const uses[RP_MEMORY_USE_COUNT] = {
        [RP_MEMORY_CONTEXT] = "kind=\"context\"",
        [RP_MEMORY_WEIGHTS] = "kind=\"weights\"",
        [RP_MEMORY_ACTIVATIONS] = "kind=\"activations\"",
        [RP_MEMORY_WORKSPACE] = "kind=\"workspace\"",
        [RP_MEMORY_GRAPHS] = "kind=\"graphs\"",
        [RP_MEMORY_SLOTS] = "kind=\"slots\"",
        [RP_MEMORY_STATE] = "kind=\"state\"",
        [RP_MEMORY_KV] = "kind=\"kv\""};
    add_singles(of_engine, RP_ARRAY_COUNT(of_engine), e, r);
    if (e->expert_rows.bounds)
        add_singles(of_experts, RP_ARRAY_COUNT(of_experts), e, r);
    if (rp_gauge_read(&e->snapshots_capacity))
        add_singles(of_snapshots, RP_ARRAY_COUNT(of_snapshots), e, r);
    rp_registry_add(r, &pages, "state=\"free\"", &e->pages_free);
    rp_registry_add(r, &pages, "state=\"held\"", &e->pages_held);
    rp_registry_add(r, &pages, "state=\"cached\"", &e->pages_cached);
    rp_registry_add(r, &steps, "kind=\"decode\"", &e->decode_steps);
    rp_registry_add(r, &steps, "kind=\"mixed\"", &e->mixed_steps);
    rp_registry_add(r, &preemptions, "cause=\"pages\",phase=\"prefill\"",
                    &e->preempted[RP_PREEMPTED_PREFILL]);
    rp_registry_add(r, &preemptions, "cause=\"pages\",phase=\"decode\"",
                    &e->preempted[RP_PREEMPTED_DECODE]);
    rp_registry_add(r, &swapped_bytes, "direction=\"out\"", &e->swap_out_bytes);
    rp_registry_add(r, &swapped_bytes, "direction=\"in\"", &e->swap_in_bytes);
    rp_registry_add(r, &step_duration, "phase=\"decode\"", &e->step_seconds[0]);
    rp_registry_add(r, &step_duration, "phase=\"mixed\"", &e->step_seconds[1]);
    for (int use = 0; use < RP_MEMORY_USE_COUNT; use++)
        rp_registry_add(r, &memory, uses[use], &e->memory[use]);
}

/* --- Of graphs ------------------------------------------------------------------------------- */

static const struct rp_metric_family graph_replays =
    COUNTER("reprise_graph_replays_total", NULL,
            "Steps by captured size: decode_8 has 8 rows, mixed_512 512 tokens. "
            "A size appears with its first step.");
static const struct rp_metric_family graph_padding =
    COUNTER("reprise_graph_padding_slots_total", NULL,
            "Padding rows computed to fill the captured size, by size.");
static const struct rp_metric_family graphs_failed =
    GAUGE("reprise_graph_capture_failures", NULL,
          "Sizes that could not be captured; their steps run in larger ones.");

static const struct rp_metric_family graph_fallbacks =
    COUNTER("reprise_graph_fallbacks_total", NULL,
            "Steps that did not replay the graphs of their size, by reason: enforce_eager (by "
            "flag), capture_failed (they ran in a larger size), no_graph (nothing captured holds "
            "the step: the engine fails).");
static const char *const miss_labels[RP_MISS_COUNT] = {
#define X(miss, text) [RP_MISS_##miss] = "reason=\"" text "\"",
    RP_REPLAY_MISSES(X)
#undef X
};
static const struct rp_metric_family mask_deadlines =
    COUNTER("reprise_mask_deadlines_total", NULL,
            "Requests that ended because the mask of their next token was not ready in time.");

static const struct rp_metric_family masks_placed =
    COUNTER("reprise_masks_placed_total", NULL,
            "Masks of grammars that were copied to the device because it did not have them yet.");

enum { GRAPHS_MAX = 512 };

/* One series per size: buckets with the same tokens and different logit rows are summed. */
static void collect_graphs(const struct rp_engine *engine, struct rp_metric_out *out,
                           bool padding) {
    struct rp_engine_graph graph;
    struct size {
        uint64_t replays, padded;
        uint32_t tokens;
        bool decode;
    } sizes[GRAPHS_MAX];
    uint32_t count = 0, all = rp_engine_graph_count(engine);
    for (uint32_t i = 0; i < all && count < GRAPHS_MAX; i++) {
        uint32_t at = 0;
        rp_engine_graph(engine, i, &graph);
        while (at < count &&
               (sizes[at].tokens != graph.bucket.tokens || sizes[at].decode != graph.bucket.decode))
            at++;
        if (at == count)
            sizes[count++] =
                (struct size){.tokens = graph.bucket.tokens, .decode = graph.bucket.decode};
        sizes[at].replays += graph.replays;
        sizes[at].padded += graph.padded_tokens;
    }
    for (uint32_t i = 0; i < count; i++) {
        char labels[64];
        if (!sizes[i].replays)
            continue;
        snprintf(labels, sizeof labels, "bucket=\"%s_%u\"", sizes[i].decode ? "decode" : "mixed",
                 sizes[i].tokens);
        rp_metric_put_count(out, labels, padding ? sizes[i].padded : sizes[i].replays);
    }
}

static void collect_replays(void *ctx, struct rp_metric_out *out) {
    collect_graphs(ctx, out, false);
}

static void collect_padding(void *ctx, struct rp_metric_out *out) {
    collect_graphs(ctx, out, true);
}

static void collect_failed(void *ctx, struct rp_metric_out *out) {
    struct rp_engine_graph graph;
    uint64_t failed = 0;
    for (uint32_t i = 0, count = rp_engine_graph_count(ctx); i < count; i++) {
        rp_engine_graph(ctx, i, &graph);
        failed += !graph.captured;
    }
    rp_metric_put_count(out, NULL, failed);
}

/* --- Of HTTP and the process ----------------------------------------------------------------- */

#undef AT
#define AT(field) offsetof(struct rp_server_metrics, field)

static const struct single of_server[] = {
    {GAUGE("reprise_http_connections", NULL, "Open connections."), AT(connections)},
    {COUNTER("reprise_http_connections_accepted_total", NULL, "Connections accepted."),
     AT(connections_total)},
    {COUNTER("reprise_http_connections_refused_total", NULL,
             "Connections refused because there were too many."),
     AT(connections_refused)},
    {COUNTER("reprise_http_malformed_requests_total", NULL,
             "Requests refused while they were being read."),
     AT(parse_errors)},
    {COUNTER("reprise_http_timeouts_total", NULL, "Requests that did not arrive in time."),
     AT(timeouts)},
    {COUNTER("reprise_http_slow_readers_total", NULL,
             "Connections closed because the client did not read."),
     AT(slow_readers)},
    {GAUGE("reprise_http_stream_unread_bytes", "bytes",
           "Output of all streams that their clients have not taken, in the server's and the "
           "kernel's buffers."),
     AT(unread_bytes)},
    {GAUGE("reprise_http_streams_stalled", NULL,
           "Streams whose client has taken nothing for a second although there is output."),
     AT(stalled_streams)},
    {GAUGE("reprise_completions_open", NULL, "HTTP completions in progress."), AT(completions)},
    {GAUGE("reprise_sandbox_active", NULL, "1 when system calls are filtered (--sandbox)."),
     AT(sandbox)},
    {COUNTER("reprise_sandbox_refused_calls_total", NULL,
             "System calls refused by --sandbox: 0 unless somebody attacks the server, or the "
             "server needs a call that its list does not have."),
     AT(sandbox_refused)},
    {GAUGE("process_start_time_seconds", "seconds", "Start time of the process since the epoch."),
     AT(start_time)},
    {GAUGE("process_resident_memory_bytes", "bytes", "Resident memory."), AT(resident_bytes)},
    {GAUGE("process_virtual_memory_bytes", "bytes", "Address space in use."), AT(virtual_bytes)},
    {GAUGE("process_open_fds", NULL, "Open file descriptors."), AT(open_fds)},
    {GAUGE("process_max_fds", NULL, "Limit on open file descriptors."), AT(max_fds)},
};
static const struct rp_metric_family http_requests =
    COUNTER("reprise_http_requests_total", NULL,
            "HTTP requests answered, by route and class of status. A series appears with its first "
            "answer.");
static const struct rp_metric_family cpu_seconds =
    COUNTER("process_cpu_seconds_total", "seconds", "CPU time of all threads.");
static const struct rp_metric_family build_info = {"reprise_build_info", NULL,
                                                   "Always 1; the version is the label.",
                                                   RP_METRIC_INFO, RP_METRICS_OWN};
static const struct rp_metric_family dropped =
    COUNTER("reprise_metrics_dropped_series_total", NULL,
            "Samples omitted from /metrics because a family had too many: 0 unless there is a bug "
            "in the server.");

static const struct rp_metric_family trace_events =
    COUNTER("reprise_trace_events_total", NULL, "Events written by the flight recorder.");
static const struct rp_metric_family trace_dropped =
    COUNTER("reprise_trace_events_dropped_total", NULL,
            "Flight recorder events overwritten by newer ones.");
static const struct rp_metric_family log_dropped =
    COUNTER("reprise_log_lines_dropped_total", NULL,
            "Log lines dropped because the reader of standard error did not keep up.");
static const struct rp_metric_family startup =
    GAUGE("reprise_startup_seconds", "seconds", "Startup time, by stage.");

static void collect_events(void *ctx, struct rp_metric_out *out) {
    struct rp_recorder_stats stats;
    rp_recorder_stats(((const struct rp_server_metrics *)ctx)->recorder, &stats);
    rp_metric_put_count(out, NULL, stats.events);
}

static void collect_dropped(void *ctx, struct rp_metric_out *out) {
    struct rp_recorder_stats stats;
    rp_recorder_stats(((const struct rp_server_metrics *)ctx)->recorder, &stats);
    rp_metric_put_count(out, NULL, stats.overwritten);
}

static void collect_log_dropped(void *ctx, struct rp_metric_out *out) {
    (void)ctx;
    rp_metric_put_count(out, NULL, rp_log_dropped());
}

static void collect_startup(void *ctx, struct rp_metric_out *out) {
    const struct rp_startup *stages = ((const struct rp_server_metrics *)ctx)->startup;
    for (int i = 0; i < RP_STARTUP_STAGES && stages[i].name; i++) {
        char labels[64] = "";
        rp_label_append(labels, sizeof labels, "phase", stages[i].name);
        rp_metric_put(out, labels, stages[i].seconds);
    }
}

static void collect_http(void *ctx, struct rp_metric_out *out) {
    static const char *const classes[RP_STATUS_CLASSES] = {"2xx", "3xx", "4xx", "5xx"};
    const struct rp_server_metrics *metrics = ctx;
    for (uint32_t r = 0; r <= rp_route_count(); r++) {
        for (uint32_t c = 0; c < RP_STATUS_CLASSES; c++) {
            uint64_t count = rp_counter_read(&metrics->http_requests[r][c]);
            char labels[128];
            if (!count)
                continue;
            snprintf(labels, sizeof labels, "route=\"%s\",code=\"%s\"", rp_route_label(r),
                     classes[c]);
            rp_metric_put_count(out, labels, count);
        }
    }
}

static double seconds(struct timeval time) {
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

static void collect_cpu(void *ctx, struct rp_metric_out *out) {
    struct rusage usage;
    (void)ctx;
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        rp_metric_put(out, NULL, seconds(usage.ru_utime) + seconds(usage.ru_stime));
}

void rp_server_metrics_add_own(struct rp_server_metrics *m, struct rp_registry *r) {
    void *engine = (void *)(uintptr_t)m->engine;
    RP_ASSERT_CMP(rp_route_count(), <, RP_ROUTE_LABELS_MAX);
    add_requests(m, r);
    add_engine(rp_engine_metrics(m->engine), r);
    rp_registry_add_collected(r, &fragmentation, collect_fragmentation, engine);
    rp_server_metrics_add_device(m, r);
    rp_registry_add_collected(r, &graph_replays, collect_replays, engine);
    rp_registry_add_collected(r, &graph_padding, collect_padding, engine);
    rp_registry_add_collected(r, &graphs_failed, collect_failed, engine);
    for (int i = RP_MISS_NONE + 1; i < RP_MISS_COUNT; i++)
        rp_registry_add(r, &graph_fallbacks, miss_labels[i],
                        &rp_engine_metrics(m->engine)->misses[i]);
    rp_registry_add(r, &mask_deadlines, NULL, &rp_engine_metrics(m->engine)->mask_deadlines);
    rp_registry_add(r, &masks_placed, NULL, &rp_engine_metrics(m->engine)->masks_placed);
    rp_registry_add_collected(r, &trace_events, collect_events, m);
    rp_registry_add_collected(r, &trace_dropped, collect_dropped, m);
    rp_registry_add_collected(r, &log_dropped, collect_log_dropped, NULL);
    rp_registry_add_collected(r, &startup, collect_startup, m);
    rp_registry_add_collected(r, &http_requests, collect_http, m);
    add_singles(of_server, RP_ARRAY_COUNT(of_server), m, r);
    rp_registry_add_collected(r, &cpu_seconds, collect_cpu, NULL);
    rp_registry_add(r, &build_info, "version=\"" RP_VERSION "\"", NULL);
    rp_registry_add(r, &dropped, NULL, &r->dropped);
}
