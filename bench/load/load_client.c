#include "bench/load/load_client.h"

#include "base/clock.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* BODY_OVERHEAD: allowed bytes per byte of content; a chunk of one byte has six more. */
enum { READ_BYTES = 64 << 10, HEAD_BYTES = 64 << 10, BODY_OVERHEAD = 16 };

struct rp_load_conn {
    struct rp_load_client *client;
    struct rp_load_conn *prev, *next;           /* list of all connections */
    struct rp_load_conn *idle_prev, *idle_next; /* list of idle connections */
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    llhttp_t parser;
    struct rp_load_exchange *exchange; /* NULL: idle, or closing */
    char *unsent; /* request bytes of a pending write that the exchange no longer owns */
    uint32_t address;
    uint64_t raw_bytes, body_bytes; /* of the answer */
    char field[16], value[32];      /* the current header field, truncated */
    uint8_t field_len, value_len;
    bool reading_value, is_event_stream;
    bool connected, is_idle, writing, reused, closing;
    bool answered;  /* a byte of the answer was received */
    bool head_done; /* the header of the final (not an interim) answer is complete */
    bool message_done;
    bool again;                   /* resend the exchange on a new connection after closing */
    enum rp_load_outcome outcome; /* outcome of the exchange, reported after closing */
};

static bool start(struct rp_load_client *client, struct rp_load_exchange *exchange, bool fresh);

/* --- lists ----------------------------------------------------------------------------------- */

static void push_idle(struct rp_load_conn *conn) {
    struct rp_load_client *client = conn->client;
    conn->is_idle = true;
    conn->idle_prev = NULL;
    conn->idle_next = client->idle;
    if (client->idle)
        client->idle->idle_prev = conn;
    client->idle = conn;
}

static void remove_idle(struct rp_load_conn *conn) {
    if (!conn->is_idle)
        return;
    conn->is_idle = false;
    if (conn->idle_prev)
        conn->idle_prev->idle_next = conn->idle_next;
    else
        conn->client->idle = conn->idle_next;
    if (conn->idle_next)
        conn->idle_next->idle_prev = conn->idle_prev;
}

/* --- end of an exchange ---------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle) {
    struct rp_load_conn *conn = handle->data;
    struct rp_load_client *client = conn->client;
    struct rp_load_exchange *exchange = conn->exchange;
    enum rp_load_outcome outcome = conn->outcome;
    bool again = conn->again;
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        client->all = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    rp_free(conn->unsent);
    rp_free(conn);
    if (!exchange)
        return;
    exchange->conn = NULL;
    if (again && !client->closing) {
        if (start(client, exchange, true))
            return;
        snprintf(exchange->why, sizeof exchange->why, "out of memory");
    }
    rp_free(exchange->bytes);
    exchange->bytes = NULL;
    exchange->handler->end(exchange, outcome, exchange->why);
}

static void close_conn(struct rp_load_conn *conn) {
    if (conn->closing)
        return;
    conn->closing = true;
    remove_idle(conn);
    uv_close((uv_handle_t *)&conn->tcp, on_closed);
}

/* Closes the connection; the exchange ends with this outcome after that. Calls no handler
 * itself. */
static void fail(struct rp_load_conn *conn, enum rp_load_outcome outcome, const char *why) {
    if (conn->exchange && !conn->closing) {
        conn->outcome = outcome;
        if (why != conn->exchange->why)
            snprintf(conn->exchange->why, sizeof conn->exchange->why, "%s", why);
    }
    close_conn(conn);
}

/* Handles a lost connection. If it was reused and no byte of an answer was received, the server had
 * probably closed it while idle: the exchange is sent once more. */
static void on_lost(struct rp_load_conn *conn, const char *why) {
    struct rp_load_exchange *exchange = conn->exchange;
    if (exchange && !conn->closing && conn->reused && !conn->answered && !exchange->retried) {
        exchange->retried = true;
        exchange->sent_ns = 0;
        conn->again = true;
    }
    fail(conn, RP_LOAD_RESET, why);
}

/* Frees the request's bytes, after a pending write if there is one. */
static void release_bytes(struct rp_load_conn *conn, struct rp_load_exchange *exchange) {
    if (conn->writing)
        conn->unsent = exchange->bytes;
    else
        rp_free(exchange->bytes);
    exchange->bytes = NULL;
}

