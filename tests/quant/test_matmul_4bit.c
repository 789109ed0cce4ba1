/* Goal: 4-bit weights with scales per group have the values that block_type.h says, and a GEMM on
 * them is one fma chain over k in the order of each part's columns, with the same bits on every
 * instruction set, in every batch and with any number of workers.
 *
 * Method: random blocks of every type in matrices of three parts, with rows and columns that fill
 * no panel and no group; a loop that reads as the formula. */
#include "base/bf16.h"
#include "base/fp8.h"
#include "base/memory.h"
#include "quant/matmul.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define N_MAX   80u
#define K_MAX   700u
#define M_MAX   99u
#define PAD     3u
#define WORKERS 3u

static uint32_t seed = 2026;

static uint32_t next_bits(void) {
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return seed;
}

static uint32_t list_types(uint32_t out[40]) {
    uint32_t count = 0;
    for (uint32_t type = RP_BLOCK_INT4; type < RP_BLOCK_INT4 + RP_BLOCK_INT4_COUNT; type++)
        if (rp_block_is_int4(type))
            out[count++] = type;
    assert_int_equal(count, 18);
    out[count++] = RP_BLOCK_NVFP4;
    out[count++] = RP_BLOCK_MXFP4;
    return count;
}

/* --- values ---------------------------------------------------------------------------------- */

/* A scale's bytes and value. */
static float put_scale(uint32_t type, unsigned char *to) {
    float value = ldexpf((float)(next_bits() % 2001) - 1000.0f, -16);
    uint16_t half;
    if (type == RP_BLOCK_NVFP4) {
        to[0] = (unsigned char)(next_bits() % 0x7F); /* denormals included */
        return rp_fp8_to_f32(to[0]);
    }
    if (type == RP_BLOCK_MXFP4) {
        to[0] = (unsigned char)(110 + next_bits() % 16);
        return ldexpf(1.0f, to[0] - 127);
    }
    switch (rp_block_int4_scale(type)) {
    case RP_INT4_F16:
        half = (uint16_t)(0x0FFF + next_bits() % 0x2000);
        memcpy(to, &half, sizeof half);
        return rp_f16_to_f32(half);
    case RP_INT4_BF16:
        half = rp_f32_to_bf16(value);
        memcpy(to, &half, sizeof half);
        return rp_bf16_to_f32(half);
    default:
        value *= 1.0000001f;
        memcpy(to, &value, sizeof value);
        return value;
    }
}

/* A block of random codes, and its values. */
static void make_block(uint32_t type, unsigned char *block, float *values) {
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    struct rp_block_info info = rp_block_info(type);
    memset(block, 0, info.bytes);
    float scale = put_scale(type, block);
    uint32_t zero = 8;
    if (rp_block_is_int4(type) && rp_block_int4_zeros(type)) {
        zero = next_bits() % 17;
        block[rp_block_int4_scale_bytes(type)] = (unsigned char)zero;
    }
    for (uint32_t k = 0; k < info.values; k++) {
        uint32_t code = next_bits() >> 7 & 15;
        rp_block_put_code(type, block, k, code);
        values[k] = rp_block_is_int4(type) ? scale * (float)((int)code - (int)zero)
                    : code & 8             ? scale * -e2m1[code & 7]
                                           : scale * e2m1[code & 7];
    }
}

static void test_a_blocks_values_are_the_formulas(void **state) {
    (void)state;
    uint32_t types[40], count = list_types(types);
    for (uint32_t t = 0; t < count; t++)
        for (uint32_t round = 0; round < 50; round++) {
            unsigned char block[RP_BLOCK_BYTES_MAX];
            float want[RP_BLOCK_VALUES_MAX], got[RP_BLOCK_VALUES_MAX];
            make_block(types[t], block, want);
            rp_blocks_to_f32(types[t], block, 1, got);
            for (uint32_t k = 0; k < rp_block_info(types[t]).values; k++)
                if (want[k] != got[k]) /* 0 and -0 are the same weight */
                    fail_msg("type %u value %u: %.9g, not %.9g", types[t], k, (double)got[k],
                             (double)want[k]);
        }
}

