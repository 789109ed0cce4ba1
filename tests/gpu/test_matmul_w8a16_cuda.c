/* Goal: GEMMs of 8-bit weights and bf16 rows follow the contract of quant/matmul_cuda.h bit for
 * bit, in any tile and with any number of rows. Method: the chains of each segment are computed by
 * the bf16 GEMM with the quantized values as weights; scales, bias and the old result are applied
 * on the host. */
#include "base/bf16.h"
#include "tests/gpu/matmul_8_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 512u
#define KINDS    3u /* INT8, FP8, FP8 with a scale per block */

static struct matmul_case of_kind(struct matmul_case p, size_t kind) {
    p.dtype = kind == 0 ? INT8 : FP8;
    p.block_scales = kind == 2;
    p.plain = true;
    return p;
}

static struct rp_matmul_tile plain_tile(uint32_t tokens) {
    struct rp_matmul_tile tile = matmul_tile_8(tokens);
    tile.boxes = tokens <= 32 ? 2 : 1;
    tile.eager = false;
    return tile;
}

/* (ceil(k / cols), max_rows, n): sums of the quantized values over `cols` columns each, by the bf16
 * kernel; one thread block computes each. */
static float *chains_of(const struct matmul_case *p, const struct matmul_data *d, uint32_t cols) {
    size_t count = (size_t)p->n * p->k, segments = RP_CEIL_DIV(p->k, cols);
    uint16_t *quantized = malloc(count * sizeof *quantized);
    for (size_t i = 0; i < count; i++)
        quantized[i] = rp_f32_to_bf16(matmul_weight_value(p, d, i));
    struct rp_matrix weight = {.rows = p->n, .cols = p->k, .dtype = RP_DTYPE_BF16};
    weight.data = rp_gpu_upload(quantized, count * sizeof *quantized);
    free(quantized);
    struct rp_matmul_tile tile = matmul_tile_8(8);
    tile.partials = true;
    size_t sums = p->max_rows * (size_t)p->n;
    struct rp_matmul_cuda op = matmul_describe(p, d, false);
    op.weight = &weight;
    op.bias = NULL;
    op.accumulate = false;
    op.limits.sm_count = 1u << 20;
    op.workspace_bytes = segments * sums * sizeof(float) + (1 << 16);
    op.workspace = rp_gpu_zeroed(op.workspace_bytes);
    op.out = (struct rp_values){.stride = p->n, .dtype = RP_DTYPE_F32};
    op.out.data = rp_gpu_poisoned(sums * sizeof(float));
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials;
    struct rp_error err = {0};
    if (rp_matmul_cuda_plan_tile(&op, &tile, cols, &matmul_env.memory, &launch, &partials, &err) !=
        RP_OK)
        fail_msg("(%u rows, %u, %u) in bf16: %s", p->max_rows, p->n, p->k, err.text);
    assert_int_equal(launch.run(launch.args, NULL), 0);
    rp_gpu_synchronize();
    assert_int_equal(partials.count, segments > 1 ? segments : 0);
    assert_true(segments == 1 || partials.split_stride == sums);
    float *chains = malloc(segments * sums * sizeof *chains);
    rp_gpu_download(chains, segments > 1 ? partials.data : op.out.data,
                    segments * sums * sizeof *chains);
    rp_arena_reset(&matmul_env.memory);
    return chains;
}

/* Output (row, c) from its chains, by the contract. */
static float output(const struct matmul_case *p, const struct matmul_data *d, const float *chains,
                    size_t row, size_t c) {
    size_t cols = matmul_segment(p), each = p->block_scales ? 128 : cols;
    float total = 0;
    for (size_t begin = 0; begin < p->k; begin += cols) {
        float part = 0;
        for (size_t at = begin; at < p->k && at < begin + cols; at += each) {
            float chain = chains[(at / each * p->max_rows + row) * p->n + c];
            const float *scales = d->weight_scales;
            if (p->block_scales)
                part = fmaf(chain, scales[c / 128 * RP_CEIL_DIV(p->k, 128) + at / 128], part);
            else
                part = chain * scales[c];
        }
        total = begin == 0 ? part : total + part;
    }
    total = p->bias ? total + d->bias[c] : total;
    total = p->accumulate ? d->old[row * d->out_stride + c] + total : total;
    return p->out_dtype == RP_DTYPE_BF16 ? rp_bf16_to_f32(rp_f32_to_bf16(total)) : total;
}

