/* server_metrics_vllm.c - the same values under vLLM's names, labels and buckets, so that existing
 * dashboards, autoscalers and gateways work unchanged.
 *
 * Labels are model_name and engine ("0"). Features that this server lacks have no series: external
 * caches, multi-modal inputs, speculative decoding, adapters. */
#include "engine/engine.h"
#include "server/observe/server_metrics.h"

#include <stdio.h>
#include <string.h>

static const double ttft_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                     0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                     20,    40,    80,   160,  640,  2560};
static const double token_time_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                           0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double phase_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double choice_bounds[] = {1, 2, 5, 10, 20};
static const double step_bounds[] = {1,   8,    16,   32,   64,   128,  256,
                                     512, 1024, 2048, 4096, 8192, 16384};

#define FAMILY(name, type, help)                                                                   \
    { "vllm:" name, NULL, help, type, RP_METRICS_VLLM }
#define COUNTER(name, help)   FAMILY(name, RP_METRIC_COUNTER, help)
#define GAUGE(name, help)     FAMILY(name, RP_METRIC_GAUGE, help)
#define HISTOGRAM(name, help) FAMILY(name, RP_METRIC_HISTOGRAM, help)

/* The labels of one series: the common ones and one more. */
struct labels {
    char text[RP_COMPAT_LABELS + 64];
};

static const char *with(const struct rp_server_metrics *metrics, const char *name,
                        const char *value, struct labels *out) {
    snprintf(out->text, sizeof out->text, "%s", metrics->vllm_labels);
    rp_label_append(out->text, sizeof out->text, name, value);
    return out->text;
}

static void put(struct rp_metric_out *out, const struct rp_server_metrics *metrics,
                const char *name, const char *value, uint64_t count) {
    struct labels labels;
    rp_metric_put_count(out, with(metrics, name, value, &labels), count);
}

/* --- Numbers that are not one of ours as they stand ------------------------------------------ */

static const struct rp_engine_metrics *engine_of(const struct rp_server_metrics *metrics) {
    return rp_engine_metrics(metrics->engine);
}

/* In vLLM's terms a swapped-out request is waiting. */
static uint64_t waiting_of(const struct rp_server_metrics *metrics) {
    const struct rp_engine_metrics *engine = engine_of(metrics);
    return (uint64_t)(rp_gauge_read(&engine->waiting) + rp_gauge_read(&engine->swapped));
}

static void collect_waiting(void *ctx, struct rp_metric_out *out) {
    const struct rp_server_metrics *metrics = ctx;
    rp_metric_put_count(out, metrics->vllm_labels, waiting_of(metrics));
}

static void collect_reasons(void *ctx, struct rp_metric_out *out) {
    put(out, ctx, "reason", "capacity", waiting_of(ctx));
    put(out, ctx, "reason", "deferred", 0);
}

/* Pages held only by the prefix cache count as free, as in vLLM. */
static void collect_kv_usage(void *ctx, struct rp_metric_out *out) {
    const struct rp_server_metrics *metrics = ctx;
    double total = (double)rp_gauge_read(&engine_of(metrics)->pages_total);
    double held = (double)rp_gauge_read(&engine_of(metrics)->pages_held);
    rp_metric_put(out, metrics->vllm_labels, total > 0 ? RP_MIN(held / total, 1) : 0);
}

static void collect_sleep(void *ctx, struct rp_metric_out *out) {
    put(out, ctx, "sleep_state", "awake", 1);
    put(out, ctx, "sleep_state", "weights_offloaded", 0);
    put(out, ctx, "sleep_state", "discard_all", 0);
}

static void collect_cache_config(void *ctx, struct rp_metric_out *out) {
    const struct rp_server_metrics *metrics = ctx;
    const struct rp_memory_plan *plan = rp_engine_memory_plan(metrics->engine);
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {{"block_size", plan->page_tokens},
                   {"num_gpu_blocks", plan->page_count},
                   {"num_cpu_blocks", plan->host_page_count}};
    struct labels labels;
    snprintf(labels.text, sizeof labels.text, "%s", metrics->vllm_labels);
    for (size_t i = 0; i < RP_ARRAY_COUNT(numbers); i++) {
        char text[16];
        snprintf(text, sizeof text, "%u", numbers[i].value);
        rp_label_append(labels.text, sizeof labels.text, numbers[i].name, text);
    }
    rp_metric_put_count(out, labels.text, 1);
}

