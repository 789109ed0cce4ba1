/* bench_kernels.h - benchmark of every operator of a model shape separately, through a backend's
 * function table.
 *
 * For each operator and row count, a program with many repetitions of the operator is captured and
 * replayed. Its weights, pages and tensors rotate among enough copies to fill `cold_bytes`, so that
 * weights and pages are read from memory, as in a step (small tensors stay in the cache, as in a
 * step). A sample is the time between two waits for the device, over about 2 ms of replays, divided
 * by the number of operators; median and p99 are over the samples. The cost of the step's start
 * (required by attention's plan) is measured separately and subtracted.
 *
 * Bytes and operations are those of backend/op_cost.h. The read bandwidth is measured in the same
 * run; the reference rate of GEMMs is the best of all GEMMs of the run, including a large square
 * one if the device has its own memory. */
#ifndef RP_BENCH_BENCH_KERNELS_H
#define RP_BENCH_BENCH_KERNELS_H

#include "device/device.h"
#include "quant/rounding/quantize.h"

#define RP_BENCH_KERNELS_MAX 256

struct rp_model_config; /* model/model.h */

struct rp_bench_kernels_config {
    const struct rp_backend *backend;
    struct rp_device *device;            /* open; owned by the caller */
    uint32_t threads;                    /* CPU threads for the read bandwidth */
    const char *shape;                   /* rp_model_shape */
    const struct rp_model_config *model; /* used instead of a shape's name; may be NULL */
    enum rp_dtype dtype;
    enum rp_quant_scheme scheme; /* of GEMM weights; not with dtype F32 */
    const uint32_t *rows;        /* up to 256: decode rows; above: one prompt of that many tokens */
    const uint32_t *contexts;
    uint32_t row_count, context_count;
    const char *only;    /* only operators with this name prefix; NULL: all */
    uint64_t cold_bytes; /* 0: 512 MiB on the CPU, 256 MiB elsewhere */
    double case_seconds; /* maximum time per case; 0: 0.4 */
    double seconds;      /* approximate limit of the whole run; later cases are skipped */
    void (*progress)(void *ctx, const char *op, uint32_t rows); /* may be NULL */
    void *progress_ctx;
};

struct rp_bench_kernel {
    const char *op; /* static text */
    char kernel[64];
    uint32_t rows, context; /* context 0: not applicable */
    uint32_t samples, repeats;
    double us_p50, us_p99;
    double bytes, flops; /* of one operator, per repetition */
    /* 8-bit GEMMs: signal-to-noise ratio of the outputs against bf16, in dB; 0 for others. */
    double sqnr_db;
};

struct rp_bench_kernels_result {
    char device[96];
    double read_bandwidth; /* bytes/s */
    double gemm_flops;     /* operations/s of the fastest GEMM; 0: none was run */
    const char *gemm_op;   /* operator of the fastest GEMM */
    uint32_t gemm_rows;
    double seconds;
    struct rp_bench_kernel kernels[RP_BENCH_KERNELS_MAX];
    uint32_t kernel_count;
    uint32_t skipped; /* cases skipped for lack of time or memory */
};

/* When an operator fails, *out contains the earlier results, and err names the operator. */
int rp_bench_kernels(const struct rp_bench_kernels_config *config,
                     struct rp_bench_kernels_result *out, struct rp_error *err) RP_MUST_USE;

#endif
