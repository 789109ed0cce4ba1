/* Products of 65 to 256 rows: bit for bit what the kernel for any number of rows gives, gated ones what that
 * and the activation behind it give. */
#include "base/bf16.h"
#include "device/ops_cuda.h"
#include "quant/matmul_internal_cuda.h"
#include "quant/mid/matmul_mid_internal_cuda.h"
#include "tests/support/gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOKENS_MAX 256u
#define N_MAX      6144u

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
                                    .token_capacity = TOKENS_MAX,
                                    .logit_row_capacity = TOKENS_MAX,
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

static uint32_t random_state = 7;
static float random_value(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return (float)(int32_t)random_state * 0x1p-31f;
}

struct product {
    uint32_t max_rows, live, n, k, segment; /* 0: as the matrix has it */
    size_t in_stride, out_stride;           /* 0: as narrow as can be */
    bool gate_up;
};

/* Weights, tokens and bias on the device; tokens past the live ones and between the rows are NaN. */
struct data {
    struct rp_matrix matrix;
    struct rp_matmul_cuda op; /* plain, f32 */
};

static struct data make_data(const struct product *p) {
    size_t stride = p->in_stride ? p->in_stride : p->k;
    struct data d = {.matrix = {.rows = p->n, .cols = p->k, .dtype = RP_DTYPE_BF16}};
    uint16_t *weight = malloc((size_t)p->n * p->k * 2), *in = malloc(p->max_rows * stride * 2);
    float *bias = malloc(p->n * sizeof(float));
    for (size_t i = 0; i < (size_t)p->n * p->k; i++)
        weight[i] = rp_f32_to_bf16(random_value());
    for (size_t row = 0; row < p->max_rows; row++)
        for (size_t c = 0; c < stride; c++)
            in[row * stride + c] =
                row < p->live && c < p->k ? rp_f32_to_bf16(random_value()) : 0xFFFF;
    for (uint32_t i = 0; i < p->n; i++)
        bias[i] = random_value();
    d.matrix.data = rp_gpu_upload(weight, (size_t)p->n * p->k * 2);
    size_t workspace_bytes = rp_matmul_cuda_workspace_bytes(&env.limits, TOKENS_MAX, N_MAX);
    d.op = (struct rp_matmul_cuda){
        .gate_up = p->gate_up,
        .rows = {.step = env.step.device, .rows = RP_ROWS_TOKEN, .max_rows = p->max_rows},
        .limits = env.limits,
        .bias = rp_gpu_upload(bias, p->n * sizeof(float)),
        .in = rp_gpu_upload(in, p->max_rows * stride * 2),
        .in_stride = stride,
        .workspace = rp_gpu_zeroed(workspace_bytes),
        .workspace_bytes = workspace_bytes};
    if (rp_gpu_is_tiny())
        d.op.limits.sm_count = 5;
    env.step.host.counts->token_count = p->live;
    env.step.host.counts->logit_row_count = 0;
    rp_gpu_step_upload(&env.step);
    free(weight);
    free(in);
    free(bias);
    return d;
}

/* (live, cols) as f32 of what lies in (max_rows, stride); everything else must still be poisoned. */
static float *collect(const struct product *p, const void *out, enum rp_dtype dtype, size_t stride,
                      uint32_t cols) {
    size_t count = p->max_rows * stride;
    void *raw = malloc(count * rp_dtype_bytes(dtype));
    float *all = malloc(count * sizeof(float));
    float *result = malloc(((size_t)p->live * cols + 1) * sizeof(float));
    rp_gpu_download(raw, out, count * rp_dtype_bytes(dtype));
    rp_to_f32(all, raw, dtype, count);
    for (size_t row = 0; row < p->max_rows; row++)
        for (size_t c = 0; c < stride; c++) {
            if (row < p->live && c < cols)
                result[row * cols + c] = all[row * stride + c];
            else
                assert_true(isnan(all[row * stride + c]));
        }
    free(raw);
    free(all);
    return result;
}

/* How a product is to be run: NULL, NULL: as planned. */
struct how {
    const struct rp_matmul_tile *any;
    const struct rp_matmul_mid_tile *mid;
    bool partials, bias;
    uint32_t times;
};

