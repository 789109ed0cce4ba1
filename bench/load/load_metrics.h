/* load_metrics.h - from records to numbers. Definitions are in load.h; JSON keys are those of `vllm
 * bench serve`, and what it lacks beside them (load_report.h).
 *
 * Only requests that ended well (RP_LOAD_OK) have latencies. One with a single output token has no
 * TPOT, one without content no TTFT, and its E2EL ends with the answer.
 *
 * When the warm-up is left out (load_warmup.h says where it ends), latencies are those of the
 * requests that began after it, and rates are of what arrived after it: requests that ended, tokens
 * that came, also of requests that had begun before; else the first seconds would look idle. When
 * nothing is left out both are vllm's. */
#ifndef RP_BENCH_LOAD_METRICS_H
#define RP_BENCH_LOAD_METRICS_H

#include "bench/load/load.h"
#include "bench/load/load_run.h"

/* Milliseconds. Quantiles by linear interpolation between closest ranks, as numpy.percentile does;
 * std is that of the whole, as numpy.std is. All 0 when count is 0. */
struct rp_load_stat {
    uint64_t count;
    double mean, std, p50, p90, p95, p99, max;
};

/* Sorts values. */
void rp_load_stat_of(double *values, uint64_t count, struct rp_load_stat *out);
/* q from 0 to 1; values in rising order; count 0: 0. */
double rp_load_quantile(const double *sorted, uint64_t count, double q);

enum rp_load_quantity { RP_LOAD_TTFT, RP_LOAD_TPOT, RP_LOAD_ITL, RP_LOAD_E2EL, RP_LOAD_QUANTITIES };

/* What a request that ended well took, in ms, from `start_ns`: TTFT, TPOT or E2EL; negative: it has
 * none. */
double rp_load_latency_ms(const struct rp_load_record *record, uint64_t start_ns,
                          enum rp_load_quantity quantity);

/* ttft:500,tpot:30,e2el:10000 in milliseconds; 0: no bound. A request is good when it meets all of
 * them, from its intended time; one without a TPOT meets any. */
struct rp_load_goodput {
    double ms[RP_LOAD_QUANTITIES]; /* RP_LOAD_ITL is not used */
};
/* Parses pairs NAME:MS (or NAME=MS), separated by commas or blanks. RP_STATUS_INVALID names the bad
 * pair. "": none. */
int rp_load_goodput_parse(const char *text, struct rp_load_goodput *out,
                          struct rp_error *err) RP_MUST_USE;

struct rp_load_summary {
    struct rp_load_stat latency[RP_LOAD_QUANTITIES]; /* from the intended time */
    struct rp_load_stat service[RP_LOAD_QUANTITIES]; /* from the sending */
    struct rp_load_stat lag;                         /* the client's */
    uint32_t outcomes[RP_LOAD_OUTCOMES];             /* of the whole run */
    uint32_t planned, left_out;
    uint32_t completed; /* ended well, within `seconds` */
    uint32_t warm_up;   /* ended well, and have no part in the latencies: they began before */
    uint32_t good;      /* of those with a part in the latencies: within the goodput's bounds */
    double seconds;     /* of the run, from its beginning or the end of its warm-up until its end */
    double warm_up_seconds;
    uint64_t counted_ns; /* requests that began at or after it have a part in the latencies */
    double request_rate, output_rate, total_rate; /* in `seconds` */
    /* good requests per second: their share of the latencies' requests, times request_rate */
    double goodput;
    /* requests per second that were planned; 0 in a closed loop, or when all come at once */
    double offered_rate;
    uint64_t input_tokens, output_tokens; /* in `seconds`; a prompt counts when its answer begins */
    /* Over all successful requests: prompt tokens, those that the server reported as cached, and
     * those that an unbounded cache would have had (struct rp_load_request). */
    uint64_t prompt_tokens, cached_tokens, expected_cached_tokens;
    uint32_t most_in_flight, connections;
    /* The server says of some request how many prompt tokens were cached. Servers leave the number
     * out when it is 0: then it is. */
    bool cached_told;
    bool reliable; /* why_not is "" */
    /* each reason why the numbers say less than they seem to, "; " between two */
    char why_not[320];
};

/* A run is reliable when
 *   it has settled (load_warmup.h),
 *   at least RP_LOAD_SAMPLES_MIN requests have a part in the latencies,
 *   at most RP_LOAD_FAILED_MAX of the sent requests failed, and
 *   the client's lag is at most RP_LOAD_LAG_MAX_MS at p99. */
#define RP_LOAD_SAMPLES_MIN 100u
#define RP_LOAD_FAILED_MAX  0.01
#define RP_LOAD_LAG_MAX_MS  20.0

struct rp_load_rules {
    struct rp_load_goodput goodput;
    /* Requests that began before the run had settled do not count. false: all count, as vllm does.
     * A run that never settled, or of fewer than RP_LOAD_SAMPLES_MIN requests, counts as a whole
     * and is unreliable. */
    bool leave_warm_up_out;
    bool closed; /* the run was a closed loop: there is no offered rate */
};

/* Requests that were sent and did not end well. */
uint32_t rp_load_failed(const struct rp_load_summary *summary);
/* "ok", "not_sent", "connect", ...: a key of the reports. */
const char *rp_load_outcome_name(enum rp_load_outcome outcome);
/* "ttft", "tpot", "itl", "e2el". */
const char *rp_load_quantity_name(enum rp_load_quantity quantity);

/* plan NULL: not kept; planned is then the number of records, and nothing is expected to be
 * cached. */
int rp_load_summarize(const struct rp_load_plan *plan, const struct rp_load_records *records,
                      const struct rp_load_rules *rules, struct rp_load_summary *out,
                      struct rp_error *err) RP_MUST_USE;

#endif
