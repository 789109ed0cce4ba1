#include "bench/load/load_sweep.h"

#include "bench/load/load_random.h"

#include <math.h>
#include <string.h>

#define RATE_LIMIT 1e9
/* Two-sided 90 %: with a share of 0.99, 268 requests without a bad one are conclusive. */
#define WILSON_Z 1.645
/* Share of a closed loop's throughput at which an open loop usually still holds. */
#define OPEN_LOOP_SHARE 0.8
/* Runs of a search that begins near the answer, with the time of the estimate. */
#define RUNS_TYPICAL   12
#define REQUESTS_LEAST 20u
#define REQUESTS_CLEAR 300u
/* Largest factor between two steps away from the first rate, unless growth is larger. */
#define STEP_MAX 2.0

static const struct rp_sweep_objective presets[] = {
    {"llama2-70b-server", {{[RP_LOAD_TTFT] = 2000, [RP_LOAD_TPOT] = 200}}, true, 0.99},
    {"llama2-70b-interactive", {{[RP_LOAD_TTFT] = 450, [RP_LOAD_TPOT] = 40}}, true, 0.99},
    {"llama3.1-8b-server", {{[RP_LOAD_TTFT] = 2000, [RP_LOAD_TPOT] = 100}}, true, 0.99},
    {"llama3.1-8b-interactive", {{[RP_LOAD_TTFT] = 500, [RP_LOAD_TPOT] = 30}}, true, 0.99},
};

const struct rp_sweep_objective *rp_sweep_preset(const char *name) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(presets); i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

static int bad(struct rp_error *err, const char *field, const char *rule) {
    return rp_error_set(err, RP_STATUS_INVALID, "%s must be %s", field, rule);
}

int rp_sweep_check(const struct rp_sweep_config *config, struct rp_error *err) {
    if (!(config->share > 0 && config->share < 1))
        return bad(err, "share", "above 0 and below 1");
    if (!(config->min_rate > 0 && config->min_rate <= config->first_rate &&
          config->first_rate <= config->max_rate && config->max_rate <= RATE_LIMIT))
        return bad(err, "rates", "above 0, the first from min to max, max at most 1e9");
    if (!(config->growth > 1 && config->growth <= 1000))
        return bad(err, "growth", "above 1 and at most 1000");
    if (!(config->tolerance >= 0.005 && config->tolerance < 10))
        return bad(err, "tolerance", "0.005 to below 10");
    if (config->repeats % 2 == 0 || config->repeats > 99)
        return bad(err, "repeats", "odd and at most 99");
    if (config->runs == 0 || config->runs > RP_SWEEP_RUNS_MAX)
        return bad(err, "runs", "1 to 256");
    if (!(config->seconds > 0 && config->seconds <= 1e6))
        return bad(err, "seconds", "above 0 and at most 1e6");
    if (config->requests_min == 0 || config->requests_min > config->requests_max)
        return bad(err, "requests", "at least 1, at most requests_max");
    return RP_OK;
}

/* The requests to count: those that begin at counted_ns or later. A run that has ended: only those
 * that were sent, plan NULL. A run that lasts: all of the plan. */
struct count {
    const struct rp_load_plan *plan;
    uint64_t counted_ns, now_ns;
    double slack_ms;
};

/* The latency of an answer that has ended; for one that has not, a lower bound of it. */
static double least_ms(const struct count *count, const struct rp_load_record *record,
                       enum rp_load_quantity quantity) {
    if (record->outcome == RP_LOAD_OK)
        return rp_load_latency_ms(record, record->intended_ns, quantity);
    if (count->now_ns <= record->intended_ns)
        return 0;
    double waited_ms = (double)(count->now_ns - record->intended_ns) * 1e-6;
    if (quantity == RP_LOAD_E2EL)
        return waited_ms;
    if (quantity == RP_LOAD_TTFT)
        return record->first_ns ? (double)(record->first_ns - record->intended_ns) * 1e-6
                                : waited_ms;
    uint32_t tokens = count->plan->requests[record->request].output_tokens;
    if (!record->first_ns || count->now_ns <= record->first_ns || tokens < 2)
        return 0;
    return (double)(count->now_ns - record->first_ns) * 1e-6 / (tokens - 1);
}

/* Counts the requests within the objective's bounds relaxed by the slack; *out_requests: the number
 * of requests considered. */
