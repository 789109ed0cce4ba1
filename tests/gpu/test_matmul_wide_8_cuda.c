/* Goal: GEMMs of FP8 and INT8 values with more than 64 rows agree with the scalar reference (INT8
 * bit for bit) and have the bits of the kernel for any number of rows; gated ones those of that
 * kernel followed by the activation. */
#include "tests/support/gpu_matmul.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct rp_matmul_mid_tile mid_tiles[] = {
#define TILE(tokens_, width_, rows_)                                                               \
    { .tokens = tokens_, .width = width_, .rows = rows_ }
    TILE(128, 128, 128), TILE(128, 192, 184), TILE(128, 128, 104), TILE(128, 256, 256),
    TILE(128, 256, 248), TILE(256, 128, 128), TILE(256, 128, 64),
};

static void every_tile_of_65_to_256_rows_agrees_with_the_reference(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        {.max_rows = 65, .live = 65, .n = 64, .k = 128, .out_pad = 8},
        {.max_rows = 128, .live = 128, .n = 2056, .k = 2048, .segment = 256, .out_pad = 8},
        {.max_rows = 99, .live = 97, .n = 1016, .k = 1040, .segment = 192, .out_pad = 2},
        {.max_rows = 127, .live = 127, .n = 264, .k = 400, .segment = 64, .out_pad = 8},
        {.max_rows = 72, .live = 0, .n = 512, .k = 512, .segment = 128, .out_pad = 8},
        {.max_rows = 88, .live = 1, .n = 264, .k = 16, .out_pad = 6},
        {.max_rows = 256, .live = 256, .n = 1032, .k = 1024, .segment = 128, .out_pad = 8},
        {.max_rows = 255, .live = 201, .n = 776, .k = 528, .segment = 64, .out_pad = 2},
        {.max_rows = 130, .live = 130, .n = 2000, .k = 656, .out_pad = 8, .gate_up = true},
    };
    for (size_t i = 0; i < 2 * RP_ARRAY_COUNT(products); i++) {
        struct matmul_case p = matmul_shrunk_8(products[i / 2]);
        p.dtype = i % 2 ? FP8 : INT8;
        p.partials = true;
        struct matmul_data d = matmul_make(&p);
        struct rp_matmul_tile any = matmul_tile_8(64);
        float *first = matmul_run(&p, &d, (struct matmul_how){.tile = &any});
        matmul_check_scaled(&p, &d, first);
        matmul_check_mid_tiles(&p, &d, first, mid_tiles, RP_ARRAY_COUNT(mid_tiles), i / 2, 1);
        free(first);
        matmul_free(&d);
    }
}

static void every_tile_of_a_prompt_agrees_with_the_reference(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        {.max_rows = 512, .live = 512, .n = 1024, .k = 2048, .out_pad = 8},
        {.max_rows = 300, .live = 257, .n = 1344, .k = 1040, .segment = 192, .bias = true},
        {.max_rows = 300, .live = 300, .n = 1000, .k = 2064, .accumulate = true, .out_pad = 8},
        {.max_rows = 385, .live = 385, .n = 1000, .k = 528, .out_dtype = RP_DTYPE_BF16},
        {.max_rows = 511,
         .live = 290,
         .n = 648,
         .k = 784,
         .bias = true,
         .out_pad = 8,
         .segment = 64,
         .out_dtype = RP_DTYPE_BF16},
        {.max_rows = 512,
         .live = 311,
         .n = 2056,
         .k = 400,
         .accumulate = true,
         .out_pad = 4,
         .bias = true,
         .segment = 64},
        {.max_rows = 512, .live = 0, .n = 640, .k = 512, .out_pad = 8},
        {.max_rows = 512, .live = 511, .n = 130, .k = 208, .bias = true, .segment = 64},
        {.max_rows = 300, .live = 299, .n = 999, .k = 1552, .segment = 128},
        {.max_rows = 385, .live = 385, .n = 264, .k = 16, .accumulate = true},
        {.max_rows = 512, .live = 512, .n = 1200, .k = 16, .out_pad = 8},
    };
    for (size_t i = 0; i < 2 * RP_ARRAY_COUNT(products); i++) {
        struct matmul_case p = matmul_shrunk_8(products[i / 2]);
        p.dtype = i % 2 ? FP8 : INT8;
        if (rp_gpu_is_tiny())
            p.sm_count = 5; /* a block still has several tiles */
        struct matmul_data d = matmul_make(&p);
        struct rp_matmul_tile any = matmul_tile_8(128);
        any.order = RP_MATMUL_ORDER_WAVES;
        float *first = matmul_run(&p, &d, (struct matmul_how){.tile = &any});
        matmul_check_scaled(&p, &d, first);
        for (uint32_t cols = 128; cols <= 256; cols += 64)
            matmul_same(&p, &d, first,
                        matmul_run(&p, &d, (struct matmul_how){.wide = true, .wide_cols = cols}),
                        "a tile of so many outputs");
        free(first);
        matmul_free(&d);
    }
}

