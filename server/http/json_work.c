#include "server/http/json_work.h"

#include "base/memory.h"
#include "server/http/http_error.h"
#include "server/server_trace.h"

struct json_work {
    uv_work_t work;
    struct rp_server *server;
    struct rp_conn *conn; /* NULL: the client has disconnected */
    struct rp_buffer body;
    json_t *root;
    struct rp_http_error error;
    void (*next)(struct rp_conn *conn, json_t *root);
};

static void finish(struct rp_conn *conn, json_t *root, const struct rp_http_error *error,
                   void (*next)(struct rp_conn *conn, json_t *root)) {
    if (conn->revoked) {
        json_decref(root);
        rp_conn_fail_revoked(conn);
        return;
    }
    if (root) {
        next(conn, root);
        return;
    }
    if (error->status == 503)
        rp_counter_add(&conn->server->metrics.rejected[RP_REJECTED_OVERLOAD], 1);
    rp_conn_reply_error(conn, error);
}

static void on_gone(void *ctx) { ((struct json_work *)ctx)->conn = NULL; }

static void on_work(uv_work_t *work) {
    struct json_work *job = work->data;
    uint64_t begin_ns = rp_tick_ns();
    job->root =
        rp_json_body_parse(job->body.data, job->body.len, &job->server->config.limits, &job->error);
    rp_server_worker_span(job->server, RP_TRACE_JOB_JSON, begin_ns, job->body.len);
}

static void on_done(uv_work_t *work, int status) {
    struct json_work *job = work->data;
    struct rp_server *server = job->server;
    struct rp_conn *conn = job->conn;
    (void)status; /* never cancelled */
    server->work_count--;
    server->bodies_bytes -= job->body.len;
    rp_buffer_deinit(&job->body);
    if (conn) {
        conn->gone = NULL;
        finish(conn, job->root, &job->error, job->next);
    } else {
        json_decref(job->root);
    }
    rp_free(job);
    rp_server_check_drained(server);
}

static bool start_work(struct rp_conn *conn, void (*next)(struct rp_conn *conn, json_t *root)) {
    struct json_work *job = rp_calloc(1, sizeof *job);
    if (!job)
        return false;
    job->work.data = job;
    job->server = conn->server;
    job->conn = conn;
    job->next = next;
    job->body = conn->body;
    if (uv_queue_work(&conn->server->loop, &job->work, on_work, on_done) != 0) {
        rp_free(job);
        return false;
    }
    /* Owned by the job from here; still counted in bodies_bytes until it is parsed. */
    rp_buffer_init(&conn->body, 0);
    conn->server->work_count++;
    conn->gone = on_gone;
    conn->gone_ctx = job;
    return true;
}

void rp_json_work_start(struct rp_conn *conn, void (*next)(struct rp_conn *conn, json_t *root)) {
    struct rp_http_error error = {.status = 0};
    if (conn->body.len > RP_JSON_INLINE_BYTES && start_work(conn, next))
        return;
    json_t *root =
        rp_json_body_parse(conn->body.data, conn->body.len, &conn->server->config.limits, &error);
    finish(conn, root, &error, next);
}
