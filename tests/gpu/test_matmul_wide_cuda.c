/* Products of prompts: bit for bit what the kernel for every number of rows gives. */
#include "base/bf16.h"
#include "device/ops_cuda.h"
#include "quant/matmul_internal_cuda.h"
#include "quant/wide/matmul_wide_cuda.h"
#include "tests/support/gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX 2048u

enum kind { F32, BF16, ADDED, GATED }; /* what becomes of the sums */

struct product {
    uint32_t max_rows, live, n, k;
    enum kind kind;
    bool bias;
    size_t in_pad, out_pad; /* elements between rows */
};

static struct {
    struct rp_gpu_step step;
    struct rp_cuda_limits limits;
    struct rp_arena memory;
    uint32_t random;
} env = {.random = 1};

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

static float random_value(void) {
    env.random ^= env.random << 13;
    env.random ^= env.random >> 17;
    env.random ^= env.random << 5;
    return (float)(int32_t)env.random * 0x1p-31f;
}

/* (rows, cols + pad) of bf16; NaN between the rows and in rows from live on. */
static void *random_matrix(uint32_t rows, uint32_t live, uint32_t cols, size_t pad) {
    size_t stride = cols + pad;
    uint16_t *data = malloc(rows * stride * 2);
    for (uint32_t row = 0; row < rows; row++)
        for (size_t c = 0; c < stride; c++)
            data[row * stride + c] =
                row < live && c < cols ? rp_f32_to_bf16(random_value()) : 0xFFFF;
    void *device = rp_gpu_upload(data, rows * stride * 2);
    free(data);
    return device;
}

static void *random_f32(size_t count, float scale) {
    float *data = malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        data[i] = random_value() * scale;
    void *device = rp_gpu_upload(data, count * sizeof(float));
    free(data);
    return device;
}

static void set_live(uint32_t live) {
    env.step.host.counts->token_count = live;
    env.step.host.counts->logit_row_count = 0;
    rp_gpu_step_upload(&env.step);
}

struct data {
    struct rp_matrix weight;
    void *in, *bias, *old; /* old: (max_rows, out stride) f32 */
    size_t out_count, out_bytes;
    unsigned char *workspace;
    size_t workspace_bytes;
};

static struct data make_data(const struct product *p) {
    struct data d = {.weight = {.rows = p->n, .cols = p->k, .dtype = RP_DTYPE_BF16}};
    d.weight.data = random_matrix(p->n, p->n, p->k, 0);
    d.in = random_matrix(p->max_rows, p->live, p->k, p->in_pad);
    d.bias = random_f32(p->n, 1);
    d.out_count = p->max_rows * ((p->kind == GATED ? p->n / 2 : p->n) + p->out_pad);
    d.out_bytes = d.out_count * (p->kind == BF16 || p->kind == GATED ? 2 : 4);
    d.old = p->kind == ADDED ? random_f32(d.out_count, 8) : NULL;
    d.workspace_bytes = rp_matmul_cuda_workspace_bytes(&env.limits, ROWS_MAX, p->n);
    d.workspace = rp_gpu_zeroed(d.workspace_bytes);
    return d;
}

static void *make_out(const struct data *d) {
    if (!d->old)
        return rp_gpu_poisoned(d->out_bytes);
    unsigned char *bytes = malloc(d->out_bytes);
    rp_gpu_download(bytes, d->old, d->out_bytes);
    void *out = rp_gpu_upload(bytes, d->out_bytes);
    free(bytes);
    return out;
}

static struct rp_matmul_cuda describe(const struct product *p, const struct data *d, void *out) {
    struct rp_cuda_limits limits = env.limits;
    if (rp_gpu_is_tiny())
        limits.sm_count = 5; /* a block has several tiles all the same */
    return (struct rp_matmul_cuda){
        .rows = {.step = env.step.device, .rows = RP_ROWS_TOKEN, .max_rows = p->max_rows},
        .limits = limits,
        .weight = &d->weight,
        .bias = p->bias ? d->bias : NULL,
        .in = d->in,
        .in_stride = p->k + p->in_pad,
        .out = {.data = out,
                .stride = d->out_count / p->max_rows,
                .dtype = p->kind == BF16 || p->kind == GATED ? RP_DTYPE_BF16 : RP_DTYPE_F32},
        .accumulate = p->kind == ADDED,
        .gated = p->kind == GATED,
        .fn = p->n % 32 ? RP_ACTIVATION_SILU : RP_ACTIVATION_GELU_TANH,
        .workspace = d->workspace,
        .workspace_bytes = d->workspace_bytes};
}

