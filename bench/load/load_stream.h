/* load_stream.h - one request of a load test while it is under way: its answer's stream becomes a
 * record.
 *
 * Thread: the loop's. Memory: a stream is used for one request after the other and keeps what it
 * has grown. */
#ifndef RP_BENCH_LOAD_STREAM_H
#define RP_BENCH_LOAD_STREAM_H

#include "bench/load/load_chunk.h"
#include "bench/load/load_client.h"
#include "bench/load/load_sse.h"

#define RP_LOAD_CHUNKS_MAX  (16u << 20) /* of one answer */
#define RP_LOAD_ERROR_BYTES 1024u       /* that are kept of an answer that is no stream */
#define RP_LOAD_OTHER_BYTES (1u << 20) /* and that are read of it, for the sake of the connection */

struct rp_load_stream {
    struct rp_load_exchange exchange; /* the first member */
    void *run;
    struct rp_load_stream *prev, *next; /* of the run's */
    uint32_t request;
    uint64_t intended_ns, begun_ns; /* since the run began */
    struct rp_load_sse sse;
    struct rp_load_text_hash text;
    struct rp_load_chunk usage; /* of the chunk that had it */
    uint64_t *chunk_ns;         /* the clock */
    uint32_t chunk_count, chunk_capacity;
    uint32_t status;
    bool is_events, is_done, finished, stopped, server_error;
    uint32_t other_bytes;
    char other[RP_LOAD_ERROR_BYTES];
};

/* Makes it ready for an answer. */
void rp_load_stream_reset(struct rp_load_stream *stream);
void rp_load_stream_deinit(struct rp_load_stream *stream);
/* Callbacks of struct rp_load_handler. */
void rp_load_stream_head(struct rp_load_exchange *exchange, uint32_t status, bool is_event_stream);
enum rp_load_outcome rp_load_stream_body(struct rp_load_exchange *exchange, const char *bytes,
                                         size_t len);
/* How the request ended, when its exchange did so with `outcome`, and everything else of the record
 * but where its chunks and times lie. forced: the answer's length was. */
void rp_load_stream_result(struct rp_load_stream *stream, const struct rp_load_request *request,
                           bool forced, enum rp_load_outcome outcome, const char *why,
                           struct rp_load_record *out);

#endif
