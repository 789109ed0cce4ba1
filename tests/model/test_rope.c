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

static struct rp_model_config config_of(uint32_t head_dim, double theta) {
    struct rp_model_config config;
    memset(&config, 0, sizeof config);
    config.head_dim = head_dim;
    config.rope_theta = theta;
    config.rope_factor = 1;
    return config;
}

static void assert_close(double value, double expected) {
    if (!(fabs(value - expected) <= 1e-14 * fabs(expected)))
        fail_msg("%.17g is not %.17g", value, expected);
}

static void test_frequencies_are_powers_of_theta(void **state) {
    (void)state;
    struct rp_model_config config = config_of(8, 10000);
    double f[4];
    rp_rope_frequencies(&config, f);
    assert_close(f[0], 1.0);
    assert_close(f[1], 0.1);
    assert_close(f[2], 0.01);
    assert_close(f[3], 0.001);
}

static void test_linear_scaling_divides_every_frequency(void **state) {
    (void)state;
    struct rp_model_config config = config_of(8, 10000);
    double f[4];
    config.rope = RP_ROPE_LINEAR;
    config.rope_factor = 4;
    rp_rope_frequencies(&config, f);
    assert_close(f[0], 0.25);
    assert_close(f[3], 0.00025);
}

static void test_llama3_scaling_keeps_fades_and_stretches(void **state) {
    (void)state;
    struct rp_model_config config;
    double f[32];
    assert_int_equal(rp_model_shape("llama-3.2-1b", &config, NULL), RP_OK);
    rp_rope_frequencies(&config, f);
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
    struct rp_model_config config = config_of(6, 10000);
    float table[POSITIONS * 6 + 1];
    table[POSITIONS * 6] = 77.0f;
    rp_rope_table_fill(&config, POSITIONS, table);
    for (uint32_t p = 0; p < POSITIONS; p++)
        for (uint32_t i = 0; i < 3; i++) {
            double angle = p * pow(10000.0, -2.0 * i / 6);
            assert_true(table[(p * 3 + i) * 2] == (float)cos(angle));
            assert_true(table[(p * 3 + i) * 2 + 1] == (float)sin(angle));
        }
    assert_true(table[POSITIONS * 6] == 77.0f); /* nothing past the end */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies_are_powers_of_theta),
        cmocka_unit_test(test_linear_scaling_divides_every_frequency),
        cmocka_unit_test(test_llama3_scaling_keeps_fades_and_stretches),
        cmocka_unit_test(test_the_table_holds_cosine_and_sine_of_each_angle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
