/* Products of few rows, where a block has its outputs over all of K, alone or with the norm before them and the
 * activation behind them: bit for bit what the kernels one after the other give. */
#include "base/bf16.h"
#include "device/ops_cuda.h"
#include "quant/matmul_internal_cuda.h"
#include "tests/support/gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX 64u

struct product {
    uint32_t max_rows, live, n, k, segment;
    uint32_t sm_count; /* that it is cut for */
    enum rp_dtype out_dtype;
    bool bias, accumulate, gated, normed;
    enum rp_activation fn;
    float weight_offset;
};

static struct {
    struct rp_gpu_step step;
    struct rp_cuda_limits limits;
    struct rp_arena memory;
} env;

static int set_up(void **state) {
    (void)state;
    struct rp_step_config config = {.slot_count = 1,
                                    .pages_per_slot = 1,
                                    .row_capacity = 1,
                                    .token_capacity = ROWS_MAX,
                                    .logit_row_capacity = ROWS_MAX,
                                    .edit_capacity = 1,
                                    .prompt_ring_capacity = 64};
    rp_gpu_step_open(&env.step, &config);
    rp_gpu_limits(&env.limits);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    rp_gpu_step_close(&env.step);
    rp_arena_deinit(&env.memory);
    return 0;
}

static uint32_t random_state = 1;
static float random_value(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return (float)(int32_t)random_state * 0x1p-31f;
}

static void *upload_f32(size_t count) {
    float *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = random_value();
    void *device = rp_gpu_upload(data, count * sizeof *data);
    free(data);
    return device;
}

static void *upload_bf16(size_t count) {
    uint16_t *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = rp_f32_to_bf16(random_value());
    void *device = rp_gpu_upload(data, count * sizeof *data);
    free(data);
    return device;
}

/* Rows past the live ones, and what lies between rows, are not numbers. */
static void *upload_tokens(const struct product *p, size_t stride, enum rp_dtype dtype) {
    size_t count = p->max_rows * stride;
    float *values = malloc(count * sizeof *values);
    uint16_t *raw = malloc(count * sizeof *raw);
    for (size_t i = 0; i < count; i++) {
        values[i] = i / stride < p->live && i % stride < p->k ? random_value() : NAN;
        raw[i] = rp_f32_to_bf16(values[i]);
    }
    void *device = dtype == RP_DTYPE_F32 ? rp_gpu_upload(values, count * sizeof *values)
                                         : rp_gpu_upload(raw, count * sizeof *raw);
    free(values);
    free(raw);
    return device;
}

/* What both ways read. */
struct data {
    struct rp_matrix weight;
    void *in;
    float *bias, *residual, *norm_weight, *old;
    size_t in_stride, residual_stride, out_stride;
    unsigned char *workspace;
    size_t workspace_bytes;
};

static struct data make_data(const struct product *p) {
    struct data d = {.in_stride = p->k + 8, .residual_stride = p->k + 4, .out_stride = p->n + 3};
    d.weight = (struct rp_matrix){.rows = p->n, .cols = p->k, .dtype = RP_DTYPE_BF16};
    d.weight.data = upload_bf16((size_t)p->n * p->k);
    d.in = upload_tokens(p, d.in_stride, RP_DTYPE_BF16);
    d.residual = upload_tokens(p, d.residual_stride, RP_DTYPE_F32);
    d.norm_weight = upload_f32(p->k);
    d.bias = upload_f32(p->n);
    d.old = upload_f32(p->max_rows * d.out_stride);
    d.workspace_bytes = rp_matmul_cuda_workspace_bytes(&env.limits, ROWS_MAX, p->n);
    d.workspace = rp_gpu_zeroed(d.workspace_bytes);
    env.step.host.counts->token_count = p->live;
    rp_gpu_step_upload(&env.step);
    return d;
}

static struct rp_matmul_cuda describe(const struct product *p, const struct data *d) {
    return (struct rp_matmul_cuda){
        .rows = {.step = env.step.device, .rows = RP_ROWS_TOKEN, .max_rows = p->max_rows},
        .limits = env.limits,
        .weight = &d->weight,
        .bias = p->bias ? d->bias : NULL,
        .in = d->in,
        .in_stride = d->in_stride,
        .accumulate = p->accumulate,
        .workspace = d->workspace,
        .workspace_bytes = d->workspace_bytes};
}

