#include "server/observe/profile_session.h"

#include "base/json_writer.h"
#include "base/memory.h"
#include "engine/observe/device_profile.h"
#include "metrics/tick.h"
#include "server/http/api_reply.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/json_work.h"
#include "server/observe/profile_work.h"

#include <string.h>

#define STEPS_MAX      100000
#define AFTER_NS       1000000000u
#define AFTER_STEPS    64u
#define TIMEOUT_S      60.0
#define TIMEOUT_MAX_S  300.0
#define DETAIL_CHOICES "auto|stamps|cupti"

enum detail { AUTO, STAMPS, CUPTI };
/* OPENING, BEGINNING and ENDING occur only when the driver traces kernels; CLOSING: the client has
 * gone. */
enum phase { OPENING, BEGINNING, RUNNING, ENDING, AFTER, BUILDING, CLOSING };

struct rp_profile_session {
    struct rp_profile_work work;
    struct rp_conn *conn; /* NULL: the client has disconnected */
    struct rp_profile_schedule schedule;
    enum phase phase;
    uint32_t number, detail;
    bool busy;           /* a worker is using it */
    bool traced;         /* the device's profiler is open */
    bool has_kernels;    /* the profiler ended without an error */
    struct rp_error why; /* otherwise the error */
    double timeout_s;
    uint64_t started_ns, done_ns;
    uint64_t steps_done; /* the engine's count when the last active step was read */
};

/* ---- the body ------------------------------------------------------------------------------- */

struct field {
    const char *name;
    enum { FIELD_UINT, FIELD_REAL, FIELD_CHOICE } type;
    const char *choices;
    double min, max;
    void *value; /* uint32_t, or double */
};

static bool read_choice(const struct field *field, const char *text, struct rp_http_error *error) {
    uint32_t index = 0;
    for (const char *at = field->choices; text && *at; index++) {
        size_t len = strcspn(at, "|");
        if (strlen(text) == len && memcmp(text, at, len) == 0) {
            *(uint32_t *)field->value = index;
            return true;
        }
        at += len + (at[len] == '|');
    }
    return rp_http_error_set(error, 400, field->name, "invalid_value", "%s must be one of %s",
                             field->name, field->choices);
}

static bool read_field(const struct field *field, const json_t *value,
                       struct rp_http_error *error) {
    if (field->type == FIELD_CHOICE)
        return read_choice(field, json_string_value(value), error);
    bool right = field->type == FIELD_UINT ? json_is_integer(value) : json_is_number(value);
    double number = json_number_value(value);
    if (!right || !(number >= field->min && number <= field->max))
        return rp_http_error_set(error, 400, field->name, "out_of_range",
                                 "%s must be %s from %.15g to %.15g", field->name,
                                 field->type == FIELD_UINT ? "a whole number" : "a number",
                                 field->min, field->max);
    if (field->type == FIELD_UINT)
        *(uint32_t *)field->value = (uint32_t)number;
    else
        *(double *)field->value = number;
    return true;
}

static bool read_fields(json_t *root, const struct field *fields, size_t count,
                        struct rp_http_error *error) {
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value) {
        size_t i = 0;
        while (i < count && strcmp(fields[i].name, name) != 0)
            i++;
        if (i == count)
            return rp_http_error_set(error, 400, NULL, "unknown_parameter",
                                     "a session has no field \"%.40s\"", name);
        if (!json_is_null(value) && !read_field(&fields[i], value, error))
            return false;
    }
    return true;
}

