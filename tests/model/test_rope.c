/* Goal: the table contains the angles of the formula, for each kind of scaling. The expected
 * frequencies of llama3 are from a transcription of transformers' function
 * (modeling_rope_utils.py) to Python's f64; the others are plain powers. */
#include "model/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define POSITIONS 40u

static void assert_close(double value, double expected) {
    if (!(fabs(value - expected) <= 1e-14 * fabs(expected)))
        fail_msg("%.17g is not %.17g", value, expected);
}

static void test_frequencies_are_powers_of_theta(void **state) {
    (void)state;
    struct rp_rope rope = {.theta = 10000};
    double f[4];
    rp_rope_frequencies(&rope, 8, POSITIONS, f);
    assert_close(f[0], 1.0);
    assert_close(f[1], 0.1);
    assert_close(f[2], 0.01);
    assert_close(f[3], 0.001);
}

static void test_linear_scaling_divides_every_frequency(void **state) {
    (void)state;
    struct rp_rope rope = {.theta = 10000};
    double f[4];
    rope.kind = RP_ROPE_LINEAR;
    rope.factor = 4;
    rp_rope_frequencies(&rope, 8, POSITIONS, f);
    assert_close(f[0], 0.25);
    assert_close(f[3], 0.00025);
}

static void test_llama3_scaling_keeps_fades_and_stretches(void **state) {
    (void)state;
    struct rp_model_config config;
    double f[32];
    assert_int_equal(rp_model_shape("llama-3.2-1b", &config, NULL), RP_OK);
    rp_rope_frequencies(&config.rope, config.head_dim, POSITIONS, f);
    /* i: computed value. 0 and 14 turn more than 4 times in 8,192 tokens, 18 and 31 less than once.
     */
    static const struct {
        int i;
        double expected;
    } cases[] = {{0, 1},
                 {14, 0.0032114459947525913},
                 {15, 0.001290547928209264},
                 {16, 0.00042955679655936815},
                 {17, 9.7082878026276702e-05},
                 {18, 1.9461638184831125e-05},
                 {31, 9.4183067254349087e-08}};
    for (size_t c = 0; c < RP_ARRAY_COUNT(cases); c++)
        assert_close(f[cases[c].i], cases[c].expected);
}

static void test_the_table_holds_cosine_and_sine_of_each_angle(void **state) {
    (void)state;
    const struct rp_rope rope = {.theta = 10000};
    float table[POSITIONS * 6 + 1];
    table[POSITIONS * 6] = 77.0f;
    rp_rope_table_fill(&rope, 6, POSITIONS, table);
    for (uint32_t p = 0; p < POSITIONS; p++)
        for (uint32_t i = 0; i < 3; i++) {
            double angle = p * pow(10000.0, -2.0 * i / 6);
            assert_true(table[(p * 3 + i) * 2] == (float)cos(angle));
            assert_true(table[(p * 3 + i) * 2 + 1] == (float)sin(angle));
        }
    assert_true(table[POSITIONS * 6] == 77.0f); /* nothing past the end */
}

/* Frequencies of a transcription of transformers' function to Python's f64. */
static void test_yarn_keeps_fades_and_stretches(void **state) {
    (void)state;
    static const double expected[2][8] = {
        {1.0, 0.24705294220065463, 0.05625, 0.010870329456828804, 0.00125, 0.0003952847075210474,
         0.000125, 3.952847075210474e-05},
        {1.0, 0.29893626386664773, 0.06546507607370558, 0.01151012313115575, 0.00125,
         0.0003952847075210474, 0.000125, 3.952847075210474e-05}};
    struct rp_rope rope = {.kind = RP_ROPE_YARN,
                           .theta = 10000,
                           .factor = 8,
                           .beta_fast = 32,
                           .beta_slow = 1,
                           .original_max_position = 512};
    double f[8];
    for (int whole = 0; whole < 2; whole++) {
        rope.whole_range = whole;
        rp_rope_frequencies(&rope, 16, POSITIONS, f);
        for (int i = 0; i < 8; i++)
            assert_close(f[i], expected[whole][i]);
    }
}

static void test_longrope_takes_the_divisors_of_the_longest_sequence(void **state) {
    (void)state;
    const struct rp_rope rope = {.kind = RP_ROPE_LONGROPE,
                                 .theta = 10000,
                                 .attention_factor = 1.25,
                                 .original_max_position = POSITIONS - 1,
                                 .rotary_dim = 4,
                                 .short_factor = {1, 2},
                                 .long_factor = {4, 8}};
    double f[2];
    float table[POSITIONS * 4];
    rp_rope_frequencies(&rope, 6, POSITIONS - 1, f);
    assert_close(f[0], 1);
    assert_close(f[1], 0.01 / 2);
    rp_rope_frequencies(&rope, 6, POSITIONS, f);
    assert_close(f[0], 0.25);
    assert_close(f[1], 0.01 / 8);
    rp_rope_table_fill(&rope, 6, POSITIONS, table);
    assert_true(table[0] == 1.25f && table[1] == 0.0f); /* two pairs, of 4 of 6 columns */
    assert_true(table[7 * 4 + 2] == (float)(1.25 * cos(7 * f[1])));
    assert_true(table[7 * 4 + 3] == (float)(1.25 * sin(7 * f[1])));
}

static void test_factors_of_q_rise_with_each_original_length(void **state) {
    (void)state;
    float table[POSITIONS + 1];
    table[POSITIONS] = 77.0f;
    rp_q_scale_table_fill(0.5, 10, POSITIONS, table);
    for (uint32_t p = 0; p < POSITIONS; p++)
        assert_true(table[p] == (float)(1 + 0.5 * log(1 + floor(p / 10.0))));
    assert_true(table[9] == 1.0f && table[10] > 1.3f && table[POSITIONS] == 77.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies_are_powers_of_theta),
        cmocka_unit_test(test_linear_scaling_divides_every_frequency),
        cmocka_unit_test(test_llama3_scaling_keeps_fades_and_stretches),
        cmocka_unit_test(test_yarn_keeps_fades_and_stretches),
        cmocka_unit_test(test_longrope_takes_the_divisors_of_the_longest_sequence),
        cmocka_unit_test(test_factors_of_q_rise_with_each_original_length),
        cmocka_unit_test(test_the_table_holds_cosine_and_sine_of_each_angle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
