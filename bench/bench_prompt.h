/* bench_prompt.h - time of one prompt as one step, and its share of the rate of a large product.
 *
 * The whole engine runs, for one sequence: a prompt of N random tokens, never the same one again and with the
 * prefix cache off, is one step of N tokens. Its time is the device's own (rp_engine_step_times).
 *
 * Operations of a step: 2 for each number of the layers' matrices and token, 2 for each number of the head (one
 * row), and attention's 4 * heads * head_dim for each pair of a query and a key that it sees. The bar is the
 * model's gate_up product with 2,048 rows by itself (bench_kernels.h), measured before the engine is made. */
#ifndef RP_BENCH_BENCH_PROMPT_H
#define RP_BENCH_BENCH_PROMPT_H

#include "bench/bench_engine.h"

struct rp_bench_prompt_result {
    uint32_t tokens, samples;
    double ms_p50, ms_p99, ms_min; /* of the step, by the device's clock */
    double first_token_ms_p50;     /* from submit to the event of the first token */
    double tokens_per_second;      /* from the median */
    double flops;                  /* of a step */
    double flops_per_second;       /* from the median */
    double product_flops;          /* per second, of the large product; 0: not measured */
    char product_kernel[64];
    double share;
};

struct rp_bench_prompt_config {
    /* .opened is for the product alone and may be opened with other numerics; it is closed, and another is
     * opened by .device for the engine. */
    struct rp_bench_target target;
    const uint32_t *tokens;
    uint32_t token_count, repetitions,
        warm_up; /* warm_up: prompts that do not count, of each length */
    void (*report)(void *ctx, const struct rp_bench_ready *ready,
                   const struct rp_bench_prompt_result *result); /* after each length */
    void *report_ctx;
};

/* Takes over config->target.opened. */
int rp_bench_prompt(const struct rp_bench_prompt_config *config, struct rp_error *err) RP_MUST_USE;

#endif
