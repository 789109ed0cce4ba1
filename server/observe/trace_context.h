/* trace_context.h - W3C Trace Context (https://www.w3.org/TR/trace-context/): which trace a request
 * belongs to.
 *
 *   traceparent: 00-<32 hex: trace id>-<16 hex: the caller's span>-<2 hex: flags>
 *
 * A header that breaks the rules never fails a request: a new trace begins. Each request gets a
 * span of its own, whose id goes out in the answer's traceparent. tracestate is for those that call
 * on; this server calls nobody.
 * Thread: any. */
#ifndef RP_SERVER_TRACE_CONTEXT_H
#define RP_SERVER_TRACE_CONTEXT_H

#include "base/base.h"

enum {
    RP_TRACEPARENT_LENGTH = 55,
    RP_TRACE_ID_HEX = 32,
    RP_SPAN_ID_HEX = 16,
    /* The flags that are known and forwarded. */
    RP_TRACE_SAMPLED = 1,
    RP_TRACE_RANDOM = 2
};

struct rp_trace_context {
    uint64_t trace_high, trace_low; /* the trace id, big-endian in text; both 0: none yet */
    uint64_t parent;                /* the caller's span; 0: the trace began here */
    uint64_t span;                  /* ours */
    uint8_t flags;
};

/* Reads a header's value (NULL: absent). False: absent or invalid, *out is untouched; the caller
 * then begins a trace. */
bool rp_trace_context_parse(const char *text, struct rp_trace_context *out);
/* A trace of our own; the numbers are random and need not be nonzero. */
void rp_trace_context_begin(struct rp_trace_context *out, uint64_t random_high,
                            uint64_t random_low);

/* With a NUL. */
void rp_trace_context_header(const struct rp_trace_context *context,
                             char out[RP_TRACEPARENT_LENGTH + 1]);
void rp_trace_id_text(const struct rp_trace_context *context, char out[RP_TRACE_ID_HEX + 1]);
void rp_span_id_text(uint64_t span, char out[RP_SPAN_ID_HEX + 1]);

#endif
