/* http_conn.c - input, output and the phases of a connection. Requests are validated in
 * http_check.c. */
#include "server/http/http_conn.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "metrics/tick.h"
#include "server/http/cors.h"
#include "server/http/http_check.h"
#include "server/http/http_error.h"
#include "server/http/http_parse.h"
#include "server/http/router.h"
#include "server/http/tls.h"
#include "server/server_trace.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static void pump(struct rp_conn *conn);

static uint64_t after_ms(uint32_t ms) { return rp_clock_ns() + (uint64_t)ms * 1000000u; }

static void on_closed(uv_handle_t *handle) {
    struct rp_conn *conn = handle->data;
    struct rp_server *server = conn->server;
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        server->conns = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    server->conn_count--;
    rp_gauge_set(&server->metrics.connections, server->conn_count);
    rp_buffer_deinit(&conn->in);
    rp_buffer_deinit(&conn->body);
    rp_buffer_deinit(&conn->out[0]);
    rp_buffer_deinit(&conn->out[1]);
    rp_http_head_deinit(&conn->head);
    rp_tls_conn_destroy(conn->tls);
    rp_free(conn);
    rp_server_check_drained(server);
}

uint64_t rp_conn_stall_ns(const struct rp_conn *conn) {
    return conn->stall_ns + (conn->writing ? rp_tick_ns() - conn->stall_since_ns : 0);
}

/* Sets the time at which the answer was sent in its records; 0: it was not. */
static void note_written(struct rp_conn *conn, uint64_t now_ns) {
    if (conn->log_count)
        rp_request_log_written(&conn->server->log, conn->log_first, conn->log_count, now_ns,
                               rp_conn_stall_ns(conn));
    conn->log_count = 0;
}

void rp_conn_close(struct rp_conn *conn) {
    if (conn->state == RP_CONN_CLOSED)
        return;
    conn->state = RP_CONN_CLOSED;
    conn->drained = NULL;
    note_written(conn, 0);
    conn->server->bodies_bytes -= conn->body.len;
    conn->body.len = 0;
    if (conn->gone) {
        void (*gone)(void *) = conn->gone;
        conn->gone = NULL;
        gone(conn->gone_ctx);
    }
    uv_close(&conn->socket.handle, on_closed);
}

/* --- Output ---------------------------------------------------------------------------------- */

/* The kernel gives up a client without progress after the same time as conn_unread.c
 * (TCP_USER_TIMEOUT, http_accept.c), and may come first. */
static void note_failure(struct rp_conn *conn, ssize_t failure) {
    if (failure == UV_ETIMEDOUT && conn->streaming)
        rp_counter_add(&conn->server->metrics.slow_readers, 1);
}

static void note_sent(struct rp_conn *conn) {
    if (conn->gone && conn->sent)
        conn->sent(conn->gone_ctx);
}

static void on_written(uv_write_t *write, int status) {
    struct rp_conn *conn = write->data;
    conn->writing = false;
    conn->stall_ns += rp_tick_ns() - conn->stall_since_ns;
    rp_buffer_clear(&conn->out[conn->filling ^ 1]);
    if (conn->state == RP_CONN_CLOSED)
        return;
    if (status != 0) {
        note_failure(conn, status);
        rp_conn_close(conn);
        return;
    }
    conn->sent_number++;
    note_sent(conn);
    pump(conn);
}

/* Writes the filled buffer to the socket; false when the connection failed. */
static bool flush(struct rp_conn *conn) {
    struct rp_buffer *out = &conn->out[conn->filling];
    if (conn->writing)
        return true;
    if (conn->tls && !rp_tls_conn_seal(conn->tls, out)) {
        rp_conn_close(conn);
        return false;
    }
    if (out->len == 0)
        return true;
    uv_buf_t buf = uv_buf_init(out->data, (unsigned)out->len);
    int n = uv_try_write(&conn->socket.stream, &buf, 1);
    if (n < 0 && n != UV_EAGAIN) {
        note_failure(conn, n);
        rp_conn_close(conn);
        return false;
    }
    size_t done = n > 0 ? (size_t)n : 0;
    conn->written_bytes += out->len;
    conn->fill_number++;
    if (done == out->len) {
        conn->sent_number++;
        rp_buffer_clear(out);
        return true;
    }
    buf = uv_buf_init(out->data + done, (unsigned)(out->len - done));
    conn->write.data = conn;
    conn->writing = true;
    conn->filling ^= 1;
    conn->write_left = buf.len;
    conn->write_progress_ns = conn->stall_since_ns = rp_tick_ns();
    if (uv_write(&conn->write, &conn->socket.stream, &buf, 1, on_written) != 0) {
        conn->writing = false;
        rp_conn_close(conn);
        return false;
    }
    return true;
}