static void test_the_longest_group_that_divides_is_chosen(void **state) {
    (void)state;
    static const uint32_t groups[][2] = {{32, 32},   {64, 64},  {96, 32},   {128, 128},
                                         {256, 128}, {320, 64}, {1024, 128}};
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(groups); i++) {
        uint32_t type = rp_block_int4(groups[i][0], RP_INT4_BF16, true);
        assert_true(rp_block_is_int4(type));
        assert_int_equal(rp_block_info(type).values, groups[i][1]);
        assert_int_equal(rp_block_info(type).bytes, 3 + groups[i][1] / 2);
    }
    assert_string_equal(rp_block_info(rp_block_int4(64, RP_INT4_F32, false)).name, "INT4_64");
    assert_null(rp_block_info(RP_BLOCK_INT4 + 3).name);
    assert_null(rp_block_info(RP_BLOCK_INT4 + 12).name);
    assert_null(rp_block_info(RP_BLOCK_TYPE_LIMIT - 1).name);
}

static void test_scales_that_are_no_numbers_are_found(void **state) {
    (void)state;
    uint32_t types[40], count = list_types(types);
    for (uint32_t t = 0; t < count; t++) {
        unsigned char block[RP_BLOCK_BYTES_MAX];
        float values[RP_BLOCK_VALUES_MAX];
        size_t bad = 7;
        make_block(types[t], block, values);
        assert_true(rp_blocks_finite(types[t], block, 1, &bad));
        memset(block, 0xFF, 4);
        assert_false(rp_blocks_finite(types[t], block, 1, &bad));
        assert_int_equal(bad, 0);
    }
}

/* --- GEMMs ----------------------------------------------------------------------------------- */

struct fixture {
    struct rp_matrix plain, packed;
    uint16_t in[M_MAX * (K_MAX + PAD)];
    float bias[N_MAX];
    float want[M_MAX * (N_MAX + PAD)], got[M_MAX * (N_MAX + PAD)];
    float weights[N_MAX][K_MAX + RP_BLOCK_VALUES_MAX]; /* in the order of columns */
    unsigned char *scratch;
    size_t scratch_bytes;
};

