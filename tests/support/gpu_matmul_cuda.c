#include "tests/support/gpu_matmul.h"

#include "base/bf16.h"
#include "base/fp8.h"
#include "device/quantize_row.h"
#include "tests/support/test_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct matmul_env matmul_env;
static uint32_t random_state = 1;

int matmul_set_up(void **state) {
    (void)state;
    rp_gpu_step_open_rows(&matmul_env.step, MATMUL_ROWS_MAX);
    rp_gpu_limits(&matmul_env.limits);
    return 0;
}

int matmul_tear_down(void **state) {
    (void)state;
    rp_gpu_step_close(&matmul_env.step);
    rp_arena_deinit(&matmul_env.memory);
    return 0;
}

/* ---- operands ------------------------------------------------------------ */

float matmul_random(void) { return rp_test_next_value(&random_state); }

static float *random_floats(size_t count, float base, float spread) {
    float *data = malloc((count + 1) * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = base + spread * matmul_random();
    return data;
}

uint8_t *matmul_any_values(size_t count, enum rp_dtype dtype) {
    uint8_t *data = malloc(count);
    for (size_t i = 0; i < count; i++) {
        matmul_random();
        uint8_t value = (uint8_t)(random_state >> 16);
        data[i] = dtype == FP8 && (value & 0x7F) == 0x7F ? 0 : value;
    }
    return data;
}

static uint8_t random_quantized(enum rp_dtype dtype) {
    float value = matmul_random();
    return dtype == INT8 ? (uint8_t)(int8_t)lrintf(value * 127) : rp_f32_to_fp8(value * 448);
}

/* A scale that brings quantized values to about 1. */
static float scale_of(enum rp_dtype dtype) { return 1 / (dtype == INT8 ? 127.0f : 448.0f); }

static bool has_plain_rows(const struct matmul_case *p) { return p->plain || p->dtype == BF16; }

uint32_t matmul_outputs(const struct matmul_case *p) { return p->gated ? p->n / 2 : p->n; }

/* In the unit of the plans: columns, for 8 bits pairs of columns. */
static uint32_t segment_units(const struct matmul_case *p) {
    uint32_t units = p->dtype == BF16 ? p->k : p->k / 2;
    return p->segment ? p->segment : rp_matmul_cuda_segment(p->n, units, p->gated || p->gate_up);
}

uint32_t matmul_segment(const struct matmul_case *p) {
    return segment_units(p) * (p->dtype == BF16 ? 1 : 2);
}

float matmul_weight_value(const struct matmul_case *p, const struct matmul_data *d, size_t at) {
    if (p->dtype == BF16)
        return rp_bf16_to_f32(((const uint16_t *)(const void *)d->weight)[at]);
    return p->dtype == INT8 ? (int8_t)d->weight[at] : rp_fp8_to_f32(d->weight[at]);
}

static struct rp_cuda_rows rows_of(const struct matmul_case *p) {
    return (struct rp_cuda_rows){
        .step = matmul_env.step.device, .rows = RP_ROWS_TOKEN, .max_rows = p->max_rows};
}

void matmul_set_live(uint32_t live) {
    matmul_env.step.host.counts->token_count = live;
    matmul_env.step.host.counts->logit_row_count = 0;
    rp_gpu_step_upload(&matmul_env.step);
}

/* Replaces the live rows of `plain` by the norm's output. */
static void make_normed(const struct matmul_case *p, struct matmul_data *d) {
    d->residual_stride = p->k + 4;
    size_t count = p->max_rows * d->residual_stride;
    float *residual = random_floats(count, 0, 3), *weight = random_floats(p->k, 1, 0.5f);
    for (size_t i = 0; i < count; i++)
        if (i / d->residual_stride >= p->live || i % d->residual_stride >= p->k)
            residual[i] = NAN;
    d->residual = rp_gpu_upload(residual, count * sizeof(float));
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
    rp_gpu_download(d->plain, d->plain_device, p->max_rows * d->in_stride * 2);
    free(residual);
    free(weight);
}

/* Rows in bf16. For 8 bits each row has a different magnitude, and the second row is all zeros. */
static void make_plain(const struct matmul_case *p, struct matmul_data *d) {
    size_t count = p->max_rows * d->in_stride;
    d->plain = malloc(count * 2);
    for (size_t row = 0; row < p->max_rows; row++) {
        float size = p->dtype == BF16 ? 1 : ldexpf(1, (int)(matmul_random() * 20));
        bool is_zero = row == 1 && p->dtype != BF16;
        for (size_t c = 0; c < d->in_stride; c++)
            d->plain[row * d->in_stride + c] = row >= p->live || c >= p->k ? 0xFFFF
                                               : is_zero                   ? 0
                                                         : rp_f32_to_bf16(size * matmul_random());
    }
    d->plain_device = rp_gpu_upload(d->plain, count * 2);
    if (p->source == NORMED)
        make_normed(p, d);
}

/* Quantized rows: random, or `plain` quantized by rp_quantize_row. */
static void make_quantized(const struct matmul_case *p, struct matmul_data *d) {
    size_t bytes = p->max_rows * d->in_stride;
    d->in = malloc(bytes);
    d->in_scales = random_floats(p->max_rows, scale_of(p->dtype), scale_of(p->dtype) / 2);
    memset(d->in, 0xFF, bytes); /* NaN in FP8 */
    for (size_t row = 0; row < p->max_rows; row++) {
        uint8_t *values = d->in + row * d->in_stride;
        if (row >= p->live)
            d->in_scales[row] = NAN;
        else if (p->source != READY)
            d->in_scales[row] = rp_quantize_row(d->plain + row * d->in_stride, RP_DTYPE_BF16, p->k,
                                                p->dtype, values);
        for (size_t c = 0; c < p->k && row < p->live && p->source == READY; c++)
            values[c] = random_quantized(p->dtype);
    }
    d->in_device = rp_gpu_upload(d->in, bytes);
    d->in_scales_device = rp_gpu_upload(d->in_scales, p->max_rows * sizeof(float));
}

static void make_weight(const struct matmul_case *p, struct matmul_data *d) {
    size_t count = (size_t)p->n * p->k;
    d->matrix = (struct rp_matrix){.rows = p->n, .cols = p->k, .dtype = p->dtype};
    if (p->dtype == BF16) {
        uint16_t *weight = malloc(count * 2);
        for (size_t i = 0; i < count; i++)
            weight[i] = rp_f32_to_bf16(matmul_random());
        d->weight = (uint8_t *)weight;
        d->matrix.data = rp_gpu_upload(weight, count * 2);
        return;
    }
    d->weight = p->plain ? matmul_any_values(count, p->dtype) : malloc(count);
    for (size_t i = 0; i < count && !p->plain; i++)
        d->weight[i] = random_quantized(p->dtype);
    d->matrix.scale_kind = p->block_scales ? RP_SCALE_BLOCK_128 : RP_SCALE_CHANNEL;
    d->matrix.input = p->plain ? RP_INPUT_PLAIN : RP_INPUT_QUANTIZED;
    size_t scales = rp_matrix_scale_count(&d->matrix);
    d->weight_scales = random_floats(scales, scale_of(p->dtype), scale_of(p->dtype) / 2);
    d->matrix.data = rp_gpu_upload(d->weight, count);
    d->matrix.scales = rp_gpu_upload(d->weight_scales, scales * sizeof(float));
}

struct matmul_data matmul_make(const struct matmul_case *p) {
    uint32_t in_pad = p->exact_pads ? p->in_pad : 16;
    uint32_t out_pad = p->exact_pads || p->out_pad ? p->out_pad : 3;
    struct matmul_data d = {.in_stride = p->k + in_pad, .out_stride = matmul_outputs(p) + out_pad};
    matmul_set_live(p->live);
    make_weight(p, &d);
    if (has_plain_rows(p) || p->source != READY)
        make_plain(p, &d);
    if (p->dtype != BF16)
        make_quantized(p, &d);
    d.bias = random_floats(p->n, 0, p->dtype == BF16 ? 1 : 4);
    d.bias_device = rp_gpu_upload(d.bias, p->n * sizeof(float));
    size_t count = p->max_rows * d.out_stride;
    d.old = random_floats(count, 0, 8);
    for (size_t i = 0; i < count; i++)
        if (i / d.out_stride >= p->live || i % d.out_stride >= matmul_outputs(p))
            memset(&d.old[i], 0xFF, sizeof d.old[i]);
    d.workspace_bytes = rp_matmul_cuda_workspace_bytes(&matmul_env.limits, MATMUL_ROWS_MAX, p->n);
    if (p->dtype != BF16) /* partial sums must fit with few SMs too */
        d.workspace_bytes = RP_MAX(d.workspace_bytes, (size_t)8 << 20);
    d.workspace = rp_gpu_zeroed(d.workspace_bytes);
    return d;
}

void matmul_free(struct matmul_data *d) {
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

/* ---- running ------------------------------------------------------------ */

struct rp_matmul_cuda matmul_describe(const struct matmul_case *p, const struct matmul_data *d,
                                      bool makes) {
    bool plain = has_plain_rows(p);
    struct rp_matmul_cuda op = {.rows = rows_of(p),
                                .limits = matmul_env.limits,
                                .weight = &d->matrix,
                                .bias = p->bias ? d->bias_device : NULL,
                                .in = plain ? d->plain_device : d->in_device,
                                .in_stride = d->in_stride,
                                .in_scales = plain ? NULL : d->in_scales_device,
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

static void plan(const struct matmul_case *p, const struct rp_matmul_cuda *op,
                 const struct matmul_how *how, struct rp_cuda_launch *launch,
                 struct rp_cuda_partials *partials) {
    struct rp_arena *memory = &matmul_env.memory;
    struct rp_error err = {0};
    uint32_t segment = segment_units(p);
    int status;
    if (how->wide && p->dtype == BF16)
        assert_true(rp_matmul_wide_cuda_fits(op));
    if (how->rows)
        status = rp_matmul_cuda_plan_rows(op, segment, memory, launch, &err);
    else if (how->tile)
        status = rp_matmul_cuda_plan_tile(op, how->tile, segment, memory, launch, partials, &err);
    else if (how->mid)
        status = rp_matmul_mid_plan_tile(op, how->mid, segment, memory, launch, partials, &err);
    else if (how->wide)
        status = rp_matmul_wide_cuda_plan(op, how->wide_cols, segment, memory, launch, &err);
    else
        status = rp_matmul_cuda_plan(op, memory, launch, partials, &err);
    if (status != RP_OK)
        fail_msg("(%u rows, %u, %u): %s", p->max_rows, p->n, p->k, err.text);
}

/* Every byte around the live outputs is still 0xFF. */
static void check_untouched(const struct matmul_case *p, const struct matmul_data *d,
                            const unsigned char *raw, size_t element) {
    static const unsigned char poison[] = {0xFF, 0xFF, 0xFF, 0xFF};
    for (size_t row = 0; row < p->max_rows; row++)
        for (size_t c = row < p->live ? matmul_outputs(p) : 0; c < d->out_stride; c++)
            if (memcmp(raw + (row * d->out_stride + c) * element, poison, element) != 0)
                fail_msg("(%u of %u rows, %u, %u): row %zu, column %zu was written", p->live,
                         p->max_rows, p->n, p->k, row, c);
}

static void add_partials(const struct matmul_case *p, const struct matmul_data *d,
                         const struct rp_cuda_partials *partials, float *result) {
    size_t bytes = partials->count * partials->split_stride * sizeof(float);
    float *all = malloc(bytes);
    rp_gpu_download(all, partials->data, bytes);
    for (size_t row = 0; row < p->live; row++)
        for (size_t c = 0; c < p->n; c++) {
            const float *from = all + row * partials->row_stride + c;
            float sum = from[0];
            for (uint32_t i = 1; i < partials->count; i++)
                sum += from[i * partials->split_stride];
            result[row * d->out_stride + c] = p->bias ? sum + d->bias[c] : sum;
        }
    assert_int_equal(partials->bias != NULL, p->bias);
    free(all);
}

float *matmul_run(const struct matmul_case *p, const struct matmul_data *d, struct matmul_how how) {
    size_t count = p->max_rows * d->out_stride, element = rp_dtype_bytes(p->out_dtype);
    struct rp_matmul_cuda op = matmul_describe(p, d, how.rows || how.makes);
    struct rp_values out = {.stride = d->out_stride, .dtype = p->out_dtype};
    out.data = p->accumulate ? rp_gpu_upload(d->old, count * sizeof(float))
                             : rp_gpu_poisoned(count * element);
    op.out = out;
    bool apart = p->gated && how.tile;
    if (apart) {
        op.gated = false;
        op.out = (struct rp_values){.stride = p->n};
        op.out.data = rp_gpu_poisoned((size_t)p->max_rows * p->n * sizeof(float));
    }
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials = {0};
    op.weight_scratch = rp_gpu_poisoned(rp_matmul_cuda_weight_scratch(&op));
    plan(p, &op, &how, &launch, &partials);
    for (uint32_t i = 0; i < RP_MAX(how.times, 1u); i++)
        assert_int_equal(launch.run(launch.args, NULL), 0);
    struct rp_activation_cuda activation = {
        .rows = op.rows, .in = op.out, .out = out, .cols = p->n / 2, .fn = p->fn};
    if (apart)
        assert_int_equal(rp_activation_cuda_run(&activation, NULL), 0);
    rp_gpu_synchronize();
    float *result = malloc((count + 1) * sizeof *result);
    unsigned char *raw = malloc(count * element + 1);
    rp_gpu_download(raw, out.data, count * element);
    check_untouched(p, d, raw, element);
    rp_to_f32(result, raw, p->out_dtype, count);
    free(raw);
    if (p->gated)
        assert_int_equal(partials.count, 0);
    if (partials.count > 0)
        add_partials(p, d, &partials, result);
    rp_arena_reset(&matmul_env.memory);
    return result;
}

/* ---- comparing ------------------------------------------------------------ */

void matmul_same(const struct matmul_case *p, const struct matmul_data *d, const float *expected,
                 float *got, const char *what) {
    for (size_t row = 0; row < p->live; row++)
        for (size_t c = 0; c < matmul_outputs(p); c++) {
            size_t i = row * d->out_stride + c;
            if (memcmp(&expected[i], &got[i], sizeof(float)) != 0)
                fail_msg("%s (%u of %u rows, %u, %u), %s: row %zu, column %zu: %a, not %a",
                         rp_dtype_name(p->dtype), p->live, p->max_rows, p->n, p->k, what, row, c,
                         (double)got[i], (double)expected[i]);
        }
    free(got);
}

void matmul_check_f64(const struct matmul_case *p, const struct matmul_data *d, const float *got) {
    double *column = malloc(p->k * sizeof(double)), difference = 0, size = 0;
    float *largest = calloc(p->live + 1, sizeof(float)),
          *worst = calloc(p->live + 1, sizeof(float));
    for (uint32_t c = 0; c < p->n; c++) {
        for (uint32_t i = 0; i < p->k; i++)
            column[i] = matmul_weight_value(p, d, (size_t)c * p->k + i);
        for (uint32_t row = 0; row < p->live; row++) {
            double sum = p->bias ? d->bias[c] : 0, value = got[row * d->out_stride + c];
            for (uint32_t i = 0; i < p->k; i++)
                sum += column[i] * rp_bf16_to_f32(d->plain[row * d->in_stride + i]);
            if (p->accumulate)
                sum += d->old[row * d->out_stride + c];
            assert_false(isnan(value));
            difference += (value - sum) * (value - sum);
            size += sum * sum;
            largest[row] = fmaxf(largest[row], (float)fabs(sum));
            worst[row] = fmaxf(worst[row], (float)fabs(value - sum));
        }
    }
    double error = sqrt(difference / (size > 0 ? size : 1));
    if (error > (p->out_dtype == RP_DTYPE_F32 ? 1e-5 : 4e-3))
        fail_msg("(%u of %u rows, %u, %u): error %g", p->live, p->max_rows, p->n, p->k, error);
    for (uint32_t row = 0; row < p->live; row++)
        if (worst[row] > 8 * largest[row] / 256)
            fail_msg("row %u: %g beside %g", row, (double)worst[row], (double)largest[row]);
    free(column);
    free(largest);
    free(worst);
}

static float fp8_values[256];

/* One output by the contract: INT8 bit for bit, FP8 as if sums were not rounded. */
static float scaled_output(const struct matmul_case *p, const struct matmul_data *d, size_t row,
                           size_t c) {
    size_t cols = matmul_segment(p);
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
    return p->out_dtype == RP_DTYPE_BF16 ? rp_round_bf16(total) : total;
}

void matmul_check_scaled(const struct matmul_case *p, const struct matmul_data *d,
                         const float *got) {
    double difference = 0, size = 0;
    for (int value = 0; value < 256; value++)
        fp8_values[value] = rp_fp8_to_f32((uint8_t)value);
    for (size_t row = 0; row < p->live; row++)
        for (size_t c = 0; c < p->n; c++) {
            float value = got[row * d->out_stride + c], expected = scaled_output(p, d, row, c);
            if (p->dtype == INT8 && memcmp(&expected, &value, sizeof expected) != 0)
                fail_msg("(%u rows, %u, %u): row %zu, column %zu: %a, not %a", p->max_rows, p->n,
                         p->k, row, c, (double)value, (double)expected);
            assert_false(isnan(value));
            difference += pow((double)value - expected, 2);
            size += (double)expected * expected;
        }
    double error = sqrt(difference / (size > 0 ? size : 1));
    double allowed = p->out_dtype == RP_DTYPE_BF16 ? 4e-3 : p->block_scales ? 1e-3 : 2.5e-3;
    if (error > allowed)
        fail_msg("(%u rows, %u, %u): error %g", p->max_rows, p->n, p->k, error);
}

/* ---- tiles and small sizes ------------------------------------------------------------ */

struct rp_matmul_tile matmul_tile(uint32_t tokens, uint32_t rows, uint32_t boxes, bool eager) {
    return (struct rp_matmul_tile){.tokens = tokens,
                                   .rows = rows,
                                   .boxes = boxes,
                                   .eager = eager,
                                   .shared_bytes = matmul_env.limits.shared_bytes_block};
}

struct rp_matmul_tile matmul_tile_8(uint32_t tokens) {
    return matmul_tile(tokens, 128, tokens < 128 ? 2 : 1, tokens < 128);
}

struct matmul_case matmul_shrunk_8(struct matmul_case p) {
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

void matmul_check_mid_tiles(const struct matmul_case *p, const struct matmul_data *d,
                            const float *expected, const struct rp_matmul_mid_tile *tiles,
                            size_t count, size_t index, uint32_t times) {
    for (size_t t = 0; t < count; t++)
        for (int variant = 0; variant < 3; variant++) {
            struct rp_matmul_mid_tile tile = tiles[t];
            if (p->max_rows > tile.tokens || (rp_gpu_is_tiny() && variant != (int)(index + t) % 3))
                continue;
            tile.shared_bytes = matmul_env.limits.shared_bytes_block;
            tile.partials = true;
            tile.stages = variant == 1 ? 2 : 0;
            tile.early = variant == 2 ? 1 : 0;
            char what[64];
            (void)snprintf(what, sizeof what, "%u of %u x %u, variant %d", tile.rows, tile.width,
                           tile.tokens, variant);
            struct matmul_how how = {.mid = &tile, .times = times};
            matmul_same(p, d, expected, matmul_run(p, d, how), what);
        }
}
