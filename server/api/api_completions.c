/* api_completions.c - POST /v1/completions and /v1/chat/completions: checks, then hands off to
 * completion_start.c. */
#include "engine/engine.h"
#include "server/api/answer.h"
#include "server/api/completion.h"
#include "server/http/http_error.h"
#include "server/http/json_work.h"
#include "server/http/router.h"

static void start(struct rp_conn *conn, json_t *root, enum rp_api api) {
    struct rp_server *server = conn->server;
    struct rp_http_error error = {.status = 0};
    struct rp_completion_params params;
    if (!rp_params_check_model(root, &server->serving, &error)) {
        json_decref(root);
        rp_conn_reply_error(conn, &error);
        return;
    }
    if (!rp_params_read(root, api, &server->serving, rp_params_log_unknown, server, &params,
                        &error)) {
        rp_params_deinit(&params);
        json_decref(root);
        rp_conn_reply_error(conn, &error);
        return;
    }
    params.answers = api == RP_API_CHAT ? &rp_answer_chat : &rp_answer_completions;
    rp_completion_start(conn, root, &params);
}

static void on_completion(struct rp_conn *conn, json_t *root) {
    start(conn, root, RP_API_COMPLETIONS);
}

static void on_chat(struct rp_conn *conn, json_t *root) { start(conn, root, RP_API_CHAT); }

static void take(struct rp_conn *conn, void (*next)(struct rp_conn *conn, json_t *root)) {
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

void rp_api_completions(struct rp_conn *conn) { take(conn, on_completion); }

void rp_api_chat(struct rp_conn *conn) { take(conn, on_chat); }
