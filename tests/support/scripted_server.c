#include "tests/support/scripted_server.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "bench/load/load_timer.h"
#include "tests/support/scripted_internal.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct server;

struct conn {
    struct server *server;
    uv_tcp_t tcp;
    struct rp_buffer in, out;
    struct script script;
    uint32_t number, requests, heap_index; /* 0: not in the heap */
    uint64_t at_ns, arrived_ns;
    uint32_t sent, head_sent;
    bool busy, head_done, closing;
};

struct server {
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_signal_t term;
    struct rp_load_timer timer;
    struct scripted_shared *shared;
    struct conn **heap; /* [1, count], by time */
    uint32_t heap_count, heap_capacity, open;
    char read_buffer[65536];
};

/* --- Timers ---------------------------------------------------------------------------------- */

static void place(struct server *server, uint32_t index, struct conn *conn) {
    server->heap[index] = conn;
    conn->heap_index = index;
}

static void sift(struct server *server, uint32_t index) {
    struct conn *conn = server->heap[index];
    while (index > 1 && server->heap[index / 2]->at_ns > conn->at_ns) {
        place(server, index, server->heap[index / 2]);
        index /= 2;
    }
    for (;;) {
        uint32_t child = 2 * index;
        if (child < server->heap_count &&
            server->heap[child + 1]->at_ns < server->heap[child]->at_ns)
            child++;
        if (child > server->heap_count || server->heap[child]->at_ns >= conn->at_ns)
            break;
        place(server, index, server->heap[child]);
        index = child;
    }
    place(server, index, conn);
}

static void unschedule(struct conn *conn) {
    struct server *server = conn->server;
    uint32_t index = conn->heap_index;
    if (!index)
        return;
    conn->heap_index = 0;
    struct conn *last = server->heap[server->heap_count--];
    if (last == conn)
        return;
    place(server, index, last);
    sift(server, index);
}

static void schedule(struct conn *conn, uint64_t at_ns) {
    struct server *server = conn->server;
    unschedule(conn);
    if (server->heap_count + 2 > server->heap_capacity) {
        server->heap_capacity = 2 * server->heap_capacity + 64;
        server->heap = realloc(server->heap, server->heap_capacity * sizeof(struct conn *));
        RP_ASSERT(server->heap);
    }
    conn->at_ns = at_ns;
    server->heap[++server->heap_count] = conn;
    sift(server, server->heap_count);
    rp_load_timer_set(&server->timer, server->heap[1]->at_ns);
}

/* --- Output ---------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle) {
    struct conn *conn = handle->data;
    conn->server->open--;
    rp_buffer_deinit(&conn->in);
    rp_buffer_deinit(&conn->out);
    free(conn);
}

static void close_conn(struct conn *conn, bool reset) {
    if (conn->closing)
        return;
    conn->closing = true;
    unschedule(conn);
    if (!reset || uv_tcp_close_reset(&conn->tcp, on_closed) != 0)
        uv_close((uv_handle_t *)&conn->tcp, on_closed);
}

struct rest {
    uv_write_t write;
    char bytes[];
};

static void on_written(uv_write_t *write, int status) {
    (void)status;
    free(write->data);
}

static void put(struct conn *conn, const char *bytes, size_t len) {
    while (len && !conn->closing) {
        size_t part = conn->script.split ? RP_MIN(len, conn->script.split) : len;
        uv_buf_t buf = uv_buf_init((char *)(uintptr_t)bytes, (unsigned)part);
        int rc = uv_try_write((uv_stream_t *)&conn->tcp, &buf, 1);
        if (rc == UV_EAGAIN) {
            struct rest *rest = malloc(sizeof *rest + len);
            RP_ASSERT(rest);
            memcpy(rest->bytes, bytes, len);
            rest->write.data = rest;
            buf = uv_buf_init(rest->bytes, (unsigned)len);
            if (uv_write(&rest->write, (uv_stream_t *)&conn->tcp, &buf, 1, on_written) != 0)
                free(rest);
            return;
        }
        if (rc < 0) {
            close_conn(conn, false);
            return;
        }
        bytes += rc;
        len -= (size_t)rc;
    }
}

static void flush(struct conn *conn) {
    put(conn, conn->out.data, conn->out.len);
    rp_buffer_clear(&conn->out);
}

/* A piece of the body, framed as in the script, into out. */
static void add_body(struct conn *conn, const char *bytes, size_t len) {
    bool chunked = strcmp(conn->script.body, "chunked") == 0;
    if (chunked)
        rp_buffer_printf(&conn->out, "%zx\r\n", len);
    rp_buffer_append(&conn->out, bytes, len);
    if (chunked)
        rp_buffer_puts(&conn->out, "\r\n");
}

