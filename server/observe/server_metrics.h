/* server_metrics.h - the numbers that the server keeps, and the registry of all that /metrics
 * shows.
 *
 * Names are ours (server_metrics.c), and, from the same numbers, those of vLLM
 * (server_metrics_vllm.c) and of OpenTelemetry's conventions for generative AI
 * (server_metrics_otel.c). Histograms are recorded once, in buckets whose edges contain
 * everybody's, and shown with those that each name has.
 * Thread: loop. */
#ifndef RP_SERVER_SERVER_METRICS_H
#define RP_SERVER_SERVER_METRICS_H

#include "metrics/exposition.h"
#include "server/observe/server_latency.h"

struct rp_engine;
struct rp_recorder;
struct rp_request;
struct rp_trace_context;

enum rp_outcome {
    RP_OUTCOME_STOP,
    RP_OUTCOME_LENGTH,
    RP_OUTCOME_CANCELLED,
    RP_OUTCOME_NUMERIC,
    RP_OUTCOME_ERROR,
    RP_OUTCOME_COUNT
};

enum rp_rejection {
    RP_REJECTED_QUEUE_FULL,
    RP_REJECTED_DRAINING,
    RP_REJECTED_UNHEALTHY,
    RP_REJECTED_OVERLOAD,
    RP_REJECTED_KEY_LIMIT,
    RP_REJECTED_COUNT
};

enum { RP_STATUS_CLASSES = 4, RP_ROUTE_LABELS_MAX = 64 };

/* Histograms whose buckets keep the last trace that fell into them. */
enum rp_traced {
    RP_TRACED_TTFT,
    RP_TRACED_ITL,
    RP_TRACED_TPOT,
    RP_TRACED_E2E,
    RP_TRACED_QUEUE,
    RP_TRACED_COUNT
};

#define RP_COMPAT_LABELS 1024 /* bytes of model_name="...", escaped, and what stands beside it */

/* A stage of the start, and how long it took. Ends with a name that is NULL. */
struct rp_startup {
    const char *name;
    double seconds;
};
#define RP_STARTUP_STAGES 6

/* What numbers are taken from that are not the server's own. */
struct rp_metric_sources {
    const struct rp_engine *engine;
    const struct rp_recorder *recorder;
    const char *model_name; /* as clients know it */
    struct rp_startup startup[RP_STARTUP_STAGES];
};

struct rp_server_metrics {
    struct rp_counter http_requests[RP_ROUTE_LABELS_MAX][RP_STATUS_CLASSES]; /* 2xx .. 5xx */
    struct rp_counter connections_total, connections_refused, parse_errors, timeouts, slow_readers;
    struct rp_gauge connections, completions;
    struct rp_counter finished[RP_OUTCOME_COUNT];
    struct rp_counter rejected[RP_REJECTED_COUNT];
    /* Request times: first byte to first token and to the end; between two tokens, and their mean;
     * waiting, prompt, answer, prompt and answer. */
    struct rp_histogram ttft, e2e, inter_token, tpot, queue, prefill, decode, inference;
    struct rp_histogram prompt_tokens, generation_tokens, max_tokens, computed_tokens, choices;
    struct rp_exemplars traced[RP_TRACED_COUNT];
    struct rp_server_latency latency; /* the same times over sliding windows */
    struct rp_gauge start_time, resident_bytes, virtual_bytes, open_fds, max_fds;
    const struct rp_engine *engine;
    const struct rp_recorder *recorder;
    struct rp_startup startup[RP_STARTUP_STAGES];
    uint32_t token_bound_count; /* of those bounds of token counts that a request can reach */
    char vllm_labels[RP_COMPAT_LABELS], otel_labels[RP_COMPAT_LABELS];
};

void rp_server_metrics_init(struct rp_server_metrics *metrics);
/* Registers ours and those of the sources, by every name. */
void rp_server_metrics_register(struct rp_server_metrics *metrics,
                                const struct rp_metric_sources *sources,
                                struct rp_registry *registry);
/* Refreshes what is read from the system, before a scrape. */
void rp_server_metrics_sample(struct rp_server_metrics *metrics);

/* A token of a request was read, at now_ns (rp_tick_ns): since_ns is the time since the request's
 * first byte (the first token) or since its last token. trace: the request's, or NULL. */
void rp_server_metrics_token(struct rp_server_metrics *metrics, bool first, uint64_t now_ns,
                             uint64_t since_ns, const struct rp_trace_context *trace);
/* What a request was when the engine has closed it. */
struct rp_closed_request {
    const struct rp_request *request;
    const struct rp_trace_context *trace; /* or NULL */
    uint64_t first_byte_ns, last_token_ns;
    uint32_t tokens;  /* that it was answered */
    uint32_t choices; /* n, told by the first answer to a prompt; 0: not to be counted */
    enum rp_outcome outcome;
};
void rp_server_metrics_closed(struct rp_server_metrics *metrics,
                              const struct rp_closed_request *closed);

/* server_metrics_vllm.c, server_metrics_otel.c: for rp_server_metrics_register. */
void rp_server_metrics_add_vllm(struct rp_server_metrics *metrics, const char *model_name,
                                struct rp_registry *registry);
void rp_server_metrics_add_otel(struct rp_server_metrics *metrics, const char *model_name,
                                struct rp_registry *registry);
/* server_metrics_device.c: where the device's time went. */
void rp_server_metrics_add_device(const struct rp_engine *engine, struct rp_registry *registry);
/* server_metrics_families.c: our names. */
void rp_server_metrics_add_own(struct rp_server_metrics *metrics, struct rp_registry *registry);

#endif
