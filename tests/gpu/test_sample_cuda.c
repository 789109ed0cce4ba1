/* Goal: sampling on CUDA chooses the ids of sample_cpu.c, advances the slots in the same way and
 * publishes the same result. */
#include "base/memory.h"
#include "device/ops_cuda.h"
#include "device/step_cpu.h"
#include "tests/support/gpu_test.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROWS_MAX   96
#define MASKS      4
#define VOCAB_MAX  128256
#define STRIDE_MAX (VOCAB_MAX + 8)

static struct rp_gpu_step step;
static struct rp_candidate *candidates;
static float *logits, *device_logits;
static void *scratch;
static float *copies, *expected_logits;
static struct rp_row_result *seen_results;
static struct rp_token_scores *seen_scores;
static uint64_t random_state;

static uint32_t random_word(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static uint32_t random_below(uint32_t n) { return (uint32_t)((uint64_t)random_word() * n >> 32); }

/* Roughly normal: the sum of four uniforms, standard deviation 1. */
static float random_normal(void) {
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += random_word() * 0x1p-32 - 0.5;
    return (float)(sum * sqrt(3.0));
}

static int set_up(void **state) {
    (void)state;
    static const struct rp_step_config config = {.slot_count = ROWS_MAX + 3,
                                                 .pages_per_slot = 5,
                                                 .row_capacity = ROWS_MAX,
                                                 .token_capacity = 4 * ROWS_MAX,
                                                 .logit_row_capacity = ROWS_MAX,
                                                 .edit_capacity = 4,
                                                 .prompt_ring_capacity = 16,
                                                 .vocab = VOCAB_MAX,
                                                 .mask_capacity = MASKS,
                                                 .late_copies = true};
    random_state = 5;
    rp_gpu_step_open(&step, &config);
    candidates = rp_alloc_aligned(VOCAB_MAX * sizeof *candidates, RP_CACHE_LINE);
    logits = rp_alloc_aligned((size_t)ROWS_MAX * STRIDE_MAX * 4, RP_CACHE_LINE);
    seen_results = rp_alloc_aligned(ROWS_MAX * sizeof *seen_results, RP_CACHE_LINE);
    seen_scores = rp_alloc_aligned(ROWS_MAX * sizeof *seen_scores, RP_CACHE_LINE);
    copies = rp_alloc_aligned(VOCAB_MAX * sizeof *copies, RP_CACHE_LINE);
    expected_logits = rp_alloc_aligned(VOCAB_MAX * sizeof *expected_logits, RP_CACHE_LINE);
    device_logits = rp_gpu_poisoned((size_t)ROWS_MAX * STRIDE_MAX * 4);
    scratch = rp_gpu_zeroed(rp_sample_cuda_scratch_bytes(ROWS_MAX, VOCAB_MAX, true));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    assert_true(rp_gpu_canaries_hold());
    rp_gpu_step_close(&step);
    rp_gpu_free_all();
    rp_free_aligned(candidates);
    rp_free_aligned(logits);
    rp_free_aligned(seen_results);
    rp_free_aligned(seen_scores);
    rp_free_aligned(copies);
    rp_free_aligned(expected_logits);
    return 0;
}

static void set_float(uint32_t *slot, uint32_t field, float value) {
    memcpy(&slot[field], &value, sizeof value);
}

static uint32_t *slot_of(uint32_t row) {
    return step.host.slots + (size_t)step.host.rows[row].slot * step.host.slot_words;
}

/* Biases, bad words and a mask, in a slot's sample inputs or its state. */
static void random_lists(uint32_t *block, const uint32_t *slot, uint32_t vocab) {
    uint32_t stride = RP_MAX(vocab / RP_LOGIT_BIAS_MAX, 1u), words = slot[RP_SLOT_BAD_COUNT];
    for (uint32_t i = 0; i < RP_LOGIT_BIAS_MAX; i++) {
        float value = random_normal() * 4.0f;
        block[RP_SAMPLING_BIASES + 2 * i] = i * stride + random_below(stride);
        memcpy(&block[RP_SAMPLING_BIASES + 2 * i + 1], &value, 4);
    }
    for (uint32_t i = 0, to = words; i < words; i++) {
        uint32_t most = (2 * RP_BAD_TOKENS_MAX - to) / (words - i);
        uint32_t count = 1 + random_below(RP_MIN(most, (uint32_t)RP_BAD_WORD_MAX));
        block[RP_SAMPLING_BAD_WORDS + i] = to << 8 | count;
        for (uint32_t t = 0; t < count; t++)
            block[RP_SAMPLING_BAD_WORDS + to++] = random_below(t + 1 < count ? 2 : vocab + 2);
    }
    uint32_t sparse = random_below(4);
    for (uint32_t w = 0; w < (vocab + 31) / 32; w++)
        block[RP_SAMPLING_ALLOWED + w] =
            random_word() & (sparse ? random_word() : 0xFFFFFFFFu) &
            (sparse == 3 ? random_word() & random_word() : 0xFFFFFFFFu);
}

/* Features of the row's slot: none, mostly; all, sometimes. */
static void random_features(const struct rp_live_row *live, uint32_t *slot, uint32_t vocab) {
    size_t mask_words = rp_mask_words(&step.host.config);
    uint32_t *inputs =
        (uint32_t *)(uintptr_t)step.host.sample_inputs + live->slot * step.host.sample_input_words;
    uint32_t *state = step.host.sample_state + live->slot * step.host.sample_state_words;
    uint16_t *counts = (uint16_t *)(void *)(state + RP_SAMPLING_ALLOWED + mask_words);
    slot[RP_SLOT_FEATURES] = random_below(2) ? 0 : random_below(4) ? random_below(32) : 31;
    if (live->flags & RP_ROW_SCORE)
        slot[RP_SLOT_FEATURES] |= RP_FEATURE_PROMPT_LOGPROBS;
    set_float(slot, RP_SLOT_REPETITION, 0.5f + (float)random_below(100) * 0.02f);
    set_float(slot, RP_SLOT_PRESENCE, random_normal());
    set_float(slot, RP_SLOT_FREQUENCY, random_normal());
    slot[RP_SLOT_BIAS_COUNT] = random_below(RP_MIN(vocab, (uint32_t)RP_LOGIT_BIAS_MAX) + 1);
    slot[RP_SLOT_BAD_COUNT] = random_below(RP_BAD_TOKENS_MAX + 1);
    slot[RP_SLOT_TOP_LOGPROBS] = random_below(RP_LOGPROBS_MAX + 1);
    slot[RP_SLOT_TOP_PROMPT_LOGPROBS] = random_below(RP_LOGPROBS_MAX + 1);
    slot[RP_SLOT_OUTPUT_COUNT] = random_below(3) ? random_below(1000) : 0;
    for (uint32_t i = 0; i < RP_BAD_WORD_MAX; i++)
        slot[RP_SLOT_LAST_TOKENS + i] = random_below(2);
    if (!slot[RP_SLOT_FEATURES])
        return;
    random_lists(inputs, slot, vocab);
    random_lists(state, slot, vocab);
    for (uint32_t w = 0; w < (vocab + 31) / 32; w++)
        inputs[RP_SAMPLING_ALLOWED + mask_words + w] = random_word() & random_word();
    for (uint32_t id = 0; id < vocab; id++)
        counts[id] = (uint16_t)(random_below(3)   ? 0
                                : random_below(9) ? random_below(5) + 0x8000 * random_below(2)
                                                  : 0x7FFF + 0x8000 * random_below(2));
}

/* Rows of one step: `rows` of them, of which some do not sample; random parameters. */
static void random_rows(uint32_t rows, uint32_t vocab, bool scores_prompts) {
    static const float temperatures[] = {0.0f, 1.0f, 0.3f, 1.0f, 1.7f, 1e-30f, 100.0f, 0.8f};
    static const float top_ps[] = {1.0f, 1.0f, 0.999f, 0.95f, 0.9f, 0.5f, 0.1f, 1e-6f};
    static const float min_ps[] = {0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-7f};
    const uint32_t top_ks[] = {0, 0, 1, 2, 40, 1000, vocab - 1, vocab, vocab + 5};
    struct rp_live_counts *counts = step.host.counts;
    uint64_t number = counts->step;
    *counts = (struct rp_live_counts){.step = number, .row_count = rows};
    for (size_t w = 0; w < MASKS * rp_mask_words(&step.host.config); w++)
        ((uint32_t *)step.host.masks)[w] = random_word() & random_word();
    for (uint32_t i = 0; i < rows; i++) {
        bool sample = random_below(8) != 0;
        uint32_t room = ROWS_MAX - counts->logit_row_count - (rows - i);
        bool score = scores_prompts && random_below(6) == 0 && room > 0;
        struct rp_live_row *live = &step.host.rows[i];
        *live = (struct rp_live_row){
            .slot = (i * 7 + 1) % (ROWS_MAX + 3),
            .token_begin = counts->token_count,
            .token_count = 1 + random_below(score ? RP_MIN(room, 9u) : 3),
            .flags =
                (score ? RP_ROW_SCORE : RP_ROW_DECODE) |
                (random_below(4) ? 0 : RP_ROW_MASK | random_below(MASKS) << RP_ROW_MASK_SHIFT) |
                (sample ? RP_ROW_SAMPLE : 0)};
        counts->token_count += live->token_count;
        counts->scored |= score;
        for (uint32_t t = score ? live->token_count : sample; t-- > 0;) {
            live->logit_row = counts->logit_row_count++;
            step.host.logit_rows[live->logit_row] = i;
            step.host.logit_targets[live->logit_row] =
                t == 0 && sample ? RP_NO_TARGET : (int32_t)random_below(vocab);
        }
        uint32_t *slot = slot_of(i);
        for (uint32_t w = 0; w < step.host.slot_words; w++)
            slot[w] = random_below(1000);
        slot[RP_SLOT_FINISHED] = random_below(16) == 0;
        if (slot[RP_SLOT_FINISHED])
            live->flags = 0;
        set_float(slot, RP_SLOT_TEMPERATURE, temperatures[random_below(8)]);
        set_float(slot, RP_SLOT_TOP_P, top_ps[random_below(8)]);
        set_float(slot, RP_SLOT_MIN_P, min_ps[random_below(7)]);
        slot[RP_SLOT_TOP_K] = top_ks[random_below(RP_ARRAY_COUNT(top_ks))];
        slot[RP_SLOT_SEED_LOW] = random_word();
        slot[RP_SLOT_SEED_HIGH] = random_word();
        slot[RP_SLOT_STOP_COUNT] = random_below(RP_STOP_IDS_MAX + 1);
        for (uint32_t s = 0; s < RP_STOP_IDS_MAX; s++)
            slot[RP_SLOT_STOP_IDS + s] = random_below(vocab + 2);
        random_features(live, slot, vocab);
    }
}

/* Distributions that are hard in different ways. */
static void random_logits(float *row, uint32_t vocab, uint32_t kind) {
    static const float sigmas[] = {1.0f, 0.3f, 3.0f, 10.0f};
    float sigma = sigmas[random_below(4)];
    for (uint32_t i = 0; i < vocab; i++) {
        float x = random_normal() * sigma;
        row[i] = kind == 1   ? 2.5f                               /* all equal */
                 : kind == 2 ? roundf(x * 2.0f) * 0.5f            /* many ties, -0 too */
                 : kind == 3 ? (random_below(4) ? -INFINITY : x)  /* most impossible */
                 : kind == 4 ? x + (i % 97 == 5 ? 12.0f : -20.0f) /* few likely ones */
                             : x;
    }
    uint32_t odd = random_below(40), at = random_below(vocab);
    if (odd == 0)
        row[at] = NAN;
    else if (odd == 1)
        row[at] = INFINITY;
    else if (odd == 2)
        for (uint32_t i = 0; i < vocab; i++)
            row[i] = -INFINITY;
    else if (odd == 3)
        row[vocab - 1] = 100.0f;
}

static void say_row(uint32_t row, const uint32_t *slot, const struct rp_row_result *seen,
                    const struct rp_row_result *wanted) {
    float values[3];
    memcpy(values, &slot[RP_SLOT_TEMPERATURE], 4);
    memcpy(values + 1, &slot[RP_SLOT_TOP_P], 4);
    memcpy(values + 2, &slot[RP_SLOT_MIN_P], 4);
    print_error("row %u: token %d flags %u length %u, wanted %d %u %u; temperature %g top_k %u "
                "top_p %g min_p %g\n",
                row, seen->token, seen->flags, seen->length, wanted->token, wanted->flags,
                wanted->length, (double)values[0], slot[RP_SLOT_TOP_K], (double)values[1],
                (double)values[2]);
}

/* NaN equals NaN, and an infinity itself. */
static bool is_near(float a, float b) {
    return a == b || (isnan(a) && isnan(b)) || fabsf(a - b) <= 2e-5f;
}

/* Results, and the scores of rows that requested them, in the entry that the CPU has since
 * written. */
static void assert_results(unsigned char *entry) {
    const struct rp_step_view *host = &step.host;
    const struct rp_row_result *wanted = rp_result_rows(entry);
    const struct rp_token_scores *scores = rp_result_scores(entry, &host->config);
    for (uint32_t i = 0; i < host->counts->row_count; i++) {
        struct rp_row_result seen = seen_results[i];
        assert_true(is_near(seen.logprob, wanted[i].logprob));
        seen.logprob = wanted[i].logprob;
        if (memcmp(&seen, &wanted[i], sizeof seen) != 0) {
            say_row(i, slot_of(i), &seen_results[i], &wanted[i]);
            fail();
        }
    }
    for (uint32_t l = 0; l < host->counts->logit_row_count; l++) {
        const struct rp_token_scores *a = &seen_scores[l], *b = &scores[l];
        if (b->rank == 0xFFFFFFFFu) { /* not requested: still poisoned */
            assert_int_equal(a->rank, 0xFFFFFFFFu);
            continue;
        }
        assert_int_equal(a->token, b->token);
        assert_int_equal(a->rank, b->rank);
        assert_int_equal(a->top_count, b->top_count);
        assert_true(is_near(a->logprob, b->logprob));
        for (uint32_t t = 0; t < b->top_count; t++) {
            assert_int_equal(a->top[t].token, b->top[t].token);
            assert_true(is_near(a->top[t].logprob, b->top[t].logprob));
        }
    }
}

/* Bit for bit, except for NaN payloads, which differ between GPU and CPU. */
static void assert_same_row(uint32_t row, const float *seen, const float *wanted, uint32_t vocab) {
    for (uint32_t id = 0; id < vocab; id++)
        if (memcmp(&seen[id], &wanted[id], 4) != 0 && !(isnan(seen[id]) && isnan(wanted[id])))
            fail_msg("row %u, id %u: %a, wanted %a", row, id, (double)seen[id], (double)wanted[id]);
}

/* Each logit row as modified by the GPU with its slot's features. Called before the CPU samples. */
static void assert_logits(const float *given, const float *seen, size_t stride, uint32_t vocab,
                          uint32_t max_rows) {
    for (uint32_t l = 0; l < max_rows; l++) {
        const float *from = given + l * stride;
        memcpy(expected_logits, from, vocab * 4ull);
        if (l < step.host.counts->logit_row_count && step.host.logit_targets[l] < 0) {
            const struct rp_live_row *live = &step.host.rows[step.host.logit_rows[l]];
            const uint32_t *slot = slot_of(step.host.logit_rows[l]);
            if (!slot[RP_SLOT_FINISHED] && (slot[RP_SLOT_FEATURES] & RP_FEATURES_MODIFYING))
                rp_sample_modify(&step.host, live, expected_logits, vocab);
            for (uint32_t s = 0; !slot[RP_SLOT_FINISHED] && s < slot[RP_SLOT_STOP_COUNT]; s++)
                if (slot[RP_SLOT_OUTPUT_COUNT] < slot[RP_SLOT_MIN_TOKENS] &&
                    slot[RP_SLOT_STOP_IDS + s] < vocab &&
                    !isnan(expected_logits[slot[RP_SLOT_STOP_IDS + s]]))
                    expected_logits[slot[RP_SLOT_STOP_IDS + s]] = -INFINITY;
        }
        assert_same_row(l, seen + l * stride, expected_logits, vocab);
        assert_memory_equal(seen + l * stride + vocab, from + vocab, (stride - vocab) * 4);
    }
}

/* Samples the step on the GPU, then on the CPU; compares results, slots, logits and counters. */
static void check_step(uint32_t vocab, size_t stride, uint32_t offset, uint32_t max_rows) {
    uint64_t number = step.host.counts->step + 1;
    uint32_t rows = step.host.counts->row_count;
    size_t logit_bytes = (offset + max_rows * stride) * 4;
    unsigned char *entry =
        step.host.results + number % RP_STEP_RING_ENTRIES * step.host.result_bytes;
    struct rp_result_header *header = (struct rp_result_header *)(void *)entry;
    struct rp_sample_cuda args = {.step = step.device,
                                  .logits = device_logits + offset,
                                  .stride = stride,
                                  .vocab = vocab,
                                  .max_rows = max_rows,
                                  .max_seq_rows = RP_MAX(rows, 1u),
                                  .scores_prompts = true,
                                  .scratch = scratch};
    struct rp_sample_args host = {.step = step.host,
                                  .logits = logits + offset,
                                  .stride = stride,
                                  .vocab = vocab,
                                  .scratch = candidates,
                                  .copies = copies};
    struct rp_cpu_worker worker = {.index = 0, .count = 1};
    rp_gpu_step_upload(&step);
    assert_int_equal(cudaMemcpy(device_logits, logits, logit_bytes, cudaMemcpyHostToDevice),
                     cudaSuccess);
    memset(entry, 0xFF, step.host.result_bytes);
    assert_int_equal(rp_sample_cuda_run(&args, NULL), 0);
    rp_gpu_synchronize();
    assert_true(header->step == number);
    assert_int_equal(header->row_count, rows);
    assert_int_equal(header->error, step.host.counts->error);
    memcpy(seen_results, rp_result_rows(entry), rows * sizeof *seen_results);
    memcpy(seen_scores, rp_result_scores(entry, &step.host.config), ROWS_MAX * sizeof *seen_scores);
    float *after = rp_alloc_aligned(RP_ALIGN_UP(logit_bytes, RP_CACHE_LINE), RP_CACHE_LINE);
    rp_gpu_download(after, device_logits, logit_bytes);
    assert_logits(logits + offset, after + offset, stride, vocab, max_rows);
    rp_free_aligned(after);
    memset(entry, 0xFF, step.host.result_bytes);
    rp_sample_cpu(&host, &worker);
    assert_results(entry);
    /* Slots, sample state, and counters. */
    unsigned char *state = rp_alloc_aligned(step.state_bytes, RP_CACHE_LINE);
    rp_gpu_download(state, step.device_state, step.state_bytes);
    assert_memory_equal(state, step.host_state, step.state_bytes);
    rp_free_aligned(state);
}

static void check_random_step(uint32_t rows, uint32_t vocab, uint32_t extra, uint32_t offset,
                              uint32_t kind) {
    size_t stride = vocab + extra;
    random_rows(rows, vocab, kind == 5);
    uint32_t logit_rows = RP_MAX(rows, step.host.counts->logit_row_count);
    memset(logits, 0xFF, (offset + logit_rows * stride) * 4);
    for (uint32_t r = 0; r < step.host.counts->logit_row_count; r++)
        random_logits(logits + offset + r * stride, vocab, kind < 5 ? kind : random_below(5));
    check_step(vocab, stride, offset, logit_rows);
}

static void test_small_vocabularies_are_sampled_as_on_the_cpu(void **state) {
    (void)state;
    static const uint32_t vocabs[] = {1, 2, 7, 64, 512, 1000, 2048, 2049, 5003};
    for (uint32_t round = 0; round < 270; round++)
        check_random_step(1 + random_below(ROWS_MAX), vocabs[round % 9], round % 5, round / 5 % 4,
                          5);
}

static void test_every_number_of_rows_gives_the_same_choices(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= ROWS_MAX; rows += 1 + rows / 6)
        check_random_step(rows, 20011, 1, 0, 5);
}

