/* http_query.h - the query of a request's target: ?seconds=5&format=json.
 * Values are percent-decoded into the caller's memory. Thread: any. */
#ifndef RP_SERVER_HTTP_QUERY_H
#define RP_SERVER_HTTP_QUERY_H

#include "server/http/http_error.h"

#define RP_QUERY_VALUE_MAX 256

struct rp_conn;

/* A parameter that a route knows, and where its value goes. */
struct rp_query_param {
    const char *name;
    enum { RP_QUERY_TEXT, RP_QUERY_CHOICE, RP_QUERY_UINT, RP_QUERY_DOUBLE } type;
    const char *choices; /* CHOICE: "json|text": *value becomes the index */
    double min, max;     /* UINT, DOUBLE */
    void *value;         /* char[RP_QUERY_VALUE_MAX], uint32_t, uint64_t, double */
    bool *given;         /* may be NULL */
};

/* Reads the target's query. Values that are absent keep what they had. Unknown names, repeated
 * names, bad escapes and values out of range fill *error (400, names the parameter) and give
 * false. */
bool rp_query_read(const char *target, const struct rp_query_param *params, size_t count,
                   struct rp_http_error *error);
/* The same for a connection: answers the error by itself. */
bool rp_query_read_conn(struct rp_conn *conn, const struct rp_query_param *params, size_t count);

#endif
