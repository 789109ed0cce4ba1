/* Goal: a row in NVFP4 or MXFP4 has the nearest E2M1 value of every weight, with a scale at
 * least as good as the usual one; values are exact in bf16; rows of any length; what is no number
 * or too large is refused. */
#include "base/bf16.h"
#include "base/fp8.h"
#include "quant/matmul.h"
#include "quant/rounding/fp4.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COLS 300u

static const uint32_t types[] = {RP_BLOCK_NVFP4, RP_BLOCK_MXFP4};
static const float grid[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
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

/* The distance to the nearest value of the grid. */
static double error_of(double value, double scale) {
    double least = INFINITY;
    for (size_t i = 0; i < RP_ARRAY_COUNT(grid); i++)
        least = RP_MIN(least, fabs(fabs(value) - (double)grid[i] * scale));
    return least;
}

/* Sum of squared errors with the scale that other quantizers take: NVFP4 max / 6, rounded to E4M3;
 * MXFP4 the power of two by which the largest weight becomes 4 to 8. */
static double usual_noise(uint32_t type, float factor, const float *values, size_t count) {
    float most = 0;
    double noise = 0;
    for (size_t i = 0; i < count; i++)
        most = RP_MAX(most, fabsf(values[i]));
    double scale = type == RP_BLOCK_NVFP4
                       ? (double)rp_fp8_to_f32(rp_f32_to_fp8(most / 6 / factor)) * (double)factor
                       : exp2(floor(log2((double)most)) - 2);
    for (size_t i = 0; i < count; i++)
        noise += pow(error_of((double)values[i], scale), 2);
    return noise;
}

static float scale_of(uint32_t type, float factor, uint8_t byte) {
    return type == RP_BLOCK_NVFP4 ? rp_fp8_to_f32(byte) * factor : ldexpf(1.0f, byte - 127);
}

static void check_row(uint32_t type, float factor, uint32_t cols) {
    struct rp_block_info info = rp_block_info(type);
    struct rp_matrix row = {.rows = 1, .cols = cols, .dtype = RP_DTYPE_BLOCKS, .part_count = 1};
    float values[COLS], got[COLS + 32];
    unsigned char blocks[COLS * 2];
    struct rp_quant_loss loss = {0, 0};
    double usual = 0, noise = 0;
    for (uint32_t i = 0; i < cols; i++)
        values[i] = next_value() * (i / info.values % 2 ? 0.1f : 1.0f);
    memset(blocks, 0xFF, sizeof blocks);
    assert_true(rp_fp4_quantize_row(type, factor, values, cols, blocks, &loss));
    assert_int_equal(blocks[rp_blocks_row_bytes(type, cols)], 0xFF);
    row.data = blocks;
    row.parts[0] = (struct rp_matrix_part){
        .rows = 1, .type = type, .factor = type == RP_BLOCK_NVFP4 ? factor : 0.0f};
    rp_matrix_row_f32(&row, 0, got);
    for (uint32_t i = 0; i < cols; i++) {
        float scale = scale_of(type, factor, blocks[i / info.values * info.bytes]);
        double lost = fabs((double)values[i] - (double)got[i]);
        if (lost > error_of((double)values[i], (double)scale) * 1.0001)
            fail_msg("%s column %u: %g became %g, scale %g", info.name, i, (double)values[i],
                     (double)got[i], (double)scale);
        assert_true(rp_bf16_to_f32(rp_f32_to_bf16(got[i])) == got[i]);
        noise += lost * lost;
    }
    for (uint32_t i = 0; i < cols; i += info.values)
        usual += usual_noise(type, factor, values + i, RP_MIN(info.values, cols - i));
    assert_true(loss.noise <= usual * 1.0001);
    assert_true(fabs(loss.noise - noise) <= 1e-6 * noise);
}

static void test_every_weight_has_the_nearest_value_with_a_good_scale(void **state) {
    (void)state;
    static const uint32_t cols[] = {COLS, 256, 44, 1};
    for (size_t t = 0; t < RP_ARRAY_COUNT(types); t++)
        for (size_t c = 0; c < RP_ARRAY_COUNT(cols); c++) {
            check_row(types[t], RP_NVFP4_FACTOR, cols[c]);
            check_row(types[t], rp_nvfp4_factor(0.12f), cols[c]);
        }
}

static void test_the_search_gains_over_the_usual_scale(void **state) {
    (void)state;
    static const double least_db[] = {0.4, 0.2};
    for (size_t t = 0; t < RP_ARRAY_COUNT(types); t++) {
        double usual = 0, searched = 0;
        for (int round = 0; round < 400; round++) {
            float values[32];
            unsigned char blocks[18];
            struct rp_quant_loss loss = {0, 0};
            for (uint32_t i = 0; i < 32; i++)
                values[i] = next_value();
            assert_true(rp_fp4_quantize_row(types[t], 0x1p-12f, values, 32, blocks, &loss));
            for (uint32_t i = 0; i < 32; i += rp_block_info(types[t]).values)
                usual +=
                    usual_noise(types[t], 0x1p-12f, values + i, rp_block_info(types[t]).values);
            searched += loss.noise;
        }
        printf("%s: %.2f dB\n", rp_block_info(types[t]).name, 10 * log10(usual / searched));
        assert_true(10 * log10(usual / searched) > least_db[t]);
    }
}

static void test_rounding_takes_the_even_code_of_two_that_are_as_near(void **state) {
    (void)state;
    for (int code = 0; code < 8; code++)
        for (int sign = -1; sign <= 1; sign += 2) {
            float doubled = 2 * grid[code] * (float)sign;
            assert_true(rp_fp4_round_doubled(doubled) == doubled);
            assert_int_equal(rp_fp4_code((int8_t)doubled), code | (doubled < 0 ? 8 : 0));
            if (code < 7) {
                float even = 2 * grid[code % 2 ? code + 1 : code] * (float)sign;
                assert_true(rp_fp4_round_doubled((grid[code] + grid[code + 1]) * (float)sign) ==
                            even);
            }
        }
    assert_true(rp_fp4_round_doubled(1e9f) == 12.0f && rp_fp4_round_doubled(-13.0f) == -12.0f);
}

static void test_the_factor_is_a_power_of_two_that_leaves_scales_their_range(void **state) {
    (void)state;
    static const float sizes[] = {1e-6f, 0.02f, 0.12f, 1.0f, 6.0f, 2688.0f, 1e6f};
    for (size_t i = 0; i < RP_ARRAY_COUNT(sizes); i++) {
        int exponent;
        float factor = rp_nvfp4_factor(sizes[i]), largest = sizes[i] / 6 / factor;
        assert_true(frexpf(factor, &exponent) == 0.5f);
        assert_true(largest > 223 && largest <= 448);
    }
    assert_true(rp_nvfp4_factor(0.0f) == 1.0f && rp_nvfp4_factor(INFINITY) == 1.0f &&
                rp_nvfp4_factor(NAN) == 1.0f);
}

static void test_zeros_and_large_and_small_numbers_are_kept(void **state) {
    (void)state;
    static const float sizes[] = {0.0f, 1e-40f, 1e-20f, 1e-3f, 20.0f};
    for (size_t t = 0; t < RP_ARRAY_COUNT(types); t++)
        for (size_t s = 0; s < RP_ARRAY_COUNT(sizes); s++) {
            float values[32] = {0};
            unsigned char blocks[18];
            struct rp_quant_loss loss = {0, 0};
            values[3] = sizes[s];
            values[5] = -sizes[s] / 2;
            assert_true(rp_fp4_quantize_row(types[t], RP_NVFP4_FACTOR, values, 32, blocks, &loss));
            /* A scale of E4M3 has a smallest step. */
            double step = types[t] == RP_BLOCK_NVFP4 ? 6 * 0x1p-16 : 1e-29;
            assert_true(loss.noise <= 0.04 * loss.signal + step * step);
        }
}

static void test_what_is_no_number_or_too_large_is_refused(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -21.01f};
    for (size_t t = 0; t < RP_ARRAY_COUNT(types); t++)
        for (size_t b = 0; b < RP_ARRAY_COUNT(bad); b++) {
            float values[200] = {1.0f};
            unsigned char blocks[200];
            struct rp_matrix made = {0},
                             from = {.rows = 2, .cols = 100, .dtype = RP_DTYPE_F32, .data = values};
            struct rp_error err = {0};
            enum rp_quant_scheme scheme = t ? RP_QUANT_MXFP4 : RP_QUANT_NVFP4;
            bool held = t == 1 && b == 4;
            values[199] = bad[b];
            assert_int_equal(
                rp_fp4_quantize_row(types[t], RP_NVFP4_FACTOR, values, 200, blocks, NULL), held);
            assert_int_equal(rp_quantize_matrix(&from, scheme, &made, NULL, &err),
                             held ? RP_OK : RP_STATUS_FORMAT);
            assert_true(held || strstr(err.text, "row 1"));
            rp_matrix_deinit(&made);
        }
}

