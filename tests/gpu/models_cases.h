/* models_cases.h - the tests of whole models on a GPU: every way to run a model of model_cases is
 * compared bit for bit with the simplest one, and that one with the CPU's scalar reference
 * (models_fixture.h). Included once per test program. */
#ifndef RP_TESTS_GPU_MODELS_CASES_H
#define RP_TESTS_GPU_MODELS_CASES_H

#include "tests/gpu/models_fixture.h"

enum { CPU_SEQUENCES = 5 };

/* Skipped in slow runs under a tool: the reference already runs unfused, eager and with plain
 * edges. */
static void skip_when_tiny(void) {
    if (is_tiny())
        skip();
}

static void for_every_model(void (*check)(void)) {
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(model_cases); i++) {
        if (is_left_out(&model_cases[i]))
            continue;
        make_truth(&model_cases[i]);
        check();
        close_way();
    }
}

static void check_way(const struct rp_driver_config *way) {
    open_way(way);
    run_everything();
    run_every_bucket();
}

static void check_graphs(void) {
    struct rp_driver_config way = way_default();
    way.poison = true;
    way.free_program = true;
    check_way(&way);
}

static void test_company_bucket_chunk_slot_and_padding_change_no_bit(void **state) {
    (void)state;
    for_every_model(check_graphs);
}

static void check_eager(void) {
    struct rp_driver_config way = way_default();
    way.eager = true;
    check_way(&way);
}

static void test_eager_launches_give_the_bits_of_graphs(void **state) {
    (void)state;
    skip_when_tiny();
    for_every_model(check_eager);
}

static void check_unfused(void) {
    struct rp_driver_config way = way_default();
    way.no_fusion = true;
    way.poison = true;
    check_way(&way);
}

static void test_unfused_operators_give_the_bits_of_fused_ones(void **state) {
    (void)state;
    skip_when_tiny();
    for_every_model(check_unfused);
}

static void check_plain_edges(void) {
    struct rp_driver_config way = way_default();
    way.no_dependent_launch = true;
    check_way(&way);
}

static void test_dependent_launch_changes_no_bit(void **state) {
    (void)state;
    skip_when_tiny();
    for_every_model(check_plain_edges);
}

/* -- against the CPU -------------------------------------------------- */

static float (*cpu)[1 + FORCED][VOCAB_MAX];

/* The argmax agrees wherever the CPU's two best differ by more than four times the largest
 * difference. */
static void check_argmax(uint32_t sequence, uint32_t index) {
    if (current->flips)
        return;
    const float *want = cpu[sequence][index], *got = truth[sequence][index];
    uint32_t best = argmax(want);
    float second = -INFINITY, difference = 0.0f;
    for (uint32_t v = 0; v < current->vocab; v++) {
        difference = fmaxf(difference, fabsf(want[v] - got[v]));
        second = v == best ? second : fmaxf(second, want[v]);
    }
    if (want[best] - second > 4.0f * difference)
        assert_int_equal(argmax(got), best);
}

static bool has_quantized(void) {
    return current->pages || current->scheme == RP_QUANT_INT8 || current->scheme == RP_QUANT_FP8;
}

/* Logits of the scalar reference. */
static void run_cpu(uint32_t count, float (*out)[1 + FORCED][VOCAB_MAX]) {
    const struct rp_bucket bucket = {LENGTH_MAX, 1, 1, false};
    struct rp_driver_config way = way_default();
    way.backend = NULL;
    way.scalar_only = true;
    way.buckets = &bucket;
    way.bucket_count = 1;
    way.slots = count;
    open_way(&way);
    run_one_at_a_time(count, out);
}

/* Relative distance from the CPU's logits. */
static double distance(uint32_t count, float (*from)[1 + FORCED][VOCAB_MAX]) {
    double difference = 0.0, size = 0.0;
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t index = 0; index <= FORCED; index++)
            for (uint32_t v = 0; v < current->vocab; v++) {
                double gap = (double)from[s][index][v] - cpu[s][index][v];
                difference += gap * gap;
                size += (double)cpu[s][index][v] * cpu[s][index][v];
            }
    return sqrt(difference / size);
}