static void add_event(struct conn *conn, const char *data) {
    const char *line = conn->script.crlf ? "\r\n" : "\n";
    struct rp_buffer event = {.data = NULL};
    if (conn->script.comments)
        rp_buffer_printf(&event, ": a comment%sid: 7%s", line, line);
    rp_buffer_printf(&event, "data: %s%s%s", data, line, line);
    add_body(conn, event.data, event.len);
    rp_buffer_deinit(&event);
}

/* --- Events of a stream ---------------------------------------------------------------------- */

static void add_chunk(struct conn *conn, const char *text, const char *reason) {
    const struct script *s = &conn->script;
    char data[512], quoted[16] = "null";
    if (reason)
        snprintf(quoted, sizeof quoted, "\"%s\"", reason);
    const char *key = s->reasoning ? "reasoning_content" : "content";
    if (s->chat)
        snprintf(data, sizeof data,
                 "{\"id\":\"chatcmpl-%u\",\"object\":\"chat.completion.chunk\",\"created\":1,"
                 "\"model\":\"scripted\",\"choices\":[{\"index\":0,\"delta\":{\"%s\":\"%s\"},"
                 "\"logprobs\":null,\"finish_reason\":%s}]}",
                 s->number, key, text, quoted);
    else
        snprintf(data, sizeof data,
                 "{\"id\":\"cmpl-%u\",\"object\":\"text_completion\",\"created\":1,\"model\":"
                 "\"scripted\",\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,"
                 "\"finish_reason\":%s,\"stop_reason\":null}],\"usage\":null}",
                 s->number, text, quoted);
    add_event(conn, data);
}

/* Without its blank line. */
static void add_head(struct conn *conn) {
    const char *body = conn->script.body;
    rp_buffer_puts(&conn->out,
                   "HTTP/1.1 200 OK\r\ncontent-Type: Text/Event-Stream; charset=utf-8\r\n");
    if (strcmp(body, "chunked") == 0)
        rp_buffer_puts(&conn->out, "Transfer-Encoding: chunked\r\n");
    else if (strcmp(body, "length") == 0) /* the remaining chunks, written together */
        rp_buffer_puts(&conn->out, "Content-Length: ");
    conn->head_done = true;
}

static void finish_stream(struct conn *conn) {
    const struct script *s = &conn->script;
    char usage[256];
    snprintf(usage, sizeof usage,
             "{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":%u,\"total_"
             "tokens\":%u,"
             "\"prompt_tokens_details\":{\"cached_tokens\":%u}}}",
             s->tokens, s->tokens + 7, s->cached);
    if (!s->no_usage)
        add_event(conn, usage);
    if (!s->no_done)
        add_event(conn, "[DONE]");
    if (strcmp(s->body, "chunked") == 0)
        rp_buffer_puts(&conn->out, "0\r\n\r\n");
}

/* Whether the script ends the stream here. */
static bool interrupted(struct conn *conn) {
    const struct script *s = &conn->script;
    char data[160];
    if (conn->sent == s->reset || conn->sent == s->close) {
        flush(conn);
        close_conn(conn, conn->sent == s->reset);
        return true;
    }
    if (conn->sent == s->error) {
        snprintf(data, sizeof data, "{\"error\":{\"message\":\"%s\",\"code\":500}}", s->message);
        add_event(conn, data);
        flush(conn);
        return true;
    }
    if (conn->sent == s->garbage)
        add_event(conn, "{\"choices\":[{\"text\":\"x\" \"y\"");
    for (uint32_t i = 0; conn->sent == s->longest && i < 6000; i++) {
        char filler[1024];
        memset(filler, 'x', sizeof filler);
        if (i == 0)
            add_body(conn, "data: ", 6);
        add_body(conn, filler, sizeof filler);
    }
    flush(conn);
    return conn->sent == s->garbage || conn->sent == s->longest || conn->sent == s->hang;
}

