/* http_conn.h - one connection: received bytes to requests, answers to sent bytes.
 *
 *   HEAD -> BODY -> BUSY -> (answer written) -> HEAD ...        or -> LINGER -> closed
 *
 * One request at a time: while a handler is active (BUSY), pipelined input is buffered up to a
 * limit and parsed afterwards. A handler answers with rp_conn_reply, or with rp_conn_stream_begin,
 * _write, _end, synchronously or later. A handler that answers later sets `gone`, called when the
 * client has disconnected: the connection must not be used after that.
 * Thread: loop. */
#ifndef RP_SERVER_HTTP_CONN_H
#define RP_SERVER_HTTP_CONN_H

#include "base/buffer.h"
#include "server/http/conn_unread.h"
#include "server/http/http_head.h"
#include "server/server_internal.h"

#include <llhttp.h>

struct rp_route;
struct rp_http_error;

enum rp_conn_state { RP_CONN_HEAD, RP_CONN_BODY, RP_CONN_BUSY, RP_CONN_LINGER, RP_CONN_CLOSED };

struct rp_conn {
    struct rp_server *server;
    struct rp_listener *listener;
    struct rp_conn *prev, *next;
    union rp_socket socket;
    uv_write_t write;
    uv_shutdown_t shutdown;
    llhttp_t parser;
    enum rp_conn_state state;

    struct rp_tls_conn *tls; /* NULL: no TLS */
    struct rp_buffer in;     /* received, not parsed */
    size_t in_used;
    struct rp_head_scan scan;
    bool in_trailers; /* after the last chunk */
    struct rp_http_head head;
    struct rp_buffer body;
    uint64_t body_raw_bytes; /* including chunk headers */
    uint64_t first_byte_ns;  /* when the current request's first byte arrived */
    int64_t unix_offset_ns;  /* time since the epoch less rp_tick_ns, at the first byte */
    uint64_t received_ns;    /* when the request was complete */
    uint64_t deadline_ns;    /* deadline of the current phase */

    uint64_t number; /* of the connection, from 1 */
    const struct rp_route *route;
    char request_id[RP_REQUEST_ID_MAX + 1];
    struct rp_trace_context trace;
    uint16_t status;   /* HTTP status of the answer */
    int32_t key_index; /* index of the API key; -1: no key required */
    bool revoked;      /* the key was removed after it had been checked */
    bool head_only, http10, keep_alive, reading, message_done, rejected;

    /* Output: one buffer fills while the other is being written. */
    struct rp_buffer out[2];
    uint8_t filling;
    bool writing, reply_begun, reply_done, streaming, pumping, pump_again, saw_eof;
    size_t write_left;
    size_t large_bytes; /* of this answer's writes that are large on their own */
    uint64_t write_progress_ns;
    uint64_t stall_since_ns, stall_ns; /* output blocked on the client: since when, and in total */
    uint64_t written_bytes;            /* passed to the socket, or to libuv for it */
    struct rp_unread unread;
    /* Numbers of the output buffers: the one that fills, and the first that the kernel has not
     * taken as a whole. Bytes appended to buffer N are in the kernel once sent_number > N. */
    uint64_t fill_number, sent_number;

    /* The request's record (completion_record.c): whether it should have one, whether it has one;
     * count and first of the records in the log whose answer is not written yet. */
    bool recordable, recorded;
    uint32_t log_count;
    uint64_t log_first;

    void (*drained)(void *ctx); /* streams: called once, when all output has been sent */
    void *drained_ctx;
    /* Streams: a buffer that had to wait was sent (its number: sent_number - 1); ctx is gone_ctx.
     */
    void (*sent)(void *ctx);
    void (*gone)(void *ctx);
    void *gone_ctx;
};

/* Sends a complete response. body may be NULL when len is 0. extra: additional header lines, each
 * with its CRLF, or NULL. */
void rp_conn_reply(struct rp_conn *conn, int status, const char *content_type, const char *extra,
                   const char *body, size_t len);
/* Begins a chunked body, continued by rp_conn_stream_write and _end. The caller keeps unread output
 * below limits.stream_bytes: it writes more when rp_conn_stream_is_drained, or sets the callback
 * conn->drained. extra: as for rp_conn_reply. False when the client is gone or sent HEAD: write
 * nothing more. */
bool rp_conn_body_begin(struct rp_conn *conn, int status, const char *content_type,
                        const char *extra);
bool rp_conn_stream_is_drained(const struct rp_conn *conn);
/* Server-sent events; extra as above. False when the client is too slow or gone: the connection is
 * closing and `gone` has been called. */
bool rp_conn_stream_begin(struct rp_conn *conn, const char *extra);
bool rp_conn_stream_write(struct rp_conn *conn, const char *bytes, size_t len);
void rp_conn_stream_end(struct rp_conn *conn);
/* Closes a stream without its terminating chunk, so that the client detects the truncation. */
void rp_conn_stream_abort(struct rp_conn *conn);

/* Before an answer to a request whose rest will not be read: the connection closes after it. */
void rp_conn_abandon_request(struct rp_conn *conn);
/* Answers 401 because the request's key was removed while it was being received. */
void rp_conn_fail_revoked(struct rp_conn *conn);

/* How long output of the current request has waited for the client to read. */
uint64_t rp_conn_stall_ns(const struct rp_conn *conn);
/* Sets the request id and trace context of the current request if unset: the client's values
 * (either may be NULL), else generated ones. */
void rp_conn_identify(struct rp_conn *conn, const char *request_id, const char *traceparent);
/* completion_record.c: records a request that is answered with an error before a completion
 * exists. */
void rp_record_refused(struct rp_conn *conn, const struct rp_http_error *error);

/* Called by the server: a new connection on a listener, the timer tick, and close. */
void rp_conn_accept(struct rp_listener *listener);
/* Begins to read, or goes on once there is room for input. */
void rp_conn_read(struct rp_conn *conn);
void rp_conn_tick(struct rp_conn *conn, uint64_t now_ns);
void rp_conn_close(struct rp_conn *conn);

#endif