/* Where results go: not numbers, or what is added to. */
static struct rp_values make_out(const struct product *p, const struct data *d) {
    size_t bytes = p->max_rows * d->out_stride * rp_dtype_bytes(p->out_dtype);
    struct rp_values out = {
        .data = rp_gpu_poisoned(bytes), .stride = d->out_stride, .dtype = p->out_dtype};
    if (p->accumulate) {
        void *old = malloc(bytes);
        rp_gpu_download(old, d->old, bytes);
        out.data = rp_gpu_upload(old, bytes);
        free(old);
    }
    return out;
}

static void *take(const struct product *p, const struct rp_values *out) {
    size_t bytes = p->max_rows * out->stride * rp_dtype_bytes(out->dtype);
    void *result = malloc(bytes);
    rp_gpu_synchronize();
    rp_gpu_download(result, out->data, bytes);
    rp_arena_reset(&env.memory);
    return result;
}

/* One kernel after the other. */
static void *run_apart(const struct product *p, const struct data *d) {
    struct rp_matmul_cuda op = describe(p, d);
    struct rp_values out = make_out(p, d), sums = out;
    struct rp_values normed = {.data = rp_gpu_poisoned((size_t)p->max_rows * d->in_stride * 2),
                               .stride = d->in_stride,
                               .dtype = RP_DTYPE_BF16};
    struct rp_norm_cuda norm = {.rows = op.rows,
                                .in = {.data = d->residual, .stride = d->residual_stride},
                                .out = normed,
                                .weight = d->norm_weight,
                                .cols = p->k,
                                .group = p->k,
                                .eps = 1e-5f,
                                .weight_offset = p->weight_offset};
    if (p->normed) {
        assert_int_equal(rp_norm_cuda_run(&norm, NULL), 0);
        op.in = normed.data;
    }
    if (p->gated)
        sums = (struct rp_values){
            .data = rp_gpu_poisoned((size_t)p->max_rows * p->n * sizeof(float)), .stride = p->n};
    op.out = sums;
    struct rp_matmul_tile tile = {.tokens = p->max_rows <= 32 ? 32 : 64,
                                  .rows = 64,
                                  .boxes = 2,
                                  .eager = true,
                                  .shared_bytes = env.limits.shared_bytes_block};
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials;
    struct rp_error err = {0};
    if (rp_matmul_cuda_plan_tile(&op, &tile, p->segment, &env.memory, &launch, &partials, &err) !=
        RP_OK)
        fail_msg("%s", err.text);
    assert_int_equal(launch.run(launch.args, NULL), 0);
    struct rp_activation_cuda activation = {
        .rows = op.rows, .in = sums, .out = out, .cols = p->n / 2, .fn = p->fn};
    if (p->gated)
        assert_int_equal(rp_activation_cuda_run(&activation, NULL), 0);
    return take(p, &out);
}

static void *run_at_once(const struct product *p, const struct data *d) {
    struct rp_matmul_cuda op = describe(p, d);
    struct rp_values out = make_out(p, d);
    op.out = out;
    op.limits.sm_count = p->sm_count;
    op.gated = p->gated;
    op.fn = p->fn;
    if (p->normed) {
        op.in = NULL;
        op.norm = (struct rp_matmul_norm){.in = d->residual,
                                          .weight = d->norm_weight,
                                          .in_stride = d->residual_stride,
                                          .cols = p->k,
                                          .eps = 1e-5f,
                                          .weight_offset = p->weight_offset};
    }
    struct rp_cuda_launch launch;
    struct rp_error err = {0};
    if (rp_matmul_cuda_plan_rows(&op, p->segment, &env.memory, &launch, &err) != RP_OK)
        fail_msg("(%u rows, %u, %u): %s", p->max_rows, p->n, p->k, err.text);
    assert_int_equal(launch.run(launch.args, NULL), 0);
    return take(p, &out);
}

