/* api_completions.c - POST /v1/completions: checks, then completion.c takes over. */
#include "engine/engine.h"
#include "server/completion.h"
#include "server/http_error.h"
#include "server/json_work.h"
#include "server/router.h"

static void on_body(struct rp_conn *conn, json_t *root) {
    struct rp_server *server = conn->server;
    struct rp_http_error error = {.status = 0};
    struct rp_completion_params params;
    if (!rp_params_check_model(root, &server->serving, &error)) {
        json_decref(root);
        rp_conn_reply_error(conn, &error);
        return;
    }
    if (!rp_params_read(root, &server->serving, rp_params_log_unknown, server, &params, &error)) {
        rp_params_deinit(&params);
        json_decref(root);
        rp_conn_reply_error(conn, &error);
        return;
    }
    rp_completion_start(conn, root, &params);
}

void rp_api_completions(struct rp_conn *conn) {
    struct rp_server *server = conn->server;
    if (server->phase >= RP_SERVER_DRAINING) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_DRAINING], 1);
        rp_conn_fail(conn, 503, "shutting_down", "the server is shutting down");
    } else if (!rp_engine_is_healthy(server->serving.engine)) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_UNHEALTHY], 1);
        rp_conn_fail(conn, 503, "engine_failed", "the device has failed");
    } else {
        rp_json_work_start(conn, on_body);
    }
}