/* Sums that round differently give other quantized values, each off by one rounding step. The
 * difference of two machines is at most that of two independent roundings: sqrt(2) times the
 * quantization error on the CPU. */
static double quantized_noise(uint32_t count) {
    float(*plain)[1 + FORCED][VOCAB_MAX] = rp_calloc(CPU_SEQUENCES, sizeof *plain);
    assert_non_null(plain);
    plain_rows = true;
    run_cpu(count, plain);
    plain_rows = false;
    double noise = distance(count, plain);
    rp_free(plain);
    return noise;
}

static void check_cpu(void) {
    uint32_t count = RP_MIN((uint32_t)CPU_SEQUENCES, sequence_count());
    /* The GPU rounds 4-bit weights and their scales to bf16. */
    double allowed = current->dtype == RP_DTYPE_F32                ? 1e-5
                     : current->flips                              ? 0.1
                     : rp_quant_scheme_has_blocks(current->scheme) ? 1.2e-2
                     : current->family == RP_FAMILY_GEMMA4         ? 1.5e-2
                                                                   : 8e-3;
    cpu = rp_calloc(CPU_SEQUENCES, sizeof *cpu);
    assert_non_null(cpu);
    run_cpu(count, cpu);
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t index = 0; index <= FORCED; index++)
            check_argmax(s, index);
    double error = distance(count, truth);
    if (has_quantized())
        allowed = RP_MAX(allowed, sqrt(2.0) * quantized_noise(count));
    rp_free(cpu);
    printf("%s: relative error of the logits %.2e, allowed %.2e\n", current->name, error, allowed);
    assert_true(error <= allowed);
}

static void test_logits_are_those_of_the_cpu(void **state) {
    (void)state;
    skip_when_tiny();
    for_every_model(check_cpu);
}

/* -- memory, steps in flight, sampling -------------------------------------------------- */

/* A guarded arena holds one bucket: rows are first tokens of sequences, or prompts truncated to
 * fit. */
static void run_guarded(const struct rp_bucket *bucket) {
    struct rp_driver_config way = way_default();
    struct room room = room_of(bucket);
    way.buckets = bucket;
    way.bucket_count = 1;
    way.guarded = true;
    open_way(&way);
    for (uint32_t s = 0; s < sequence_count() && room.tokens && room.rows && room.logit_rows; s++) {
        uint32_t most = bucket->decode ? 1 : RP_MIN(prompt_length(s), room.tokens);
        struct piece piece = {s, 0, most, bucket->decode || s % 3 == 1, true};
        if (piece.decode)
            piece.count = 1;
        put(&piece);
        room.tokens -= piece.count;
        room.rows--;
        room.logit_rows--;
    }
    rp_driver_run(&driver, NULL);
    if (!rp_graph_set_check(driver.graphs))
        fail_msg("%s: bucket of %u tokens, %u rows", current->name, bucket->tokens, bucket->rows);
}

static void check_canaries(void) {
    static const struct rp_bucket buckets[] = {
        {1, 1, 1, true},      {8, 8, 8, true},     {40, 40, 40, true},
        {64, 64, 64, true},   {16, 16, 8, false},  {64, 64, 8, false},
        {128, 64, 64, false}, {448, 64, 8, false}, {512, 64, 64, false}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(buckets); i++)
        if (buckets[i].rows <= sequence_count())
            run_guarded(&buckets[i]);
}

static void test_no_kernel_writes_outside_its_tensors(void **state) {
    (void)state;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(model_cases); i++) {
        if (is_left_out(&model_cases[i]))
            continue;
        current = &model_cases[i];
        check_canaries();
        close_way();
    }
}

enum { ROUNDS = 20, FREE_ROWS = 6 };

struct answer {
    int32_t tokens[ROUNDS];
    float logprobs[ROUNDS];
};

/* Sequence s at its prompt's end with output count 0; seeded when `sampled`. */
static void start_answers(const uint32_t *sequences, uint32_t count, bool sampled) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t s = sequences[i], slot = slots[s];
        struct piece piece = whole_piece(s, 0);
        rp_driver_edit(&driver, slot, RP_SLOT_OUTPUT_COUNT, 0, 0);
        rp_driver_edit_float(&driver, slot, RP_SLOT_TEMPERATURE, sampled ? 0.9f : 0.0f);
        rp_driver_edit(&driver, slot, RP_SLOT_TOP_K, 0, s % 2 ? 40 : 0);
        rp_driver_edit(&driver, slot, RP_SLOT_SEED_LOW, 0, 77 + s);
        put(&piece);
        rp_driver_run(&driver, NULL);
    }
}

