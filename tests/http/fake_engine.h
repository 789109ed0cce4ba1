/* fake_engine.h - engine.h without a model, so that the server can be tested without kernels.
 *
 * Each answer repeats the request's prompt without its first token (BOS), so a test chooses the
 * answer by choosing the prompt. With answer_open: a prompt that has this token second is answered
 * with the tokens between it and answer_close, then answer_end. Masks are waited for and ignored.
 * All running requests get one token per step; a step takes step_us. Log-probabilities are computed
 * from ids: rp_fake_logprob. A stop id ends a request, as do max_tokens and `cancelled`. Seeds
 * select faults:
 *   9001  NaN in the third step        9002  the device fails in the third step
 *   9003  no step ends from now on, until the request is cancelled
 *   9005  invariants are broken from the third step to the end of the request */
#ifndef RP_TESTS_HTTP_FAKE_ENGINE_H
#define RP_TESTS_HTTP_FAKE_ENGINE_H

#include "engine/engine.h"

struct rp_fake_config {
    uint32_t max_num_seqs, queue_capacity, max_model_len, step_us;
    uint32_t kv_tokens;                            /* a request beyond it never fits */
    bool no_faults;                                /* seeds select no faults */
    int32_t answer_open, answer_close, answer_end; /* 0: prompts hold no answers */
    void (*wake)(void *ctx);
    void *wake_ctx;
};

struct rp_engine *rp_fake_engine_create(const struct rp_fake_config *config);
/* One step on the caller's thread, for an engine that is not started. */
void rp_fake_engine_step(struct rp_engine *engine);
/* Requests that were submitted and not closed; must be 0 at the end. */
uint32_t rp_fake_engine_open(const struct rp_engine *engine);

/* Log-probability of token t: -(t % 40 + 1) / 4, its rank t % 7 + 1; the likeliest are (t + 1), (t
 * + 2) ... below 263, at -1/8, -2/8 ... */
float rp_fake_logprob(int32_t token);

#endif
