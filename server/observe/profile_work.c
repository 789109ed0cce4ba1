#include "server/observe/profile_work.h"

#include "base/json_writer.h"
#include "server/server_internal.h"

#include <string.h>

#define X(name, text) "|" text
const char *const rp_profile_group_choices = &("" RP_PROFILE_GROUPS(X))[1];
const char *const rp_profile_sort_choices = &("" RP_PROFILE_SORTS(X))[1];
#undef X
const char *const rp_profile_format_choices = "text|json|csv"; /* rp_profile_format */
const char *const rp_profile_phase_choices = "any|prefill|decode";

const char *rp_profile_choice(const char *choices, uint32_t index, size_t *out_len) {
    for (; index > 0; index--)
        choices = strchr(choices, '|') + 1;
    *out_len = strcspn(choices, "|");
    return choices;
}

const char *rp_profile_content_type(enum rp_profile_format format) {
    static const char *const types[] = {"text/plain; charset=utf-8", "application/json",
                                        "text/csv; charset=utf-8; header=present"};
    return types[format];
}

static void on_work(uv_work_t *work) {
    struct rp_profile_work *job = work->data;
    job->run(job);
}

static void on_done(uv_work_t *work, int status) {
    struct rp_profile_work *job = work->data;
    struct rp_server *server = job->server;
    (void)status; /* never cancelled */
    server->work_count--;
    job->done(job);
    rp_server_check_drained(server);
}

void rp_profile_work_start(struct rp_server *server, struct rp_profile_work *work) {
    work->server = server;
    work->engine = server->serving.engine;
    work->work.data = work;
    if (uv_queue_work(&server->loop, &work->work, on_work, on_done) == 0) {
        server->work_count++;
        return;
    }
    work->run(work);
    work->done(work);
}

static void write_choice(struct rp_json *json, const char *key, const char *choices,
                         uint32_t index) {
    size_t len;
    const char *text = rp_profile_choice(choices, index, &len);
    rp_json_string_len(json, key, text, len);
}

bool rp_profile_work_members(const struct rp_engine *engine, const struct rp_profile_query *query,
                             uint32_t row_limit, struct rp_json *json) {
    struct rp_profile_table table;
    int status = rp_engine_profile_table(engine, query, &table);
    if (status == RP_OK) {
        write_choice(json, "group_by", rp_profile_group_choices, query->group);
        write_choice(json, "sort_by", rp_profile_sort_choices, query->sort);
        write_choice(json, "phase", rp_profile_phase_choices, query->phase);
        rp_profile_write_json(&table, row_limit, json);
    }
    rp_profile_table_deinit(&table);
    return status == RP_OK;
}

void rp_profile_work_write(struct rp_profile_work *work, int status,
                           struct rp_profile_table *table) {
    if (status != RP_OK)
        work->out.failed = true;
    else if (work->view.format == RP_PROFILE_CSV)
        rp_profile_write_csv(table, work->view.row_limit, &work->out);
    else
        rp_profile_write_text(table, work->view.row_limit, &work->out);
    rp_profile_table_deinit(table);
}

void rp_profile_work_table(struct rp_profile_work *work) {
    struct rp_profile_table table;
    if (work->view.format == RP_PROFILE_JSON) {
        struct rp_json json;
        rp_json_init(&json, &work->out);
        rp_json_object_begin(&json, NULL);
        if (!rp_profile_work_members(work->engine, &work->query, work->view.row_limit, &json))
            work->out.failed = true;
        rp_json_object_end(&json);
        return;
    }
    rp_profile_work_write(work, rp_engine_profile_table(work->engine, &work->query, &table),
                          &table);
}
