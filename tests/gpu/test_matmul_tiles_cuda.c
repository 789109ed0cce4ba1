/* Goal: GEMMs of GGUF's blocks and of 4-bit weights have the bits of bf16 GEMMs of the same values
 * (rp_tiles_weight), in every format, with any number of rows, and follow the exact weights
 * closely. Method: random blocks are packed on the host; the weights read back are the bf16 matrix
 * of a GEMM with the same segments, whose bits the outputs must have. */
#include "base/bf16.h"
#include "quant/matmul.h"
#include "quant/tiles/matmul_tiles_cuda.h"
#include "tests/support/gpu_matmul.h"
#include "tests/support/random_blocks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t block_seed = 815;

/* A matrix in tiles, and the same values in bf16. */
struct tiles_data {
    struct matmul_data bf16; /* everything else, too */
    struct rp_matrix tiles;  /* on the GPU */
    double rounding;         /* of the exact weights to those of tiles: relative, of all */
};

static struct tiles_data make_tiles(const struct matmul_case *p, const uint32_t *part_types,
                                    uint32_t parts) {
    struct tiles_data t = {.bf16 = matmul_make(p)};
    struct rp_matrix rows = {.rows = p->n,
                             .cols = p->k,
                             .dtype = RP_DTYPE_BLOCKS,
                             .input = RP_INPUT_BF16,
                             .part_count = parts};
    for (uint32_t i = 0; i < parts; i++) {
        uint32_t begin = p->gated ? p->n / parts * i : i == 0 ? 0 : p->n / 2 + 16 * (i - 1);
        uint32_t end = i + 1 == parts ? p->n
                       : p->gated     ? p->n / parts * (i + 1)
                                      : p->n / 2 + 16 * i;
        rows.parts[i] =
            (struct rp_matrix_part){.row_begin = begin, .rows = end - begin, .type = part_types[i]};
        if (part_types[i] == RP_BLOCK_NVFP4)
            rows.parts[i].factor = 0.02f + 0.01f * (float)i;
    }
    unsigned char *data = malloc(rp_matrix_bytes(&rows) + 1), *at = data;
    rows.data = data;
    for (uint32_t i = 0; i < parts; i++) {
        struct rp_block_info info = rp_block_info(part_types[i]);
        size_t blocks = rows.parts[i].rows * (size_t)RP_CEIL_DIV(p->k, info.values);
        for (size_t b = 0; b < blocks; b++, at += info.bytes)
            random_block(part_types[i], at, &block_seed);
    }
    t.tiles = rows;
    t.tiles.layout = RP_LAYOUT_TILES;
    size_t bytes = rp_matrix_bytes(&t.tiles);
    unsigned char *packed = malloc(bytes + 1);
    assert_int_equal(rp_tiles_pack(&rows, packed), RP_OK);
    t.tiles.data = packed;
    uint16_t *weight = (uint16_t *)(void *)t.bf16.weight;
    float *exact = malloc(p->k * sizeof *exact);
    double difference = 0, size = 0;
    for (uint32_t n = 0; n < p->n; n++) {
        rp_matrix_row_f32(&rows, n, exact);
        for (uint32_t k = 0; k < p->k; k++) {
            float value = rp_tiles_weight(&t.tiles, n, k);
            weight[(size_t)n * p->k + k] = rp_f32_to_bf16(value);
            difference += pow((double)value - exact[k], 2);
            size += (double)exact[k] * exact[k];
        }
    }
    free(exact);
    t.rounding = sqrt(difference / (size > 0 ? size : 1));
    t.tiles.data = rp_gpu_upload(packed, bytes);
    t.bf16.matrix.data = rp_gpu_upload(weight, (size_t)p->n * p->k * sizeof *weight);
    free(packed);
    free(data);
    return t;
}

static const char *name_of(uint32_t type) { return rp_block_info(type).name; }

static void use_tiles(struct tiles_data *t, struct matmul_data *out) {
    *out = t->bf16;
    out->matrix = t->tiles;
}

/* The bf16 GEMM of the same weights, by the kernel for any number of rows. */
static float *expected_of(struct matmul_case p, const struct tiles_data *t) {
    struct rp_matmul_tile tile = matmul_tile(8, 64, 2, true);
    p.segment = rp_matmul_tiles_segment(p.n, p.k, p.gated || p.gate_up);
    p.partials = false;
    bool aligned = p.k % 8 == 0 && t->bf16.in_stride % 8 == 0;
    return matmul_run(&p, &t->bf16, (struct matmul_how){.tile = aligned ? &tile : NULL});
}

