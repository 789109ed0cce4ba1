/* Goal: bf16 GEMMs on tensor cores agree with f64, and bit for bit among tiles, batches and
 * orders of work. */
#include "tests/support/gpu_matmul.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void products_agree_with_f64(void **state) {
    (void)state;
    static const struct {
        uint32_t max_rows, live, n, k, in_pad, out_pad;
        enum rp_dtype out_dtype;
        bool bias, accumulate, partials;
    } cases[] = {
        {1, 1, 64, 64, 0, 0, RP_DTYPE_F32, false, false, false},
        {1, 1, 1, 8, 0, 0, RP_DTYPE_F32, true, false, false},
        {3, 3, 65, 72, 8, 2, RP_DTYPE_F32, false, true, false},
        {7, 5, 127, 200, 0, 0, BF16, true, false, false},
        {8, 8, 129, 1024, 0, 0, RP_DTYPE_F32, true, true, false},
        {8, 0, 129, 1024, 0, 0, RP_DTYPE_F32, true, true, false},
        {1, 1, 768, 4096, 0, 0, RP_DTYPE_F32, true, false, true},
        {17, 13, 333, 1096, 8, 7, RP_DTYPE_F32, false, false, false},
        {32, 32, 4096, 512, 0, 0, BF16, false, false, false},
        {48, 33, 200, 2048, 0, 0, RP_DTYPE_F32, true, false, true},
        {64, 64, 192, 640, 0, 0, RP_DTYPE_F32, false, true, false},
        {65, 65, 130, 1288, 0, 0, RP_DTYPE_F32, true, false, false},
        {128, 99, 1000, 520, 0, 0, BF16, true, false, false},
        {130, 129, 200, 1640, 0, 1, RP_DTYPE_F32, true, true, false},
        {300, 257, 257, 328, 0, 0, RP_DTYPE_F32, false, false, false},
        {1100, 700, 136, 200, 0, 0, BF16, false, false, false},
        {2048, 1025, 64, 320, 0, 0, RP_DTYPE_F32, true, false, false},
        {2048, 0, 64, 320, 0, 0, RP_DTYPE_F32, true, false, false},
        /* routers, gates of shared experts, and their narrow matrices */
        {1, 1, 5, 512, 0, 0, RP_DTYPE_F32, false, false, false},
        {9, 6, 1, 256, 0, 0, RP_DTYPE_F32, false, false, false},
        {48, 33, 7, 512, 0, 0, RP_DTYPE_F32, false, false, false},
        {64, 40, 1, 512, 0, 0, RP_DTYPE_F32, false, false, false},
        {200, 131, 32, 256, 0, 0, RP_DTYPE_F32, false, false, false},
        {200, 131, 12, 272, 0, 0, RP_DTYPE_F32, false, false, false},
        {512, 300, 1, 256, 0, 0, RP_DTYPE_F32, false, false, false},
        {512, 300, 20, 256, 0, 0, RP_DTYPE_F32, false, false, false},
        {40, 17, 256, 40, 0, 0, RP_DTYPE_F32, false, false, false},
        {512, 300, 256, 40, 0, 0, RP_DTYPE_F32, false, false, false},
        {130, 100, 80, 256, 0, 0, RP_DTYPE_F32, false, false, false},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        if (rp_gpu_is_tiny() && (size_t)cases[i].n * cases[i].k > 300000)
            continue;
        struct matmul_case p = {.max_rows = cases[i].max_rows,
                                .live = cases[i].live,
                                .n = cases[i].n,
                                .k = cases[i].k,
                                .dtype = BF16,
                                .out_dtype = cases[i].out_dtype,
                                .bias = cases[i].bias,
                                .accumulate = cases[i].accumulate,
                                .partials = cases[i].partials,
                                .in_pad = cases[i].in_pad,
                                .out_pad = cases[i].out_pad,
                                .exact_pads = true};
        struct matmul_data d = matmul_make(&p);
        float *result = matmul_run(&p, &d, (struct matmul_how){0});
        matmul_check_f64(&p, &d, result);
        free(result);
        matmul_free(&d);
    }
}

