/* api_responses.c - OpenAI's Responses API: POST /v1/responses, and what is under
 * /v1/responses/: input_tokens, ID (GET, DELETE), ID/input_items, ID/cancel. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "server/api/answer_responses.h"
#include "server/api/api_response_items.h"
#include "server/api/api_start.h"
#include "server/api/completion_internal.h"
#include "server/api/response_reference.h"
#include "server/api/response_replay.h"
#include "server/api/response_store.h"
#include "server/api/responses_request.h"
#include "server/api/server_keys.h"
#include "server/api/tokenize_chat.h"
#include "server/http/api_reply.h"
#include "server/http/http_query.h"
#include "server/http/json_work.h"
#include "server/http/router.h"
#include "server/observe/report_work.h"

#include <stdio.h>
#include <string.h>

static const char off_message[] =
    "this server stores no responses (--responses-store 0): send the whole conversation as input";

static uint64_t owner_of(const struct rp_conn *conn) {
    return rp_server_key_salt(conn->server, conn->key_index);
}

/* --- POST ------------------------------------------------------------------------------------ */

/* The conversation that the request continues, or NULL; false with *error. */
static bool find_previous(struct rp_conn *conn, json_t *root, json_t **out_items,
                          struct rp_http_error *error) {
    static const char field[] = "previous_response_id";
    json_t *id = rp_params_get(root, field);
    *out_items = NULL;
    if (!id)
        return true;
    if (!json_is_string(id))
        return rp_http_error_set(error, 400, field, "invalid_type", "%s must be a string", field);
    if (!rp_response_store_is_on(conn->server->responses))
        return rp_http_error_set(error, 400, field, "unsupported_parameter", "%s", off_message);
    const struct rp_stored_response *found = rp_response_store_find(
        conn->server->responses, owner_of(conn), json_string_value(id), json_string_length(id));
    if (!found)
        return rp_http_error_set(error, 400, field, "previous_response_not_found",
                                 "%s is not stored: it may have been dropped to make room", field);
    *out_items = found->items;
    return true;
}

/* Whether the answer will be stored: yes unless the request or the server says otherwise. */
static bool read_store(struct rp_conn *conn, json_t *root, bool *out, struct rp_http_error *error) {
    bool is_on = rp_response_store_is_on(conn->server->responses);
    *out = is_on;
    if (!rp_params_bool(root, "store", out, error))
        return false;
    if (*out && !is_on)
        return rp_http_error_set(error, 400, "store", "unsupported_parameter", "store: %s",
                                 off_message);
    return true;
}

/* Takes root over. The chat, with *out_origin unless it is NULL; NULL when an error response has
 * been sent. */
static json_t *convert(struct rp_conn *conn, json_t *root, json_t **out_origin) {
    struct rp_http_error error = {.status = 0};
    json_t *before, *items = NULL, *chat = NULL, *names = NULL;
    bool store = false;
    bool good =
        rp_params_check_model(root, &conn->server->serving, &error) &&
        find_previous(conn, root, &before, &error) && read_store(conn, root, &store, &error) &&
        rp_response_references_resolve(root, conn->server->responses, owner_of(conn), &error) &&
        (items = rp_responses_items(root, before, &error)) &&
        rp_responses_to_chat(root, items, conn->server->late_system, &chat, &names, &error);
    if (good && out_origin) {
        *out_origin = json_pack("{s:O,s:O,s:O,s:b}", "request", root, "names", names, "items",
                                items, "store", store);
        if (!*out_origin)
            good = rp_http_error_set(&error, 503, NULL, "overloaded", "out of memory");
    }
    json_decref(root);
    json_decref(items);
    json_decref(names);
    if (good)
        return chat;
    json_decref(chat);
    rp_conn_reply_error(conn, &error);
    return NULL;
}

static void on_response(struct rp_conn *conn, json_t *root) {
    json_t *origin = NULL, *chat = convert(conn, root, &origin);
    if (chat)
        rp_api_start(conn, chat,
                     &(struct rp_api_start){
                         .api = RP_API_CHAT, .answers = &rp_answer_responses, .origin = origin});
}

void rp_api_responses(struct rp_conn *conn) { rp_api_take_body(conn, on_response); }

static void write_count(struct rp_conn *conn, const struct rp_token_ids *ids) {
    struct rp_buffer body = {.data = NULL};
    rp_buffer_printf(&body, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}",
                     ids->count);
    rp_api_reply_json(conn, 200, &body);
}

static void on_count(struct rp_conn *conn, json_t *root) {
    json_t *chat = convert(conn, root, NULL);
    if (chat)
        rp_tokenize_chat(conn, chat, write_count);
}

/* --- Stored answers -------------------------------------------------------------------------- */

static void fail_unknown(struct rp_conn *conn) {
    rp_conn_fail(conn, 404, "response_not_found", "no response with this id is %s",
                 rp_response_store_is_on(conn->server->responses)
                     ? "stored"
                     : "stored: this server stores none (--responses-store 0)");
}

