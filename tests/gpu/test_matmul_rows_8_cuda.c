/* GEMMs of FP8 and INT8 values of few rows: bit for bit what the kernel for any number of rows
 * gives, and the kernels around it. Rows that a block makes itself, by a norm or of bf16, are
 * those of rp_quantize_row. */
#include "tests/support/gpu_matmul.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whether a plan has one kernel for all of it. */
static bool is_planned(const struct matmul_case *p, const struct matmul_data *d) {
    struct rp_matmul_cuda op = matmul_describe(p, d, true);
    op.out.dtype = p->out_dtype;
    return !p->segment &&
           (p->source == NORMED ? rp_matmul_cuda_norms(&op) : rp_matmul_cuda_quantizes(&op)) &&
           (!p->gated || rp_matmul_cuda_gates(&op));
}

/* The kernel for few rows against tiles of the other one, whichever the plan prefers. */
static void check_rows(struct matmul_case p) {
    p = matmul_shrunk_8(p);
    for (int i = 0; i < 2; i++) {
        p.dtype = i ? FP8 : INT8;
        struct matmul_data d = matmul_make(&p);
        struct rp_matmul_tile tile = matmul_tile_8(p.max_rows > 32 ? 64 : 32);
        float *expected = matmul_run(&p, &d, (struct matmul_how){.tile = &tile});
        matmul_same(&p, &d, expected, matmul_run(&p, &d, (struct matmul_how){.rows = true}),
                    "few rows");
        if (p.source != READY && is_planned(&p, &d))
            matmul_same(&p, &d, expected, matmul_run(&p, &d, (struct matmul_how){.makes = true}),
                        "as planned");
        free(expected);
        matmul_free(&d);
    }
}

static void blocks_that_own_whole_sums_give_the_same_bits(void **state) {
    (void)state;
    static const uint32_t cases[][6] = {
        {1, 1, 4096, 2048, 256, 132}, {8, 7, 6144, 1280, 192, 132},   {8, 8, 1, 128, 64, 132},
        {5, 5, 1001, 1152, 576, 3},   {16, 16, 4096, 768, 192, 132},  {13, 0, 300, 512, 64, 132},
        {3, 3, 20000, 256, 128, 132}, {16, 15, 260, 4096, 512, 5},    {7, 7, 3000, 1664, 448, 132},
        {12, 12, 100, 2560, 640, 1},  {8, 8, 4096, 14336, 1792, 132},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct matmul_case p = {.max_rows = cases[i][0],
                                .live = cases[i][1],
                                .n = cases[i][2],
                                .k = cases[i][3],
                                .segment = cases[i][4],
                                .sm_count = cases[i][5],
                                .bias = i % 3 == 1,
                                .accumulate = i % 4 == 1};
        p.out_dtype = i % 3 == 2 && !p.accumulate ? RP_DTYPE_BF16 : RP_DTYPE_F32;
        check_rows(p);
    }
}

static void a_gated_product_is_the_product_and_its_activation(void **state) {
    (void)state;
    static const uint32_t cases[][5] = {
        {1, 1, 28672, 1024, 132},  {8, 8, 2, 128, 132},      {8, 5, 14336, 640, 132},
        {16, 11, 4096, 1152, 132}, {32, 32, 5762, 512, 132}, {33, 33, 1344, 1024, 8},
        {64, 50, 9000, 384, 132},  {64, 64, 2064, 2048, 7},  {12, 0, 256, 256, 132},
        {3, 3, 700, 4096, 1},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++)
        check_rows((struct matmul_case){.max_rows = cases[i][0],
                                        .live = cases[i][1],
                                        .n = cases[i][2],
                                        .k = cases[i][3],
                                        .sm_count = cases[i][4],
                                        .fn = i % 2 ? RP_ACTIVATION_GELU_TANH : RP_ACTIVATION_SILU,
                                        .out_dtype = RP_DTYPE_BF16,
                                        .gated = true});
}

static void rows_become_quantized_values_as_the_host_makes_them(void **state) {
    (void)state;
    static const uint32_t cases[][6] = {
        {1, 1, 6144, 4096, 512, 132}, {4, 4, 512, 4096, 2048, 132}, {2, 1, 1000, 2048, 512, 7},
        {4, 3, 333, 384, 64, 132},    {1, 0, 64, 512, 256, 132},    {3, 3, 9000, 1152, 192, 50},
        {2, 2, 2000, 3072, 768, 132}, {4, 4, 4096, 1024, 128, 100},
    };
    for (size_t i = 0; i < 2 * RP_ARRAY_COUNT(cases); i++) {
        const uint32_t *c = cases[i / 2];
        struct matmul_case p = {.max_rows = c[0],
                                .live = c[1],
                                .n = c[2],
                                .k = c[3],
                                .segment = c[4],
                                .sm_count = c[5],
                                .weight_offset = i % 3 == 0,
                                .source = i % 2 ? NORMED : QUANTIZED};
        check_rows(p);
        p.segment = 0;
        p.gated = p.n % 2 == 0;
        p.out_dtype = RP_DTYPE_BF16;
        check_rows(p);
    }
    check_rows((struct matmul_case){
        .max_rows = 1, .live = 1, .n = 4096, .k = 14336, .source = QUANTIZED, .accumulate = true});
    check_rows(
        (struct matmul_case){.max_rows = 4, .live = 4, .n = 600, .k = 14336, .source = QUANTIZED});
    check_rows(
        (struct matmul_case){.max_rows = 3, .live = 2, .n = 70, .k = 16384, .source = QUANTIZED});
}

/* NaN and infinities stay in their row; so do rows whose largest is next to nothing. */
static void rows_that_are_no_numbers_stay_alone(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct matmul_case p = {.max_rows = 4,
                                .live = 4,
                                .n = 72,
                                .k = 640,
                                .dtype = i ? FP8 : INT8,
                                .source = QUANTIZED};
        struct matmul_data d = matmul_make(&p);
        d.plain[37] = 0x7FC1;                    /* NaN */
        d.plain[2 * d.in_stride + 639] = 0xFF80; /* minus infinity */
        for (size_t c = 0; c < p.k; c++)
            d.plain[3 * d.in_stride + c] = 0x0001;
        d.plain_device = rp_gpu_upload(d.plain, p.max_rows * d.in_stride * 2);
        float *got = matmul_run(&p, &d, (struct matmul_how){.rows = true});
        for (size_t row = 0; row < 4; row++)
            for (size_t c = 0; c < p.n; c++)
                assert_true(row % 2 ? got[row * d.out_stride + c] == 0
                                    : isnan(got[row * d.out_stride + c]));
        free(got);
        matmul_free(&d);
    }
}

MATMUL_TEST_MAIN(cmocka_unit_test(blocks_that_own_whole_sums_give_the_same_bits),
                 cmocka_unit_test(a_gated_product_is_the_product_and_its_activation),
                 cmocka_unit_test(rows_become_quantized_values_as_the_host_makes_them),
                 cmocka_unit_test(rows_that_are_no_numbers_stay_alone))
