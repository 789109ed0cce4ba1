/* api_debug_requests.c - GET /debug/requests and /debug/requests/ID: records of open and ended
 * requests. */
#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "engine/observe/step_record.h"
#include "metrics/tick.h"
#include "server/api/completion_internal.h"
#include "server/http/api_reply.h"
#include "server/http/http_query.h"
#include "server/http/router.h"
#include "server/observe/report_work.h"
#include "server/observe/request_json.h"

#include <string.h>

/* INLINE_*: up to so many records are written by the loop thread; more take milliseconds and are
 * written by a worker. */
enum { LIST_MAX = 500, SAME_ID_MAX = 256, INLINE_LIST = 20, INLINE_SAME_ID = 2 };

static bool describe_graph(const void *ctx, uint32_t index, struct rp_engine_graph *out) {
    const struct rp_engine *engine = ctx;
    if (index >= rp_engine_graph_count(engine))
        return false;
    rp_engine_graph(engine, index, out);
    return true;
}

static void make_context(const struct rp_server *server, struct rp_record_context *out) {
    *out = (struct rp_record_context){.model = server->serving.model_name,
                                      .now_ns = rp_tick_ns(),
                                      .graph = describe_graph,
                                      .graph_ctx = server->serving.engine};
}

/* Appends records of open requests, as far as they fit. */
static uint32_t add_open(const struct rp_server *server, const struct rp_request_record **records,
                         uint32_t count) {
    for (const struct rp_completion *c = server->completions; c; c = c->next)
        for (uint32_t i = 0; !c->logged && i < c->choice_count && count < RP_LOG_RECORDS; i++)
            records[count++] = &c->choices[i].record;
    return count;
}

/* --- An answer ------------------------------------------------------------------------------- */

enum form { FORM_JSON, FORM_OTLP, FORM_PERFETTO, FORM_LIST };

/* Input of a report: copies, since a worker may write it. */
struct report {
    enum form form;
    struct rp_record_context context;
    const struct rp_engine *engine;
    uint32_t open, kept, count;
    uint64_t finished, refused;
    const struct rp_request_record **list; /* (count) of records */
    struct rp_request_record records[];    /* (count) */
};

static void write_summary(struct rp_json *json, const struct report *report) {
    const struct rp_engine_metrics *metrics = rp_engine_metrics(report->engine);
    rp_json_double(json, "now_unix_seconds", (double)rp_unix_ns() / 1e9);
    rp_json_uint(json, "open_completions", report->open);
    rp_json_object_begin(json, "log");
    rp_json_uint(json, "finished", report->finished);
    rp_json_uint(json, "refused", report->refused);
    rp_json_uint(json, "kept", report->kept);
    rp_json_uint(json, "capacity", RP_LOG_RECORDS);
    rp_json_uint(json, "bytes", rp_request_log_bytes());
    rp_json_object_end(json);
    rp_json_object_begin(json, "device_nanoseconds");
    /* Uses their sum, not device_busy_ns, which counts a step slightly before its time is
     * attributed. */
    uint64_t attributed = rp_counter_read(&metrics->attributed_ns);
    uint64_t padding = rp_counter_read(&metrics->padding_ns);
    uint64_t unused = rp_counter_read(&metrics->unused_ns);
    rp_json_uint(json, "busy", attributed + padding + unused);
    rp_json_uint(json, "attributed", attributed);
    rp_json_uint(json, "padding", padding);
    rp_json_uint(json, "unused_rows", unused);
    rp_json_object_end(json);
}

/* Includes the steps since the oldest record began; omits them when memory is out. */
static void write_perfetto(struct rp_json *json, struct report *report) {
    uint64_t since_ns = UINT64_MAX;
    struct rp_step_record *steps = rp_alloc(RP_STEP_RECORDS * sizeof *steps);
    for (uint32_t i = 0; i < report->count; i++)
        since_ns = RP_MIN(since_ns, report->records[i].first_byte_ns);
    report->context.steps = steps;
    if (steps)
        report->context.step_count =
            rp_engine_copy_steps(report->engine, since_ns, steps, RP_STEP_RECORDS);
    rp_request_perfetto(json, report->list, report->count, &report->context);
    rp_free(steps);
}

