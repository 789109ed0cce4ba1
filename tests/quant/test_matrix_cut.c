/* Goal: a shard of a matrix of any format holds exactly the weights of the rows or columns that it
 * was cut from; cuts through blocks are refused.
 * Method: matrices of random bytes; every weight of each shard is compared with the same one of the
 * whole matrix, as the embedding reads it. */
#include "base/memory.h"
#include "quant/matmul.h"
#include "quant/matrix_cut.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { COLS_MAX = 1024 };

static uint32_t seed = 99;

static uint32_t next(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* Random weights that are finite in the format. */
static struct rp_matrix make(struct rp_matrix shape) {
    struct rp_matrix matrix = shape;
    size_t bytes = rp_matrix_bytes(&matrix), scales = rp_matrix_scale_count(&matrix);
    unsigned char *data = rp_alloc_aligned(bytes, 64);
    float *values = scales ? rp_alloc_aligned(scales * sizeof *values, 64) : NULL;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(next() & 0x3F); /* also small exponents of f16 and bf16 */
    for (size_t i = 0; i < scales; i++)
        values[i] = 0.5f + (float)(next() % 1000) * 0.001f;
    matrix.data = data;
    matrix.scales = values;
    return matrix;
}

/* Row `row` of the whole matrix is row `at` of the shard, in the cut's columns. */
static void check_row(const struct rp_matrix *whole, const struct rp_matrix *shard,
                      const struct rp_matrix_cut *cut, uint32_t row, uint32_t at) {
    float expected[COLS_MAX], found[COLS_MAX];
    rp_matrix_row_f32(shard, at, found);
    if (row < whole->rows)
        rp_matrix_row_f32(whole, row, expected);
    for (uint32_t c = 0; c < cut->cols; c++)
        if (row < whole->rows)
            assert_memory_equal(&found[c], &expected[cut->col + c], sizeof found[c]);
        else
            assert_true(found[c] == 0.0f); /* padding */
}

static void check_cut(const struct rp_matrix *whole, const struct rp_matrix_cut *cut) {
    assert_null(rp_matrix_cut_refusal(whole, cut));
    struct rp_matrix shard = rp_matrix_cut_shape(whole, cut);
    assert_int_equal(shard.cols, cut->cols);
    assert_int_equal(rp_matrix_cut(whole, cut, &shard), RP_OK);
    uint32_t at = 0;
    for (uint32_t i = 0; i < cut->run_count; i++)
        for (uint32_t row = 0; row < cut->runs[i].rows && cut->sections <= 1; row++)
            check_row(whole, &shard, cut, cut->runs[i].from + row, at++);
    for (uint32_t s = 0; s < cut->sections && cut->sections > 1; s++)
        for (uint32_t i = 0; i < cut->run_count; i++)
            for (uint32_t row = 0; row < cut->runs[i].rows; row++)
                check_row(whole, &shard, cut,
                          s * (whole->rows / cut->sections) + cut->runs[i].from + row, at++);
    assert_int_equal(at, shard.rows);
    rp_matrix_deinit(&shard);
}

/* Two runs, as of gate and up; the second half of the columns; rows past the end, as of a
 * vocabulary. unit: rows and columns that belong together. */
static void check_matrix(struct rp_matrix shape, uint32_t unit_rows, uint32_t unit_cols) {
    struct rp_matrix whole = make(shape);
    uint32_t rows = whole.rows, half = rows / 2;
    struct rp_matrix_cut runs = {.run_count = 2, .cols = whole.cols};
    runs.runs[0].from = unit_rows;
    runs.runs[0].rows = unit_rows;
    runs.runs[1].from = half;
    runs.runs[1].rows = unit_rows;
    if (whole.part_count == 2)
        check_cut(&whole, &runs);
    else if (whole.part_count == 0)
        check_cut(&whole, &runs);
    runs.runs[0].from = 0;
    runs.runs[1].from = unit_rows;
    runs.sections = 2; /* as of two experts */
    if (whole.part_count == 0)
        check_cut(&whole, &runs);
    struct rp_matrix_cut cols = {.run_count = 1, .col = unit_cols, .cols = unit_cols};
    cols.runs[0].rows = rows;
    if (whole.part_count < 2)
        check_cut(&whole, &cols);
    struct rp_matrix_cut past = {.run_count = 1, .cols = whole.cols};
    past.runs[0].from = RP_ALIGN_UP(rows, unit_rows) - unit_rows;
    past.runs[0].rows = 2 * unit_rows;
    if (whole.part_count < 2)
        check_cut(&whole, &past);
    past.runs[0].from = 4 * rows; /* nothing of it is there */
    past.runs[0].from -= past.runs[0].from % unit_rows;
    if (whole.part_count < 2)
        check_cut(&whole, &past);
    rp_matrix_deinit(&whole);
}

static void test_a_shard_has_the_weights_of_the_whole_matrix(void **state) {
    (void)state;
    check_matrix((struct rp_matrix){.rows = 22, .cols = 10, .dtype = RP_DTYPE_F32}, 3, 5);
    check_matrix((struct rp_matrix){.rows = 22, .cols = 10, .dtype = RP_DTYPE_BF16}, 3, 5);
    for (int fp8 = 0; fp8 < 2; fp8++) {
        enum rp_dtype dtype = fp8 ? RP_DTYPE_FP8_E4M3 : RP_DTYPE_INT8;
        check_matrix(
            (struct rp_matrix){
                .rows = 22, .cols = 10, .dtype = dtype, .scale_kind = RP_SCALE_CHANNEL},
            3, 5);
        check_matrix(
            (struct rp_matrix){
                .rows = 22, .cols = 10, .dtype = dtype, .scale_kind = RP_SCALE_TENSOR},
            3, 5);
    }
    check_matrix(
        (struct rp_matrix){
            .rows = 512, .cols = 260, .dtype = RP_DTYPE_FP8_E4M3, .scale_kind = RP_SCALE_BLOCK_128},
        128, 128);
}

static void test_a_shard_has_the_blocks_of_the_whole_matrix(void **state) {
    static const enum rp_block_type types[] = {RP_BLOCK_F16,  RP_BLOCK_Q8_0, RP_BLOCK_Q4_0,
                                               RP_BLOCK_Q4_K, RP_BLOCK_Q6_K, RP_BLOCK_Q2_K};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(types); i++) {
        uint32_t values = rp_block_info(types[i]).values;
        struct rp_matrix one = {.rows = 22,
                                .cols = 3 * values,
                                .dtype = RP_DTYPE_BLOCKS,
                                .input = RP_INPUT_QUANTIZED,
                                .parts = {{.rows = 22, .type = types[i]}},
                                .part_count = 1};
        check_matrix(one, 3, values);
        /* q or gate of another type than k or up */
        struct rp_matrix two = one;
        two.cols = 2 * RP_MAX(values, 256u);
        two.parts[0] = (struct rp_matrix_part){.rows = 11, .type = types[i]};
        two.parts[1] = (struct rp_matrix_part){
            .row_begin = 11, .rows = 11, .type = types[(i + 1) % RP_ARRAY_COUNT(types)]};
        two.part_count = 2;
        check_matrix(two, 3, values);
    }
}

