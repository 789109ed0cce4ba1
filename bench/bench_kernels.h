/* bench_kernels.h - every operator of a model shape by itself, through the table of a backend
 * alone.
 *
 * For each operator and number of rows, a program that holds the operator many times is captured
 * and replayed. Its weights, pages and tensors rotate among as many copies as it takes to fill
 * `cold_bytes`, so that weights and pages come from memory, as in a step (small tensors stay in the
 * cache, as in a step). A sample is the time between two waits for the device, over as many replays
 * as last about 2 ms, divided by the operators in it; median and p99 are of the samples. What the
 * start of a step costs (attention's plan needs it) is measured apart and taken off.
 *
 * Bytes and operations are those of backend/op_cost.h. The read bandwidth is measured in the same
 * run; the rate that products are held against is the best of all products of the run, a large
 * square one included where the device has memory of its own. */
#ifndef RP_BENCH_BENCH_KERNELS_H
#define RP_BENCH_BENCH_KERNELS_H

#include "device/device.h"
#include "quant/rounding/quantize.h"

#define RP_BENCH_KERNELS_MAX 256

struct rp_model_config; /* model/model.h */

struct rp_bench_kernels_config {
    const struct rp_backend *backend;
    struct rp_device *device;            /* open; the caller's */
    uint32_t threads;                    /* of the CPU: for its read bandwidth */
    const char *shape;                   /* rp_model_shape */
    const struct rp_model_config *model; /* instead of a shape's name, or NULL */
    enum rp_dtype dtype;
    enum rp_quant_scheme scheme; /* of products' weights; not with dtype F32 */
    const uint32_t *rows;        /* up to 256: decode; above: one prompt of that many tokens */
    const uint32_t *contexts;
    uint32_t row_count, context_count;
    const char *only;    /* operators whose name begins so; NULL: all */
    uint64_t cold_bytes; /* 0: 512 MiB on the CPU, 256 MiB elsewhere */
    double case_seconds; /* at most, of one case; 0: 0.4 */
    double seconds; /* what the whole run may take, about; cases that come later are left out */
    void (*progress)(void *ctx, const char *op, uint32_t rows); /* may be NULL */
    void *progress_ctx;
};

struct rp_bench_kernel {
    const char *op; /* static text */
    char kernel[64];
    uint32_t rows, context; /* context 0: it has none */
    uint32_t samples, repeats;
    double us_p50, us_p99;
    double bytes, flops; /* of one operator */
    /* 8-bit GEMMs: signal-to-noise ratio of the outputs against bf16, in dB; 0 for others. */
    double sqnr_db;
};

struct rp_bench_kernels_result {
    char device[96];
    double read_bandwidth;  /* bytes per second */
    double product_flops;   /* per second, of the fastest product; 0: there was none */
    const char *product_op; /* which one that was */
    uint32_t product_rows;
    double seconds;
    struct rp_bench_kernel kernels[RP_BENCH_KERNELS_MAX];
    uint32_t kernel_count;
    uint32_t left_out; /* cases for which there was no time or memory */
};

/* When an operator fails, *out holds what was measured before, and err names it. */
int rp_bench_kernels(const struct rp_bench_kernels_config *config,
                     struct rp_bench_kernels_result *out, struct rp_error *err) RP_MUST_USE;

#endif
