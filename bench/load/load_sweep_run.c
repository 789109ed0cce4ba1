#include "bench/load/load_sweep_run.h"

#include "base/memory.h"

#include <string.h>

static bool is_stopped(const struct rp_sweep_session *session) {
    return session->options->stop && *session->options->stop;
}

/* An overloaded server may fail every request by timeout, 429 or 503. Any other failure of all
 * requests is unrelated to the rate, and an error. */
static int check_some_succeeded(const struct rp_load_records *records, struct rp_error *err) {
    const struct rp_load_record *first = NULL;
    for (uint32_t i = 0; i < records->count; i++) {
        const struct rp_load_record *record = &records->records[i];
        bool busy = record->status == 429 || record->status == 503;
        if (record->outcome == RP_LOAD_OK)
            return RP_OK;
        if (!first && !busy && record->outcome != RP_LOAD_NOT_SENT &&
            record->outcome != RP_LOAD_TIMEOUT)
            first = record;
    }
    if (!first)
        return RP_OK;
    return rp_error_set(err, RP_STATUS_IO, "no request succeeded; the first: %s, status %u%s%s",
                        rp_load_outcome_name(first->outcome), first->status,
                        *first->error ? ": " : "", first->error);
}

static int measure(const struct rp_sweep_session *session, const struct rp_sweep_step *step,
                   struct rp_sweep_measured *out, struct rp_error *err) {
    struct rp_load_plan plan = {0};
    struct rp_load_records records = {0};
    struct rp_load_rules rules = {.goodput = session->objective->bounds,
                                  .exclude_warm_up = session->exclude_warm_up};
    out->source = *session->source;
    out->source.rate = step->rate;
    out->source.count = step->requests;
    out->source.seed = step->seed;
    int status = rp_load_plan_make(&out->source, &plan, err);
    if (status == RP_OK)
        status = rp_load_run(session->options, &plan, &records, err);
    if (status == RP_OK)
        status = check_some_succeeded(&records, err);
    if (status == RP_OK)
        status = rp_load_summarize(&plan, &records, &rules, &out->summary, err);
    if (status == RP_OK)
        out->run = rp_sweep_judge(session->objective, step->rate, &records, &out->summary);
    rp_load_records_free(&records);
    rp_load_plan_free(&plan);
    return status;
}

int rp_sweep_measure(const struct rp_sweep_session *session, struct rp_sweep_result *out,
                     struct rp_error *err) {
    memset(out, 0, sizeof *out);
    int status = rp_sweep_check(session->config, err);
    if (status != RP_OK)
        return status;
    out->measured = rp_calloc(session->config->runs, sizeof *out->measured);
    if (!out->measured)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    for (;;) {
        uint32_t index = out->run_count;
        out->end = rp_sweep_next(session->config, out->runs, index);
        if (out->end.state != RP_SWEEP_GOES_ON || is_stopped(session))
            return RP_OK;
        struct rp_sweep_measured *measured = &out->measured[index];
        status = measure(session, &out->end, measured, err);
        if (status != RP_OK || is_stopped(session))
            return status;
        out->runs[index] = measured->run;
        out->run_count++;
        if (session->after)
            session->after(session->context, index, measured);
    }
}

void rp_sweep_free(struct rp_sweep_result *result) {
    rp_free(result->measured);
    memset(result, 0, sizeof *result);
}
