/* exposition.h - the text of /metrics: Prometheus' format 0.0.4 and OpenMetrics 1.0, from one
 * registry.
 *
 * Prometheus 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/
 * OpenMetrics 1.0:  https://prometheus.io/docs/specs/om/open_metrics_spec/
 * The second says units, has `# EOF`, and shows the exemplars of buckets.
 *
 * Every family is named, also one without samples (yet).
 *
 * Thread: one at a time (the loop thread); the numbers are read while their owners write them. A
 * histogram's count is the sum of the buckets that were read, so that both agree in every text. */
#ifndef RP_METRICS_EXPOSITION_H
#define RP_METRICS_EXPOSITION_H

#include "metrics/metrics.h"

enum rp_exposition { RP_EXPOSITION_PROMETHEUS, RP_EXPOSITION_OPENMETRICS, RP_EXPOSITION_COUNT };

/* sets: of rp_metric_set, or-ed. */
void rp_exposition_write(struct rp_registry *registry, enum rp_exposition format, unsigned sets,
                         struct rp_buffer *out);
/* The Content-Type of a format. */
const char *rp_exposition_type(enum rp_exposition format);
/* The format that an Accept field selects: OpenMetrics when it is named (any version up to 1.0.0)
 * with a weight that is not below that of the text, else Prometheus' text, also when neither is
 * acceptable: a scraper is always answered. NULL: no such field. */
enum rp_exposition rp_exposition_accepted(const char *accept);

/* --- For functions that collect -------------------------------------------------------------- */

/* One sample of the family. labels: escaped, as rp_label_append makes them; NULL or "": none. */
void rp_metric_put(struct rp_metric_out *out, const char *labels, double value);
void rp_metric_put_count(struct rp_metric_out *out, const char *labels, uint64_t value);
/* bounds NULL: all that it has; else some of them, ascending. */
void rp_metric_put_histogram(struct rp_metric_out *out, const char *labels,
                             const struct rp_histogram *histogram, const double *bounds,
                             uint32_t bound_count);
/* Appends name="value", escaped, after a comma unless labels is empty. Bytes that are not UTF-8
 * become U+FFFD; a label that does not fit in size bytes is omitted (false). labels starts as "".
 * */
bool rp_label_append(char *labels, size_t size, const char *name, const char *value);

#endif
