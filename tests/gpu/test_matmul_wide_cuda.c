/* Goal: bf16 GEMMs of prompts have the bits of the kernel for any number of rows. */
#include "tests/support/gpu_matmul.h"

#include <stdlib.h>

enum kind { F32, ROUNDED, ADDED, GATED }; /* the use of the sums */

struct shape {
    uint32_t max_rows, live, n, k;
    enum kind kind;
    bool bias;
    uint32_t in_pad, out_pad; /* elements between rows */
};

static const struct shape products[] = {
    {512, 512, 1024, 1024, F32, false, 0, 0},     {300, 257, 1344, 2056, F32, true, 8, 4},
    {300, 300, 1000, 4096, ADDED, false, 0, 0},   {511, 511, 1000, 520, ROUNDED, false, 0, 0},
    {1000, 1000, 648, 1032, ROUNDED, true, 0, 8}, {1000, 511, 4096, 1096, ADDED, false, 8, 4},
    {512, 0, 640, 512, F32, false, 0, 0},         {513, 513, 130, 200, F32, true, 0, 1},
    {300, 299, 999, 1544, F32, false, 0, 0},      {2048, 1025, 264, 328, ROUNDED, true, 0, 0},
    {512, 512, 2048, 4096, GATED, false, 0, 0},   {300, 257, 1008, 2056, GATED, false, 8, 8},
    {1000, 1000, 16, 72, GATED, false, 0, 0},     {512, 301, 336, 1032, GATED, false, 0, 0},
    {1024, 1024, 272, 264, GATED, false, 0, 1},
};

/* The case; a tiny run changes only its sizes, and a block still has several tiles. */
static struct matmul_case case_of(const struct shape *s) {
    struct matmul_case p = {.max_rows = s->max_rows,
                            .live = s->live,
                            .n = s->n,
                            .k = s->k,
                            .dtype = BF16,
                            .out_dtype =
                                s->kind == ROUNDED || s->kind == GATED ? BF16 : RP_DTYPE_F32,
                            .bias = s->bias,
                            .accumulate = s->kind == ADDED,
                            .gated = s->kind == GATED,
                            .in_pad = s->in_pad,
                            .out_pad = s->out_pad,
                            .exact_pads = true};
    if (rp_gpu_is_tiny()) {
        p.max_rows = RP_MIN(p.max_rows, 384 + p.max_rows % 2);
        p.live = RP_MIN(p.live, p.max_rows);
        p.n = p.n > 336 ? 320 + p.n % 16 : p.n;
        p.k = p.k > 264 ? 256 + p.k % 16 : p.k;
        p.sm_count = 5;
    }
    p.fn = p.n % 32 ? RP_ACTIVATION_SILU : RP_ACTIVATION_GELU_TANH;
    return p;
}

static float *run_reference(const struct matmul_case *p, const struct matmul_data *d) {
    struct rp_matmul_tile tile = matmul_tile(128, 128, 1, false);
    tile.order = RP_MATMUL_ORDER_WAVES;
    return matmul_run(p, d, (struct matmul_how){.tile = &tile});
}

static void every_tile_gives_the_bits_of_the_general_kernel(void **state) {
    (void)state;
    static const uint32_t cols[] = {128, 256, 192};
    for (size_t i = 0; i < RP_ARRAY_COUNT(products); i++) {
        struct matmul_case p = case_of(&products[i]);
        struct matmul_data d = matmul_make(&p);
        float *want = run_reference(&p, &d);
        /* Gated tiles have 128 or 256 outputs. */
        for (size_t t = 0; t < RP_ARRAY_COUNT(cols) - p.gated; t++) {
            struct matmul_how how = {.wide = true, .wide_cols = cols[t]};
            matmul_same(&p, &d, want, matmul_run(&p, &d, how), "a tile of so many outputs");
        }
        free(want);
        matmul_free(&d);
    }
}

/* Through the plan, repeatedly: sums and boxes of one tile must not affect another. */
static void many_tiles_in_a_row_give_the_same_bits(void **state) {
    (void)state;
    static const struct shape many[] = {{2048, 2048, 4096, 4096, F32, false, 0, 0},
                                        {2048, 2047, 6144, 1032, ROUNDED, true, 0, 0},
                                        {1024, 1024, 8192, 2048, GATED, false, 0, 0}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(many); i++) {
        struct matmul_case p = case_of(&many[i]);
        struct matmul_data d = matmul_make(&p);
        float *want = run_reference(&p, &d);
        struct matmul_how how = {.wide = true, .times = rp_gpu_is_tiny() ? 2 : 20};
        matmul_same(&p, &d, want, matmul_run(&p, &d, how), "again and again");
        free(want);
        matmul_free(&d);
    }
}

/* Blocks without a tile end at once, and must not leave their peers' barriers behind. */
static void many_launches_with_few_live_rows_give_the_same_bits(void **state) {
    (void)state;
    for (int live = 0; live < 2; live++) {
        struct matmul_case p =
            case_of(&(struct shape){1792, live ? 300 : 0, 8192, 512, ROUNDED, false, 0, 0});
        struct matmul_data d = matmul_make(&p);
        float *want = run_reference(&p, &d);
        struct matmul_how how = {
            .wide = true, .wide_cols = 256, .times = rp_gpu_is_tiny() ? 2 : 5000};
        matmul_same(&p, &d, want, matmul_run(&p, &d, how), "many launches with few live rows");
        free(want);
        matmul_free(&d);
    }
}

static void a_row_does_not_depend_on_its_company(void **state) {
    (void)state;
    struct matmul_case p = {.max_rows = 1000,
                            .live = 1000,
                            .n = 1008,
                            .k = 2056,
                            .dtype = BF16,
                            .out_dtype = BF16,
                            .gated = true,
                            .exact_pads = true};
    uint32_t step = 61;
    if (rp_gpu_is_tiny()) {
        p.n = 336;
        p.k = 72;
        p.sm_count = 5;
        step = 488;
    }
    p.fn = p.n % 32 ? RP_ACTIVATION_SILU : RP_ACTIVATION_GELU_TANH;
    struct matmul_data d = matmul_make(&p);
    unsigned char *in = d.plain_device;
    const struct matmul_how how = {.wide = true};
    float *all = matmul_run(&p, &d, how);
    for (uint32_t live = 257; live < 1000; live += step) {
        uint32_t first = live * 37 % (1000 - live);
        struct matmul_case some = p;
        some.max_rows = RP_MIN((uint32_t)RP_ALIGN_UP(live, 64), 1000 - first);
        some.live = live;
        d.plain_device = in + (size_t)first * p.k * 2;
        matmul_set_live(live);
        matmul_same(&some, &d, all + first * d.out_stride, matmul_run(&some, &d, how),
                    "a part of 1000 rows");
    }
    free(all);
    matmul_free(&d);
}

MATMUL_TEST_MAIN(cmocka_unit_test(every_tile_gives_the_bits_of_the_general_kernel),
                 cmocka_unit_test(many_tiles_in_a_row_give_the_same_bits),
                 cmocka_unit_test(many_launches_with_few_live_rows_give_the_same_bits),
                 cmocka_unit_test(a_row_does_not_depend_on_its_company))