static float *run_product(const struct product *p, const struct data *d, const struct how *how) {
    struct rp_matmul_cuda op = d->op;
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials;
    struct rp_error err = {0};
    size_t stride = p->out_stride ? p->out_stride : p->n;
    uint32_t segment = p->segment ? p->segment : rp_matmul_cuda_segment(p->n, p->k, p->gate_up);
    op.weight = &d->matrix;
    op.bias = how->bias ? op.bias : NULL;
    op.partials_wanted = how->partials;
    op.out = (struct rp_values){.data = rp_gpu_poisoned(p->max_rows * stride * sizeof(float)),
                                .stride = stride,
                                .dtype = RP_DTYPE_F32};
    int status = how->mid   ? rp_matmul_mid_plan_tile(&op, how->mid, segment, &env.memory, &launch,
                                                      &partials, &err)
                 : how->any ? rp_matmul_cuda_plan_tile(&op, how->any, segment, &env.memory, &launch,
                                                       &partials, &err)
                            : rp_matmul_cuda_plan(&op, &env.memory, &launch, &partials, &err);
    if (status != RP_OK)
        fail_msg("(%u rows, %u, %u): %s", p->max_rows, p->n, p->k, err.text);
    for (uint32_t i = 0; i < RP_MAX(how->times, 1u); i++)
        assert_int_equal(launch.run(launch.args, NULL), 0);
    rp_gpu_synchronize();
    float *result = NULL;
    if (partials.count == 0) {
        result = collect(p, op.out.data, RP_DTYPE_F32, stride, p->n);
    } else {
        size_t count = partials.count * partials.split_stride;
        float *all = malloc(count * sizeof(float)), *bias = malloc(p->n * sizeof(float));
        rp_gpu_download(all, partials.data, count * sizeof(float));
        rp_gpu_download(bias, d->op.bias, p->n * sizeof(float));
        result = malloc(((size_t)p->live * p->n + 1) * sizeof(float));
        for (size_t row = 0; row < p->live; row++)
            for (size_t c = 0; c < p->n; c++) {
                float sum = all[row * partials.row_stride + c];
                for (uint32_t i = 1; i < partials.count; i++)
                    sum += all[i * partials.split_stride + row * partials.row_stride + c];
                result[row * p->n + c] = partials.bias ? sum + bias[c] : sum;
            }
        free(all);
        free(bias);
    }
    rp_arena_reset(&env.memory);
    return result;
}

/* The kernel for any number of rows, in tiles of 64 weight rows and as many tokens. */
static float *run_reference(const struct product *p, const struct data *d, bool bias) {
    struct rp_matmul_tile tile = {.tokens = 64,
                                  .rows = 64,
                                  .boxes = 2,
                                  .eager = true,
                                  .shared_bytes = env.limits.shared_bytes_block};
    return run_product(p, d, &(struct how){.any = &tile, .bias = bias});
}

static void same_bits(const float *a, const float *b, const struct product *p, uint32_t cols,
                      const char *what) {
    size_t count = 0, first = 0;
    for (size_t i = (size_t)p->live * cols; i-- > 0;)
        if (memcmp(a + i, b + i, sizeof *a) != 0) {
            count++;
            first = i;
        }
    if (count)
        fail_msg("%s (%u of %u rows, %u, %u): %zu differ, the first in row %zu, column %zu: %g, %g",
                 what, p->live, p->max_rows, p->n, p->k, count, first / cols, first % cols,
                 a[first], b[first]);
}

static const struct product products[] = {
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
static bool is_left_out(const struct product *p) {
    return rp_gpu_is_tiny() && (size_t)p->n * p->k > 600 * 1024;
}

static void every_tile_gives_the_bits_of_the_kernel_for_any_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(products); i++) {
        const struct product *p = &products[i];
        if (p->n % 8 != 0 || is_left_out(p)) /* not of 8: left to the other kernel */
            continue;
        struct data d = make_data(p);
        float *truth = run_reference(p, &d, false);
        for (size_t t = 0; t < RP_ARRAY_COUNT(tiles); t++)
            for (int variant = 0; variant < 3; variant++) {
                struct rp_matmul_mid_tile tile = tiles[t];
                if (p->max_rows > tile.tokens || (rp_gpu_is_tiny() && variant != (int)(i + t) % 3))
                    continue;
                tile.shared_bytes = env.limits.shared_bytes_block;
                tile.partials = true;
                tile.stages = variant == 1 ? 2 : 0;
                tile.early = variant == 2 ? 1 : 0;
                uint32_t times = rp_gpu_is_tiny() ? 1 : 3;
                struct how how = {.mid = &tile, .partials = tile.partials, .times = times};
                float *result = run_product(p, &d, &how);
                char what[64];
                (void)snprintf(what, sizeof what, "%u of %u x %u, variant %d", tile.rows,
                               tile.width, tile.tokens, variant);
                same_bits(truth, result, p, p->n, what);
                free(result);
            }
        assert_true(rp_gpu_canaries_hold());
        free(truth);
        rp_gpu_free_all();
    }
}

static void what_is_planned_gives_the_bits_of_the_kernel_for_any_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(products); i++) {
        struct product p = products[i];
        if (is_left_out(&p))
            continue;
        p.segment = 0;
        struct data d = make_data(&p);
        for (int variant = 0; variant < 4; variant++) {
            bool bias = variant & 2;
            float *truth = run_reference(&p, &d, bias);
            struct how how = {.partials = variant & 1, .bias = bias, .times = 2};
            float *result = run_product(&p, &d, &how);
            same_bits(truth, result, &p, p.n, "as planned");
            free(result);
            free(truth);
        }
        assert_true(rp_gpu_canaries_hold());
        rp_gpu_free_all();
    }
}

