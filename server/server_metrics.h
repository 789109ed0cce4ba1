/* server_metrics.h - the numbers that the server keeps, and the registry of all that /metrics shows.
 * Thread: loop. */
#ifndef RP_SERVER_SERVER_METRICS_H
#define RP_SERVER_SERVER_METRICS_H

#include "metrics/metrics.h"

struct rp_engine;

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
    RP_REJECTED_COUNT
};

enum { RP_STATUS_CLASSES = 4, RP_ROUTE_LABELS_MAX = 16 };

struct rp_server_metrics {
    struct rp_counter http_requests[RP_ROUTE_LABELS_MAX][RP_STATUS_CLASSES]; /* 2xx .. 5xx */
    struct rp_counter connections_total, connections_refused, parse_errors, timeouts, slow_readers;
    struct rp_gauge connections, completions;
    struct rp_counter finished[RP_OUTCOME_COUNT];
    struct rp_counter rejected[RP_REJECTED_COUNT];
    struct rp_histogram ttft, inter_token, e2e, queue, prompt_tokens, generation_tokens;
    struct rp_gauge build_info, start_time, resident_bytes, open_fds;
    char http_labels[RP_ROUTE_LABELS_MAX][RP_STATUS_CLASSES][64];
};

void rp_server_metrics_init(struct rp_server_metrics *metrics);
/* Registers ours and the engine's. */
void rp_server_metrics_register(struct rp_server_metrics *metrics, const struct rp_engine *engine,
                                struct rp_registry *registry);
/* Refreshes what is read from the system, before a scrape. */
void rp_server_metrics_sample(struct rp_server_metrics *metrics);

#endif
