/* bench_engine.h - an engine that is measured: its model, how it became ready, and the times of its
 * steps.
 *
 * Thread: one, which stands for the engine's loop thread. Memory: rp_bench_engine_close frees all
 * of it. */
#ifndef RP_BENCH_BENCH_ENGINE_H
#define RP_BENCH_BENCH_ENGINE_H

#include "engine/engine.h"
#include "model/model.h"

#include <semaphore.h>

/* What is measured, and on what. */
struct rp_bench_target {
    const struct rp_backend *backend; /* NULL: the CPU's */
    struct rp_device *opened; /* by that backend, for the benchmark to close. NULL: none yet */
    struct rp_device_config device;
    const char *shape; /* rp_model_shape, with random weights */
    const char *dir;   /* NULL, or the directory of a model: its own weights, and no shape */
    enum rp_dtype dtype, kv_dtype; /* of matrices; of pages */
    struct rp_model_quantization quantization;
    bool run_ahead, enforce_eager, no_fusion;
};

/* From the first byte of the weights until the engine could be started. */
struct rp_bench_ready {
    char device[96];
    double seconds, model_seconds; /* model_seconds: of them, to read or make the weights */
    double capture_ms, capture_ms_median, capture_ms_largest; /* of all graphs; of one */
    uint32_t graphs, graphs_failed;
    uint64_t arena_bytes; /* shared by all graphs */
    /* on the device, loaded kernels included; 0: it has no memory of its own */
    uint64_t graph_bytes;
    uint64_t argument_bytes; /* of all graphs, on the host */
    uint64_t kv_tokens;      /* that the pool holds */
    uint32_t page_tokens;
};

struct rp_bench_engine {
    struct rp_model model;
    struct rp_engine *engine; /* NULL: not made */
    struct rp_bench_ready ready;
    struct rp_step_times *times; /* (RP_STEP_TIMES) of rp_bench_engine_times */
    sem_t wake;                  /* posted after each event */
    bool on_card;
};

/* The configuration of the target's model. */
int rp_bench_model_config(const struct rp_bench_target *target, struct rp_model_config *out,
                          struct rp_error *err) RP_MUST_USE;
/* Whether the device has memory of its own; it must be open. */
bool rp_bench_on_card(const struct rp_bench_target *target);
/* The target's model for sequences of so many positions, not yet prepared for a device. A card
 * makes random weights by itself, in a fraction of the time. */
int rp_bench_make_model(const struct rp_bench_target *target, uint32_t positions, bool on_card,
                        struct rp_model *out, struct rp_error *err) RP_MUST_USE;

/* Makes the model and the engine, and starts it; takes over target->opened, also when it fails. Of
 * *sizes only max_num_seqs, max_num_batched_tokens, max_model_len and prefix_cache are read. Close
 * it in any case. */
int rp_bench_engine_open(const struct rp_bench_target *target, const struct rp_engine_config *sizes,
                         struct rp_bench_engine *out, struct rp_error *err) RP_MUST_USE;
void rp_bench_engine_close(struct rp_bench_engine *bench);

/* After every request closed: waits until the thread is at rest. RP_STATUS_DEVICE: the engine has
 * failed. */
int rp_bench_engine_rest(struct rp_bench_engine *bench, struct rp_error *err) RP_MUST_USE;
/* Times of the steps that came after the first `since` ones (rp_engine_steps_timed), oldest first,
 * in bench->times; returns how many. The engine is at rest. More than RP_STEP_TIMES: the last
 * ones. */
uint32_t rp_bench_engine_times(struct rp_bench_engine *bench, uint64_t since);

/* Sorts values. count 0: 0. */
double rp_bench_quantile(double *values, uint32_t count, double q);

#endif