static void check(struct matmul_case p, const uint32_t *part_types, uint32_t parts) {
    struct tiles_data t = make_tiles(&p, part_types, parts);
    struct matmul_data tiles;
    use_tiles(&t, &tiles);
    if (t.rounding > 8e-3) /* of a few weights, too */
        fail_msg("%s: weights differ by %g", name_of(part_types[0]), t.rounding);
    float *expected = expected_of(p, &t);
    char what[64];
    (void)snprintf(what, sizeof what, "%s, %u parts", name_of(part_types[0]), parts);
    matmul_same(&p, &t.bf16, expected, matmul_run(&p, &tiles, (struct matmul_how){0}), what);
    free(expected);
    matmul_free(&t.bf16);
}

static void every_format_has_the_bits_of_its_weights_in_bf16(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        {.max_rows = 1, .live = 1, .n = 48, .k = 256},
        {.max_rows = 8, .live = 5, .n = 72, .k = 2176, .accumulate = true},
        {.max_rows = 32, .live = 27, .n = 200, .k = 1096, .bias = true},
        {.max_rows = 100, .live = 99, .n = 136, .k = 4096, .out_dtype = RP_DTYPE_BF16},
        {.max_rows = 300, .live = 290, .n = 264, .k = 1312},
    };
    for (size_t i = 0; i < RANDOM_BLOCK_TYPES * RP_ARRAY_COUNT(products); i++) {
        if (rp_gpu_is_tiny() && i % 5 != i / 5 % 5)
            continue;
        struct matmul_case p = products[i % RP_ARRAY_COUNT(products)];
        p.dtype = BF16;
        check(p, &random_block_types[i / RP_ARRAY_COUNT(products)], 1);
    }
}

static void partial_sums_are_left_to_the_reader(void **state) {
    (void)state;
    static const uint32_t part_types[] = {RP_BLOCK_INT4 + 2, RP_BLOCK_Q6_K, RP_BLOCK_Q6_K};
    static const uint32_t rows[] = {1, 8, 30, 32, 33, 100};
    for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++) {
        struct matmul_case p = {.max_rows = rows[i], .live = RP_MAX(rows[i] - 1, 1u), .n = 1000};
        p.k = 2056;
        p.dtype = BF16;
        p.partials = true;
        p.bias = i % 2;
        check(p, part_types, 1 + 2 * (i % 2));
    }
}

static void parts_of_several_formats_are_one_product(void **state) {
    (void)state;
    static const uint32_t part_types[][3] = {
        {RP_BLOCK_Q4_K, RP_BLOCK_Q4_K, RP_BLOCK_Q6_K},
        {RP_BLOCK_INT4 + 6, RP_BLOCK_INT4 + 6, RP_BLOCK_INT4 + 6},
        {RP_BLOCK_NVFP4, RP_BLOCK_BF16, RP_BLOCK_Q8_0}};
    static const uint32_t rows[] = {3, 40, 270};
    for (size_t i = 0; i < RP_ARRAY_COUNT(part_types) * RP_ARRAY_COUNT(rows); i++) {
        uint32_t count = rows[i % RP_ARRAY_COUNT(rows)];
        struct matmul_case p = {
            .max_rows = count, .live = count, .n = 152, .k = 1536, .bias = true, .dtype = BF16};
        check(p, part_types[i / RP_ARRAY_COUNT(rows)], 3);
    }
}

static void odd_sizes_and_strides_are_right(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        {.max_rows = 7, .live = 7, .n = 33, .k = 100},
        {.max_rows = 5, .live = 4, .n = 17, .k = 515, .bias = true},
        {.max_rows = 9, .live = 9, .n = 40, .k = 256, .exact_pads = true, .in_pad = 3},
        {.max_rows = 300, .live = 280, .n = 31, .k = 130},
        {.max_rows = 2, .live = 1, .n = 1, .k = 32},
    };
    static const uint32_t some[] = {RP_BLOCK_INT4 + 2, RP_BLOCK_Q4_K, RP_BLOCK_Q8_0,
                                    RP_BLOCK_MXFP4};
    for (size_t i = 0; i < RP_ARRAY_COUNT(products) * RP_ARRAY_COUNT(some); i++) {
        struct matmul_case p = products[i / RP_ARRAY_COUNT(some)];
        p.dtype = BF16;
        check(p, &some[i % RP_ARRAY_COUNT(some)], 1);
    }
}

