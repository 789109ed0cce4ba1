/* Goal: weights and rows are quantized to the nearest values under the scale that the header
 * promises, and bad input is never accepted silently. Method: against f64, extremes, both input
 * types, both layouts. */
#include "base/bf16.h"
#include "base/fp8.h"
#include "base/memory.h"
#include "device/quantize_row.h"
#include "quant/matmul.h"
#include "quant/rounding/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ROWS 37
#define COLS 51

static uint32_t seed = 99;

static float next_value(void) {
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return (float)(int32_t)seed * 0x1p-31f;
}

static struct rp_matrix make_matrix(enum rp_dtype dtype) {
    struct rp_matrix matrix = {.rows = ROWS, .cols = COLS, .dtype = dtype};
    matrix.data = rp_alloc_aligned(rp_matrix_bytes(&matrix), 64);
    assert_non_null(matrix.data);
    for (size_t i = 0; i < ROWS * COLS; i++) {
        float value = i / COLS == 5 ? 0.0f : ldexpf(next_value(), (int)(i / COLS) - 18);
        if (dtype == RP_DTYPE_F32)
            ((float *)matrix.data)[i] = value;
        else
            ((uint16_t *)matrix.data)[i] = rp_f32_to_bf16(value);
    }
    return matrix;
}

/* Every weight is within half a step of the grid at its size. */
static void check_row(const float *want, const float *got, enum rp_dtype dtype) {
    float most = 0;
    for (size_t i = 0; i < COLS; i++)
        most = fmaxf(most, fabsf(want[i]));
    for (size_t i = 0; i < COLS; i++) {
        double step = (double)most / 127;
        if (dtype == RP_DTYPE_FP8_E4M3) {
            double scaled = fabs((double)want[i]) * 448 / (double)most;
            step = (scaled > 0x1p-6 ? exp2(floor(log2(scaled))) / 8 : 0x1p-9) * (double)most / 448;
        }
        assert_true(fabs((double)want[i] - (double)got[i]) <= step * 0.5001);
    }
}

static void test_each_weight_becomes_the_nearest_code_of_its_row(void **state) {
    (void)state;
    for (int scheme = RP_QUANT_INT8; scheme <= RP_QUANT_FP8_W8A16; scheme++)
        for (int type = 0; type < 2; type++) {
            struct rp_matrix from = make_matrix(type ? RP_DTYPE_BF16 : RP_DTYPE_F32), made;
            struct rp_quant_loss loss = {0};
            struct rp_error err;
            float want[COLS], got[COLS];
            assert_int_equal(
                rp_quantize_matrix(&from, (enum rp_quant_scheme)scheme, &made, &loss, &err), RP_OK);
            assert_int_equal(made.dtype, rp_quant_scheme_dtype((enum rp_quant_scheme)scheme));
            for (uint32_t row = 0; row < ROWS; row++) {
                rp_matrix_row_f32(&from, row, want);
                rp_dequantize_row(&made, row, got);
                if (row == 5)
                    assert_true(made.scales[row] == 1.0f);
                check_row(want, got, made.dtype);
            }
            double least = made.dtype == RP_DTYPE_INT8 ? 45 : 30;
            assert_true(rp_quant_sqnr_db(&loss) > least && rp_quant_sqnr_db(&loss) < 60);
            rp_matrix_deinit(&from);
            rp_matrix_deinit(&made);
        }
}

static void test_panels_return_the_rows_that_were_stored(void **state) {
    (void)state;
    for (int scheme = RP_QUANT_INT8; scheme <= RP_QUANT_FP8; scheme++) {
        struct rp_matrix from = make_matrix(RP_DTYPE_F32), made, packed;
        float plain[ROWS][COLS], row[COLS];
        assert_int_equal(rp_quantize_matrix(&from, (enum rp_quant_scheme)scheme, &made, NULL, NULL),
                         RP_OK);
        for (uint32_t i = 0; i < ROWS; i++)
            rp_dequantize_row(&made, i, plain[i]);
        assert_int_equal(rp_matrix_prepare_cpu(&made, RP_ISA_AVX2, NULL), RP_OK);
        packed = made;
        assert_int_equal(packed.layout, RP_LAYOUT_PANEL_16);
        assert_int_equal(rp_matrix_bytes(&packed), 3 * (64 + 13 * 64));
        for (uint32_t i = 0; i < ROWS; i++) {
            rp_dequantize_row(&packed, i, row);
            assert_memory_equal(row, plain[i], sizeof row);
        }
        rp_matrix_deinit(&from);
        rp_matrix_deinit(&made);
    }
}