static void complete(struct rp_load_conn *conn, bool keep) {
    struct rp_load_exchange *exchange = conn->exchange;
    conn->exchange = NULL;
    exchange->conn = NULL;
    if (keep && !conn->writing && !conn->client->closing)
        push_idle(conn);
    else
        close_conn(conn);
    exchange->handler->end(exchange, RP_LOAD_OK, "");
}

void rp_load_client_cancel(struct rp_load_exchange *exchange) {
    struct rp_load_conn *conn = exchange->conn;
    if (!conn)
        return;
    if (exchange->bytes)
        release_bytes(conn, exchange);
    exchange->conn = NULL;
    conn->exchange = NULL;
    close_conn(conn);
}

/* --- the answer ------------------------------------------------------------------------------ */

static int on_field(llhttp_t *parser, const char *at, size_t len) {
    struct rp_load_conn *conn = parser->data;
    if (conn->reading_value) {
        conn->reading_value = false;
        conn->field_len = conn->value_len = 0;
    }
    size_t part = RP_MIN(len, sizeof conn->field - conn->field_len);
    memcpy(conn->field + conn->field_len, at, part);
    conn->field_len = (uint8_t)(conn->field_len + part);
    return 0;
}

static int on_value(llhttp_t *parser, const char *at, size_t len) {
    struct rp_load_conn *conn = parser->data;
    conn->reading_value = true;
    size_t part = RP_MIN(len, sizeof conn->value - conn->value_len);
    memcpy(conn->value + conn->value_len, at, part);
    conn->value_len = (uint8_t)(conn->value_len + part);
    return 0;
}

static int on_value_complete(llhttp_t *parser) {
    static const char name[] = "content-type", type[] = "text/event-stream";
    struct rp_load_conn *conn = parser->data;
    conn->reading_value = true; /* on_value is not called for an empty value */
    if (!conn->head_done && conn->field_len == sizeof name - 1 &&
        strncasecmp(conn->field, name, sizeof name - 1) == 0)
        conn->is_event_stream = conn->value_len >= sizeof type - 1 &&
                                strncasecmp(conn->value, type, sizeof type - 1) == 0;
    return 0;
}

static bool is_interim(const llhttp_t *parser) {
    return parser->status_code >= 100 && parser->status_code < 200;
}

static int on_headers_complete(llhttp_t *parser) {
    struct rp_load_conn *conn = parser->data;
    if (is_interim(parser))
        return 0;
    conn->head_done = true;
    conn->exchange->handler->head(conn->exchange, parser->status_code, conn->is_event_stream);
    return 0;
}

static int on_body(llhttp_t *parser, const char *at, size_t len) {
    struct rp_load_conn *conn = parser->data;
    conn->body_bytes += len;
    enum rp_load_outcome outcome = conn->exchange->handler->body(conn->exchange, at, len);
    if (outcome == RP_LOAD_OK)
        return 0;
    fail(conn, outcome, conn->exchange->why);
    return -1;
}

static int on_message_complete(llhttp_t *parser) {
    struct rp_load_conn *conn = parser->data;
    if (is_interim(parser)) {
        conn->field_len = conn->value_len = 0;
        return 0;
    }
    conn->message_done = true;
    return HPE_PAUSED;
}

static void settings_init(llhttp_settings_t *settings) {
    llhttp_settings_init(settings);
    settings->on_header_field = on_field;
    settings->on_header_value = on_value;
    settings->on_header_value_complete = on_value_complete;
    settings->on_headers_complete = on_headers_complete;
    settings->on_body = on_body;
    settings->on_message_complete = on_message_complete;
}

