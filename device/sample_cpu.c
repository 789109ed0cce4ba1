#include "device/step_cpu.h"

#include "base/clock.h"

#include <math.h>
#include <string.h>

uint32_t rp_philox(uint64_t key, uint32_t counter0, uint32_t counter1) {
    /* Multipliers and Weyl constants of Philox4x32 (Random123). */
    const uint32_t m0 = 0xD2511F53u, m1 = 0xCD9E8D57u, w0 = 0x9E3779B9u, w1 = 0xBB67AE85u;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter0, c1 = counter1, c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)m0 * c0, p1 = (uint64_t)m1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += w0;
        k1 += w1;
    }
    return c0;
}

/* Standard Gumbel noise for one id; f64 so that the tail keeps its digits. */
static float gumbel(uint64_t seed, uint32_t position, uint32_t id) {
    double u = ((double)rp_philox(seed, id, position) + 0.5) * 0x1p-32;
    return (float)-log(-log(u));
}

/* With 32 bits the noise lies in (-3.14, 22.88): a logit further below the largest than this cannot
 * win, and its probability is below 1e-11. */
#define RP_GUMBEL_SPAN 26.1f

/* Largest logit, lowest id among equals; false when a NaN is there or every logit is -infinity. */
static bool find_max(const float *logits, uint32_t vocab, uint32_t *out_id) {
    float best = -INFINITY;
    uint32_t best_id = vocab;
    bool nan = false;
    for (uint32_t id = 0; id < vocab; id++) {
        nan |= logits[id] != logits[id];
        if (logits[id] > best) {
            best = logits[id];
            best_id = id;
        }
    }
    *out_id = best_id;
    return !nan && best_id < vocab;
}

/* Order of the candidates: larger logit first, then lower id. */
static bool before(struct rp_candidate a, struct rp_candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(struct rp_candidate *heap, uint32_t count, uint32_t at) {
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], heap[at]))
            return;
        struct rp_candidate swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
        at = child;
    }
}

/* Shortest prefix of the ordered candidates whose probability reaches top_p of `total`. */
static uint32_t count_top_p(const struct rp_candidate *last, uint32_t count, float top_p) {
    double total = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        total += exp((double)last[-(ptrdiff_t)i].logit);
    uint32_t wanted = 0;
    while (wanted < count && sum < (double)top_p * total)
        sum += exp((double)last[-(ptrdiff_t)wanted++].logit);
    return RP_MAX(wanted, 1u);
}

/* Keeps the candidates that top_k and top_p leave, at the end of the array in falling order from
 * its last entry downwards; returns the index of the first kept one. A heap gives them in order, so
 * that only those that are kept are ever sorted. The largest logit is 0. */
static uint32_t keep_top(struct rp_candidate *candidates, uint32_t count,
                         const struct rp_sample_params *params) {
    bool has_top_k = params->top_k && params->top_k < count;
    uint32_t limit = has_top_k ? params->top_k : count, left = count;
    double stop_at = INFINITY, sum = 0.0;
    if (!has_top_k && params->top_p < 1.0f) {
        stop_at = 0.0;
        for (uint32_t i = 0; i < count; i++)
            stop_at += exp((double)candidates[i].logit);
        stop_at *= (double)params->top_p;
    }
    for (uint32_t i = count / 2; i-- > 0;)
        sift_down(candidates, count, i);
    while (count - left < limit && sum < stop_at) {
        struct rp_candidate top = candidates[0];
        candidates[0] = candidates[--left];
        sift_down(candidates, left, 0);
        candidates[left] = top;
        sum += exp((double)top.logit);
    }
    if (has_top_k && params->top_p < 1.0f)
        return count - count_top_p(&candidates[count - 1], limit, params->top_p);
    return left;
}