static void end_answer(struct conn *conn) {
    conn->busy = false;
    if (strcmp(conn->script.body, "eof") == 0)
        close_conn(conn, false);
}

/* The body with its length first: everything is sent at the time of the last token. */
static void send_with_length(struct conn *conn) {
    char text[64];
    struct rp_buffer body = {.data = NULL};
    for (uint32_t i = 0; i < conn->script.tokens; i++) {
        snprintf(text, sizeof text, "t%u ", i);
        add_chunk(conn, text, i + 1 == conn->script.tokens ? "length" : NULL);
    }
    finish_stream(conn);
    rp_buffer_append(&body, conn->out.data, conn->out.len);
    rp_buffer_clear(&conn->out);
    add_head(conn);
    rp_buffer_printf(&conn->out, "%zu\r\n\r\n", body.len);
    rp_buffer_append(&conn->out, body.data, body.len);
    rp_buffer_deinit(&body);
    flush(conn);
    end_answer(conn);
}

static void send_token(struct conn *conn) {
    const struct script *s = &conn->script;
    struct scripted_stamp *stamp = &conn->server->shared->stamps[s->number];
    char text[64];
    if (!conn->head_done) {
        add_head(conn);
        rp_buffer_puts(&conn->out, "\r\n");
    }
    if (conn->sent == 0 && s->role)
        add_event(conn, "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":"
                        "\"\"},\"finish_reason\":null}]}");
    if (conn->sent == 0 && s->empty)
        add_chunk(conn, "", NULL);
    flush(conn);
    if (interrupted(conn))
        return;
    bool last = conn->sent + 1 >= s->tokens;
    if (conn->sent < s->tokens) {
        snprintf(text, sizeof text, "t%u ", conn->sent);
        if (s->blank && conn->sent % s->blank == 0)
            text[0] = '\0';
        add_chunk(conn, text, !last ? NULL : s->stop ? "stop" : "length");
    }
    if (last && s->joined)
        finish_stream(conn);
    if (conn->sent < SCRIPTED_TOKENS) {
        stamp->token_ns[conn->sent] = rp_clock_ns();
        stamp->tokens = conn->sent + 1;
    }
    conn->sent++;
    flush(conn);
    if (conn->closing)
        return;
    if (!last) {
        schedule(conn, conn->arrived_ns + (uint64_t)((s->ttft_ms + s->itl_ms * conn->sent) * 1e6));
        return;
    }
    if (interrupted(conn))
        return;
    if (!s->joined)
        finish_stream(conn);
    flush(conn);
    end_answer(conn);
}

/* --- Answers without a stream ---------------------------------------------------------------- */

