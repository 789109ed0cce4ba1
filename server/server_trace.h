/* server_trace.h - trace events of the loop thread and its workers (metrics/event.h).
 * Thread: loop, but for rp_server_worker_span. None of it allocates or locks. */
#ifndef RP_SERVER_SERVER_TRACE_H
#define RP_SERVER_SERVER_TRACE_H

#include "metrics/tick.h"
#include "server/server_internal.h"

/* Records a span of the loop thread from begin_ns (rp_tick_ns) to now. */
static inline void rp_server_span(struct rp_server *server, enum rp_trace_kind kind,
                                  uint64_t begin_ns, size_t a) {
    rp_trace_put(server->ring, kind, begin_ns, (uint32_t)RP_MIN(a, (size_t)UINT32_MAX), 0, 0,
                 rp_tick_ns() - begin_ns);
}

/* Records a span of a thread pool worker from begin_ns to now. */
static inline void rp_server_worker_span(struct rp_server *server, enum rp_trace_job job,
                                         uint64_t begin_ns, size_t bytes) {
    rp_trace_put(rp_recorder_worker_ring(server->recorder), RP_TRACE_WORK, begin_ns,
                 (uint32_t)RP_MIN(bytes, (size_t)UINT32_MAX), (uint16_t)job, 0,
                 rp_tick_ns() - begin_ns);
}

struct rp_completion;
struct rp_choice;

/* A request was submitted to the engine: records RECEIVED, TOKENIZED and QUEUED. */
void rp_server_trace_queued(const struct rp_completion *c, const struct rp_choice *choice);
/* `bytes` bytes of an answer were passed to its connection. */
void rp_server_trace_written(const struct rp_completion *c, const struct rp_choice *choice,
                             size_t bytes);
/* The answer is complete, with this HTTP status; recorded for each of its requests. */
void rp_server_trace_answered(const struct rp_completion *c, int status);

/* POLL events: how long each loop iteration waited for I/O. init: before the loop runs; close: as
 * it ends. */
void rp_server_trace_poll_init(struct rp_server *server);
void rp_server_trace_poll_close(struct rp_server *server);

#endif
