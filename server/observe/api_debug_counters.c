/* api_debug_counters.c - GET /debug/profile/counters: instructions, cycles and cache misses per
 * thread, and device hardware counters, sampled for some seconds; 403 with the reason where the
 * machine does not permit it. */
#include "base/clock.h"
#include "base/memory.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_query.h"
#include "server/http/router.h"
#include "server/observe/counters_report.h"
#include "server/observe/profile_work.h"
#include "server/observe/report_work.h"

/* A worker of the thread pool sleeps for this long. */
#define SECONDS_MAX RP_DEVICE_COUNTERS_SECONDS_MAX

enum source { HOST, DEVICE, ALL };

struct job {
    struct rp_engine *engine;
    double seconds;
    uint32_t interval_us, format;
    struct rp_counters_report report;
};

static int http_status(int status) {
    switch (status) {
    case RP_STATUS_IN_USE:
        return 409;
    case RP_STATUS_NO_MEMORY:
        return 503;
    case RP_STATUS_DEVICE:
        return 500;
    default:
        return 403;
    }
}

/* No requested source is available. */
static void refuse(int status, const struct rp_counters_report *report,
                   struct rp_http_error *error) {
    static const struct {
        int status;
        const char *code;
    } codes[] = {{409, "counters_in_use"}, {503, "overloaded"}, {500, "counters_failed"}};
    const char *code = "counters_not_available";
    const struct rp_error *why = &report->device_why;
    for (size_t i = 0; i < RP_ARRAY_COUNT(codes); i++)
        if (codes[i].status == http_status(status))
            code = codes[i].code;
    rp_http_error_set(error, http_status(status), NULL, code, "%s%s%s%s%s%s",
                      report->asked_host ? "host: " : "", report->host_why.text,
                      report->asked_host ? "; device: " : "", why->text, why->hint[0] ? ": " : "",
                      why->hint);
}

static void count_device(struct job *job, struct rp_http_error *error) {
    struct rp_counters_report *report = &job->report;
    struct rp_device_counter_options options = {job->seconds, job->interval_us};
    int status = rp_engine_count_device(job->engine, &options, &report->device, &report->slowdown,
                                        &report->device_why);
    report->has_device = status == RP_OK;
    if (!report->has_device && !report->has_host)
        refuse(status, report, error);
}

/* Runs on a worker. */
static void build(void *ctx, struct rp_buffer *out, struct rp_http_error *error) {
    struct job *job = ctx;
    struct rp_counters_report *report = &job->report;
    if (report->asked_device) {
        struct rp_perf_run run;
        if (report->has_host)
            rp_perf_begin(&run, &report->host);
        count_device(job, error);
        if (report->has_host)
            rp_perf_end(&run, &report->host);
        if (report->has_host && !report->has_device) /* the device was refused before sampling */
            rp_perf_measure(job->seconds, &report->host);
    } else {
        rp_perf_measure(job->seconds, &report->host);
    }
    if (error->status)
        return;
    if (job->format == RP_PROFILE_TEXT)
        rp_counters_write_text(report, out);
    else
        rp_counters_write_json(report, out);
}

void rp_api_debug_counters(struct rp_conn *conn) {
    double seconds = 1;
    uint32_t source = ALL, format = 0;
    uint64_t interval_us = 0;
    const struct rp_query_param params[] = {
        {"seconds", RP_QUERY_DOUBLE, NULL, 0.01, SECONDS_MAX, &seconds, NULL},
        {"source", RP_QUERY_CHOICE, "host|device|all", 0, 0, &source, NULL},
        {"interval_us", RP_QUERY_UINT, NULL, RP_DEVICE_COUNTERS_INTERVAL_US_MIN,
         RP_DEVICE_COUNTERS_INTERVAL_US_MAX, &interval_us, NULL},
        {"format", RP_QUERY_CHOICE, "json|text", 0, 0, &format, NULL}};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    struct job *job = rp_calloc(1, sizeof *job);
    if (!job) {
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
        return;
    }
    struct rp_counters_report *report = &job->report;
    job->engine = conn->server->serving.engine;
    job->seconds = seconds;
    job->interval_us = (uint32_t)interval_us;
    job->format = format ? RP_PROFILE_TEXT : RP_PROFILE_JSON;
    report->asked_host = source != DEVICE;
    report->asked_device = source != HOST;
    if (report->asked_host)
        report->has_host = rp_perf_check(&report->host_why) == RP_OK;
    if (source == HOST && !report->has_host) {
        rp_conn_fail(conn, 403, "counters_not_available", "%s", report->host_why.text);
        rp_free(job);
        return;
    }
    rp_report_try(conn, build, rp_free, job, rp_profile_content_type(job->format));
}