/* Groups of 4 bits: the scale of a part goes with its rows, and so does an order of columns, which
 * cannot be cut. */
static void test_a_shard_has_the_scale_and_the_order_of_columns_of_its_part(void **state) {
    struct rp_matrix whole = make(
        (struct rp_matrix){.rows = 22,
                           .cols = 200, /* the last block is not whole */
                           .dtype = RP_DTYPE_BLOCKS,
                           .input = RP_INPUT_BF16,
                           .parts = {{.rows = 22, .type = rp_block_int4(64, RP_INT4_F16, false)}},
                           .part_count = 1});
    struct rp_matrix_cut rows = {.run_count = 1, .cols = 200}, cols = {.run_count = 1};
    struct rp_matrix shard;
    (void)state;
    rows.runs[0].from = 7;
    rows.runs[0].rows = 9;
    cols.runs[0].rows = 22;
    cols.cols = 64;
    whole.parts[0].factor = 1.5f;
    check_cut(&whole, &rows);
    rows.run_count = 2; /* two runs of one part */
    rows.runs[1].from = 19;
    rows.runs[1].rows = 2;
    check_cut(&whole, &rows);
    check_cut(&whole, &cols);
    cols.col = 128;
    cols.cols = 72;
    check_cut(&whole, &cols);
    whole.parts[0].columns = rp_alloc(200 * sizeof(uint32_t));
    for (uint32_t k = 0; k < 200; k++)
        whole.parts[0].columns[k] = 199 - k;
    check_cut(&whole, &rows);
    shard = rp_matrix_cut_shape(&whole, &cols);
    assert_int_equal(rp_matrix_cut(&whole, &cols, &shard), RP_STATUS_UNSUPPORTED);
    rp_matrix_deinit(&shard);
    rp_matrix_deinit(&whole);
}

static void test_cuts_through_blocks_are_refused_with_the_reason(void **state) {
    struct rp_matrix blocks = {.rows = 8,
                               .cols = 512,
                               .dtype = RP_DTYPE_BLOCKS,
                               .parts = {{.rows = 8, .type = RP_BLOCK_Q4_K}},
                               .part_count = 1};
    struct rp_matrix scales = {
        .rows = 256, .cols = 256, .dtype = RP_DTYPE_FP8_E4M3, .scale_kind = RP_SCALE_BLOCK_128};
    struct rp_matrix_cut cut = {.run_count = 1, .col = 128, .cols = 128};
    (void)state;
    cut.runs[0].rows = 8;
    assert_non_null(strstr(rp_matrix_cut_refusal(&blocks, &cut), "share scales"));
    cut.col = 64;
    cut.runs[0].rows = 256;
    assert_non_null(strstr(rp_matrix_cut_refusal(&scales, &cut), "128 columns"));
    cut = (struct rp_matrix_cut){.run_count = 1, .cols = 256};
    cut.runs[0].rows = 64;
    assert_non_null(strstr(rp_matrix_cut_refusal(&scales, &cut), "128 rows"));
    cut.runs[0].from = 64;
    cut.runs[0].rows = 128;
    assert_non_null(strstr(rp_matrix_cut_refusal(&scales, &cut), "128 rows"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_shard_has_the_weights_of_the_whole_matrix),
        cmocka_unit_test(test_a_shard_has_the_blocks_of_the_whole_matrix),
        cmocka_unit_test(test_a_shard_has_the_scale_and_the_order_of_columns_of_its_part),
        cmocka_unit_test(test_cuts_through_blocks_are_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
