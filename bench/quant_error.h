/* quant_error.h - what 8 bits cost in accuracy, for a benchmark to say beside its speed.
 *
 * RP_QUANT_ERROR_TOKENS tokens of noise go through the benchmark's model and through the same
 * weights without 8 bits, by the graphs that serve (eval_run.h); their logits are compared
 * (eval_ppl.h). Noise is harder than text: for what a model's users would notice there is `reprise
 * eval ppl`. One model is in memory at a time. */
#ifndef RP_BENCH_QUANT_ERROR_H
#define RP_BENCH_QUANT_ERROR_H

#include "bench/bench_engine.h"

#define RP_QUANT_ERROR_TOKENS 64u

struct rp_quant_error {
    uint32_t tokens; /* compared; 0: nothing has 8 bits */
    enum rp_dtype against;
    double cosine_mean, cosine_min; /* of the logits of a token */
    double kl_mean;                 /* nats a token */
    double top1_share;              /* tokens whose largest logit is the same id's */
};

/* target->opened, where there is one, stays open. FORMAT: a logit is no number. */
int rp_quant_error_measure(const struct rp_bench_target *target, struct rp_quant_error *out,
                           struct rp_error *err) RP_MUST_USE;

#endif
