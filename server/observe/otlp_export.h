/* otlp_export.h - pushes spans of ended requests and metrics to an OpenTelemetry collector: OTLP
 * over HTTP with JSON, to URL/v1/traces and URL/v1/metrics.
 *
 * The loop thread copies each sampled record into a bounded queue, and once per interval writes the
 * metrics' text. A thread of the exporter's sends both, at most a second later, in batches. It
 * repeats a post that got no answer or 429, 502, 503 or 504, at growing intervals or as Retry-After
 * says, for five minutes; meanwhile the queue fills, and what does not fit is dropped and counted.
 *
 * Sampling: a request with a traceparent follows its flag. A trace that begins here is sampled by
 * --otlp-sample-ratio, and the answer's traceparent says so.
 *
 * Thread: loop, except where the exporter's own is named. Memory: the queue at start
 * (RP_OTLP_QUEUE records, 5 MB), a batch's JSON while it is sent. */
#ifndef RP_SERVER_OTLP_EXPORT_H
#define RP_SERVER_OTLP_EXPORT_H

#include "metrics/metrics.h"
#include "server/observe/trace_context.h"

enum { RP_OTLP_QUEUE = 2048, RP_OTLP_BATCH = 256 };

struct rp_server;
struct rp_request_record;
struct rp_otlp;

struct rp_otlp_config {
    const char *endpoint; /* URL; NULL or "": nothing is sent */
    double sample_ratio;
    double interval_s; /* between metrics; 0: none are sent */
    double flush_s;    /* for what is left at the end */
};

/* Before a model is loaded: the URL and OTEL_EXPORTER_OTLP_HEADERS can be used. */
int rp_otlp_check(const struct rp_otlp_config *config, struct rp_error *err) RP_MUST_USE;
/* Without an endpoint *out is NULL and the result RP_OK. */
int rp_otlp_start(struct rp_server *server, struct rp_otlp **out, struct rp_error *err) RP_MUST_USE;
/* Sends what is left, for flush_s at most; what remains is counted as dropped and logged. NULL is
 * allowed. */
void rp_otlp_stop(struct rp_otlp *otlp);

/* The flags of a trace that begins here. NULL is allowed: then it is sampled. */
void rp_otlp_sample(const struct rp_otlp *otlp, struct rp_trace_context *context);
/* Whether a trace is in the sampled share: the same share of all servers with that ratio, by the
 * random part of its id (W3C Trace Context level 2, OpenTelemetry's consistent sampling). */
bool rp_otlp_is_in_share(uint64_t trace_low, double ratio);
/* A request has ended, and its answer is written or never will be. ctx: a struct rp_otlp, or
 * NULL. */
void rp_otlp_put(void *ctx, const struct rp_request_record *record);
/* Called several times a second: writes metrics when it is time. NULL is allowed. */
void rp_otlp_tick(struct rp_otlp *otlp, uint64_t now_ns);

/* reprise_otlp_records_total, reprise_otlp_posts_total. NULL: nothing. */
void rp_otlp_register(struct rp_otlp *otlp, struct rp_registry *registry);

#endif
