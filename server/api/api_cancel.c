/* api_cancel.c - POST /v1/requests/ID/cancel: ends a completion or chat of the same key. ID is the
 * answer's id (cmpl-..., chatcmpl-...) or its X-Request-Id. */
#include "base/json_writer.h"
#include "server/api/completion_internal.h"
#include "server/http/api_reply.h"
#include "server/http/http_error.h"
#include "server/http/router.h"

#include <string.h>

/* The ID in the target; *len is 0 when the path does not end in /cancel. */
static const char *find_id(const struct rp_conn *conn, size_t *len) {
    static const char prefix[] = "/v1/requests/", suffix[] = "/cancel";
    const char *target = rp_http_head_get_target(&conn->head);
    const char *path = strstr(target, prefix);
    size_t size = path ? strcspn(path, "?#") : 0, ends = sizeof suffix - 1;
    const char *id = path ? path + sizeof prefix - 1 : NULL;
    *len = 0;
    if (size <= sizeof prefix - 1 + ends || memcmp(path + size - ends, suffix, ends) != 0)
        return NULL;
    *len = size - (sizeof prefix - 1) - ends;
    return id;
}

static bool is_named(const struct rp_completion *c, const char *id, size_t len) {
    const struct rp_request_record *record = &c->choices[0].record;
    const char *const names[] = {record->completion_id, record->request_id};
    for (size_t i = 0; i < RP_ARRAY_COUNT(names); i++)
        if (strlen(names[i]) == len && memcmp(names[i], id, len) == 0)
            return true;
    return false;
}

void rp_api_cancel(struct rp_conn *conn) {
    size_t len;
    const char *id = find_id(conn, &len);
    struct rp_completion *c = len ? conn->server->completions : NULL;
    while (c && !(c->conn && c->key == conn->key_index && is_named(c, id, len)))
        c = c->next;
    if (!c) {
        rp_conn_fail(conn, 404, "request_not_found",
                     "no request with this id is in progress; the path is "
                     "/v1/requests/ID/cancel");
        return;
    }
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "id", c->choices[0].record.completion_id);
    rp_json_bool(&json, "cancelled", true);
    rp_json_object_end(&json);
    c->holds++;
    rp_completion_fail_text(c, 409, "cancelled", "the request was cancelled");
    c->holds--;
    rp_completion_try_free(c);
    rp_api_reply_json(conn, 200, &body);
}
