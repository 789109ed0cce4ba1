/* json_work.h - parses a request body: small ones inline, large ones in the thread pool, since
 * parsing 8 MiB takes 0.1 to 0.2 s and would delay the loop's output.
 * Thread: loop; the parsing itself may run on a worker. */
#ifndef RP_SERVER_JSON_WORK_H
#define RP_SERVER_JSON_WORK_H

#include "server/http/http_conn.h"
#include "server/http/json_body.h"

/* Larger bodies are parsed by a worker: about 2 ms of parsing. */
#define RP_JSON_INLINE_BYTES 131072

/* Takes ownership of conn->body. Calls next with the tree, which next must free, or answers with
 * the error. next is not called when the client has disconnected. */
void rp_json_work_start(struct rp_conn *conn, void (*next)(struct rp_conn *conn, json_t *root));

#endif
