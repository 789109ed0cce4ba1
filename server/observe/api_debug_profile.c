/* api_debug_profile.c - GET /debug/profile: time of live steps by operator; POST starts a session
 * (profile_session.c). */
#include "base/memory.h"
#include "engine/engine.h"
#include "metrics/tick.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_query.h"
#include "server/http/router.h"
#include "server/observe/profile_session.h"
#include "server/observe/profile_work.h"
#include "server/observe/report_work.h"

#define SECONDS_MAX 86400.0

static bool read_query(struct rp_conn *conn, struct rp_profile_work *work) {
    uint32_t group = RP_PROFILE_BY_OP, sort = RP_PROFILE_SORT_SELF, format = RP_PROFILE_TEXT,
             phase = RP_PROFILE_ANY;
    uint64_t row_limit = 100;
    double seconds = 0;
    bool since = false;
    const struct rp_query_param params[] = {
        {"sort_by", RP_QUERY_CHOICE, rp_profile_sort_choices, 0, 0, &sort, NULL},
        {"group_by", RP_QUERY_CHOICE, rp_profile_group_choices, 0, 0, &group, NULL},
        {"format", RP_QUERY_CHOICE, rp_profile_format_choices, 0, 0, &format, NULL},
        {"phase", RP_QUERY_CHOICE, rp_profile_phase_choices, 0, 0, &phase, NULL},
        {"row_limit", RP_QUERY_UINT, NULL, 0, 1e6, &row_limit, NULL},
        {"seconds", RP_QUERY_DOUBLE, NULL, 0.001, SECONDS_MAX, &seconds, &since},
    };
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return false;
    work->view.format = (enum rp_profile_format)format;
    work->view.row_limit = (uint32_t)row_limit;
    work->query.group = (enum rp_profile_group)group;
    work->query.sort = (enum rp_profile_sort)sort;
    work->query.phase = (enum rp_profile_phase)phase;
    uint64_t now = rp_tick_ns(), back = (uint64_t)(seconds * 1e9);
    work->query.since_ns = since ? now - RP_MIN(now, back) : 0;
    return true;
}

static void build(void *ctx, struct rp_buffer *out) {
    struct rp_profile_work *work = ctx;
    rp_profile_work_table(work);
    if (work->view.format == RP_PROFILE_JSON)
        rp_buffer_puts(&work->out, "\n");
    *out = work->out;
}

static void start_table(struct rp_conn *conn) {
    struct rp_profile_work wanted = {.engine = conn->server->serving.engine};
    if (!read_query(conn, &wanted))
        return;
    struct rp_profile_work *work = rp_calloc(1, sizeof *work);
    if (!work) {
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
        return;
    }
    *work = wanted;
    rp_report_start(conn, build, rp_free, work, rp_profile_content_type(work->view.format));
}

void rp_api_debug_profile(struct rp_conn *conn) {
    if (!rp_engine_profile(conn->server->serving.engine))
        rp_conn_fail(conn, 501, "not_supported", "this engine has no profiles");
    else if (conn->parser.method == HTTP_POST)
        rp_profile_session_start(conn);
    else
        start_table(conn);
}
