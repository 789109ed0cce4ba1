/* bench_decode.h - time per decode step of a model, and its share of the machine's bandwidth.
 *
 * The whole engine runs: scheduler, packets, graphs, sampling. It is made once, for the largest of
 * the batches and contexts; then each pair of them is measured by itself. `batch` sequences of
 * `context` random prompt tokens each produce `tokens` more (and those that it takes until the last
 * of them has its prompt in); of the steps in which all of them decode the first `warm_up` do not
 * count. A step's time is the gap between the engine's reading of two consecutive results; beside
 * it stand the engine's own times of the same steps.
 *
 * Bytes of a step: every weight once (the embedding's rows apart), and K and V of every sequence at
 * its length in the middle of the run. Share = bytes / time / read bandwidth.
 *
 * A shared machine's bandwidth can change by half from one minute to the next. So the run goes in
 * rounds: bandwidth, decode, bandwidth; a round's share holds its median step against the larger of
 * its two readings, and the median of the rounds is reported with their spread. (A card's is read
 * once, before the engine takes its memory.) No two sequences share a page. Before the rounds all
 * run once: that gives the prompts' speed (all their tokens, over the time until each sequence has
 * its first answer), and the rounds find their prompts in the prefix cache.
 *
 * Of all rounds' steps, one after the other, those count that come after they have settled
 * (settled.h); when they have not, or are fewer than 100, the result is unreliable, and all count.
 * Shares are of whole rounds. */
#ifndef RP_BENCH_BENCH_DECODE_H
#define RP_BENCH_BENCH_DECODE_H

#include "bench/bench_engine.h"

#define RP_BENCH_ROUNDS_MAX 32

struct rp_bench_decode_result {
    uint32_t batch, context;
    bool left_out; /* the KV pool is too small for this pair: nothing below is measured */
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
    uint32_t steps; /* that counted */
    bool reliable;
    uint32_t settled_after; /* steps of all rounds, in their order, that do not count */
};

struct rp_bench_decode_config {
    struct rp_bench_target target;
    const uint32_t *batches, *contexts;
    uint32_t batch_count, context_count;
    uint32_t tokens, warm_up; /* tokens: of each sequence in each round */
    uint32_t rounds;          /* at most RP_BENCH_ROUNDS_MAX */
    /* After each pair: contexts within batches. */
    void (*report)(void *ctx, const struct rp_bench_ready *ready,
                   const struct rp_bench_decode_result *result);
    void *report_ctx;
};

/* Takes over config->target.opened. */
int rp_bench_decode(const struct rp_bench_decode_config *config, struct rp_error *err) RP_MUST_USE;

#endif