static bool read_body(json_t *root, const struct rp_engine *engine, struct rp_profile_session *out,
                      struct rp_http_error *error) {
    const struct rp_step_profile *profile = rp_engine_profile(engine);
    uint32_t phase = RP_PROFILE_ANY, group = RP_PROFILE_BY_OP, sort = RP_PROFILE_SORT_SELF,
             format = RP_PROFILE_JSON;
    struct rp_profile_schedule *schedule = &out->schedule;
    *schedule = (struct rp_profile_schedule){.warmup = 1, .active = 16, .repeat = 1};
    out->timeout_s = TIMEOUT_S;
    out->work.view.row_limit = 100;
    const struct field fields[] = {
        {"wait", FIELD_UINT, NULL, 0, STEPS_MAX, &schedule->wait},
        {"warmup", FIELD_UINT, NULL, 0, STEPS_MAX, &schedule->warmup},
        {"active", FIELD_UINT, NULL, 1, STEPS_MAX, &schedule->active},
        {"repeat", FIELD_UINT, NULL, 1, 100, &schedule->repeat},
        {"phase", FIELD_CHOICE, rp_profile_phase_choices, 0, 0, &phase},
        {"detail", FIELD_CHOICE, DETAIL_CHOICES, 0, 0, &out->detail},
        {"timeout_seconds", FIELD_REAL, NULL, 0.1, TIMEOUT_MAX_S, &out->timeout_s},
        {"group_by", FIELD_CHOICE, rp_profile_group_choices, 0, 0, &group},
        {"sort_by", FIELD_CHOICE, rp_profile_sort_choices, 0, 0, &sort},
        {"format", FIELD_CHOICE, rp_profile_format_choices, 0, 0, &format},
        {"row_limit", FIELD_UINT, NULL, 0, 1e6, &out->work.view.row_limit},
    };
    if (!read_fields(root, fields, RP_ARRAY_COUNT(fields), error))
        return false;
    schedule->phase = (enum rp_profile_phase)phase;
    out->work.query.group = (enum rp_profile_group)group;
    out->work.query.sort = (enum rp_profile_sort)sort;
    out->work.view.format = (enum rp_profile_format)format;
    uint64_t most = rp_step_profile_session_max(profile);
    if ((uint64_t)schedule->active * schedule->repeat > most)
        return rp_http_error_set(error, 400, "active", "out_of_range",
                                 "active x repeat is more than the %llu steps that are recorded",
                                 (unsigned long long)most);
    if (out->detail == CUPTI && !rp_engine_has_profiler(engine))
        return rp_http_error_set(error, 400, "detail", "not_supported",
                                 "this device has no CUPTI: stamps give the same table");
    return true;
}

/* ---- the answer ----------------------------------------------------------------------------- */

static void write_ratio(const char *key, const struct rp_profile_ratio *ratio,
                        struct rp_json *json) {
    rp_json_object_begin(json, key);
    rp_json_uint(json, "steps", ratio->steps);
    if (ratio->steps)
        rp_json_double(json, "ratio", ratio->value);
    else
        rp_json_null(json, "ratio");
    rp_json_double(json, "spread", ratio->spread);
    rp_json_object_end(json);
}

/* The members of a table of kernel times. */
static void write_kernels(struct rp_profile_work *work, const struct rp_profile_records *records,
                          struct rp_json *json) {
    struct rp_profile_table table;
    if (rp_engine_profile_kernels(work->engine, &work->query, records, &table) == RP_OK)
        rp_profile_write_json(&table, work->view.row_limit, json);
    else
        work->out.failed = true;
    rp_profile_table_deinit(&table);
}

static void write_source(const struct rp_profile_session *session,
                         const struct rp_profile_records *records, struct rp_json *json) {
    rp_json_string(json, "detail", session->has_kernels ? "cupti" : "stamps");
    if (session->why.status)
        rp_json_string(json, "no_cupti", session->why.text);
    if (!session->has_kernels)
        return;
    rp_json_object_begin(json, "kernels");
    rp_json_string(json, "source", records->source);
    rp_json_uint(json, "records", records->count);
    rp_json_uint(json, "replays", records->replays);
    rp_json_uint(json, "without_time", records->without_time);
    rp_json_uint(json, "outside_graphs", records->outside);
    rp_json_uint(json, "over_the_cap", records->over);
    rp_json_uint(json, "dropped", records->dropped);
    rp_json_uint(json, "unmatched", records->unmatched);
    rp_json_object_end(json);
}

/* rows and footer are from kernel traces if available; the stamps' table is then added beside
 * them. */
static void write_repeat(struct rp_profile_session *session,
                         const struct rp_profile_records *records, struct rp_json *json) {
    struct rp_profile_work *work = &session->work;
    rp_json_object_begin(json, NULL);
    rp_json_uint(json, "repeat", work->query.repeat);
    if (session->has_kernels) {
        write_kernels(work, records, json);
        rp_json_object_begin(json, "stamps");
    }
    if (!rp_profile_work_members(work->engine, &work->query, work->view.row_limit, json))
        work->out.failed = true;
    if (session->has_kernels)
        rp_json_object_end(json);
    rp_json_object_end(json);
}

