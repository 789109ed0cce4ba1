/* quant_error.h - accuracy cost of 8-bit weights, reported by benchmarks with their speed.
 *
 * RP_QUANT_ERROR_TOKENS random tokens are run through the benchmark's model and through the same
 * weights without quantization, by the same graphs as serving (eval_run.h); their logits are
 * compared (eval_ppl.h). Random tokens are harder than text: use `reprise eval ppl` for the effect
 * on real text. One model is in memory at a time. */
#ifndef RP_BENCH_QUANT_ERROR_H
#define RP_BENCH_QUANT_ERROR_H

#include "bench/bench_engine.h"

#define RP_QUANT_ERROR_TOKENS 64u

struct rp_quant_error {
    uint32_t tokens; /* tokens compared; 0: no 8-bit weights */
    enum rp_dtype against;
    double cosine_mean, cosine_min; /* cosine of a token's logit vectors */
    double kl_mean;                 /* nats per token */
    double top1_share;              /* share of tokens with the same top id */
};

/* target->opened, if set, stays open. FORMAT: a logit is not finite. */
int rp_quant_error_measure(const struct rp_bench_target *target, struct rp_quant_error *out,
                           struct rp_error *err) RP_MUST_USE;

#endif
