/* server_metrics.h - the server's metrics, and the registry that /metrics exposes.
 *
 * The same values are exposed under our names (server_metrics_families.c), vLLM's
 * (server_metrics_vllm.c) and those of OpenTelemetry's conventions for generative AI
 * (server_metrics_otel.c). Histograms are recorded once, with the union of all bucket edges, and
 * exposed with the edges of each naming.
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
    RP_OUTCOME_TIMEOUT,
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

/* Histograms with exemplars: each bucket keeps the last trace id. */
enum rp_traced {
    RP_TRACED_TTFT,
    RP_TRACED_ITL,
    RP_TRACED_WRITE,
    RP_TRACED_TPOT,
    RP_TRACED_E2E,
    RP_TRACED_QUEUE,
    RP_TRACED_COUNT
};

#define RP_COMPAT_LABELS 1024 /* bytes of the labels model_name="..." (escaped) and engine */

/* A startup stage and its duration. The array ends with a NULL name. */
struct rp_startup {
    const char *name;
    double seconds;
};
#define RP_STARTUP_STAGES 6

/* Sources of metrics other than the server itself. */
struct rp_metric_sources {
    const struct rp_engine *engine;
    const struct rp_recorder *recorder;
    const char *model_name; /* the served model name */
    double price_per_hour;  /* 0: none */
    struct rp_startup startup[RP_STARTUP_STAGES];
};

struct rp_server_metrics {
    struct rp_counter http_requests[RP_ROUTE_LABELS_MAX][RP_STATUS_CLASSES]; /* 2xx .. 5xx */
    struct rp_counter connections_total, connections_refused, parse_errors, timeouts, slow_readers;
    struct rp_gauge connections, completions, unread_bytes, stalled_streams;
    struct rp_counter finished[RP_OUTCOME_COUNT];
    struct rp_counter rejected[RP_REJECTED_COUNT];
    /* tool calls that are complete, and those that the answer's end cut; output that began like a
     * call and became text */
    struct rp_counter tool_calls[2], tool_misses;
    /* Request times: first byte to first token (ttft) and to the end (e2e); between two tokens
     * (inter_token: as the engine read them, inter_write: as the kernel took them for the socket)
     * and their mean (tpot); queue, prefill, decode, and prefill plus decode (inference). */
    struct rp_histogram ttft, e2e, inter_token, inter_write, tpot, queue, prefill, decode,
        inference;
    struct rp_histogram prompt_tokens, generation_tokens, max_tokens, computed_tokens, choices;
    struct rp_exemplars traced[RP_TRACED_COUNT];
    struct rp_server_latency latency; /* the same times over sliding windows */
    struct rp_gauge start_time, resident_bytes, virtual_bytes, open_fds, max_fds;
    struct rp_gauge sandbox; /* 1: a filter of system calls is in force */
    struct rp_counter sandbox_refused;
    const struct rp_engine *engine;
    const struct rp_recorder *recorder;
    struct rp_startup startup[RP_STARTUP_STAGES];
    double price_per_hour;
    uint32_t token_bound_count; /* number of token count bounds that a request can reach */
    char vllm_labels[RP_COMPAT_LABELS], otel_labels[RP_COMPAT_LABELS];
};

void rp_server_metrics_init(struct rp_server_metrics *metrics);
/* Registers the server's metrics and those of the sources, under every naming. */
void rp_server_metrics_register(struct rp_server_metrics *metrics,
                                const struct rp_metric_sources *sources,
                                struct rp_registry *registry);
/* Refreshes the values read from the operating system; call before a scrape. */
void rp_server_metrics_sample(struct rp_server_metrics *metrics);

/* A token of a request was read at now_ns (rp_tick_ns). since_ns: for the first token, time since
 * the request's first byte, otherwise since the previous token. trace: the request's, or NULL. */
void rp_server_metrics_token(struct rp_server_metrics *metrics, bool first, uint64_t now_ns,
                             uint64_t since_ns, const struct rp_trace_context *trace);
/* The kernel took `tokens` tokens of a stream at once, since_ns after the ones before. */
void rp_server_metrics_written(struct rp_server_metrics *metrics, uint32_t tokens,
                               uint64_t since_ns, const struct rp_trace_context *trace);
/* A request that the engine has closed. */
struct rp_closed_request {
    const struct rp_request *request;
    const struct rp_trace_context *trace; /* or NULL */
    uint64_t first_byte_ns, last_token_ns;
    uint32_t tokens;  /* tokens of the answer */
    uint32_t choices; /* n, set by the first answer to a prompt; 0: do not count */
    enum rp_outcome outcome;
};
void rp_server_metrics_closed(struct rp_server_metrics *metrics,
                              const struct rp_closed_request *closed);

/* server_metrics_vllm.c, server_metrics_otel.c: used by rp_server_metrics_register. */
void rp_server_metrics_add_vllm(struct rp_server_metrics *metrics, const char *model_name,
                                struct rp_registry *registry);
void rp_server_metrics_add_otel(struct rp_server_metrics *metrics, const char *model_name,
                                struct rp_registry *registry);
/* server_metrics_device.c: where the device's time went. */
void rp_server_metrics_add_device(struct rp_server_metrics *metrics, struct rp_registry *registry);
/* server_metrics_families.c: our names. */
void rp_server_metrics_add_own(struct rp_server_metrics *metrics, struct rp_registry *registry);

#endif
