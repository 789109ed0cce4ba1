/* Goal: a row in 4 bits has the nearest code of every weight, and a scale at least as good as
 * the one that covers the largest weight; rows of any length, and what is no number is refused. */
#include "base/bf16.h"
#include "quant/matmul.h"
#include "quant/rounding/int4.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COLS 300u

static uint32_t seed = 99;

/* About normal: a sum of uniforms. */
static float next_value(void) {
    float sum = 0;
    for (int i = 0; i < 6; i++) {
        seed = seed * 1664525u + 1013904223u;
        sum += (float)(int32_t)seed * 0x1p-31f;
    }
    return sum * 0.02f;
}

/* Sum of squared errors against the scale max|w| / 7.5, rounded to bf16. */
static double plain_noise(const float *values, size_t count) {
    float most = 0;
    double noise = 0;
    for (size_t i = 0; i < count; i++)
        most = RP_MAX(most, fabsf(values[i]));
    float scale = rp_bf16_to_f32(rp_f32_to_bf16(most / 7.5f));
    for (size_t i = 0; i < count; i++) {
        double code = RP_MIN(RP_MAX(rint((double)values[i] / (double)scale), -8.0), 7.0);
        double lost = (double)values[i] - code * (double)scale;
        noise += lost * lost;
    }
    return noise;
}

static void test_every_weight_has_the_nearest_code_of_a_good_scale(void **state) {
    (void)state;
    static const uint32_t groups[] = {32, 64, 128}, cols[] = {COLS, 256, 44, 1};
    for (size_t g = 0; g < 3; g++)
        for (size_t c = 0; c < RP_ARRAY_COUNT(cols); c++) {
            uint32_t type = rp_int4_type(groups[g]), bytes = rp_block_info(type).bytes;
            float values[COLS], got[COLS + 128];
            unsigned char blocks[COLS * 2];
            struct rp_quant_loss loss = {0, 0};
            double plain = 0, signal = 0;
            for (uint32_t i = 0; i < cols[c]; i++)
                values[i] = next_value() * (i / groups[g] % 2 ? 1e-6f : 1.0f);
            memset(blocks, 0xFF, sizeof blocks);
            assert_true(rp_int4_quantize_row(values, cols[c], type, blocks, &loss));
            uint32_t count = RP_CEIL_DIV(cols[c], groups[g]);
            assert_int_equal(blocks[count * bytes], 0xFF);
            rp_blocks_to_f32(type, blocks, count, got);
            for (uint32_t i = 0; i < cols[c]; i++) {
                uint16_t bits;
                memcpy(&bits, blocks + i / groups[g] * bytes, sizeof bits);
                float scale = rp_bf16_to_f32(bits), lost = fabsf(values[i] - got[i]);
                bool cut = got[i] == 7 * scale || got[i] == -8 * scale;
                assert_true(scale > 0);
                if (!cut && lost > 0.5001f * scale)
                    fail_msg("group %u column %u: %g became %g, scale %g", groups[g], i,
                             (double)values[i], (double)got[i], (double)scale);
                signal += (double)values[i] * (double)values[i];
            }
            for (uint32_t i = 0; i < cols[c]; i += groups[g])
                plain += plain_noise(values + i, RP_MIN(groups[g], cols[c] - i));
            assert_true(loss.noise <= plain * 1.0001);
            assert_true(fabs(loss.signal - signal) <= 1e-9 * signal);
            for (uint32_t i = cols[c]; i < count * groups[g]; i++)
                assert_true(got[i] == 0.0f);
        }
}

static void test_the_search_gains_half_a_decibel_for_normal_weights(void **state) {
    (void)state;
    float values[128];
    double plain = 0, searched = 0;
    for (int round = 0; round < 50; round++) {
        unsigned char block[128];
        struct rp_quant_loss loss = {0, 0};
        for (uint32_t i = 0; i < 128; i++)
            values[i] = next_value();
        assert_true(rp_int4_quantize_row(values, 128, rp_int4_type(128), block, &loss));
        plain += plain_noise(values, 128);
        searched += loss.noise;
    }
    assert_true(10 * log10(plain / searched) > 0.5);
}

static void test_zeros_and_the_largest_and_smallest_numbers_are_kept(void **state) {
    (void)state;
    static const float sizes[] = {0.0f, 1e-40f, 1e-25f, 1e30f, 3e38f};
    for (size_t s = 0; s < RP_ARRAY_COUNT(sizes); s++) {
        float values[64] = {0}, got[64];
        unsigned char block[64];
        values[3] = sizes[s];
        values[5] = -sizes[s] / 2;
        assert_true(rp_int4_quantize_row(values, 64, rp_int4_type(64), block, NULL));
        rp_blocks_to_f32(rp_int4_type(64), block, 1, got);
        for (uint32_t i = 0; i < 64; i++)
            assert_true(fabsf(got[i] - values[i]) <= 0.08f * sizes[s] + 1e-30f);
    }
}

static void test_a_number_that_is_none_is_refused(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t b = 0; b < 3; b++) {
        float values[200] = {1.0f};
        unsigned char blocks[200];
        struct rp_matrix made = {0},
                         from = {.rows = 2, .cols = 100, .dtype = RP_DTYPE_F32, .data = values};
        struct rp_error err = {0};
        values[199] = bad[b];
        assert_false(rp_int4_quantize_row(values, 200, rp_int4_type(32), blocks, NULL));
        assert_int_equal(rp_quantize_matrix(&from, RP_QUANT_INT4, &made, NULL, &err),
                         RP_STATUS_FORMAT);
        assert_non_null(strstr(err.text, "row 1"));
        assert_null(made.data);
    }
}

static void test_a_matrix_becomes_blocks_of_128_with_bf16_inputs(void **state) {
    (void)state;
    float values[3 * COLS], row[COLS];
    unsigned char want[COLS * 2];
    struct rp_matrix from = {.rows = 3, .cols = COLS, .dtype = RP_DTYPE_F32, .data = values}, made;
    struct rp_quant_loss loss = {0, 0};
    for (uint32_t i = 0; i < 3 * COLS; i++)
        values[i] = next_value();
    assert_int_equal(rp_quantize_matrix(&from, RP_QUANT_INT4, &made, &loss, NULL), RP_OK);
    assert_int_equal(made.dtype, RP_DTYPE_BLOCKS);
    assert_int_equal(made.input, RP_INPUT_BF16);
    assert_int_equal(rp_matrix_bytes(&made), 3 * 3 * 66);
    assert_null(made.scales);
    assert_true(rp_quant_sqnr_db(&loss) > 18 && rp_quant_sqnr_db(&loss) < 26);
    assert_true(rp_int4_quantize_row(values + 2 * COLS, COLS, made.parts[0].type, want, NULL));
    assert_memory_equal(want, (unsigned char *)made.data + 2 * 3 * 66, 3 * 66);
    rp_dequantize_row(&made, 2, row);
    assert_true(fabsf(row[0] - values[2 * COLS]) < 0.02f);
    rp_matrix_deinit(&made);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_weight_has_the_nearest_code_of_a_good_scale),
        cmocka_unit_test(test_the_search_gains_half_a_decibel_for_normal_weights),
        cmocka_unit_test(test_zeros_and_the_largest_and_smallest_numbers_are_kept),
        cmocka_unit_test(test_a_number_that_is_none_is_refused),
        cmocka_unit_test(test_a_matrix_becomes_blocks_of_128_with_bf16_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
