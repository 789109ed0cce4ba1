/* api_completions.c - POST /v1/completions and /v1/chat/completions: checks, then hands off to
 * completion_start.c. */
#include "engine/engine.h"
#include "server/api/answer.h"
#include "server/api/answer_responses.h"
#include "server/api/api_start.h"
#include "server/api/completion.h"
#include "server/http/http_error.h"
#include "server/http/json_work.h"
#include "server/http/router.h"

void rp_api_start(struct rp_conn *conn, json_t *root, const struct rp_api_start *start) {
    struct rp_server *server = conn->server;
    struct rp_http_error error = {.status = 0};
    struct rp_completion_params params;
    bool good = rp_params_read(root, start->api, &server->serving, rp_params_log_unknown, server,
                               &params, &error);
    /* Only now: the answer's member is not a field of the request. */
    if (start->origin && json_object_set_new(root, RP_RESPONSES_ORIGIN, start->origin) != 0 && good)
        good = rp_http_error_set(&error, 503, NULL, "overloaded", "out of memory");
    if (!good) {
        rp_params_deinit(&params);
        json_decref(root);
        rp_conn_reply_error(conn, &error);
        return;
    }
    params.answers = start->answers;
    params.limit_to_context = start->limit_to_context;
    rp_completion_start(conn, root, &params);
}

static void start_own(struct rp_conn *conn, json_t *root, const struct rp_api_start *start) {
    struct rp_http_error error = {.status = 0};
    if (rp_params_check_model(root, &conn->server->serving, &error)) {
        rp_api_start(conn, root, start);
        return;
    }
    json_decref(root);
    rp_conn_reply_error(conn, &error);
}

static void on_completion(struct rp_conn *conn, json_t *root) {
    start_own(conn, root,
              &(struct rp_api_start){.api = RP_API_COMPLETIONS, .answers = &rp_answer_completions});
}

static void on_chat(struct rp_conn *conn, json_t *root) {
    start_own(conn, root, &(struct rp_api_start){.api = RP_API_CHAT, .answers = &rp_answer_chat});
}

void rp_api_take_body(struct rp_conn *conn, void (*next)(struct rp_conn *conn, json_t *root)) {
    struct rp_server *server = conn->server;
    conn->recordable = true;
    if (server->phase >= RP_SERVER_DRAINING) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_DRAINING], 1);
        rp_conn_fail(conn, 503, "shutting_down", "the server is shutting down");
    } else if (!rp_engine_is_healthy(server->serving.engine)) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_UNHEALTHY], 1);
        rp_conn_fail(conn, 503, "engine_failed", "the device has failed");
    } else {
        rp_json_work_start(conn, next);
    }
}

void rp_api_completions(struct rp_conn *conn) { rp_api_take_body(conn, on_completion); }

void rp_api_chat(struct rp_conn *conn) { rp_api_take_body(conn, on_chat); }
