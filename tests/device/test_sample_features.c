/* Goal: a slot's sampling features follow their formulas, are applied once, and no others are
 * applied. Method: a hand-made step on the CPU, odd vocabularies; expectations are computed here in
 * doubles. */
#include "base/memory.h"
#include "device/step_cpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = 3, VOCAB = 77 };

static struct rp_step_config config = {.slot_count = SLOTS,
                                       .pages_per_slot = 2,
                                       .row_capacity = SLOTS,
                                       .token_capacity = 16,
                                       .logit_row_capacity = 8,
                                       .edit_capacity = 4,
                                       .prompt_ring_capacity = 32,
                                       .vocab = VOCAB,
                                       .mask_capacity = 3};
static struct rp_step_view view;
static unsigned char *state_block, *rings_block;
static float logits[8][VOCAB + 3], copies[VOCAB];
static struct rp_candidate candidates[VOCAB];
static struct rp_live_row *live;
static uint32_t *slot, *inputs;

static void set_float(uint32_t *words, uint32_t field, float value) {
    memcpy(&words[field], &value, sizeof value);
}

static int setup(void **state) {
    (void)state;
    size_t state_bytes = rp_step_state_carve(&config, NULL, &view);
    size_t ring_bytes = rp_step_rings_carve(&config, NULL, &view);
    state_block = rp_alloc_aligned(state_bytes, RP_CACHE_LINE);
    rings_block = rp_alloc_aligned(ring_bytes, RP_CACHE_LINE);
    memset(state_block, 0xFF, state_bytes); /* previous contents must not matter */
    memset(rings_block, 0, ring_bytes);
    rp_step_state_carve(&config, state_block, &view);
    rp_step_rings_carve(&config, rings_block, &view);
    slot = view.slots + view.slot_words;
    inputs = (uint32_t *)view.sample_inputs + view.sample_input_words;
    memset(view.slots, 0, SLOTS * view.slot_words * 4);
    *view.counts = (struct rp_live_counts){.row_count = 1, .token_count = 1, .logit_row_count = 1};
    live = &view.rows[0];
    *live =
        (struct rp_live_row){.slot = 1, .token_count = 1, .flags = RP_ROW_DECODE | RP_ROW_SAMPLE};
    view.logit_rows[0] = 0;
    view.logit_targets[0] = RP_NO_TARGET;
    set_float(slot, RP_SLOT_TOP_P, 1.0f);
    set_float(slot, RP_SLOT_REPETITION, 1.0f);
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[0][i] = sinf((float)i * 1.7f) * 4.0f;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rp_free_aligned(state_block);
    rp_free_aligned(rings_block);
    return 0;
}

/* One step; returns the token. */
static int32_t sample(void) {
    const struct rp_sample_args args = {.step = view,
                                        .logits = logits[0],
                                        .stride = VOCAB + 3,
                                        .vocab = VOCAB,
                                        .scratch = candidates,
                                        .copies = copies};
    const struct rp_cpu_worker worker = {.index = 0, .count = 1};
    unsigned char *entry =
        view.results + (view.counts->step + 1) % RP_STEP_RING_ENTRIES * view.result_bytes;
    rp_sample_cpu(&args, &worker);
    return rp_result_rows(entry)[0].token;
}

static const struct rp_token_scores *scores_of(uint32_t logit_row) {
    unsigned char *entry =
        view.results + view.counts->step % RP_STEP_RING_ENTRIES * view.result_bytes;
    return &rp_result_scores(entry, &config)[logit_row];
}

static void allow(uint32_t id) { inputs[RP_SAMPLING_ALLOWED + id / 32] |= 1u << id % 32; }

static uint32_t largest(const double *values) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < VOCAB; i++)
        best = values[i] > values[best] ? i : best;
    return best;
}

