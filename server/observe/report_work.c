#include "server/observe/report_work.h"

#include "base/memory.h"
#include "server/http/api_reply.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"

struct report {
    uv_work_t work;
    struct rp_server *server;
    struct rp_conn *conn;                            /* NULL: the client has disconnected */
    void (*build)(void *ctx, struct rp_buffer *out); /* exactly one of build and try_build is set */
    void (*try_build)(void *ctx, struct rp_buffer *out, struct rp_http_error *error);
    void (*release)(void *ctx);
    void *ctx;
    const char *content_type;
    struct rp_buffer body;
    struct rp_http_error error;
};

static void on_gone(void *ctx) { ((struct report *)ctx)->conn = NULL; }

static void on_work(uv_work_t *work) {
    struct report *report = work->data;
    if (report->build)
        report->build(report->ctx, &report->body);
    else
        report->try_build(report->ctx, &report->body, &report->error);
}

static void on_done(uv_work_t *work, int status) {
    struct report *report = work->data;
    struct rp_server *server = report->server;
    struct rp_conn *conn = report->conn;
    (void)status; /* never cancelled */
    server->work_count--;
    server->report_count--;
    if (conn) {
        conn->gone = NULL;
        if (report->error.status)
            rp_conn_reply_error(conn, &report->error);
        else
            rp_api_reply_text(conn, 200, report->content_type, &report->body);
    }
    rp_buffer_deinit(&report->body);
    report->release(report->ctx);
    rp_free(report);
    rp_server_check_drained(server);
}

static void start(struct rp_conn *conn, struct report start) {
    struct rp_server *server = conn->server;
    struct report *report =
        server->report_count < RP_REPORTS_MAX ? rp_calloc(1, sizeof *report) : NULL;
    if (!report) {
        bool busy = server->report_count >= RP_REPORTS_MAX;
        start.release(start.ctx);
        rp_conn_fail(conn, busy ? 429 : 503, "overloaded", "%s",
                     busy ? "other reports are being built: try again when they are done"
                          : "out of memory");
        return;
    }
    *report = start;
    report->work.data = report;
    report->server = server;
    report->conn = conn;
    server->work_count++;
    server->report_count++;
    conn->gone = on_gone;
    conn->gone_ctx = report;
    if (uv_queue_work(&server->loop, &report->work, on_work, on_done) != 0) {
        on_work(&report->work);
        on_done(&report->work, 0);
    }
}

void rp_report_start(struct rp_conn *conn, void (*build)(void *ctx, struct rp_buffer *out),
                     void (*release)(void *ctx), void *ctx, const char *content_type) {
    start(conn, (struct report){
                    .build = build, .release = release, .ctx = ctx, .content_type = content_type});
}

void rp_report_try(struct rp_conn *conn,
                   void (*build)(void *ctx, struct rp_buffer *out, struct rp_http_error *error),
                   void (*release)(void *ctx), void *ctx, const char *content_type) {
    start(conn,
          (struct report){
              .try_build = build, .release = release, .ctx = ctx, .content_type = content_type});
}
