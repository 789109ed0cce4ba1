#include "server/http/http_parse.h"

#include "base/clock.h"
#include "server/http/http_check.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"

#include <stdio.h>
#include <string.h>

/* Answers a request without reading the rest of it; the connection then closes. */
static void reject(struct rp_conn *conn, int status, const char *code, const char *message) {
    if (conn->rejected)
        return;
    conn->rejected = true;
    conn->keep_alive = false;
    conn->state = RP_CONN_BUSY;
    rp_counter_add(&conn->server->metrics.parse_errors, 1);
    rp_conn_fail(conn, status, code, "%s", message);
}

static int no_memory(struct rp_conn *conn) {
    reject(conn, 503, "overloaded", "out of memory");
    return -1;
}

static int on_url(llhttp_t *parser, const char *at, size_t len) {
    struct rp_conn *conn = parser->data;
    return rp_http_head_target(&conn->head, at, len) ? 0 : no_memory(conn);
}

/* Trailer fields are counted as part of the body and ignored. */
static bool is_trailer(const struct rp_conn *conn) { return conn->state != RP_CONN_HEAD; }

static int on_field(llhttp_t *parser, const char *at, size_t len) {
    struct rp_conn *conn = parser->data;
    return is_trailer(conn) || rp_http_head_name(&conn->head, at, len) ? 0 : no_memory(conn);
}

static int on_value(llhttp_t *parser, const char *at, size_t len) {
    struct rp_conn *conn = parser->data;
    return is_trailer(conn) || rp_http_head_value(&conn->head, at, len) ? 0 : no_memory(conn);
}

static int on_value_complete(llhttp_t *parser) {
    struct rp_conn *conn = parser->data;
    return is_trailer(conn) || rp_http_head_field_done(&conn->head) ? 0 : no_memory(conn);
}

static int on_headers_complete(llhttp_t *parser) {
    struct rp_conn *conn = parser->data;
    if (!rp_http_head_finish(&conn->head))
        return no_memory(conn);
    /* "Upgrade: h2c" and other upgrades are ignored: what follows is this request's body. */
    parser->upgrade = 0;
    conn->http10 = parser->http_major == 1 && parser->http_minor == 0;
    conn->keep_alive = llhttp_should_keep_alive(parser) != 0;
    conn->state = RP_CONN_BODY;
    conn->body_raw_bytes = 0;
    if (rp_check_head(conn))
        return 0;
    /* Already answered; the body is not read. */
    conn->rejected = true;
    return -1;
}

static int body_too_large(struct rp_conn *conn) {
    reject(conn, 413, "body_too_large", "the body is larger than the limit");
    return -1;
}

/* Refuses a chunk by its announced size, before its bytes arrive. */
static int on_chunk_header(llhttp_t *parser) {
    struct rp_conn *conn = parser->data;
    bool fits = parser->content_length <= conn->server->config.limits.body_bytes - conn->body.len;
    if (!fits)
        return body_too_large(conn);
    if (parser->content_length > 0)
        return 0;
    conn->in_trailers = true;
    rp_head_scan_trailers(&conn->scan);
    return HPE_PAUSED; /* they are scanned first */
}

static int on_body(llhttp_t *parser, const char *at, size_t len) {
    struct rp_conn *conn = parser->data;
    struct rp_server *server = conn->server;
    if (len > server->config.limits.body_bytes - conn->body.len)
        return body_too_large(conn);
    if (server->bodies_bytes + len > server->config.limits.bodies_bytes) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_OVERLOAD], 1);
        reject(conn, 503, "overloaded",
               "too many bytes are being uploaded at the moment, try again");
        return -1;
    }
    rp_buffer_append(&conn->body, at, len);
    if (conn->body.failed)
        return no_memory(conn);
    server->bodies_bytes += len;
    server->bodies_peak_bytes = RP_MAX(server->bodies_peak_bytes, server->bodies_bytes);
    return 0;
}

static int on_message_complete(llhttp_t *parser) {
    struct rp_conn *conn = parser->data;
    conn->message_done = true;
    return HPE_PAUSED;
}

static llhttp_settings_t settings;

void rp_parse_init(struct rp_conn *conn) {
    llhttp_settings_init(&settings);
    settings.on_url = on_url;
    settings.on_header_field = on_field;
    settings.on_header_value = on_value;
    settings.on_header_value_complete = on_value_complete;
    settings.on_headers_complete = on_headers_complete;
    settings.on_chunk_header = on_chunk_header;
    settings.on_body = on_body;
    settings.on_message_complete = on_message_complete;
    llhttp_init(&conn->parser, HTTP_REQUEST, &settings);
    conn->parser.data = conn;
}

void rp_parse_resume(struct rp_conn *conn) { llhttp_resume(&conn->parser); }

