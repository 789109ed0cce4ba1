/* api_debug_diagnose.c - GET /debug/diagnose: the current bottleneck, the evidence, and
 * suggestions. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "engine/observe/engine_diagnose.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_query.h"
#include "server/http/router.h"
#include "server/observe/profile_work.h"
#include "server/observe/report_work.h"

struct job {
    const struct rp_engine *engine;
    double seconds;
    enum rp_profile_format format;
};

/* Runs on a worker. */
static void build(void *ctx, struct rp_buffer *out) {
    const struct job *job = ctx;
    struct rp_diagnose_input input;
    struct rp_diagnosis diagnosis;
    struct rp_json json;
    if (rp_engine_diagnose_input(job->engine, job->seconds, &input) != RP_OK) {
        out->failed = true;
        return;
    }
    rp_diagnose(&input, &diagnosis);
    if (job->format == RP_PROFILE_TEXT) {
        rp_diagnosis_write_text(&input, &diagnosis, out);
        return;
    }
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    rp_diagnosis_write_json(&input, &diagnosis, &json);
    rp_json_object_end(&json);
    rp_buffer_puts(out, "\n");
}

void rp_api_debug_diagnose(struct rp_conn *conn) {
    uint32_t format = 0;
    double seconds = 30;
    const struct rp_query_param params[] = {
        {"format", RP_QUERY_CHOICE, "json|text", 0, 0, &format, NULL},
        {"seconds", RP_QUERY_DOUBLE, NULL, 0.1, 86400, &seconds, NULL}};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    const struct rp_engine *engine = conn->server->serving.engine;
    struct job *job = rp_engine_profile(engine) ? rp_calloc(1, sizeof *job) : NULL;
    if (!job) {
        rp_conn_fail(conn, 503, "overloaded", "out of memory, or an engine without profiles");
        return;
    }
    *job = (struct job){engine, seconds, format ? RP_PROFILE_TEXT : RP_PROFILE_JSON};
    rp_report_start(conn, build, rp_free, job, rp_profile_content_type(job->format));
}
