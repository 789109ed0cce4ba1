/* Sampling features that few slots use (RP_SLOT_FEATURES): penalties, biases, bad words, allowed
 * ids; and scores of tokens. */
#include "device/step_cpu.h"

#include <math.h>
#include <string.h>

static float word_to_float(uint32_t word) {
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static uint16_t *counts_of(const struct rp_step_view *view, uint32_t *state) {
    return (uint16_t *)(void *)(state + RP_SAMPLING_ALLOWED + rp_mask_words(&view->config));
}

/* For the slot's first token: copies the inputs; nothing is counted yet. */
static void init_state(const struct rp_step_view *view, const uint32_t *slot,
                       const uint32_t *inputs, uint32_t *state, uint32_t vocab) {
    const uint32_t *prompt = inputs + RP_SAMPLING_ALLOWED + rp_mask_words(&view->config);
    memcpy(state, inputs, RP_SAMPLING_ALLOWED * sizeof *state);
    if (!(slot[RP_SLOT_FEATURES] & RP_FEATURE_PENALTIES))
        return;
    uint16_t *counts = counts_of(view, state);
    for (uint32_t id = 0; id < vocab; id++)
        counts[id] = (prompt[id / 32] >> id % 32 & 1) ? RP_COUNT_PROMPT : 0;
}

static void forbid(float *logits, uint32_t vocab, uint32_t id) {
    if (id < vocab && !isnan(logits[id]))
        logits[id] = -INFINITY;
}

static void penalize(const uint32_t *slot, const uint16_t *counts, float *logits, uint32_t vocab) {
    float repetition = word_to_float(slot[RP_SLOT_REPETITION]);
    float frequency = word_to_float(slot[RP_SLOT_FREQUENCY]);
    float presence = word_to_float(slot[RP_SLOT_PRESENCE]);
    for (uint32_t id = 0; id < vocab; id++) {
        uint32_t count = counts[id] & RP_COUNT_MAX;
        if (counts[id] == 0)
            continue;
        float x = logits[id] > 0.0f ? logits[id] / repetition : logits[id] * repetition;
        if (count) {
            float often = frequency * (float)count;
            x = x - often;
            x = x - presence;
        }
        logits[id] = x;
    }
}

/* Whether the answer ends with these tokens. */
static bool ends_with(const uint32_t *slot, const uint32_t *tokens, uint32_t count) {
    uint32_t output_count = slot[RP_SLOT_OUTPUT_COUNT];
    if (count > output_count)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (slot[RP_SLOT_LAST_TOKENS + (output_count - count + i) % RP_BAD_WORD_MAX] != tokens[i])
            return false;
    return true;
}

static void forbid_bad_words(const uint32_t *slot, const uint32_t *words, float *logits,
                             uint32_t vocab) {
    uint32_t count = RP_MIN(slot[RP_SLOT_BAD_COUNT], (uint32_t)RP_BAD_TOKENS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *tokens = words + words[i] / 256;
        uint32_t before = words[i] % 256 - 1;
        if (ends_with(slot, tokens, before))
            forbid(logits, vocab, tokens[before]);
    }
}

void rp_sample_modify(const struct rp_step_view *view, const struct rp_live_row *live,
                      float *logits, uint32_t vocab) {
    const uint32_t *slot = view->slots + (size_t)live->slot * view->slot_words;
    const uint32_t *inputs = view->sample_inputs + live->slot * view->sample_input_words;
    uint32_t *state = view->sample_state + live->slot * view->sample_state_words,
             features = slot[RP_SLOT_FEATURES];
    bool first = slot[RP_SLOT_OUTPUT_COUNT] == 0;
    if (first)
        init_state(view, slot, inputs, state, vocab);
    if (features & RP_FEATURE_PENALTIES)
        penalize(slot, counts_of(view, state), logits, vocab);
    if (features & RP_FEATURE_BIASES)
        for (uint32_t i = 0; i < RP_MIN(slot[RP_SLOT_BIAS_COUNT], (uint32_t)RP_LOGIT_BIAS_MAX);
             i++) {
            const uint32_t *bias = state + RP_SAMPLING_BIASES + 2 * i;
            if (bias[0] < vocab)
                logits[bias[0]] += word_to_float(bias[1]);
        }
    if (features & RP_FEATURE_BAD_WORDS)
        forbid_bad_words(slot, state + RP_SAMPLING_BAD_WORDS, logits, vocab);
    if (!(features & RP_FEATURE_ALLOWED))
        return;
    const uint32_t *allowed = state + RP_SAMPLING_ALLOWED;
    if (live->flags & RP_ROW_MASK)
        allowed = view->masks + (live->flags >> RP_ROW_MASK_SHIFT) * rp_mask_words(&view->config);
    else if (first)
        memcpy(state + RP_SAMPLING_ALLOWED, inputs + RP_SAMPLING_ALLOWED,
               RP_CEIL_DIV(vocab, 32) * 4);
    for (uint32_t id = 0; id < vocab; id++)
        if (!(allowed[id / 32] >> id % 32 & 1))
            forbid(logits, vocab, id);
}

void rp_sample_note(const struct rp_step_view *view, const struct rp_live_row *live, uint32_t *slot,
                    uint32_t token) {
    if (slot[RP_SLOT_FEATURES] & RP_FEATURE_BAD_WORDS)
        slot[RP_SLOT_LAST_TOKENS + slot[RP_SLOT_OUTPUT_COUNT] % RP_BAD_WORD_MAX] = token;
    if (slot[RP_SLOT_FEATURES] & RP_FEATURE_PENALTIES) {
        uint16_t *count =
            counts_of(view, view->sample_state + live->slot * view->sample_state_words) + token;
        *count = (uint16_t)(*count + ((*count & RP_COUNT_MAX) < RP_COUNT_MAX));
    }
}

/* Enters the id among the `count` likeliest, of at most `capacity`; ids come rising. Returns the
 * new count. */
static uint32_t enter_top(struct rp_token_score *top, uint32_t count, uint32_t capacity,
                          float logit, uint32_t id) {
    uint32_t at = count;
    while (at > 0 && logit > top[at - 1].logprob)
        at--;
    if (at == capacity)
        return count;
    count += count < capacity;
    memmove(&top[at + 1], &top[at], (count - 1 - at) * sizeof *top);
    top[at] = (struct rp_token_score){(int32_t)id, logit};
    return count;
}

void rp_sample_score(const float *logits, uint32_t vocab, uint32_t token, uint32_t top,
                     struct rp_token_scores *out) {
    float max = -INFINITY;
    double sum = 0.0;
    uint32_t count = 0;
    *out = (struct rp_token_scores){.token = (int32_t)token, .logprob = NAN, .rank = 1};
    top = RP_MIN(RP_MIN(top, (uint32_t)RP_LOGPROBS_MAX), vocab);
    for (uint32_t id = 0; id < vocab; id++)
        max = logits[id] > max ? logits[id] : max;
    for (uint32_t id = 0; id < vocab; id++)
        sum += (double)expf(logits[id] - max);
    double log_sum = log(sum);
    if (token >= vocab || isnan(log_sum))
        return;
    for (uint32_t id = 0; id < vocab; id++) {
        out->rank += logits[id] > logits[token];
        if (top && logits[id] > (count < top ? -INFINITY : out->top[top - 1].logprob))
            count = enter_top(out->top, count, top, logits[id], id);
    }
    out->top_count = count;
    out->logprob = (float)((double)(logits[token] - max) - log_sum);
    for (uint32_t i = 0; i < count; i++)
        out->top[i].logprob = (float)((double)(out->top[i].logprob - max) - log_sum);
}
