#include "server/server_metrics.h"

#include "engine/engine.h"
#include "server/router.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The buckets that other servers use, and finer ones below: a small model answers within 1 ms. */
static const double ttft_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06,
                                     0.08,   0.1,   0.25,   0.5,   0.75, 1,    2.5,  5,
                                     7.5,    10,    20,     40,    80,   160,  640,  2560};
static const double inter_token_bounds[] = {
    0.0005, 0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15,
    0.2,    0.3,   0.4,   0.5,   0.75,  1,     2.5,   5,    7.5,   10,    20,   40,    80};
static const double e2e_bounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5,  0.8,
                                    1,     1.5,  2,     2.5,  5,   10,  15,  20,   30,
                                    40,    50,   60,    120,  240, 480, 960, 1920, 7680};
static const double queue_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2,
                                      0.3,    0.5,   0.8,    1,     1.5,  2,     2.5,  5,   10,
                                      15,     20,    30,     40,    50,   60,    120,  240, 480};
static const double token_bounds[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                      1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

#define INIT(histogram, bounds) rp_histogram_init(histogram, bounds, RP_ARRAY_COUNT(bounds))

void rp_server_metrics_init(struct rp_server_metrics *metrics) {
    memset(metrics, 0, sizeof *metrics);
    INIT(&metrics->ttft, ttft_bounds);
    INIT(&metrics->inter_token, inter_token_bounds);
    INIT(&metrics->e2e, e2e_bounds);
    INIT(&metrics->queue, queue_bounds);
    INIT(&metrics->prompt_tokens, token_bounds);
    INIT(&metrics->generation_tokens, token_bounds);
    rp_gauge_set(&metrics->build_info, 1);
    rp_gauge_set(&metrics->start_time, (int64_t)time(NULL));
}

static void add_http(struct rp_server_metrics *metrics, struct rp_registry *registry) {
    static const char *const classes[RP_STATUS_CLASSES] = {"2xx", "3xx", "4xx", "5xx"};
    RP_ASSERT_CMP(rp_route_count(), <, RP_ROUTE_LABELS_MAX);
    for (uint32_t r = 0; r <= rp_route_count(); r++) {
        for (uint32_t c = 0; c < RP_STATUS_CLASSES; c++) {
            char *labels = metrics->http_labels[r][c];
            if (c == 1)
                continue; /* this server redirects nobody */
            snprintf(labels, sizeof metrics->http_labels[r][c], "route=\"%s\",code=\"%s\"",
                     rp_route_label(r), classes[c]);
            rp_registry_add(registry, "reprise_http_requests_total",
                            "HTTP requests answered, by route and class of status.",
                            RP_METRIC_COUNTER, labels, &metrics->http_requests[r][c]);
        }
    }
}

static void add_requests(const struct rp_server_metrics *m, struct rp_registry *r) {
    static const char *const outcomes[RP_OUTCOME_COUNT] = {
        "finish_reason=\"stop\"", "finish_reason=\"length\"", "finish_reason=\"cancelled\"",
        "finish_reason=\"numerical_error\"", "finish_reason=\"error\""};
    static const char *const reasons[RP_REJECTED_COUNT] = {
        "reason=\"queue_full\"", "reason=\"draining\"", "reason=\"unhealthy\"",
        "reason=\"overload\""};
    for (int i = 0; i < RP_OUTCOME_COUNT; i++)
        rp_registry_add(r, "reprise_requests_total", "Requests that the engine has closed.",
                        RP_METRIC_COUNTER, outcomes[i], &m->finished[i]);
    for (int i = 0; i < RP_REJECTED_COUNT; i++)
        rp_registry_add(r, "reprise_requests_rejected_total",
                        "Requests answered with 429 or 503 before the engine had them.",
                        RP_METRIC_COUNTER, reasons[i], &m->rejected[i]);
    rp_registry_add(r, "reprise_time_to_first_token_seconds",
                    "From the request's first byte on the socket to its first token's.",
                    RP_METRIC_HISTOGRAM, NULL, &m->ttft);
    rp_registry_add(r, "reprise_inter_token_latency_seconds",
                    "Between two tokens of a request, when the engine read them.",
                    RP_METRIC_HISTOGRAM, NULL, &m->inter_token);
    rp_registry_add(r, "reprise_request_duration_seconds",
                    "From the first byte of a request to its end, of those that finished.",
                    RP_METRIC_HISTOGRAM, NULL, &m->e2e);
    rp_registry_add(r, "reprise_request_queue_seconds",
                    "From being handed to the engine to being planned into a step.",
                    RP_METRIC_HISTOGRAM, NULL, &m->queue);
    rp_registry_add(r, "reprise_request_prompt_tokens", "Prompt tokens of a request.",
                    RP_METRIC_HISTOGRAM, NULL, &m->prompt_tokens);
    rp_registry_add(r, "reprise_request_generation_tokens", "Tokens that a request was answered.",
                    RP_METRIC_HISTOGRAM, NULL, &m->generation_tokens);
}

static void add_engine(const struct rp_engine_metrics *e, struct rp_registry *r) {
    const struct {
        const char *name, *help, *labels;
        enum rp_metric_type type;
        const void *value;
    } series[] = {
        {"reprise_requests_running", "Requests in the batch.", NULL, RP_METRIC_GAUGE, &e->running},
        {"reprise_requests_waiting", "Requests in the queue.", NULL, RP_METRIC_GAUGE, &e->waiting},
        {"reprise_requests_swapped", "Requests whose pages lie in host memory.", NULL,
         RP_METRIC_GAUGE, &e->swapped},
        {"reprise_kv_pages_capacity", "KV pages on the device.", NULL, RP_METRIC_GAUGE,
         &e->pages_total},
        {"reprise_kv_pages_free", "KV pages that hold nothing.", NULL, RP_METRIC_GAUGE,
         &e->pages_free},
        {"reprise_kv_pages_cached", "KV pages that no request holds, reusable by equal prompts.",
         NULL, RP_METRIC_GAUGE, &e->pages_cached},
        {"reprise_kv_pages_held", "KV pages of admitted requests.", NULL, RP_METRIC_GAUGE,
         &e->pages_held},
        {"reprise_prompt_tokens_total", "Prompt tokens processed.", NULL, RP_METRIC_COUNTER,
         &e->prompt_tokens},
        {"reprise_generation_tokens_total", "Tokens generated.", NULL, RP_METRIC_COUNTER,
         &e->generation_tokens},
        {"reprise_prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.", NULL,
         RP_METRIC_COUNTER, &e->cached_tokens},
        {"reprise_prefix_cache_queries_total", "Tokens looked up in the prefix cache.", NULL,
         RP_METRIC_COUNTER, &e->prefix_query_tokens},
        {"reprise_prefix_cache_hits_total", "Tokens found in the prefix cache.", NULL,
         RP_METRIC_COUNTER, &e->prefix_hit_tokens},
        {"reprise_preemptions_total", "Requests swapped out to make room.", NULL, RP_METRIC_COUNTER,
         &e->preemptions},
        {"reprise_steps_total", "Steps, by kind.", "kind=\"decode\"", RP_METRIC_COUNTER,
         &e->decode_steps},
        {"reprise_steps_total", "Steps, by kind.", "kind=\"mixed\"", RP_METRIC_COUNTER,
         &e->mixed_steps},
        {"reprise_padded_tokens_total", "Rows computed only to fill a captured size.", NULL,
         RP_METRIC_COUNTER, &e->padded_tokens},
        {"reprise_step_packet_bytes_total", "Bytes sent to the device to describe steps.", NULL,
         RP_METRIC_COUNTER, &e->packet_bytes},
        {"reprise_step_duration_seconds", "From launching a step to reading its result.", NULL,
         RP_METRIC_HISTOGRAM, &e->step_seconds},
        {"reprise_step_device_seconds",
         "Time of a step on the device, from its first kernel to its published result.", NULL,
         RP_METRIC_HISTOGRAM, &e->step_device_seconds},
        {"reprise_step_gap_seconds",
         "Time that the device was idle between two steps launched back to back.", NULL,
         RP_METRIC_HISTOGRAM, &e->step_gap_seconds},
        {"reprise_step_host_seconds",
         "The engine thread's part of a step: planning, launching, committing.", NULL,
         RP_METRIC_HISTOGRAM, &e->step_host_seconds},
        {"reprise_engine_healthy", "1, or 0 after a device error.", NULL, RP_METRIC_GAUGE,
         &e->healthy},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(series); i++)
        rp_registry_add(r, series[i].name, series[i].help, series[i].type, series[i].labels,
                        series[i].value);
    static const char *const uses[RP_MEMORY_USE_COUNT] = {
        [RP_MEMORY_CONTEXT] = "kind=\"context\"",
        [RP_MEMORY_WEIGHTS] = "kind=\"weights\"",
        [RP_MEMORY_ACTIVATIONS] = "kind=\"activations\"",
        [RP_MEMORY_WORKSPACE] = "kind=\"workspace\"",
        [RP_MEMORY_GRAPHS] = "kind=\"graphs\"",
        [RP_MEMORY_SLOTS] = "kind=\"slots\"",
        [RP_MEMORY_KV] = "kind=\"kv\""};
    for (int use = 0; use < RP_MEMORY_USE_COUNT; use++)
        rp_registry_add(r, "reprise_device_memory_bytes",
                        "Memory of the device that is taken when the server is ready, by what for.",
                        RP_METRIC_GAUGE, uses[use], &e->memory[use]);
    rp_registry_add(r, "reprise_device_allocations_total",
                    "Allocations of device memory: none after the server is ready.",
                    RP_METRIC_COUNTER, NULL, &e->allocations);
}

void rp_server_metrics_register(struct rp_server_metrics *m, const struct rp_engine *engine,
                                struct rp_registry *r) {
    add_requests(m, r);
    add_engine(rp_engine_metrics(engine), r);
    add_http(m, r);
    rp_registry_add(r, "reprise_http_connections", "Open connections.", RP_METRIC_GAUGE, NULL,
                    &m->connections);
    rp_registry_add(r, "reprise_http_connections_total", "Connections accepted.", RP_METRIC_COUNTER,
                    NULL, &m->connections_total);
    rp_registry_add(r, "reprise_http_connections_refused_total",
                    "Connections closed at once because there were too many.", RP_METRIC_COUNTER,
                    NULL, &m->connections_refused);
    rp_registry_add(r, "reprise_http_malformed_requests_total",
                    "Requests refused while they were being read.", RP_METRIC_COUNTER, NULL,
                    &m->parse_errors);
    rp_registry_add(r, "reprise_http_timeouts_total", "Requests that did not arrive in time.",
                    RP_METRIC_COUNTER, NULL, &m->timeouts);
    rp_registry_add(r, "reprise_http_slow_readers_total",
                    "Connections closed because the client did not read.", RP_METRIC_COUNTER, NULL,
                    &m->slow_readers);
    rp_registry_add(r, "reprise_completions_open", "HTTP completions in work.", RP_METRIC_GAUGE,
                    NULL, &m->completions);
    rp_registry_add(r, "reprise_build_info", "Always 1; the version is the label.", RP_METRIC_GAUGE,
                    "version=\"" RP_VERSION "\"", &m->build_info);
    rp_registry_add(r, "process_start_time_seconds", "Start of the process since the epoch.",
                    RP_METRIC_GAUGE, NULL, &m->start_time);
    rp_registry_add(r, "process_resident_memory_bytes", "Resident memory.", RP_METRIC_GAUGE, NULL,
                    &m->resident_bytes);
    rp_registry_add(r, "process_open_fds", "Open file descriptors.", RP_METRIC_GAUGE, NULL,
                    &m->open_fds);
}

void rp_server_metrics_sample(struct rp_server_metrics *metrics) {
    unsigned long long pages, resident;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%llu %llu", &pages, &resident) == 2)
            rp_gauge_set(&metrics->resident_bytes,
                         (int64_t)(resident * (uint64_t)sysconf(_SC_PAGESIZE)));
        fclose(file);
    }
    DIR *dir = opendir("/proc/self/fd");
    if (dir) {
        int64_t count = -3; /* ".", ".." and the one that reads */
        while (readdir(dir))
            count++;
        closedir(dir);
        rp_gauge_set(&metrics->open_fds, count);
    }
}
