/* load_metrics.h - computes metrics from records. Definitions are in load.h; JSON keys are those of
 * `vllm bench serve` plus additional ones (load_report.h).
 *
 * Only successful requests (RP_LOAD_OK) have latencies. One with a single output token has no TPOT;
 * one without content has no TTFT, and its E2EL ends with the answer.
 *
 * When the warm-up is excluded (load_warmup.h defines its end), latencies are those of requests
 * that began after it, and rates count what arrived after it: requests that ended and tokens
 * received, also of requests that began before; otherwise the first seconds would look idle. When
 * nothing is excluded both are as in vllm. */
#ifndef RP_BENCH_LOAD_METRICS_H
#define RP_BENCH_LOAD_METRICS_H

#include "bench/load/load.h"
#include "bench/load/load_run.h"

/* Milliseconds. Quantiles by linear interpolation between closest ranks, as numpy.percentile does;
 * std is the population standard deviation, as numpy.std. All 0 when count is 0. */
struct rp_load_stat {
    uint64_t count;
    double mean, std, p50, p90, p95, p99, max;
};

/* Sorts in ascending order. */
void rp_load_sort(double *values, uint64_t count);
/* Sorts values. */
void rp_load_stat_compute(double *values, uint64_t count, struct rp_load_stat *out);
/* q from 0 to 1; values in ascending order; count 0: 0. */
double rp_load_quantile(const double *sorted, uint64_t count, double q);

enum rp_load_quantity { RP_LOAD_TTFT, RP_LOAD_TPOT, RP_LOAD_ITL, RP_LOAD_E2EL, RP_LOAD_QUANTITIES };

/* TTFT, TPOT or E2EL of a successful request in ms, from `start_ns`; negative: it has none. */
double rp_load_latency_ms(const struct rp_load_record *record, uint64_t start_ns,
                          enum rp_load_quantity quantity);

/* ttft:500,tpot:30,e2el:10000 in milliseconds; 0: no bound. A request is good when it meets all
 * bounds, measured from its intended send time; one without a TPOT meets any TPOT bound. */
struct rp_load_goodput {
    double ms[RP_LOAD_QUANTITIES]; /* RP_LOAD_ITL is unused */
};
/* Parses pairs NAME:MS (or NAME=MS), separated by commas or spaces. RP_STATUS_INVALID names the bad
 * pair. "": none. */
int rp_load_goodput_parse(const char *text, struct rp_load_goodput *out,
                          struct rp_error *err) RP_MUST_USE;

struct rp_load_summary {
    struct rp_load_stat latency[RP_LOAD_QUANTITIES]; /* from the intended send time */
    struct rp_load_stat service[RP_LOAD_QUANTITIES]; /* from the actual send */
    struct rp_load_stat lag;                         /* the client's */
    uint32_t outcomes[RP_LOAD_OUTCOMES];             /* outcomes over the whole run */
    uint32_t planned, skipped;
    uint32_t completed; /* successful, ended within `seconds` */
    uint32_t warm_up;   /* successful, but excluded from latencies: they began in the warm-up */
    uint32_t good;      /* requests included in latencies that are within the goodput bounds */
    /* duration of the run, from its start or the end of its warm-up until its end */
    double seconds;
    double warm_up_seconds;
    uint64_t counted_ns; /* requests that began at or after it are included in latencies */
    double request_rate, output_rate, total_rate; /* per second, over `seconds` */
    /* good requests per second: their share of the requests included in latencies, times
     * request_rate */
    double goodput;
    /* requests per second that were planned; 0 in a closed loop, or when all come at once */
    double offered_rate;
    /* within `seconds`; a prompt counts when its answer begins */
    uint64_t input_tokens, output_tokens;
    /* Over all successful requests: prompt tokens, those that the server reported as cached, and
     * those that an unbounded cache would have had (struct rp_load_request). */
    uint64_t prompt_tokens, cached_tokens, expected_cached_tokens;
    uint32_t max_in_flight, connections;
    /* The server reported cached prompt tokens for some request. Servers omit the number when it is
     * 0, so a missing one then counts as 0. */
    bool cached_reported;
    bool reliable; /* why_not is "" */
    /* all reasons why the result is unreliable, separated by "; " */
    char why_not[320];
};

/* A run is reliable when
 *   it has settled (load_warmup.h),
 * at least RP_LOAD_SAMPLES_MIN requests are included in latencies,
 *   at most RP_LOAD_FAILED_MAX of the sent requests failed, and
 *   the client's lag is at most RP_LOAD_LAG_MAX_MS at p99. */
#define RP_LOAD_SAMPLES_MIN 100u
#define RP_LOAD_FAILED_MAX  0.01
#define RP_LOAD_LAG_MAX_MS  20.0

struct rp_load_rules {
    struct rp_load_goodput goodput;
    /* Requests that began before the run settled do not count. false: all count, as in vllm. A run
     * that never settled, or with fewer than RP_LOAD_SAMPLES_MIN requests, counts as a whole and is
     * unreliable. */
    bool exclude_warm_up;
    bool closed; /* the run was a closed loop: there is no offered rate */
};

/* Requests that were sent and failed. */
uint32_t rp_load_failed(const struct rp_load_summary *summary);
/* "ok", "not_sent", "connect", ...: a key of the reports. */
const char *rp_load_outcome_name(enum rp_load_outcome outcome);
/* "ttft", "tpot", "itl", "e2el". */
const char *rp_load_quantity_name(enum rp_load_quantity quantity);

/* plan NULL: not available; planned is then the number of records, and no cache hits are
 * expected. */
int rp_load_summarize(const struct rp_load_plan *plan, const struct rp_load_records *records,
                      const struct rp_load_rules *rules, struct rp_load_summary *out,
                      struct rp_error *err) RP_MUST_USE;

#endif
