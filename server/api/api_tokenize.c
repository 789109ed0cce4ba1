/* api_tokenize.c - POST /tokenize and /detokenize, GET /tokenizer_info, and the tokens of a chat's
 * prompt for other routes. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "server/api/chat_prompt.h"
#include "server/api/text_work.h"
#include "server/api/tokenize_chat.h"
#include "server/http/api_reply.h"
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
    rp_write_tokens *write;
    /* A chat alone has these. */
    struct rp_completion_params params;
    struct rp_chat_prompt chat;
    const struct rp_serving *serving;
    struct rp_http_error error; /* from the template; status 0: none */
};

static void on_gone(void *ctx) { ((struct tokenize *)ctx)->conn = NULL; }

static void write_strings(struct rp_json *json, const struct rp_tokenizer *tokenizer,
                          const struct rp_token_ids *ids) {
    rp_json_array_begin(json, "token_strs");
    for (size_t i = 0; i < ids->count; i++) {
        size_t len;
        const char *text = rp_tokenizer_content(tokenizer, ids->ids[i], &len);
        rp_json_string_len(json, NULL, text, len);
    }
    rp_json_array_end(json);
}

static void write_answer(struct rp_conn *conn, const struct rp_token_ids *ids, bool with_strings) {
    const struct rp_serving *serving = &conn->server->serving;
    struct rp_buffer body;
    struct rp_json json;
    rp_buffer_init(&body, 0);
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_uint(&json, "count", ids->count);
    rp_json_uint(&json, "max_model_len", rp_engine_max_model_len(serving->engine));
    rp_json_array_begin(&json, "tokens");
    for (size_t i = 0; i < ids->count; i++)
        rp_json_int(&json, NULL, ids->ids[i]);
    rp_json_array_end(&json);
    if (with_strings)
        write_strings(&json, serving->tokenizer, ids);
    rp_json_object_end(&json);
    rp_api_reply_text(conn, 200, "application/json", &body);
}

static void write_tokens(struct rp_conn *conn, const struct rp_token_ids *ids) {
    write_answer(conn, ids, false);
}

static void write_tokens_and_strings(struct rp_conn *conn, const struct rp_token_ids *ids) {
    write_answer(conn, ids, true);
}

static void destroy(struct tokenize *t) {
    json_decref(t->root);
    rp_params_deinit(&t->params);
    rp_chat_prompt_deinit(&t->chat);
    rp_token_ids_deinit(&t->item.ids);
    rp_free(t);
}

static void on_tokenized(struct rp_text_job *job) {
    struct tokenize *t = job->ctx;
    struct rp_conn *conn = t->conn;
    if (conn) {
        conn->gone = NULL;
        if (t->item.status == RP_OK)
            t->write(conn, &t->item.ids);
        else if (t->error.status)
            rp_conn_reply_error(conn, &t->error);
        else if (t->item.status == RP_STATUS_NO_MEMORY)
            rp_conn_fail(conn, 503, "overloaded", "out of memory");
        else
            rp_conn_fail(conn, 400, "invalid_value", "the prompt cannot be tokenized");
    }
    destroy(t);
}

static void start(struct rp_conn *conn, struct tokenize *t, unsigned flags) {
    t->conn = conn;
    t->job.items = &t->item;
    t->job.item_count = 1;
    t->job.flags = flags;
    t->job.done = on_tokenized;
    t->job.ctx = t;
    conn->gone = on_gone;
    conn->gone_ctx = t;
    rp_text_work_start(conn->server, &t->job);
}

/* Takes root over; NULL when an error response has been sent. */
static struct tokenize *create(struct rp_conn *conn, json_t *root, rp_write_tokens *write) {
    struct tokenize *t = rp_calloc(1, sizeof *t);
    if (!t) {
        json_decref(root);
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
        return NULL;
    }
    t->root = root;
    t->write = write;
    return t;
}

/* Runs on a worker. */
static int make_chat(struct rp_text_item *item) {
    struct tokenize *t = item->ctx;
    int status = rp_chat_prompt_make(&t->params, t->serving, item->len, &t->chat, &t->error);
    item->spans = t->chat.spans;
    item->span_count = t->chat.span_count;
    return status;
}

void rp_tokenize_chat(struct rp_conn *conn, json_t *chat, rp_write_tokens *write) {
    const struct rp_serving *serving = &conn->server->serving;
    struct rp_http_error error = {.status = 0};
    struct tokenize *t = create(conn, chat, write);
    if (!t)
        return;
    t->serving = serving;
    if (!rp_params_read(chat, RP_API_CHAT, serving, NULL, NULL, &t->params, &error) ||
        !rp_chat_prompt_check(&t->params, serving, &t->item.len, &error)) {
        destroy(t);
        rp_conn_reply_error(conn, &error);
        return;
    }
    t->item.make = make_chat;
    t->item.ctx = t;
    start(conn, t, t->params.add_special_tokens ? RP_ENCODE_ADD_SPECIAL : 0);
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
    bool is_chat = !prompt && rp_params_get(root, "messages");
    bool good = rp_params_bool(root, "add_special_tokens", &add_special, &error) &&
                rp_params_bool(root, "return_token_strs", &with_strings, &error);
    if (good && !is_chat && !json_is_string(prompt))
        good = rp_http_error_set(&error, 400, "prompt", prompt ? "invalid_type" : "missing",
                                 prompt ? "prompt must be a string"
                                        : "prompt is missing, and so are messages");
    if (!good) {
        json_decref(root);
        rp_conn_reply_error(conn, &error);
        return;
    }
    rp_write_tokens *write = with_strings ? write_tokens_and_strings : write_tokens;
    if (is_chat) {
        rp_tokenize_chat(conn, root, write);
        return;
    }
    struct tokenize *t = create(conn, root, write);
    if (!t)
        return;
    t->item.text = json_string_value(prompt);
    t->item.len = json_string_length(prompt);
    start(conn, t, add_special ? RP_ENCODE_ADD_SPECIAL : 0);
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

static void write_token(struct rp_json *json, const char *name, const struct rp_tokenizer *tok,
                        int32_t id) {
    size_t len;
    if (id < 0) {
        rp_json_null(json, name);
        return;
    }
    const char *text = rp_tokenizer_content(tok, id, &len);
    rp_json_string_len(json, name, text, len);
}

/* The members that clients read to do a tokenizer's work themselves, with the names of
 * tokenizer_config.json (as in vLLM). */
void rp_api_tokenizer_info(struct rp_conn *conn) {
    const struct rp_serving *serving = &conn->server->serving;
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    int32_t eos = rp_tokenizer_eos(serving->tokenizer);
    if (eos < 0 && serving->stop_id_count)
        eos = serving->stop_ids[0];
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "tokenizer_class", "PreTrainedTokenizerFast");
    rp_json_uint(&json, "vocab_size", rp_tokenizer_vocab_size(serving->tokenizer));
    rp_json_uint(&json, "model_max_length", rp_engine_max_model_len(serving->engine));
    write_token(&json, "bos_token", serving->tokenizer, rp_tokenizer_bos(serving->tokenizer));
    write_token(&json, "eos_token", serving->tokenizer, eos);
    if (serving->templates)
        rp_json_string(&json, "chat_template",
                       rp_chat_template_text(rp_chat_templates_pick(serving->templates, false)));
    else
        rp_json_null(&json, "chat_template");
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}
