#include "server/api/api_response_items.h"

#include "server/api/response_store.h"
#include "server/api/server_keys.h"
#include "server/http/api_reply.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_query.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static void set_default(json_t *object, const char *name, json_t *value, bool *failed) {
    if (json_is_string(json_object_get(object, name)))
        json_decref(value);
    else
        *failed |= json_object_set_new(object, name, value) != 0;
}

/* A message's text as the list of parts that it is short for. */
static void expand_content(json_t *message, bool *failed) {
    json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!json_is_string(content))
        return;
    bool output = role && strcmp(role, "assistant") == 0;
    json_t *part =
        json_pack("{s:s,s:O}", "type", output ? "output_text" : "input_text", "text", content);
    if (output) {
        *failed |= json_object_set_new(part, "annotations", json_array()) != 0;
        *failed |= json_object_set_new(part, "logprobs", json_array()) != 0;
    }
    *failed |= json_object_set_new(message, "content", json_pack("[o]", part)) != 0;
}

/* A copy of the item with the members that clients may leave out; NULL: no memory. */
static json_t *show_item(json_t *item, size_t index) {
    char id[40];
    bool failed = false;
    json_t *shown = json_copy(item);
    snprintf(id, sizeof id, "item_%zu", index);
    set_default(shown, "id", json_string(id), &failed);
    set_default(shown, "type", json_string("message"), &failed);
    set_default(shown, "status", json_string("completed"), &failed);
    const char *type = json_string_value(json_object_get(shown, "type"));
    if (type && strcmp(type, "message") == 0)
        expand_content(shown, &failed);
    if (!failed)
        return shown;
    json_decref(shown);
    return NULL;
}

struct page {
    uint64_t limit;
    uint32_t descending;
    char after[RP_QUERY_VALUE_MAX];
};

static const json_t *id_at(const json_t *list, size_t index) {
    return json_object_get(json_array_get(list, index), "id");
}

/* NULL: no memory. */
static json_t *make_page(const struct rp_stored_response *response, const struct page *page) {
    json_t *data = json_array(), *all = json_array();
    size_t count = response->input_count;
    bool failed = !data || !all;
    for (size_t i = 0; i < count; i++) {
        size_t at = page->descending ? count - 1 - i : i;
        failed |=
            json_array_append_new(all, show_item(json_array_get(response->items, at), at)) != 0;
    }
    size_t begin = 0;
    for (size_t i = 0; i < json_array_size(all) && page->after[0]; i++)
        if (strcmp(json_string_value(id_at(all, i)), page->after) == 0)
            begin = i + 1;
    size_t end = RP_MIN(begin + (size_t)page->limit, json_array_size(all));
    for (size_t i = begin; i < end; i++)
        failed |= json_array_append(data, json_array_get(all, i)) != 0;
    json_t *list =
        failed ? NULL
               : json_pack("{s:s,s:O,s:O?,s:O?,s:b}", "object", "list", "data", data, "first_id",
                           id_at(data, 0), "last_id", id_at(data, end - begin - 1), "has_more",
                           end < json_array_size(all));
    json_decref(data);
    json_decref(all);
    return list;
}

static int append_dump(const char *bytes, size_t len, void *out) {
    rp_buffer_append(out, bytes, len);
    return 0;
}

void rp_api_response_items(struct rp_conn *conn, const char *id, size_t len) {
    struct page page = {.limit = 20, .descending = 0};
    uint32_t order = 0;
    char unused[RP_QUERY_VALUE_MAX];
    const struct rp_query_param params[] = {
        {"limit", RP_QUERY_UINT, NULL, 1, 100, &page.limit, NULL},
        {"order", RP_QUERY_CHOICE, "desc|asc", 0, 0, &order, NULL},
        {"after", RP_QUERY_TEXT, NULL, 0, 0, page.after, NULL},
        {"include", RP_QUERY_TEXT, NULL, 0, 0, unused, NULL}};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    page.descending = order == 0;
    const struct rp_stored_response *found = rp_response_store_find(
        conn->server->responses, rp_server_key_salt(conn->server, conn->key_index), id, len);
    if (!found) {
        rp_conn_fail(conn, 404, "response_not_found", "no response with this id is stored");
        return;
    }
    struct rp_buffer body = {.data = NULL};
    json_t *list = make_page(found, &page);
    body.failed = !list || json_dump_callback(list, append_dump, &body, JSON_COMPACT) != 0;
    json_decref(list);
    rp_api_reply_json(conn, 200, &body);
}