static bool is_flushed(const struct rp_conn *conn) {
    return !conn->writing && conn->out[conn->filling].len == 0;
}

static void count_answer(struct rp_conn *conn, int status) {
    uint32_t class = (uint32_t)RP_MIN(RP_MAX(status / 100, 2), 5) - 2;
    rp_counter_add(&conn->server->metrics.http_requests[rp_route_index(conn->route)][class], 1);
    rp_log(RP_LOG_DEBUG, "http: answered id=%s route=%s status=%d us=%llu", conn->request_id,
           rp_route_label(rp_route_index(conn->route)), status,
           (unsigned long long)((rp_tick_ns() - conn->first_byte_ns) / 1000));
}

static void begin_trace(struct rp_conn *conn) {
    struct rp_server *server = conn->server;
    rp_trace_context_begin(&conn->trace, rp_server_random(server), rp_server_random(server));
    rp_otlp_sample(server->otlp, &conn->trace);
}

void rp_conn_identify(struct rp_conn *conn, const char *request_id, const char *traceparent) {
    struct rp_server *server = conn->server;
    if (request_id)
        snprintf(conn->request_id, sizeof conn->request_id, "%s", request_id);
    if (conn->request_id[0] == '\0')
        rp_server_new_id(server, conn->request_id);
    if (conn->trace.span)
        return;
    if (!rp_trace_context_parse(traceparent, &conn->trace))
        begin_trace(conn);
    conn->trace.span = rp_server_random(server);
}

/* RFC 9110 section 6.6.1, formatted once a second. */
static const char *date_field(struct rp_server *server) {
    struct tm parts;
    time_t now = time(NULL);
    if (now != server->date_s) {
        /* The C locale's names: the program never calls setlocale. */
        strftime(server->date, sizeof server->date, "%a, %d %b %Y %H:%M:%S GMT",
                 gmtime_r(&now, &parts));
        server->date_s = now;
    }
    return server->date;
}

/* The status line and the header fields of every answer. */
static void begin_reply(struct rp_conn *conn, int status) {
    struct rp_buffer *out = &conn->out[conn->filling];
    if (conn->server->phase >= RP_SERVER_LEAVING)
        conn->keep_alive = false;
    conn->reply_begun = true;
    conn->status = (uint16_t)status;
    rp_conn_identify(conn, NULL, NULL);
    char traceparent[RP_TRACEPARENT_LENGTH + 1];
    rp_trace_context_header(&conn->trace, traceparent);
    rp_buffer_printf(out,
                     "HTTP/1.1 %d %s\r\nDate: %s\r\nX-Request-Id: %s\r\ntraceparent: %s\r\n"
                     "Connection: %s\r\n",
                     status, rp_http_reason(status), date_field(conn->server), conn->request_id,
                     traceparent, conn->keep_alive ? "keep-alive" : "close");
    if (rp_route_errors(conn->route) == RP_ERRORS_ANTHROPIC)
        rp_buffer_printf(out, "request-id: %s\r\n", conn->request_id);
    rp_cors_headers(conn, out);
    count_answer(conn, status);
}

void rp_conn_reply(struct rp_conn *conn, int status, const char *content_type, const char *extra,
                   const char *body, size_t len) {
    if (conn->state == RP_CONN_CLOSED)
        return;
    RP_ASSERT(!conn->reply_begun);
    begin_reply(conn, status);
    struct rp_buffer *out = &conn->out[conn->filling];
    if (content_type)
        rp_buffer_printf(out, "Content-Type: %s\r\n", content_type);
    if (extra)
        rp_buffer_puts(out, extra);
    if (status != 204)
        rp_buffer_printf(out, "Content-Length: %zu\r\n", len);
    rp_buffer_puts(out, "\r\n");
    if (!conn->head_only)
        rp_buffer_append(out, body, len);
    conn->gone = NULL;
    conn->reply_done = true;
    if (out->failed) {
        rp_conn_close(conn);
        return;
    }
    pump(conn);
}

