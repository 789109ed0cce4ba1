/* Goal: the choice of a token follows its parameters exactly, and depends on nothing else. */
#include "device/step_cpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define VOCAB 64

static struct rp_candidate scratch[VOCAB];

static struct rp_sample_params params_default(void) {
    return (struct rp_sample_params){.temperature = 1.0f, .top_p = 1.0f, .seed = 7};
}

/* Descending logits: id 0 is the likeliest, each next one half as likely. */
static void fill_halving(float logits[VOCAB]) {
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = -(float)i * logf(2.0f);
}

/* Draws many positions; returns the largest id seen and counts per id. */
static uint32_t draw(const float *logits, struct rp_sample_params params, uint32_t draws,
                     uint32_t counts[VOCAB]) {
    uint32_t largest = 0;
    memset(counts, 0, VOCAB * sizeof *counts);
    for (uint32_t i = 0; i < draws; i++) {
        params.position = i;
        int32_t id = rp_sample_choose(logits, VOCAB, &params, scratch);
        assert_in_range(id, 0, VOCAB - 1);
        counts[id]++;
        largest = RP_MAX(largest, (uint32_t)id);
    }
    return largest;
}

static void test_greedy_takes_the_lowest_id_among_equals(void **state) {
    (void)state;
    float logits[VOCAB] = {0};
    struct rp_sample_params params = params_default();
    params.temperature = 0.0f;
    logits[9] = logits[41] = 3.0f;
    assert_int_equal(rp_sample_choose(logits, VOCAB, &params, scratch), 9);
}

static void test_a_nan_anywhere_is_found(void **state) {
    (void)state;
    struct rp_sample_params params = params_default();
    for (uint32_t at = 0; at < VOCAB; at++) {
        float logits[VOCAB] = {0};
        logits[at] = NAN;
        params.temperature = at % 2 ? 1.0f : 0.0f;
        assert_int_equal(rp_sample_choose(logits, VOCAB, &params, scratch), -1);
    }
}

static void test_frequencies_are_the_softmax(void **state) {
    (void)state;
    float logits[VOCAB];
    uint32_t counts[VOCAB];
    const uint32_t draws = 40000;
    fill_halving(logits);
    draw(logits, params_default(), draws, counts);
    /* p(i) = 2^-(i+1); five standard deviations of a binomial. */
    for (uint32_t i = 0; i < 8; i++) {
        double p = pow(0.5, i + 1), sigma = sqrt(p * (1 - p) / draws);
        assert_true(fabs(counts[i] / (double)draws - p) < 5 * sigma);
    }
}

static void test_top_k_keeps_exactly_k_and_prefers_low_ids_among_equals(void **state) {
    (void)state;
    float logits[VOCAB] = {0};
    uint32_t counts[VOCAB];
    struct rp_sample_params params = params_default();
    params.top_k = 5;
    assert_int_equal(draw(logits, params, 2000, counts), 4);
    for (uint32_t i = 0; i < 5; i++)
        assert_true(counts[i] > 0);
}

static void test_top_p_keeps_the_shortest_prefix_that_reaches_it(void **state) {
    (void)state;
    float logits[VOCAB];
    uint32_t counts[VOCAB];
    struct rp_sample_params params = params_default();
    fill_halving(logits);
    params.top_p = 0.75f; /* 1/2 + 1/4 */
    assert_int_equal(draw(logits, params, 2000, counts), 1);
    params.top_p = 0.76f;
    assert_int_equal(draw(logits, params, 2000, counts), 2);
    params.top_p = 1e-6f; /* never fewer than one */
    assert_int_equal(draw(logits, params, 200, counts), 0);
}

static void test_top_p_counts_the_rest_after_top_k(void **state) {
    (void)state;
    float logits[VOCAB];
    uint32_t counts[VOCAB];
    struct rp_sample_params params = params_default();
    fill_halving(logits);
    params.top_k = 2; /* 2/3 and 1/3 */
    params.top_p = 0.66f;
    assert_int_equal(draw(logits, params, 2000, counts), 0);
    params.top_p = 0.68f;
    assert_int_equal(draw(logits, params, 2000, counts), 1);
}

static void test_min_p_is_relative_to_the_likeliest(void **state) {
    (void)state;
    float logits[VOCAB];
    uint32_t counts[VOCAB];
    struct rp_sample_params params = params_default();
    fill_halving(logits);
    params.min_p = 0.24f; /* ids 0, 1, 2 have 1, 1/2, 1/4 of the largest probability */
    assert_int_equal(draw(logits, params, 4000, counts), 2);
}

static void test_a_tiny_temperature_is_greedy_and_never_overflows(void **state) {
    (void)state;
    float logits[VOCAB];
    struct rp_sample_params params = params_default();
    fill_halving(logits);
    logits[17] = 80.0f;
    params.temperature = 1e-30f;
    for (params.position = 0; params.position < 100; params.position++)
        assert_int_equal(rp_sample_choose(logits, VOCAB, &params, scratch), 17);
}

static void test_the_choice_depends_on_seed_and_position_alone(void **state) {
    (void)state;
    float logits[VOCAB], copy[VOCAB];
    struct rp_candidate other[VOCAB];
    struct rp_sample_params params = params_default();
    uint32_t differences = 0;
    fill_halving(logits);
    memcpy(copy, logits, sizeof copy);
    memset(other, 0xFF, sizeof other);
    for (params.position = 0; params.position < 200; params.position++) {
        int32_t id = rp_sample_choose(logits, VOCAB, &params, scratch);
        assert_int_equal(id, rp_sample_choose(copy, VOCAB, &params, other));
        params.seed++;
        differences += id != rp_sample_choose(logits, VOCAB, &params, scratch);
        params.seed--;
    }
    assert_true(differences > 50);
}

static void test_philox_gives_the_published_words(void **state) {
    (void)state;
    /* Random123's kat_vectors for philox4x32-10: counter 0, key 0. */
    assert_int_equal(rp_philox(0, 0, 0), 0x6627e8d5u);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_takes_the_lowest_id_among_equals),
        cmocka_unit_test(test_a_nan_anywhere_is_found),
        cmocka_unit_test(test_frequencies_are_the_softmax),
        cmocka_unit_test(test_top_k_keeps_exactly_k_and_prefers_low_ids_among_equals),
        cmocka_unit_test(test_top_p_keeps_the_shortest_prefix_that_reaches_it),
        cmocka_unit_test(test_top_p_counts_the_rest_after_top_k),
        cmocka_unit_test(test_min_p_is_relative_to_the_likeliest),
        cmocka_unit_test(test_a_tiny_temperature_is_greedy_and_never_overflows),
        cmocka_unit_test(test_the_choice_depends_on_seed_and_position_alone),
        cmocka_unit_test(test_philox_gives_the_published_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
