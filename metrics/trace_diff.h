/* trace_diff.h - the times of a trace, as samples of a comparison (time_diff.h): operators by
 * captured size, steps by size, phases of requests, spans of the engine thread, idle time by cause,
 * copies. What the window cuts off is left out.
 * Thread: one owner. */
#ifndef RP_METRICS_TRACE_DIFF_H
#define RP_METRICS_TRACE_DIFF_H

#include "metrics/time_diff.h"
#include "metrics/trace_spans.h"

/* Sets diff->failed when memory is out. */
void rp_trace_diff_add(struct rp_time_diff *diff, enum rp_diff_side side,
                       const struct rp_trace_spans *spans);

#endif