static void write_json(struct rp_profile_session *session, const struct rp_profile_records *records,
                       const struct rp_profile_slowdown *slowdown) {
    const struct rp_profile_schedule *schedule = &session->schedule;
    struct rp_profile_work *work = &session->work;
    struct rp_json json;
    size_t len;
    const char *phase = rp_profile_choice(rp_profile_phase_choices, schedule->phase, &len);
    rp_json_init(&json, &work->out);
    rp_json_object_begin(&json, NULL);
    rp_json_object_begin(&json, "session");
    rp_json_uint(&json, "number", session->number);
    rp_json_uint(&json, "wait", schedule->wait);
    rp_json_uint(&json, "warmup", schedule->warmup);
    rp_json_uint(&json, "active", schedule->active);
    rp_json_uint(&json, "repeat", schedule->repeat);
    rp_json_string_len(&json, "phase", phase, len);
    write_source(session, records, &json);
    rp_json_double(&json, "seconds", (double)(session->done_ns - session->started_ns) * 1e-9);
    rp_json_object_end(&json);
    rp_json_array_begin(&json, "repeats");
    for (work->query.repeat = 1; work->query.repeat <= schedule->repeat; work->query.repeat++)
        write_repeat(session, records, &json);
    rp_json_array_end(&json);
    rp_json_object_begin(&json, "slowdown");
    rp_json_uint(&json, "steps_before", slowdown->before_steps);
    write_ratio("during", &slowdown->during, &json);
    write_ratio("after", &slowdown->after, &json);
    rp_json_object_end(&json);
    rp_json_object_end(&json);
    rp_buffer_puts(&work->out, "\n");
}

static void write_text_ratio(const char *when, const struct rp_profile_ratio *ratio,
                             uint64_t before_steps, struct rp_buffer *out) {
    if (ratio->steps)
        rp_buffer_printf(out, "%-11s %+.2f %% a step, +- %.2f (%llu steps, %llu before)\n", when,
                         100.0 * (ratio->value - 1.0), 100.0 * ratio->spread,
                         (unsigned long long)ratio->steps, (unsigned long long)before_steps);
    else
        rp_buffer_printf(out, "%-11s unknown: no steps of equal buckets before the session%s\n",
                         when, *when == 'a' ? ", or none after it" : "");
}

/* One table of work->query as text or CSV. */
static void write_table(struct rp_profile_session *session,
                        const struct rp_profile_records *records) {
    struct rp_profile_work *work = &session->work;
    struct rp_profile_table table;
    if (!session->has_kernels) {
        rp_profile_work_table(work);
        return;
    }
    int status = rp_engine_profile_kernels(work->engine, &work->query, records, &table);
    rp_profile_work_write(work, status, &table);
}

static void write_text(struct rp_profile_session *session, const struct rp_profile_records *records,
                       const struct rp_profile_slowdown *slowdown) {
    const struct rp_profile_schedule *schedule = &session->schedule;
    struct rp_profile_work *work = &session->work;
    for (uint32_t i = 1; i <= schedule->repeat; i++) {
        work->query.repeat = i;
        rp_buffer_printf(&work->out,
                         "%ssession %u, repeat %u of %u: wait %u, warmup %u, active %u; times by "
                         "%s\n",
                         i > 1 ? "\n" : "", session->number, i, schedule->repeat, schedule->wait,
                         schedule->warmup, schedule->active,
                         session->has_kernels ? records->source : "stamps");
        write_table(session, records);
    }
    if (session->why.status)
        rp_buffer_printf(&work->out, "no CUPTI    %s\n", session->why.text);
    write_text_ratio("during", &slowdown->during, slowdown->before_steps, &work->out);
    write_text_ratio("after", &slowdown->after, slowdown->before_steps, &work->out);
}

/* Runs on a worker. */
static void build(struct rp_profile_work *work) {
    struct rp_profile_session *session = work->ctx;
    struct rp_engine *engine = session->work.server->serving.engine;
    struct rp_profile_records records = {.count = 0};
    struct rp_profile_slowdown slowdown;
    rp_engine_profile_slowdown(work->engine, session->started_ns, session->done_ns, &slowdown);
    if (session->has_kernels)
        session->has_kernels = rp_engine_profiler_read(engine, &records, &session->why) == RP_OK;
    if (work->view.format == RP_PROFILE_JSON)
        write_json(session, &records, &slowdown);
    else if (work->view.format == RP_PROFILE_TEXT)
        write_text(session, &records, &slowdown);
    else
        write_table(session, &records); /* one table for all repeats: a CSV file has one header */
    if (session->traced)
        rp_engine_profiler_close(engine);
    session->traced = false;
}

