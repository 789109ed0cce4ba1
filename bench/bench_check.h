/* bench_check.h - measures the metrics that have baselines in bench/expectations_*.json.
 *
 *   programs      nodes of every captured bucket and a fingerprint of all: the demo model, and small random shapes of
 *                 the other families, fused and not
 *   steps         of a fixed load on the demo model, alone and batched: allocations after ready, bytes of packets,
 *                 events, wakes, calls of the device
 *   answers       hashes of greedy answers of the demo model: graph and eager, fused and not, run-ahead 0 and 1,
 *                 alone and batched
 *   precision     how far the demo model's logits are from those of scalar kernels in f32, in bf16 and in f32
 *   instructions  of the engine's host side and of a scalar step, for each token, by callgrind
 *   timings       decode steps and prompts; of one machine only
 *
 * All but the last are counted on the CPU backend with one worker, and are the same on every
 * machine: the scheduler's decisions depend only on the requests, programs only on the model.
 * Instruction counts depend on the compiler (its name is part of the metric); they are counted
 * inside selected functions, since waiting threads spin elsewhere, and for the step with the scalar
 * kernels, which every CPU has. Answers are ones with a large margin between the top logits:
 * kernels of different CPUs round differently, which changes logits by about 1e-2, but not such
 * answers.
 *
 * Thread: one. */
#ifndef RP_BENCH_BENCH_CHECK_H
#define RP_BENCH_BENCH_CHECK_H

#include "bench/expectations.h"
#include "device/device.h"

struct rp_check_config {
    const char *model_dir; /* directory of the demo model */
    const char *program;   /* path of this program, which callgrind runs */
    /* Planted faults, for tests (engine.h). */
    bool plant_node, plant_allocation;
    double slow_share;
    /* Timings. */
    const char *timed_shape; /* NULL or "": llama-3.1-8b on a GPU, the demo's elsewhere */
    uint32_t timed_context;  /* prompt tokens; 0: 512 */
    const char *cache_dir;   /* as in rp_device_config */
    uint32_t repeats;        /* runs of all timings; 0: 1, at most RP_CHECK_REPEATS_MAX */
};
#define RP_CHECK_REPEATS_MAX 9u

/* Each adds its rows to *out. Without a backend the CPU's is used. */
int rp_check_programs(const struct rp_check_config *config, const struct rp_backend *backend,
                      struct rp_expectations *out, struct rp_error *err) RP_MUST_USE;
int rp_check_steps(const struct rp_check_config *config, struct rp_expectations *out,
                   struct rp_error *err) RP_MUST_USE;
int rp_check_answers(const struct rp_check_config *config, struct rp_expectations *out,
                     struct rp_error *err) RP_MUST_USE;
int rp_check_precision(const struct rp_check_config *config, const struct rp_backend *backend,
                       struct rp_expectations *out, struct rp_error *err) RP_MUST_USE;
/* Without valgrind the rows are marked as skipped, with the reason. */
int rp_check_instructions(const struct rp_check_config *config, struct rp_expectations *out,
                          struct rp_error *err) RP_MUST_USE;
/* Decode steps and prompts; on a GPU also with FP8 weights. Takes ownership of the device. */
int rp_check_timings(const struct rp_check_config *config, const struct rp_backend *backend,
                     struct rp_device *device, struct rp_expectations *out,
                     struct rp_error *err) RP_MUST_USE;

/* Adds to *out each metric of the first run with its median over all runs (at most
 * RP_CHECK_REPEATS_MAX), and with the range of the values as its spread if that is larger. False
 * when memory is out. */
bool rp_check_merge(const struct rp_expectations *runs, uint32_t count,
                    struct rp_expectations *out) RP_MUST_USE;

/* The workload under callgrind: an engine on the CPU backend, one worker, `rows` concurrent
 * sequences of `tokens` tokens each. */
#define RP_COUNTED_ROWS_MAX 64
struct rp_counted_load {
    const char *model_dir;  /* NULL: a small random model */
    uint32_t rows, tokens;  /* 1 to RP_COUNTED_ROWS_MAX; at least 1 */
    uint32_t profile_every; /* as in rp_engine_config */
    bool no_recording;      /* likewise */
};
int rp_check_counted_load(const struct rp_counted_load *load, struct rp_error *err) RP_MUST_USE;

#endif