static void test_a_weight_that_is_not_finite_is_refused_with_its_row(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++) {
        struct rp_matrix from = make_matrix(RP_DTYPE_F32), made = {0};
        struct rp_error err;
        ((float *)from.data)[21 * COLS + 50] = bad[i];
        assert_int_equal(rp_quantize_matrix(&from, RP_QUANT_INT8, &made, NULL, &err),
                         RP_STATUS_FORMAT);
        assert_non_null(strstr(err.text, "row 21 "));
        assert_null(made.data);
        rp_matrix_deinit(&from);
    }
}

static void test_a_row_of_activations_reaches_the_ends_of_the_grid(void **state) {
    (void)state;
    float row[COLS] = {0};
    int8_t quantized[COLS];
    row[3] = -2.5f;
    row[7] = 2.5f;
    row[9] = 2.5f / 254; /* half a step: to even */
    assert_true(rp_quantize_row(row, RP_DTYPE_F32, COLS, RP_DTYPE_INT8, quantized) == 2.5f / 127);
    assert_int_equal(quantized[3], -127);
    assert_int_equal(quantized[7], 127);
    assert_true(quantized[9] == 0 || quantized[9] == 1);
    assert_true(rp_quantize_row(row, RP_DTYPE_F32, COLS, RP_DTYPE_FP8_E4M3, quantized) ==
                2.5f / 448);
    assert_int_equal((uint8_t)quantized[3], 0xFE);
    assert_int_equal((uint8_t)quantized[7], 0x7E);
}

static void test_rows_of_nothing_have_scale_1_and_bad_rows_scale_nan(void **state) {
    (void)state;
    float row[COLS];
    int8_t quantized[COLS], zero[COLS] = {0};
    static const float values[] = {0.0f, -0.0f, 0x1p-149f, 0x1p-126f, NAN, INFINITY};
    for (size_t i = 0; i < RP_ARRAY_COUNT(values); i++) {
        for (size_t k = 0; k < COLS; k++)
            row[k] = k == 20 ? values[i] : 0.0f;
        float scale = rp_quantize_row(row, RP_DTYPE_F32, COLS, RP_DTYPE_INT8, quantized);
        assert_true(i < 4 ? scale == 1.0f : isnan(scale));
        assert_memory_equal(quantized, zero, sizeof quantized);
    }
    for (size_t k = 0; k < COLS; k++)
        row[k] = 3e38f;
    assert_true(isfinite(rp_quantize_row(row, RP_DTYPE_F32, COLS, RP_DTYPE_INT8, quantized)));
    assert_int_equal(quantized[0], 127);
    row[0] = 0x1p-100f;
    assert_true(rp_quantize_row(row, RP_DTYPE_F32, 1, RP_DTYPE_INT8, quantized) > 0);
    assert_int_equal(quantized[0], 127);
}

/* ---- the search for a scale ----------------------------------------------------------------- */

#define WIDE (RP_QUANT_SEARCH_COLS + 1)

/* Approximately normal, like weights. */
static void fill_weights(float *row, size_t cols, float size) {
    for (size_t i = 0; i < cols; i++)
        row[i] = (next_value() + next_value() + next_value()) * size;
}

static double noise_of(const float *row, size_t cols, const uint8_t *quantized, double scale) {
    double noise = 0;
    for (size_t i = 0; i < cols; i++) {
        double lost = (double)row[i] - (double)rp_fp8_to_f32(quantized[i]) * scale;
        noise += lost * lost;
    }
    return noise;
}

/* The least rounding noise over sixteen scales within a factor of two above the largest weight's,
 * in f64. */
static double least_noise(const float *row, size_t cols) {
    double most = 0, least = INFINITY;
    for (size_t i = 0; i < cols; i++)
        most = fmax(most, fabs((double)row[i]));
    for (int step = 0; step < 16; step++) {
        double scale = most / 448 * exp2(step / 16.0);
        uint8_t quantized[WIDE];
        for (size_t i = 0; i < cols; i++)
            quantized[i] = rp_f32_to_fp8((float)((double)row[i] / scale));
        least = fmin(least, noise_of(row, cols, quantized, scale));
    }
    return least;
}