/* (max_rows, out_stride); NaN around the outputs. */
static float *expected_of(const struct matmul_case *p, const struct matmul_data *d) {
    float *expected = malloc(p->max_rows * d->out_stride * sizeof *expected);
    float *chains = chains_of(p, d, p->block_scales ? 128 : matmul_segment(p));
    for (size_t i = 0; i < p->max_rows * d->out_stride; i++) {
        size_t row = i / d->out_stride, c = i % d->out_stride;
        expected[i] = row < p->live && c < p->n ? output(p, d, chains, row, c) : NAN;
    }
    free(chains);
    return expected;
}

/* Any bits match for zero and NaN. */
static void check_bits(const struct matmul_case *p, const struct matmul_data *d,
                       const float *expected, float *got, const char *what) {
    for (size_t i = 0; i < p->max_rows * d->out_stride; i++) {
        bool same = isnan(expected[i]) ? isnan(got[i]) != 0 : expected[i] == got[i];
        if (!same)
            fail_msg("%s%s (%u rows, %u, %u) %s: row %zu, column %zu: %a, not %a",
                     rp_dtype_name(p->dtype), p->block_scales ? " in blocks" : "", p->max_rows,
                     p->n, p->k, what, i / d->out_stride, i % d->out_stride, got[i], expected[i]);
    }
    free(got);
}

/* Rows with a single 1 select the quantized values one by one. */
static void each_code_is_its_number_in_each_place(void **state) {
    (void)state;
    for (size_t kind = 0; kind < KINDS; kind++) {
        struct matmul_case p = {.max_rows = 256, .live = 256, .n = 256, .k = 256};
        p = of_kind(p, kind);
        struct matmul_data d = matmul_make(&p);
        for (size_t n = 0; n < p.n; n++)
            for (size_t k = 0; k < p.k; k++) {
                uint8_t code = (uint8_t)(n + k);
                d.weight[n * p.k + k] = p.dtype == FP8 && (code & 0x7F) == 0x7F ? 0x80 : code;
            }
        memset(d.plain, 0, p.max_rows * d.in_stride * 2);
        for (size_t row = 0; row < p.live; row++)
            d.plain[row * d.in_stride + row] = 0x3F80; /* 1 */
        d.matrix.data = rp_gpu_upload(d.weight, (size_t)p.n * p.k);
        d.plain_device = rp_gpu_upload(d.plain, p.max_rows * d.in_stride * 2);
        float *expected = malloc(p.max_rows * d.out_stride * sizeof *expected);
        for (size_t i = 0; i < p.max_rows * d.out_stride; i++) {
            size_t row = i / d.out_stride, c = i % d.out_stride;
            expected[i] = NAN;
            if (c < p.n)
                expected[i] = matmul_weight_value(&p, &d, c * p.k + row) *
                              d.weight_scales[kind == 2 ? c / 128 * 2 + row / 128 : c];
        }
        check_bits(&p, &d, expected, matmul_run(&p, &d, (struct matmul_how){0}),
                   "with one of each row");
        free(expected);
        matmul_free(&d);
    }
}

static void planned_gemms_have_the_bits_of_their_contract(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        PLANNED_CASES_8,
        {.max_rows = 4, .live = 4, .n = 4096, .k = 2048, .gate_up = true},
        {.max_rows = 512, .live = 511, .n = 520, .k = 4096, .out_dtype = RP_DTYPE_BF16},
    };
    for (size_t i = 0; i < KINDS * RP_ARRAY_COUNT(products); i++) {
        struct matmul_case p = of_kind(matmul_shrunk_8(products[i / KINDS]), i % KINDS);
        struct matmul_data d = matmul_make(&p);
        float *expected = expected_of(&p, &d);
        check_bits(&p, &d, expected, matmul_run(&p, &d, (struct matmul_how){0}), "as planned");
        free(expected);
        matmul_free(&d);
    }
}

