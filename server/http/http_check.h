/* http_check.h - checks on a well-formed request: version, host, key, route, content type, size. A
 * failed check has already sent the error response. Thread: loop. */
#ifndef RP_SERVER_HTTP_CHECK_H
#define RP_SERVER_HTTP_CHECK_H

#include "base/base.h"

struct rp_conn;

/* After the header is complete, before the body is read. */
bool rp_check_head(struct rp_conn *conn);
/* Handles Expect: 100-continue. has_body: bytes of the body have already arrived. */
void rp_check_expect(struct rp_conn *conn, bool has_body);
/* After the request is complete. */
bool rp_check_complete(struct rp_conn *conn);

#endif
