/* load_sweep_run.h - executes a sweep against a server: the runs requested by rp_sweep_next, one
 * after another.
 * Thread: one. */
#ifndef RP_BENCH_LOAD_SWEEP_RUN_H
#define RP_BENCH_LOAD_SWEEP_RUN_H

#include "bench/load/load_plan.h"
#include "bench/load/load_sweep.h"

struct rp_sweep_measured {
    struct rp_load_source source; /* source of this run: its rate, count and seed */
    struct rp_load_summary summary;
    struct rp_sweep_run run;
};

struct rp_sweep_result {
    struct rp_sweep_run runs[RP_SWEEP_RUNS_MAX];
    struct rp_sweep_measured *measured; /* (run_count), in the same order; freed by rp_sweep_free */
    uint32_t run_count;
    struct rp_sweep_step end; /* GOES_ON: it was stopped early */
};

struct rp_sweep_session {
    const struct rp_sweep_config *config;
    const struct rp_sweep_objective *objective;
    const struct rp_load_source *source; /* rate, count and seed are set by the sweep */
    const struct rp_load_run_options *options;
    bool exclude_warm_up;
    /* On rp_clock_ns: the search ends then, and a run in progress is dropped; 0: none. */
    uint64_t deadline_ns;
    /* Called before and after each run; may be NULL. */
    void (*before)(void *context, uint32_t index, const struct rp_sweep_step *step);
    void (*after)(void *context, uint32_t index, const struct rp_sweep_measured *measured);
    void *context;
};

/* Returns the error of a run that could not be measured; *out contains the earlier runs. A run that
 * was stopped (options->stop) is dropped, and the sweep ends. */
int rp_sweep_measure(const struct rp_sweep_session *session, struct rp_sweep_result *out,
                     struct rp_error *err) RP_MUST_USE;

/* Runs the two loops of struct rp_sweep_estimate, each for at most `seconds`. */
int rp_sweep_estimate(const struct rp_sweep_session *session, uint32_t slots, double seconds,
                      struct rp_sweep_estimate *out, struct rp_error *err) RP_MUST_USE;
void rp_sweep_free(struct rp_sweep_result *result);

#endif
