#include "server/http/api_reply.h"

#include "server/http/http_conn.h"
#include "server/http/http_error.h"

void rp_api_reply_text(struct rp_conn *conn, int status, const char *content_type,
                       struct rp_buffer *body) {
    if (body->failed)
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
    else
        rp_conn_reply(conn, status, content_type, NULL, body->data, body->len);
    rp_buffer_deinit(body);
}

void rp_api_reply_json(struct rp_conn *conn, int status, struct rp_buffer *body) {
    rp_buffer_puts(body, "\n");
    rp_api_reply_text(conn, status, "application/json", body);
}