static void test_a_searched_scale_is_the_best_of_sixteen_and_never_worse(void **state) {
    (void)state;
    static const size_t widths[] = {1, 7, 8, 51, 64, 172, RP_QUANT_SEARCH_COLS};
    for (size_t w = 0; w < RP_ARRAY_COUNT(widths); w++) {
        double before = 0, after = 0;
        for (int trial = 0; trial < 40; trial++) {
            float row[WIDE], scale, plain_scale;
            uint8_t quantized[WIDE], plain[WIDE];
            size_t cols = widths[w], bad;
            fill_weights(row, cols, ldexpf(0.02f, trial - 20));
            memset(quantized, 0xA5, sizeof quantized);
            assert_true(rp_quantize_weights(row, RP_DTYPE_F32, 1, cols, RP_DTYPE_FP8_E4M3, plain,
                                            &plain_scale, NULL, &bad));
            assert_true(rp_quantize_weights_searched(row, RP_DTYPE_F32, 1, cols, RP_DTYPE_FP8_E4M3,
                                                     quantized, &scale, NULL, &bad));
            double noise = noise_of(row, cols, quantized, (double)scale);
            double was = noise_of(row, cols, plain, (double)plain_scale);
            assert_true(noise <= was);
            double rounding =
                1e-12 * (double)(row[0] * row[0]); /* of the scale: one weight alone */
            assert_true(noise <= least_noise(row, cols) * 1.0001 + rounding);
            before += was / ((double)plain_scale * (double)plain_scale);
            after += noise / ((double)plain_scale * (double)plain_scale);
        }
        if (widths[w] == 64)
            assert_true(after < before * 0.8); /* 1 dB */
    }
}

static void test_a_searched_matrix_has_the_same_bits_in_any_pieces_and_both_types(void **state) {
    (void)state;
    enum { COUNT = 9, COLUMNS = 52 };
    uint16_t half[COUNT * COLUMNS];
    float full[COUNT * COLUMNS], scales[COUNT], other_scales[COUNT];
    uint8_t quantized[COUNT * COLUMNS], other[COUNT * COLUMNS];
    struct rp_quant_loss loss = {0}, again = {0};
    size_t bad;
    for (size_t i = 0; i < RP_ARRAY_COUNT(half); i++) {
        half[i] = rp_f32_to_bf16(next_value());
        full[i] = rp_bf16_to_f32(half[i]);
    }
    assert_true(rp_quantize_weights_searched(half, RP_DTYPE_BF16, COUNT, COLUMNS, RP_DTYPE_FP8_E4M3,
                                             quantized, scales, &loss, &bad));
    for (size_t row = 0; row < COUNT; row++)
        assert_true(rp_quantize_weights_searched(full + row * COLUMNS, RP_DTYPE_F32, 1, COLUMNS,
                                                 RP_DTYPE_FP8_E4M3, other + row * COLUMNS,
                                                 other_scales + row, &again, &bad));
    assert_memory_equal(quantized, other, sizeof quantized);
    assert_memory_equal(scales, other_scales, sizeof scales);
    assert_true(loss.noise == again.noise && rp_quant_sqnr_db(&loss) > 31.5);
}

static void test_wide_rows_and_int8_are_not_searched(void **state) {
    (void)state;
    static const enum rp_dtype types[] = {RP_DTYPE_FP8_E4M3, RP_DTYPE_INT8};
    for (size_t type = 0; type < 2; type++) {
        size_t cols = type ? 64 : WIDE, bad;
        float row[WIDE], scale, plain_scale;
        uint8_t quantized[WIDE], plain[WIDE];
        fill_weights(row, cols, 1.0f);
        assert_true(rp_quantize_weights(row, RP_DTYPE_F32, 1, cols, types[type], plain,
                                        &plain_scale, NULL, &bad));
        assert_true(rp_quantize_weights_searched(row, RP_DTYPE_F32, 1, cols, types[type], quantized,
                                                 &scale, NULL, &bad));
        assert_memory_equal(quantized, plain, cols);
        assert_true(scale == plain_scale);
    }
}