static void send_raw(struct conn *conn) {
    static const struct {
        const char *name, *bytes;
    } answers[] = {
        {"http", "SSH-2.0-OpenSSH_9.2\r\n"},
        {"type", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 27\r\n\r\n"
                 "{\"detail\":\"no stream here\"}"},
        {"chunk", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                  "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\n"},
        {"nothing",
         "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n"},
        {"html", "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 37\r\n\r\n<html>\x1b[2Jupstream\tis "
                 "gone</html>"
                 "......"},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(answers); i++)
        if (strcmp(conn->script.raw, answers[i].name) == 0)
            rp_buffer_puts(&conn->out, answers[i].bytes);
    if (strcmp(conn->script.raw, "headers") == 0) {
        rp_buffer_puts(&conn->out, "HTTP/1.1 200 OK\r\n");
        for (int i = 0; i < 8000; i++)
            rp_buffer_printf(&conn->out, "X-Header-%d: endless\r\n", i);
    }
    if (strcmp(conn->script.raw, "extensions") == 0) {
        rp_buffer_puts(&conn->out, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;");
        for (int i = 0; i < 60000; i++)
            rp_buffer_puts(&conn->out, "extension");
    }
    flush(conn);
    conn->busy = false;
}

static void send_status(struct conn *conn) {
    char body[160];
    snprintf(body, sizeof body, "{\"error\":{\"message\":\"%s\",\"code\":\"x\"}}",
             conn->script.message);
    rp_buffer_printf(&conn->out,
                     "HTTP/1.1 %u Scripted\r\nContent-Type: application/json\r\nContent-Length: "
                     "%zu\r\n\r\n%s",
                     conn->script.status, strlen(body), body);
    flush(conn);
    conn->busy = false;
}

/* The header's bytes one by one. */
static void send_head_slowly(struct conn *conn) {
    if (conn->head_sent == 0) {
        add_head(conn);
        conn->head_done = false;
        rp_buffer_puts(&conn->out, "\r\n");
    }
    if (conn->script.slow_ms <= 0) {
        flush(conn);
    } else if (conn->head_sent < conn->out.len) {
        put(conn, conn->out.data + conn->head_sent++, 1);
        if (!conn->closing)
            schedule(conn, rp_clock_ns() + (uint64_t)(conn->script.slow_ms * 1e6));
        return;
    }
    rp_buffer_clear(&conn->out);
    conn->head_done = true;
    conn->script.has_head_ms = false;
    schedule(conn, conn->arrived_ns + (uint64_t)(conn->script.ttft_ms * 1e6));
}

/* The whole answer in one write with some of its bytes changed; then nothing more is sent. */
static void send_mutated(struct conn *conn) {
    const struct script *s = &conn->script;
    char text[64];
    add_head(conn);
    rp_buffer_puts(&conn->out, "\r\n");
    for (uint32_t i = 0; i < s->tokens; i++) {
        snprintf(text, sizeof text, "t%u ", i);
        add_chunk(conn, text, i + 1 == s->tokens ? "length" : NULL);
    }
    finish_stream(conn);
    scripted_mutate(&conn->out, s->fuzz);
    flush(conn);
    close_conn(conn, s->fuzz % 5 == 0);
}

static void step(struct conn *conn) {
    const struct script *s = &conn->script;
    if (s->fuzz) {
        send_mutated(conn);
        return;
    }
    if (s->interim) {
        rp_buffer_puts(&conn->out, "HTTP/1.1 100 Continue\r\n\r\n");
        conn->script.interim = false;
    }
    if (s->has_head_ms)
        send_head_slowly(conn);
    else if (s->raw[0])
        send_raw(conn);
    else if (s->status != 200)
        send_status(conn);
    else if (strcmp(s->body, "length") == 0)
        send_with_length(conn);
    else
        send_token(conn);
}

static void on_timer(void *context) {
    struct server *server = context;
    while (server->heap_count && server->heap[1]->at_ns <= rp_clock_ns()) {
        struct conn *conn = server->heap[1];
        unschedule(conn);
        step(conn);
    }
    if (server->heap_count)
        rp_load_timer_set(&server->timer, server->heap[1]->at_ns);
}

/* --- Requests -------------------------------------------------------------------------------- */

static void answer_get(struct conn *conn, const char *head) {
    const char *body = NULL;
    if (strstr(head, "/v1/models "))
        body = "{\"data\":[{\"id\":\"scripted\",\"max_model_len\":100000}]}";
    else if (strstr(head, "/version "))
        body = "{\"version\":\"of the script\"}";
    rp_buffer_printf(&conn->out, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n%s",
                     body ? "200 OK" : "404 Not Found", body ? strlen(body) : 0, body ? body : "");
    flush(conn);
}

static void take_request(struct conn *conn, const char *head, const char *body, size_t len) {
    struct script *s = &conn->script;
    scripted_reset(s);
    conn->arrived_ns = rp_clock_ns();
    conn->requests++;
    if (strncmp(head, "GET ", 4) == 0) {
        answer_get(conn, head);
        return;
    }
    json_t *root = json_loadb(body, len, 0, NULL);
    const json_t *most = json_object_get(root, "max_tokens");
    s->tokens = most ? (uint32_t)json_integer_value(most) : 16;
    s->chat = strstr(head, "/v1/chat/completions ") != NULL;
    s->role = s->chat;
    scripted_read(s, root);
    json_decref(root);
    struct scripted_stamp *stamp = &conn->server->shared->stamps[s->number];
    stamp->arrived_ns = conn->arrived_ns;
    stamp->connection = conn->number;
    stamp->times_seen++;
    if (s->drop && conn->requests > 1) {
        close_conn(conn, true);
        return;
    }
    if (s->stall_ms > 0)
        usleep((useconds_t)(s->stall_ms * 1000));
    conn->busy = true;
    conn->head_done = false;
    conn->sent = conn->head_sent = 0;
    schedule(conn, conn->arrived_ns + (uint64_t)((s->has_head_ms ? s->head_ms : s->ttft_ms) * 1e6));
}

/* Removes one complete request from the input; false: there is none. */
static bool next_request(struct conn *conn) {
    char *head = conn->in.data;
    rp_buffer_append(&conn->in, "", 1); /* so that it can be searched */
    conn->in.len--;
    head = conn->in.data;
    char *end = strstr(head, "\r\n\r\n");
    if (!end)
        return false;
    *end = '\0';
    const char *field = strcasestr(head, "content-length:");
    size_t len = field ? strtoul(field + 15, NULL, 10) : 0, begin = (size_t)(end - head) + 4;
    if (conn->in.len < begin + len) {
        *end = '\r';
        return false;
    }
    take_request(conn, head, head + begin, len);
    memmove(conn->in.data, conn->in.data + begin + len, conn->in.len - begin - len);
    conn->in.len -= begin + len;
    return true;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    struct conn *conn = handle->data;
    (void)suggested;
    *out = uv_buf_init(conn->server->read_buffer, sizeof conn->server->read_buffer);
}

static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buffer) {
    struct conn *conn = stream->data;
    if (len < 0) {
        close_conn(conn, false);
        return;
    }
    rp_buffer_append(&conn->in, buffer->base, (size_t)len);
    while (!conn->busy && !conn->closing && conn->in.len && next_request(conn))
        ;
}

