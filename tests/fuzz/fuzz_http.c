/* fuzz_http.c - any bytes from a client, to the whole server with a fake engine that is stepped by
 * this thread. The first byte seeds the points where the bytes are split into writes: the same
 * bytes give the same answers (their statuses, in order) however they are split. */
#include "base/log.h"
#include "base/memory.h"
#include "server/server_internal.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/http/fake_engine.h"
#include "text/template/chat_template.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWERS_MAX = 64, TURNS_MAX = 3000 };

/* The final statuses of the answers on one connection. */
struct answers {
    uint32_t count;
    uint16_t status[ANSWERS_MAX];
    bool settled; /* nothing was left to do for the server when the client closed */
};

static struct rp_server *server;
static struct rp_engine *engine;
static char socket_path[80];

/* rp_server_run returns to start, with the server ready to serve. */
static void on_ready(void *ctx) {
    (void)ctx;
    uv_stop(&server->loop);
}

static void remove_socket(void) { (void)unlink(socket_path); }

static void start(void) {
    static const struct rp_auth no_keys;
    static struct rp_server_config config;
    static struct rp_tokenizer *tok;
    static struct rp_chat_templates *templates;
    struct rp_error err;
    config.uds = socket_path;
    config.admin_port = -1;
    config.max_connections = 16;
    config.sandbox = RP_SANDBOX_OFF; /* the client is this process too */
    config.auth = (struct rp_auth *)&no_keys;
    rp_http_limits_init(&config.limits);
    config.limits.body_bytes = 64 << 10;
    rp_log_set_level(RP_LOG_ERROR);
    snprintf(socket_path, sizeof socket_path, "%s/socket", fuzz_dir());
    atexit(remove_socket);
    RP_ASSERT(rp_tokenizer_open("models/demo", &tok, &err) == RP_OK);
    RP_ASSERT(rp_chat_templates_open("models/demo", NULL, &templates, &err) == RP_OK);
    RP_ASSERT(rp_server_create(&config, &server, &err) == RP_OK);
    const struct rp_fake_config fake = {.max_num_seqs = 8,
                                        .queue_capacity = 64,
                                        .max_model_len = 256,
                                        .kv_tokens = 1 << 16,
                                        .no_faults = true,
                                        .wake = rp_server_wake,
                                        .wake_ctx = server};
    engine = rp_fake_engine_create(&fake);
    const struct rp_serving serving = {.engine = engine,
                                       .tokenizer = tok,
                                       .templates = templates,
                                       .model_name = "demo",
                                       .model_root = "models/demo",
                                       .vocab_size = rp_tokenizer_vocab_size(tok),
                                       .default_temperature = NAN,
                                       .default_top_p = NAN,
                                       .seed = 1};
    RP_ASSERT(rp_server_run(server, &serving, on_ready, NULL) == 0);
}

static void turn(void) {
    rp_fake_engine_step(engine);
    uv_run(&server->loop, UV_RUN_NOWAIT);
}

static bool is_idle(void) {
    return !server->completions && server->work_count == 0 && rp_fake_engine_open(engine) == 0;
}

/* Reads what has arrived and counts its status lines. The last bytes stay for the next call. */
static bool read_answers(int fd, struct rp_buffer *in, struct answers *out) {
    static const char line[] = "HTTP/1.1 ";
    char bytes[16384];
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0; /* false at the end */
    rp_buffer_append(in, bytes, (size_t)n);
    size_t at = 0, size = sizeof line - 1;
    for (const char *found; in->len - at >= size + 3; at = (size_t)(found - in->data) + size) {
        found = memmem(in->data + at, in->len - at - 3, line, size);
        if (!found)
            break;
        int status = 0; /* three digits; the buffer has no terminator for atoi */
        for (size_t i = 0; i < 3; i++)
            status = status * 10 + (found[size + i] - '0');
        if (status != 100 && out->count < ANSWERS_MAX)
            out->status[out->count++] = (uint16_t)status;
    }
    size_t keep = RP_MIN(in->len - at, size + 2);
    memmove(in->data, in->data + in->len - keep, keep);
    in->len = keep;
    return true;
}

/* seed 0: in one write. */
static struct answers converse(const char *bytes, size_t len, uint32_t seed) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct rp_buffer in = {.data = NULL};
    struct answers answers = {.count = 0};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
    RP_ASSERT(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    turn();
    bool is_open = true;
    for (size_t at = 0, part; at < len && is_open; at += part) {
        seed = seed * 1664525u + 1013904223u * (seed != 0);
        part = seed ? RP_MIN(len - at, (size_t)(seed >> 24) + 1) : len - at;
        ssize_t n = send(fd, bytes + at, part, MSG_DONTWAIT | MSG_NOSIGNAL);
        is_open = n == (ssize_t)part;
        turn();
        is_open = is_open && read_answers(fd, &in, &answers);
    }
    uint32_t quiet = 0;
    for (uint32_t i = 0; i < TURNS_MAX && quiet < 2 && is_open; i++) {
        turn();
        quiet = is_idle() ? quiet + 1 : 0;
        is_open = read_answers(fd, &in, &answers);
        if (server->work_count)
            usleep(20);
    }
    while (is_open && (quiet = (uint32_t)recv(fd, &quiet, 1, MSG_PEEK | MSG_DONTWAIT)) == 1)
        is_open = read_answers(fd, &in, &answers);
    answers.settled = is_idle();
    close(fd);
    for (uint32_t i = 0; i < TURNS_MAX && (server->conns || !is_idle()); i++) {
        turn();
        if (server->work_count)
            usleep(20);
    }
    RP_ASSERT(is_idle() && !server->conns && server->bodies_bytes == 0);
    rp_buffer_deinit(&in);
    return answers;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    struct fuzz_input input = fuzz_begin(bytes, len);
    uint32_t seed = fuzz_byte(&input) + 1u;
    if (!server)
        start();
    struct answers whole = converse(input.bytes, input.len, 0);
    struct answers split = converse(input.bytes, input.len, seed);
    if (!whole.settled || !split.settled)
        return 0;
    RP_ASSERT_CMP(whole.count, ==, split.count);
    for (uint32_t i = 0; i < whole.count; i++)
        RP_ASSERT_CMP(whole.status[i], ==, split.status[i]);
    return 0;
}