bool rp_conn_body_begin(struct rp_conn *conn, int status, const char *content_type,
                        const char *extra) {
    if (conn->state == RP_CONN_CLOSED)
        return false;
    RP_ASSERT(!conn->reply_begun);
    if (conn->http10)
        conn->keep_alive = false;
    begin_reply(conn, status);
    rp_buffer_printf(&conn->out[conn->filling], "Content-Type: %s\r\n%s%s\r\n", content_type,
                     extra ? extra : "", conn->http10 ? "" : "Transfer-Encoding: chunked\r\n");
    conn->streaming = true;
    if (!conn->head_only)
        return true;
    conn->gone = NULL;
    conn->reply_done = true;
    pump(conn);
    return false;
}

bool rp_conn_stream_is_drained(const struct rp_conn *conn) { return is_flushed(conn); }

bool rp_conn_stream_begin(struct rp_conn *conn, const char *extra) {
    if (conn->state == RP_CONN_CLOSED)
        return false;
    RP_ASSERT(!conn->reply_begun);
    if (conn->http10)
        conn->keep_alive = false;
    begin_reply(conn, 200);
    if (extra)
        rp_buffer_puts(&conn->out[conn->filling], extra);
    rp_buffer_puts(&conn->out[conn->filling],
                   conn->http10 ? "Content-Type: text/event-stream\r\nCache-Control: no-store\r\n"
                                  "X-Accel-Buffering: no\r\n\r\n"
                                : "Content-Type: text/event-stream\r\nCache-Control: no-store\r\n"
                                  "X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n");
    conn->streaming = true;
    return true; /* sent with the first chunk */
}

bool rp_conn_stream_write(struct rp_conn *conn, const char *bytes, size_t len) {
    if (conn->state == RP_CONN_CLOSED)
        return false;
    struct rp_buffer *out = &conn->out[conn->filling];
    size_t waiting = out->len;
    if (conn->writing)
        waiting += uv_stream_get_write_queue_size(&conn->socket.stream);
    /* One large event is not a sign of a slow reader. */
    if (len > conn->server->config.limits.stream_bytes / 4)
        conn->large_bytes += len;
    if (waiting + len > conn->server->config.limits.stream_bytes + conn->large_bytes) {
        rp_counter_add(&conn->server->metrics.slow_readers, 1);
        rp_log(RP_LOG_INFO, "http: slow reader cut off id=%s unread=%zu", conn->request_id,
               waiting);
        rp_conn_close(conn);
        return false;
    }
    if (conn->http10) {
        rp_buffer_append(out, bytes, len);
    } else {
        rp_buffer_printf(out, "%zx\r\n", len);
        rp_buffer_append(out, bytes, len);
        rp_buffer_puts(out, "\r\n");
    }
    if (out->failed) {
        rp_conn_close(conn);
        return false;
    }
    return flush(conn);
}

void rp_conn_stream_end(struct rp_conn *conn) {
    if (conn->state == RP_CONN_CLOSED)
        return;
    if (!conn->http10)
        rp_buffer_puts(&conn->out[conn->filling], "0\r\n\r\n");
    conn->gone = NULL;
    conn->reply_done = true;
    pump(conn);
}

void rp_conn_stream_abort(struct rp_conn *conn) {
    if (conn->state == RP_CONN_CLOSED)
        return;
    conn->keep_alive = false;
    conn->gone = NULL;
    conn->reply_done = true;
    pump(conn);
}

/* --- Phases ---------------------------------------------------------------------------------- */

static void on_shutdown(uv_shutdown_t *shutdown, int status) {
    (void)shutdown;
    (void)status;
}

/* The closing alert; lost if the socket's buffer is full, since nothing follows it. */
static void send_tls_end(struct rp_conn *conn) {
    struct rp_buffer *out = &conn->out[conn->filling];
    rp_tls_conn_finish(conn->tls, out);
    uv_buf_t buf = uv_buf_init(out->data, (unsigned)out->len);
    if (out->len)
        (void)uv_try_write(&conn->socket.stream, &buf, 1);
    rp_buffer_clear(out);
}

/* Our side is shut down and further input is discarded for a while: closing at once would reset the
 * connection, and the client could lose the part of the answer that it has not read yet. */
static void begin_linger(struct rp_conn *conn) {
    conn->state = RP_CONN_LINGER;
    conn->deadline_ns = after_ms(conn->server->config.limits.linger_ms);
    rp_buffer_clear(&conn->in);
    conn->in_used = 0;
    if (conn->tls)
        send_tls_end(conn);
    if (conn->saw_eof || uv_shutdown(&conn->shutdown, &conn->socket.stream, on_shutdown) != 0)
        rp_conn_close(conn);
}

