/* trace_take.h - takes a trace: what the recorder holds of the past seconds, as a file of either
 * format, gzipped or not, in pieces.
 *
 *   rp_trace_take_begin   copies the rings, builds the model      (milliseconds for each second of a busy server)
 *   rp_trace_take_next    a piece of the file, until there is none
 *   rp_trace_take_end     frees everything; legal on a zeroed struct and at any time after
 *
 * Memory is bounded by max_bytes: of more events than a file of that size holds the newest are
 * kept, and the window begins later; the trace says so. Thread: one at a time, not the loop's. */
#ifndef RP_METRICS_TRACE_TAKE_H
#define RP_METRICS_TRACE_TAKE_H

#include "metrics/recorder.h"
#include "metrics/trace_json.h"
#include "metrics/trace_pb.h"

enum rp_trace_format { RP_TRACE_JSON, RP_TRACE_PERFETTO };

struct rp_trace_order {
    uint64_t window_ns;
    uint64_t max_bytes; /* before gzip */
    enum rp_trace_format format;
    bool gzip;
    const char *version, *model, *reason; /* borrowed until the end; see struct rp_trace_info */
    struct rp_trace_names names;
};

struct rp_trace_take {
    struct rp_trace_order order;
    struct rp_recording recording;
    struct rp_trace_model model;
    struct rp_trace_cursor json;
    struct rp_trace_pb pb;
    struct rp_buffer plain;      /* gzip: a piece before it */
    void *zip;                   /* z_stream */
    uint64_t plain_bytes, bytes; /* written so far, before and after gzip */
    bool done;
};

/* RP_STATUS_NO_MEMORY. The window ends now. */
int rp_trace_take_begin(struct rp_trace_take *take, const struct rp_trace_order *order,
                        const struct rp_recorder *recorder) RP_MUST_USE;
/* The same of events from elsewhere, that ended at end_ns (unix_ns: the time of day then); takes
 * over what `recording` holds, also when it fails. FORMAT: kinds of events that are not known. */
int rp_trace_take_from(struct rp_trace_take *take, const struct rp_trace_order *order,
                       struct rp_recording *recording, uint64_t end_ns,
                       uint64_t unix_ns) RP_MUST_USE;
/* Appends at least `bytes` (before gzip) to out, or what is left; take->done is set after the last
 * byte. RP_STATUS_NO_MEMORY. */
int rp_trace_take_next(struct rp_trace_take *take, struct rp_buffer *out, size_t bytes) RP_MUST_USE;
void rp_trace_take_end(struct rp_trace_take *take);

/* "json", "json.gz", "pftrace", "pftrace.gz". */
const char *rp_trace_suffix(enum rp_trace_format format, bool gzip);

#endif
