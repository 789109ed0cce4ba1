/* json_work.h - the body of a request to JSON: a small one at once, a large one in the thread pool,
 * since parsing 8 MiB takes 0.1 to 0.2 s and the loop has tokens to send.
 * Thread: loop; the parsing itself may be a worker's. */
#ifndef RP_SERVER_JSON_WORK_H
#define RP_SERVER_JSON_WORK_H

#include "server/http/http_conn.h"
#include "server/http/json_body.h"

/* More than this goes to a worker: about 2 ms of parsing. */
#define RP_JSON_INLINE_BYTES 131072

/* Takes conn->body. Calls next with the tree, which it must free, or answers with the error. next
 * is not called when the client has left. */
void rp_json_work_start(struct rp_conn *conn, void (*next)(struct rp_conn *conn, json_t *root));

#endif