static const struct {
    uint32_t tokens, rows, boxes;
    bool eager;
} all_tiles[] = {
    {8, 64, 2, true},   {8, 64, 4, true},    {16, 64, 2, true},    {16, 64, 4, true},
    {32, 64, 2, true},  {32, 64, 4, true},   {8, 128, 2, true},    {16, 128, 2, true},
    {32, 128, 1, true}, {32, 128, 2, true},  {64, 128, 1, true},   {64, 128, 2, true},
    {64, 64, 2, true},  {128, 128, 1, true}, {128, 128, 1, false}, {192, 128, 1, false}};

/* Dense rows of max_rows live tokens, f32 out. */
static struct matmul_case dense(uint32_t rows, uint32_t n, uint32_t k, uint32_t segment) {
    return (struct matmul_case){.max_rows = rows,
                                .live = rows,
                                .n = n,
                                .k = k,
                                .segment = segment,
                                .dtype = BF16,
                                .exact_pads = true};
}

static void every_tile_and_order_gives_the_same_bits(void **state) {
    (void)state;
    static const struct {
        uint32_t rows, live, n, k, segment;
    } cases[] = {{300, 300, 1344, 2056, 512}, {200, 130, 1000, 1024, 128},
                 {64, 64, 4096, 960, 192},    {37, 37, 9000, 512, 512},
                 {130, 130, 200, 4096, 256},  {5, 5, 6144, 4096, 1024}};
    bool tiny = rp_gpu_is_tiny();
    for (size_t c = 0; c < (tiny ? 2 : RP_ARRAY_COUNT(cases)); c++) {
        struct matmul_case p = dense(cases[c].rows, cases[c].n, cases[c].k, cases[c].segment);
        p.live = cases[c].live;
        p.bias = true;
        if (tiny) {
            p.live = p.max_rows = 72 - 32 * (uint32_t)c;
            p.n = 200;
        }
        struct matmul_data d = matmul_make(&p);
        float *first = NULL;
        for (size_t t = 0; t < RP_ARRAY_COUNT(all_tiles); t++)
            for (int variant = 0; variant < 5; variant++) {
                if (tiny && variant % 2 != (int)(c + t) % 2)
                    continue;
                struct rp_matmul_tile tile = matmul_tile(all_tiles[t].tokens, all_tiles[t].rows,
                                                         all_tiles[t].boxes, all_tiles[t].eager);
                tile.order = variant == 4  ? RP_MATMUL_ORDER_ONCE
                             : variant % 2 ? RP_MATMUL_ORDER_WAVES
                                           : RP_MATMUL_ORDER_RUNS;
                tile.partials = variant == 2;
                tile.stages = variant == 3 ? 2 : 0;
                tile.flight_early = variant == 1;
                tile.flight = (uint32_t[]){3, 2, 0, 2, 0}[variant]; /* two of two: no cap */
                struct matmul_how how = {.tile = &tile, .times = tiny ? 1 : 3};
                float *result = matmul_run(&p, &d, how);
                char what[64];
                (void)snprintf(what, sizeof what, "case %zu: %u x %u tokens, variant %d", c,
                               tile.rows, tile.tokens, variant);
                if (first)
                    matmul_same(&p, &d, first, result, what);
                else
                    first = result;
            }
        free(first);
        matmul_free(&d);
    }
}

static void wide_tiles_of_one_segment_give_the_same_bits(void **state) {
    (void)state;
    struct matmul_case p = dense(520, 700, 1032, 1088);
    p.live = 515;
    struct matmul_data d = matmul_make(&p);
    struct rp_matmul_tile tile = matmul_tile(64, 64, 2, true);
    float *first = matmul_run(&p, &d, (struct matmul_how){.tile = &tile});
    for (int i = 0; i < 2; i++) {
        tile = matmul_tile(256, 128, 1, false);
        tile.order = i ? RP_MATMUL_ORDER_WAVES : RP_MATMUL_ORDER_RUNS;
        matmul_same(&p, &d, first, matmul_run(&p, &d, (struct matmul_how){.tile = &tile}), "wide");
    }
    free(first);
    matmul_free(&d);
}