static void test_penalties_follow_their_formulas_token_by_token(void **state) {
    (void)state;
    const double repetition = 1.3, presence = 0.25, frequency = 0.5;
    uint32_t counts[VOCAB] = {0}, seen_twice = 0;
    bool in_prompt[VOCAB] = {false};
    slot[RP_SLOT_FEATURES] = RP_FEATURE_PENALTIES;
    set_float(slot, RP_SLOT_REPETITION, 1.3f);
    set_float(slot, RP_SLOT_PRESENCE, 0.25f);
    set_float(slot, RP_SLOT_FREQUENCY, 0.5f);
    for (uint32_t id = 0; id < VOCAB; id += 3) {
        in_prompt[id] = true;
        inputs[RP_SAMPLING_ALLOWED + rp_mask_words(&config) + id / 32] |= 1u << id % 32;
    }
    for (int step = 0; step < 60; step++) {
        double wanted[VOCAB];
        for (uint32_t id = 0; id < VOCAB; id++) {
            double x = (double)logits[0][id];
            if (in_prompt[id] || counts[id])
                x = x > 0 ? x / repetition : x * repetition;
            wanted[id] = x - frequency * counts[id] - (counts[id] ? presence : 0);
        }
        int32_t token = sample();
        assert_int_equal(token, largest(wanted));
        for (uint32_t id = 0; id < VOCAB; id++)
            assert_true(fabs((double)copies[id] - wanted[id]) < 1e-5);
        seen_twice += ++counts[token] == 2;
    }
    assert_true(seen_twice > 5);
}

static void test_a_count_saturates(void **state) {
    (void)state;
    slot[RP_SLOT_FEATURES] = RP_FEATURE_PENALTIES;
    slot[RP_SLOT_OUTPUT_COUNT] = 1;
    uint16_t *counts = (uint16_t *)(void *)(view.sample_state + view.sample_state_words +
                                            RP_SAMPLING_ALLOWED + rp_mask_words(&config));
    memset(counts, 0, VOCAB * sizeof *counts);
    counts[5] = RP_COUNT_MAX;
    counts[6] = RP_COUNT_PROMPT | RP_COUNT_MAX;
    counts[7] = RP_COUNT_PROMPT | (RP_COUNT_MAX - 1);
    for (uint32_t id = 5; id < 8; id++)
        rp_sample_note(&view, live, slot, id);
    assert_int_equal(counts[5], RP_COUNT_MAX);
    assert_int_equal(counts[6], RP_COUNT_PROMPT | RP_COUNT_MAX);
    assert_int_equal(counts[7], RP_COUNT_PROMPT | RP_COUNT_MAX);
}

static void test_a_bias_is_added_behind_the_penalties(void **state) {
    (void)state;
    slot[RP_SLOT_FEATURES] = RP_FEATURE_PENALTIES | RP_FEATURE_BIASES;
    set_float(slot, RP_SLOT_REPETITION, 2.0f);
    inputs[RP_SAMPLING_ALLOWED + rp_mask_words(&config) + 76 / 32] |= 1u << 76 % 32;
    slot[RP_SLOT_BIAS_COUNT] = 2;
    inputs[RP_SAMPLING_BIASES] = 76;
    set_float(inputs, RP_SAMPLING_BIASES + 1, 100.0f);
    inputs[RP_SAMPLING_BIASES + 2] = VOCAB; /* no such id */
    float before = logits[0][76];
    assert_int_equal(sample(), 76);
    assert_true(copies[76] == (before > 0 ? before / 2.0f : before * 2.0f) + 100.0f);
    assert_true(logits[0][76] == before); /* scores are those of the unmodified logits */
}

static void test_bad_words_forbid_their_last_token_where_the_others_were_chosen(void **state) {
    (void)state;
    static const uint32_t words[] = {4 << 8 | 1, 5 << 8 | 3, 8 << 8 | 2, 10 << 8 | 1, 40, 10,
                                     11,         12,         10,         10,          76};
    uint32_t chosen[] = {10, 11, 10, 10, 11, 13};
    /* Which of 10, 12, 40, 76 is forbidden after this many of the tokens above. */
    const bool ten[] = {false, true, false, true, true, false, false};
    const bool twelve[] = {false, false, true, false, false, true, false};
    slot[RP_SLOT_FEATURES] = RP_FEATURE_BAD_WORDS;
    slot[RP_SLOT_BAD_COUNT] = 4;
    memcpy(inputs + RP_SAMPLING_BAD_WORDS, words, sizeof words);
    for (uint32_t i = 0; i <= RP_ARRAY_COUNT(chosen); i++) {
        float row[VOCAB] = {0};
        rp_sample_modify(&view, live, row, VOCAB);
        for (uint32_t id = 0; id < VOCAB; id++) {
            bool bad = id == 40 || id == 76 || (id == 10 && ten[i]) || (id == 12 && twelve[i]);
            assert_int_equal(isinf(row[id]) != 0, bad);
        }
        if (i == RP_ARRAY_COUNT(chosen))
            break;
        rp_sample_note(&view, live, slot, chosen[i]);
        slot[RP_SLOT_OUTPUT_COUNT]++;
    }
}