static void parse(struct rp_load_conn *conn, const char *bytes, size_t len) {
    char why[96];
    llhttp_errno_t error = llhttp_execute(&conn->parser, bytes, len);
    if (conn->closing)
        return; /* the handler rejected it */
    if (error == HPE_PAUSED && conn->message_done) {
        const char *end = llhttp_get_error_pos(&conn->parser);
        /* Bytes after the answer are unexpected: close the connection. */
        bool keep = end == bytes + len;
        llhttp_resume(&conn->parser);
        complete(conn, keep && llhttp_should_keep_alive(&conn->parser));
        return;
    }
    if (error != HPE_OK) {
        const char *reason = llhttp_get_error_reason(&conn->parser);
        snprintf(why, sizeof why, "invalid HTTP: %s",
                 reason && *reason ? reason : llhttp_errno_name(error));
        fail(conn, RP_LOAD_BAD_ANSWER, why);
        return;
    }
    conn->raw_bytes += len;
    if (!conn->head_done && conn->raw_bytes > HEAD_BYTES)
        fail(conn, RP_LOAD_BAD_ANSWER, "the header is too long");
    else if (conn->raw_bytes > 2 * HEAD_BYTES + BODY_OVERHEAD * conn->body_bytes)
        fail(conn, RP_LOAD_BAD_ANSWER, "the chunk headers or trailers are too long");
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    struct rp_load_conn *conn = handle->data;
    (void)suggested;
    /* Bytes are consumed before the next read: all connections share one buffer. */
    *out = uv_buf_init(conn->client->read_buffer, READ_BYTES);
}

static void on_end_of_file(struct rp_load_conn *conn) {
    if (!conn->head_done) {
        on_lost(conn, conn->answered ? "the connection closed within the header"
                                     : "the connection closed before an answer");
        return;
    }
    /* A body without a length ends with the connection. */
    if (llhttp_message_needs_eof(&conn->parser) &&
        (llhttp_finish(&conn->parser) == HPE_OK || conn->message_done) && !conn->closing)
        complete(conn, false);
    else
        fail(conn, RP_LOAD_RESET, "the connection closed in the middle of the answer");
}

static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buffer) {
    struct rp_load_conn *conn = stream->data;
    struct rp_load_exchange *exchange = conn->exchange;
    uint64_t now_ns = rp_clock_ns();
    if (conn->closing || len == 0)
        return;
    if (!exchange) {
        close_conn(conn); /* the server closed it, or sent unexpected bytes */
        return;
    }
    exchange->read_ns = now_ns;
    if (len == UV_EOF) {
        on_end_of_file(conn);
    } else if (len < 0) {
        on_lost(conn, uv_strerror((int)len));
    } else {
        if (!conn->answered && exchange->bytes)
            release_bytes(conn, exchange);
        conn->answered = true;
        parse(conn, buffer->base, (size_t)len);
    }
}

/* --- the request ----------------------------------------------------------------------------- */

static void on_written(uv_write_t *write, int status) {
    struct rp_load_conn *conn = write->data;
    conn->writing = false;
    rp_free(conn->unsent);
    conn->unsent = NULL;
    if (status == 0 && conn->exchange && !conn->closing)
        conn->exchange->sent_ns = rp_clock_ns();
    /* A server may answer (e.g. 413) and close before it has read everything: the read decides. */
    else if (!conn->closing && !conn->answered && status != UV_EPIPE && status != UV_ECONNRESET)
        on_lost(conn, uv_strerror(status));
}

static void send_request(struct rp_load_conn *conn) {
    struct rp_load_exchange *exchange = conn->exchange;
    llhttp_init(&conn->parser, HTTP_RESPONSE, &conn->client->settings);
    conn->parser.data = conn;
    conn->raw_bytes = conn->body_bytes = 0;
    conn->field_len = conn->value_len = 0;
    conn->reading_value = conn->answered = conn->head_done = conn->message_done = false;
    /* An answer without a content type is assumed to be the requested event stream. */
    conn->is_event_stream = true;
    size_t done = 0;
    while (done < exchange->len) {
        uv_buf_t rest = uv_buf_init(exchange->bytes + done,
                                    (unsigned)RP_MIN(exchange->len - done, (size_t)1 << 30));
        int rc = uv_try_write((uv_stream_t *)&conn->tcp, &rest, 1);
        if (rc == UV_EAGAIN) {
            rc = uv_write(&conn->write, (uv_stream_t *)&conn->tcp, &rest, 1, on_written);
            conn->writing = rc == 0;
            if (rc == 0)
                return;
        }
        if (rc < 0) {
            on_lost(conn, uv_strerror(rc));
            return;
        }
        done += (size_t)rc;
    }
    exchange->sent_ns = rp_clock_ns();
}

