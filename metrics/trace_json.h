/* trace_json.h - a trace model as Chrome's JSON trace format, which chrome://tracing and Perfetto
 * open. Written in pieces, so that a trace of any length needs one piece of memory.
 *
 *   X    slices of batch, host and device      b, e, n  requests: nestable async events, id2.local = the request
 *   C    counters                              s, t, f  flows; their ids are numbers
 *   M    names and order of processes (groups) and threads (tracks)
 *
 * Times are microseconds since the window began, with three decimals: exact, and short. "otherData"
 * says which window it is and whether all of it was still there. */
#ifndef RP_METRICS_TRACE_JSON_H
#define RP_METRICS_TRACE_JSON_H

#include "base/buffer.h"
#include "metrics/trace_model.h"

/* Where a writer is: zeroed at the start, but for the model. */
struct rp_trace_cursor {
    const struct rp_trace_model *model; /* borrowed until the last piece */
    uint32_t stage, index;
    uint32_t open[8], open_count; /* slices of the track in work, outermost first */
    bool any;                     /* an event was written */
};

/* Appends at least `bytes` more, or all that is left: then false. out->failed when memory is
 * out. */
bool rp_trace_json_next(struct rp_trace_cursor *cursor, struct rp_buffer *out, size_t bytes);

#endif
