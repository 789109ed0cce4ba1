/* http_check.h - what a well-formed request must also be: version, host, key, route, type, size.
 * Each check that fails has answered. Thread: loop. */
#ifndef RP_SERVER_HTTP_CHECK_H
#define RP_SERVER_HTTP_CHECK_H

#include "base/base.h"

struct rp_conn;

/* When the header is complete, before anything of the body is read. */
bool rp_check_head(struct rp_conn *conn);
/* Expect: 100-continue. has_body: bytes of the body are there already. */
void rp_check_expect(struct rp_conn *conn, bool has_body);
/* When the request is complete. */
bool rp_check_complete(struct rp_conn *conn);

#endif
