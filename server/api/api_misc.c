/* api_misc.c - models, health, version, captured graphs, and the environment for bug reports. */
#include "base/clock.h"
#include "base/json_writer.h"
#include "engine/engine.h"
#include "server/http/api_reply.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/router.h"
#include "server/observe/threads_json.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void write_model(struct rp_json *json, const struct rp_server *server) {
    const struct rp_serving *serving = &server->serving;
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "id", serving->model_name);
    rp_json_string(json, "object", "model");
    rp_json_int(json, "created", rp_gauge_read(&server->metrics.start_time));
    rp_json_string(json, "owned_by", "reprise");
    rp_json_string(json, "root", serving->model_root);
    rp_json_null(json, "parent");
    rp_json_uint(json, "max_model_len", rp_engine_max_model_len(serving->engine));
    rp_json_object_end(json);
}

void rp_api_models(struct rp_conn *conn) {
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "object", "list");
    rp_json_array_begin(&json, "data");
    write_model(&json, conn->server);
    rp_json_array_end(&json);
    /* Codex reads this list, and nothing else, as a catalog that includes its own instructions to
     * each model. Without the list it reports an error; with an empty one it uses its own. */
    rp_json_array_begin(&json, "models");
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}

/* Compares after decoding %xx. */
static bool is_named(const char *encoded, size_t len, const char *name) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++, name++) {
        unsigned char c = (unsigned char)encoded[i];
        if (c == '%' && i + 2 < len) {
            const char *high = strchr(digits, encoded[i + 1] | 0x20);
            const char *low = strchr(digits, encoded[i + 2] | 0x20);
            if (!high || !low)
                return false;
            c = (unsigned char)((high - digits) * 16 + (low - digits));
            i += 2;
        }
        if (c == '\0' || c != (unsigned char)*name)
            return false;
    }
    return *name == '\0';
}

void rp_api_model(struct rp_conn *conn) {
    const char *name = strstr(rp_http_head_get_target(&conn->head), "/v1/models/") + 11;
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    if (!is_named(name, strcspn(name, "?#"), conn->server->serving.model_name)) {
        rp_conn_fail(conn, 404, "model_not_found", "this server serves only %.200s",
                     conn->server->serving.model_name);
        return;
    }
    rp_json_init(&json, &body);
    write_model(&json, conn->server);
    rp_api_reply_json(conn, 200, &body);
}

void rp_api_live(struct rp_conn *conn) {
    static const char body[] = "{\"status\":\"live\"}\n";
    rp_conn_reply(conn, 200, "application/json", NULL, body, sizeof body - 1);
}

void rp_api_ready(struct rp_conn *conn) {
    static const char body[] = "{\"status\":\"ready\"}\n";
    const char *reason = rp_server_not_ready(conn->server);
    if (reason)
        rp_conn_fail(conn, 503, "not_ready", "%s", reason);
    else
        rp_conn_reply(conn, 200, "application/json", NULL, body, sizeof body - 1);
}

void rp_api_version(struct rp_conn *conn) {
    static const char body[] = "{\"version\":\"" RP_VERSION "\"}\n";
    rp_conn_reply(conn, 200, "application/json", NULL, body, sizeof body - 1);
}

/* --- /debug/env ------------------------------------------------------------------------------ */

static void write_build(struct rp_json *json) {
    char llhttp[32];
    snprintf(llhttp, sizeof llhttp, "%d.%d.%d", LLHTTP_VERSION_MAJOR, LLHTTP_VERSION_MINOR,
             LLHTTP_VERSION_PATCH);
    rp_json_object_begin(json, "build");
    rp_json_string(json, "version", RP_VERSION);
    rp_json_string(json, "compiler", __VERSION__);
    rp_json_bool(json, "debug", RP_DEBUG);
    rp_json_string(json, "libuv", uv_version_string());
    rp_json_string(json, "llhttp", llhttp);
    rp_json_string(json, "jansson", jansson_version_str());
    rp_json_object_end(json);
}

static void write_device(struct rp_json *json, const struct rp_engine *engine) {
    struct rp_device_info info;
    memset(&info, 0, sizeof info);
    rp_engine_device_info(engine, &info);
    rp_json_object_begin(json, "device");
    rp_json_string(json, "name", info.name);
    rp_json_string(json, "kernels", info.kernels);
    rp_json_uint(json, "memory_bytes", info.memory_bytes);
    rp_json_object_end(json);
}