int32_t rp_sample_choose(const float *logits, uint32_t vocab, const struct rp_sample_params *params,
                         struct rp_candidate *scratch) {
    uint32_t best;
    if (!find_max(logits, vocab, &best))
        return -1;
    if (params->temperature == 0.0f)
        return (int32_t)best;
    /* Temperatures near zero would overflow: differences to the largest logit cannot. */
    float max = logits[best], inverse = 1.0f / params->temperature;
    float cut = -RP_GUMBEL_SPAN;
    if (params->min_p > 0.0f)
        cut = RP_MAX(cut, logf(params->min_p));
    uint32_t count = 0;
    for (uint32_t id = 0; id < vocab; id++) {
        float scaled = (logits[id] - max) * inverse;
        if (scaled >= cut || id == best)
            scratch[count++] = (struct rp_candidate){id == best ? 0.0f : scaled, id};
    }
    uint32_t first = 0;
    if (params->top_k || params->top_p < 1.0f)
        first = keep_top(scratch, count, params);
    float score_max = -INFINITY;
    uint32_t chosen = best;
    for (uint32_t i = first; i < count; i++) {
        float score = scratch[i].logit + gumbel(params->seed, params->position, scratch[i].id);
        if (score > score_max || (score == score_max && scratch[i].id < chosen)) {
            score_max = score;
            chosen = scratch[i].id;
        }
    }
    return (int32_t)chosen;
}