static void on_connection(uv_stream_t *listener, int status) {
    struct server *server = listener->data;
    struct conn *conn = calloc(1, sizeof *conn);
    RP_ASSERT(conn && status == 0);
    conn->server = server;
    conn->number = ++server->shared->connections;
    uv_tcp_init(&server->loop, &conn->tcp);
    conn->tcp.data = conn;
    server->open++;
    server->shared->most_open = RP_MAX(server->shared->most_open, server->open);
    if (uv_accept(listener, (uv_stream_t *)&conn->tcp) != 0) {
        close_conn(conn, false);
        return;
    }
    uv_tcp_nodelay(&conn->tcp, 1);
    uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read);
}

static void on_term(uv_signal_t *signal, int number) {
    (void)number;
    uv_stop(signal->loop);
}

static void on_walk(uv_handle_t *handle, void *context) {
    (void)context;
    struct server *server = handle->loop->data;
    if (handle == (uv_handle_t *)&server->listener || handle == (uv_handle_t *)&server->term)
        uv_close(handle, NULL);
    else if (handle != &server->timer.uv.handle)
        close_conn(handle->data, false);
}

int scripted_serve(uint16_t port, struct scripted_shared *shared, void (*ready)(void *context),
                   void *context) {
    struct server *server = calloc(1, sizeof *server);
    struct sockaddr_in address;
    struct rlimit limit;
    int len = sizeof address;
    signal(SIGPIPE, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = RP_MIN(limit.rlim_max, (rlim_t)65536);
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (!server || uv_loop_init(&server->loop) != 0)
        return 1;
    server->shared = shared;
    server->loop.data = server;
    uv_ip4_addr("127.0.0.1", port, &address);
    uv_tcp_init(&server->loop, &server->listener);
    server->listener.data = server;
    uv_signal_init(&server->loop, &server->term);
    uv_signal_start(&server->term, on_term, SIGTERM);
    if (rp_load_timer_init(&server->timer, &server->loop, on_timer, server, NULL) != 0 ||
        uv_tcp_bind(&server->listener, (const struct sockaddr *)&address, 0) != 0 ||
        uv_listen((uv_stream_t *)&server->listener, 4096, on_connection) != 0 ||
        uv_tcp_getsockname(&server->listener, (struct sockaddr *)&address, &len) != 0)
        return 1;
    shared->port = ntohs(address.sin_port);
    ready(context);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    uv_walk(&server->loop, on_walk, NULL);
    rp_load_timer_close(&server->timer);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    uv_loop_close(&server->loop);
    free(server->heap);
    free(server);
    return 0;
}
