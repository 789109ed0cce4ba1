/* api_start.h - what the routes that generate have in common. Thread: loop. */
#ifndef RP_SERVER_API_START_H
#define RP_SERVER_API_START_H

#include "server/api/params.h"
#include "server/http/http_conn.h"

struct rp_answer_api;

/* Parses the body and calls next with its tree, unless the server is shutting down or its device
 * has failed. */
void rp_api_take_body(struct rp_conn *conn, void (*next)(struct rp_conn *conn, json_t *root));

struct rp_api_start {
    enum rp_api api;
    const struct rp_answer_api *answers;
    bool limit_to_context; /* params.h */
    json_t *origin; /* of the answer: a member of the request (answer_responses.h); or NULL */
};

/* Takes over root, a request to /v1/completions or /v1/chat/completions, and start->origin. Starts
 * it, or answers with an error. */
void rp_api_start(struct rp_conn *conn, json_t *root, const struct rp_api_start *start);

#endif
