/* Goal: bf16 GEMMs of 65 to 256 rows have the bits of the kernel for any number of rows, gated
 * ones those of that kernel followed by the activation. */
#include "tests/support/gpu_matmul.h"

#include <stdlib.h>

struct shape {
    uint32_t max_rows, live, n, k, segment; /* 0: the matrix's */
    uint32_t in_stride, out_stride;         /* 0: as narrow as possible */
    bool gate_up;
};

static const struct shape products[] = {
    {65, 65, 64, 64, 0, 0, 0, false},         {128, 128, 6144, 2048, 512, 0, 0, false},
    {99, 97, 1016, 1096, 320, 0, 0, false},   {128, 77, 4096, 1032, 0, 1040, 4100, false},
    {72, 0, 512, 512, 256, 0, 0, false},      {127, 127, 2056, 200, 64, 208, 0, false},
    {88, 1, 264, 8, 0, 0, 266, false},        {120, 113, 5000, 968, 448, 0, 0, false},
    {256, 256, 4096, 1024, 256, 0, 0, false}, {255, 201, 1032, 1096, 320, 1104, 1034, false},
    {100, 100, 1000, 520, 128, 0, 0, false},  {104, 101, 16000, 136, 0, 0, 0, true},
    {129, 129, 776, 328, 64, 0, 0, false},    {200, 130, 2000, 520, 0, 0, 0, false},
    {90, 90, 1014, 520, 0, 0, 0, false},      {90, 81, 1013, 264, 0, 0, 0, false},
};

static const struct rp_matmul_mid_tile tiles[] = {
#define TILE(tokens_, width_, rows_)                                                               \
    { .tokens = tokens_, .width = width_, .rows = rows_ }
    TILE(128, 128, 128), TILE(128, 128, 104), TILE(128, 128, 128),
    TILE(128, 192, 184), TILE(128, 256, 256), TILE(128, 256, 248),
    TILE(256, 128, 128), TILE(256, 128, 120), TILE(256, 128, 64),
};

/* Tiny runs: the small GEMMs, on so few SMs that a block has several units of work. */
static bool is_left_out(const struct shape *s) {
    return rp_gpu_is_tiny() && (size_t)s->n * s->k > 600 * 1024;
}

static struct matmul_case case_of(const struct shape *s) {
    return (struct matmul_case){.max_rows = s->max_rows,
                                .live = s->live,
                                .n = s->n,
                                .k = s->k,
                                .segment = s->segment,
                                .sm_count = rp_gpu_is_tiny() ? 5 : 0,
                                .dtype = BF16,
                                .gate_up = s->gate_up,
                                .in_pad = s->in_stride ? s->in_stride - s->k : 0,
                                .out_pad = s->out_stride ? s->out_stride - s->n : 0,
                                .exact_pads = true};
}

/* The kernel for any number of rows, in tiles of 64 weight rows and as many tokens. */
static float *run_reference(const struct matmul_case *p, const struct matmul_data *d) {
    struct rp_matmul_tile tile = matmul_tile(64, 64, 2, true);
    return matmul_run(p, d, (struct matmul_how){.tile = &tile});
}

static void every_tile_gives_the_bits_of_the_kernel_for_any_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(products); i++) {
        if (products[i].n % 8 != 0 || is_left_out(&products[i])) /* the other kernel computes it */
            continue;
        struct matmul_case p = case_of(&products[i]);
        p.partials = true;
        struct matmul_data d = matmul_make(&p);
        float *truth = run_reference(&p, &d);
        matmul_check_mid_tiles(&p, &d, truth, tiles, RP_ARRAY_COUNT(tiles), i,
                               rp_gpu_is_tiny() ? 1 : 3);
        free(truth);
        matmul_free(&d);
    }
}

static void what_is_planned_gives_the_bits_of_the_kernel_for_any_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(products); i++) {
        if (is_left_out(&products[i]))
            continue;
        struct matmul_case p = case_of(&products[i]);
        p.segment = 0;
        struct matmul_data d = matmul_make(&p);
        for (int variant = 0; variant < 4; variant++) {
            p.bias = variant & 2;
            p.partials = variant & 1;
            float *truth = run_reference(&p, &d);
            matmul_same(&p, &d, truth, matmul_run(&p, &d, (struct matmul_how){.times = 2}),
                        "as planned");
            free(truth);
        }
        matmul_free(&d);
    }
}

static void a_gated_product_is_the_product_and_then_its_activation(void **state) {
    (void)state;
    static const struct shape gated[] = {
        {128, 128, 4096, 1024, 0, 0, 0, true}, {65, 65, 16, 64, 0, 0, 0, true},
        {99, 97, 1040, 1096, 0, 0, 0, true},   {72, 0, 512, 512, 0, 0, 0, true},
        {128, 77, 6144, 264, 0, 272, 0, true}, {256, 255, 2064, 520, 0, 0, 0, true},
        {130, 130, 448, 1032, 0, 0, 0, true},  {128, 128, 3200, 4096, 0, 0, 0, true},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(gated) * 2; i++) {
        const struct shape *s = &gated[i / 2];
        if (is_left_out(s) && s->max_rows != 99)
            continue;
        struct matmul_case p = case_of(s);
        p.gated = true;
        p.fn = i % 2 ? RP_ACTIVATION_GELU_TANH : RP_ACTIVATION_SILU;
        p.out_dtype = BF16;
        p.out_pad = i / 2 % 2 ? 6 : 8;
        struct matmul_data d = matmul_make(&p);
        struct rp_matmul_cuda op = matmul_describe(&p, &d, false);
        op.out = (struct rp_values){
            .data = d.plain_device, .stride = d.out_stride, .dtype = p.out_dtype};
        if (!rp_matmul_cuda_gates(&op))
            fail_msg("(%u rows, %u, %u) is not gated", p.max_rows, p.n, p.k);
        float *apart = run_reference(&p, &d);
        matmul_same(&p, &d, apart, matmul_run(&p, &d, (struct matmul_how){.times = 3}), "gated");
        free(apart);
        matmul_free(&d);
    }
}

static void a_hundred_runs_give_the_same_bits(void **state) {
    (void)state;
    bool tiny = rp_gpu_is_tiny();
    uint32_t n = tiny ? 512 : 4096;
    struct matmul_case p = case_of(&(struct shape){.max_rows = 128, .live = 128, .n = n, .k = n});
    p.partials = true;
    struct matmul_data d = matmul_make(&p);
    float *first = run_reference(&p, &d);
    for (int i = 0; i < 4; i++) {
        struct matmul_how how = {.times = tiny ? 1 : 25};
        matmul_same(&p, &d, first, matmul_run(&p, &d, how), "again");
    }
    free(first);
    matmul_free(&d);
}

MATMUL_TEST_MAIN(cmocka_unit_test(every_tile_gives_the_bits_of_the_kernel_for_any_rows),
                 cmocka_unit_test(what_is_planned_gives_the_bits_of_the_kernel_for_any_rows),
                 cmocka_unit_test(a_gated_product_is_the_product_and_then_its_activation),
                 cmocka_unit_test(a_hundred_runs_give_the_same_bits))