struct replay {
    uint64_t from;
    size_t len;
    char body[]; /* a copy: the store may drop the answer */
};

static void build_replay(void *ctx, struct rp_buffer *out) {
    const struct replay *replay = ctx;
    rp_response_replay(replay->body, replay->len, replay->from, out);
}

static void reply_events(struct rp_conn *conn, const struct rp_stored_response *found,
                         uint64_t from) {
    static const char type[] = "text/event-stream";
    struct rp_buffer body = {.data = NULL};
    if (found->len <= RP_JSON_INLINE_BYTES) {
        rp_response_replay(found->body, found->len, from, &body);
        rp_api_reply_text(conn, 200, type, &body);
        return;
    }
    struct replay *replay = rp_alloc(sizeof *replay + found->len);
    if (!replay) {
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
        return;
    }
    *replay = (struct replay){.from = from, .len = found->len};
    memcpy(replay->body, found->body, found->len);
    rp_report_start(conn, build_replay, rp_free, replay, type);
}

static void reply_stored(struct rp_conn *conn, const char *id, size_t len) {
    uint32_t stream = 0;
    uint64_t after = 0;
    bool has_after = false;
    char unused[RP_QUERY_VALUE_MAX];
    const struct rp_query_param params[] = {
        {"stream", RP_QUERY_CHOICE, "false|true", 0, 0, &stream, NULL},
        {"starting_after", RP_QUERY_UINT, NULL, 0, 1e15, &after, &has_after},
        {"include", RP_QUERY_TEXT, NULL, 0, 0, unused, NULL},
        {"include[]", RP_QUERY_TEXT, NULL, 0, 0, unused, NULL},
        {"include_obfuscation", RP_QUERY_TEXT, NULL, 0, 0, unused, NULL}};
    struct rp_buffer body = {.data = NULL};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    const struct rp_stored_response *found =
        rp_response_store_find(conn->server->responses, owner_of(conn), id, len);
    if (!found) {
        fail_unknown(conn);
    } else if (stream) {
        reply_events(conn, found, has_after ? after + 1 : 0);
    } else {
        rp_buffer_append(&body, found->body, found->len);
        rp_api_reply_json(conn, 200, &body);
    }
}

static void delete_stored(struct rp_conn *conn, const char *id, size_t len) {
    struct rp_buffer body = {.data = NULL};
    if (!rp_response_store_delete(conn->server->responses, owner_of(conn), id, len)) {
        fail_unknown(conn);
        return;
    }
    rp_buffer_puts(&body, "{\"id\":");
    rp_json_escape(&body, id, len);
    rp_buffer_puts(&body, ",\"object\":\"response\",\"deleted\":true}");
    rp_api_reply_json(conn, 200, &body);
}

static void cancel(struct rp_conn *conn, const char *id, size_t len) {
    struct rp_completion *c = conn->server->completions;
    struct rp_buffer body = {.data = NULL};
    while (c && !(c->conn && c->key == conn->key_index && c->answer.api == &rp_answer_responses &&
                  strlen(c->answer.id) == len && memcmp(c->answer.id, id, len) == 0))
        c = c->next;
    if (!c && rp_response_store_find(conn->server->responses, owner_of(conn), id, len)) {
        rp_conn_fail(conn, 400, "invalid_value", "this response is complete");
        return;
    }
    if (!c) {
        rp_conn_fail(conn, 404, "response_not_found", "no response with this id is in progress");
        return;
    }
    rp_answer_responses_cancelled(&c->answer, &body);
    c->holds++;
    rp_completion_fail_text(c, 409, "cancelled", "the request was cancelled");
    c->holds--;
    rp_completion_try_free(c);
    rp_api_reply_json(conn, 200, &body);
}

/* --- Paths ----------------------------------------------------------------------------------- */

static bool is_path(const char *path, size_t len, const char *text) {
    return strlen(text) == len && memcmp(path, text, len) == 0;
}

void rp_api_response(struct rp_conn *conn) {
    static const char prefix[] = "/v1/responses/";
    const char *id = strstr(rp_http_head_get_target(&conn->head), prefix) + sizeof prefix - 1;
    size_t path_len = strcspn(id, "?#"), len = RP_MIN(strcspn(id, "/"), path_len);
    const char *rest = id + len;
    size_t rest_len = path_len - len;
    bool is_post = conn->parser.method == HTTP_POST;
    bool is_delete = conn->parser.method == HTTP_DELETE;
    if (is_post && is_path(id, path_len, "input_tokens"))
        rp_json_work_start(conn, on_count);
    else if (is_post && is_path(rest, rest_len, "/cancel"))
        cancel(conn, id, len);
    else if (!is_post && !is_delete && is_path(rest, rest_len, "/input_items"))
        rp_api_response_items(conn, id, len);
    else if (is_post || rest_len)
        rp_conn_fail(conn, 404, "not_found",
                     "under /v1/responses/ are ID, ID/input_items, ID/cancel and input_tokens");
    else if (is_delete)
        delete_stored(conn, id, len);
    else
        reply_stored(conn, id, len);
}
