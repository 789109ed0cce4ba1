/* server_metrics_otel.c - the same latencies by the names of OpenTelemetry's semantic conventions
 * for generative AI (status: development), as a Prometheus exporter writes them:
 * gen_ai.server.request.duration in s becomes gen_ai_server_request_duration_seconds. Shown with
 * ?compat=otel.
 *
 * The conventions' lowest edge of the time per output token is 10 ms; finer ones are added below
 * it, as they permit. */
#include "server/observe/server_metrics.h"

static const double duration_bounds[] = {0.01, 0.02, 0.04, 0.08,  0.16,  0.32,  0.64,
                                         1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92};
static const double per_token_bounds[] = {0.001, 0.002, 0.003, 0.006, 0.008, 0.01,
                                          0.025, 0.05,  0.075, 0.1,   0.15,  0.2,
                                          0.3,   0.4,   0.5,   0.75,  1,     2.5};
static const double ttft_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                     0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10};

#define HISTOGRAM(name, help)                                                                      \
    { "gen_ai_server_" name "_seconds", "seconds", help, RP_METRIC_HISTOGRAM, RP_METRICS_OTEL }

static const struct rp_metric_family duration =
    HISTOGRAM("request_duration", "Generative AI server request duration.");
static const struct rp_metric_family per_token =
    HISTOGRAM("time_per_output_token", "Time per output token of successful responses, after the "
                                       "first token.");
static const struct rp_metric_family ttft =
    HISTOGRAM("time_to_first_token", "Time to generate the first token of successful responses.");

void rp_server_metrics_add_otel(struct rp_server_metrics *m, const char *model_name,
                                struct rp_registry *r) {
    size_t size = sizeof m->otel_labels;
    m->otel_labels[0] = '\0';
    rp_label_append(m->otel_labels, size, "gen_ai_operation_name", "text_completion");
    rp_label_append(m->otel_labels, size, "gen_ai_provider_name", "reprise");
    rp_label_append(m->otel_labels, size, "gen_ai_request_model", model_name);
    rp_registry_add_projected(r, &duration, m->otel_labels, &m->e2e, duration_bounds,
                              RP_ARRAY_COUNT(duration_bounds));
    rp_registry_add_projected(r, &per_token, m->otel_labels, &m->tpot, per_token_bounds,
                              RP_ARRAY_COUNT(per_token_bounds));
    rp_registry_add_projected(r, &ttft, m->otel_labels, &m->ttft, ttft_bounds,
                              RP_ARRAY_COUNT(ttft_bounds));
}