static void a_gated_product_is_the_product_and_then_its_activation(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        {.max_rows = 1, .live = 1, .n = 4096, .k = 512, .fn = RP_ACTIVATION_SILU},
        {.max_rows = 16, .live = 9, .n = 256, .k = 1168, .fn = RP_ACTIVATION_SILU},
        {.max_rows = 70, .live = 67, .n = 288, .k = 400, .fn = RP_ACTIVATION_GELU_TANH},
        {.max_rows = 320, .live = 301, .n = 704, .k = 1024, .fn = RP_ACTIVATION_SILU},
    };
    static const uint32_t pairs[][2] = {{RP_BLOCK_INT4 + 2, RP_BLOCK_INT4 + 2},
                                        {RP_BLOCK_Q4_K, RP_BLOCK_Q4_K}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(products) * RP_ARRAY_COUNT(pairs); i++) {
        struct matmul_case p = products[i / RP_ARRAY_COUNT(pairs)];
        p.dtype = BF16;
        p.gated = true;
        p.out_dtype = RP_DTYPE_BF16;
        check(p, pairs[i % RP_ARRAY_COUNT(pairs)], 2);
        check(p, pairs[i % RP_ARRAY_COUNT(pairs)], 1);
    }
}

/* Gates and ups of different types: only GEMMs of bf16 do it. */
static void gates_and_ups_of_two_formats_are_left_to_the_activation(void **state) {
    (void)state;
    static const uint32_t part_types[] = {RP_BLOCK_Q4_K, RP_BLOCK_Q6_K};
    struct matmul_case p = {.max_rows = 300, .live = 300, .n = 256, .k = 512, .gated = true};
    p.dtype = BF16;
    p.out_dtype = RP_DTYPE_BF16;
    check(p, part_types, 2);
    struct tiles_data t = make_tiles(&p, part_types, 2);
    struct matmul_data tiles;
    use_tiles(&t, &tiles);
    struct rp_matmul_cuda op = matmul_describe(&p, &tiles, false);
    op.out = (struct rp_values){.stride = p.n, .dtype = RP_DTYPE_BF16};
    assert_true(rp_matmul_cuda_gates(&op));
    assert_true(rp_matmul_cuda_weight_scratch(&op) > 0);
    op.rows.max_rows = 64;
    assert_false(rp_matmul_cuda_gates(&op));
    op.gated = false;
    assert_true(rp_matmul_cuda_weight_scratch(&op) == 0);
    matmul_free(&t.bf16);
}

static void a_row_has_the_same_bits_with_any_number_of_rows(void **state) {
    (void)state;
    static const struct matmul_case products[] = {{.n = 520, .k = 2048},
                                                  {.n = 208, .k = 4096, .bias = true},
                                                  {.n = 416, .k = 1168, .gate_up = true}};
    static const uint32_t some[] = {RP_BLOCK_INT4 + 2, RP_BLOCK_INT4 + 17, RP_BLOCK_Q6_K};
    static const uint32_t more[] = {65, 100, 127, 128, 129, 200, 255, 256, 257, 299};
    for (size_t i = 0; i < RP_ARRAY_COUNT(products) * RP_ARRAY_COUNT(some); i++) {
        struct matmul_case p = products[i / RP_ARRAY_COUNT(some)];
        p.dtype = BF16;
        p.max_rows = p.live = 300;
        struct tiles_data t = make_tiles(&p, &some[i % RP_ARRAY_COUNT(some)], 1);
        struct matmul_data tiles;
        use_tiles(&t, &tiles);
        float *first = matmul_run(&p, &tiles, (struct matmul_how){0});
        for (size_t step = 0; step < 40 + RP_ARRAY_COUNT(more); step++) {
            uint32_t rows = step < 40 ? (uint32_t)step + 1 : more[step - 40];
            if (rp_gpu_is_tiny() && step % 9)
                continue;
            p.max_rows = p.live = rows;
            matmul_set_live(rows);
            matmul_same(&p, &t.bf16, first, matmul_run(&p, &tiles, (struct matmul_how){0}),
                        "fewer rows");
        }
        free(first);
        matmul_free(&t.bf16);
    }
}