static uint32_t count_good(const struct rp_sweep_objective *objective,
                           const struct rp_load_records *records, const struct count *count,
                           uint32_t *out_requests) {
    uint32_t within[RP_LOAD_QUANTITIES] = {0}, within_all = 0, requests = 0;
    for (uint32_t i = 0; i < records->count; i++) {
        const struct rp_load_record *record = &records->records[i];
        bool pending = record->outcome == RP_LOAD_NOT_SENT;
        bool possible = record->outcome == RP_LOAD_OK || pending, all = possible;
        if ((pending && !count->plan) || record->intended_ns < count->counted_ns)
            continue;
        requests++;
        for (int q = 0; q < RP_LOAD_QUANTITIES; q++) {
            /* The lag delays the sum of a request's gaps at most once. */
            double slack = q == RP_LOAD_TPOT
                               ? count->slack_ms / (RP_MAX(record->output_tokens, 2u) - 1)
                               : count->slack_ms;
            double bound = objective->bounds.ms[q];
            bool ok =
                possible &&
                (bound <= 0 || least_ms(count, record, (enum rp_load_quantity)q) <= bound + slack);
            within[q] += ok;
            all = all && ok;
        }
        within_all += all;
    }
    uint32_t least = requests;
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        least = RP_MIN(least, within[q]);
    *out_requests = requests;
    return objective->each ? least : within_all;
}

static struct rp_sweep_run judge_run(const struct rp_sweep_objective *objective, double rate,
                                     const struct rp_load_records *records, double lag_ms,
                                     struct count count) {
    struct rp_sweep_run run = {.rate = rate};
    run.good = count_good(objective, records, &count, &run.requests);
    double required = objective->share * run.requests;
    count.slack_ms = 2 * lag_ms;
    if (lag_ms > RP_LOAD_LAG_MAX_MS && run.good < required)
        run.client_slow = count_good(objective, records, &count, &run.requests) >= required;
    return run;
}

struct rp_sweep_run rp_sweep_judge(const struct rp_sweep_objective *objective, double rate,
                                   const struct rp_load_records *records,
                                   const struct rp_load_summary *summary) {
    return judge_run(objective, rate, records, summary->lag.p99,
                     (struct count){.counted_ns = summary->counted_ns});
}

/* -1: clearly below the required share, 1: clearly above, 0: inconclusive. */
static int clear_side(double share, const struct rp_sweep_run *run) {
    double n = run->requests, z = WILSON_Z, p = n > 0 ? run->good / n : 0;
    if (n == 0)
        return -1; /* no request was answered */
    double middle = (p + z * z / (2 * n)) / (1 + z * z / n);
    double half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    if (middle - half > share)
        return 1;
    return middle + half < share ? -1 : 0;
}

/* The end of the first answer; 0: none has ended. */
static uint64_t first_end(const struct rp_load_records *records) {
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < records->count; i++)
        if (records->records[i].outcome == RP_LOAD_OK)
            first = RP_MIN(first, records->records[i].end_ns);
    return first == UINT64_MAX ? 0 : first;
}

struct rp_sweep_run rp_sweep_judge_lost(const struct rp_sweep_objective *objective, double rate,
                                        const struct rp_load_plan *plan,
                                        const struct rp_load_records *records, double lag_ms,
                                        bool exclude_warm_up, uint64_t now_ns) {
    struct count count = {
        .plan = plan, .counted_ns = exclude_warm_up ? first_end(records) : 0, .now_ns = now_ns};
    struct rp_sweep_run run = judge_run(objective, rate, records, lag_ms, count);
    run.ended_early = true;
    return run;
}

bool rp_sweep_is_lost(const struct rp_sweep_objective *objective, const struct rp_load_plan *plan,
                      const struct rp_load_records *records, bool exclude_warm_up,
                      uint64_t now_ns) {
    uint64_t lag_ns = 0;
    for (uint64_t i = 0; i < records->lag_count; i++)
        lag_ns = RP_MAX(lag_ns, records->lag_ns[i]);
    struct rp_sweep_run run = rp_sweep_judge_lost(objective, 0, plan, records,
                                                  (double)lag_ns * 1e-6, exclude_warm_up, now_ns);
    return run.requests && clear_side(objective->share, &run) < 0 && !run.client_slow;
}

void rp_sweep_estimate_alone(const struct rp_sweep_objective *objective,
                             const struct rp_load_records *records, struct rp_sweep_estimate *out) {
    for (uint32_t i = 0; i < records->count; i++) {
        const struct rp_load_record *record = &records->records[i];
        for (int q = 0; record->outcome == RP_LOAD_OK && q < RP_LOAD_QUANTITIES; q++) {
            double ms = rp_load_latency_ms(record, record->intended_ns, (enum rp_load_quantity)q);
            if (ms > 0 && (out->alone_ms[q] <= 0 || ms < out->alone_ms[q]))
                out->alone_ms[q] = ms;
        }
    }
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        out->is_hopeless |=
            objective->bounds.ms[q] > 0 && out->alone_ms[q] > objective->bounds.ms[q];
}

