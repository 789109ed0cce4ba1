/* http_parse.h - the parser of a connection: header scanner and llhttp.
 * Thread: loop. */
#ifndef RP_SERVER_HTTP_PARSE_H
#define RP_SERVER_HTTP_PARSE_H

struct rp_conn;

void rp_parse_init(struct rp_conn *conn);
/* Call after a complete request on a keep-alive connection. */
void rp_parse_resume(struct rp_conn *conn);
/* Consumes part of conn->in. Afterwards the state may be BODY, and message_done or rejected may be
 * set (rejected: the error response has begun). */
void rp_parse_step(struct rp_conn *conn);

#endif