static void build(void *ctx, struct rp_buffer *out) {
    struct report *report = ctx;
    struct rp_json json;
    rp_json_init(&json, out);
    if (report->form == FORM_OTLP) {
        rp_request_otlp(&json, report->list, report->count, &report->context);
    } else if (report->form == FORM_PERFETTO) {
        write_perfetto(&json, report);
    } else {
        rp_json_object_begin(&json, NULL);
        if (report->form == FORM_LIST)
            write_summary(&json, report);
        rp_json_array_begin(&json, "requests");
        for (uint32_t i = 0; i < report->count; i++)
            rp_request_json(&json, &report->records[i], &report->context,
                            report->form != FORM_LIST);
        rp_json_array_end(&json);
        rp_json_object_end(&json);
    }
    rp_buffer_puts(out, "\n");
}

static void release(void *ctx) {
    struct report *report = ctx;
    rp_free(report->list);
    rp_free(report);
}

static void answer(struct rp_conn *conn, enum form form,
                   const struct rp_request_record *const *records, uint32_t count, uint32_t kept,
                   uint32_t inline_count) {
    const struct rp_server *server = conn->server;
    struct rp_buffer body = {.data = NULL};
    struct report *report = rp_alloc(sizeof *report + count * sizeof report->records[0]);
    const struct rp_request_record **list = rp_calloc(count, sizeof *list);
    if (!report || !list) {
        rp_free(report);
        rp_free(list);
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
        return;
    }
    *report = (struct report){.form = form,
                              .engine = server->serving.engine,
                              .open = server->completion_count,
                              .kept = kept,
                              .count = count,
                              .finished = server->log.finished,
                              .refused = server->log.refused,
                              .list = list};
    make_context(server, &report->context);
    for (uint32_t i = 0; i < count; i++) {
        report->records[i] = *records[i];
        list[i] = &report->records[i];
    }
    if (count > inline_count) {
        rp_report_start(conn, build, release, report, "application/json");
        return;
    }
    build(report, &body);
    release(report);
    rp_api_reply_text(conn, 200, "application/json", &body);
}

/* --- The list -------------------------------------------------------------------------------- */

struct list_query {
    uint64_t slowest, recent, key;
    bool has_slowest, has_recent, has_key, has_sort;
    uint32_t sort, finish;
    double min_ms;
};

static const char *const finishes[] = {"any",           "stop",    "length",        "cancelled",
                                       "numeric",       "error",   "mask_deadline", "timeout",
                                       "queue_timeout", "refused", "open"};
enum { FINISH_ANY, FINISH_OPEN = RP_ARRAY_COUNT(finishes) - 1 };

static bool matches(const struct rp_request_record *record, const struct list_query *query) {
    struct rp_record_times times;
    rp_record_times(record, &times);
    if (query->has_key && record->key_index != (int32_t)query->key)
        return false;
    if ((double)times.total * 1e-6 < query->min_ms)
        return false;
    return query->finish == FINISH_ANY || query->finish == FINISH_OPEN ||
           strcmp(rp_record_finish(record), finishes[query->finish]) == 0;
}

