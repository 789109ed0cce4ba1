/* check_internal.h - shared by the files of bench_check. */
#ifndef RP_BENCH_CHECK_INTERNAL_H
#define RP_BENCH_CHECK_INTERNAL_H

#include "bench/bench_check.h"
#include "bench/engine_run.h"

/* An engine with machine-independent counts: the CPU backend, one worker, a small pool, no
 * swapping. */
struct rp_engine_config rp_check_engine_config(const struct rp_check_config *config);

/* A random shape of a family: 3 layers, hidden 64. */
struct rp_model_config rp_check_shape(enum rp_family family);

int rp_check_no_memory(struct rp_error *err);

#endif