/* The same tiles, segments and kernels, with fewer blocks of threads and a shorter K. */
static struct product shrunk(struct product p) {
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

/* Everything is compared, what must stay untouched too. */
static void check_same(const struct product *products, size_t count) {
    static size_t turn;
    size_t first = rp_gpu_is_tiny() ? turn++ % count : 0;
    for (size_t i = first; i < (rp_gpu_is_tiny() ? first + 1 : count); i++) {
        struct product small = shrunk(products[i]);
        const struct product *p = rp_gpu_is_tiny() ? &small : &products[i];
        struct data d = make_data(p);
        unsigned char *expected = run_apart(p, &d), *got = run_at_once(p, &d);
        size_t element = rp_dtype_bytes(p->out_dtype), values = p->max_rows * d.out_stride;
        for (size_t at = 0; at < values; at++)
            if (memcmp(expected + at * element, got + at * element, element))
                fail_msg("case %zu: row %zu, column %zu differs", i, at / d.out_stride,
                         at % d.out_stride);
        assert_true(rp_gpu_canaries_hold());
        free(expected);
        free(got);
        rp_gpu_free_all();
    }
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
        struct product p = {.max_rows = cases[i][0],
                            .live = cases[i][1],
                            .n = cases[i][2],
                            .k = cases[i][3],
                            .segment = cases[i][4],
                            .sm_count = cases[i][5]};
        struct product variants[] = {p, p, p};
        variants[1].bias = variants[1].accumulate = variants[2].bias = true;
        variants[2].out_dtype = RP_DTYPE_BF16;
        check_same(variants, 3);
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
        struct product p = {.max_rows = cases[i][0],
                            .live = cases[i][1],
                            .n = cases[i][2],
                            .k = cases[i][3],
                            .segment = cases[i][4],
                            .sm_count = cases[i][5],
                            .out_dtype = RP_DTYPE_BF16,
                            .gated = true};
        struct product variants[] = {p, p};
        variants[1].fn = RP_ACTIVATION_GELU_TANH;
        check_same(variants, 2);
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
        struct product p = {.max_rows = cases[i][0],
                            .live = cases[i][1],
                            .n = cases[i][2],
                            .k = cases[i][3],
                            .segment = cases[i][4],
                            .sm_count = cases[i][5],
                            .normed = true};
        struct product variants[] = {p, p};
        variants[1].gated = p.n % 2 == 0;
        variants[1].out_dtype = RP_DTYPE_BF16;
        variants[1].weight_offset = 1.0f;
        check_same(variants, 2);
    }
}

static void what_does_not_fit_is_left_to_several_kernels(void **state) {
    (void)state;
    struct product p = {.max_rows = 4, .n = 256, .k = 4096};
    struct data d = {.weight = {.rows = 256, .cols = 4096, .dtype = RP_DTYPE_BF16},
                     .in_stride = 4096};
    struct rp_matmul_cuda op = describe(&p, &d);
    op.gate_up = op.gated = true;
    op.out.dtype = RP_DTYPE_BF16;
    op.norm = (struct rp_matmul_norm){.cols = 4096, .in_stride = 4096};
    assert_true(rp_matmul_cuda_gates(&op) && rp_matmul_cuda_norms(&op));
    op.rows.max_rows = 5;
    assert_true(rp_matmul_cuda_gates(&op) && !rp_matmul_cuda_norms(&op));
    op.rows.max_rows = 4;
    d.weight.rows = 255;
    assert_false(rp_matmul_cuda_gates(&op));
    d.weight.rows = 256;
    op.norm.cols = d.weight.cols = 4104;
    assert_false(rp_matmul_cuda_gates(&op) || rp_matmul_cuda_norms(&op));
    op.norm.cols = d.weight.cols = 4096;
    op.out.dtype = RP_DTYPE_F32;
    assert_false(rp_matmul_cuda_gates(&op));
    op.limits.compute_capability = 80;
    assert_false(rp_matmul_cuda_norms(&op));
}

/* Usage: [PATTERN of test names] */
int main(int argc, char **argv) {
    if (rp_gpu_skip_code())
        return 77;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_that_own_whole_sums_give_the_same_bits),
        cmocka_unit_test(a_gated_product_is_the_product_and_its_activation),
        cmocka_unit_test(a_normed_product_is_the_norm_and_the_product),
        cmocka_unit_test(what_does_not_fit_is_left_to_several_kernels),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
