/* http_parse.h - the parser of a connection: scanner, llhttp, and what they find.
 * Thread: loop. */
#ifndef RP_SERVER_HTTP_PARSE_H
#define RP_SERVER_HTTP_PARSE_H

struct rp_conn;

void rp_parse_init(struct rp_conn *conn);
/* After a complete request whose connection lives on. */
void rp_parse_resume(struct rp_conn *conn);
/* Takes some of conn->in. Afterwards the state may be BODY, message_done or rejected may be set
 * (then an answer to a bad request has begun). */
void rp_parse_step(struct rp_conn *conn);

#endif
