/* http_query.h - the query string of a request target: ?seconds=5&format=json. Values are
 * percent-decoded into the caller's memory. Thread: any. */
#ifndef RP_SERVER_HTTP_QUERY_H
#define RP_SERVER_HTTP_QUERY_H

#include "server/http/http_error.h"

#define RP_QUERY_VALUE_MAX 256

struct rp_conn;

/* A query parameter of a route, and where its value is stored. */
struct rp_query_param {
    const char *name;
    enum { RP_QUERY_TEXT, RP_QUERY_CHOICE, RP_QUERY_UINT, RP_QUERY_DOUBLE } type;
    const char *choices; /* CHOICE: "json|text"; *value is set to the index */
    double min, max;     /* UINT, DOUBLE */
    void *value;         /* char[RP_QUERY_VALUE_MAX], uint32_t, uint64_t, double */
    bool *given;         /* may be NULL */
};

/* Parses the target's query string. Absent parameters keep their values. Unknown names, repeated
 * names, bad escapes and values out of range fill *error (400, names the parameter) and return
 * false. */
bool rp_query_read(const char *target, const struct rp_query_param *params, size_t count,
                   struct rp_http_error *error);
/* The same for a connection: also sends the error response. */
bool rp_query_read_conn(struct rp_conn *conn, const struct rp_query_param *params, size_t count);

#endif