static void test_large_vocabularies_are_sampled_as_on_the_cpu(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 16; round++)
        check_random_step(round % 4 ? 12 : 40, VOCAB_MAX - round % 3, round % 2 ? 0 : round % 3,
                          round % 5 == 4 ? 1 : 0, round < 10 ? round % 5 : 5);
}

static void test_draws_without_top_k_and_top_p_follow_the_cpu(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 12; round++) {
        random_rows(32, 50000, false);
        for (uint32_t i = 0; i < 32; i++) {
            set_float(slot_of(i), RP_SLOT_TEMPERATURE, round % 2 ? 1.0f : 4.0f);
            set_float(slot_of(i), RP_SLOT_TOP_P, 1.0f);
            slot_of(i)[RP_SLOT_TOP_K] = 0;
        }
        for (uint32_t r = 0; r < step.host.counts->logit_row_count; r++)
            random_logits(logits + r * 50000ull, 50000, 0);
        memset(logits + step.host.counts->logit_row_count * 50000ull, 0xFF,
               (32 - step.host.counts->logit_row_count) * 50000ull * 4);
        check_step(50000, 50000, 0, 32);
    }
}

static void test_padding_rows_change_nothing(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 8; round++) {
        random_rows(round, 3000, false);
        memset(logits, 0xFF, 40 * 3000ull * 4);
        for (uint32_t r = 0; r < step.host.counts->logit_row_count; r++)
            random_logits(logits + r * 3000ull, 3000, 0);
        check_step(3000, 3000, 0, 40);
    }
}

static void test_a_failed_step_is_published_with_its_error(void **state) {
    (void)state;
    random_rows(4, 100, false);
    *step.host.counts = (struct rp_live_counts){.step = step.host.counts->step, .error = 1};
    memset(logits, 0xFF, 4 * 100 * 4);
    check_step(100, 100, 0, 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

RP_GPU_TEST_MAIN(NULL, NULL, TEST(test_small_vocabularies_are_sampled_as_on_the_cpu),
                 TEST(test_every_number_of_rows_gives_the_same_choices),
                 TEST(test_large_vocabularies_are_sampled_as_on_the_cpu),
                 TEST(test_draws_without_top_k_and_top_p_follow_the_cpu),
                 TEST(test_padding_rows_change_nothing),
                 TEST(test_a_failed_step_is_published_with_its_error))
