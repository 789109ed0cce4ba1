/* bench_engine.h - an engine under measurement: its model, its startup times, and the times of its
 * steps.
 *
 * Thread: one, in the role of the engine's loop thread. Memory: rp_bench_engine_close frees all of
 * it. */
#ifndef RP_BENCH_BENCH_ENGINE_H
#define RP_BENCH_BENCH_ENGINE_H

#include "engine/engine.h"
#include "model/model.h"

#include <semaphore.h>

/* The model and device to measure. */
struct rp_bench_target {
    const struct rp_backend *backend; /* NULL: the CPU backend */
    /* a device opened by that backend, closed by the benchmark. NULL: not opened yet */
    struct rp_device *opened;
    struct rp_device_config device;
    const char *shape;             /* rp_model_shape, with random weights */
    const char *dir;               /* NULL, or the directory of a model, used instead of a shape */
    enum rp_dtype dtype, kv_dtype; /* of weights; of KV pages */
    struct rp_model_quantization quantization;
    bool run_ahead, enforce_eager, no_fusion;
};

/* Startup times, from the first byte of the weights until the engine could be started. */
struct rp_bench_ready {
    char device[96];
    double seconds, model_seconds; /* model_seconds: part of it, to read or generate the weights */
    /* capture time of all graphs; median and maximum of one */
    double capture_ms, capture_ms_median, capture_ms_largest;
    uint32_t graphs, graphs_failed;
    uint64_t arena_bytes; /* activation arena, shared by all graphs */
    /* device memory of the graphs, including loaded kernels; 0: the device has no memory of its
     * own */
    uint64_t graph_bytes;
    uint64_t argument_bytes; /* kernel arguments of all graphs, on the host */
    uint64_t kv_tokens;      /* capacity of the KV pool */
    uint32_t page_tokens;
};

struct rp_bench_engine {
    struct rp_model model;
    struct rp_engine *engine; /* NULL: not made */
    struct rp_bench_ready ready;
    struct rp_step_times *times; /* (RP_STEP_TIMES) result of rp_bench_engine_times */
    sem_t wake;                  /* posted after each event */
    bool on_gpu;
};

/* The configuration of the target's model. */
int rp_bench_model_config(const struct rp_bench_target *target, struct rp_model_config *out,
                          struct rp_error *err) RP_MUST_USE;
/* Whether the device has its own memory; it must be open. */
bool rp_bench_on_gpu(const struct rp_bench_target *target);
/* Creates the target's model for sequences of this many positions, not yet prepared for a device. A
 * GPU generates random weights itself, in a fraction of the time. */
int rp_bench_make_model(const struct rp_bench_target *target, uint32_t positions, bool on_gpu,
                        struct rp_model *out, struct rp_error *err) RP_MUST_USE;

/* Creates the model and the engine, and starts it; takes ownership of target->opened, also on
 * failure. Only max_num_seqs, max_num_batched_tokens, max_model_len and prefix_cache of *sizes are
 * read. Call close in any case. */
int rp_bench_engine_open(const struct rp_bench_target *target, const struct rp_engine_config *sizes,
                         struct rp_bench_engine *out, struct rp_error *err) RP_MUST_USE;
void rp_bench_engine_close(struct rp_bench_engine *bench);

/* Call after every request closed: waits until the engine thread is idle. RP_STATUS_DEVICE: the
 * engine has failed. */
int rp_bench_wait_idle(const struct rp_engine *engine, struct rp_error *err) RP_MUST_USE;
/* Copies the times of the steps after the first `since` (rp_engine_steps_timed), oldest first, to
 * bench->times; returns their count. The engine must be idle. If more than RP_STEP_TIMES, the last
 * ones. */
uint32_t rp_bench_engine_times(struct rp_bench_engine *bench, uint64_t since);

/* Sorts values. count 0: 0. */
double rp_bench_quantile(double *values, uint32_t count, double q);

#endif
