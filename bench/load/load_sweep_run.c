#include "bench/load/load_sweep_run.h"

#include "base/clock.h"
#include "base/memory.h"
#include "bench/load/load_random.h"

#include <string.h>

#define ALONE_REQUESTS 3u
#define ROUNDS         4u /* answers of each slot in the estimate */
#define SETTLE_NS      ((uint64_t)10000000000)

/* Seeds of the closed loops, after those of the runs. */
enum { ALONE_SEED = RP_SWEEP_RUNS_MAX, FULL_SEED, SETTLE_SEED };

static bool is_stopped(const struct rp_sweep_session *session) {
    return session->options->stop && *session->options->stop;
}

static bool is_late(const struct rp_sweep_session *session) {
    return session->deadline_ns && rp_clock_ns() >= session->deadline_ns;
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

/* A run that lasts. */
struct current {
    const struct rp_sweep_session *session;
    const struct rp_load_plan *plan;
    uint64_t lost_ns; /* when it was lost; 0: it was not */
    bool out_of_time;
};

static bool gives_up(void *context, const struct rp_load_records *records, uint64_t now_ns) {
    struct current *current = context;
    const struct rp_sweep_session *session = current->session;
    if (rp_sweep_is_lost(session->objective, current->plan, records, session->exclude_warm_up,
                         now_ns))
        current->lost_ns = now_ns;
    current->out_of_time = !current->lost_ns && is_late(session);
    return current->lost_ns || current->out_of_time;
}

static int measure(const struct rp_sweep_session *session, const struct rp_sweep_step *step,
                   struct rp_sweep_measured *out, bool *late, struct rp_error *err) {
    struct rp_load_plan plan = {0};
    struct rp_load_records records = {0};
    struct rp_load_rules rules = {.goodput = session->objective->bounds,
                                  .exclude_warm_up = session->exclude_warm_up};
    struct current current = {.session = session, .plan = &plan};
    struct rp_load_run_options options = *session->options;
    options.give_up = gives_up;
    options.give_up_context = &current;
    out->source = *session->source;
    out->source.rate = step->rate;
    out->source.count = step->requests;
    out->source.seed = step->seed;
    int status = rp_load_plan_make(&out->source, &plan, err);
    if (status == RP_OK)
        status = rp_load_run(&options, &plan, &records, err);
    *late = current.out_of_time;
    if (status == RP_OK)
        status = check_some_succeeded(&records, err);
    if (status == RP_OK)
        status = rp_load_summarize(&plan, &records, &rules, &out->summary, err);
    if (status == RP_OK && current.lost_ns)
        out->run =
            rp_sweep_judge_lost(session->objective, step->rate, &plan, &records,
                                out->summary.lag.p99, session->exclude_warm_up, current.lost_ns);
    else if (status == RP_OK)
        out->run = rp_sweep_judge(session->objective, step->rate, &records, &out->summary);
    rp_load_records_free(&records);
    rp_load_plan_free(&plan);
    return status;
}

/* A closed loop ends when it has enough answers, or at its time. */
struct loop {
    uint32_t answers;
    uint64_t limit_ns, end_ns;
};

static bool ends_loop(void *context, const struct rp_load_records *records, uint64_t now_ns) {
    struct loop *loop = context;
    uint32_t ended = 0;
    for (uint32_t i = 0; i < records->count; i++)
        ended += records->records[i].outcome != RP_LOAD_NOT_SENT;
    if (now_ns >= loop->limit_ns || ended >= loop->answers)
        loop->end_ns = now_ns;
    return loop->end_ns != 0;
}

static int run_loop(const struct rp_sweep_session *session, uint32_t concurrency, uint32_t seed,
                    struct loop *loop, struct rp_load_records *records, struct rp_error *err) {
    struct rp_load_source source = *session->source;
    struct rp_load_run_options options = *session->options;
    struct rp_load_plan plan = {0};
    /* No run of the search has these prompts. */
    struct rp_load_random random = rp_load_random_begin(source.seed, RP_LOAD_STREAM_SWEEP, seed);
    source.arrival = RP_LOAD_CLOSED;
    source.count = loop->answers;
    source.seed = rp_load_random_next(&random) >> 11;
    options.closed = true;
    options.max_concurrency = concurrency;
    options.give_up = ends_loop;
    options.give_up_context = loop;
    int status = rp_load_plan_make(&source, &plan, err);
    if (status == RP_OK)
        status = rp_load_run(&options, &plan, records, err);
    if (status == RP_OK)
        status = check_some_succeeded(records, err);
    if (!loop->end_ns)
        loop->end_ns = records->end_ns;
    rp_load_plan_free(&plan);
    return status;
}

int rp_sweep_estimate(const struct rp_sweep_session *session, uint32_t slots, double seconds,
                      struct rp_sweep_estimate *out, struct rp_error *err) {
    struct rp_load_records records = {0};
    uint64_t limit_ns = (uint64_t)(seconds * 1e9);
    uint32_t most = session->options->max_concurrency;
    struct loop alone = {.answers = ALONE_REQUESTS, .limit_ns = limit_ns};
    slots = most ? RP_MIN(slots, most) : slots;
    struct loop full = {.answers = ROUNDS * slots, .limit_ns = limit_ns};
    memset(out, 0, sizeof *out);
    int status = run_loop(session, 1, ALONE_SEED, &alone, &records, err);
    if (status == RP_OK)
        rp_sweep_estimate_alone(session->objective, &records, out);
    rp_load_records_free(&records);
    if (status != RP_OK || out->is_hopeless || is_stopped(session))
        return status;
    status = run_loop(session, slots, FULL_SEED, &full, &records, err);
    if (status == RP_OK)
        rp_sweep_estimate_rate(&records, slots, full.end_ns, out);
    rp_load_records_free(&records);
    return status;
}

/* After a run that ended early the server may still work on its requests: waits until it has
 * answered one more. */
static int settle(const struct rp_sweep_session *session, uint32_t run, struct rp_error *err) {
    struct rp_load_records records = {0};
    struct loop loop = {.answers = 1, .limit_ns = SETTLE_NS};
    int status = run_loop(session, 1, SETTLE_SEED + run, &loop, &records, err);
    rp_load_records_free(&records);
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
        if (session->before)
            session->before(session->context, index, &out->end);
        bool late = is_late(session);
        if (!late && index && out->runs[index - 1].ended_early)
            status = settle(session, index, err);
        if (!late && status == RP_OK)
            status = measure(session, &out->end, measured, &late, err);
        if (late && status == RP_OK)
            out->end.state = RP_SWEEP_OUT_OF_TIME;
        if (late || status != RP_OK || is_stopped(session))
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