static unsigned char *finish(const struct rp_cuda_launch *launch, const struct data *d, void *out,
                             uint32_t times) {
    for (uint32_t i = 0; i < times; i++)
        assert_int_equal(launch->run(launch->args, NULL), 0);
    rp_gpu_synchronize();
    unsigned char *result = malloc(d->out_bytes);
    rp_gpu_download(result, out, d->out_bytes);
    return result;
}

/* All bytes of out, as the kernel for every number of rows leaves them. */
static unsigned char *expected(const struct product *p, const struct data *d) {
    struct rp_matmul_tile tile = {.tokens = 128,
                                  .rows = 128,
                                  .boxes = 1,
                                  .order = RP_MATMUL_ORDER_WAVES,
                                  .shared_bytes = env.limits.shared_bytes_block};
    void *out = make_out(d), *sums = out;
    struct rp_matmul_cuda op = describe(p, d, out);
    if (p->kind == GATED) {
        sums = rp_gpu_poisoned((size_t)p->max_rows * p->n * sizeof(float));
        op.gated = false;
        op.out = (struct rp_values){sums, p->n, RP_DTYPE_F32};
    }
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials;
    struct rp_error err = {0};
    if (rp_matmul_cuda_plan_tile(&op, &tile, rp_matmul_cuda_segment(p->n, p->k, p->kind == GATED),
                                 &env.memory, &launch, &partials, &err) != RP_OK)
        fail_msg("%s", err.text);
    if (p->kind == GATED) {
        assert_int_equal(launch.run(launch.args, NULL), 0);
        struct rp_activation_cuda *activation = rp_arena_alloc(&env.memory, sizeof *activation);
        *activation = (struct rp_activation_cuda){.rows = op.rows,
                                                  .in = op.out,
                                                  .out = describe(p, d, out).out,
                                                  .cols = p->n / 2,
                                                  .fn = op.fn};
        launch = (struct rp_cuda_launch){"activation", rp_activation_cuda_run, activation};
    }
    return finish(&launch, d, out, 1);
}

static unsigned char *wide(const struct product *p, const struct data *d, uint32_t cols,
                           uint32_t times) {
    void *out = make_out(d);
    struct rp_matmul_cuda op = describe(p, d, out);
    struct rp_cuda_launch launch;
    struct rp_error err = {0};
    assert_true(rp_matmul_wide_cuda_fits(&op));
    if (rp_matmul_wide_cuda_plan(&op, cols, rp_matmul_cuda_segment(p->n, p->k, p->kind == GATED),
                                 &env.memory, &launch, &err) != RP_OK)
        fail_msg("%s", err.text);
    return finish(&launch, d, out, times);
}

static void free_all(void) {
    assert_true(rp_gpu_canaries_hold());
    rp_gpu_free_all();
    rp_arena_reset(&env.memory);
}

static const struct product products[] = {
    {512, 512, 1024, 1024, F32, false, 0, 0},   {300, 257, 1344, 2056, F32, true, 8, 4},
    {300, 300, 1000, 4096, ADDED, false, 0, 0}, {511, 511, 1000, 520, BF16, false, 0, 0},
    {1000, 1000, 648, 1032, BF16, true, 0, 8},  {1000, 511, 4096, 1096, ADDED, false, 8, 4},
    {512, 0, 640, 512, F32, false, 0, 0},       {513, 513, 130, 200, F32, true, 0, 1},
    {300, 299, 999, 1544, F32, false, 0, 0},    {2048, 1025, 264, 328, BF16, true, 0, 0},
    {512, 512, 2048, 4096, GATED, false, 0, 0}, {300, 257, 1008, 2056, GATED, false, 8, 8},
    {1000, 1000, 16, 72, GATED, false, 0, 0},   {512, 301, 336, 1032, GATED, false, 0, 0},
    {1024, 1024, 272, 264, GATED, false, 0, 1},
};

