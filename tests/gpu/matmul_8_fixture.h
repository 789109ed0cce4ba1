/* matmul_8_fixture.h - products of FP8 and INT8 codes for tests on a card: random operands, their description, the
 * kernel that is asked for, its result. Results lie on poison; rows past the live ones are no numbers. Included by one
 * test program. */
#ifndef RP_TESTS_GPU_MATMUL_8_FIXTURE_H
#define RP_TESTS_GPU_MATMUL_8_FIXTURE_H

#include "base/bf16.h"
#include "base/fp8.h"
#include "device/ops_cuda.h"
#include "device/quantize_row.h"
#include "quant/matmul_internal_cuda.h"
#include "quant/mid/matmul_mid_internal_cuda.h"
#include "quant/wide/matmul_wide_cuda.h"
#include "tests/support/gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX 512u
#define FP8      RP_DTYPE_FP8_E4M3
#define INT8     RP_DTYPE_INT8

enum source { READY, NORMED, QUANTIZED };

struct product {
    uint32_t max_rows, live, n, k;
    enum rp_dtype dtype, out_dtype;
    bool block_scales, bias, accumulate, partials, gated, gate_up;
    bool plain;         /* W8A16: rows are bf16, codes any that are numbers */
    enum source source; /* of the rows, where the kernel for few rows is asked for */
    enum rp_activation fn;
    uint32_t segment;  /* in units; 0: as planned */
    uint32_t sm_count; /* that it is cut for; 0: the card's */
    uint32_t out_pad;  /* columns between rows of the result; 0: three */
    float weight_offset;
};

/* Which kernel: this tile's, the one for few rows, for 65 to 256 or for prompts (weights of a tile), or the planned
 * one. */
