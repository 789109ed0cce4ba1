/* cors.h - which web pages of other origins may use the API: those that --allowed-origins names, by
 * default none.
 * Thread: loop. */
#ifndef RP_SERVER_CORS_H
#define RP_SERVER_CORS_H

#include "base/buffer.h"
#include "base/status.h"

struct rp_conn;

/* A list with commas between: "*", or origins as browsers send them (https://example.com:8443).
 * INVALID otherwise. */
int rp_cors_check(const char *list, struct rp_error *err) RP_MUST_USE;
/* Whether the list (NULL: empty) has the origin (NULL: none was sent). */
bool rp_cors_allows(const char *list, const char *origin);

/* A request is a browser's question whether it may send another one: answered without a key, which
 * a browser never sends with it. */
bool rp_cors_is_preflight(const struct rp_conn *conn);
/* Header lines for the answer to this request, none when no origin is allowed. */
void rp_cors_headers(const struct rp_conn *conn, struct rp_buffer *out);

#endif