/* What a tiny run takes for it: as it is in every other respect. */
static struct product shrunk(struct product p) {
    p.max_rows = RP_MIN(p.max_rows, 384 + p.max_rows % 2);
    p.live = RP_MIN(p.live, p.max_rows);
    p.n = p.n > 336 ? 320 + p.n % 16 : p.n;
    p.k = p.k > 264 ? 256 + p.k % 16 : p.k;
    return p;
}

static void every_tile_gives_the_bits_of_the_general_kernel(void **state) {
    (void)state;
    static const uint32_t cols[] = {128, 192, 224, 256};
    for (size_t i = 0; i < RP_ARRAY_COUNT(products); i++) {
        struct product small = shrunk(products[i]);
        const struct product *p = rp_gpu_is_tiny() ? &small : &products[i];
        struct data d = make_data(p);
        set_live(p->live);
        unsigned char *want = expected(p, &d);
        for (size_t t = 0; t < RP_ARRAY_COUNT(cols); t++) {
            unsigned char *got = wide(p, &d, cols[t], 1);
            if (memcmp(want, got, d.out_bytes) != 0)
                fail_msg("product %zu: tiles of %u outputs: other bits", i, cols[t]);
            free(got);
        }
        free(want);
        free_all();
    }
}

/* Through the plan, and again and again: totals and boxes of one tile must not reach another. */
static void many_tiles_in_a_row_give_the_same_bits(void **state) {
    (void)state;
    static const struct product many[] = {{2048, 2048, 4096, 4096, F32, false, 0, 0},
                                          {2048, 2047, 6144, 1032, BF16, true, 0, 0},
                                          {1024, 1024, 8192, 2048, GATED, false, 0, 0}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(many); i++) {
        bool tiny = rp_gpu_is_tiny();
        struct product p = tiny ? shrunk(many[i]) : many[i];
        struct data d = make_data(&p);
        set_live(p.live);
        unsigned char *want = expected(&p, &d);
        unsigned char *got = wide(&p, &d, 0, tiny ? 2 : 20);
        assert_memory_equal(want, got, d.out_bytes);
        free(got);
        free(want);
        free_all();
    }
}

static void a_row_does_not_depend_on_its_company(void **state) {
    (void)state;
    struct product p = {1000, 1000, 1008, 2056, GATED, false, 0, 0};
    uint32_t step = 61;
    if (rp_gpu_is_tiny()) {
        p.n = 336;
        p.k = 72;
        step = 488;
    }
    struct data d = make_data(&p);
    unsigned char *in = d.in;
    size_t row_bytes = d.out_bytes / p.max_rows;
    set_live(p.live);
    unsigned char *all = wide(&p, &d, 0, 1);
    for (uint32_t live = 257; live < 1000; live += step) {
        uint32_t first = live * 37 % (1000 - live);
        struct product some = p;
        some.max_rows = RP_MIN((uint32_t)RP_ALIGN_UP(live, 64), 1000 - first);
        some.live = live;
        d.in = in + (size_t)first * p.k * 2;
        d.out_bytes = some.max_rows * row_bytes;
        d.out_count = d.out_bytes / 2;
        set_live(live);
        unsigned char *got = wide(&some, &d, 0, 1);
        if (memcmp(all + first * row_bytes, got, live * row_bytes) != 0)
            fail_msg("%u rows from %u on: other bits", live, first);
        free(got);
    }
    free(all);
    free_all();
}

/* Usage: [PATTERN of test names] */
int main(int argc, char **argv) {
    if (rp_gpu_skip_code())
        return 77;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_gives_the_bits_of_the_general_kernel),
        cmocka_unit_test(many_tiles_in_a_row_give_the_same_bits),
        cmocka_unit_test(a_row_does_not_depend_on_its_company),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
