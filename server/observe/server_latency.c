#include "server/observe/server_latency.h"

#include "metrics/exposition.h"
#include "metrics/tick.h"

void rp_server_latency_span(struct rp_server_latency *latency, enum rp_latency_series series,
                            uint64_t now_ns, uint64_t from_ns, uint64_t to_ns) {
    if (from_ns && to_ns >= from_ns)
        rp_latency_record(&latency->series[series], now_ns, to_ns - from_ns);
}

/* --- /metrics -------------------------------------------------------------------------------- */

static void put(void *ctx, const char *labels, double value) { rp_metric_put(ctx, labels, value); }

static void collect_recent(void *ctx, struct rp_metric_out *out) {
    rp_latency_gauges(ctx, RP_LATENCY_10S, rp_tick_ns(), put, out);
}

void rp_server_latency_register(struct rp_server_latency *latency, struct rp_registry *registry) {
    static struct rp_metric_family recent[RP_LATENCY_SERIES_COUNT];
    for (uint32_t i = 0; i < RP_LATENCY_SERIES_COUNT; i++) {
        recent[i] =
            (struct rp_metric_family){rp_latency_series[i].family, "seconds",
                                      rp_latency_series[i].help, RP_METRIC_GAUGE, RP_METRICS_OWN};
        rp_registry_add_collected(registry, &recent[i], collect_recent, &latency->series[i]);
    }
}
