/* load_probe.c - queries before a run: the server's models and version, and the limit of open
 * files. */
#include "base/clock.h"
#include "base/memory.h"
#include "bench/load/load_body.h"
#include "bench/load/load_client.h"
#include "bench/load/load_run.h"
#include "bench/load/load_timer.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define GET_NS    ((uint64_t)10000000000)
#define GET_BYTES ((size_t)16 << 20)

enum { FILES_FOR_OTHERS = 32 };

struct get {
    struct rp_load_exchange exchange; /* must be first: handlers cast it back */
    uv_loop_t loop;
    struct rp_load_client client;
    struct rp_load_timer timer;
    struct rp_buffer body;
    uint32_t status;
    enum rp_load_outcome outcome;
    bool is_over;
};

static void finish(struct get *get, enum rp_load_outcome outcome) {
    if (get->is_over)
        return;
    get->is_over = true;
    get->outcome = outcome;
    rp_load_client_close(&get->client);
    rp_load_timer_close(&get->timer);
}

static void on_head(struct rp_load_exchange *exchange, uint32_t status, bool is_event_stream) {
    (void)is_event_stream;
    ((struct get *)exchange)->status = status;
}

static enum rp_load_outcome on_body(struct rp_load_exchange *exchange, const char *bytes,
                                    size_t len) {
    struct get *get = (struct get *)exchange;
    rp_buffer_append(&get->body, bytes, len);
    if (!get->body.failed)
        return RP_LOAD_OK;
    snprintf(exchange->why, sizeof exchange->why, "the answer is too large");
    return RP_LOAD_BAD_ANSWER;
}

static void on_end(struct rp_load_exchange *exchange, enum rp_load_outcome outcome,
                   const char *why) {
    (void)why;
    finish((struct get *)exchange, outcome);
}

static void on_timeout(void *context) {
    struct get *get = context;
    snprintf(get->exchange.why, sizeof get->exchange.why, "no answer within 10 s");
    finish(get, RP_LOAD_TIMEOUT);
}

static int fetch(struct get *get, const struct rp_load_target *target, const char *path,
                 struct rp_error *err) {
    static const struct rp_load_handler handler = {on_head, on_body, on_end};
    struct rp_load_url url;
    char *bytes;
    size_t len;
    int status = rp_load_url_parse(target->base_url, &url, err);
    if (status == RP_OK)
        status = rp_load_body_check_key(target, err);
    if (status == RP_OK)
        status = rp_load_client_init(&get->client, &get->loop, &url, err);
    if (status == RP_OK)
        status = rp_load_timer_init(&get->timer, &get->loop, on_timeout, get, err);
    if (status == RP_OK) {
        get->exchange.handler = &handler;
        rp_load_timer_set(&get->timer, rp_clock_ns() + GET_NS);
        if (!rp_load_body_get(target, &url, path, &bytes, &len) ||
            !rp_load_client_send(&get->client, &get->exchange, bytes, len))
            status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for a request");
    }
    if (status != RP_OK)
        finish(get, RP_LOAD_NOT_SENT);
    uv_run(&get->loop, UV_RUN_DEFAULT);
    if (status == RP_OK && get->outcome != RP_LOAD_OK)
        status = rp_error_set(err, RP_STATUS_IO, "%.200s%s: %s", target->base_url, path,
                              get->exchange.why);
    if (status == RP_OK && get->status != 200)
        status = rp_error_set(err, RP_STATUS_NOT_FOUND, "%.200s%s: status %u", target->base_url,
                              path, get->status);
    return status;
}

/* IO: no valid answer; NOT_FOUND: a status other than 200. */
static int get_body(const struct rp_load_target *target, const char *path, char **out,
                    struct rp_error *err) {
    struct get *get = rp_calloc(1, sizeof *get);
    *out = NULL;
    if (!get || uv_loop_init(&get->loop) != 0) {
        rp_free(get);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for a request");
    }
    signal(SIGPIPE, SIG_IGN);
    rp_buffer_init(&get->body, GET_BYTES);
    int status = fetch(get, target, path, err);
    rp_buffer_append(&get->body, "", 1);
    if (status == RP_OK && get->body.failed)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for %s", path);
    if (status == RP_OK)
        *out = get->body.data;
    else
        rp_buffer_deinit(&get->body);
    rp_load_client_deinit(&get->client);
    RP_ASSERT_CMP(uv_loop_close(&get->loop), ==, 0);
    rp_free(get);
    return status;
}

char *rp_load_get(const struct rp_load_target *target, const char *path, struct rp_error *err) {
    char *body;
    int status = get_body(target, path, &body, err);
    return status == RP_OK ? body : NULL;
}