static inline float word_to_float(uint32_t word) {
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static bool is_stop_id(const uint32_t *slot, uint32_t token) {
    for (uint32_t i = 0; i < slot[RP_SLOT_STOP_COUNT]; i++)
        if (slot[RP_SLOT_STOP_IDS + i] == token)
            return true;
    return false;
}

static void forbid_stop_ids(const uint32_t *slot, float *logits, uint32_t vocab) {
    for (uint32_t i = 0; i < slot[RP_SLOT_STOP_COUNT]; i++)
        if (slot[RP_SLOT_STOP_IDS + i] < vocab && !isnan(logits[slot[RP_SLOT_STOP_IDS + i]]))
            logits[slot[RP_SLOT_STOP_IDS + i]] = -INFINITY;
}

/* What one worker samples with. */
struct worker_scratch {
    struct rp_candidate *candidates; /* (vocab) */
    float *logits;                   /* (vocab) */
};

/* A slot with features: the logits to choose from. They are modified in a copy, since scores are of
 * the unmodified ones. */
static float *modified_logits(const struct rp_sample_args *args, const struct rp_live_row *live,
                              const uint32_t *slot, float *logits, float *copy) {
    bool modify = slot[RP_SLOT_FEATURES] & RP_FEATURES_MODIFYING;
    if (!modify && slot[RP_SLOT_OUTPUT_COUNT] >= slot[RP_SLOT_MIN_TOKENS])
        return logits;
    memcpy(copy, logits, args->vocab * sizeof *copy);
    if (modify)
        rp_sample_modify(&args->step, live, copy, args->vocab);
    return copy;
}

static void sample_row(const struct rp_sample_args *args, const struct rp_live_row *live,
                       uint32_t *slot, const struct worker_scratch *scratch,
                       struct rp_row_result *result, struct rp_token_scores *scores) {
    float *unmodified = args->logits + (size_t)live->logit_row * args->stride;
    float *logits = unmodified;
    uint32_t features = slot[RP_SLOT_FEATURES];
    if (live->flags & RP_ROW_WITHHELD) {
        result->flags = RP_RESULT_WITHHELD;
        slot[RP_SLOT_FINISHED] = 1;
        return;
    }
    if (features)
        logits = modified_logits(args, live, slot, logits, scratch->logits);
    if (slot[RP_SLOT_OUTPUT_COUNT] < slot[RP_SLOT_MIN_TOKENS])
        forbid_stop_ids(slot, logits, args->vocab);
    struct rp_sample_params params = {
        .temperature = word_to_float(slot[RP_SLOT_TEMPERATURE]),
        .top_p = word_to_float(slot[RP_SLOT_TOP_P]),
        .min_p = word_to_float(slot[RP_SLOT_MIN_P]),
        .top_k = slot[RP_SLOT_TOP_K],
        .seed = slot[RP_SLOT_SEED_LOW] | (uint64_t)slot[RP_SLOT_SEED_HIGH] << 32,
        .position = slot[RP_SLOT_OUTPUT_COUNT],
    };
    int32_t token = rp_sample_choose(logits, args->vocab, &params, scratch->candidates);
    if (token < 0) {
        result->flags = RP_RESULT_NAN;
        slot[RP_SLOT_FINISHED] = 1;
        return;
    }
    result->token = token;
    slot[RP_SLOT_LAST_TOKEN] = (uint32_t)token;
    if (features)
        rp_sample_note(&args->step, live, slot, (uint32_t)token);
    if (features & RP_FEATURE_LOGPROBS) {
        rp_sample_score(unmodified, args->vocab, (uint32_t)token, slot[RP_SLOT_TOP_LOGPROBS],
                        &scores[live->logit_row]);
        result->logprob = scores[live->logit_row].logprob;
    }
    slot[RP_SLOT_OUTPUT_COUNT]++;
    if (is_stop_id(slot, (uint32_t)token)) {
        result->flags = RP_RESULT_STOPPED;
        slot[RP_SLOT_FINISHED] = 1;
    }
}

/* Scores the prompts' tokens, logit row by logit row. */
static void score_prompts(const struct rp_sample_args *args, const struct rp_cpu_worker *worker,
                          struct rp_token_scores *scores) {
    const struct rp_step_view *view = &args->step;
    for (uint32_t i = worker->index; i < view->counts->logit_row_count; i += worker->count) {
        const struct rp_live_row *live = &view->rows[view->logit_rows[i]];
        const uint32_t *slot = view->slots + (size_t)live->slot * view->slot_words;
        if (view->logit_targets[i] >= 0 && live->flags) /* not of a slot that had finished */
            rp_sample_score(args->logits + (size_t)i * args->stride, args->vocab,
                            (uint32_t)view->logit_targets[i], slot[RP_SLOT_TOP_PROMPT_LOGPROBS],
                            &scores[i]);
    }
}

void rp_sample_cpu(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct rp_sample_args *args = args_void;
    const struct rp_step_view *view = &args->step;
    struct rp_live_counts *counts = view->counts;
    uint64_t step = counts->step + 1;
    unsigned char *entry = view->results + (step % RP_STEP_RING_ENTRIES) * view->result_bytes;
    struct rp_row_result *results = rp_result_rows(entry);
    struct rp_token_scores *scores = rp_result_scores(entry, &view->config);
    const struct worker_scratch scratch = {args->scratch + (size_t)worker->index * args->vocab,
                                           args->copies + (size_t)worker->index * args->vocab};
    const uint32_t *late = (counts->flags & RP_PACKET_LATE_FLAGS)
                               ? view->late_flags + rp_late_entry(view, step)
                               : NULL;
    for (uint32_t i = worker->index; i < counts->row_count; i += worker->count) {
        struct rp_live_row live = view->rows[i];
        uint32_t *slot = view->slots + (size_t)live.slot * view->slot_words;
        struct rp_row_result *result = &results[i];
        live.flags |= late ? late[i] : 0;
        *result = (struct rp_row_result){.token = -1};
        if (slot[RP_SLOT_FINISHED]) {
            result->flags = RP_RESULT_SKIPPED;
        } else {
            slot[RP_SLOT_LENGTH] += live.token_count;
            if (live.flags & RP_ROW_SAMPLE)
                sample_row(args, &live, slot, &scratch, result, scores);
        }
        result->length = slot[RP_SLOT_LENGTH];
    }
    if (counts->scored)
        score_prompts(args, worker, scores);
    rp_cpu_barrier(worker); /* every result and slot is written */
    if (worker->index == 0) {
        struct rp_result_header *header = (struct rp_result_header *)(void *)entry;
        header->row_count = counts->row_count;
        header->error = counts->error;
        header->begin_ns = counts->begin_ns;
        header->end_ns = rp_clock_ns();
        if (counts->flags & RP_PACKET_STAMP)
            rp_step_publish_stamps(view, step, args->node, header->end_ns);
        counts->step = step;
        /* The host reads the entry when it sees this number. */
        __atomic_store_n(&header->step, step, __ATOMIC_RELEASE);
    }
}
