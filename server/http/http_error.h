/* http_error.h - error responses, in the form of the route's API. Messages name the field and quote
 * at most a few bytes of the request. */
#ifndef RP_SERVER_HTTP_ERROR_H
#define RP_SERVER_HTTP_ERROR_H

#include "base/buffer.h"

struct rp_conn;

struct rp_http_error {
    int status; /* 0: no error */
    char message[400];
    char param[64];   /* "" becomes null */
    const char *code; /* NULL becomes null */
};

enum rp_error_form {
    RP_ERRORS_OPENAI,    /* {"error":{"message","type","param","code"}} */
    RP_ERRORS_RESPONSES, /* the same; names of fields are those of /v1/responses */
    RP_ERRORS_ANTHROPIC, /* {"type":"error","error":{"type","message"},"request_id"} */
    RP_ERRORS_OLLAMA     /* {"error":message} */
};

/* Fills *error and returns false, so that a check can return its result. */
bool rp_http_error_set(struct rp_http_error *error, int status, const char *param, const char *code,
                       const char *format, ...) RP_PRINTF(5, 6);

/* Appends the error object as JSON. Requests of every API become chats (chat_build.h), so errors
 * about a chat's fields are renamed to those of the API. request_id may be NULL. */
void rp_http_error_write_as(enum rp_error_form form, const struct rp_http_error *error,
                            const char *request_id, struct rp_buffer *out);
void rp_http_error_write(const struct rp_http_error *error, struct rp_buffer *out);
void rp_conn_reply_error(struct rp_conn *conn, const struct rp_http_error *error);
/* Formats and sends an error that concerns no field. */
void rp_conn_fail(struct rp_conn *conn, int status, const char *code, const char *format, ...)
    RP_PRINTF(4, 5);

const char *rp_http_reason(int status);

#endif
