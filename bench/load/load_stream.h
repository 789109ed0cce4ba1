/* load_stream.h - one request of a load test in flight: converts its answer's stream to a record.
 *
 * Thread: the loop's. Memory: a stream is reused for successive requests and retains its
 * buffers. */
#ifndef RP_BENCH_LOAD_STREAM_H
#define RP_BENCH_LOAD_STREAM_H

#include "bench/load/load_chunk.h"
#include "bench/load/load_client.h"
#include "bench/load/load_sse.h"

#define RP_LOAD_CHUNKS_MAX  (16u << 20) /* maximum chunks of one answer */
#define RP_LOAD_ERROR_BYTES 1024u       /* bytes stored of an answer that is not a stream */
#define RP_LOAD_OTHER_BYTES (1u << 20)  /* bytes read of it */

struct rp_load_stream {
    struct rp_load_exchange exchange; /* must be the first member */
    void *run;
    struct rp_load_stream *prev, *next; /* links of the run's list */
    uint32_t request;
    uint64_t intended_ns, begun_ns; /* since the run began */
    struct rp_load_sse sse;
    struct rp_load_text_hash text;
    struct rp_load_chunk usage; /* the chunk that contained usage */
    uint64_t *chunk_ns;         /* arrival times */
    uint32_t chunk_count, chunk_capacity;
    uint32_t status;
    bool is_events, is_done, finished, stopped, server_error;
    uint32_t other_bytes;
    char other[RP_LOAD_ERROR_BYTES];
};

/* Prepares it for an answer. */
void rp_load_stream_reset(struct rp_load_stream *stream);
void rp_load_stream_deinit(struct rp_load_stream *stream);
/* Callbacks of struct rp_load_handler. */
void rp_load_stream_head(struct rp_load_exchange *exchange, uint32_t status, bool is_event_stream);
enum rp_load_outcome rp_load_stream_body(struct rp_load_exchange *exchange, const char *bytes,
                                         size_t len);
/* Fills the record when the exchange ended with `outcome`, except its chunk index and intended
 * times. forced: the output length was forced. */
void rp_load_stream_result(struct rp_load_stream *stream, const struct rp_load_request *request,
                           bool forced, enum rp_load_outcome outcome, const char *why,
                           struct rp_load_record *out);

#endif