static void test_the_longest_bad_word_is_seen_across_the_ring_of_last_tokens(void **state) {
    (void)state;
    slot[RP_SLOT_FEATURES] = RP_FEATURE_BAD_WORDS;
    slot[RP_SLOT_BAD_COUNT] = 1;
    inputs[RP_SAMPLING_BAD_WORDS] = 1 << 8 | RP_BAD_WORD_MAX;
    for (uint32_t i = 0; i < RP_BAD_WORD_MAX; i++)
        inputs[RP_SAMPLING_BAD_WORDS + 1 + i] = 20 + i;
    for (uint32_t shift = 0; shift < 40; shift++) {
        slot[RP_SLOT_OUTPUT_COUNT] = 0;
        for (uint32_t i = 0; i < shift + RP_BAD_WORD_MAX - 1; i++) {
            float row[VOCAB] = {0};
            rp_sample_modify(&view, live, row, VOCAB);
            assert_false(isinf(row[20 + RP_BAD_WORD_MAX - 1]));
            rp_sample_note(&view, live, slot, i < shift ? 3 : 20 + i - shift);
            slot[RP_SLOT_OUTPUT_COUNT]++;
        }
        float row[VOCAB] = {0};
        rp_sample_modify(&view, live, row, VOCAB);
        assert_true(isinf(row[20 + RP_BAD_WORD_MAX - 1]));
    }
}

static void allow_in_pool(uint32_t mask, uint32_t id) {
    ((uint32_t *)view.mask_inputs)[mask * rp_mask_words(&config) + id / 32] |= 1u << id % 32;
}

static void
test_only_allowed_ids_are_chosen_and_a_mask_of_the_pool_is_taken_when_told(void **state) {
    (void)state;
    slot[RP_SLOT_FEATURES] = RP_FEATURE_ALLOWED;
    allow(76);
    allow(31);
    assert_int_equal(sample(), logits[0][76] > logits[0][31] ? 76 : 31);
    memset(inputs + RP_SAMPLING_ALLOWED, 0, 4 * rp_mask_words(&config));
    allow(32);
    assert_int_not_equal(sample(), 32); /* the state's mask applies */
    allow_in_pool(2, 40);
    live->flags |= RP_ROW_MASK | 2 << RP_ROW_MASK_SHIFT;
    assert_int_equal(sample(), 40);
    live->flags &= RP_ROW_MASK - 1;
    assert_int_equal(sample(), logits[0][76] > logits[0][31] ? 76 : 31);
}

static const struct rp_row_result *result_of(uint32_t row) {
    return &rp_result_rows(view.results +
                           view.counts->step % RP_STEP_RING_ENTRIES * view.result_bytes)[row];
}

static uint32_t *late_flags_of(uint64_t step) {
    return (uint32_t *)view.late_inputs + rp_late_entry(&view, step);
}

static void test_late_flags_are_read_in_steps_that_have_them(void **state) {
    (void)state;
    uint32_t entries[RP_STEP_RING_ENTRIES] = {0, 0, RP_ROW_MASK | 1 << RP_ROW_MASK_SHIFT,
                                              RP_ROW_WITHHELD};
    for (uint64_t step = 0; step < RP_STEP_RING_ENTRIES; step++)
        late_flags_of(step)[0] = RP_ROW_WITHHELD;
    slot[RP_SLOT_FEATURES] = RP_FEATURE_ALLOWED;
    allow(31);
    assert_int_equal(sample(), 31); /* step 1: ignored without the packet's flag */
    view.counts->flags = RP_PACKET_LATE_FLAGS;
    allow_in_pool(1, 32);
    for (uint64_t step = 0; step < RP_STEP_RING_ENTRIES; step++)
        late_flags_of(step)[0] = entries[step];
    assert_int_equal(sample(), 32);                               /* step 2 */
    assert_int_equal(live->flags, RP_ROW_DECODE | RP_ROW_SAMPLE); /* for that step only */
    uint32_t length = slot[RP_SLOT_LENGTH], outputs = slot[RP_SLOT_OUTPUT_COUNT];
    assert_int_equal(sample(), -1); /* step 3 */
    assert_int_equal(result_of(0)->flags, RP_RESULT_WITHHELD);
    assert_int_equal(result_of(0)->length, length + 1);
    assert_int_equal(slot[RP_SLOT_OUTPUT_COUNT], outputs);
    assert_int_equal(slot[RP_SLOT_LAST_TOKEN], 32);
    assert_int_equal(sample(), -1); /* step 4, planned ahead */
    assert_int_equal(result_of(0)->flags, RP_RESULT_SKIPPED);
}

