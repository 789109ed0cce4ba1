/* api_debug_trace.c - GET /debug/trace: the past seconds as a trace file.
 *
 *   loop:    check, start ---> write piece 1, start ---> (all gone out) write piece 2, start ...
 *   worker:           copy, build, piece 1     piece 2
 *
 * One trace at a time; one piece is built while the client reads the previous one: a slow client
 * delays the worker instead of growing memory. */
#include "base/memory.h"
#include "metrics/trace_take.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_query.h"
#include "server/http/router.h"
#include "server/observe/trace_words.h"
#include "server/server_trace.h"

#include <stdio.h>

/* Before gzip; a worker builds one in a few milliseconds. */
#define PIECE_BYTES   262144u
#define SECONDS_MAX   3600.0
#define MEGABYTES_MAX 4096.0

struct rp_trace_work {
    uv_work_t work;
    struct rp_server *server;
    struct rp_conn *conn; /* NULL: the client has disconnected */
    struct rp_trace_order order;
    struct rp_trace_take take;
    struct rp_buffer piece;
    bool begun, working; /* the answer has begun; a worker is running the job */
    int status;
};

static void finish(struct rp_trace_work *job) {
    struct rp_server *server = job->server;
    server->trace_work = NULL;
    rp_trace_take_end(&job->take);
    rp_buffer_deinit(&job->piece);
    rp_free(job);
    rp_server_check_drained(server);
}

static void on_gone(void *ctx) {
    struct rp_trace_work *job = ctx;
    job->conn = NULL;
    if (!job->working)
        finish(job);
}

static void on_work(uv_work_t *work) {
    struct rp_trace_work *job = work->data;
    uint64_t began = rp_tick_ns();
    if (!job->begun)
        job->status = rp_trace_take_begin(&job->take, &job->order, job->server->recorder);
    if (job->status == RP_OK)
        job->status = rp_trace_take_next(&job->take, &job->piece, PIECE_BYTES);
    rp_server_worker_span(job->server, RP_TRACE_JOB_OTHER, began, job->piece.len);
}

static void work_on(void *ctx);

/* False: nothing more will be written. */
static bool begin_answer(struct rp_trace_work *job) {
    const char *suffix = rp_trace_suffix(job->order.format, job->order.gzip);
    char extra[160];
    if (job->begun)
        return true;
    job->begun = true;
    snprintf(extra, sizeof extra,
             "Content-Disposition: attachment; filename=\"reprise.%s\"\r\nCache-Control: "
             "no-store\r\n",
             suffix);
    return rp_conn_body_begin(job->conn, 200,
                              job->order.gzip                      ? "application/gzip"
                              : job->order.format == RP_TRACE_JSON ? "application/json"
                                                                   : "application/octet-stream",
                              extra);
}

/* Writes the piece and starts the next one. Any call on the connection may close it: on_gone has
 * then run, and job->conn is NULL. */
static void deliver(struct rp_trace_work *job) {
    struct rp_conn *conn = job->conn;
    if (job->status != RP_OK && !job->begun) {
        conn->gone = NULL;
        rp_conn_fail(conn, 503, "overloaded", "no memory for the trace");
        finish(job);
        return;
    }
    if (job->status != RP_OK) {
        rp_conn_stream_abort(conn);
        finish(job);
        return;
    }
    if (!begin_answer(job)) {
        if (job->conn) /* HEAD: only the header was requested */
            finish(job);
        return;
    }
    job->working = true; /* keeps on_gone from freeing the job */
    bool open = job->piece.len == 0 || rp_conn_stream_write(conn, job->piece.data, job->piece.len);
    job->working = false;
    rp_buffer_clear(&job->piece);
    if (!open || !job->conn) {
        finish(job);
    } else if (job->take.done) {
        rp_conn_stream_end(conn);
        finish(job);
    } else if (rp_conn_stream_is_drained(conn)) {
        work_on(job);
    } else {
        conn->drained = work_on;
        conn->drained_ctx = job;
    }
}

static void on_done(uv_work_t *work, int status) {
    struct rp_trace_work *job = work->data;
    (void)status; /* never cancelled */
    job->working = false;
    job->server->work_count--;
    if (job->conn)
        deliver(job);
    else
        finish(job);
}

static void work_on(void *ctx) {
    struct rp_trace_work *job = ctx;
    job->working = true;
    job->server->work_count++;
    if (uv_queue_work(&job->server->loop, &job->work, on_work, on_done) == 0)
        return;
    job->status = RP_STATUS_NO_MEMORY;
    on_done(&job->work, 0);
}

void rp_api_debug_trace(struct rp_conn *conn) {
    struct rp_server *server = conn->server;
    double seconds = 5.0;
    uint64_t megabytes = 256;
    uint32_t format = RP_TRACE_JSON, gzip = 0;
    const struct rp_query_param params[] = {
        {"seconds", RP_QUERY_DOUBLE, NULL, 0.001, SECONDS_MAX, &seconds, NULL},
        {"format", RP_QUERY_CHOICE, "json|perfetto", 0, 0, &format, NULL},
        {"gzip", RP_QUERY_CHOICE, "0|1", 0, 0, &gzip, NULL},
        {"max_mb", RP_QUERY_UINT, NULL, 1, MEGABYTES_MAX, &megabytes, NULL}};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    if (server->trace_work) {
        rp_conn_fail(conn, 429, "trace_in_progress",
                     "another trace is being written; try again when it is done");
        return;
    }
    if (server->config.recorder.seconds == 0 || server->config.recorder.mib == 0) {
        rp_conn_fail(conn, 409, "not_recording",
                     "nothing is recorded: --trace-seconds or --trace-mib is 0");
        return;
    }
    struct rp_trace_work *job = rp_calloc(1, sizeof *job);
    if (!job) {
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
        return;
    }
    job->work.data = job;
    job->server = server;
    job->conn = conn;
    job->order = (struct rp_trace_order){.window_ns = (uint64_t)(seconds * 1e9),
                                         .max_bytes = megabytes << 20,
                                         .format = (enum rp_trace_format)format,
                                         .gzip = gzip == 1,
                                         .version = RP_VERSION,
                                         .model = server->serving.model_name,
                                         .names = rp_server_trace_names(server->serving.engine)};
    server->trace_work = job;
    conn->gone = on_gone;
    conn->gone_ctx = job;
    work_on(job);
}