static void test_a_matrix_becomes_blocks_with_bf16_inputs(void **state) {
    (void)state;
    for (size_t t = 0; t < RP_ARRAY_COUNT(types); t++) {
        float values[3 * COLS], row[COLS];
        unsigned char want[COLS];
        struct rp_matrix from = {.rows = 3, .cols = COLS, .dtype = RP_DTYPE_F32, .data = values},
                         made;
        struct rp_quant_loss loss = {0, 0};
        size_t row_bytes = rp_blocks_row_bytes(types[t], COLS);
        for (uint32_t i = 0; i < 3 * COLS; i++)
            values[i] = next_value();
        assert_int_equal(
            rp_quantize_matrix(&from, t ? RP_QUANT_MXFP4 : RP_QUANT_NVFP4, &made, &loss, NULL),
            RP_OK);
        assert_int_equal(made.dtype, RP_DTYPE_BLOCKS);
        assert_int_equal(made.input, RP_INPUT_BF16);
        assert_int_equal(rp_matrix_bytes(&made), 3 * row_bytes);
        assert_null(made.scales);
        assert_true(rp_quant_sqnr_db(&loss) > 16 && rp_quant_sqnr_db(&loss) < 26);
        assert_true(rp_quantize_row_to_blocks(&made.parts[0], values + 2 * COLS, COLS, want, NULL));
        assert_memory_equal(want, (unsigned char *)made.data + 2 * row_bytes, row_bytes);
        rp_dequantize_row(&made, 2, row);
        assert_true(fabsf(row[0] - values[2 * COLS]) < 0.03f);
        rp_matrix_deinit(&made);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_weight_has_the_nearest_value_with_a_good_scale),
        cmocka_unit_test(test_the_search_gains_over_the_usual_scale),
        cmocka_unit_test(test_rounding_takes_the_even_code_of_two_that_are_as_near),
        cmocka_unit_test(test_the_factor_is_a_power_of_two_that_leaves_scales_their_range),
        cmocka_unit_test(test_zeros_and_large_and_small_numbers_are_kept),
        cmocka_unit_test(test_what_is_no_number_or_too_large_is_refused),
        cmocka_unit_test(test_a_matrix_becomes_blocks_with_bf16_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
