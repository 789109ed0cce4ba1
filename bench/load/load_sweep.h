/* load_sweep.h - finds the highest rate of requests at which a server still holds an objective.
 *
 * A pure function of the results so far gives the next rate to try; whoever calls sends the
 * requests. It grows the rate until the objective breaks (or lowers it until it holds), then
 * bisects by ratio. Noise: latencies of one run hang together, so a run is one observation, however
 * many requests it has. A run whose share of good requests lies clearly on one side of the
 * objective (its Wilson interval of 90 % leaves the objective out) settles a rate for the time
 * being; any other is repeated until a majority of `repeats` runs agrees. Both ends of the last
 * bracket need such a majority before they are believed, and an end that falls moves the search.
 *
 * Every run has its own seed: a server's prefix cache must not know the prompts of the last one.
 *
 * Thread: any; nothing is kept between calls. */
#ifndef RP_BENCH_LOAD_SWEEP_H
#define RP_BENCH_LOAD_SWEEP_H

#include "bench/load/load_metrics.h"

#define RP_SWEEP_RUNS_MAX 256u

/* What a good request is, and how many must be. */
struct rp_sweep_objective {
    const char *name, *summary; /* of a preset */
    struct rp_load_goodput bounds;
    /* Each bound by itself holds for `share` of the requests: with 0.99 that is a bound on the p99
     * of each quantity, as MLPerf has them. Otherwise share of the requests must be within all
     * bounds at once. */
    bool each;
    double share;
};

/* MLPerf inference's server and interactive scenarios; NULL: no such name. i-th preset: NULL behind
 * the last. */
const struct rp_sweep_objective *rp_sweep_preset(const char *name);
const struct rp_sweep_objective *rp_sweep_preset_at(uint32_t i);

struct rp_sweep_config {
    double share;      /* of good requests that the objective asks for, above 0 and below 1 */
    double first_rate; /* requests per second */
    double min_rate, max_rate; /* tried at most; below min_rate nothing is looked for */
    double growth;             /* above 1 */
    double tolerance;          /* the bracket's width relative to the answer, 0.005 or more */
    uint32_t repeats;          /* runs at most of a rate that is not clear; odd */
    uint32_t runs;             /* at most, RP_SWEEP_RUNS_MAX or fewer */
    /* Requests of a run: rate * seconds within these. Too short a run of a server that falls behind
     * ends before its queue is long enough to break anything: seconds should be many times the
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
    uint32_t requests; /* that counted, failed ones too */
    uint32_t good;     /* of them; failed ones never are */
    /* The client did not keep up (RP_LOAD_LAG_MAX_MS), and with bounds that are wider by twice its
     * lag at p99 the run would have held: that it breaks says nothing about the server. */
    bool client_slow;
};

/* A measured run: requests that began at summary->counted_ns or later and were sent; latencies
 * count from the intended time. With objective->each `good` is the smallest of the counts within
 * one bound. */
struct rp_sweep_run rp_sweep_judge(const struct rp_sweep_objective *objective, double rate,
                                   const struct rp_load_records *records,
                                   const struct rp_load_summary *summary);

enum rp_sweep_verdict {
    RP_SWEEP_OPEN, /* not clear yet */
    RP_SWEEP_HOLDS,
    RP_SWEEP_BREAKS,
    RP_SWEEP_CLIENT_SLOW
};

/* All runs of one rate. */
struct rp_sweep_point {
    double rate;
    uint32_t runs, held, broke, client_slow; /* client_slow: said nothing */
    uint64_t requests, good;                 /* without those */
    enum rp_sweep_verdict verdict;
    bool firm; /* a majority of `repeats` agrees */
};

enum rp_sweep_state {
    RP_SWEEP_GOES_ON,
    RP_SWEEP_FOUND,        /* `holds` does, and `breaks`, within the tolerance, does not */
    RP_SWEEP_NEVER_BROKE,  /* not at max_rate either */
    RP_SWEEP_NEVER_HELD,   /* not at min_rate either */
    RP_SWEEP_CLIENT_LIMIT, /* above `holds` the client does not keep up */
    RP_SWEEP_OUT_OF_RUNS
};

struct rp_sweep_step {
    enum rp_sweep_state state;
    double holds;  /* the highest rate below `breaks` that holds so far; 0: none */
    double breaks; /* the lowest rate that breaks so far; 0: none */
    /* What to run next, when it goes on. */
    double rate;
    uint32_t requests;
    uint64_t seed; /* below 2^53, so that JSON holds it */
};

/* config passed rp_sweep_check; run_count at most RP_SWEEP_RUNS_MAX. */
struct rp_sweep_step rp_sweep_next(const struct rp_sweep_config *config,
                                   const struct rp_sweep_run *runs, uint32_t run_count);

/* The rates tried, rising, into out; their count, at most run_count. */
uint32_t rp_sweep_points(const struct rp_sweep_config *config, const struct rp_sweep_run *runs,
                         uint32_t run_count, struct rp_sweep_point *out);

#endif
