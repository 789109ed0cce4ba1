/* exposition_prometheus.c - Prometheus' text format 0.0.4. */
#include "metrics/exposition_internal.h"

static void header(struct rp_buffer *out, const struct rp_metric_family *family) {
    static const char *const types[] = {[RP_METRIC_COUNTER] = "counter",
                                        [RP_METRIC_GAUGE] = "gauge",
                                        [RP_METRIC_HISTOGRAM] = "histogram",
                                        [RP_METRIC_INFO] = "gauge"};
    rp_buffer_printf(out, "# HELP %s ", family->name);
    rp_exposition_escape(out, family->help, false);
    rp_buffer_printf(out, "\n# TYPE %s %s\n", family->name, types[family->type]);
}

const struct rp_exposition_format rp_exposition_prometheus = {
    .content_type = "text/plain; version=0.0.4; charset=utf-8",
    .header = header,
    .bound = rp_exposition_number,
    .end = "",
};