void rp_sweep_estimate_rate(const struct rp_load_records *records, uint32_t slots, uint64_t now_ns,
                            struct rp_sweep_estimate *out) {
    uint64_t end_ns = 0;
    uint32_t ended = 0, begun = 0;
    for (uint32_t i = 0; i < records->count; i++) {
        const struct rp_load_record *record = &records->records[i];
        begun += record->first_ns > 0;
        if (record->outcome != RP_LOAD_OK)
            continue;
        ended++;
        end_ns = RP_MAX(end_ns, record->end_ns);
    }
    uint32_t count = ended < slots ? begun : ended;
    uint64_t span_ns = ended < slots ? now_ns : end_ns;
    out->first_rate = span_ns ? OPEN_LOOP_SHARE * count / ((double)span_ns * 1e-9) : 0;
}

uint32_t rp_sweep_requests_min(double rate, double max_seconds) {
    if (max_seconds <= 0)
        return REQUESTS_CLEAR;
    double requests = rate * max_seconds / RUNS_TYPICAL;
    return (uint32_t)RP_MIN(RP_MAX(requests, REQUESTS_LEAST), REQUESTS_CLEAR);
}

static bool run_holds(const struct rp_sweep_config *config, const struct rp_sweep_run *run) {
    return run->requests && run->good >= config->share * run->requests;
}

static bool is_inconclusive(const struct rp_sweep_config *config, const struct rp_sweep_run *run) {
    return run->client_slow && !run_holds(config, run);
}

static struct rp_sweep_point *point_of(struct rp_sweep_point *points, uint32_t *count,
                                       double rate) {
    uint32_t at = *count;
    while (at > 0 && points[at - 1].rate >= rate)
        at--;
    if (at < *count && points[at].rate == rate)
        return &points[at];
    memmove(&points[at + 1], &points[at], (*count - at) * sizeof *points);
    ++*count;
    points[at] = (struct rp_sweep_point){.rate = rate};
    return &points[at];
}

static void judge(const struct rp_sweep_config *config, struct rp_sweep_point *point,
                  bool one_is_clear) {
    uint32_t need = config->repeats / 2 + 1;
    point->firm = RP_MAX(point->held, RP_MAX(point->broke, point->client_slow)) >= need;
    if (point->held >= need)
        point->verdict = RP_SWEEP_HOLDS;
    else if (point->broke >= need)
        point->verdict = RP_SWEEP_BREAKS;
    else if (point->client_slow >= need)
        point->verdict = RP_SWEEP_CLIENT_SLOW;
    else if (one_is_clear && point->broke == 0)
        point->verdict = RP_SWEEP_HOLDS;
    else if (one_is_clear && point->held == 0)
        point->verdict = RP_SWEEP_BREAKS;
    else
        point->verdict = RP_SWEEP_OPEN;
}

uint32_t rp_sweep_points(const struct rp_sweep_config *config, const struct rp_sweep_run *runs,
                         uint32_t run_count, struct rp_sweep_point *out) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < run_count; i++) {
        struct rp_sweep_point *point = point_of(out, &count, runs[i].rate);
        point->runs++;
        if (is_inconclusive(config, &runs[i])) {
            point->client_slow++;
            continue;
        }
        bool holds = run_holds(config, &runs[i]);
        point->held += holds;
        point->broke += !holds;
        point->requests += runs[i].requests;
        point->good += runs[i].good;
    }
    for (uint32_t p = 0; p < count; p++) {
        bool one_is_clear = false;
        for (uint32_t i = 0; i < run_count; i++)
            one_is_clear = one_is_clear ||
                           (runs[i].rate == out[p].rate && !is_inconclusive(config, &runs[i]) &&
                            clear_side(config->share, &runs[i]) != 0);
        judge(config, &out[p], one_is_clear);
    }
    return count;
}

/* The geometric mean of two rates, rounded to three digits if the result is still between them. */
static double between(double low, double high) {
    double rate = sqrt(low * high), unit = pow(10, floor(log10(rate)) - 2);
    double rounded = floor(rate / unit + 0.5) * unit;
    return rounded > low && rounded < high ? rounded : rate;
}

struct bracket {
    const struct rp_sweep_point *open, *holds, *breaks, *limit;
    uint32_t held, broke; /* rates with these verdicts */
    bool holds_above;     /* a rate above `breaks` holds */
};

