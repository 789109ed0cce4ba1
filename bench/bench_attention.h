/* bench_attention.h - benchmark of the attention operator alone, through a backend's function
 * table: by kind, batch, length, heads, page size and mask.
 *
 * Decode: `batch` sequences of `length` tokens, one query each at the last position. Prefill:
 * `batch` new sequences, all their tokens in one step. A sequence's pages are scattered, as in a
 * pool that has been in use. A graph with many repetitions of the operator is replayed; its tensors
 * and pages rotate among enough copies to fill `cold_bytes`, so that K and V are read from memory.
 * Samples are those of replay_time.h; the cost of the step's start (the attention plan, shared by
 * all layers) is measured separately and subtracted.
 *
 * Bytes: K and V that some query reads under the mask, once. Operations: 4 * head_dim per unmasked
 * pair of query head and key. Read bandwidth and the rate of a large square GEMM, the fastest of
 * several, are measured in the same run. Thread: the device's. */
#ifndef RP_BENCH_BENCH_ATTENTION_H
#define RP_BENCH_BENCH_ATTENTION_H

#include "bench/attention_shape.h"
#include "device/device.h"

#define RP_BENCH_ATTENTION_MAX 64

struct rp_bench_attention_config {
    const struct rp_backend *backend;
    struct rp_device *device; /* open; owned by the caller */
    uint32_t threads;         /* CPU threads for the read bandwidth */
    enum rp_dtype dtype;      /* type of pages and of the output */
    enum rp_dtype quantized;  /* INT8 or FP8_E4M3: type of pages instead; else ignored */
    const struct rp_attention_shape *shapes;
    uint32_t shape_count;
    /* n, k and rows of the square GEMM, a multiple of 64; 0: 8192, or 1024 on a device without its
     * own memory */
    uint32_t gemm_size;
    uint64_t cold_bytes; /* 0: 512 MiB */
    double case_seconds; /* maximum time per case; 0: 0.6 */
    double seconds;      /* approximate limit of the whole run; later cases are skipped */
    /* instead of timing: write inputs and outputs of every shape to files (attention_case.h) */
    const char *dump_dir;
    void (*progress)(void *ctx, const struct rp_attention_shape *shape); /* may be NULL */
    void *progress_ctx;
};

struct rp_bench_attention {
    struct rp_attention_shape shape; /* with the page_tokens and scale that were used */
    char kernel[64];
    uint32_t samples, repeats, copies;
    double us_min, us_p50, us_p99;
    double start_us; /* start of a replay: STEP_BEGIN and the attention plan */
    double bytes, flops;
};

struct rp_bench_attention_result {
    char device[96];
    double read_bandwidth; /* bytes/s; 0: not measured */
    double gemm_flops;     /* operations/s of the large GEMM */
    double seconds;
    struct rp_bench_attention cases[RP_BENCH_ATTENTION_MAX];
    uint32_t case_count;
    uint32_t skipped; /* shapes skipped for lack of time or memory */
};

/* When a shape fails, *out contains the earlier results, and err names the shape. RP_STATUS_RANGE:
 * too many shapes. */
int rp_bench_attention(const struct rp_bench_attention_config *config,
                       struct rp_bench_attention_result *out, struct rp_error *err) RP_MUST_USE;

#endif