static bool read_list_query(struct rp_conn *conn, struct list_query *query) {
    const struct rp_query_param params[] = {
        {"slowest", RP_QUERY_UINT, NULL, 1, LIST_MAX, &query->slowest, &query->has_slowest},
        {"recent", RP_QUERY_UINT, NULL, 1, LIST_MAX, &query->recent, &query->has_recent},
        {"sort", RP_QUERY_CHOICE, "e2e|ttft|itl|queue|end", 0, 0, &query->sort, &query->has_sort},
        {"finish", RP_QUERY_CHOICE,
         "any|stop|length|cancelled|numeric|error|mask_deadline|timeout|queue_timeout|refused|open",
         0, 0, &query->finish, NULL},
        {"min_ms", RP_QUERY_DOUBLE, NULL, 0, 1e12, &query->min_ms, NULL},
        {"key", RP_QUERY_UINT, NULL, 0, 1e6, &query->key, &query->has_key}};
    *query = (struct list_query){.slowest = 20, .sort = RP_LOG_BY_E2E};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return false;
    if (query->has_recent && (query->has_slowest || query->has_sort)) {
        rp_conn_fail(conn, 400, "invalid_value",
                     "\"recent\" is ordered by the end of requests: use \"slowest\" and \"sort\" "
                     "without it");
        return false;
    }
    if (query->has_recent) {
        query->slowest = query->recent;
        query->sort = RP_LOG_BY_END;
    }
    return true;
}

void rp_api_debug_requests(struct rp_conn *conn) {
    const struct rp_server *server = conn->server;
    const struct rp_request_record **records = server->log.scratch;
    struct list_query query;
    if (!read_list_query(conn, &query))
        return;
    uint32_t kept = rp_request_log_collect(&server->log, records), count = 0;
    uint32_t candidates = query.finish == FINISH_OPEN ? add_open(server, records, 0) : kept;
    for (uint32_t i = 0; i < candidates; i++)
        if (matches(records[i], &query))
            records[count++] = records[i];
    count = rp_request_log_select(records, count, (enum rp_log_sort)query.sort,
                                  (uint32_t)query.slowest);
    answer(conn, FORM_LIST, records, count, kept, INLINE_LIST);
}

/* --- One request ----------------------------------------------------------------------------- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The rest of the path after /debug/requests/. False: not a valid id. */
static bool read_id(const struct rp_conn *conn, char out[RP_REQUEST_ID_MAX + 1]) {
    static const char prefix[] = "/debug/requests/";
    const char *at = strstr(rp_http_head_get_target(&conn->head), prefix) + sizeof prefix - 1;
    size_t len = strcspn(at, "?#"), used = 0;
    for (size_t i = 0; i < len; i++) {
        int c = (unsigned char)at[i];
        if (c == '%') {
            int high = i + 2 < len ? hex_digit(at[i + 1]) : -1;
            int low = i + 2 < len ? hex_digit(at[i + 2]) : -1;
            if (high < 0 || low < 0)
                return false;
            c = high * 16 + low;
            i += 2;
        }
        if (c == 0 || used == RP_REQUEST_ID_MAX)
            return false;
        out[used++] = (char)c;
    }
    out[used] = '\0';
    return used > 0;
}

static bool has_id(const struct rp_request_record *record, const char *id) {
    char trace[RP_TRACE_ID_HEX + 1];
    rp_trace_id_text(&record->trace, trace);
    return strcmp(record->request_id, id) == 0 || strcmp(trace, id) == 0 ||
           strcmp(record->completion_id, id) == 0;
}

void rp_api_debug_request(struct rp_conn *conn) {
    const struct rp_server *server = conn->server;
    const struct rp_request_record **records = server->log.scratch;
    uint32_t form = FORM_JSON, count = 0;
    const struct rp_query_param params[] = {
        {"format", RP_QUERY_CHOICE, "json|otlp|perfetto", 0, 0, &form, NULL}};
    char id[RP_REQUEST_ID_MAX + 1];
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    uint32_t kept = rp_request_log_collect(&server->log, records);
    kept = add_open(server, records, kept);
    bool is_id = read_id(conn, id);
    for (uint32_t i = 0; is_id && i < kept; i++)
        if (has_id(records[i], id))
            records[count++] = records[i];
    if (count == 0) {
        rp_conn_fail(conn, 404, "request_not_found",
                     "no open or logged request has this request id, trace id or completion "
                     "id");
        return;
    }
    count = rp_request_log_select(records, count, RP_LOG_BY_END, SAME_ID_MAX);
    answer(conn, (enum form)form, records, count, kept, INLINE_SAME_ID);
}
