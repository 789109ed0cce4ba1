/* Goal: sampling on CUDA chooses the ids that sample_cpu.c chooses, advances the slots as it does and
 * publishes the same result. */
#include "base/memory.h"
#include "device/ops_cuda.h"
#include "device/step_cpu.h"
#include "tests/support/gpu.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX   96
#define VOCAB_MAX  128256
#define STRIDE_MAX (VOCAB_MAX + 8)

static struct rp_gpu_step step;
static struct rp_candidate *candidates;
static float *logits, *device_logits;
static void *scratch;
static struct rp_row_result *seen_results;
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
                                                 .prompt_ring_capacity = 16};
    random_state = 5;
    rp_gpu_step_open(&step, &config);
    candidates = rp_alloc_aligned(VOCAB_MAX * sizeof *candidates, RP_CACHE_LINE);
    logits = rp_alloc_aligned((size_t)ROWS_MAX * STRIDE_MAX * 4, RP_CACHE_LINE);
    seen_results = rp_alloc_aligned(ROWS_MAX * sizeof *seen_results, RP_CACHE_LINE);
    device_logits = rp_gpu_poisoned((size_t)ROWS_MAX * STRIDE_MAX * 4);
    scratch = rp_gpu_zeroed(rp_sample_cuda_scratch_bytes(ROWS_MAX, VOCAB_MAX));
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
    return 0;
}

static void set_float(uint32_t *slot, uint32_t field, float value) {
    memcpy(&slot[field], &value, sizeof value);
}

static uint32_t *slot_of(uint32_t row) {
    return step.host.slots + (size_t)step.host.rows[row].slot * step.host.slot_words;
}

/* Rows of one step: `rows` of them, of which some do not sample; random parameters. */
static void random_rows(uint32_t rows, uint32_t vocab) {
    static const float temperatures[] = {0.0f, 1.0f, 0.3f, 1.0f, 1.7f, 1e-30f, 100.0f, 0.8f};
    static const float top_ps[] = {1.0f, 1.0f, 0.999f, 0.95f, 0.9f, 0.5f, 0.1f, 1e-6f};
    static const float min_ps[] = {0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-7f};
    const uint32_t top_ks[] = {0, 0, 1, 2, 40, 1000, vocab - 1, vocab, vocab + 5};
    struct rp_live_counts *counts = step.host.counts;
    uint64_t number = counts->step;
    *counts = (struct rp_live_counts){.step = number, .row_count = rows};
    for (uint32_t i = 0; i < rows; i++) {
        bool sample = random_below(8) != 0;
        struct rp_live_row *live = &step.host.rows[i];
        *live = (struct rp_live_row){.slot = (i * 7 + 1) % (ROWS_MAX + 3),
                                     .token_begin = counts->token_count,
                                     .token_count = 1 + random_below(3),
                                     .flags = RP_ROW_DECODE | (sample ? RP_ROW_SAMPLE : 0)};
        counts->token_count += live->token_count;
        if (sample) {
            live->logit_row = counts->logit_row_count++;
            step.host.logit_rows[live->logit_row] = i;
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

/* Samples the step on the card, then on the CPU; compares results, slots, logits and counters. */
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
                                  .max_seq_rows = max_rows,
                                  .scratch = scratch};
    struct rp_sample_args host = {.step = step.host,
                                  .logits = logits + offset,
                                  .stride = stride,
                                  .vocab = vocab,
                                  .scratch = candidates};
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
    rp_sample_cpu(&host, &worker);
    const struct rp_row_result *wanted = rp_result_rows(entry);
    for (uint32_t i = 0; i < rows; i++)
        if (memcmp(&seen_results[i], &wanted[i], sizeof wanted[i]) != 0) {
            say_row(i, slot_of(i), &seen_results[i], &wanted[i]);
            fail();
        }
    /* Slots and counters, then the logits: only forbidden ids may have changed. */
    unsigned char *state = rp_alloc_aligned(step.state_bytes, RP_CACHE_LINE);
    rp_gpu_download(state, step.device_state, step.state_bytes);
    assert_memory_equal(state, step.host_state, step.state_bytes);
    rp_free_aligned(state);
    float *after = rp_alloc_aligned(RP_ALIGN_UP(logit_bytes, RP_CACHE_LINE), RP_CACHE_LINE);
    rp_gpu_download(after, device_logits, logit_bytes);
    assert_memory_equal(after, logits, logit_bytes);
    rp_free_aligned(after);
}

static void check_random_step(uint32_t rows, uint32_t vocab, uint32_t extra, uint32_t offset,
                              uint32_t kind) {
    size_t stride = vocab + extra;
    random_rows(rows, vocab);
    memset(logits, 0xFF, (offset + rows * stride) * 4);
    for (uint32_t r = 0; r < step.host.counts->logit_row_count; r++)
        random_logits(logits + offset + r * stride, vocab, kind < 5 ? kind : random_below(5));
    check_step(vocab, stride, offset, rows);
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
        random_rows(32, 50000);
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
        random_rows(round, 3000);
        memset(logits, 0xFF, 40 * 3000ull * 4);
        for (uint32_t r = 0; r < step.host.counts->logit_row_count; r++)
            random_logits(logits + r * 3000ull, 3000, 0);
        check_step(3000, 3000, 0, 40);
    }
}

static void test_a_failed_step_is_published_with_its_error(void **state) {
    (void)state;
    random_rows(4, 100);
    *step.host.counts = (struct rp_live_counts){.step = step.host.counts->step, .error = 1};
    memset(logits, 0xFF, 4 * 100 * 4);
    check_step(100, 100, 0, 4);
}

int main(void) {
    if (rp_gpu_skip_code())
        return 77;
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_small_vocabularies_are_sampled_as_on_the_cpu),
        TEST(test_every_number_of_rows_gives_the_same_choices),
        TEST(test_large_vocabularies_are_sampled_as_on_the_cpu),
        TEST(test_draws_without_top_k_and_top_p_follow_the_cpu),
        TEST(test_padding_rows_change_nothing),
        TEST(test_a_failed_step_is_published_with_its_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