/* The answer is written: continue with the next request, or close. */
static void next_request(struct rp_conn *conn) {
    note_written(conn, rp_tick_ns());
    if (!conn->keep_alive) {
        begin_linger(conn);
        return;
    }
    conn->state = RP_CONN_HEAD;
    conn->reply_begun = conn->reply_done = conn->streaming = false;
    conn->large_bytes = 0;
    conn->drained = NULL;
    conn->sent = NULL;
    conn->message_done = conn->rejected = conn->revoked = false;
    conn->head_only = false;
    conn->request_id[0] = '\0';
    memset(&conn->trace, 0, sizeof conn->trace);
    conn->route = NULL;
    conn->first_byte_ns = conn->received_ns = conn->stall_ns = 0;
    conn->recordable = conn->recorded = false;
    memset(&conn->scan, 0, sizeof conn->scan);
    conn->in_trailers = false;
    rp_http_head_clear(&conn->head);
    conn->deadline_ns = after_ms(conn->server->config.limits.idle_ms);
    rp_parse_resume(conn);
    if (conn->saw_eof && conn->in_used == conn->in.len)
        rp_conn_close(conn);
}

/* The request is complete: calls its handler, which answers now or later. */
static void dispatch(struct rp_conn *conn) {
    conn->state = RP_CONN_BUSY;
    conn->received_ns = rp_tick_ns();
    if (conn->rejected) {
        /* http_check.c has already answered. */
    } else if (!rp_check_complete(conn)) {
        RP_ASSERT(conn->reply_begun);
    } else {
        conn->route->handle(conn);
    }
    if (conn->state == RP_CONN_CLOSED)
        return;
    conn->server->bodies_bytes -= conn->body.len;
    rp_buffer_deinit(&conn->body);
}

/* Parses buffered input until a request is complete. */
static void take_input(struct rp_conn *conn) {
    while ((conn->state == RP_CONN_HEAD || conn->state == RP_CONN_BODY) &&
           conn->in_used < conn->in.len) {
        if (conn->first_byte_ns == 0) {
            conn->first_byte_ns = rp_tick_ns();
            conn->unix_offset_ns = (int64_t)(rp_unix_ns() - conn->first_byte_ns);
            conn->deadline_ns = after_ms(conn->server->config.limits.header_ms);
        }
        enum rp_conn_state before = conn->state;
        rp_parse_step(conn);
        if (conn->state == RP_CONN_CLOSED)
            return;
        if (conn->message_done || conn->rejected)
            dispatch(conn);
        else if (before == RP_CONN_HEAD && conn->state == RP_CONN_BODY)
            conn->deadline_ns = after_ms(conn->server->config.limits.body_ms);
    }
    if (conn->state == RP_CONN_CLOSED)
        return;
    if (conn->in_used == conn->in.len) {
        rp_buffer_clear(&conn->in);
        conn->in_used = 0;
    }
}

static void pump(struct rp_conn *conn) {
    if (conn->pumping) {
        conn->pump_again = true;
        return;
    }
    conn->pumping = true;
    do {
        uint64_t sent_before = conn->sent_number;
        conn->pump_again = false;
        if (!flush(conn))
            break;
        if (conn->sent_number != sent_before)
            note_sent(conn);
        if (conn->state == RP_CONN_BUSY && conn->reply_done && is_flushed(conn)) {
            next_request(conn);
            conn->pump_again = conn->in_used < conn->in.len;
        }
        if (conn->state == RP_CONN_HEAD || conn->state == RP_CONN_BODY)
            take_input(conn);
    } while (conn->pump_again && conn->state != RP_CONN_CLOSED);
    conn->pumping = false;
    if (conn->state == RP_CONN_CLOSED || !flush(conn)) /* 100 Continue, for example */
        return;
    rp_conn_read(conn);
    if (conn->drained && is_flushed(conn)) {
        void (*drained)(void *) = conn->drained;
        conn->drained = NULL;
        drained(conn->drained_ctx);
    }
}

/* --- Input ----------------------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
    struct rp_conn *conn = handle->data;
    (void)suggested;
    *buf = uv_buf_init(conn->server->read_buffer, sizeof conn->server->read_buffer);
}

/* A client that half-closes counts as gone, even if it could still read. A complete answer is still
 * written. */
