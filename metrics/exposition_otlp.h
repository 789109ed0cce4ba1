/* exposition_otlp.h - the registry as an ExportMetricsServiceRequest in OTLP's JSON
 * (opentelemetry-proto): counters as cumulative monotonic sums, gauges, histograms with their
 * buckets. Names and labels are those of /metrics, units are UCUM's. Values that are not finite
 * are left out: JSON cannot say them.
 *
 * Thread: as rp_exposition_write. */
#ifndef RP_METRICS_EXPOSITION_OTLP_H
#define RP_METRICS_EXPOSITION_OTLP_H

#include "metrics/metrics.h"

struct rp_otlp_resource {
    const char *name, *version, *instance; /* service.name, .version, .instance.id */
    uint64_t start_unix_ns;                /* since when counters count */
};

void rp_exposition_otlp(struct rp_registry *registry, unsigned sets,
                        const struct rp_otlp_resource *resource, uint64_t now_unix_ns,
                        struct rp_buffer *out);

#endif
