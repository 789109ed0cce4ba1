/* eval_ppl.h - how likely a text is to a model, and how far the model is from another one on it.
 *
 *   NLL of a token       -log p(token | those before it in the window), p the softmax of the logits
 *   perplexity           exp(mean NLL)
 *   KL divergence        sum over the vocabulary of q * (log q - log p), q the other model's; nats, per token
 *   top-1 agreement      share of tokens at which both have their largest logit at the same id (lowest of equals)
 *   logit difference     |logit - other's logit|, over all tokens and ids
 *   cosine               of both models' vectors of logits at a token
 *
 * The text is cut into windows, which start `stride` tokens apart. A window's tokens see those
 * before them in the window alone; each token is counted once, in the first window that reaches it.
 * Where a tokenizer begins a text with a BOS, every window begins with it; else a window's first
 * token is context only. Sums are in f64. */
#ifndef RP_BENCH_EVAL_PPL_H
#define RP_BENCH_EVAL_PPL_H

#include "bench/eval_run.h"

/* Results of one model by itself. */
struct rp_eval_nll {
    double sum, sum_squares;
};

struct rp_eval_difference {
    double kl_sum, kl_max;
    double logit_max, logit_sum; /* absolute differences */
    double cosine_sum, cosine_min;
    double nll_sum,
        nll_square_sum; /* of the difference of NLLs, paired: the model's minus the other's */
    uint64_t top1_same;
};

struct rp_eval_sums {
    uint64_t tokens; /* that were counted */
    uint32_t vocab;
    struct rp_eval_nll model, other;
    struct rp_eval_difference difference; /* with another model only */
};

/* Counts one token. other: the other model's logits, or NULL. False when a logit of either is not
 * finite or the target's probability is 0 (its logit minus infinity). */
bool rp_eval_count(struct rp_eval_sums *sums, const float *logits, const float *other,
                   uint32_t vocab, uint32_t target);

struct rp_eval_text {
    const int32_t *ids; /* (count), without a BOS */
    size_t count;
    int64_t bos; /* begins every window; below 0: none */
    uint32_t window,
        stride; /* tokens, a BOS included; 1 <= stride < window, or the window's tokens of text */
};

/* other may be NULL. progress may be NULL: tokens done, of all. RP_STATUS_FORMAT: a logit is no
 * number. */
int rp_eval_ppl(struct rp_eval_run *model, struct rp_eval_run *other,
                const struct rp_eval_text *text,
                void (*progress)(void *ctx, size_t done, size_t total), void *ctx,
                struct rp_eval_sums *out, struct rp_error *err) RP_MUST_USE;

#endif
