/* load_sse.h - server-sent events, cut out of a body that comes in pieces of any size.
 *
 * Lines end with LF or CR LF. Of an event only its data counts; several data lines are joined by
 * LF. Comments and other fields are passed over. An event that lies in one piece is handed out
 * where it lies, nothing is copied.
 * Thread: one owner. Memory: bounded by RP_LOAD_EVENT_BYTES; kept by reset, freed by deinit. */
#ifndef RP_BENCH_LOAD_SSE_H
#define RP_BENCH_LOAD_SSE_H

#include "base/buffer.h"

#define RP_LOAD_EVENT_BYTES ((size_t)4 << 20)

/* False ends the reading. The bytes live until it returns. */
typedef bool rp_load_event(void *context, const char *data, size_t len);

struct rp_load_sse {
    struct rp_buffer line;  /* a line whose end has not come */
    struct rp_buffer event; /* data lines of an event whose end has not come */
    bool has_data;
};

void rp_load_sse_init(struct rp_load_sse *sse);
void rp_load_sse_reset(struct rp_load_sse *sse);
void rp_load_sse_deinit(struct rp_load_sse *sse);
/* False: `event` said so, or an event is too large (then, or when memory is out, a buffer of sse
 * has failed). */
bool rp_load_sse_feed(struct rp_load_sse *sse, const char *bytes, size_t len, rp_load_event *event,
                      void *context);
/* The body has ended: hands out an event that lacks its blank line only. */
bool rp_load_sse_finish(struct rp_load_sse *sse, rp_load_event *event, void *context);

#endif
