/* trace_spans.h - what a trace file says happened, for reports on it: spans of device, engine
 * thread and requests, sorted. A trace model becomes such a file; a reader of the file adds what it
 * finds there, in any order and whatever it holds.
 * Times: ns since the window of the trace began. Thread: one owner. Memory: grows with the spans.
 * Errors: `failed` is set when memory was out, and stays. */
#ifndef RP_METRICS_TRACE_SPANS_H
#define RP_METRICS_TRACE_SPANS_H

#include "base/base.h"

enum rp_trace_span_kind {
    RP_SPAN_STEP, /* a replay: name: its bucket, number: the step */
    RP_SPAN_NODE, /* of a stamped step: number: the step */
    RP_SPAN_IDLE, /* of the device: name: the cause, number: the step after it */
    RP_SPAN_COPY, /* between host and device: number: the step that it is for */
    RP_SPAN_HOST, /* the engine thread: plan, launch, ...; number: the step or 0 */
    /* number: the request */
    RP_SPAN_REQUEST, /* from its first byte to its end */
    RP_SPAN_PHASE,   /* name: tokenize, queued, prefill, decode, swapped, stream wait */
    RP_SPAN_CHUNK,   /* a prompt chunk on the device */
    RP_SPAN_TOKEN,   /* instants */
    RP_SPAN_WRITTEN,
    RP_SPAN_KIND_COUNT
};

struct rp_trace_span {
    uint64_t begin_ns, end_ns;
    uint64_t number;
    uint64_t step;    /* of chunks and tokens */
    const char *name; /* equal names have one address */
    uint8_t kind;
    bool cut; /* the window ends or begins in it */
};

struct rp_trace_spans {
    struct rp_trace_span *spans; /* after finish: by kind; of requests by number; by begin */
    uint32_t count, capacity;
    uint32_t first[RP_SPAN_KIND_COUNT + 1]; /* after finish */
    char **names;
    uint32_t *places; /* hash of names: index + 1 */
    uint32_t name_count, name_capacity;
    uint64_t end_ns; /* of the window */
    bool failed;
};

void rp_trace_spans_deinit(struct rp_trace_spans *spans); /* legal on a zeroed struct */
/* name: copied; those of another address may be the same text. */
void rp_trace_spans_add(struct rp_trace_spans *spans, const struct rp_trace_span *span);
void rp_trace_spans_finish(struct rp_trace_spans *spans);

static inline const struct rp_trace_span *rp_trace_spans_of(const struct rp_trace_spans *spans,
                                                            enum rp_trace_span_kind kind,
                                                            uint32_t *out_count) {
    *out_count = spans->first[kind + 1] - spans->first[kind];
    return *out_count ? spans->spans + spans->first[kind] : NULL;
}
/* The spans of this kind and request; of other kinds than a request's there is no such order. */
const struct rp_trace_span *rp_trace_spans_of_request(const struct rp_trace_spans *spans,
                                                      enum rp_trace_span_kind kind,
                                                      uint64_t request, uint32_t *out_count);
/* The first span of the kind that ends after ns, of spans that do not overlap; their count from
 * there on in *out_count. */
const struct rp_trace_span *rp_trace_spans_from(const struct rp_trace_spans *spans,
                                                enum rp_trace_span_kind kind, uint64_t ns,
                                                uint32_t *out_count);

/* Time of the copies, and how much of it replays ran at the same time. */
struct rp_trace_overlap {
    uint32_t copies;
    uint64_t copy_ns, overlapped_ns;
};
void rp_trace_spans_overlap(const struct rp_trace_spans *spans, struct rp_trace_overlap *out);

#endif
