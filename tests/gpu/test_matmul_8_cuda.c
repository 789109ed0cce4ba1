/* Goal: GEMMs of FP8 and INT8 values with any number of rows agree with a scalar reference (INT8
 * bit for bit), with the same bits from every tile and with any number of other rows. */
#include "tests/gpu/matmul_8_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void planned_gemms_match_the_reference(void **state) {
    (void)state;
    static const struct matmul_case products[] = {PLANNED_CASES_8};
    for (size_t i = 0; i < 3 * RP_ARRAY_COUNT(products); i++) {
        struct matmul_case p = matmul_shrunk_8(products[i / 3]);
        p.dtype = i % 3 ? FP8 : INT8;
        p.block_scales = i % 3 == 2;
        struct matmul_data d = matmul_make(&p);
        float *result = matmul_run(&p, &d, (struct matmul_how){0});
        matmul_check_scaled(&p, &d, result);
        free(result);
        matmul_free(&d);
    }
}

static void every_tile_gives_the_same_bits(void **state) {
    (void)state;
    static const struct matmul_case products[] = {TILE_CASES_8};
    static const uint32_t tokens[] = {128, 64, 32, 16, 8};
    for (size_t i = 0; i < 3 * RP_ARRAY_COUNT(products); i++) {
        struct matmul_case p = matmul_shrunk_8(products[i / 3]);
        p.dtype = i % 3 == 0 ? INT8 : FP8;
        p.block_scales = i % 3 == 2;
        struct matmul_data d = matmul_make(&p);
        struct rp_matmul_tile least = matmul_tile_8(8);
        float *first = matmul_run(&p, &d, (struct matmul_how){.tile = &least});
        matmul_check_scaled(&p, &d, first);
        for (size_t t = 0; t < RP_ARRAY_COUNT(tokens); t++) {
            for (int variant = 0; variant < 3; variant++) {
                struct rp_matmul_tile tile = matmul_tile_8(tokens[t]);
                if (rp_gpu_is_tiny() && variant != (int)(t + i) % 3)
                    continue;
                tile.order = variant == 1 ? RP_MATMUL_ORDER_WAVES : RP_MATMUL_ORDER_RUNS;
                p.partials = tile.partials = variant == 2 && !p.accumulate;
                tile.stages = variant == 1 ? 2 : 0;
                tile.flight = variant;
                matmul_same(&p, &d, first, matmul_run(&p, &d, (struct matmul_how){.tile = &tile}),
                            "in a tile");
            }
        }
        free(first);
        matmul_free(&d);
    }
}

/* A row's bits together with one to 64 rows, as planned. */
static void a_row_has_the_same_bits_with_any_number_of_rows(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        {.n = 520, .k = 2048, .dtype = INT8},
        {.n = 520, .k = 2048, .dtype = FP8, .partials = true},
        {.n = 6144, .k = 4096, .dtype = FP8},
        {.n = 200, .k = 1168, .dtype = FP8, .block_scales = true, .bias = true},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(products); i++) {
        struct matmul_case p = matmul_shrunk_8(products[i]);
        p.max_rows = p.live = 64;
        struct matmul_data d = matmul_make(&p);
        float *first = matmul_run(&p, &d, (struct matmul_how){0});
        for (uint32_t rows = 1; rows < 64; rows += rp_gpu_is_tiny() ? 9 : 1) {
            p.max_rows = p.live = rows;
            matmul_set_live(rows);
            matmul_same(&p, &d, first, matmul_run(&p, &d, (struct matmul_how){0}), "fewer rows");
        }
        free(first);
        matmul_free(&d);
    }
}

static void what_does_not_fit_is_left_to_other_kernels(void **state) {
    (void)state;
    struct matmul_case p = {.max_rows = 4, .n = 256, .k = 4096};
    struct matmul_data d = {.in_stride = 4096};
    d.matrix = (struct rp_matrix){.rows = 256,
                                  .cols = 4096,
                                  .dtype = FP8,
                                  .scale_kind = RP_SCALE_CHANNEL,
                                  .input = RP_INPUT_QUANTIZED};
    struct rp_matmul_cuda op = matmul_describe(&p, &d, false);
    op.gate_up = op.gated = true;
    op.out.dtype = RP_DTYPE_BF16;
    assert_true(rp_matmul_cuda_gates(&op) && rp_matmul_cuda_quantizes(&op));
    op.norm = (struct rp_matmul_norm){.cols = 4096, .in_stride = 4096};
    assert_true(rp_matmul_cuda_gates(&op) && rp_matmul_cuda_norms(&op));
    op.rows.max_rows = 5;
    assert_false(rp_matmul_cuda_norms(&op) || rp_matmul_cuda_gates(&op));
    memset(&op.norm, 0, sizeof op.norm);
    assert_false(rp_matmul_cuda_gates(&op) || rp_matmul_cuda_quantizes(&op));
    op.in_scales = (const float *)(uintptr_t)64;
    assert_true(rp_matmul_cuda_gates(&op) && !rp_matmul_cuda_quantizes(&op));
    op.rows.max_rows = 4;
    assert_false(rp_matmul_cuda_fits_w8a16(&op));
    d.matrix.input = RP_INPUT_PLAIN;
    assert_true(rp_matmul_cuda_gates(&op) && !rp_matmul_cuda_fits(&op));
    d.matrix.input = RP_INPUT_QUANTIZED;
    d.matrix.scale_kind = RP_SCALE_BLOCK_128;
    assert_false(rp_matmul_cuda_gates(&op) || rp_matmul_cuda_fits(&op));
    assert_true(rp_matmul_cuda_fits_blocks(&op));
    d.matrix.dtype = INT8;
    assert_false(rp_matmul_cuda_fits_blocks(&op));
    d.matrix.scale_kind = RP_SCALE_CHANNEL;
    d.matrix.cols = 4104; /* bytes */
    assert_false(rp_matmul_cuda_fits(&op));
    d.matrix.cols = 4096;
    op.in_stride = 4104;
    assert_false(rp_matmul_cuda_fits(&op));
    op.in_scales = NULL;
    op.in_stride = 16384;
    d.matrix.cols = 16384; /* four rows of it are too many, three are not */
    assert_false(rp_matmul_cuda_quantizes(&op));
    op.rows.max_rows = 3;
    assert_true(rp_matmul_cuda_quantizes(&op));
}

MATMUL_TEST_MAIN(cmocka_unit_test(planned_gemms_match_the_reference),
                 cmocka_unit_test(every_tile_gives_the_same_bits),
                 cmocka_unit_test(a_row_has_the_same_bits_with_any_number_of_rows),
                 cmocka_unit_test(what_does_not_fit_is_left_to_other_kernels))
