/* api_ollama.c - Ollama's API, with --ollama: /api/chat, /api/generate, /api/tags, /api/show,
 * /api/ps, /api/version. The one model is always loaded. */
#include "base/json_writer.h"
#include "engine/engine.h"
#include "server/api/answer.h"
#include "server/api/api_start.h"
#include "server/api/ollama_request.h"
#include "server/http/api_reply.h"
#include "server/http/json_work.h"
#include "server/http/router.h"
#include "text/template/chat_template.h"

#include <string.h>
#include <time.h>

/* Versions decide what clients ask for: this is the API that is described in docs/api.md. */
#define OLLAMA_VERSION "0.12.0"

/* A name may end in ":latest". False when an error response has been sent. */
static bool check_model(struct rp_conn *conn, json_t *root) {
    static const char tag[] = ":latest";
    struct rp_http_error error = {.status = 0};
    json_t *name = json_object_get(root, "model"), *older = json_object_get(root, "name");
    const char *text = json_string_value(name ? name : older);
    size_t len = text ? strlen(text) : 0, tag_len = sizeof tag - 1;
    if (!name && older)
        json_object_set(root, "model", older);
    if (len > tag_len && strcmp(text + len - tag_len, tag) == 0)
        json_object_set_new(root, "model", json_stringn(text, len - tag_len));
    if (rp_params_check_model(root, &conn->server->serving, &error))
        return true;
    json_decref(root);
    rp_conn_reply_error(conn, &error);
    return false;
}

static void write_time(struct rp_json *json, const char *key, time_t seconds) {
    char text[32];
    struct tm parts;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &parts));
    rp_json_string(json, key, text);
}

static void reply_loaded(struct rp_conn *conn, bool generate) {
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "model", conn->server->serving.model_name);
    write_time(&json, "created_at", time(NULL));
    if (generate) {
        rp_json_string(&json, "response", "");
    } else {
        rp_json_object_begin(&json, "message");
        rp_json_string(&json, "role", "assistant");
        rp_json_string(&json, "content", "");
        rp_json_object_end(&json);
    }
    rp_json_bool(&json, "done", true);
    rp_json_string(&json, "done_reason", "load");
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}

static void start(struct rp_conn *conn, json_t *root, bool generate) {
    struct rp_http_error error = {.status = 0};
    json_t *request = NULL;
    bool raw = false, late_system = conn->server->late_system;
    if (!check_model(conn, root))
        return;
    if (rp_ollama_is_empty(root, generate)) {
        json_decref(root);
        reply_loaded(conn, generate);
        return;
    }
    bool good = generate ? rp_ollama_generate(root, late_system, &request, &raw, &error)
                         : rp_ollama_chat(root, late_system, &request, &error);
    json_decref(root);
    if (!good) {
        rp_conn_reply_error(conn, &error);
        return;
    }
    rp_api_start(conn, request,
                 &(struct rp_api_start){.api = raw ? RP_API_COMPLETIONS : RP_API_CHAT,
                                        .answers = generate ? &rp_answer_ollama_generate
                                                            : &rp_answer_ollama_chat,
                                        .limit_to_context = true});
}

static void on_chat(struct rp_conn *conn, json_t *root) { start(conn, root, false); }

static void on_generate(struct rp_conn *conn, json_t *root) { start(conn, root, true); }

void rp_api_ollama_chat(struct rp_conn *conn) { rp_api_take_body(conn, on_chat); }

void rp_api_ollama_generate(struct rp_conn *conn) { rp_api_take_body(conn, on_generate); }

/* --- About the model ------------------------------------------------------------------------- */

static void write_details(struct rp_json *json) {
    rp_json_object_begin(json, "details");
    rp_json_string(json, "parent_model", "");
    rp_json_string(json, "format", "safetensors");
    rp_json_string(json, "family", "reprise");
    rp_json_array_begin(json, "families");
    rp_json_string(json, NULL, "reprise");
    rp_json_array_end(json);
    rp_json_string(json, "parameter_size", "");
    rp_json_string(json, "quantization_level", "");
    rp_json_object_end(json);
}

/* The members that /api/tags and /api/ps share. The size is that of the weights in memory. */
static void write_model(struct rp_json *json, const struct rp_server *server) {
    const struct rp_serving *serving = &server->serving;
    const struct rp_engine_metrics *metrics = rp_engine_metrics(serving->engine);
    rp_json_string(json, "name", serving->model_name);
    rp_json_string(json, "model", serving->model_name);
    rp_json_uint(json, "size", (uint64_t)rp_gauge_read(&metrics->memory[RP_MEMORY_WEIGHTS]));
    rp_json_string(json, "digest", "");
    write_details(json);
}

static void reply_list(struct rp_conn *conn, bool running) {
    const struct rp_server *server = conn->server;
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_array_begin(&json, "models");
    rp_json_object_begin(&json, NULL);
    write_model(&json, server);
    if (running) {
        /* It is never unloaded. */
        rp_json_string(&json, "expires_at", "2318-01-01T00:00:00Z");
        rp_json_uint(&json, "size_vram", 0);
        rp_json_uint(&json, "context_length", rp_engine_max_model_len(server->serving.engine));
    } else {
        write_time(&json, "modified_at", (time_t)rp_gauge_read(&server->metrics.start_time));
    }
    rp_json_object_end(&json);
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}

void rp_api_ollama_tags(struct rp_conn *conn) { reply_list(conn, false); }

void rp_api_ollama_ps(struct rp_conn *conn) { reply_list(conn, true); }

static void write_capabilities(struct rp_json *json, const struct rp_chat_template *tmpl) {
    rp_json_array_begin(json, "capabilities");
    rp_json_string(json, NULL, "completion");
    if (tmpl && rp_chat_template_uses(tmpl, "tools"))
        rp_json_string(json, NULL, "tools");
    if (tmpl &&
        (rp_chat_template_uses(tmpl, "enable_thinking") || rp_chat_template_uses(tmpl, "thinking")))
        rp_json_string(json, NULL, "thinking");
    rp_json_array_end(json);
}

static void on_show(struct rp_conn *conn, json_t *root) {
    const struct rp_serving *serving = &conn->server->serving;
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    if (!check_model(conn, root))
        return;
    json_decref(root);
    const struct rp_chat_template *tmpl =
        serving->templates ? rp_chat_templates_pick(serving->templates, false) : NULL;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "modelfile", "");
    rp_json_string(&json, "parameters", "");
    rp_json_string(&json, "template", tmpl ? rp_chat_template_text(tmpl) : "");
    write_details(&json);
    rp_json_object_begin(&json, "model_info");
    rp_json_string(&json, "general.architecture", "reprise");
    rp_json_uint(&json, "reprise.context_length", rp_engine_max_model_len(serving->engine));
    rp_json_uint(&json, "reprise.vocab_size", serving->vocab_size);
    rp_json_object_end(&json);
    write_capabilities(&json, tmpl);
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}

void rp_api_ollama_show(struct rp_conn *conn) { rp_json_work_start(conn, on_show); }

void rp_api_ollama_version(struct rp_conn *conn) {
    static const char body[] = "{\"version\":\"" OLLAMA_VERSION "\"}\n";
    rp_conn_reply(conn, 200, "application/json", NULL, body, sizeof body - 1);
}
