/* step_cpu.h - the two ends of a step on the CPU: reading the packet, and sampling.
 *
 * STEP_BEGIN (worker 0): takes packet entry (device counter + 1) % 4, checks its step number,
 * applies the edits, and expands the rows into token ids, positions and row indexes. A wrong step
 * number sets the sticky error: every later step then has no live rows and its result says so.
 *
 * SAMPLE (all workers): for every row that samples, chooses a token from its logits; for every live
 * row advances the slot; then one worker advances the device's step counter and publishes the
 * result entry (its `step` is stored last, with release order).
 *
 * Stamps: with RP_PACKET_STAMP, STEP_BEGIN clears the step's stamps and stores when node 0 began;
 * whoever runs the launches stores all else (backend/cpu/backend_cpu.c), but for the end of SAMPLE:
 * what it publishes must be whole.
 *
 * The choice. The slot's features (RP_SLOT_FEATURES) change the logits first, in this order:
 *   1. repetition, for ids of prompt or answer: logit > 0 ? logit / r : logit * r (Keskar et al. 2019, CTRL);
 *      frequency and presence, for ids of the answer: logit - f * count - p (OpenAI's API reference)
 *   2. logit + bias
 *   3. -infinity: ids that would complete a bad word, ids that are not allowed, stop ids before min_tokens
 * These are vLLM's formulas (vllm/model_executor/layers/utils.py); its sampler adds the bias before
 * the penalties, which differs only for an id with both and a repetition penalty. A NaN stays one.
 * Then temperature 0 takes the largest logit, the lowest id among equals. Otherwise, in this order:
 * logits / temperature, min_p, top_k, top_p, then Gumbel-max: argmax(logit + g) with g drawn from
 * (seed, output position, id) alone. So a choice never depends on slot, row, batch or thread.
 *
 * Scores are of the logits before any of that. A slot's counts and last tokens are those of its
 * answer, which SAMPLE itself advances: nothing waits for the host to have seen a token. They stay
 * with the slot while its pages are swapped out. */
#ifndef RP_DEVICE_STEP_CPU_H
#define RP_DEVICE_STEP_CPU_H

#include "device/cpu_team.h"
#include "device/step.h"

struct rp_step_begin_args {
    struct rp_step_view step;
};
void rp_step_begin_cpu(const void *args, const struct rp_cpu_worker *worker);

/* A token that is still possible, while choosing. */
struct rp_candidate {
    float logit; /* already divided by the temperature */
    uint32_t id;
};

struct rp_sample_args {
    struct rp_step_view step;
    float *logits; /* (logit rows, stride): overwritten where stop ids are not allowed yet */
    size_t stride;
    uint32_t vocab;
    struct rp_candidate *scratch; /* (workers, vocab) */
    float *copies;                /* (workers, vocab) */
    uint32_t node;                /* its own index among the step's stamps */
};
void rp_sample_cpu(const void *args, const struct rp_cpu_worker *worker);

/* Parameters of one choice; exposed for tests. */
struct rp_sample_params {
    float temperature, top_p, min_p;
    uint32_t top_k;
    uint64_t seed;
    uint32_t position; /* output position of the token */
};

/* Index of the chosen id, or -1 when a logit is NaN or none is possible. scratch: vocab entries. */
int32_t rp_sample_choose(const float *logits, uint32_t vocab, const struct rp_sample_params *params,
                         struct rp_candidate *scratch);

/* Applies the slot's features to (vocab) logits; with the slot's first token, copies its sample
 * inputs to its sample state first. */
void rp_sample_modify(const struct rp_step_view *view, const struct rp_live_row *live,
                      float *logits, uint32_t vocab);
/* The token was chosen, and is about to be counted in RP_SLOT_OUTPUT_COUNT. */
void rp_sample_note(const struct rp_step_view *view, const struct rp_live_row *live, uint32_t *slot,
                    uint32_t token);
/* Log-softmax of (vocab) logits: of the token, and of the `top` largest. Sums in f64, by rising
 * id. */
void rp_sample_score(const float *logits, uint32_t vocab, uint32_t token, uint32_t top,
                     struct rp_token_scores *out);

/* Philox4x32-10 (Salmon et al. 2011): the first word for (key, counter). */
uint32_t rp_philox(uint64_t key, uint32_t counter0, uint32_t counter1);

/* Node `node` ended at end_ns, and the stamps of the step go where the host reads them. Before
 * publishing. */
void rp_step_publish_stamps(const struct rp_step_view *view, uint64_t step, uint32_t node,
                            uint64_t end_ns);

/* Lays the step's state out in one block: bytes of it, and the view over it. base NULL:
 * counting. */
size_t rp_step_state_carve(const struct rp_step_config *config, unsigned char *base,
                           struct rp_step_view *out_view);
/* Bytes of the rings that host and device share, and their addresses in the view. */
size_t rp_step_rings_carve(const struct rp_step_config *config, unsigned char *base,
                           struct rp_step_view *view);

#endif