static int setup(void **state) {
    *state = rp_calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static void drop(struct fixture *f) {
    f->packed.part_count = 0; /* the columns are the other's */
    rp_matrix_deinit(&f->plain);
    rp_matrix_deinit(&f->packed);
    rp_free_aligned(f->scratch);
    f->scratch = NULL;
}

static int teardown(void **state) {
    drop(*state);
    rp_free(*state);
    return 0;
}

static uint32_t *shuffled(uint32_t count) {
    uint32_t *out = rp_alloc(count * sizeof *out);
    assert_non_null(out);
    for (uint32_t i = 0; i < count; i++)
        out[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = next_bits() % i, kept = out[i - 1];
        out[i - 1] = out[j];
        out[j] = kept;
    }
    return out;
}

static void fill_part(struct fixture *f, uint32_t index) {
    const struct rp_matrix_part *part = &f->plain.parts[index];
    struct rp_block_info info = rp_block_info(part->type);
    unsigned char *to = (unsigned char *)f->plain.data + rp_matrix_part_offset(&f->plain, index);
    for (uint32_t n = 0; n < part->rows; n++)
        for (uint32_t k = 0; k < f->plain.cols; k += info.values, to += info.bytes) {
            float values[RP_BLOCK_VALUES_MAX];
            make_block(part->type, to, values);
            if (part->factor != 0)
                rp_matrix_block_f32(&f->plain, part, part->row_begin + n, k / info.values, values);
            memcpy(&f->weights[part->row_begin + n][k], values, info.values * sizeof *values);
        }
}

/* Parts of n rows and one type each; the second shares the third's columns. */
static void make(struct fixture *f, uint32_t k, const uint32_t n[3], const uint32_t type[3],
                 bool reorder) {
    drop(f);
    memset(f, 0, sizeof *f);
    f->plain = (struct rp_matrix){
        .rows = n[0] + n[1] + n[2], .cols = k, .dtype = RP_DTYPE_BLOCKS, .input = RP_INPUT_BF16};
    uint32_t row = 0;
    for (uint32_t i = 0; i < 3 && n[i]; i++, row += n[i - 1]) {
        f->plain.parts[i] =
            (struct rp_matrix_part){.row_begin = row, .rows = n[i], .type = type[i]};
        if (type[i] == RP_BLOCK_NVFP4) {
            f->plain.parts[i].factor = 0.37f;
            f->plain.parts[i].divides = k % 2;
        }
        f->plain.part_count++;
    }
    if (reorder) {
        f->plain.parts[0].columns = shuffled(k);
        f->plain.parts[1].columns = f->plain.parts[2].columns = shuffled(k);
    }
    size_t bytes = rp_matrix_bytes(&f->plain);
    f->plain.data = rp_alloc_aligned(bytes, 64);
    f->packed = f->plain;
    f->packed.data = rp_alloc_aligned(bytes, 64);
    for (uint32_t i = 0; i < f->plain.part_count; i++)
        fill_part(f, i);
    memcpy(f->packed.data, f->plain.data, bytes);
    assert_int_equal(rp_matrix_prepare_cpu(&f->packed, RP_ISA_AVX2, NULL), RP_OK);
    memcpy(f->plain.parts, f->packed.parts, sizeof f->plain.parts); /* equal orders are one now */
    f->scratch_bytes = rp_matmul_scratch_bytes(&f->plain, M_MAX);
    f->scratch = rp_alloc_aligned(f->scratch_bytes * WORKERS, 64);
    memset(f->scratch, 0xFF, f->scratch_bytes * WORKERS);
    for (size_t i = 0; i < RP_ARRAY_COUNT(f->in); i++)
        f->in[i] = i % (k + PAD) < k ? rp_f32_to_bf16((float)(int32_t)next_bits() * 0x1p-30f)
                                     : 0x7FC0; /* NaN */
    for (uint32_t i = 0; i < N_MAX; i++)
        f->bias[i] = (float)(int32_t)next_bits() * 0x1p-31f;
}

static void compute(struct fixture *f, uint32_t m) {
    memset(f->want, 0xFF, sizeof f->want);
    for (uint32_t p = 0; p < f->plain.part_count; p++) {
        const struct rp_matrix_part *part = &f->plain.parts[p];
        for (uint32_t row = 0; row < m; row++)
            for (uint32_t n = part->row_begin; n < part->row_begin + part->rows; n++) {
                const uint16_t *x = &f->in[row * (f->plain.cols + PAD)];
                float sum = 0;
                for (uint32_t k = 0; k < f->plain.cols; k++)
                    sum = fmaf(f->weights[n][k],
                               rp_bf16_to_f32(x[part->columns ? part->columns[k] : k]), sum);
                f->want[row * (f->plain.rows + PAD) + n] = sum + f->bias[n];
            }
    }
}

static void run(struct fixture *f, enum rp_cpu_isa isa, const struct rp_matrix *weight,
                uint32_t row, uint32_t m, uint32_t workers) {
    struct rp_matmul_args args = {.weight = weight,
                                  .bias = f->bias,
                                  .in = f->in + row * (weight->cols + PAD),
                                  .out = f->got + row * (weight->rows + PAD),
                                  .in_stride = weight->cols + PAD,
                                  .out_stride = weight->rows + PAD,
                                  .out_dtype = RP_DTYPE_F32,
                                  .scratch = f->scratch,
                                  .scratch_bytes = f->scratch_bytes};
    for (uint32_t w = 0; w < workers; w++) {
        struct rp_cpu_worker worker = {.index = w, .count = workers};
        rp_matmul_select(isa, weight)(&args, m, &worker);
    }
}

static void expect_equal(const struct fixture *f, uint32_t m, int isa, const char *what) {
    uint32_t n = f->plain.rows + PAD;
    for (uint32_t i = 0; i < m * n; i++)
        if (memcmp(&f->want[i], &f->got[i], sizeof(float)) != 0)
            fail_msg("%s: type %u isa %d k %u row %u output %u: %.9g, not %.9g", what,
                     f->plain.parts[0].type, isa, f->plain.cols, i / n, i % n, (double)f->got[i],
                     (double)f->want[i]);
}

static void test_an_output_is_one_chain_of_fma_in_the_order_of_the_columns(void **state) {
    struct fixture *f = *state;
    static const uint32_t ks[] = {172, 384, 33, 700, 1}, ms[] = {1, 7, 3, 2, 5};
    static const uint32_t ns[][3] = {{33, 0, 0}, {16, 32, 7}, {1, 17, 32}};
    uint32_t types[40], count = list_types(types), at = 0;
    for (uint32_t t = 0; t < count; t++)
        for (uint32_t s = 0; s < RP_ARRAY_COUNT(ns); s++, at++) {
            uint32_t k = ks[at % 5], m = ms[at % 5];
            make(f, k, ns[s],
                 (uint32_t[]){types[t], types[(t + 7) % count], types[(t + 12) % count]},
                 s > 0 && t % 2 == 0);
            compute(f, m);
            memset(f->got, 0xFF, sizeof f->got);
            run(f, RP_ISA_SCALAR, &f->plain, 0, m, WORKERS);
            expect_equal(f, m, -1, "rows");
            for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
                memset(f->got, 0xFF, sizeof f->got);
                run(f, (enum rp_cpu_isa)isa, &f->packed, 0, m, WORKERS);
                expect_equal(f, m, isa, "panels");
                memset(f->got, 0xFF, sizeof f->got);
                for (uint32_t row = 0; row < m; row++)
                    run(f, (enum rp_cpu_isa)isa, &f->packed, row, 1, 1);
                expect_equal(f, m, isa, "each row alone");
            }
        }
}