static struct bracket find_bracket(const struct rp_sweep_point *points, uint32_t count) {
    struct bracket b = {.held = 0};
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_sweep_point *point = &points[i];
        b.held += point->verdict == RP_SWEEP_HOLDS;
        b.broke += point->verdict == RP_SWEEP_BREAKS;
        if (point->verdict == RP_SWEEP_OPEN && !b.open && !b.breaks)
            b.open = point;
        if (point->verdict == RP_SWEEP_BREAKS && !b.breaks)
            b.breaks = point;
        if (point->verdict == RP_SWEEP_CLIENT_SLOW && !b.limit)
            b.limit = point;
        if (point->verdict == RP_SWEEP_HOLDS && !b.breaks) {
            b.holds = point;
            b.limit = NULL; /* the client was fast enough for more */
        }
        b.holds_above = b.holds_above || (point->verdict == RP_SWEEP_HOLDS && b.breaks);
    }
    return b;
}

/* The factor of the next step away from the first rate, `steps` after it. */
static double step_factor(const struct rp_sweep_config *config, uint32_t steps) {
    double factor = config->growth, most = RP_MAX(STEP_MAX, config->growth);
    while (--steps > 0 && factor < most)
        factor *= config->growth;
    return RP_MIN(factor, most);
}

/* Returns the state of the search; *rate is the next rate if it goes on. */
static enum rp_sweep_state search(const struct rp_sweep_config *config, const struct bracket *b,
                                  double *rate) {
    const struct rp_sweep_point *again = NULL;
    enum rp_sweep_state state = RP_SWEEP_GOES_ON;
    if (b->open) {
        again = b->open;
    } else if (b->breaks && b->holds_above && !b->breaks->firm) {
        again = b->breaks; /* a higher rate holds, which contradicts it */
    } else if (b->limit && (!b->breaks || b->limit->rate < b->breaks->rate)) {
        again = b->holds && !b->holds->firm ? b->holds : NULL;
        state = RP_SWEEP_CLIENT_LIMIT;
    } else if (!b->breaks) {
        again = b->holds && b->holds->rate >= config->max_rate ? b->holds : NULL;
        state = again ? RP_SWEEP_NEVER_BROKE : RP_SWEEP_GOES_ON;
        again = again && again->firm ? NULL : again;
        *rate = b->holds ? RP_MIN(b->holds->rate * step_factor(config, b->held), config->max_rate)
                         : config->first_rate;
    } else if (!b->holds) {
        again = b->breaks->rate <= config->min_rate && !b->breaks->firm ? b->breaks : NULL;
        state = b->breaks->rate <= config->min_rate ? RP_SWEEP_NEVER_HELD : RP_SWEEP_GOES_ON;
        *rate = RP_MAX(b->breaks->rate / step_factor(config, b->broke), config->min_rate);
    } else if (b->breaks->rate > b->holds->rate * (1 + config->tolerance)) {
        *rate = between(b->holds->rate, b->breaks->rate);
    } else {
        again = !b->holds->firm ? b->holds : !b->breaks->firm ? b->breaks : NULL;
        state = RP_SWEEP_FOUND;
    }
    if (again) {
        *rate = again->rate;
        return RP_SWEEP_GOES_ON;
    }
    return state;
}

struct rp_sweep_step rp_sweep_next(const struct rp_sweep_config *config,
                                   const struct rp_sweep_run *runs, uint32_t run_count) {
    struct rp_sweep_point points[RP_SWEEP_RUNS_MAX];
    uint32_t count = rp_sweep_points(config, runs, run_count, points);
    struct bracket bracket = find_bracket(points, count);
    struct rp_sweep_step step = {.holds = bracket.holds ? bracket.holds->rate : 0,
                                 .breaks = bracket.breaks ? bracket.breaks->rate : 0};
    step.state = search(config, &bracket, &step.rate);
    if (step.state == RP_SWEEP_GOES_ON && run_count >= config->runs)
        step.state = RP_SWEEP_OUT_OF_RUNS;
    if (step.state != RP_SWEEP_GOES_ON) {
        step.rate = 0;
        return step;
    }
    double requests = ceil(step.rate * config->seconds);
    requests = RP_MIN(RP_MAX(requests, config->requests_min), config->requests_max);
    struct rp_load_random random =
        rp_load_random_begin(config->seed, RP_LOAD_STREAM_SWEEP, run_count);
    step.requests = (uint32_t)requests;
    step.seed = rp_load_random_next(&random) >> 11;
    return step;
}