/* vLLM counts all prompt tokens, our counter only those computed. */
static void collect_prompt_tokens(void *ctx, struct rp_metric_out *out) {
    const struct rp_server_metrics *metrics = ctx;
    const struct rp_engine_metrics *engine = engine_of(metrics);
    rp_metric_put_count(out, metrics->vllm_labels,
                        rp_counter_read(&engine->prompt_tokens) +
                            rp_counter_read(&engine->cached_tokens));
}

static void collect_prompt_sources(void *ctx, struct rp_metric_out *out) {
    const struct rp_engine_metrics *engine = engine_of(ctx);
    put(out, ctx, "source", "local_compute", rp_counter_read(&engine->prompt_tokens));
    put(out, ctx, "source", "local_cache_hit", rp_counter_read(&engine->cached_tokens));
    put(out, ctx, "source", "external_kv_transfer", 0);
}

static void collect_success(void *ctx, struct rp_metric_out *out) {
    static const char *const reasons[] = {"stop", "length", "abort", "error"};
    const struct rp_server_metrics *metrics = ctx;
    for (int i = 0; i < 4; i++) {
        uint64_t count = rp_counter_read(&metrics->finished[i]);
        if (i == 3)
            count += rp_counter_read(&metrics->finished[RP_OUTCOME_ERROR]);
        put(out, metrics, "finished_reason", reasons[i], count);
    }
}

static const struct {
    struct rp_metric_family family;
    rp_metric_collect collect;
} collected[] = {
    {GAUGE("num_requests_waiting", "Number of requests waiting to be processed."), collect_waiting},
    {GAUGE("num_requests_waiting_by_reason", "Number of waiting requests by reason."),
     collect_reasons},
    {GAUGE("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."), collect_kv_usage},
    /* its former name, which older endpoint pickers read */
    {GAUGE("gpu_cache_usage_perc", "The same as vllm:kv_cache_usage_perc."), collect_kv_usage},
    {GAUGE("engine_sleep_state", "Engine sleep state; this engine never sleeps."), collect_sleep},
    {FAMILY("cache_config_info", RP_METRIC_INFO, "Information of the KV cache's configuration."),
     collect_cache_config},
    {COUNTER("prompt_tokens_total", "Number of prefill tokens processed."), collect_prompt_tokens},
    {COUNTER("prompt_tokens_by_source_total", "Number of prompt tokens by source."),
     collect_prompt_sources},
    {COUNTER("request_success_total", "Count of successfully processed requests."),
     collect_success},
};

/* --- Numbers of ours ------------------------------------------------------------------------- */

static const struct {
    struct rp_metric_family family;
    size_t offset;
} of_engine[] = {
#define AT(field) offsetof(struct rp_engine_metrics, field)
    {GAUGE("num_requests_running", "Number of requests in model execution batches."), AT(running)},
    {COUNTER("prefix_cache_queries_total",
             "Prefix cache queries, in terms of number of queried tokens."),
     AT(prefix_query_tokens)},
    {COUNTER("prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens."),
     AT(prefix_hit_tokens)},
    {COUNTER("num_preemptions_total", "Cumulative number of preemptions from the engine."),
     AT(preemptions)},
    {COUNTER("prompt_tokens_cached_total", "Number of cached prompt tokens."), AT(cached_tokens)},
    {COUNTER("generation_tokens_total", "Number of generation tokens processed."),
     AT(generation_tokens)},
#undef AT
};
static const struct rp_metric_family corrupted =
    COUNTER("corrupted_requests_total", "Requests whose logits contained NaN.");