static void every_tile_gives_the_same_bits(void **state) {
    (void)state;
    static const struct matmul_case products[] = {TILE_CASES_8};
    static const uint32_t tokens[] = {128, 64, 32, 16, 8};
    for (size_t i = 0; i < KINDS * RP_ARRAY_COUNT(products); i++) {
        struct matmul_case p = of_kind(matmul_shrunk_8(products[i / KINDS]), i % KINDS);
        struct matmul_data d = matmul_make(&p);
        float *expected = expected_of(&p, &d);
        for (size_t t = 0; t < RP_ARRAY_COUNT(tokens); t++) {
            for (int variant = 0; variant < 4; variant++) {
                struct rp_matmul_tile tile = plain_tile(tokens[t]);
                if (rp_gpu_is_tiny() && variant != (int)(t + i) % 4)
                    continue;
                tile.order = variant == 1 ? RP_MATMUL_ORDER_WAVES : RP_MATMUL_ORDER_RUNS;
                p.partials = tile.partials = variant == 2 && !p.accumulate;
                p.sm_count = variant == 3 ? 7 : 0; /* many tiles of a block, few of them split */
                tile.stages = variant == 1 ? 2 : 0;
                tile.flight = variant == 2 ? 2 : 0;
                check_bits(&p, &d, expected, matmul_run(&p, &d, (struct matmul_how){.tile = &tile}),
                           "in a tile");
            }
        }
        free(expected);
        matmul_free(&d);
    }
}

/* As planned for one row, for all of a batch, and for prompts. */
static void a_row_has_the_same_bits_with_any_number_of_rows(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        {.n = 520, .k = 2048},
        {.n = 520, .k = 2048, .partials = true},
        {.n = 1024, .k = 4096, .bias = true},
        {.n = 200, .k = 1168, .gate_up = true},
    };
    static const uint32_t more[] = {65, 100, 127, 128, 129, 200, 256, 257, 300, 383};
    for (size_t i = 0; i < KINDS * RP_ARRAY_COUNT(products); i++) {
        struct matmul_case p = of_kind(matmul_shrunk_8(products[i / KINDS]), i % KINDS);
        p.max_rows = p.live = 384;
        struct matmul_data d = matmul_make(&p);
        float *first = matmul_run(&p, &d, (struct matmul_how){0});
        for (size_t step = 0; step < 64 + RP_ARRAY_COUNT(more); step++) {
            uint32_t rows = step < 64 ? (uint32_t)step + 1 : more[step - 64];
            if (rp_gpu_is_tiny() && step % 9)
                continue;
            p.max_rows = p.live = rows;
            matmul_set_live(rows);
            matmul_same(&p, &d, first, matmul_run(&p, &d, (struct matmul_how){0}), "fewer rows");
        }
        free(first);
        matmul_free(&d);
    }
}

/* As one launch, for any number of rows, and as two with the tile for eight. */
static void a_gated_product_is_the_product_and_then_its_activation(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        {.live = 9, .max_rows = 9, .n = 256, .k = 1168, .fn = RP_ACTIVATION_SILU},
        {.live = 70, .max_rows = 72, .n = 2048, .k = 400, .fn = RP_ACTIVATION_GELU_TANH},
        {.live = 301,
         .max_rows = 320,
         .n = 704,
         .k = 2048,
         .fn = RP_ACTIVATION_SILU,
         .sm_count = 5},
        /* with scales of channels in tiles of 192 tokens */
        {.live = 380, .max_rows = 384, .n = 640, .k = 400, .sm_count = 5},
        {.live = 383, .max_rows = 384, .n = 640, .k = 512, .sm_count = 5},
    };
    static const uint32_t fewer[] = {1, 2, 5, 8, 9, 17, 33, 64, 65, 129};
    struct rp_matmul_tile apart = plain_tile(8);
    for (size_t i = 0; i < KINDS * RP_ARRAY_COUNT(products); i++) {
        if (rp_gpu_is_tiny() && i >= KINDS)
            break;
        struct matmul_case p = of_kind(products[i / KINDS], i % KINDS);
        p.gated = true;
        p.out_dtype = RP_DTYPE_BF16;
        struct matmul_data d = matmul_make(&p);
        float *first = matmul_run(&p, &d, (struct matmul_how){.tile = &apart});
        matmul_same(&p, &d, first, matmul_run(&p, &d, (struct matmul_how){0}), "gated");
        for (size_t f = 0; f < RP_ARRAY_COUNT(fewer) && fewer[f] < products[i / KINDS].live; f++) {
            p.max_rows = p.live = fewer[f];
            matmul_set_live(p.live);
            matmul_same(&p, &d, first, matmul_run(&p, &d, (struct matmul_how){0}),
                        "gated, fewer rows");
        }
        free(first);
        matmul_free(&d);
    }
}

