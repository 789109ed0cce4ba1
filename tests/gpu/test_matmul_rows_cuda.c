/* Goal: bf16 GEMMs of few rows, in which a block computes its outputs over all of K, have, alone or
 * with the norm before and the activation after them, the bits of the separate kernels. */
#include "tests/support/gpu_matmul.h"

#include <stdlib.h>

/* The same tiles, segments and kernels, with fewer thread blocks and a shorter K. */
static struct matmul_case shrunk(struct matmul_case p) {
    if (p.sm_count > 3) {
        p.n = RP_MAX(p.n * 3 / p.sm_count & ~1u, p.gated ? 2u : 1u);
        p.sm_count = 3;
    }
    if (p.k >= 1024 && p.k % 256 == 0 && p.segment % 256 == 0) {
        p.k /= 4;
        p.segment /= 4;
    }
    return p;
}

/* Each of `count` variants of a case; with REPRISE_TEST_TINY alternately one of them. */
static void check_variants(const struct matmul_case *variants, size_t count) {
    static size_t turn;
    size_t first = rp_gpu_is_tiny() ? turn++ % count : 0;
    for (size_t i = first; i < (rp_gpu_is_tiny() ? first + 1 : count); i++) {
        struct matmul_case p = rp_gpu_is_tiny() ? shrunk(variants[i]) : variants[i];
        struct matmul_data d = matmul_make(&p);
        struct matmul_case apart = p;
        apart.sm_count = 0;
        struct rp_matmul_tile tile = matmul_tile(p.max_rows <= 32 ? 32 : 64, 64, 2, true);
        float *expected = matmul_run(&apart, &d, (struct matmul_how){.tile = &tile});
        matmul_same(&p, &d, expected, matmul_run(&p, &d, (struct matmul_how){.rows = true}),
                    "few rows");
        free(expected);
        matmul_free(&d);
    }
}

/* max_rows, live, n, k, segment, sm_count */
static struct matmul_case case_of(const uint32_t c[6]) {
    return (struct matmul_case){.max_rows = c[0],
                                .live = c[1],
                                .n = c[2],
                                .k = c[3],
                                .segment = c[4],
                                .sm_count = c[5],
                                .dtype = BF16,
                                .in_pad = 8,
                                .out_pad = 3,
                                .exact_pads = true};
}

static void blocks_that_own_whole_sums_give_the_same_bits(void **state) {
    (void)state;
    static const uint32_t cases[][6] = {
        {1, 1, 4096, 1024, 256, 132},   {8, 7, 6144, 640, 192, 132},
        {8, 8, 1, 64, 64, 132},         {5, 5, 1001, 576, 576, 3},
        {16, 16, 4096, 768, 384, 132},  {13, 0, 300, 256, 64, 132},
        {32, 31, 9000, 256, 64, 132},   {64, 64, 2049, 1024, 512, 1},
        {33, 33, 20000, 192, 64, 132},  {3, 3, 128256, 128, 128, 132},
        {7, 7, 3000, 832, 448, 132},    {2, 2, 4100, 4096, 1024, 132},
        {16, 15, 260, 2048, 512, 5},    {12, 12, 100, 1280, 640, 1},
        {8, 8, 4096, 14336, 3584, 132},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct matmul_case p = case_of(cases[i]), variants[] = {p, p, p};
        variants[1].bias = variants[1].accumulate = variants[2].bias = true;
        variants[2].out_dtype = BF16;
        check_variants(variants, 3);
    }
}

static void a_gated_product_is_the_product_and_its_activation(void **state) {
    (void)state;
    static const uint32_t cases[][6] = {
        {1, 1, 28672, 512, 512, 132}, {8, 8, 2, 64, 64, 132},        {8, 5, 14336, 640, 192, 132},
        {7, 7, 1002, 1088, 512, 132}, {16, 11, 4096, 576, 576, 132}, {32, 32, 5762, 256, 64, 132},
        {33, 33, 1344, 1024, 320, 8}, {64, 50, 9000, 384, 128, 132}, {64, 64, 2064, 1024, 1024, 7},
        {12, 0, 256, 256, 128, 132},  {3, 3, 700, 4096, 2048, 1},    {8, 8, 1024, 4096, 4096, 132},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct matmul_case p = case_of(cases[i]);
        p.out_dtype = BF16;
        p.gated = true;
        struct matmul_case variants[] = {p, p};
        variants[1].fn = RP_ACTIVATION_GELU_TANH;
        check_variants(variants, 2);
    }
}

static void a_normed_product_is_the_norm_and_the_product(void **state) {
    (void)state;
    static const uint32_t cases[][6] = {
        {1, 1, 6144, 4096, 1024, 132}, {4, 4, 512, 4096, 4096, 132}, {2, 1, 1000, 2048, 512, 7},
        {4, 3, 333, 320, 64, 132},     {1, 0, 64, 512, 512, 132},    {3, 3, 9000, 1088, 192, 50},
        {2, 2, 2000, 3072, 1536, 132}, {4, 4, 4096, 1024, 256, 100},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct matmul_case p = case_of(cases[i]);
        p.source = NORMED;
        struct matmul_case variants[] = {p, p};
        variants[1].gated = p.n % 2 == 0;
        variants[1].out_dtype = BF16;
        variants[1].weight_offset = 1.0f;
        check_variants(variants, 2);
    }
}

static void what_does_not_fit_is_left_to_several_kernels(void **state) {
    (void)state;
    struct matmul_case p = {.max_rows = 4, .n = 256, .k = 4096};
    struct matmul_data d = {.matrix = {.rows = 256, .cols = 4096, .dtype = RP_DTYPE_BF16},
                            .in_stride = 4096};
    struct rp_matmul_cuda op = matmul_describe(&p, &d, false);
    op.gate_up = op.gated = true;
    op.out.dtype = RP_DTYPE_BF16;
    op.norm = (struct rp_matmul_norm){.cols = 4096, .in_stride = 4096};
    assert_true(rp_matmul_cuda_gates(&op) && rp_matmul_cuda_norms(&op));
    op.rows.max_rows = 5;
    assert_true(rp_matmul_cuda_gates(&op) && !rp_matmul_cuda_norms(&op));
    op.rows.max_rows = 4;
    d.matrix.rows = 255;
    assert_false(rp_matmul_cuda_gates(&op));
    d.matrix.rows = 256;
    op.norm.cols = d.matrix.cols = 4104;
    assert_false(rp_matmul_cuda_gates(&op) || rp_matmul_cuda_norms(&op));
    op.norm.cols = d.matrix.cols = 4096;
    op.out.dtype = RP_DTYPE_F32;
    assert_false(rp_matmul_cuda_gates(&op));
    op.limits.compute_capability = 80;
    assert_false(rp_matmul_cuda_norms(&op));
}

MATMUL_TEST_MAIN(cmocka_unit_test(blocks_that_own_whole_sums_give_the_same_bits),
                 cmocka_unit_test(a_gated_product_is_the_product_and_its_activation),
                 cmocka_unit_test(a_normed_product_is_the_norm_and_the_product),
                 cmocka_unit_test(what_does_not_fit_is_left_to_several_kernels))
