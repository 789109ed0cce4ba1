/* bench_attention.h - attention by itself, through the table of a backend: by kind, batch, length,
 * heads, page and mask.
 *
 * Decode: `batch` sequences of `length` tokens, one query each at the last position. Prompt:
 * `batch` sequences without a past, all their tokens in one step. Pages of a sequence lie apart, as
 * in a pool that was used for a while. A graph that holds the operator many times is replayed; its
 * tensors and pages rotate among as many copies as it takes to fill `cold_bytes`, so that K and V
 * come from memory. A sample is replay_time.h's; what the start of a step costs (the plan, which
 * all layers share) is measured apart and taken off.
 *
 * Bytes: K and V that the mask lets some query read, once. Operations: 4 * head_dim for each pair
 * of a query head and a key that meet. Read bandwidth and the rate of a large square product, its
 * fastest one, are measured in the same run. Thread: the device's. */
#ifndef RP_BENCH_BENCH_ATTENTION_H
#define RP_BENCH_BENCH_ATTENTION_H

#include "bench/attention_shape.h"
#include "device/device.h"

#define RP_BENCH_ATTENTION_MAX 64

struct rp_bench_attention_config {
    const struct rp_backend *backend;
    struct rp_device *device; /* open; the caller's */
    uint32_t threads;         /* of the CPU: for its read bandwidth */
    enum rp_dtype dtype;      /* of pages and of what is written */
    const struct rp_attention_shape *shapes;
    uint32_t shape_count;
    /* n, k and rows of the square product, times 64; 0: 8192, or 1024 without memory of its own */
    uint32_t product_size;
    uint64_t cold_bytes; /* 0: 512 MiB */
    double case_seconds; /* at most, of one case; 0: 0.6 */
    double seconds; /* what the whole run may take, about; cases that come later are left out */
    /* instead of times: inputs and outputs of every shape, into files (attention_case.h) */
    const char *dump_dir;
    void (*progress)(void *ctx, const struct rp_attention_shape *shape); /* may be NULL */
    void *progress_ctx;
};

struct rp_bench_attention {
    struct rp_attention_shape shape; /* page_tokens and scale as they were used */
    char kernel[64];
    uint32_t samples, repeats, copies;
    double us_min, us_p50, us_p99;
    double start_us; /* of a replay: the step's begin and the plan */
    double bytes, flops;
};

struct rp_bench_attention_result {
    char device[96];
    double read_bandwidth; /* bytes per second; 0: not measured */
    double product_flops;  /* per second */
    double seconds;
    struct rp_bench_attention cases[RP_BENCH_ATTENTION_MAX];
    uint32_t case_count;
    uint32_t left_out; /* for which there was no time or memory */
};

/* When a shape fails, *out holds what was measured before, and err names it. RP_STATUS_RANGE: too
 * many shapes. */
int rp_bench_attention(const struct rp_bench_attention_config *config,
                       struct rp_bench_attention_result *out, struct rp_error *err) RP_MUST_USE;

#endif
