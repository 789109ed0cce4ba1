/* api_debug_stacks.c - GET /debug/profile/stacks: call stacks of all host threads, sampled for some
 * seconds, as folded text or as a flame graph. */
#include "base/memory.h"
#include "metrics/stack_fold.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_query.h"
#include "server/http/router.h"
#include "server/observe/report_work.h"

#include <stdio.h>

/* A worker of the thread pool sleeps for this long. */
#define SECONDS_MAX 30
#define HZ_MAX      250

struct job {
    double seconds;
    uint32_t hz;
    bool svg;
    struct rp_stacks stacks;
};

static int write_flame(const struct job *job, struct rp_buffer *folded, struct rp_buffer *out) {
    const struct rp_stacks *stacks = &job->stacks;
    char title[160];
    snprintf(title, sizeof title,
             "%u threads, %.3g s, %u samples (%u a second of processor time), %u dropped",
             stacks->thread_count, stacks->seconds, stacks->sample_count, job->hz, stacks->dropped);
    rp_buffer_append(folded, "", 1);
    return folded->failed ? RP_STATUS_NO_MEMORY : rp_stacks_flame(folded->data, title, out);
}

/* Runs on a worker. */
static void build(void *ctx, struct rp_buffer *out, struct rp_http_error *error) {
    struct job *job = ctx;
    struct rp_error err = {0};
    struct rp_symbols symbols;
    struct rp_buffer folded = {.data = NULL};
    int status = rp_stacks_sample(&job->stacks, job->seconds, job->hz, &err);
    if (status != RP_OK) {
        rp_http_error_set(error, status == RP_STATUS_IN_USE ? 409 : 501, NULL,
                          status == RP_STATUS_IN_USE ? "stacks_in_use" : "stacks_not_available",
                          "%s", err.text);
        return;
    }
    rp_symbols_open(&symbols);
    status = rp_stacks_fold(&job->stacks, &symbols, job->svg ? &folded : out);
    if (status == RP_OK && job->svg)
        status = write_flame(job, &folded, out);
    if (status != RP_OK)
        rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    rp_buffer_deinit(&folded);
    rp_symbols_close(&symbols);
}

void rp_api_debug_stacks(struct rp_conn *conn) {
    double seconds = 2;
    uint64_t hz = 99;
    uint32_t format = 0;
    const struct rp_query_param params[] = {
        {"seconds", RP_QUERY_DOUBLE, NULL, 0.05, SECONDS_MAX, &seconds, NULL},
        {"hz", RP_QUERY_UINT, NULL, 1, HZ_MAX, &hz, NULL},
        {"format", RP_QUERY_CHOICE, "text|svg", 0, 0, &format, NULL}};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    struct job *job = rp_calloc(1, sizeof *job);
    if (!job) {
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
        return;
    }
    job->seconds = seconds;
    job->hz = (uint32_t)hz;
    job->svg = format == 1;
    rp_report_try(conn, build, rp_free, job,
                  job->svg ? "image/svg+xml" : "text/plain; charset=utf-8");
}