static void test_nothing_left_fails_the_row_and_a_nan_is_never_hidden(void **state) {
    (void)state;
    slot[RP_SLOT_FEATURES] = RP_FEATURE_ALLOWED;
    assert_int_equal(sample(), -1); /* nothing is allowed */
    slot[RP_SLOT_FINISHED] = 0;
    live->flags |= RP_ROW_MASK;
    allow_in_pool(0, 3);
    logits[0][50] = NAN; /* of an id that is not allowed */
    assert_int_equal(sample(), -1);
}

static void test_stop_ids_before_min_tokens_do_not_change_what_is_scored(void **state) {
    (void)state;
    uint32_t best = 0;
    for (uint32_t id = 1; id < VOCAB; id++)
        best = logits[0][id] > logits[0][best] ? id : best;
    float before = logits[0][best];
    slot[RP_SLOT_FEATURES] = RP_FEATURE_LOGPROBS;
    slot[RP_SLOT_TOP_LOGPROBS] = 1;
    slot[RP_SLOT_MIN_TOKENS] = 2;
    slot[RP_SLOT_STOP_COUNT] = 1;
    slot[RP_SLOT_STOP_IDS] = best;
    assert_int_not_equal(sample(), best);
    assert_true(logits[0][best] == before);
    assert_int_equal(scores_of(0)->rank, 2);
    assert_int_equal(scores_of(0)->top[0].token, best);
}

/* Ties, -infinity, NaN; every count of likeliest tokens. */
static void test_scores_are_those_of_a_plain_sort(void **state) {
    (void)state;
    static float row[VOCAB];
    struct rp_token_scores got;
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t vocab = 1 + round * 7 % VOCAB, top = round % (RP_LOGPROBS_MAX + 1), finite = 0;
        double sum = 0, max = -INFINITY;
        for (uint32_t i = 0; i < vocab; i++) {
            row[i] = roundf(sinf((float)(i * 31 + round * 17)) * 8.0f) * 0.5f;
            if (round % 3 == 1 && i % 2)
                row[i] = -INFINITY;
            max = fmax(max, (double)row[i]);
            finite += row[i] > -INFINITY;
        }
        for (uint32_t i = 0; i < vocab; i++)
            sum += exp((double)row[i] - max);
        uint32_t token = round * 13 % vocab, rank = 1;
        for (uint32_t i = 0; i < vocab; i++)
            rank += row[i] > row[token];
        rp_sample_score(row, vocab, token, top, &got);
        assert_int_equal(got.token, token);
        assert_int_equal(got.rank, rank);
        assert_int_equal(got.top_count, RP_MIN(top, finite));
        double wanted = (double)row[token] - max - log(sum);
        assert_true(isinf(wanted) ? isinf(got.logprob) : fabs((double)got.logprob - wanted) < 1e-5);
        for (uint32_t t = 0; t < got.top_count; t++) {
            uint32_t id = (uint32_t)got.top[t].token, before = 0;
            for (uint32_t i = 0; i < vocab; i++)
                before += row[i] > row[id] || (row[i] == row[id] && i < id);
            assert_int_equal(before, t);
            assert_true(fabs((double)got.top[t].logprob - ((double)row[id] - max - log(sum))) <
                        1e-5);
        }
    }
    row[0] = NAN;
    rp_sample_score(row, VOCAB, 1, 3, &got);
    assert_true(isnan(got.logprob) && got.top_count == 0);
}

static void test_prompt_tokens_are_scored_beside_rows_that_sample(void **state) {
    (void)state;
    view.counts->row_count = 2;
    view.counts->logit_row_count = 4;
    view.counts->scored = 1;
    view.rows[1] = (struct rp_live_row){.slot = 2, .token_count = 3, .flags = RP_ROW_SCORE};
    view.slots[2 * view.slot_words + RP_SLOT_FEATURES] = RP_FEATURE_PROMPT_LOGPROBS;
    view.slots[2 * view.slot_words + RP_SLOT_TOP_PROMPT_LOGPROBS] = 2;
    for (uint32_t i = 1; i < 4; i++) {
        view.logit_rows[i] = 1;
        view.logit_targets[i] = (int32_t)(7 * i);
        for (uint32_t id = 0; id < VOCAB; id++)
            logits[i][id] = cosf((float)(id * i));
    }
    sample();
    for (uint32_t i = 1; i < 4; i++) {
        struct rp_token_scores wanted;
        rp_sample_score(logits[i], VOCAB, 7 * i, 2, &wanted);
        assert_memory_equal(scores_of(i), &wanted, sizeof wanted);
    }
    assert_int_equal(view.slots[2 * view.slot_words + RP_SLOT_LENGTH], 3);
    assert_int_equal(view.slots[2 * view.slot_words + RP_SLOT_OUTPUT_COUNT], 0);
}

