/* trace_file.h - reads the spans of a trace file: the JSON of /debug/trace, plain or gzipped, or
 * what a crash left in --trace-dir. The JSON is read line by line, one event in each, as the server
 * writes it: memory grows with the spans alone.
 * Thread: any. */
#ifndef RP_SERVER_TRACE_FILE_H
#define RP_SERVER_TRACE_FILE_H

#include "base/status.h"
#include "metrics/trace_spans.h"

/* Adds an event: a line of the JSON, with or without its comma. Lines that are no events of spans
 * are passed over. False: it is not JSON. */
struct rp_trace_reader {
    struct rp_trace_spans *spans;
    uint64_t request; /* whose slices are open */
    uint32_t open[8]; /* indices of spans, outermost first */
    uint32_t depth;
    uint64_t events;
};
bool rp_trace_reader_line(struct rp_trace_reader *reader, const char *line, size_t len);

/* The spans are finished; the caller frees them in any case. */
int rp_trace_file_read(const char *path, struct rp_trace_spans *out,
                       struct rp_error *err) RP_MUST_USE;

#endif