/* Rows that max scaling represents exactly do not change: the ends of the grid, denormals, zeros;
 * nor do refusals. */
static void test_a_search_keeps_exact_rows_and_refuses_bad_ones(void **state) {
    (void)state;
    static const float values[] = {448,     -448, 0x1p-9f, -0x1p-9f, 0x1.cp-7f,
                                   0x1p-6f, 0,    416,     -15,      1};
    float row[RP_ARRAY_COUNT(values)], scale;
    uint8_t quantized[RP_ARRAY_COUNT(values)], zero[RP_ARRAY_COUNT(values)] = {0};
    static const float tiny[] = {0.0f, 0x1p-149f, 0x1p-126f, 0x1p-101f};
    size_t cols = RP_ARRAY_COUNT(values), bad = 7;
    for (int power = -90; power <= 110; power += 20) {
        for (size_t i = 0; i < cols; i++)
            row[i] = ldexpf(values[i], power);
        assert_true(rp_quantize_weights_searched(row, RP_DTYPE_F32, 1, cols, RP_DTYPE_FP8_E4M3,
                                                 quantized, &scale, NULL, &bad));
        assert_true(scale == ldexpf(1, power));
        for (size_t i = 0; i < cols; i++)
            assert_true(rp_fp8_to_f32(quantized[i]) * scale == row[i]);
        assert_int_equal(quantized[0], 0x7E);
        assert_int_equal(quantized[2], 1);
    }
    for (size_t t = 0; t < RP_ARRAY_COUNT(tiny); t++) {
        for (size_t i = 0; i < cols; i++)
            row[i] = i % 2 ? tiny[t] : 0;
        assert_true(rp_quantize_weights_searched(row, RP_DTYPE_F32, 1, cols, RP_DTYPE_FP8_E4M3,
                                                 quantized, &scale, NULL, &bad));
        assert_true(scale == 1.0f);
        assert_memory_equal(quantized, zero, cols);
    }
    row[3] = NAN;
    assert_false(rp_quantize_weights_searched(row, RP_DTYPE_F32, 1, cols, RP_DTYPE_FP8_E4M3,
                                              quantized, &scale, NULL, &bad));
    assert_int_equal(bad, 0);
}

static void test_schemes_have_names(void **state) {
    (void)state;
    enum rp_quant_scheme scheme;
    for (int i = 0; i < RP_QUANT_SCHEME_COUNT; i++) {
        assert_true(rp_quant_scheme_find(rp_quant_scheme_name((enum rp_quant_scheme)i), &scheme));
        assert_int_equal(scheme, i);
    }
    assert_false(rp_quant_scheme_find("int5", &scheme));
}

static void test_quantizing_without_memory_leaves_nothing_behind(void **state) {
    (void)state;
    struct rp_matrix from = make_matrix(RP_DTYPE_F32), made = {0};
    struct rp_error err;
    for (uint64_t at = 1; at <= 2; at++) {
        rp_alloc_fail_at(at);
        assert_int_equal(rp_quantize_matrix(&from, RP_QUANT_FP8, &made, NULL, &err),
                         RP_STATUS_NO_MEMORY);
        rp_alloc_fail_at(0);
        assert_null(made.data);
    }
    rp_matrix_deinit(&from);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_weight_becomes_the_nearest_code_of_its_row),
        cmocka_unit_test(test_panels_return_the_rows_that_were_stored),
        cmocka_unit_test(test_a_weight_that_is_not_finite_is_refused_with_its_row),
        cmocka_unit_test(test_a_row_of_activations_reaches_the_ends_of_the_grid),
        cmocka_unit_test(test_rows_of_nothing_have_scale_1_and_bad_rows_scale_nan),
        cmocka_unit_test(test_a_searched_scale_is_the_best_of_sixteen_and_never_worse),
        cmocka_unit_test(test_a_searched_matrix_has_the_same_bits_in_any_pieces_and_both_types),
        cmocka_unit_test(test_wide_rows_and_int8_are_not_searched),
        cmocka_unit_test(test_a_search_keeps_exact_rows_and_refuses_bad_ones),
        cmocka_unit_test(test_schemes_have_names),
        cmocka_unit_test(test_quantizing_without_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