/* --apply, for tests/oracle/sampling_oracle.py: stdin to stdout, one case. In: vocab, asks, output
 * count, bad words, biases, likeliest tokens; repetition, presence, frequency (f32); last tokens;
 * biases; bad words; allowed ids; then for each id whether the prompt has it, how often the answer
 * has it (u32 each) and its logit. Out: the modified logits, the largest one's token, and its
 * scores. */
static void take(void *to, size_t bytes) { assert_int_equal(fread(to, 1, bytes, stdin), bytes); }

static int apply(void) {
    uint32_t head[6], in_prompt, count, words = RP_SLOT_LAST_TOKENS;
    take(head, sizeof head);
    config.vocab = head[0];
    setup(NULL);
    float *row = rp_calloc(head[0], sizeof *row), *modified = rp_calloc(head[0], sizeof *row);
    slot[RP_SLOT_FEATURES] = head[1];
    slot[RP_SLOT_BAD_COUNT] = head[3];
    slot[RP_SLOT_BIAS_COUNT] = head[4];
    take(&slot[RP_SLOT_REPETITION], 3 * 4);
    take(&slot[words], RP_BAD_WORD_MAX * 4);
    take(inputs, RP_SAMPLING_ALLOWED * 4);
    take(inputs + RP_SAMPLING_ALLOWED, RP_CEIL_DIV(head[0], 32) * 4);
    for (uint32_t id = 0; id < head[0]; id++) {
        take(&in_prompt, 4);
        inputs[RP_SAMPLING_ALLOWED + rp_mask_words(&config) + id / 32] |= in_prompt << id % 32;
    }
    rp_sample_modify(&view, live, modified, head[0]); /* copies the inputs */
    for (uint32_t id = 0; id < head[0]; id++)
        for (take(&count, 4); (slot[RP_SLOT_FEATURES] & RP_FEATURE_PENALTIES) && count > 0;
             count--) {
            slot[RP_SLOT_FEATURES] = RP_FEATURE_PENALTIES;
            rp_sample_note(&view, live, slot, id);
            slot[RP_SLOT_FEATURES] = head[1];
        }
    slot[RP_SLOT_OUTPUT_COUNT] = head[2];
    take(row, head[0] * sizeof *row);
    memcpy(modified, row, head[0] * sizeof *row);
    rp_sample_modify(&view, live, modified, head[0]);
    struct rp_candidate *room = rp_calloc(head[0], sizeof *room);
    const struct rp_sample_params greedy = {.top_p = 1.0f};
    int32_t token = rp_sample_choose(modified, head[0], &greedy, room);
    struct rp_token_scores scores;
    rp_sample_score(row, head[0], token < 0 ? 0 : (uint32_t)token, head[5], &scores);
    fwrite(modified, sizeof *modified, head[0], stdout);
    fwrite(&token, sizeof token, 1, stdout);
    fwrite(&scores, sizeof scores, 1, stdout);
    rp_free(row);
    rp_free(modified);
    rp_free(room);
    return teardown(NULL);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--apply") == 0)
        return apply();
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_penalties_follow_their_formulas_token_by_token),
        TEST(test_a_count_saturates),
        TEST(test_a_bias_is_added_behind_the_penalties),
        TEST(test_bad_words_forbid_their_last_token_where_the_others_were_chosen),
        TEST(test_the_longest_bad_word_is_seen_across_the_ring_of_last_tokens),
        TEST(test_only_allowed_ids_are_chosen_and_a_mask_of_the_pool_is_taken_when_told),
        TEST(test_late_flags_are_read_in_steps_that_have_them),
        TEST(test_nothing_left_fails_the_row_and_a_nan_is_never_hidden),
        TEST(test_stop_ids_before_min_tokens_do_not_change_what_is_scored),
        TEST(test_scores_are_those_of_a_plain_sort),
        TEST(test_prompt_tokens_are_scored_beside_rows_that_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