/* The contract: each segment alone is a GEMM of its columns; they are added in ascending order. */
static void a_sum_is_its_segments_in_rising_order(void **state) {
    (void)state;
    struct matmul_case p = dense(9, 192, 1000, 256);
    struct matmul_data d = matmul_make(&p);
    struct rp_matmul_tile tile = matmul_tile(16, 64, 2, true);
    const struct matmul_how how = {.tile = &tile};
    float *whole = matmul_run(&p, &d, how), *sum = NULL;
    for (uint32_t begin = 0; begin < p.k; begin += p.segment) {
        struct matmul_case part = p;
        part.k = RP_MIN(p.segment, p.k - begin);
        uint16_t *weight = malloc((size_t)p.n * part.k * 2),
                 *in = malloc((size_t)p.live * part.k * 2);
        for (size_t row = 0; row < p.n; row++)
            memcpy(weight + row * part.k, d.weight + (row * p.k + begin) * 2, part.k * 2);
        for (size_t row = 0; row < p.live; row++)
            memcpy(in + row * part.k, d.plain + row * p.k + begin, part.k * 2);
        struct matmul_data slice = d;
        slice.in_stride = slice.matrix.cols = part.k;
        slice.matrix.data = rp_gpu_upload(weight, (size_t)p.n * part.k * 2);
        slice.plain_device = rp_gpu_upload(in, (size_t)p.live * part.k * 2);
        float *term = matmul_run(&part, &slice, how);
        for (size_t i = 0; sum && i < (size_t)p.live * p.n; i++)
            term[i] = sum[i] + term[i];
        free(sum);
        free(weight);
        free(in);
        sum = term;
    }
    matmul_same(&p, &d, whole, sum, "its segments");
    free(whole);
    matmul_free(&d);
}

static void a_row_does_not_depend_on_how_many_there_are_or_where_it_stands(void **state) {
    (void)state;
    static const uint32_t shapes[][2] = {{576, 2048}, {4096, 1032}, {64, 2048}, {1, 2048}};
    bool tiny = rp_gpu_is_tiny();
    for (size_t s = 0; s < (tiny ? 2 : RP_ARRAY_COUNT(shapes)); s++) {
        struct matmul_case p = dense(300, tiny ? 136 : shapes[s][0], tiny ? 520 : shapes[s][1], 0);
        struct matmul_data d = matmul_make(&p);
        unsigned char *in = d.plain_device;
        float *all = matmul_run(&p, &d, (struct matmul_how){0});
        for (uint32_t m = 1; m < 300; m += tiny ? 37 : m < 20 ? 1 : 7) {
            /* Rows [first, first + m) alone, in a larger bucket. */
            uint32_t first = m * 37 % (300 - m + 1);
            struct matmul_case some = p;
            some.max_rows = m < 8 ? m : (uint32_t)RP_ALIGN_UP(m, 8);
            some.max_rows = RP_MIN(some.max_rows, 300 - first);
            some.live = RP_MIN(m, some.max_rows);
            some.partials = m % 2;
            matmul_set_live(some.live);
            d.plain_device = in + (size_t)first * p.k * 2;
            matmul_same(&some, &d, all + (size_t)first * p.n,
                        matmul_run(&some, &d, (struct matmul_how){0}), "a part of 300 rows");
        }
        free(all);
        matmul_free(&d);
    }
}

/* Routers, gates, narrow projections: the first five of K = 2,048 are planned in ORDER_ONCE. */
static const struct {
    uint32_t n, k;
} narrow[] = {{1, 2048},   {64, 2048},  {128, 2048}, {256, 2048},
              {576, 2048}, {2048, 512}, {96, 2816},  {67, 1096}};
static const uint32_t narrow_rows[] = {33, 64, 65, 128, 129, 256, 257, 512};

