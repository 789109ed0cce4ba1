/* cors.h - Cross-Origin Resource Sharing: web pages of the origins in --allowed-origins may use the
 * API; by default none.
 * Thread: loop. */
#ifndef RP_SERVER_CORS_H
#define RP_SERVER_CORS_H

#include "base/buffer.h"
#include "base/status.h"

struct rp_conn;

/* Validates a comma-separated list: "*", or origins as browsers send them
 * (https://example.com:8443). INVALID otherwise. */
int rp_cors_check(const char *list, struct rp_error *err) RP_MUST_USE;
/* Whether the list (NULL: empty) contains the origin (NULL: none was sent). */
bool rp_cors_allows(const char *list, const char *origin);

/* Whether a request is a CORS preflight. Preflights are answered without an API key, which browsers
 * never send with them. */
bool rp_cors_is_preflight(const struct rp_conn *conn);
/* Whether a POST is accepted: it has no Origin (not a browser), the origin of this server itself
 * (/debug/ui), or one that is allowed on its route. */
bool rp_cors_accepts(const struct rp_conn *conn);
/* Appends the CORS header lines of the answer to this request; none when the origin is not
 * allowed. */
void rp_cors_headers(const struct rp_conn *conn, struct rp_buffer *out);

#endif
