/* bench_decode.h - time per decode step of a model, and its share of the read bandwidth.
 *
 * The whole engine runs: scheduler, packets, graphs, sampling. It is created once, for the largest
 * batch and context; then each pair of them is measured separately. `batch` sequences of `context`
 * random prompt tokens each produce `tokens` more (plus those until the last prompt is processed);
 * of the steps in which all sequences decode, the first `warm_up` do not count. A step's time is
 * the time between the engine reading two consecutive results; the engine's own times of the same
 * steps are reported with it.
 *
 * Bytes of a step: every weight once (except the embedding table, which is only indexed), and K and
 * V of every sequence at its length in the middle of the run. Share = bytes / time / read
 * bandwidth.
 *
 * The bandwidth of a shared machine can change by half within a minute. The run therefore consists
 * of rounds: bandwidth, decode, bandwidth; a round's share compares its median step with the larger
 * of its two bandwidth readings, and the median of the rounds is reported with their spread. (A
 * GPU's bandwidth is measured once, before the engine allocates its memory.) No two sequences share
 * a page. All sequences run once before the rounds: this gives the prefill rate (all prompt tokens,
 * over the time until each sequence has its first token), and the rounds then find their prompts in
 * the prefix cache.
 *
 * The steps of all rounds count, in order, from the one at which they have settled (settled.h);
 * when they do not settle, or are fewer than 100, the result is unreliable, and all count. Shares
 * are computed from whole rounds. */
#ifndef RP_BENCH_BENCH_DECODE_H
#define RP_BENCH_BENCH_DECODE_H

#include "bench/bench_engine.h"

#define RP_BENCH_ROUNDS_MAX 32

struct rp_bench_decode_result {
    uint32_t batch, context;
    bool skipped; /* the KV pool is too small for this pair: nothing below is valid */
    double ms_p50, ms_p10, ms_p90, ms_p99, ms_mean;
    double device_ms_p50;            /* device time of a step, by the device's clock */
    double gap_us_p50, gap_us_p99;   /* device idle between two steps */
    double host_us_p50, host_us_p99; /* engine thread time of a step */
    double tokens_per_second;        /* over all sequences, from the median step */
    double bytes_per_step;
    double weight_bytes;
    double read_bandwidth_gbps;         /* GB/s, median of the rounds; 0: not measured */
    double achieved_gbps;               /* from the median step of all rounds */
    double share, share_min, share_max; /* median, minimum and maximum over the rounds */
    double prefill_tokens_per_second;
    uint32_t steps; /* steps that counted */
    bool reliable;
    uint32_t settled_after; /* leading steps, over all rounds in order, that do not count */
};

struct rp_bench_decode_config {
    struct rp_bench_target target;
    const uint32_t *batches, *contexts;
    uint32_t batch_count, context_count;
    uint32_t tokens, warm_up; /* tokens: per sequence and round */
    uint32_t rounds;          /* at most RP_BENCH_ROUNDS_MAX */
    bool no_bandwidth;        /* it is not measured: it and the shares are 0 */
    /* Called after each pair; contexts are the inner loop. */
    void (*report)(void *ctx, const struct rp_bench_ready *ready,
                   const struct rp_bench_decode_result *result);
    void *report_ctx;
};

/* Takes ownership of config->target.opened. */
int rp_bench_decode(const struct rp_bench_decode_config *config, struct rp_error *err) RP_MUST_USE;

#endif