static void few_outputs_have_the_same_bits_with_any_number_of_rows(void **state) {
    (void)state;
    bool tiny = rp_gpu_is_tiny();
    for (size_t i = 0; i < RP_ARRAY_COUNT(narrow) * RP_ARRAY_COUNT(narrow_rows); i++) {
        size_t s = i / RP_ARRAY_COUNT(narrow_rows), r = i % RP_ARRAY_COUNT(narrow_rows);
        if (tiny && (narrow[s].n > 128 || r % 4 != s % 4))
            continue;
        struct matmul_case p =
            dense(narrow_rows[r], narrow[s].n, tiny ? 520 : narrow[s].k, tiny ? 256 : 0);
        p.live -= r % 2 ? p.live / 3 : 0; /* whole tiles of dead rows, too */
        struct matmul_data d = matmul_make(&p);
        for (int variant = 0; variant < 4; variant++) {
            p.out_dtype = variant == 1 ? BF16 : RP_DTYPE_F32;
            p.bias = variant == 1;
            p.accumulate = variant == 2;
            p.partials = variant == 3;
            struct rp_matmul_tile tile = matmul_tile(64, 64, 2, true);
            float *truth = matmul_run(&p, &d, (struct matmul_how){.tile = &tile});
            struct matmul_how how = {.times = p.accumulate ? 1 : 2};
            matmul_same(&p, &d, truth, matmul_run(&p, &d, how), "few outputs");
            free(truth);
        }
        matmul_free(&d);
    }
}

static void few_outputs_are_not_cut_up(void **state) {
    (void)state;
    for (size_t i = 0; i < 5 * RP_ARRAY_COUNT(narrow_rows); i++) {
        struct matmul_case p = dense(narrow_rows[i / 5], narrow[i % 5].n, narrow[i % 5].k, 0);
        p.sm_count = 132;
        struct matmul_data d = matmul_make(&p);
        struct rp_matmul_cuda op = matmul_describe(&p, &d, false);
        struct rp_cuda_launch launch;
        struct rp_cuda_partials partials;
        op.out = (struct rp_values){.data = d.plain_device, .stride = p.n, .dtype = RP_DTYPE_F32};
        assert_int_equal(rp_matmul_cuda_plan(&op, &matmul_env.memory, &launch, &partials, NULL),
                         RP_OK);
        assert_string_equal(launch.kernel, "matmul_tc");
        const struct rp_matmul_tc_args *args = launch.args;
        assert_int_equal(args->tile.order, RP_MATMUL_ORDER_ONCE);
        assert_true(args->segments > 1 && args->grid <= 132);
        matmul_free(&d);
    }
}

static void a_hundred_runs_give_the_same_bits(void **state) {
    (void)state;
    bool tiny = rp_gpu_is_tiny();
    struct matmul_case p = dense(40, tiny ? 256 : 4096, tiny ? 1024 : 4096, 512);
    struct matmul_data d = matmul_make(&p);
    struct rp_matmul_tile tile = matmul_tile(64, 64, 2, true);
    float *first = matmul_run(&p, &d, (struct matmul_how){.tile = &tile});
    for (int i = 0; i < 4; i++) {
        struct matmul_how how = {.tile = &tile, .times = tiny ? 1 : 25};
        matmul_same(&p, &d, first, matmul_run(&p, &d, how), "again");
    }
    free(first);
    matmul_free(&d);
}

static void segments_are_a_property_of_the_matrix(void **state) {
    (void)state;
    for (uint32_t n = 1; n < 200000; n += n / 3 + 1) {
        for (uint32_t k = 8; k < 30000; k += k / 2 + 8) {
            uint32_t segment = rp_matmul_cuda_segment(n, k, false);
            assert_true(segment > 0 && segment % 64 == 0);
            assert_true(RP_CEIL_DIV(k, segment) <= 16);
        }
    }
}

MATMUL_TEST_MAIN(cmocka_unit_test(segments_are_a_property_of_the_matrix),
                 cmocka_unit_test(products_agree_with_f64),
                 cmocka_unit_test(a_sum_is_its_segments_in_rising_order),
                 cmocka_unit_test(every_tile_and_order_gives_the_same_bits),
                 cmocka_unit_test(wide_tiles_of_one_segment_give_the_same_bits),
                 cmocka_unit_test(a_row_does_not_depend_on_how_many_there_are_or_where_it_stands),
                 cmocka_unit_test(few_outputs_have_the_same_bits_with_any_number_of_rows),
                 cmocka_unit_test(few_outputs_are_not_cut_up),
                 cmocka_unit_test(a_hundred_runs_give_the_same_bits))
