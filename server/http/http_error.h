/* http_error.h - error responses: {"error":{"message","type","param","code"}}. Messages name the
 * field and quote at most a few bytes of the request. */
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

/* Fills *error and returns false, so that a check can return its result. */
bool rp_http_error_set(struct rp_http_error *error, int status, const char *param, const char *code,
                       const char *format, ...) RP_PRINTF(5, 6);

/* Appends the error object as JSON. */
void rp_http_error_write(const struct rp_http_error *error, struct rp_buffer *out);
void rp_conn_reply_error(struct rp_conn *conn, const struct rp_http_error *error);
/* Formats and sends an error that concerns no field. */
void rp_conn_fail(struct rp_conn *conn, int status, const char *code, const char *format, ...)
    RP_PRINTF(4, 5);

const char *rp_http_reason(int status);

#endif
