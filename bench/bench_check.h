/* bench_check.h - measures what bench/expectations_*.json has baselines for.
 *
 *   programs      nodes of every captured bucket and a fingerprint of all: the demo model, and small random shapes of
 *                 the other families, fused and not
 *   steps         of a fixed load on the demo model, alone and batched: allocations after ready, bytes of packets,
 *                 events, wakes, calls of the device
 *   answers       hashes of greedy answers of the demo model: graph and eager, fused and not, run-ahead 0 and 1,
 *                 alone and batched
 *   precision     how far the demo model's logits are from those of scalar kernels in f32, in bf16 and in f32
 *   instructions  of the engine's host side and of a scalar step, for each token, by callgrind
 *   timings       decode steps; of one machine only
 *
 * All but the last are counted on the CPU's backend with one worker, and are the same on every
 * machine: what the scheduler does depends on the requests alone, programs on the model alone.
 * Instructions depend on the compiler (its name is in the metric); they are counted inside chosen
 * functions, outside of which waiting threads spin, and the step's with the scalar kernels, which
 * every processor has. Answers are sums and words that the model is sure of: kernels of different
 * processors round differently, which moves logits by about 1e-2 and such answers not at all.
 *
 * Thread: one. */
#ifndef RP_BENCH_BENCH_CHECK_H
#define RP_BENCH_BENCH_CHECK_H

#include "bench/expectations.h"
#include "device/device.h"

struct rp_check_config {
    const char *model_dir; /* of the demo model */
    const char *program;   /* this program's file, which callgrind runs */
    /* Planted faults, for tests (engine.h). */
    bool plant_node, plant_allocation;
    double slow_share;
};

/* Each adds its rows to *out. Without a backend the CPU's is taken. */
int rp_check_programs(const struct rp_check_config *config, const struct rp_backend *backend,
                      struct rp_expectations *out, struct rp_error *err) RP_MUST_USE;
int rp_check_steps(const struct rp_check_config *config, struct rp_expectations *out,
                   struct rp_error *err) RP_MUST_USE;
int rp_check_answers(const struct rp_check_config *config, struct rp_expectations *out,
                     struct rp_error *err) RP_MUST_USE;
int rp_check_precision(const struct rp_check_config *config, const struct rp_backend *backend,
                       struct rp_expectations *out, struct rp_error *err) RP_MUST_USE;
/* Where valgrind cannot be used the rows are skipped, with the reason. */
int rp_check_instructions(const struct rp_check_config *config, struct rp_expectations *out,
                          struct rp_error *err) RP_MUST_USE;
/* Takes over the device. */
int rp_check_timings(const struct rp_check_config *config, const struct rp_backend *backend,
                     struct rp_device *device, struct rp_expectations *out,
                     struct rp_error *err) RP_MUST_USE;

/* What callgrind runs: an engine on the CPU's backend, one worker, `rows` sequences of `tokens`
 * tokens each, at once. */
#define RP_COUNTED_ROWS_MAX 64
struct rp_counted_load {
    const char *model_dir;  /* NULL: a small random model */
    uint32_t rows, tokens;  /* 1 to RP_COUNTED_ROWS_MAX; at least 1 */
    uint32_t profile_every; /* as in rp_engine_config */
    bool no_recording;      /* likewise */
};
int rp_check_counted_load(const struct rp_counted_load *load, struct rp_error *err) RP_MUST_USE;

#endif