static const struct {
    struct rp_metric_family family;
    size_t offset;
    const double *bounds;
    uint32_t count;
} of_requests[] = {
#define AT(field)      offsetof(struct rp_server_metrics, field)
#define BOUNDS(bounds) bounds, RP_ARRAY_COUNT(bounds)
    {HISTOGRAM("time_to_first_token_seconds", "Histogram of time to first token in seconds."),
     AT(ttft), BOUNDS(ttft_bounds)},
    {HISTOGRAM("inter_token_latency_seconds", "Histogram of inter-token latency in seconds."),
     AT(inter_token), BOUNDS(token_time_bounds)},
    {HISTOGRAM("request_time_per_output_token_seconds",
               "Histogram of time per output token in seconds, per request."),
     AT(tpot), BOUNDS(token_time_bounds)},
    {HISTOGRAM("e2e_request_latency_seconds",
               "Histogram of end to end request latency in seconds."),
     AT(e2e), BOUNDS(phase_bounds)},
    {HISTOGRAM("request_queue_time_seconds", "Histogram of time spent waiting."), AT(queue),
     BOUNDS(phase_bounds)},
    {HISTOGRAM("request_inference_time_seconds", "Histogram of time spent in the batch."),
     AT(inference), BOUNDS(phase_bounds)},
    {HISTOGRAM("request_prefill_time_seconds", "Histogram of time spent in prefill."), AT(prefill),
     BOUNDS(phase_bounds)},
    {HISTOGRAM("request_decode_time_seconds", "Histogram of time spent in decode."), AT(decode),
     BOUNDS(phase_bounds)},
    {HISTOGRAM("request_params_n", "Histogram of the n request parameter."), AT(choices),
     BOUNDS(choice_bounds)},
    /* NULL: 1-2-5 series up to the maximum context. */
    {HISTOGRAM("request_prompt_tokens", "Number of prefill tokens processed, per request."),
     AT(prompt_tokens), NULL, 0},
    {HISTOGRAM("request_generation_tokens", "Number of generation tokens processed, per request."),
     AT(generation_tokens), NULL, 0},
    {HISTOGRAM("request_max_num_generation_tokens",
               "Histogram of maximum number of requested generation tokens."),
     AT(generation_tokens), NULL, 0},
    {HISTOGRAM("request_params_max_tokens", "Histogram of the max_tokens request parameter."),
     AT(max_tokens), NULL, 0},
    {HISTOGRAM("request_prefill_kv_computed_tokens",
               "Histogram of new KV tokens computed during prefill, without cached ones."),
     AT(computed_tokens), NULL, 0},
#undef AT
};
static const struct rp_metric_family iteration =
    HISTOGRAM("iteration_tokens_total", "Histogram of number of tokens per engine step.");

void rp_server_metrics_add_vllm(struct rp_server_metrics *m, const char *model_name,
                                struct rp_registry *r) {
    const struct rp_engine_metrics *engine = engine_of(m);
    m->vllm_labels[0] = '\0';
    rp_label_append(m->vllm_labels, sizeof m->vllm_labels, "model_name", model_name);
    rp_label_append(m->vllm_labels, sizeof m->vllm_labels, "engine", "0");
    for (size_t i = 0; i < RP_ARRAY_COUNT(of_engine); i++)
        rp_registry_add(r, &of_engine[i].family, m->vllm_labels,
                        (const char *)engine + of_engine[i].offset);
    for (size_t i = 0; i < RP_ARRAY_COUNT(collected); i++)
        rp_registry_add_collected(r, &collected[i].family, collected[i].collect, m);
    rp_registry_add(r, &corrupted, m->vllm_labels, &m->finished[RP_OUTCOME_NUMERIC]);
    for (size_t i = 0; i < RP_ARRAY_COUNT(of_requests); i++) {
        const struct rp_histogram *histogram =
            (const struct rp_histogram *)((const char *)m + of_requests[i].offset);
        bool tokens = !of_requests[i].bounds;
        rp_registry_add_projected(r, &of_requests[i].family, m->vllm_labels, histogram,
                                  tokens ? histogram->bounds : of_requests[i].bounds,
                                  tokens ? m->token_bound_count : of_requests[i].count);
    }
    if (engine->step_tokens.bound_count)
        rp_registry_add_projected(r, &iteration, m->vllm_labels, &engine->step_tokens,
                                  BOUNDS(step_bounds));
}
