/* exposition_openmetrics.c - OpenMetrics 1.0. */
#include "metrics/exposition_internal.h"

#include <stdio.h>
#include <string.h>

static void header(struct rp_buffer *out, const struct rp_metric_family *family) {
    static const char *const types[] = {[RP_METRIC_COUNTER] = "counter",
                                        [RP_METRIC_GAUGE] = "gauge",
                                        [RP_METRIC_HISTOGRAM] = "histogram",
                                        [RP_METRIC_INFO] = "info"};
    int len = (int)rp_metric_base_len(family);
    rp_buffer_printf(out, "# TYPE %.*s %s\n", len, family->name, types[family->type]);
    if (family->unit)
        rp_buffer_printf(out, "# UNIT %.*s %s\n", len, family->name, family->unit);
    rp_buffer_printf(out, "# HELP %.*s ", len, family->name);
    rp_exposition_escape(out, family->help, true);
    rp_buffer_puts(out, "\n");
}

/* Canonical: ".0 appended in case there is no decimal point or exponent". */
static void bound(double value, char out[RP_NUMBER_TEXT]) {
    rp_exposition_number(value, out);
    size_t len = strlen(out);
    if (!strpbrk(out, ".eIN"))
        snprintf(out + len, RP_NUMBER_TEXT - len, ".0");
}

/* The names and values of its labels may have 128 characters: trace_id and 32 digits are 40. */
static void exemplar(struct rp_buffer *out, const struct rp_exemplar_copy *copy) {
    char number[RP_NUMBER_TEXT];
    rp_exposition_number(copy->value, number);
    rp_buffer_printf(out, " # {trace_id=\"%s\"} %s %llu.%03u", copy->trace_id, number,
                     (unsigned long long)(copy->unix_ms / 1000), (unsigned)(copy->unix_ms % 1000));
}

const struct rp_exposition_format rp_exposition_openmetrics = {
    .content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8",
    .header = header,
    .bound = bound,
    .exemplar = exemplar,
    .end = "# EOF\n",
};