static void reject_scan(struct rp_conn *conn, enum rp_head_verdict verdict) {
    switch (verdict) {
    case RP_HEAD_FOLDED:
        reject(conn, 400, "invalid_http", "a header field continues on a second line (obs-fold)");
        break;
    case RP_HEAD_TOO_LARGE:
        reject(conn, 431, "headers_too_large", "the header is too large or has too many fields");
        break;
    case RP_HEAD_TARGET_LONG:
        reject(conn, 414, "target_too_long", "the request target is too long");
        break;
    default:
        reject(conn, 400, "invalid_http",
               "the header has an invalid byte, or a line that does not end in "
               "CR LF");
    }
}

static void reject_parser(struct rp_conn *conn, llhttp_errno_t error) {
    char message[160];
    if (conn->rejected)
        return;
    if (error == HPE_INVALID_VERSION || error == HPE_PAUSED_H2_UPGRADE) {
        reject(conn, 505, "http_version", "only HTTP/1.1 and HTTP/1.0 are supported");
        return;
    }
    const char *reason = llhttp_get_error_reason(&conn->parser);
    snprintf(message, sizeof message, "this is not a valid HTTP request: %.100s",
             reason && *reason ? reason : llhttp_errno_name(error));
    reject(conn, 400, "invalid_http", message);
}

/* Feeds up to len bytes; returns how many llhttp consumed. */
static size_t feed(struct rp_conn *conn, const char *bytes, size_t len) {
    llhttp_errno_t error = llhttp_execute(&conn->parser, bytes, len);
    if (error == HPE_OK)
        return len;
    if (error == HPE_PAUSED && (conn->message_done || conn->in_trailers)) {
        const char *pos = llhttp_get_error_pos(&conn->parser);
        if (!conn->message_done)
            llhttp_resume(&conn->parser);
        return pos ? (size_t)(pos - bytes) : len;
    }
    reject_parser(conn, error);
    return len;
}

static void step_head(struct rp_conn *conn, const char *bytes, size_t len) {
    size_t part;
    enum rp_head_verdict verdict =
        rp_head_scan(&conn->scan, &conn->server->config.limits, bytes, len, &part);
    if (verdict > RP_HEAD_DONE) {
        /* llhttp's verdict on the preceding bytes is more specific, for example an unknown
         * version. */
        if (part > 1)
            feed(conn, bytes, part - 1);
        if (!conn->rejected)
            reject_scan(conn, verdict);
        conn->in_used += part;
        return;
    }
    size_t used = feed(conn, bytes, part);
    conn->in_used += used;
    /* Scanner and llhttp must agree on the end of the header: a difference allows request
     * smuggling. */
    bool agree = (verdict == RP_HEAD_DONE) == (conn->state == RP_CONN_BODY);
    if (!conn->rejected && !agree && conn->parser.method == HTTP_PRI)
        reject_parser(conn, HPE_PAUSED_H2_UPGRADE); /* the HTTP/2 connection preface */
    else if (!conn->rejected && !agree)
        reject(conn, 400, "invalid_http", "the header does not end where expected");
    if (!conn->rejected && conn->state == RP_CONN_BODY && !conn->message_done)
        rp_check_expect(conn, conn->in.len > conn->in_used);
}

/* llhttp takes a bare LF as their end, and continuation lines. Returns how many bytes it took. */
static size_t step_trailers(struct rp_conn *conn, const char *bytes, size_t len) {
    size_t part;
    enum rp_head_verdict verdict =
        rp_head_scan(&conn->scan, &conn->server->config.limits, bytes, len, &part);
    if (verdict == RP_HEAD_TOO_LARGE)
        reject(conn, 400, "invalid_http", "the trailers are too long");
    else if (verdict > RP_HEAD_DONE)
        reject_scan(conn, verdict);
    if (conn->rejected)
        return part;
    size_t used = feed(conn, bytes, part);
    if (!conn->rejected && (verdict == RP_HEAD_DONE) != conn->message_done)
        reject(conn, 400, "invalid_http", "the trailers do not end where expected");
    return used;
}

void rp_parse_step(struct rp_conn *conn) {
    const char *bytes = conn->in.data + conn->in_used;
    size_t len = conn->in.len - conn->in_used;
    if (conn->state == RP_CONN_HEAD) {
        step_head(conn, bytes, len);
        return;
    }
    size_t used = conn->in_trailers ? step_trailers(conn, bytes, len) : feed(conn, bytes, len);
    conn->in_used += used;
    conn->body_raw_bytes += used;
    /* A one-byte chunk has five bytes of overhead; chunk extensions and trailers are unbounded. */
    if (!conn->rejected && conn->body_raw_bytes > 16384 + 16 * (uint64_t)conn->body.len)
        reject(conn, 400, "invalid_http", "the chunk extensions or trailers are too long");
}
