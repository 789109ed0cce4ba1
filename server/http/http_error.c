#include "server/http/http_error.h"

#include "base/json_writer.h"
#include "server/http/http_conn.h"
#include "server/http/router.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    int status;
    const char *reason, *type;
} statuses[] = {
    {200, "OK", NULL},
    {204, "No Content", NULL},
    {400, "Bad Request", "invalid_request_error"},
    {401, "Unauthorized", "authentication_error"},
    {403, "Forbidden", "permission_error"},
    {404, "Not Found", "not_found_error"},
    {405, "Method Not Allowed", "invalid_request_error"},
    {408, "Request Timeout", "timeout_error"},
    {409, "Conflict", "conflict_error"},
    {413, "Content Too Large", "invalid_request_error"},
    {414, "URI Too Long", "invalid_request_error"},
    {415, "Unsupported Media Type", "invalid_request_error"},
    {417, "Expectation Failed", "invalid_request_error"},
    {429, "Too Many Requests", "rate_limit_error"},
    {431, "Request Header Fields Too Large", "invalid_request_error"},
    {500, "Internal Server Error", "server_error"},
    {501, "Not Implemented", "invalid_request_error"},
    {503, "Service Unavailable", "service_unavailable_error"},
    {504, "Gateway Timeout", "timeout_error"},
    {505, "HTTP Version Not Supported", "invalid_request_error"},
};

static size_t status_index(int status) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(statuses); i++)
        if (statuses[i].status == status)
            return i;
    RP_ASSERT_CMP(status, ==, -1); /* every status that is sent is in the table */
    return 0;
}

const char *rp_http_reason(int status) { return statuses[status_index(status)].reason; }

bool rp_http_error_set(struct rp_http_error *error, int status, const char *param, const char *code,
                       const char *format, ...) {
    va_list args;
    error->status = status;
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return false;
}

void rp_http_error_write(const struct rp_http_error *error, struct rp_buffer *out) {
    struct rp_json json;
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    rp_json_object_begin(&json, "error");
    rp_json_string(&json, "message", error->message);
    rp_json_string(&json, "type", statuses[status_index(error->status)].type);
    if (error->param[0])
        rp_json_string(&json, "param", error->param);
    else
        rp_json_null(&json, "param");
    if (error->code)
        rp_json_string(&json, "code", error->code);
    else
        rp_json_null(&json, "code");
    rp_json_object_end(&json);
    rp_json_object_end(&json);
}

void rp_conn_reply_error(struct rp_conn *conn, const struct rp_http_error *error) {
    struct rp_buffer body;
    char extra[96] = "";
    rp_buffer_init(&body, 0);
    rp_http_error_write(error, &body);
    rp_buffer_puts(&body, "\n");
    if (error->status == 401)
        snprintf(extra, sizeof extra, "WWW-Authenticate: Bearer realm=\"reprise\"\r\n");
    else if (error->status == 429 || error->status == 503)
        snprintf(extra, sizeof extra, "Retry-After: %u\r\n",
                 /* Retry-After spread over 1 to 3 s */
                 1u + (unsigned)(conn->first_byte_ns / 1000 % 3));
    else if (error->status == 405)
        rp_route_allow_header(conn->route, extra, sizeof extra);
    rp_record_refused(conn, error);
    rp_conn_reply(conn, error->status, "application/json", extra, body.data, body.len);
    rp_buffer_deinit(&body);
}

void rp_conn_fail(struct rp_conn *conn, int status, const char *code, const char *format, ...) {
    struct rp_http_error error = {.status = status, .code = code};
    va_list args;
    va_start(args, format);
    vsnprintf(error.message, sizeof error.message, format, args);
    va_end(args);
    rp_conn_reply_error(conn, &error);
}
