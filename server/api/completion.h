/* completion.h - the life of one HTTP completion: prompts to tokens, requests to the engine, events
 * to text, text to the client.
 *
 *   create -> (tokenizing) -> submitted -> every request CLOSED -> answered -> freed
 *
 * A client disconnect or a failure cancels the requests; the completion stays allocated until the
 * engine has closed them all, because the engine borrows them.
 * Thread: loop (tokenizing long prompts: a worker, see text_work.h). */
#ifndef RP_SERVER_COMPLETION_H
#define RP_SERVER_COMPLETION_H

#include "server/api/params.h"
#include "server/http/http_conn.h"

/* Maximum prompts in one HTTP request. */
#define RP_PROMPTS_MAX 256

struct rp_completion;

/* Takes ownership of root and *params (also when it answers with an error). */
void rp_completion_start(struct rp_conn *conn, json_t *root, struct rp_completion_params *params);
void rp_completion_event(struct rp_server *server, const struct rp_event *event);
/* Called at every tick. */
void rp_completion_tick(struct rp_server *server);
/* Fails all completions with this error, as on shutdown. */
void rp_completion_fail_all(struct rp_server *server, const struct rp_http_error *error);

#endif
