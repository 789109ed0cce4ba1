/* load_charts.h - the pictures of load_html.c: each a <figure> with a title, a legend, and an SVG
 * chart. */
#ifndef RP_BENCH_LOAD_CHARTS_H
#define RP_BENCH_LOAD_CHARTS_H

#include "bench/load/load_report.h"

/* Charts of one run with records. NO_MEMORY shows as out->failed. */
void rp_load_charts_run(const struct rp_load_report *report, struct rp_buffer *out);

/* What several runs reach at what is offered. `order`: their indices by rising load. */
void rp_load_charts_list(const struct rp_load_report *reports, const uint32_t *order,
                         uint32_t count, const struct rp_load_objective *objective,
                         struct rp_buffer *out);

/* What was offered: requests per second, or requests at a time in a closed loop; *out_unit says
 * which. */
double rp_load_offered(const struct rp_load_report *report, const char **out_unit);

#endif
