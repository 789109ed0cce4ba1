/* api_reply.h - helpers for handlers that build a whole answer. Thread: loop. */
#ifndef RP_SERVER_API_REPLY_H
#define RP_SERVER_API_REPLY_H

#include "base/buffer.h"

struct rp_conn;

/* Answers with the body followed by a newline, and frees it; 503 when the buffer ran out of
 * memory. */
void rp_api_reply_json(struct rp_conn *conn, int status, struct rp_buffer *body);
/* The same for any other content type; nothing is added. */
void rp_api_reply_text(struct rp_conn *conn, int status, const char *content_type,
                       struct rp_buffer *body);

#endif
