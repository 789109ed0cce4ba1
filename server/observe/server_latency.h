/* server_latency.h - percentiles of a server's requests over sliding windows (metrics/latency.h),
 * and its part of /metrics.
 *
 * What they are from and to, all by rp_tick_ns:
 *   time_to_first_token    first byte on the socket -> the loop thread has the first token
 *   inter_token_latency    a token was read by the engine -> the next one was
 *   time_per_output_token  (last token - first token) / (tokens - 1), of two tokens and more
 *   request_duration       first byte -> the end, of requests that finished by themselves
 *   queue_wait             submitted -> planned into a step
 *   request_prefill        planned -> first token;   request_decode  first -> last token
 * Thread: the loop thread records; any thread may read. */
#ifndef RP_SERVER_SERVER_LATENCY_H
#define RP_SERVER_SERVER_LATENCY_H

#include "metrics/latency.h"
#include "metrics/metrics.h"

struct rp_server_latency {
    struct rp_latency series[RP_LATENCY_SERIES_COUNT];
};

/* now_ns: of the event that ended it. from_ns 0 (never happened) and times out of order are left
 * out. */
void rp_server_latency_span(struct rp_server_latency *latency, enum rp_latency_series series,
                            uint64_t now_ns, uint64_t from_ns, uint64_t to_ns);

/* Adds the gauges of the last 10 s. */
void rp_server_latency_register(struct rp_server_latency *latency, struct rp_registry *registry);

#endif