static void read_ended(struct rp_conn *conn, bool orderly) {
    conn->saw_eof = true;
    if (!orderly || !(conn->state == RP_CONN_BUSY && conn->reply_done))
        rp_conn_close(conn);
    else
        uv_read_stop(&conn->socket.stream);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    struct rp_conn *conn = stream->data;
    if (n == 0 || conn->state == RP_CONN_CLOSED)
        return;
    if (n < 0) {
        note_failure(conn, n);
        read_ended(conn, n == UV_EOF);
        return;
    }
    if (conn->state == RP_CONN_LINGER)
        return;
    if (conn->in_used) {
        memmove(conn->in.data, conn->in.data + conn->in_used, conn->in.len - conn->in_used);
        conn->in.len -= conn->in_used;
        conn->in_used = 0;
    }
    enum rp_tls_result tls = RP_TLS_OK;
    if (conn->tls)
        tls = rp_tls_conn_receive(conn->tls, buf->base, (size_t)n, &conn->in);
    else
        rp_buffer_append(&conn->in, buf->base, (size_t)n);
    if (conn->in.failed || tls == RP_TLS_FAILED) {
        if (tls == RP_TLS_FAILED && !conn->writing)
            send_tls_end(conn); /* the alert with the reason */
        rp_conn_close(conn);
        return;
    }
    struct rp_server *server = conn->server;
    uint64_t begin_ns = rp_tick_ns();
    pump(conn);
    if (tls == RP_TLS_ENDED && conn->state != RP_CONN_CLOSED)
        read_ended(conn, true);
    rp_server_span(server, RP_TRACE_READ, begin_ns, (size_t)n);
}

/* Resumes reading, unless the client has pipelined more than the limit. */
void rp_conn_read(struct rp_conn *conn) {
    bool full = conn->state == RP_CONN_BUSY &&
                conn->in.len - conn->in_used >= conn->server->config.limits.pipeline_bytes;
    if (full == conn->reading && !conn->saw_eof) {
        if (full)
            uv_read_stop(&conn->socket.stream);
        else
            uv_read_start(&conn->socket.stream, on_alloc, on_read);
        conn->reading = !full;
    }
}

/* Whether the client has disconnected, for a connection that is not being read. */
static bool peer_left(struct rp_conn *conn) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    uv_os_fd_t fd;
    if (uv_fileno(&conn->socket.handle, &fd) != 0)
        return false;
    if (conn->listener->is_unix) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLRDHUP};
        return poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR));
    }
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return false;
    return info.tcpi_state != TCP_ESTABLISHED;
}

void rp_conn_abandon_request(struct rp_conn *conn) {
    conn->state = RP_CONN_BUSY;
    conn->keep_alive = false;
}

void rp_conn_fail_revoked(struct rp_conn *conn) {
    rp_conn_fail(conn, 401, "invalid_api_key",
                 "the API key was revoked while the request was being received");
}

void rp_conn_tick(struct rp_conn *conn, uint64_t now_ns) {
    const struct rp_http_limits *limits = &conn->server->config.limits;
    if (conn->state == RP_CONN_CLOSED)
        return;
    if (conn->writing) {
        size_t left = uv_stream_get_write_queue_size(&conn->socket.stream);
        if (left < conn->write_left) {
            conn->write_left = left;
            conn->write_progress_ns = now_ns;
        } else if (now_ns > conn->write_progress_ns + (uint64_t)limits->write_stall_ms * 1000000u) {
            rp_counter_add(&conn->server->metrics.slow_readers, 1);
            rp_conn_close(conn);
            return;
        }
    }
    if (conn->state == RP_CONN_BUSY) {
        if (!conn->reading && !conn->saw_eof && peer_left(conn))
            rp_conn_close(conn);
        return;
    }
    if (now_ns < conn->deadline_ns)
        return;
    if (conn->state == RP_CONN_LINGER || conn->first_byte_ns == 0) {
        rp_conn_close(conn);
        return;
    }
    rp_counter_add(&conn->server->metrics.timeouts, 1);
    rp_conn_abandon_request(conn);
    rp_conn_fail(conn, 408, "timeout", "the request did not arrive in time (%u s for its %s)",
                 (conn->body_raw_bytes ? limits->body_ms : limits->header_ms) / 1000,
                 conn->body_raw_bytes ? "body" : "header");
}