static void free_session(struct rp_profile_session *session) {
    session->work.server->profile_session = NULL;
    rp_buffer_deinit(&session->work.out);
    rp_free(session);
}

/* The client has been answered or is gone. Ends pending driver operations before freeing the
 * session. */
static void end_session(struct rp_server *server, struct rp_profile_session *session) {
    if (session->conn)
        session->conn->gone = NULL;
    session->conn = NULL;
    rp_step_profile_stop(rp_engine_profile(server->serving.engine));
    if (session->busy) /* on_opened, on_closed or on_built continues */
        return;
    if (!session->traced) {
        free_session(session);
        return;
    }
    rp_engine_profiler_end(server->serving.engine);
    session->phase = CLOSING;
}

static void on_built(struct rp_profile_work *work) {
    struct rp_profile_session *session = work->ctx;
    session->busy = false;
    struct rp_conn *conn = session->conn;
    if (conn) {
        conn->gone = NULL;
        session->conn = NULL;
        rp_api_reply_text(conn, 200, rp_profile_content_type(work->view.format), &work->out);
    }
    end_session(work->server, session);
}

/* ---- its life ------------------------------------------------------------------------------- */

static void on_gone(void *ctx) {
    struct rp_profile_session *session = ctx;
    session->conn = NULL;
    end_session(session->work.server, session);
}

static void fail_session(struct rp_server *server, struct rp_profile_session *session,
                         const struct rp_http_error *error) {
    struct rp_conn *conn = session->conn;
    end_session(server, session);
    rp_conn_reply_error(conn, error);
}

static void time_out(struct rp_server *server, struct rp_profile_session *session, uint64_t done) {
    struct rp_http_error error;
    size_t len;
    const char *phase = rp_profile_choice(rp_profile_phase_choices, session->schedule.phase, &len);
    bool any = session->schedule.phase == RP_PROFILE_ANY;
    rp_http_error_set(&error, 408, "timeout_seconds", "profile_timeout",
                      "%llu of %llu active steps came within %g s: the session counts steps%s%.*s, "
                      "and an idle server makes none",
                      (unsigned long long)done,
                      (unsigned long long)session->schedule.active * session->schedule.repeat,
                      session->timeout_s, any ? "" : " of phase ", any ? 0 : (int)len, phase);
    fail_session(server, session, &error);
}

static void start_work(struct rp_profile_session *session, void (*run)(struct rp_profile_work *),
                       void (*done)(struct rp_profile_work *)) {
    session->work.run = run;
    session->work.done = done;
    session->work.ctx = session;
    session->busy = true;
    rp_profile_work_start(session->work.server, &session->work);
}

/* Starts the schedule with the next step. */
static void start_steps(struct rp_server *server, struct rp_profile_session *session) {
    session->phase = RUNNING;
    session->started_ns = rp_tick_ns();
    session->number =
        rp_step_profile_start(rp_engine_profile(server->serving.engine), &session->schedule);
    RP_ASSERT(session->number); /* the server starts no second session */
    session->work.query.session = session->number;
    session->work.query.since_ns = session->started_ns;
}

/* The device's profiler is not available: falls back to stamps, unless cupti was requested
 * explicitly. */
static void go_without(struct rp_server *server, struct rp_profile_session *session) {
    struct rp_http_error error;
    if (session->detail != CUPTI) {
        start_steps(server, session);
        return;
    }
    bool busy = session->why.status == RP_STATUS_IN_USE;
    rp_http_error_set(&error, busy ? 409 : 400, "detail", busy ? "profiler_busy" : "not_supported",
                      "%.300s", session->why.text);
    fail_session(server, session, &error);
}

static void close_profiler(struct rp_profile_work *work) {
    rp_engine_profiler_close(work->server->serving.engine);
}

static void on_closed(struct rp_profile_work *work) {
    struct rp_profile_session *session = work->ctx;
    session->busy = false;
    session->traced = false;
    if (session->conn)
        go_without(work->server, session);
    else
        end_session(work->server, session);
}

static void open_profiler(struct rp_profile_work *work) {
    struct rp_profile_session *session = work->ctx;
    session->traced = rp_engine_profiler_open(work->server->serving.engine, &session->why) == RP_OK;
}

static void on_opened(struct rp_profile_work *work) {
    struct rp_profile_session *session = work->ctx;
    session->busy = false;
    session->phase = BEGINNING;
    if (!session->conn)
        end_session(work->server, session);
    else if (!session->traced)
        go_without(work->server, session);
}

