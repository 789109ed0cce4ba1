/* bench_step.h - benchmark of the device step alone: no engine, no scheduler; packets are written
 * by the benchmark.
 *
 * One bucket is captured for each case and replayed with run-ahead, as the engine does: step n + 1
 * is launched before step n is read. Decode: `batch` sequences of `context` tokens each; every few
 * steps an edit resets their lengths, so that the context stays nearly constant. Prefill: `batch`
 * new sequences of `context` tokens each, all in one step. Pages contain random values and are
 * scattered, as in a pool that has been in use.
 *
 *   step       time between two completed steps, as the host sees them: median and p99
 *   device     from a step's first kernel to its published result, by the device's clock
 *   gap        from a step's result to the next one's first kernel, by the same clock
 *   host       time of the host for a step: writing its packet, launching it, reading its results
 *
 * Bytes: every weight matrix of the step once (except the embedding table, which is only indexed)
 * and K and V of every sequence (backend/op_cost.h). The read bandwidth and, for prefill, the rate
 * of the largest GEMM are measured in the same run.
 *
 * Steps count from where they have settled (settled.h). If they have not settled within `steps` (at
 * least 100), the same number is run once more. A case that still has not settled, or has fewer
 * steps, is unreliable; all its steps count. */
#ifndef RP_BENCH_BENCH_STEP_H
#define RP_BENCH_BENCH_STEP_H

#include "bench/step_nodes.h"
#include "device/device.h"
#include "model/model.h"

#define RP_BENCH_STEP_CASES_MAX 64

struct rp_bench_step_config {
    const struct rp_backend *backend;
    struct rp_device *device; /* open; owned by the caller */
    uint32_t threads;         /* for the CPU's read bandwidth */
    const char *shape;        /* rp_model_shape: random weights; or NULL */
    const char *model_dir;    /* directory of a model, when shape is NULL */
    enum rp_dtype dtype;
    enum rp_dtype kv_dtype; /* type of KV pages */
    struct rp_model_quantization quantization;
    bool prompt;
    const uint32_t *batches; /* (batch_count) numbers of sequences */
    uint32_t batch_count;
    const uint32_t *contexts; /* (context_count); prompt: tokens of each prompt */
    uint32_t context_count;
    uint32_t max_model_len; /* capacity of page tables; 0: what the context needs */
    uint32_t steps;         /* after the warm-up, at least 2 */
    uint32_t warm_up;
    uint32_t stamp_every; /* one of this many steps is stamped; 0: none */
    bool enforce_eager, no_fusion;
    void (*progress)(void *ctx, const char *stage, uint32_t batch, uint32_t context);
    void *progress_ctx;
};

struct rp_bench_step {
    uint32_t batch, context;
    uint32_t steps; /* steps that counted */
    bool reliable;
    uint32_t settled_after; /* steps after the warm-up that did not count */
    double ms_p50, ms_p99, device_ms_p50;
    double gap_us_p50, gap_us_p99, host_us_p50, host_us_p99;
    double tokens_per_second; /* from the median */
    double weight_bytes, kv_bytes, flops;
    double gemm_flops; /* prefill: operations/s of the largest GEMM, repeated; else 0 */
    double capture_ms;
    size_t graph_bytes, arena_bytes;
    uint32_t launches;          /* launches of the lowered step */
    struct rp_step_nodes nodes; /* of stamped steps, including the warm-up's */
};

struct rp_bench_step_result {
    char device[96];
    enum rp_dtype kv_dtype;
    double read_bandwidth; /* bytes/s; 0: unknown */
    struct rp_bench_step cases[RP_BENCH_STEP_CASES_MAX];
    uint32_t case_count;
    uint32_t skipped; /* cases skipped for lack of memory */
};

/* When a case fails, *out contains the earlier results. NOT_FOUND: no such shape; RANGE: a context
 * beyond the model's positions, too many tokens for a step, or too many cases. */
int rp_bench_step(const struct rp_bench_step_config *config, struct rp_bench_step_result *out,
                  struct rp_error *err) RP_MUST_USE;

#endif