static void copy_text(const json_t *value, char *out, size_t size) {
    const char *text = json_string_value(value);
    snprintf(out, size, "%s", text ? text : "");
}

static uint32_t count_of(const json_t *value) {
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : 0;
    return number > 0 && number < UINT32_MAX ? (uint32_t)number : 0;
}

/* Gets JSON from a path of the server; NULL: not available. */
static json_t *get_json(const struct rp_load_target *target, const char *path) {
    char *body = rp_load_get(target, path, NULL);
    json_t *root = body ? json_loads(body, 0, NULL) : NULL;
    rp_free(body);
    return root;
}

static int read_models(const struct rp_load_target *target, struct rp_load_server *out,
                       struct rp_error *err) {
    char *body;
    int status = get_body(target, "/v1/models", &body, err);
    if (status == RP_STATUS_NOT_FOUND && target->model) {
        snprintf(out->model, sizeof out->model, "%s", target->model);
        return RP_OK;
    }
    if (status != RP_OK)
        return status;
    json_t *root = json_loads(body, 0, NULL);
    rp_free(body);
    const json_t *models = json_object_get(root, "data"), *model = NULL;
    for (size_t i = 0; i < json_array_size(models) && !model; i++) {
        const json_t *one = json_array_get(models, i);
        const char *id = json_string_value(json_object_get(one, "id"));
        if (id && (!target->model || strcmp(id, target->model) == 0))
            model = one;
    }
    copy_text(json_object_get(model, "id"), out->model, sizeof out->model);
    out->max_model_len = count_of(json_object_get(model, "max_model_len"));
    json_decref(root);
    if (out->model[0])
        return RP_OK;
    if (target->model) /* the server may accept names that it does not list */
        snprintf(out->model, sizeof out->model, "%s", target->model);
    else
        return rp_error_set(err, RP_STATUS_FORMAT, "%.200s/v1/models lists no model",
                            target->base_url);
    return RP_OK;
}

/* Page size from vllm's metrics: vllm:cache_config_info{block_size="16",...} 1.0 */
static uint32_t page_of_metrics(const struct rp_load_target *target) {
    static const char name[] = "block_size=\"";
    char *body = rp_load_get(target, "/metrics", NULL);
    const char *at = body ? strstr(body, name) : NULL;
    unsigned long page = at ? strtoul(at + sizeof name - 1, NULL, 10) : 0;
    rp_free(body);
    return page <= 65536 ? (uint32_t)page : 0;
}

/* The most rows of a captured step, from this project's server. */
static uint32_t slots_of_graphs(const struct rp_load_target *target) {
    json_t *root = get_json(target, "/debug/graphs");
    const json_t *graphs = json_object_get(root, "graphs");
    uint32_t rows = 0;
    for (size_t i = 0; i < json_array_size(graphs); i++)
        rows = RP_MAX(rows, count_of(json_object_get(json_array_get(graphs, i), "rows")));
    json_decref(root);
    return rows;
}

int rp_load_probe(const struct rp_load_target *target, struct rp_load_server *out,
                  struct rp_error *err) {
    memset(out, 0, sizeof *out);
    int status = read_models(target, out, err);
    if (status != RP_OK)
        return status;
    json_t *version = get_json(target, "/version");
    copy_text(json_object_get(version, "version"), out->version, sizeof out->version);
    json_decref(version);
    /* Only this project's server has it, for clients on the same machine. */
    json_t *env = get_json(target, "/debug/env");
    out->vocab = count_of(json_object_get(json_object_get(env, "model"), "vocab_size"));
    out->page_tokens = count_of(json_object_get(json_object_get(env, "memory"), "page_tokens"));
    json_decref(env);
    out->slots = slots_of_graphs(target);
    if (!out->page_tokens)
        out->page_tokens = page_of_metrics(target);
    return RP_OK;
}

int rp_load_check_files(uint32_t connections, struct rp_error *err) {
    struct rlimit limit;
    uint64_t wanted = (uint64_t)connections + FILES_FOR_OTHERS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= wanted)
        return RP_OK;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = RP_MIN(limit.rlim_max, (rlim_t)wanted);
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= wanted)
        return RP_OK;
    int status = rp_error_set(err, RP_STATUS_RANGE,
                              "%u connections need %llu open files, but the limit is %llu",
                              connections, (unsigned long long)wanted,
                              (unsigned long long)RP_MAX(before, limit.rlim_cur));
    rp_error_hint(err, "raise it (ulimit -Hn, or the service's LimitNOFILE), or set "
                       "--max-concurrency: time waiting for it counts as latency");
    return status;
}