/* Large enough for every warp of a block, and for rings and stages that are reused often. */
static void large_products_have_the_bits_of_their_weights_in_bf16(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        {.max_rows = 1, .live = 1, .n = 4096, .k = 4096},
        {.max_rows = 8, .live = 8, .n = 6144, .k = 4096},
        {.max_rows = 64, .live = 64, .n = 4096, .k = 4096},
        {.max_rows = 32, .live = 31, .n = 1024, .k = 14336, .accumulate = true},
        {.max_rows = 16, .live = 16, .n = 14336, .k = 2048, .gate_up = true},
    };
    static const uint32_t some[] = {RP_BLOCK_INT4 + 2, RP_BLOCK_Q6_K};
    if (rp_gpu_is_tiny())
        skip();
    for (size_t i = 0; i < RP_ARRAY_COUNT(products) * RP_ARRAY_COUNT(some); i++) {
        struct matmul_case p = products[i / RP_ARRAY_COUNT(some)];
        p.dtype = BF16;
        check(p, &some[i % RP_ARRAY_COUNT(some)], 1);
    }
}

/* Panels that no block's number of them divides, blocks with idle warps, gates without a whole
 * block, and token tiles without a live row. */
static void blocks_need_not_be_full(void **state) {
    (void)state;
    static const struct matmul_case products[] = {
        {.max_rows = 64, .live = 50, .n = 16 * 37, .k = 384},
        {.max_rows = 8, .live = 1, .n = 16 * 133 + 5, .k = 640, .bias = true},
        {.max_rows = 16, .live = 16, .n = 16 * 2117, .k = 256, .gate_up = true},
        {.max_rows = 32, .live = 32, .n = 16 * 301 - 3, .k = 4096},
        {.max_rows = 200, .live = 3, .n = 16 * 75, .k = 1280},
        {.max_rows = 256, .live = 70, .n = 16 * 150, .k = 128, .accumulate = true},
        {.max_rows = 3, .live = 3, .n = 32 * 139, .k = 512, .fn = RP_ACTIVATION_SILU},
        {.max_rows = 33, .live = 33, .n = 32 * 267, .k = 384, .fn = RP_ACTIVATION_SILU},
        {.max_rows = 64, .live = 64, .n = 32 * 931, .k = 256, .fn = RP_ACTIVATION_GELU_TANH},
        {.max_rows = 150, .live = 9, .n = 32 * 5, .k = 1024, .fn = RP_ACTIVATION_SILU},
    };
    static const uint32_t some[] = {RP_BLOCK_INT4 + 2, RP_BLOCK_MXFP4, RP_BLOCK_Q8_0,
                                    RP_BLOCK_BF16};
    for (size_t i = 0; i < RP_ARRAY_COUNT(products) * RP_ARRAY_COUNT(some); i++) {
        struct matmul_case p = products[i / RP_ARRAY_COUNT(some)];
        if (rp_gpu_is_tiny() && p.n > 2048)
            continue;
        p.dtype = BF16;
        p.gated = i / RP_ARRAY_COUNT(some) >= 6;
        if (p.gated)
            p.out_dtype = RP_DTYPE_BF16;
        check(p, &some[i % RP_ARRAY_COUNT(some)], 1);
    }
}

/* Segments do not depend on the GPU, so neither may the workspace that holds their sums. */
static void a_gpu_with_few_multiprocessors_has_room_for_all_partial_sums(void **state) {
    (void)state;
    const struct rp_cuda_limits limits = {.sm_count = 16};
    for (uint32_t n = 16; n <= 40000; n += 48)
        for (uint32_t k = 512; k <= 32768; k *= 2)
            for (uint32_t rows = 1; rows <= RP_MATMUL_TILES_ROWS; rows = rows * 2 + 1) {
                size_t segments = RP_CEIL_DIV(k, rp_matmul_tiles_segment(n, k, false));
                size_t bytes = segments < 2 ? 0 : segments * rows * n * sizeof(float);
                assert_true(bytes + 16384 <= rp_matmul_cuda_workspace_bytes(&limits, rows, n));
            }
}

MATMUL_TEST_MAIN(cmocka_unit_test(blocks_need_not_be_full),
                 cmocka_unit_test(a_gpu_with_few_multiprocessors_has_room_for_all_partial_sums),
                 cmocka_unit_test(every_format_has_the_bits_of_its_weights_in_bf16),
                 cmocka_unit_test(partial_sums_are_left_to_the_reader),
                 cmocka_unit_test(parts_of_several_formats_are_one_product),
                 cmocka_unit_test(odd_sizes_and_strides_are_right),
                 cmocka_unit_test(a_gated_product_is_the_product_and_then_its_activation),
                 cmocka_unit_test(gates_and_ups_of_two_formats_are_left_to_the_activation),
                 cmocka_unit_test(a_row_has_the_same_bits_with_any_number_of_rows),
                 cmocka_unit_test(large_products_have_the_bits_of_their_weights_in_bf16))