struct how {
    const struct rp_matmul_tile *tile;
    bool rows;
    const struct rp_matmul_mid_tile *mid;
    uint32_t wide;
    bool makes; /* the planned one makes the rows of p->source itself; `rows` always does */
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

static float *random_floats(size_t count, float base, float spread) {
    float *data = malloc((count + 1) * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = base + spread * random_value();
    return data;
}

/* Any that is a number. */
static inline uint8_t any_code(enum rp_dtype dtype) {
    random_value();
    uint8_t code = (uint8_t)(random_state >> 16);
    return dtype == FP8 && (code & 0x7F) == 0x7F ? 0 : code;
}

static uint8_t random_code(enum rp_dtype dtype) {
    float value = random_value();
    return dtype == INT8 ? (uint8_t)(int8_t)lrintf(value * 127) : rp_f32_to_fp8(value * 448);
}

/* Absolute, for values of about 1. */
static float scale_of(enum rp_dtype dtype) { return 1 / (dtype == INT8 ? 127.0f : 448.0f); }

/* On the host, and what of it lies on the card. */
struct data {
    uint8_t *weight, *in;
    uint16_t *plain; /* (max_rows, in_stride) bf16 that `in` was made of, where it was */
    float *weight_scales, *in_scales, *bias, *old;
    size_t in_stride, out_stride, residual_stride;
    struct rp_matrix matrix;
    void *in_device, *plain_device;
    float *in_scales_device, *bias_device, *residual, *norm_weight;
    unsigned char *workspace;
    size_t workspace_bytes;
};

static uint32_t outputs_of(const struct product *p) { return p->gated ? p->n / 2 : p->n; }

static struct rp_cuda_rows rows_of(const struct product *p) {
    return (struct rp_cuda_rows){
        .step = env.step.device, .rows = RP_ROWS_TOKEN, .max_rows = p->max_rows};
}

/* Rows in bf16: random ones of any size, or what the norm gives of random ones. The second is all zeros. */
static void make_plain(const struct product *p, struct data *d) {
    size_t count = p->max_rows * d->in_stride;
    d->plain = malloc(count * 2);
    for (size_t row = 0; row < p->max_rows; row++) {
        float size = ldexpf(1, (int)(random_value() * 20));
        for (size_t c = 0; c < d->in_stride; c++)
            d->plain[row * d->in_stride + c] = row >= p->live || c >= p->k ? 0xFFFF
                                               : row == 1                  ? 0
                                                          : rp_f32_to_bf16(size * random_value());
    }
    d->plain_device = rp_gpu_upload(d->plain, count * 2);
    if (p->source != NORMED)
        return;
    d->residual_stride = p->k + 4;
    float *residual = random_floats(p->max_rows * d->residual_stride, 0, 3);
    for (size_t i = 0; i < p->max_rows * d->residual_stride; i++)
        if (i / d->residual_stride >= p->live || i % d->residual_stride >= p->k)
            residual[i] = NAN;
    float *weight = random_floats(p->k, 1, 0.5f);
    d->residual = rp_gpu_upload(residual, p->max_rows * d->residual_stride * sizeof(float));
    d->norm_weight = rp_gpu_upload(weight, p->k * sizeof(float));
    struct rp_norm_cuda norm = {
        .rows = rows_of(p),
        .in = {.data = d->residual, .stride = d->residual_stride},
        .out = {.data = d->plain_device, .stride = d->in_stride, .dtype = RP_DTYPE_BF16},
        .weight = d->norm_weight,
        .cols = p->k,
        .group = p->k,
        .eps = 1e-5f,
        .weight_offset = p->weight_offset};
    assert_int_equal(rp_norm_cuda_run(&norm, NULL), 0);
    rp_gpu_download(d->plain, d->plain_device, count * 2);
    free(residual);
    free(weight);
}

static void make_rows(const struct product *p, struct data *d) {
    size_t bytes = p->max_rows * d->in_stride;
    d->in = malloc(bytes);
    d->in_scales = random_floats(p->max_rows, scale_of(p->dtype), scale_of(p->dtype) / 2);
    memset(d->in, 0xFF, bytes); /* NaN in FP8 */
    if (p->source != READY || p->plain)
        make_plain(p, d);
    for (size_t row = 0; row < p->max_rows; row++) {
        uint8_t *codes = d->in + row * d->in_stride;
        if (row >= p->live)
            d->in_scales[row] = NAN;
        else if (p->source != READY)
            d->in_scales[row] = rp_quantize_row(d->plain + row * d->in_stride, RP_DTYPE_BF16, p->k,
                                                p->dtype, codes);
        for (size_t c = 0; c < p->k && row < p->live && p->source == READY; c++)
            codes[c] = random_code(p->dtype);
    }
    d->in_device = rp_gpu_upload(d->in, bytes);
    d->in_scales_device = rp_gpu_upload(d->in_scales, p->max_rows * sizeof(float));
}

static struct data make_data(const struct product *p) {
    struct data d = {.in_stride = p->k + 16,
                     .out_stride = outputs_of(p) + (p->out_pad ? p->out_pad : 3)};
    size_t count = (size_t)p->n * p->k;
    env.step.host.counts->token_count = p->live;
    rp_gpu_step_upload(&env.step);
    d.weight = malloc(count);
    for (size_t i = 0; i < count; i++)
        d.weight[i] = p->plain ? any_code(p->dtype) : random_code(p->dtype);
    d.matrix =
        (struct rp_matrix){.rows = p->n,
                           .cols = p->k,
                           .dtype = p->dtype,
                           .scale_kind = p->block_scales ? RP_SCALE_BLOCK_128 : RP_SCALE_CHANNEL,
                           .input = p->plain ? RP_INPUT_PLAIN : RP_INPUT_QUANTIZED};
    size_t scales = rp_matrix_scale_count(&d.matrix);
    d.weight_scales = random_floats(scales, scale_of(p->dtype), scale_of(p->dtype) / 2);
    d.matrix.data = rp_gpu_upload(d.weight, count);
    d.matrix.scales = rp_gpu_upload(d.weight_scales, scales * sizeof(float));
    make_rows(p, &d);
    d.bias = random_floats(p->n, 0, 4);
    d.bias_device = rp_gpu_upload(d.bias, p->n * sizeof(float));
    d.old = random_floats(p->max_rows * d.out_stride, 0, 8);
    for (size_t i = 0; i < p->max_rows * d.out_stride; i++)
        if (i / d.out_stride >= p->live || i % d.out_stride >= outputs_of(p))
            d.old[i] = NAN;
    /* Partials must find room beside few multiprocessors too. */
    d.workspace_bytes =
        RP_MAX(rp_matmul_cuda_workspace_bytes(&env.limits, ROWS_MAX, p->n), (size_t)8 << 20);
    d.workspace = rp_gpu_zeroed(d.workspace_bytes);
    return d;
}

static void free_data(struct data *d) {
    assert_true(rp_gpu_canaries_hold());
    free(d->weight);
    free(d->in);
    free(d->plain);
    free(d->weight_scales);
    free(d->in_scales);
    free(d->bias);
    free(d->old);
    rp_gpu_free_all();
}

static struct rp_matmul_cuda describe(const struct product *p, const struct data *d, bool makes) {
    struct rp_matmul_cuda op = {.rows = rows_of(p),
                                .limits = env.limits,
                                .weight = &d->matrix,
                                .bias = p->bias ? d->bias_device : NULL,
                                .in = p->plain ? d->plain_device : d->in_device,
                                .in_stride = d->in_stride,
                                .in_scales = p->plain ? NULL : d->in_scales_device,
                                .accumulate = p->accumulate,
                                .partials_wanted = p->partials,
                                .gate_up = p->gated || p->gate_up,
                                .gated = p->gated,
                                .fn = p->fn,
                                .workspace = d->workspace,
                                .workspace_bytes = d->workspace_bytes};
    if (p->sm_count)
        op.limits.sm_count = p->sm_count;
    if (makes && p->source != READY) {
        op.in_scales = NULL;
        op.in = d->plain_device;
    }
    if (makes && p->source == NORMED) {
        op.in = NULL;
        op.norm = (struct rp_matmul_norm){.in = d->residual,
                                          .weight = d->norm_weight,
                                          .in_stride = d->residual_stride,
                                          .cols = p->k,
                                          .eps = 1e-5f,
                                          .weight_offset = p->weight_offset};
    }
    return op;
}

/* f32 of (max_rows, out_stride), partials summed up. */
static float *take(const struct product *p, const struct data *d, const struct rp_values *out,
                   const struct rp_cuda_partials *partials) {
    size_t count = p->max_rows * d->out_stride;
    float *result = malloc(count * sizeof *result);
    void *raw = malloc(count * sizeof(float));
    rp_gpu_download(raw, out->data, count * rp_dtype_bytes(out->dtype));
    rp_to_f32(result, raw, out->dtype, count);
    free(raw);
    if (partials->count > 0) {
        size_t bytes = partials->count * partials->split_stride * sizeof(float);
        float *all = malloc(bytes);
        rp_gpu_download(all, partials->data, bytes);
        for (size_t row = 0; row < p->live; row++) {
            for (size_t c = 0; c < p->n; c++) {
                const float *from = all + row * partials->row_stride + c;
                float sum = from[0];
                for (uint32_t i = 1; i < partials->count; i++)
                    sum += from[i * partials->split_stride];
                result[row * d->out_stride + c] = p->bias ? sum + d->bias[c] : sum;
            }
        }
        free(all);
    }
    rp_arena_reset(&env.memory);
    return result;
}

static float *run(const struct product *p, const struct data *d, struct how how) {
    size_t count = p->max_rows * d->out_stride;
    struct rp_matmul_cuda op = describe(p, d, how.rows || how.makes);
    struct rp_values out = {.stride = d->out_stride, .dtype = p->out_dtype};
    out.data = p->accumulate ? rp_gpu_upload(d->old, count * sizeof(float))
                             : rp_gpu_poisoned(count * rp_dtype_bytes(out.dtype));
    op.out = out;
    bool apart = p->gated && how.tile;
    if (apart) { /* the product, and the activation behind it */
        op.gated = false;
        op.out = (struct rp_values){.stride = p->n};
        op.out.data = rp_gpu_poisoned((size_t)p->max_rows * p->n * sizeof(float));
    }
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials = {0};
    struct rp_error err = {0};
    uint32_t segment = p->segment ? p->segment : rp_matmul_cuda_segment(p->n, p->k / 2, op.gate_up);
    int status =
        how.rows   ? rp_matmul_cuda_plan_rows(&op, segment, &env.memory, &launch, &err)
        : how.tile ? rp_matmul_cuda_plan_tile(&op, how.tile, segment, &env.memory, &launch,
                                              &partials, &err)
        : how.mid
            ? rp_matmul_mid_plan_tile(&op, how.mid, segment, &env.memory, &launch, &partials, &err)
        : how.wide ? rp_matmul_wide_cuda_plan(&op, how.wide, segment, &env.memory, &launch, &err)
                   : rp_matmul_cuda_plan(&op, &env.memory, &launch, &partials, &err);
    if (status != RP_OK)
        fail_msg("(%u rows, %u, %u): %s", p->max_rows, p->n, p->k, err.text);
    assert_int_equal(launch.run(launch.args, NULL), 0);
    struct rp_activation_cuda activation = {
        .rows = op.rows, .in = op.out, .out = out, .cols = p->n / 2, .fn = p->fn};
    if (apart)
        assert_int_equal(rp_activation_cuda_run(&activation, NULL), 0);
    rp_gpu_synchronize();
    return take(p, d, &out, &partials);
}

static void check_same(const struct product *p, const struct data *d, const float *expected,
                       float *got, const char *what) {
    for (size_t i = 0; i < p->max_rows * d->out_stride; i++)
        if (memcmp(&expected[i], &got[i], sizeof(float)))
            fail_msg("(%u rows, %u, %u) %s: row %zu, column %zu: %a, not %a", p->max_rows, p->n,
                     p->k, what, i / d->out_stride, i % d->out_stride, got[i], expected[i]);
    free(got);
}

static float fp8_values[256]; /* by code */

/* One output as the contract has it: of INT8 every bit, of FP8 as if sums were not rounded. */
static inline float truth(const struct product *p, const struct data *d, size_t row, size_t c) {
    size_t cols =
        2 * (size_t)(p->segment ? p->segment : rp_matmul_cuda_segment(p->n, p->k / 2, p->gate_up));
    float total = 0, xs = d->in_scales[row];
    for (size_t begin = 0; begin < p->k; begin += cols) {
        int32_t exact = 0;
        double sum = 0;
        const uint8_t *w = d->weight + c * p->k, *x = d->in + row * d->in_stride;
        for (size_t i = begin; i < p->k && i < begin + cols; i++) {
            if (p->dtype == INT8)
                exact += (int8_t)w[i] * (int8_t)x[i];
            else
                sum += (double)fp8_values[w[i]] * fp8_values[x[i]] *
                       d->weight_scales[p->block_scales ? c / 128 * RP_CEIL_DIV(p->k, 128) + i / 128
                                                        : c];
        }
        float part =
            p->dtype == INT8 ? (float)exact * (xs * d->weight_scales[c]) : (float)(sum * xs);
        total = begin == 0 ? part : total + part;
    }
    total = p->bias ? total + d->bias[c] : total;
    total = p->accumulate ? d->old[row * d->out_stride + c] + total : total;
    return p->out_dtype == RP_DTYPE_BF16 ? rp_bf16_to_f32(rp_f32_to_bf16(total)) : total;
}

/* Everything around the live outputs must be what it was: no number. */
static inline void check_truth(const struct product *p, const struct data *d, const float *result) {
    double difference = 0, size = 0;
    for (int code = 0; code < 256; code++)
        fp8_values[code] = rp_fp8_to_f32((uint8_t)code);
    for (size_t i = 0; i < p->max_rows * d->out_stride; i++) {
        size_t row = i / d->out_stride, c = i % d->out_stride;
        if (row >= p->live || c >= p->n) {
            assert_true(isnan(result[i]));
            continue;
        }
        float expected = truth(p, d, row, c);
        if (p->dtype == INT8 && memcmp(&expected, &result[i], sizeof expected))
            fail_msg("(%u rows, %u, %u): row %zu, column %zu: %a, not %a", p->max_rows, p->n, p->k,
                     row, c, result[i], expected);
        assert_false(isnan(result[i]));
        difference += pow((double)result[i] - expected, 2);
        size += (double)expected * expected;
    }
    double error = sqrt(difference / (size > 0 ? size : 1));
    double allowed = p->out_dtype == RP_DTYPE_BF16 ? 4e-3 : p->block_scales ? 1e-3 : 2.5e-3;
    if (error > allowed)
        fail_msg("(%u rows, %u, %u): error %g", p->max_rows, p->n, p->k, error);
}

static struct rp_matmul_tile tile_of(uint32_t tokens) {
    return (struct rp_matmul_tile){.tokens = tokens,
                                   .rows = 128,
                                   .boxes = tokens < 128 ? 2 : 1,
                                   .eager = tokens < 128,
                                   .shared_bytes = env.limits.shared_bytes_block};
}

/* Smaller, for tools that make a program a hundred times slower: fewer blocks of threads. */
static struct product shrunk(struct product p) {
    if (!rp_gpu_is_tiny())
        return p;
    uint32_t most = p.max_rows > 64 ? 272 : 700;
    if (p.n > most) {
        p.n = most + p.n % 16;
        p.sm_count = 5;
    }
    while (p.k >= 1024 && p.k % 256 == 0)
        p.k /= 2;
    if (p.segment > p.k / 2)
        p.segment = 0;
    return p;
}

#endif
