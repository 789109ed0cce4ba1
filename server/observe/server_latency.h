/* server_latency.h - latency percentiles of requests over sliding windows (metrics/latency.h), and
 * their gauges in /metrics.
 *
 * Start and end of each series, all by rp_tick_ns:
 *   time_to_first_token    first byte on the socket -> the loop thread has the first token
 *   inter_token_latency    a token was read by the engine -> the next one was
 * time_per_output_token  (last token - first token) / (tokens - 1), of answers with two or more
 * tokens request_duration       first byte -> the end, of requests that ended normally queue_wait
 * submitted -> scheduled into a step
 * request_prefill        scheduled -> first token; request_decode  first -> last token
 * Thread: the loop thread records; any thread may read. */
#ifndef RP_SERVER_SERVER_LATENCY_H
#define RP_SERVER_SERVER_LATENCY_H

#include "metrics/latency.h"
#include "metrics/metrics.h"

struct rp_server_latency {
    struct rp_latency series[RP_LATENCY_SERIES_COUNT];
};

/* now_ns: time of the event that ended the span. from_ns 0 (never happened) and times out of order
 * are ignored. */
void rp_server_latency_span(struct rp_server_latency *latency, enum rp_latency_series series,
                            uint64_t now_ns, uint64_t from_ns, uint64_t to_ns);

/* Registers the gauges over the last 10 s. */
void rp_server_latency_register(struct rp_server_latency *latency, struct rp_registry *registry);

#endif
