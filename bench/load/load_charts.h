/* load_charts.h - the charts of load_html.c: each a <figure> with a title, a legend, and an SVG
 * chart. */
#ifndef RP_BENCH_LOAD_CHARTS_H
#define RP_BENCH_LOAD_CHARTS_H

#include "bench/load/load_report.h"

/* Charts of one run with records. Out of memory sets out->failed. */
void rp_load_charts_run(const struct rp_load_report *report, struct rp_buffer *out);

/* Results of several runs over their offered load. `order`: their indices by ascending load. */
void rp_load_charts_list(const struct rp_load_report *reports, const uint32_t *order,
                         uint32_t count, const struct rp_load_objective *objective,
                         struct rp_buffer *out);

/* The offered load: requests per second, or in a closed loop concurrent requests; *out_unit is the
 * unit. */
double rp_load_offered(const struct rp_load_report *report, const char **out_unit);

#endif