static void a_gated_product_is_the_product_and_then_its_activation(void **state) {
    (void)state;
    static const struct matmul_case gated[] = {
        {.max_rows = 128, .live = 128, .n = 2048, .k = 2048, .out_pad = 8},
        {.max_rows = 65, .live = 65, .n = 16, .k = 128, .out_pad = 6},
        {.max_rows = 99, .live = 97, .n = 1040, .k = 1040, .out_pad = 8},
        {.max_rows = 72, .live = 0, .n = 512, .k = 512, .out_pad = 8},
        {.max_rows = 256, .live = 255, .n = 1072, .k = 528, .out_pad = 2},
        {.max_rows = 130, .live = 130, .n = 448, .k = 272, .out_pad = 8},
        {.max_rows = 512, .live = 512, .n = 2048, .k = 2048, .out_pad = 8},
        {.max_rows = 300, .live = 257, .n = 1008, .k = 1040, .out_pad = 8},
        {.max_rows = 400, .live = 400, .n = 16, .k = 144},
        {.max_rows = 512, .live = 301, .n = 336, .k = 528, .out_pad = 8},
    };
    for (size_t i = 0; i < 2 * RP_ARRAY_COUNT(gated); i++) {
        struct matmul_case p = matmul_shrunk_8(gated[i / 2]);
        p.n -= p.n % 16;
        p.dtype = i % 2 ? FP8 : INT8;
        p.fn = i / 2 % 2 ? RP_ACTIVATION_GELU_TANH : RP_ACTIVATION_SILU;
        p.gated = true;
        p.out_dtype = RP_DTYPE_BF16;
        struct matmul_data d = matmul_make(&p);
        struct rp_matmul_cuda op = matmul_describe(&p, &d, false);
        op.out = (struct rp_values){.stride = d.out_stride, .dtype = p.out_dtype};
        assert_true(p.max_rows > 256 ? rp_matmul_wide_cuda_fits(&op) : rp_matmul_mid_takes(&op));
        struct rp_matmul_tile any = matmul_tile_8(64);
        float *apart = matmul_run(&p, &d, (struct matmul_how){.tile = &any});
        matmul_same(&p, &d, apart, matmul_run(&p, &d, (struct matmul_how){0}), "gated");
        for (uint32_t cols = 128; cols <= 256 && p.max_rows > 256; cols += 128)
            matmul_same(&p, &d, apart,
                        matmul_run(&p, &d, (struct matmul_how){.wide = true, .wide_cols = cols}),
                        "a gated tile of so many outputs");
        free(apart);
        matmul_free(&d);
    }
}

/* As planned, with partial sums and without: different kernels, the same bits. */
static void a_row_has_the_same_bits_in_a_batch_and_in_a_prompt(void **state) {
    (void)state;
    static const uint32_t counts[] = {8, 65, 100, 128, 129, 200, 256, 257, 300, 385};
    for (size_t i = 0; i < 4; i++) {
        struct matmul_case p = {.n = 520, .k = 2064, .out_pad = 8, .dtype = i % 2 ? FP8 : INT8};
        p = matmul_shrunk_8(p);
        p.partials = i / 2;
        p.max_rows = p.live = 512;
        struct matmul_data d = matmul_make(&p);
        float *first = matmul_run(&p, &d, (struct matmul_how){0});
        matmul_check_scaled(&p, &d, first);
        for (size_t c = 0; c < RP_ARRAY_COUNT(counts); c++) {
            p.max_rows = p.live = counts[c];
            matmul_set_live(p.live);
            matmul_same(&p, &d, first, matmul_run(&p, &d, (struct matmul_how){0}), "fewer rows");
        }
        free(first);
        matmul_free(&d);
    }
}

static bool is_taken(const struct rp_matmul_cuda *op, uint32_t rows) {
    struct rp_matmul_cuda sized = *op;
    sized.rows.max_rows = rows;
    return rows > 256 ? rp_matmul_wide_cuda_fits(&sized) : rp_matmul_mid_takes(&sized);
}

static void what_does_not_fit_is_left_to_other_kernels(void **state) {
    (void)state;
    struct matmul_case p = {.n = 4096, .k = 4096, .partials = true, .out_pad = 8};
    for (uint32_t rows = 128; rows <= 512; rows += 384) {
        struct matmul_data d = {.in_stride = 4096, .in_scales_device = (float *)(uintptr_t)64};
        d.matrix = (struct rp_matrix){.rows = 4096,
                                      .cols = 4096,
                                      .dtype = FP8,
                                      .scale_kind = RP_SCALE_CHANNEL,
                                      .input = RP_INPUT_QUANTIZED};
        struct rp_matmul_cuda op = matmul_describe(&p, &d, false);
        op.out.stride = 4096;
        assert_true(is_taken(&op, rows));
        op.in_scales = NULL;
        assert_false(is_taken(&op, rows));
        op.in_scales = d.in_scales_device;
        d.matrix.scale_kind = RP_SCALE_BLOCK_128;
        assert_false(is_taken(&op, rows));
        d.matrix.scale_kind = RP_SCALE_CHANNEL;
        d.matrix.input = RP_INPUT_PLAIN;
        assert_false(is_taken(&op, rows));
        d.matrix.input = RP_INPUT_QUANTIZED;
        d.matrix.cols = 4088;
        assert_false(is_taken(&op, rows));
        d.matrix.cols = 4080;
        assert_true(is_taken(&op, rows));
        op.in_stride = 4104;
        assert_false(is_taken(&op, rows));
    }
}

MATMUL_TEST_MAIN(cmocka_unit_test(every_tile_of_65_to_256_rows_agrees_with_the_reference),
                 cmocka_unit_test(every_tile_of_a_prompt_agrees_with_the_reference),
                 cmocka_unit_test(a_gated_product_is_the_product_and_then_its_activation),
                 cmocka_unit_test(a_row_has_the_same_bits_in_a_batch_and_in_a_prompt),
                 cmocka_unit_test(what_does_not_fit_is_left_to_other_kernels))