/* The kernel that is planned for this many rows. */
static const char *kernel_of(struct rp_matmul_cuda op, uint32_t rows) {
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials;
    struct rp_error err = {0};
    op.rows.max_rows = rows;
    if (rp_matmul_cuda_plan(&op, &matmul_env.memory, &launch, &partials, &err) != RP_OK)
        fail_msg("%u rows: %s", rows, err.text);
    rp_arena_reset(&matmul_env.memory);
    return launch.kernel;
}

static void check_kernel(const struct rp_matmul_cuda *op, const char *name) {
    for (uint32_t rows = 1; rows <= ROWS_MAX; rows += rows < 20 ? 1 : 41)
        assert_string_equal(kernel_of(*op, rows), name);
}

/* All numbers of rows use the same family. */
static void a_matrix_has_one_kernel(void **state) {
    (void)state;
    for (size_t kind = 0; kind < KINDS; kind++) {
        struct matmul_case p = {.max_rows = ROWS_MAX, .live = 1, .n = 256, .k = 512};
        p = of_kind(p, kind);
        struct matmul_data d = matmul_make(&p);
        struct rp_matmul_cuda op = matmul_describe(&p, &d, false);
        op.out = (struct rp_values){.stride = p.n, .dtype = RP_DTYPE_F32};
        op.out.data = rp_gpu_poisoned((size_t)ROWS_MAX * p.n * sizeof(float));
        check_kernel(&op, "matmul_tc");
        op.gate_up = true;
        check_kernel(&op, "matmul_tc");
        op.gated = true;
        assert_false(rp_matmul_cuda_gates(&op) || rp_matmul_cuda_norms(&op) ||
                     rp_matmul_cuda_quantizes(&op));
        op.out.dtype = RP_DTYPE_BF16;
        assert_true(rp_matmul_cuda_gates(&op));
        check_kernel(&op, "matmul_tc");
        d.matrix.rows = 248;
        assert_false(rp_matmul_cuda_gates(&op));
        d.matrix.rows = 256;
        op.gated = false;
        op.in_stride = p.k + 4;
        check_kernel(&op, "matmul_generic");
        op.in_stride = p.k;
        op.in = (const unsigned char *)d.plain_device + 8;
        check_kernel(&op, "matmul_generic");
        op.in = d.plain_device;
        d.matrix.cols = p.k - 8;
        check_kernel(&op, "matmul_generic");
        d.matrix.cols = p.k - 16;
        check_kernel(&op, "matmul_tc");
        d.matrix.data = (unsigned char *)d.matrix.data + 8;
        check_kernel(&op, "matmul_generic");
        matmul_free(&d);
    }
}

MATMUL_TEST_MAIN(cmocka_unit_test(each_code_is_its_number_in_each_place),
                 cmocka_unit_test(planned_gemms_have_the_bits_of_their_contract),
                 cmocka_unit_test(every_tile_gives_the_same_bits),
                 cmocka_unit_test(a_row_has_the_same_bits_with_any_number_of_rows),
                 cmocka_unit_test(a_gated_product_is_the_product_and_then_its_activation),
                 cmocka_unit_test(a_matrix_has_one_kernel))
