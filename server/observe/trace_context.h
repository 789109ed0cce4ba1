/* trace_context.h - W3C Trace Context (https://www.w3.org/TR/trace-context/): the trace that a
 * request belongs to.
 *
 *   traceparent: 00-<32 hex: trace id>-<16 hex: the caller's span>-<2 hex: flags>
 *
 * An invalid header never fails a request: a new trace begins instead. Each request gets its own
 * span, whose id is sent in the answer's traceparent. tracestate is ignored, since this server
 * makes no outgoing calls.
 * Thread: any. */
#ifndef RP_SERVER_TRACE_CONTEXT_H
#define RP_SERVER_TRACE_CONTEXT_H

#include "base/base.h"

enum {
    RP_TRACEPARENT_LENGTH = 55,
    RP_TRACE_ID_HEX = 32,
    RP_SPAN_ID_HEX = 16,
    /* Flags that are known and forwarded. */
    RP_TRACE_SAMPLED = 1,
    RP_TRACE_RANDOM = 2
};

struct rp_trace_context {
    uint64_t trace_high, trace_low; /* trace id, big-endian in text; both 0: none yet */
    uint64_t parent;                /* the caller's span; 0: this server started the trace */
    uint64_t span;                  /* span id of this request */
    uint8_t flags;
};

/* Parses a header value (NULL: absent). False: absent or invalid, *out is unchanged; the caller
 * then begins a new trace. */
bool rp_trace_context_parse(const char *text, struct rp_trace_context *out);
/* Begins a new trace; the arguments are random and may be zero. */
void rp_trace_context_begin(struct rp_trace_context *out, uint64_t random_high,
                            uint64_t random_low);

/* Writes the header value and a NUL. */
void rp_trace_context_header(const struct rp_trace_context *context,
                             char out[RP_TRACEPARENT_LENGTH + 1]);
void rp_trace_id_text(const struct rp_trace_context *context, char out[RP_TRACE_ID_HEX + 1]);
void rp_span_id_text(uint64_t span, char out[RP_SPAN_ID_HEX + 1]);

#endif
