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

/* Means since start, over layers with experts and steps. */
struct expert_means {
    double rows, touched,
        imbalance; /* a touched expert's rows; experts with rows; fullest / mean */
};

static uint64_t count_of(const struct rp_histogram *histogram) {
    uint64_t count = 0;
    for (uint32_t i = 0; i <= histogram->bound_count; i++)
        count += atomic_load_explicit(&((struct rp_histogram *)histogram)->buckets[i],
                                      memory_order_relaxed);
    return count;
}

/* false: no layer with experts has run. */
static bool expert_means(const struct rp_engine *engine, struct expert_means *out) {
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    double layers = (double)rp_counter_read(&metrics->expert_layer_steps);
    uint64_t touched = count_of(&metrics->expert_rows);
    if (layers == 0 || touched == 0)
        return false;
    *out =
        (struct expert_means){.rows = rp_histogram_sum(&metrics->expert_rows) / (double)touched,
                              .touched = (double)touched / layers,
                              .imbalance = rp_histogram_sum(&metrics->expert_imbalance) / layers};
    return true;
}

static void write_experts(const struct rp_engine *engine, struct rp_json *json) {
    struct expert_means means;
    if (!expert_means(engine, &means))
        return;
    rp_json_object_begin(json, "experts");
    rp_json_double(json, "rows_mean", means.rows);
    rp_json_double(json, "touched_mean", means.touched);
    rp_json_double(json, "imbalance_mean", means.imbalance);
    rp_json_object_end(json);
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
        write_experts(engine, json);
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
    struct expert_means means;
    if (status == RP_OK && work->view.format == RP_PROFILE_TEXT &&
        expert_means(work->engine, &means))
        rp_buffer_printf(&work->out,
                         "experts since start: %.1f of a layer have rows in a step, %.1f each; the "
                         "fullest has %.2f times the mean of all\n",
                         means.touched, means.rows, means.imbalance);
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
