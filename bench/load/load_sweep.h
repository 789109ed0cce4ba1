/* load_sweep.h - finds the highest request rate at which a server still meets an objective.
 *
 * A pure function of the results so far returns the next rate to try; the caller sends the
 * requests. It raises the rate until the objective fails (or lowers it until it is met), in steps
 * that grow, then bisects by ratio. Noise: latencies of one run are correlated, so a run is one
 * observation, regardless of its number of requests. A run whose share of good requests is clearly
 * on one side of the objective (its 90 % Wilson interval excludes the objective) decides a rate
 * provisionally; any other is repeated until a majority of `repeats` runs agrees. Both ends of the
 * final bracket need such a majority, and an end that is overturned moves the search.
 *
 * Every run has its own seed, so that its prompts are not in the server's prefix cache.
 *
 * Thread: any; nothing is kept between calls. */
#ifndef RP_BENCH_LOAD_SWEEP_H
#define RP_BENCH_LOAD_SWEEP_H

#include "bench/load/load_metrics.h"

#define RP_SWEEP_RUNS_MAX 256u

/* The definition of a good request, and the required share. */
struct rp_sweep_objective {
    const char *name; /* of a preset; NULL: custom */
    struct rp_load_goodput bounds;
    /* Each bound must hold separately for `share` of the requests: with 0.99 that is a bound on the
     * p99 of each quantity, as in MLPerf. Otherwise `share` of the requests must meet all bounds
     * together. */
    bool each;
    double share;
};

/* MLPerf inference's server and interactive scenarios; NULL: no such name. */
const struct rp_sweep_objective *rp_sweep_preset(const char *name);

struct rp_sweep_config {
    double share;      /* share of good requests required by the objective, above 0 and below 1 */
    double first_rate; /* requests per second */
    double min_rate, max_rate; /* limits of the search */
    /* Factor of the first step from first_rate, above 1. Each further step in the same direction
     * multiplies by one more factor, up to the larger of 2 and growth. */
    double growth;
    /* width of the final bracket relative to the result, 0.005 or more */
    double tolerance;
    uint32_t repeats; /* maximum runs of an undecided rate; odd */
    uint32_t runs;    /* maximum runs, RP_SWEEP_RUNS_MAX or fewer */
    /* Requests of a run: rate * seconds, clamped to these. In too short a run an overloaded
     * server's queue does not grow long enough to violate a bound: seconds should be many times the
     * bounds. */
    double seconds;
    uint32_t requests_min, requests_max;
    uint64_t seed;
};

/* RP_STATUS_INVALID names the field. */
int rp_sweep_check(const struct rp_sweep_config *config, struct rp_error *err) RP_MUST_USE;

/* The result of one run. */
struct rp_sweep_run {
    double rate;
    uint32_t requests; /* requests that count, including failed ones */
    uint32_t good;     /* good ones among them; failed ones never are */
    /* The client did not keep up (RP_LOAD_LAG_MAX_MS), and with bounds relaxed by twice its p99 lag
     * the run would have met the objective: the failure says nothing about the server. */
    bool client_slow;
    bool ended_early; /* good: an upper bound, see rp_sweep_is_lost */
};

/* Evaluates a measured run: requests that began at summary->counted_ns or later and were sent;
 * latencies count from the intended send time. With objective->each `good` is the smallest of the
 * counts per bound. */
struct rp_sweep_run rp_sweep_judge(const struct rp_sweep_objective *objective, double rate,
                                   const struct rp_load_records *records,
                                   const struct rp_load_summary *summary);

/* A run that lasts, at now_ns: whether so many requests have missed a bound that the run fails
 * clearly (its 90 % interval is below the objective) even if all others are good. A request without
 * a complete answer misses a bound once more time than that has passed. Requests that begin before
 * the first answer has ended do not count if exclude_warm_up. `plan` has the records' requests.
 * False as long as the client's greatest lag may be the cause: the run would end as client_slow. */
bool rp_sweep_is_lost(const struct rp_sweep_objective *objective, const struct rp_load_plan *plan,
                      const struct rp_load_records *records, bool exclude_warm_up, uint64_t now_ns);
/* Evaluates a run that ended at now_ns because it was lost: `good` counts the requests that could
 * still have been good. lag_ms: the client's at p99. */
struct rp_sweep_run rp_sweep_judge_lost(const struct rp_sweep_objective *objective, double rate,
                                        const struct rp_load_plan *plan,
                                        const struct rp_load_records *records, double lag_ms,
                                        bool exclude_warm_up, uint64_t now_ns);

/* Where to begin, from two closed loops: one request at a time, and all slots in use. */
struct rp_sweep_estimate {
    /* 80 % of the requests per second that the second loop completed; 0: none succeeded. If it was
     * too short for every slot to complete one, first tokens count instead. */
    double first_rate;
    /* Smallest latencies of a request alone in ms; 0: unknown. */
    double alone_ms[RP_LOAD_QUANTITIES];
    /* A request alone misses a bound: no rate meets the objective. */
    bool is_hopeless;
};
void rp_sweep_estimate_alone(const struct rp_sweep_objective *objective,
                             const struct rp_load_records *records, struct rp_sweep_estimate *out);
void rp_sweep_estimate_rate(const struct rp_load_records *records, uint32_t slots, uint64_t now_ns,
                            struct rp_sweep_estimate *out);

/* Requests of a run, so that a search which begins at `rate` ends within max_seconds (0: no limit):
 * 20 to 300. Fewer than 268 good requests do not decide a share of 0.99, so such runs are
 * repeated. */
uint32_t rp_sweep_requests_min(double rate, double max_seconds);

enum rp_sweep_verdict {
    RP_SWEEP_OPEN, /* undecided */
    RP_SWEEP_HOLDS,
    RP_SWEEP_BREAKS,
    RP_SWEEP_CLIENT_SLOW
};

/* All runs of one rate. */
struct rp_sweep_point {
    double rate;
    uint32_t runs, held, broke, client_slow; /* client_slow: inconclusive */
    uint64_t requests, good;                 /* without inconclusive runs */
    enum rp_sweep_verdict verdict;
    bool firm; /* decided by a majority of `repeats` */
};

enum rp_sweep_state {
    RP_SWEEP_GOES_ON,
    /* `holds` meets the objective; `breaks`, within the tolerance, does not */
    RP_SWEEP_FOUND,
    RP_SWEEP_NEVER_BROKE,  /* met even at max_rate */
    RP_SWEEP_NEVER_HELD,   /* not met even at min_rate */
    RP_SWEEP_CLIENT_LIMIT, /* the client does not keep up above `holds` */
    RP_SWEEP_OUT_OF_RUNS,
    RP_SWEEP_OUT_OF_TIME /* rp_sweep_measure only */
};

struct rp_sweep_step {
    enum rp_sweep_state state;
    double holds;  /* the highest rate below `breaks` that meets the objective so far; 0: none */
    double breaks; /* the lowest rate that fails it so far; 0: none */
    /* The next run, if the search continues. */
    double rate;
    uint32_t requests;
    uint64_t seed; /* below 2^53, so that JSON represents it exactly */
};

/* config must have passed rp_sweep_check; run_count at most RP_SWEEP_RUNS_MAX. */
struct rp_sweep_step rp_sweep_next(const struct rp_sweep_config *config,
                                   const struct rp_sweep_run *runs, uint32_t run_count);

/* Writes the rates tried in ascending order to out; returns their count, at most run_count. */
uint32_t rp_sweep_points(const struct rp_sweep_config *config, const struct rp_sweep_run *runs,
                         uint32_t run_count, struct rp_sweep_point *out);

#endif
