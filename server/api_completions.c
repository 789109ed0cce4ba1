/* api_completions.c - POST /v1/completions: checks, then completion.c takes over. */
#include "engine/engine.h"
#include "server/completion.h"
#include "server/http_error.h"
#include "server/json_body.h"
#include "server/router.h"

void rp_api_completions(struct rp_conn *conn) {
    struct rp_server *server = conn->server;
    struct rp_http_error error = {.status = 0};
    struct rp_completion_params params;
    if (server->phase >= RP_SERVER_DRAINING) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_DRAINING], 1);
        rp_conn_fail(conn, 503, "shutting_down", "the server is shutting down");
        return;
    }
    if (!rp_engine_is_healthy(server->serving.engine)) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_UNHEALTHY], 1);
        rp_conn_fail(conn, 503, "engine_failed", "the device has failed");
        return;
    }
    json_t *root =
        rp_json_body_parse(conn->body.data, conn->body.len, &server->config.limits, &error);
    if (!root) {
        if (error.status == 503)
            rp_counter_add(&server->metrics.rejected[RP_REJECTED_OVERLOAD], 1);
        rp_conn_reply_error(conn, &error);
        return;
    }
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
