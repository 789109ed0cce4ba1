/* bench_decode.h - time per decode step of a model shape, and its share of the machine's bandwidth.
 *
 * The whole engine runs: scheduler, packets, graphs, sampling. `batch` sequences of `context` random
 * prompt tokens each produce `tokens` more; the first `warm_up` steps do not count. A step's time is the
 * gap between the engine's reading of two consecutive results.
 *
 * Bytes of a step: every weight once (the embedding's rows apart), and K and V of every sequence at its
 * length in the middle of the run. Share = bytes / time / read bandwidth.
 *
 * A shared machine's bandwidth can change by half from one minute to the next. So the run goes in rounds:
 * bandwidth, decode, bandwidth; a round's share holds its median step against the larger of its two
 * readings, and the median of the rounds is reported with their spread. No two sequences share a page. Before
 * the rounds all run once: that gives the prompts' speed (all their tokens, over the time until each
 * sequence has its first answer), and the rounds find their prompts in the prefix cache. */
#ifndef RP_BENCH_BENCH_DECODE_H
#define RP_BENCH_BENCH_DECODE_H

#include "device/device.h"

#define RP_BENCH_ROUNDS_MAX 32

struct rp_bench_decode_config {
    const struct rp_backend *backend; /* NULL: the CPU's */
    struct rp_device *opened; /* by that backend; rp_bench_decode takes it over. NULL: none yet */
    struct rp_device_config device;
    const char *shape; /* rp_model_shape */
    enum rp_dtype dtype;
    uint32_t batch, context, tokens, warm_up; /* tokens: of each sequence in each round */
    uint32_t rounds;                          /* at most RP_BENCH_ROUNDS_MAX */
    bool run_ahead, enforce_eager, no_fusion;
};

struct rp_bench_decode_result {
    char device[96];
    double ms_p50, ms_p10, ms_p90, ms_p99, ms_mean;
    double device_ms_p50;            /* of a step, by the device's clock */
    double gap_us_p50, gap_us_p99;   /* device idle between two steps */
    double host_us_p50, host_us_p99; /* the engine thread's part of a step */
    double tokens_per_second;        /* of all sequences, from the median step */
    double bytes_per_step;
    double weight_bytes;
    double read_bandwidth_gbps; /* 1e9 bytes per second; median of the rounds; 0: not measured */
    double achieved_gbps;       /* of the median step of all rounds */
    double share, share_min, share_max; /* median, least and largest of the rounds */
    double prefill_tokens_per_second;
    uint32_t steps;
};

int rp_bench_decode(const struct rp_bench_decode_config *config, struct rp_bench_decode_result *out,
                    struct rp_error *err) RP_MUST_USE;

#endif