static void test_more_rows_than_a_block_have_the_same_bits(void **state) {
    struct fixture *f = *state;
    const uint32_t n[3] = {20, 33, 0}, type[3] = {rp_block_int4(128, RP_INT4_BF16, false),
                                                  rp_block_int4(32, RP_INT4_F16, true), 0};
    make(f, 160, n, type, true);
    compute(f, M_MAX);
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        memset(f->got, 0xFF, sizeof f->got);
        run(f, (enum rp_cpu_isa)isa, &f->packed, 0, M_MAX, 2);
        expect_equal(f, M_MAX, isa, "99 rows");
    }
}

static void test_a_row_is_read_back_in_the_order_of_the_input(void **state) {
    struct fixture *f = *state;
    const uint32_t n[3] = {3, 18, 5},
                   type[3] = {rp_block_int4(64, RP_INT4_F32, true), RP_BLOCK_NVFP4, RP_BLOCK_MXFP4};
    make(f, 172, n, type, true);
    for (uint32_t row = 0; row < f->plain.rows; row++) {
        float plain[K_MAX], packed[K_MAX];
        const struct rp_matrix_part *part = &f->plain.parts[row < 3 ? 0 : row < 21 ? 1 : 2];
        rp_matrix_row_f32(&f->plain, row, plain);
        rp_matrix_row_f32(&f->packed, row, packed);
        assert_memory_equal(plain, packed, 172 * sizeof *plain);
        for (uint32_t k = 0; k < 172; k++)
            assert_true(plain[part->columns[k]] == f->weights[row][k]);
    }
}

static void test_equal_orders_of_columns_are_kept_once(void **state) {
    (void)state;
    struct rp_matrix matrix = {
        .rows = 3, .cols = 33, .dtype = RP_DTYPE_BLOCKS, .input = RP_INPUT_BF16, .part_count = 3};
    for (uint32_t i = 0; i < 3; i++)
        matrix.parts[i] = (struct rp_matrix_part){
            .row_begin = i, .rows = 1, .type = rp_block_int4(32, RP_INT4_BF16, false)};
    matrix.parts[0].columns = shuffled(33);
    for (uint32_t i = 1; i < 3; i++) {
        matrix.parts[i].columns = rp_alloc(33 * sizeof(uint32_t));
        memcpy(matrix.parts[i].columns, matrix.parts[0].columns, 33 * sizeof(uint32_t));
    }
    size_t apart = rp_matmul_scratch_bytes(&matrix, 1);
    assert_int_equal(rp_matrix_prepare_cpu(&matrix, RP_ISA_SCALAR, NULL), RP_OK);
    assert_ptr_equal(matrix.parts[1].columns, matrix.parts[0].columns);
    assert_ptr_equal(matrix.parts[2].columns, matrix.parts[0].columns);
    assert_int_equal(rp_matmul_scratch_bytes(&matrix, 1), apart / 3);
    rp_matrix_deinit(&matrix); /* once */
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_blocks_values_are_the_formulas),
        TEST(test_the_longest_group_that_divides_is_chosen),
        TEST(test_scales_that_are_no_numbers_are_found),
        TEST(test_an_output_is_one_chain_of_fma_in_the_order_of_the_columns),
        TEST(test_more_rows_than_a_block_have_the_same_bits),
        TEST(test_a_row_is_read_back_in_the_order_of_the_input),
        cmocka_unit_test(test_equal_orders_of_columns_are_kept_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
