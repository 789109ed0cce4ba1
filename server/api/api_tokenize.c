/* api_tokenize.c - POST /tokenize and /detokenize. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "server/api/params.h"
#include "server/api/text_work.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/json_work.h"
#include "server/http/router.h"
#include "text/tokenizer/detokenizer.h"

/* One request; its text may be in use by a worker when the client disconnects. */
struct tokenize {
    struct rp_conn *conn; /* NULL: the client has disconnected */
    json_t *root;
    struct rp_text_job job;
    struct rp_text_item item;
    bool with_strings;
};

static void on_gone(void *ctx) { ((struct tokenize *)ctx)->conn = NULL; }

static void write_tokens(struct rp_conn *conn, const struct tokenize *t) {
    const struct rp_serving *serving = &conn->server->serving;
    struct rp_buffer body;
    struct rp_json json;
    rp_buffer_init(&body, 0);
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_uint(&json, "count", t->item.ids.count);
    rp_json_uint(&json, "max_model_len", rp_engine_max_model_len(serving->engine));
    rp_json_array_begin(&json, "tokens");
    for (size_t i = 0; i < t->item.ids.count; i++)
        rp_json_int(&json, NULL, t->item.ids.ids[i]);
    rp_json_array_end(&json);
    if (t->with_strings)
        rp_json_array_begin(&json, "token_strs");
    for (size_t i = 0; t->with_strings && i < t->item.ids.count; i++) {
        size_t len;
        const char *text = rp_tokenizer_content(serving->tokenizer, t->item.ids.ids[i], &len);
        rp_json_string_len(&json, NULL, text, len);
    }
    if (t->with_strings)
        rp_json_array_end(&json);
    rp_json_object_end(&json);
    if (body.failed)
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
    else
        rp_conn_reply(conn, 200, "application/json", NULL, body.data, body.len);
    rp_buffer_deinit(&body);
}

static void on_tokenized(struct rp_text_job *job) {
    struct tokenize *t = job->ctx;
    struct rp_conn *conn = t->conn;
    json_decref(t->root);
    if (conn) {
        conn->gone = NULL;
        if (t->item.status == RP_OK)
            write_tokens(conn, t);
        else if (t->item.status == RP_STATUS_NO_MEMORY)
            rp_conn_fail(conn, 503, "overloaded", "out of memory");
        else
            rp_conn_fail(conn, 400, "invalid_value", "the prompt cannot be tokenized");
    }
    rp_token_ids_deinit(&t->item.ids);
    rp_free(t);
}

/* False when an error response has been sent. */
static bool check_model(struct rp_conn *conn, json_t *root) {
    struct rp_http_error error = {.status = 0};
    if (rp_params_check_model(root, &conn->server->serving, &error))
        return true;
    json_decref(root);
    rp_conn_reply_error(conn, &error);
    return false;
}

static void on_tokenize_body(struct rp_conn *conn, json_t *root) {
    struct rp_http_error error = {.status = 0};
    bool add_special = true, with_strings = false;
    if (!check_model(conn, root))
        return;
    json_t *prompt = json_object_get(root, "prompt");
    bool good = rp_params_bool(root, "add_special_tokens", &add_special, &error) &&
                rp_params_bool(root, "return_token_strs", &with_strings, &error);
    if (good && !json_is_string(prompt))
        good = rp_http_error_set(&error, 400, "prompt", prompt ? "invalid_type" : "missing",
                                 "prompt must be a string");
    struct tokenize *t = good ? rp_calloc(1, sizeof *t) : NULL;
    if (good && !t)
        rp_http_error_set(&error, 503, NULL, "overloaded", "out of memory");
    if (!t) {
        json_decref(root);
        rp_conn_reply_error(conn, &error);
        return;
    }
    t->conn = conn;
    t->root = root;
    t->with_strings = with_strings;
    t->item.text = json_string_value(prompt);
    t->item.len = json_string_length(prompt);
    t->job.items = &t->item;
    t->job.item_count = 1;
    t->job.flags = add_special ? RP_ENCODE_ADD_SPECIAL : 0;
    t->job.done = on_tokenized;
    t->job.ctx = t;
    conn->gone = on_gone;
    conn->gone_ctx = t;
    rp_text_work_start(conn->server, &t->job);
}

void rp_api_tokenize(struct rp_conn *conn) { rp_json_work_start(conn, on_tokenize_body); }

static bool decode(const struct rp_serving *serving, json_t *tokens, struct rp_buffer *text,
                   struct rp_http_error *error) {
    struct rp_detokenizer detok;
    size_t i;
    json_t *item;
    int status = RP_OK;
    if (!json_is_array(tokens))
        return rp_http_error_set(error, 400, "tokens", tokens ? "invalid_type" : "missing",
                                 "tokens must be a list of token ids");
    rp_detokenizer_init(&detok, serving->tokenizer, false);
    json_array_foreach(tokens, i, item) {
        int32_t id;
        if (!rp_params_token_id(item, serving->vocab_size, "tokens", &id, error))
            return false;
        if (status == RP_OK)
            status = rp_detokenizer_push(&detok, id, text);
    }
    if (status == RP_OK)
        status = rp_detokenizer_finish(&detok, text);
    if (status == RP_OK)
        return true;
    return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
}

static void on_detokenize_body(struct rp_conn *conn, json_t *root) {
    struct rp_http_error error = {.status = 0};
    struct rp_buffer text = {.data = NULL}, body = {.data = NULL};
    struct rp_json json;
    if (!check_model(conn, root))
        return;
    if (decode(&conn->server->serving, json_object_get(root, "tokens"), &text, &error)) {
        rp_json_init(&json, &body);
        rp_json_object_begin(&json, NULL);
        rp_json_string_len(&json, "prompt", text.len ? text.data : "", text.len);
        rp_json_object_end(&json);
        if (body.failed)
            rp_conn_fail(conn, 503, "overloaded", "out of memory");
        else
            rp_conn_reply(conn, 200, "application/json", NULL, body.data, body.len);
    } else {
        rp_conn_reply_error(conn, &error);
    }
    json_decref(root);
    rp_buffer_deinit(&text);
    rp_buffer_deinit(&body);
}

void rp_api_detokenize(struct rp_conn *conn) { rp_json_work_start(conn, on_detokenize_body); }
