/* server_trace.h - what the loop thread and its workers tell of themselves (metrics/event.h).
 * Thread: loop, but for rp_server_worker_span. Nothing allocates or locks. */
#ifndef RP_SERVER_SERVER_TRACE_H
#define RP_SERVER_SERVER_TRACE_H

#include "metrics/tick.h"
#include "server/server_internal.h"

/* The loop thread did this since begin_ns (rp_tick_ns). */
static inline void rp_server_span(struct rp_server *server, enum rp_trace_kind kind,
                                  uint64_t begin_ns, size_t a) {
    rp_trace_put(server->ring, kind, begin_ns, (uint32_t)RP_MIN(a, (size_t)UINT32_MAX), 0, 0,
                 rp_tick_ns() - begin_ns);
}

/* A thread of the pool did this since begin_ns. */
static inline void rp_server_worker_span(struct rp_server *server, enum rp_trace_job job,
                                         uint64_t begin_ns, size_t bytes) {
    rp_trace_put(rp_recorder_worker_ring(server->recorder), RP_TRACE_WORK, begin_ns,
                 (uint32_t)RP_MIN(bytes, (size_t)UINT32_MAX), (uint16_t)job, 0,
                 rp_tick_ns() - begin_ns);
}

struct rp_completion;
struct rp_choice;

/* A request was handed to the engine: RECEIVED, TOKENIZED and QUEUED of it. */
void rp_server_trace_queued(const struct rp_completion *c, const struct rp_choice *choice);
/* So many bytes of an answer went to its connection. */
void rp_server_trace_written(const struct rp_completion *c, const struct rp_choice *choice,
                             size_t bytes);
/* The answer is complete, with this HTTP status; of each of its requests. */
void rp_server_trace_answered(const struct rp_completion *c, int status);

/* POLL: how long the loop waited in each of its turns. init: before the loop runs; close: as it
 * ends. */
void rp_server_trace_poll_init(struct rp_server *server);
void rp_server_trace_poll_close(struct rp_server *server);

#endif
