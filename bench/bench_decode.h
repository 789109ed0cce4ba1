/* bench_decode.h - time per decode step of a model shape, and its share of the machine's bandwidth.
 *
 * The whole engine runs: scheduler, packets, graphs, sampling. `batch` sequences of `context` random
 * prompt tokens each produce `tokens` more; the first `warm_up` steps do not count. A step's time is the
 * gap between the engine's reading of two consecutive results.
 *
 * Bytes of a step: every weight once (the embedding's rows apart), and K and V of every sequence at its
 * length in the middle of the run. Share = bytes / time / read bandwidth, the bandwidth measured in the
 * same run with the same number of threads, before and after, the larger counts. */
#ifndef RP_BENCH_BENCH_DECODE_H
#define RP_BENCH_BENCH_DECODE_H

#include "device/program.h"

struct rp_bench_decode_config {
    const char *shape; /* rp_model_shape */
    enum rp_dtype dtype;
    uint32_t batch, context, tokens, warm_up, threads;
    bool run_ahead, enforce_eager, no_fusion;
};

struct rp_bench_decode_result {
    char device[96];
    double ms_p50, ms_p10, ms_p90, ms_mean;
    double tokens_per_second; /* of all sequences, from the median step */
    double bytes_per_step;
    double weight_bytes;
    double read_bandwidth_gbps;  /* 1e9 bytes per second */
    double achieved_gbps, share; /* of the median step */
    double prefill_tokens_per_second;
    uint32_t steps;
};

int rp_bench_decode(const struct rp_bench_decode_config *config, struct rp_bench_decode_result *out,
                    struct rp_error *err) RP_MUST_USE;

#endif
