/* load_sse.h - parses server-sent events from a body that arrives in fragments of any size.
 *
 * Lines end with LF or CR LF. Only an event's data is used; several data lines are joined by LF.
 * Comments and other fields are skipped. An event contained in one fragment is delivered in place,
 * without a copy.
 * Thread: one owner. Memory: bounded by RP_LOAD_EVENT_BYTES; retained by reset, freed by deinit. */
#ifndef RP_BENCH_LOAD_SSE_H
#define RP_BENCH_LOAD_SSE_H

#include "base/buffer.h"

#define RP_LOAD_EVENT_BYTES ((size_t)4 << 20)

/* Returning false stops parsing. The bytes are valid until it returns. */
typedef bool rp_load_event(void *context, const char *data, size_t len);

struct rp_load_sse {
    struct rp_buffer line;  /* an incomplete line */
    struct rp_buffer event; /* data lines of an incomplete event */
    bool has_data;
};

void rp_load_sse_init(struct rp_load_sse *sse);
void rp_load_sse_reset(struct rp_load_sse *sse);
void rp_load_sse_deinit(struct rp_load_sse *sse);
/* False: `event` returned false, or an event is too large (then, or when out of memory, a buffer of
 * sse has failed). */
bool rp_load_sse_feed(struct rp_load_sse *sse, const char *bytes, size_t len, rp_load_event *event,
                      void *context);
/* Call at the end of the body: delivers an event that lacks only its blank line. */
bool rp_load_sse_finish(struct rp_load_sse *sse, rp_load_event *event, void *context);

#endif