static void on_connected(uv_connect_t *connect, int status) {
    struct rp_load_conn *conn = connect->data;
    struct rp_load_client *client = conn->client;
    if (conn->closing)
        return;
    if (status != 0) {
        /* The server may listen on only one address of the name, e.g. localhost and ::1. */
        if (++conn->exchange->addresses_tried < client->address_count) {
            client->address = (conn->address + 1) % client->address_count;
            conn->again = true;
        }
        fail(conn, RP_LOAD_CONNECT, uv_strerror(status));
        return;
    }
    conn->connected = true;
    client->address = conn->address;
    client->opened++;
    uv_tcp_nodelay(&conn->tcp, 1);
    int rc = uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read);
    if (rc != 0)
        fail(conn, RP_LOAD_CONNECT, uv_strerror(rc));
    else
        send_request(conn);
}

/* NULL: out of memory. */
static struct rp_load_conn *new_conn(struct rp_load_client *client) {
    struct rp_load_conn *conn = rp_calloc(1, sizeof *conn);
    if (!conn || uv_tcp_init(client->loop, &conn->tcp) != 0) {
        rp_free(conn);
        return NULL;
    }
    conn->client = client;
    conn->address = client->address;
    conn->tcp.data = conn->connect.data = conn->write.data = conn;
    conn->next = client->all;
    if (client->all)
        client->all->prev = conn;
    client->all = conn;
    return conn;
}

/* Sends on an idle connection, or on a new one. False: out of memory. */
static bool start(struct rp_load_client *client, struct rp_load_exchange *exchange, bool fresh) {
    struct rp_load_conn *conn = fresh ? NULL : client->idle;
    if (conn) {
        remove_idle(conn);
        conn->reused = true;
        conn->exchange = exchange;
        exchange->conn = conn;
        send_request(conn);
        return true;
    }
    conn = new_conn(client);
    if (!conn)
        return false;
    conn->exchange = exchange;
    exchange->conn = conn;
    int rc =
        uv_tcp_connect(&conn->connect, &conn->tcp,
                       (const struct sockaddr *)&client->addresses[conn->address], on_connected);
    if (rc != 0)
        fail(conn, RP_LOAD_CONNECT, uv_strerror(rc));
    return true;
}

bool rp_load_client_send(struct rp_load_client *client, struct rp_load_exchange *exchange,
                         char *bytes, size_t len) {
    exchange->bytes = bytes;
    exchange->len = len;
    exchange->sent_ns = exchange->read_ns = 0;
    exchange->addresses_tried = 0;
    exchange->retried = false;
    exchange->why[0] = '\0';
    if (start(client, exchange, false))
        return true;
    rp_free(bytes);
    exchange->bytes = NULL;
    return false;
}

/* --- lifetime -------------------------------------------------------------------------------- */

static int resolve(struct rp_load_client *client, struct rp_error *err) {
    const struct rp_load_url *url = &client->url;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_protocol = IPPROTO_TCP};
    uv_getaddrinfo_t request;
    char port[8];
    snprintf(port, sizeof port, "%u", (unsigned)url->port);
    int rc = uv_getaddrinfo(client->loop, &request, NULL, url->host, port, &hints);
    if (rc != 0)
        return rp_error_set(err, RP_STATUS_NOT_FOUND, "%s: %s", url->host, uv_strerror(rc));
    for (const struct addrinfo *info = request.addrinfo;
         info && client->address_count < RP_LOAD_ADDRESSES_MAX; info = info->ai_next)
        if (info->ai_family == AF_INET || info->ai_family == AF_INET6)
            memcpy(&client->addresses[client->address_count++], info->ai_addr, info->ai_addrlen);
    uv_freeaddrinfo(request.addrinfo);
    if (client->address_count == 0)
        return rp_error_set(err, RP_STATUS_NOT_FOUND, "%s has no address", url->host);
    return RP_OK;
}

int rp_load_client_init(struct rp_load_client *client, uv_loop_t *loop,
                        const struct rp_load_url *url, struct rp_error *err) {
    *client = (struct rp_load_client){.loop = loop, .url = *url};
    settings_init(&client->settings);
    client->read_buffer = rp_alloc(READ_BYTES);
    if (!client->read_buffer)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for the client");
    return resolve(client, err);
}

void rp_load_client_close(struct rp_load_client *client) {
    client->closing = true;
    for (struct rp_load_conn *conn = client->all; conn; conn = conn->next) {
        if (conn->exchange)
            rp_load_client_cancel(conn->exchange);
        close_conn(conn);
    }
}

void rp_load_client_deinit(struct rp_load_client *client) {
    RP_ASSERT(!client->all);
    rp_free(client->read_buffer);
    client->read_buffer = NULL;
}