static void keep_answers(struct answer *answers, const uint32_t *sequences, uint32_t count,
                         uint64_t step, uint32_t round) {
    for (uint32_t row = 0; row < count; row++) {
        const struct rp_row_result *result = rp_driver_result_of(&driver, step, row);
        assert_int_equal(result->flags, 0);
        answers[sequences[row]].tokens[round] = result->token;
        answers[sequences[row]].logprobs[round] = result->logprob;
    }
}

/* ROUNDS decode steps, each with the previous step's token, `ahead` of them submitted before one
 * is read. */
static void run_answers(struct answer *answers, const uint32_t *sequences, uint32_t count,
                        uint32_t ahead) {
    uint64_t first = driver.step + 1;
    for (uint32_t round = 0; round < ROUNDS + ahead; round++) {
        if (round < ROUNDS) {
            for (uint32_t i = 0; i < count; i++)
                rp_driver_row(&driver, slots[sequences[i]], NULL, 1, true);
            rp_driver_submit(&driver, NULL);
        }
        if (round >= ahead) {
            rp_driver_wait(&driver, first + round - ahead);
            keep_answers(answers, sequences, count, first + round - ahead, round - ahead);
        }
    }
    assert_int_equal(driver.backend->synchronize(driver.device), RP_OK);
}

static void assert_same_answers(const struct answer *a, const struct answer *b,
                                const uint32_t *which, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        assert_memory_equal(&a[which[i]], &b[which[i]], sizeof *a);
}

static void check_answers(bool sampled) {
    static const uint32_t together[FREE_ROWS] = {4, 1, 3, 2, 6, 5};
    struct answer alone[SEQUENCES] = {0}, plain[SEQUENCES] = {0}, ahead[SEQUENCES] = {0};
    struct rp_driver_config way = way_default();
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(model_cases); i++) {
        current = &model_cases[i];
        if (is_left_out(current) || (i >= 6 && current->scheme == RP_QUANT_NONE))
            continue;
        open_way(&way);
        for (uint32_t row = 0; row < FREE_ROWS; row++) {
            start_answers(&together[row], 1, sampled);
            run_answers(alone, &together[row], 1, 0);
        }
        start_answers(together, FREE_ROWS, sampled);
        run_answers(plain, together, FREE_ROWS, 0);
        assert_same_answers(alone, plain, together, FREE_ROWS);
        for (uint32_t flight = 1; flight < RP_STEP_RING_ENTRIES - 1; flight++) {
            open_way(&way);
            start_answers(together, FREE_ROWS, sampled);
            run_answers(ahead, together, FREE_ROWS, flight);
            assert_same_answers(plain, ahead, together, FREE_ROWS);
        }
        close_way();
    }
}

static void test_steps_in_flight_give_the_tokens_of_steps_one_by_one(void **state) {
    (void)state;
    check_answers(false);
}

static void test_a_seed_gives_the_same_tokens_alone_together_and_again(void **state) {
    (void)state;
    check_answers(true);
}

#define MODEL_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#define MODEL_TESTS                                                                                \
    MODEL_TEST(test_company_bucket_chunk_slot_and_padding_change_no_bit),                          \
        MODEL_TEST(test_logits_are_those_of_the_cpu),                                              \
        MODEL_TEST(test_eager_launches_give_the_bits_of_graphs),                                   \
        MODEL_TEST(test_unfused_operators_give_the_bits_of_fused_ones),                            \
        MODEL_TEST(test_dependent_launch_changes_no_bit),                                          \
        MODEL_TEST(test_no_kernel_writes_outside_its_tensors),                                     \
        MODEL_TEST(test_steps_in_flight_give_the_tokens_of_steps_one_by_one),                      \
        MODEL_TEST(test_a_seed_gives_the_same_tokens_alone_together_and_again)

#endif
