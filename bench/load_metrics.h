/* load_metrics.h - from records to numbers. Definitions are in load.h; JSON keys are those of `vllm bench serve`, and
 * what it lacks beside them (docs in the JSON writer's table). */
#ifndef RP_BENCH_LOAD_METRICS_H
#define RP_BENCH_LOAD_METRICS_H

#include "bench/load.h"
#include "bench/load_run.h"

/* Milliseconds. Quantiles by linear interpolation between closest ranks, as numpy.percentile does. */
struct rp_load_stat {
    uint64_t count;
    double mean, std, p50, p90, p95, p99, max;
};

enum rp_load_quantity { RP_LOAD_TTFT, RP_LOAD_TPOT, RP_LOAD_ITL, RP_LOAD_E2EL, RP_LOAD_QUANTITIES };

/* ttft:500,tpot:30,e2el:10000 in milliseconds; 0: no bound. */
struct rp_load_goodput {
    double ms[RP_LOAD_QUANTITIES]; /* RP_LOAD_ITL is not used */
};
int rp_load_goodput_parse(const char *text, struct rp_load_goodput *out,
                          struct rp_error *err) RP_MUST_USE;

struct rp_load_summary {
    struct rp_load_stat latency[RP_LOAD_QUANTITIES]; /* from the intended time */
    struct rp_load_stat service[RP_LOAD_QUANTITIES]; /* from the sending */
    struct rp_load_stat lag;                         /* the client's */
    uint32_t outcomes[RP_LOAD_OUTCOMES];
    uint32_t planned, left_out, completed, warm_up; /* warm_up: completed ones that do not count */
    uint32_t good;                                  /* completed ones within the goodput's bounds */
    double seconds;                                 /* that the counted requests span */
    double request_rate, output_rate, total_rate, goodput;
    double offered_rate; /* requests per second that were planned; 0 in a closed loop */
    uint64_t input_tokens, output_tokens, cached_tokens, expected_cached_tokens;
    uint32_t most_in_flight, connections;
    bool cached_told;  /* the server says how many prompt tokens were cached */
    bool reliable;     /* settled, at least 100 samples, and the client kept up */
    char why_not[160]; /* "" when reliable */
};

struct rp_load_rules {
    struct rp_load_goodput goodput;
    /* Requests that began before the run had settled do not count: the first ones, until the number in flight has
     * stopped rising by trend. false: all count, as vllm does. */
    bool leave_warm_up_out;
};

int rp_load_summarise(const struct rp_load_plan *plan, const struct rp_load_records *records,
                      const struct rp_load_rules *rules, struct rp_load_summary *out,
                      struct rp_error *err) RP_MUST_USE;

#endif
