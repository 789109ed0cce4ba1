/* eval_ppl.h - perplexity of a text, and the difference between two models on it.
 *
 *   NLL of a token       -log p(token | those before it in the window), p the softmax of the logits
 *   perplexity           exp(mean NLL)
 *   KL divergence        sum over the vocabulary of q * (log q - log p), q the other model's; nats, per token
 *   top-1 agreement      share of tokens at which both have their largest logit at the same id (lowest of equals)
 *   logit difference     |logit - other's logit|, over all tokens and ids
 *   cosine               of both models' vectors of logits at a token
 *
 * The text is cut into windows that start `stride` tokens apart. A token attends only to earlier
 * tokens of its window; each token is counted once, in the first window that contains it. If the
 * tokenizer begins a text with a BOS, every window begins with it; otherwise a window's first token
 * is only context. Sums are in f64. */
#ifndef RP_BENCH_EVAL_PPL_H
#define RP_BENCH_EVAL_PPL_H

#include "bench/eval_run.h"

/* Results of one model alone. */
struct rp_eval_nll {
    double sum, sum_squares;
};

struct rp_eval_difference {
    double kl_sum, kl_max;
    double logit_max, logit_sum; /* absolute differences */
    double cosine_sum, cosine_min;
    double nll_sum,
        nll_square_sum; /* sums of the paired differences of NLL: the model's minus the other's */
    uint64_t top1_same;
};

struct rp_eval_sums {
    uint64_t tokens; /* tokens that were counted */
    uint32_t vocab;
    struct rp_eval_nll model, other;
    struct rp_eval_difference difference; /* only with another model */
};

/* Counts one token. other: the other model's logits, or NULL. False when a logit of either is not
 * finite or the target's probability is 0 (its logit minus infinity). */
bool rp_eval_count(struct rp_eval_sums *sums, const float *logits, const float *other,
                   uint32_t vocab, uint32_t target);

struct rp_eval_text {
    const int32_t *ids; /* (count), without a BOS */
    size_t count;
    int64_t bos; /* prepended to every window; below 0: none */
    uint32_t window,
        /* tokens, including a BOS; 1 <= stride < window, or the window's number of text tokens */
        stride;
};

/* other may be NULL. progress (tokens done, total) may be NULL. RP_STATUS_FORMAT: a logit is not
 * finite. */
int rp_eval_ppl(struct rp_eval_run *model, struct rp_eval_run *other,
                const struct rp_eval_text *text,
                void (*progress)(void *ctx, size_t done, size_t total), void *ctx,
                struct rp_eval_sums *out, struct rp_error *err) RP_MUST_USE;

#endif