static void write_memory(struct rp_json *json, const struct rp_engine *engine) {
    const struct rp_memory_plan *plan = rp_engine_memory_plan(engine);
    rp_json_object_begin(json, "memory");
    rp_json_uint(json, "total_bytes", plan->total_bytes);
    rp_json_uint(json, "kv_tokens", plan->kv_tokens);
    rp_json_uint(json, "page_tokens", plan->page_tokens);
    rp_json_uint(json, "page_count", plan->page_count);
    rp_json_uint(json, "host_page_count", plan->host_page_count);
    rp_json_uint(json, "longest_context", plan->longest_context);
    rp_json_array_begin(json, "items");
    for (uint32_t i = 0; i < plan->item_count; i++) {
        rp_json_object_begin(json, NULL);
        rp_json_string(json, "name", plan->items[i].name);
        rp_json_string(json, "detail", plan->items[i].detail);
        rp_json_uint(json, "bytes", plan->items[i].bytes);
        rp_json_object_end(json);
    }
    rp_json_array_end(json);
    rp_json_object_end(json);
}

void rp_api_debug_env(struct rp_conn *conn) {
    const struct rp_server *server = conn->server;
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    write_build(&json);
    rp_json_object_begin(&json, "process");
    rp_json_int(&json, "pid", getpid());
    rp_json_uint(&json, "cpus", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    rp_json_double(&json, "uptime_seconds", (double)(rp_clock_ns() - server->start_ns) * 1e-9);
    rp_threads_json(&json);
    rp_json_object_end(&json);
    write_device(&json, server->serving.engine);
    rp_json_object_begin(&json, "model");
    rp_json_string(&json, "name", server->serving.model_name);
    rp_json_string(&json, "root", server->serving.model_root);
    rp_json_uint(&json, "vocab_size", server->serving.vocab_size);
    rp_json_uint(&json, "max_model_len", rp_engine_max_model_len(server->serving.engine));
    rp_json_object_end(&json);
    write_memory(&json, server->serving.engine);
    if (server->serving.write_flags) {
        rp_json_object_begin(&json, "flags");
        server->serving.write_flags(server->serving.write_flags_ctx, &json);
        rp_json_object_end(&json);
    }
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}

/* --- /debug/graphs --------------------------------------------------------------------------- */

static void write_graph(struct rp_json *json, const struct rp_engine_graph *graph) {
    char fingerprint[20];
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)graph->fingerprint);
    rp_json_object_begin(json, NULL);
    rp_json_uint(json, "tokens", graph->bucket.tokens);
    rp_json_uint(json, "rows", graph->bucket.rows);
    rp_json_uint(json, "logit_rows", graph->bucket.logit_rows);
    rp_json_bool(json, "decode", graph->bucket.decode);
    rp_json_bool(json, "captured", graph->captured);
    rp_json_uint(json, "nodes", graph->nodes);
    rp_json_uint(json, "kernels", graph->kernels);
    rp_json_uint(json, "launches", graph->launches);
    rp_json_uint(json, "bytes", graph->bytes);
    rp_json_uint(json, "arena_bytes", graph->arena_bytes);
    rp_json_double(json, "capture_ms", (double)graph->capture_ns * 1e-6);
    rp_json_uint(json, "replays", graph->replays);
    rp_json_uint(json, "padded_tokens", graph->padded_tokens);
    rp_json_string(json, "fingerprint", fingerprint);
    rp_json_object_end(json);
}

void rp_api_debug_graphs(struct rp_conn *conn) {
    const struct rp_engine *engine = conn->server->serving.engine;
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    uint32_t failed = 0, count = rp_engine_graph_count(engine);
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_uint(&json, "arena_bytes",
                 (uint64_t)rp_gauge_read(&metrics->memory[RP_MEMORY_ACTIVATIONS]));
    rp_json_array_begin(&json, "graphs");
    for (uint32_t i = 0; i < count; i++) {
        struct rp_engine_graph graph;
        rp_engine_graph(engine, i, &graph);
        failed += !graph.captured;
        write_graph(&json, &graph);
    }
    rp_json_array_end(&json);
    rp_json_uint(&json, "failed", failed);
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}