/* Phases that only occur when the driver traces kernels. */
static void tick_profiler(struct rp_server *server, struct rp_profile_session *session) {
    enum rp_device_profile_state state =
        rp_engine_profiler_state(server->serving.engine, &session->why);
    bool ended = state == RP_DEVICE_PROFILE_ENDED || state == RP_DEVICE_PROFILE_FAILED;
    if (session->phase == BEGINNING && state == RP_DEVICE_PROFILE_RUNNING)
        start_steps(server, session);
    else if (session->phase == BEGINNING && ended)
        start_work(session, close_profiler, on_closed);
    else if (session->phase == ENDING && ended) {
        session->has_kernels = state == RP_DEVICE_PROFILE_ENDED;
        session->phase = AFTER;
    } else if (session->phase == CLOSING && ended) {
        start_work(session, close_profiler, on_closed);
    }
}

static void on_steps_done(struct rp_server *server, struct rp_profile_session *session,
                          uint64_t now_ns) {
    session->done_ns = now_ns;
    session->steps_done = rp_counter_read(&rp_engine_metrics(server->serving.engine)->steps);
    session->phase = session->traced ? ENDING : AFTER;
    if (session->traced)
        rp_engine_profiler_end(server->serving.engine);
}

void rp_profile_session_tick(struct rp_server *server, uint64_t now_ns) {
    struct rp_profile_session *session = server->profile_session;
    struct rp_http_error error;
    uint64_t done;
    if (!session || session->busy)
        return;
    const struct rp_engine *engine = server->serving.engine;
    bool late = now_ns > session->started_ns + (uint64_t)(session->timeout_s * 1e9);
    enum rp_profile_state state = rp_step_profile_state(rp_engine_profile(engine), &done);
    if (session->conn && (server->phase >= RP_SERVER_DRAINING || !rp_engine_is_healthy(engine))) {
        rp_http_error_set(&error, 503, NULL, "shutting_down", "the session ended early: %s",
                          rp_server_not_ready(server));
        fail_session(server, session, &error);
    } else if (session->phase == RUNNING && state == RP_PROFILE_DONE) {
        on_steps_done(server, session, now_ns);
    } else if ((session->phase == RUNNING || session->phase == BEGINNING) && late) {
        time_out(server, session, session->phase == RUNNING ? done : 0);
    } else if (session->phase == AFTER &&
               (now_ns > session->done_ns + AFTER_NS ||
                rp_counter_read(&rp_engine_metrics(engine)->steps) - session->steps_done >=
                    RP_MIN(session->schedule.active, AFTER_STEPS))) {
        session->phase = BUILDING;
        start_work(session, build, on_built);
    } else {
        tick_profiler(server, session);
    }
}

static void begin_session(struct rp_conn *conn, struct rp_profile_session *session) {
    struct rp_server *server = conn->server;
    session->conn = conn;
    session->work.server = server;
    session->started_ns = rp_tick_ns();
    server->profile_session = session;
    conn->gone = on_gone;
    conn->gone_ctx = session;
    if (session->detail != STAMPS && rp_engine_has_profiler(server->serving.engine)) {
        session->phase = OPENING;
        start_work(session, open_profiler, on_opened);
    } else {
        start_steps(server, session);
    }
}

static void on_body(struct rp_conn *conn, json_t *root) {
    struct rp_server *server = conn->server;
    struct rp_http_error error = {.status = 0};
    struct rp_profile_session *session = rp_calloc(1, sizeof *session);
    if (!session)
        rp_http_error_set(&error, 503, NULL, "overloaded", "out of memory");
    else if (read_body(root, server->serving.engine, session, &error) && server->profile_session)
        rp_http_error_set(&error, 409, NULL, "profile_session", "a session is already active");
    json_decref(root);
    if (error.status) {
        rp_free(session);
        rp_conn_reply_error(conn, &error);
        return;
    }
    begin_session(conn, session);
}

void rp_profile_session_deinit(struct rp_server *server) {
    struct rp_profile_session *session = server->profile_session;
    if (!session)
        return;
    if (session->traced)
        rp_engine_profiler_close(server->serving.engine);
    free_session(session);
}

void rp_profile_session_start(struct rp_conn *conn) {
    if (conn->server->phase >= RP_SERVER_DRAINING)
        rp_conn_fail(conn, 503, "shutting_down", "the server is shutting down");
    else
        rp_json_work_start(conn, on_body);
}