/* The product, then the activation's own kernel; bf16. */
static float *run_apart(const struct product *p, const struct data *d, enum rp_activation fn,
                        size_t stride) {
    float *sums = run_reference(p, d, false);
    float *padded = calloc((size_t)p->max_rows * p->n, sizeof(float));
    memcpy(padded, sums, (size_t)p->live * p->n * sizeof(float));
    struct rp_activation_cuda args = {
        .rows = d->op.rows,
        .in = {.data = rp_gpu_upload(padded, (size_t)p->max_rows * p->n * sizeof(float)),
               .stride = p->n,
               .dtype = RP_DTYPE_F32},
        .out = {.data = rp_gpu_poisoned(p->max_rows * stride * 2),
                .stride = stride,
                .dtype = RP_DTYPE_BF16},
        .cols = p->n / 2,
        .fn = fn};
    assert_int_equal(rp_activation_cuda_run(&args, NULL), 0);
    rp_gpu_synchronize();
    free(sums);
    free(padded);
    return collect(p, args.out.data, RP_DTYPE_BF16, stride, p->n / 2);
}

static void a_gated_product_is_the_product_and_then_its_activation(void **state) {
    (void)state;
    static const struct product gated[] = {
        {128, 128, 4096, 1024, 0, 0, 0, true}, {65, 65, 16, 64, 0, 0, 0, true},
        {99, 97, 1040, 1096, 0, 0, 0, true},   {72, 0, 512, 512, 0, 0, 0, true},
        {128, 77, 6144, 264, 0, 272, 0, true}, {256, 255, 2064, 520, 0, 0, 0, true},
        {130, 130, 448, 1032, 0, 0, 0, true},  {128, 128, 3200, 4096, 0, 0, 0, true},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(gated) * 2; i++) {
        const struct product *p = &gated[i / 2];
        if (is_left_out(p) && p->max_rows != 99)
            continue;
        enum rp_activation fn = i % 2 ? RP_ACTIVATION_GELU_TANH : RP_ACTIVATION_SILU;
        struct data d = make_data(p);
        size_t stride = p->n / 2 + (i / 2 % 2 ? 6 : 8);
        struct rp_matmul_cuda op = d.op;
        op.weight = &d.matrix;
        op.bias = NULL;
        op.gated = true;
        op.fn = fn;
        op.out = (struct rp_values){.data = rp_gpu_poisoned(p->max_rows * stride * 2),
                                    .stride = stride,
                                    .dtype = RP_DTYPE_BF16};
        if (!rp_matmul_cuda_gates(&op))
            fail_msg("(%u rows, %u, %u) is not gated", p->max_rows, p->n, p->k);
        struct rp_cuda_launch launch;
        struct rp_cuda_partials partials;
        struct rp_error err = {0};
        int status = rp_matmul_cuda_plan(&op, &env.memory, &launch, &partials, &err);
        if (status != RP_OK)
            fail_msg("(%u rows, %u, %u): %s", p->max_rows, p->n, p->k, err.text);
        assert_int_equal(partials.count, 0);
        for (int times = 0; times < 3; times++)
            assert_int_equal(launch.run(launch.args, NULL), 0);
        rp_gpu_synchronize();
        float *result = collect(p, op.out.data, RP_DTYPE_BF16, stride, p->n / 2);
        float *truth = run_apart(p, &d, fn, stride);
        same_bits(truth, result, p, p->n / 2, "gated");
        assert_true(rp_gpu_canaries_hold());
        free(result);
        free(truth);
        rp_arena_reset(&env.memory);
        rp_gpu_free_all();
    }
}

static void a_hundred_runs_give_the_same_bits(void **state) {
    (void)state;
    bool tiny = rp_gpu_is_tiny();
    uint32_t n = tiny ? 512 : 4096;
    struct product p = {.max_rows = 128, .live = 128, .n = n, .k = n};
    struct data d = make_data(&p);
    float *first = run_reference(&p, &d, false);
    for (int i = 0; i < 4; i++) {
        float *again = run_product(&p, &d, &(struct how){.partials = true, .times = tiny ? 1 : 25});
        same_bits(first, again, &p, p.n, "again");
        free(again);
    }
    free(first);
    rp_gpu_free_all();
}

/* Usage: [PATTERN of test names] */
int main(int argc, char **argv) {
    if (rp_gpu_skip_code())
        return 77;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_gives_the_bits_of_the_kernel_for_any_rows),
        cmocka_unit_test(what_is_planned_gives_the_bits_of_the_kernel_for_any_rows),
        cmocka_unit_test(a_gated_product_is_the_product_and_then_its_activation),
        cmocka_unit_test(a_hundred_runs_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
