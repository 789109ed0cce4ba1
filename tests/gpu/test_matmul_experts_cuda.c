/* Goal: on a GPU, experts' GEMMs give each choice of each row the scalar reference's numbers, with
 * the same bits in every bucket, tile and company, and write nothing else.
 * Method: every type of weights, sizes with and without tensor cores; experts without rows, with
 * one, with all; the work list is made by EXPERT_ORDER's kernel. Outputs, rows past the live ones
 * and columns between rows are NaN. */
#include "base/bf16.h"
#include "base/memory.h"
#include "device/ops_cuda.h"
#include "device/quantize_row.h"
#include "quant/experts/matmul_experts_cuda.h"
#include "quant/matmul_experts.h"
#include "quant/tiles.h"
#include "tests/support/gpu_test.h"
#include "tests/support/random_blocks.h"
#include "tests/support/test_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum choice { SPREAD, ONE, SKEWED }; /* random; all rows on one expert; half of them */

struct shape {
    uint32_t count, used, rows, each, k; /* each: a multiple of 32, for the reference */
    enum rp_dtype dtype;
    enum rp_scale_kind scales;
    enum rp_matrix_input input;
    enum choice choice;
    bool bias; /* with gpt-oss's activation */
};

#define PLAIN_BF16 RP_DTYPE_BF16, RP_SCALE_NONE, RP_INPUT_PLAIN
#define W8A8(type) type, RP_SCALE_CHANNEL, RP_INPUT_QUANTIZED
#define MXFP4      RP_DTYPE_BLOCKS, RP_SCALE_NONE, RP_INPUT_BF16
#define FP8        RP_DTYPE_FP8_E4M3
#define INT8       RP_DTYPE_INT8

static const struct shape shapes[] = {
    {5, 2, 1, 64, 64, PLAIN_BF16, SPREAD, false},
    {128, 8, 1, 192, 256, PLAIN_BF16, SPREAD, false},
    {128, 8, 7, 192, 256, PLAIN_BF16, SPREAD, false},
    {128, 8, 33, 224, 144, PLAIN_BF16, SPREAD, false},
    {128, 8, 300, 96, 80, PLAIN_BF16, SPREAD, false},
    {16, 3, 65, 256, 400, PLAIN_BF16, ONE, false},
    {6, 2, 300, 320, 528, PLAIN_BF16, SPREAD, false},
    {6, 2, 131, 160, 64, PLAIN_BF16, ONE, false},
    {40, 4, 200, 32, 16, PLAIN_BF16, SKEWED, false},
    {7, 7, 37, 32, 48, PLAIN_BF16, SPREAD, false},
    {9, 2, 290, 224, 1040, PLAIN_BF16, SKEWED, false},
    {2, 1, 700, 96, 208, PLAIN_BF16, SPREAD, false},
    {3, 2, 570, 128, 392, PLAIN_BF16, SPREAD, true},
    {16, 2, 400, 1536, 144, PLAIN_BF16, SPREAD, false},
    {12, 2, 21, 160, 272, W8A8(FP8), SPREAD, false},
    {4, 2, 150, 288, 528, W8A8(FP8), SKEWED, false},
    {12, 2, 40, 96, 400, W8A8(INT8), SPREAD, false},
    {4, 2, 260, 160, 144, W8A8(INT8), SKEWED, false},
    {2, 1, 640, 160, 272, W8A8(FP8), SPREAD, false},
    {5, 2, 19, 32, 33, PLAIN_BF16, SPREAD, false},
    {5, 2, 19, 96, 40, RP_DTYPE_F32, RP_SCALE_NONE, RP_INPUT_PLAIN, SPREAD, false},
    {3, 1, 17, 256, 272, FP8, RP_SCALE_BLOCK_128, RP_INPUT_QUANTIZED, SPREAD, false},
    {5, 2, 17, 32, 48, FP8, RP_SCALE_CHANNEL, RP_INPUT_PLAIN, SPREAD, false},
    {5, 2, 17, 32, 51, W8A8(INT8), SPREAD, false},
    {5, 2, 17, 96, 48, INT8, RP_SCALE_CHANNEL, RP_INPUT_PLAIN, SPREAD, false},
    {20, 6, 300, 96, 48, PLAIN_BF16, SPREAD, true},
    {6, 2, 90, 160, 208, PLAIN_BF16, SKEWED, true},
    {12, 2, 21, 160, 272, W8A8(FP8), SPREAD, true},
    {4, 2, 70, 96, 144, W8A8(INT8), SKEWED, true},
    {5, 2, 19, 32, 33, PLAIN_BF16, SPREAD, true},
    {32, 4, 1, 192, 2880, MXFP4, SPREAD, true},
    {32, 4, 33, 352, 608, MXFP4, SPREAD, true},
    {7, 7, 37, 32, 32, MXFP4, SPREAD, false},
    {16, 3, 65, 256, 416, MXFP4, ONE, false},
    {6, 2, 66, 160, 288, MXFP4, SKEWED, true},
    {16, 4, 60, 352, 224, MXFP4, SKEWED, false},
    {6, 2, 300, 320, 544, MXFP4, SPREAD, true},
    {6, 2, 131, 160, 64, MXFP4, ONE, true},
    {9, 2, 290, 224, 1056, MXFP4, SKEWED, true},
};

static struct rp_gpu_step step;
static struct rp_cuda_limits limits;
static struct rp_arena memory;
static uint32_t state_of_random = 1, seed_of_blocks = 815;

static int set_up(void **state) {
    (void)state;
    rp_gpu_step_open_rows(&step, 2048);
    rp_gpu_limits(&limits);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    rp_gpu_step_close(&step);
    rp_arena_deinit(&memory);
    return 0;
}

static float next_value(void) { return rp_test_next_value(&state_of_random); }
static uint32_t draw(uint32_t below) {
    next_value();
    return (state_of_random >> 8) % below;
}

/* A GEMM's operands on the host and on the GPU. in: a row for each row (gated) or choice. */
struct data {
    const struct shape *s;
    bool gated;
    struct rp_matrix host, device;
    float *bias;               /* (rows of the weight) */
    unsigned char *in;         /* bf16 or f32 */
    float *ids;                /* (rows, used) */
    uint32_t in_rows, outputs; /* outputs: columns of out */
    enum rp_dtype in_dtype, out_dtype;
};

static bool is_w8a8(const struct shape *s) {
    return rp_dtype_bytes(s->dtype) == 1 && s->input == RP_INPUT_QUANTIZED;
}

/* MXFP4: in blocks on the host, in tiles on the GPU. */
static void make_blocks(struct data *d) {
    const struct shape *s = d->s;
    struct rp_matrix rows = {.rows = s->count * s->each,
                             .cols = s->k,
                             .dtype = RP_DTYPE_BLOCKS,
                             .input = RP_INPUT_BF16,
                             .part_count = 1};
    rows.parts[0] = (struct rp_matrix_part){.rows = rows.rows, .type = RP_BLOCK_MXFP4};
    size_t bytes = rp_matrix_bytes(&rows), each = rp_block_info(RP_BLOCK_MXFP4).bytes;
    unsigned char *data = rp_alloc_aligned(RP_ALIGN_UP(bytes, 64), 64);
    for (size_t at = 0; at < bytes; at += each)
        random_block(RP_BLOCK_MXFP4, data + at, &seed_of_blocks);
    rows.data = data;
    d->host = d->device = rows;
    d->device.layout = RP_LAYOUT_TILES;
    unsigned char *tiles = rp_alloc(rp_matrix_bytes(&d->device));
    assert_int_equal(rp_tiles_pack(&rows, tiles), RP_OK);
    d->device.data = rp_gpu_upload(tiles, rp_matrix_bytes(&d->device));
    rp_free(tiles);
}

static void make_weights(struct data *d) {
    const struct shape *s = d->s;
    if (s->dtype == RP_DTYPE_BLOCKS) {
        make_blocks(d);
        return;
    }
    d->host = (struct rp_matrix){.rows = s->count * s->each,
                                 .cols = s->k,
                                 .dtype = s->dtype,
                                 .scale_kind = s->scales,
                                 .input = s->input};
    size_t bytes = rp_matrix_bytes(&d->host), scales = rp_matrix_scale_count(&d->host);
    size_t values = (size_t)d->host.rows * s->k;
    d->host.data = rp_alloc_aligned(RP_ALIGN_UP(bytes, 64), 64);
    float *scale = scales ? rp_alloc_aligned(RP_ALIGN_UP(scales * sizeof(float), 64), 64) : NULL;
    for (size_t i = 0; i < values; i++)
        if (rp_dtype_bytes(s->dtype) == 1) /* no NaN of FP8 */
            ((uint8_t *)d->host.data)[i] = (uint8_t)(draw(256) & 0xBF);
        else
            rp_test_put(d->host.data, s->dtype, i, next_value());
    for (size_t i = 0; i < scales; i++)
        scale[i] = 0.01f + (float)draw(64) / 512.0f;
    d->host.scales = scale;
    d->device = d->host;
    d->device.data = rp_gpu_upload(d->host.data, bytes);
    d->device.scales = scales ? rp_gpu_upload(scale, scales * sizeof(float)) : NULL;
}

static void make_ids(struct data *d) {
    const struct shape *s = d->s;
    d->ids = rp_alloc((size_t)s->rows * s->used * sizeof(float));
    for (uint32_t row = 0; row < s->rows; row++) {
        bool taken[128] = {false};
        for (uint32_t r = 0; r < s->used; r++) {
            uint32_t id = draw(s->count);
            if (r == 0 && (s->choice == ONE || (s->choice == SKEWED && row % 2)))
                id = s->count / 2;
            while (taken[id])
                id = (id + 1) % s->count;
            taken[id] = true;
            d->ids[row * s->used + r] = (float)id;
        }
    }
}

static struct data make(const struct shape *s, bool gated) {
    struct data d = {.s = s, .gated = gated};
    bool plain = s->dtype == RP_DTYPE_F32 || s->dtype == RP_DTYPE_BF16;
    d.in_rows = s->rows * (gated ? 1 : s->used);
    d.outputs = gated ? s->each / 2 : s->each;
    d.in_dtype = plain ? s->dtype : RP_DTYPE_BF16;
    d.out_dtype = s->dtype == RP_DTYPE_F32 ? RP_DTYPE_F32 : RP_DTYPE_BF16;
    make_weights(&d);
    make_ids(&d);
    d.bias = s->bias ? rp_alloc((size_t)s->count * s->each * sizeof *d.bias) : NULL;
    for (size_t i = 0; d.bias && i < (size_t)s->count * s->each; i++)
        d.bias[i] = 4 * next_value();
    size_t count = (size_t)d.in_rows * s->k;
    d.in = rp_alloc(count * 4);
    for (size_t i = 0; i < count; i++)
        rp_test_put(d.in, d.in_dtype, i, next_value());
    return d;
}

static void free_data(struct data *d) {
    rp_gpu_synchronize();
    assert_true(rp_gpu_canaries_hold());
    rp_gpu_free_all();
    rp_matrix_deinit(&d->host);
    rp_free(d->bias);
    rp_free(d->in);
    rp_free(d->ids);
}

/* The order of rows [first, first + rows), by the CPU. */
static int32_t *order_of(const struct data *d, uint32_t first, uint32_t rows) {
    const struct shape *s = d->s;
    static const struct rp_cpu_worker single = {0, 1, NULL};
    struct rp_live_counts counts = {.token_count = rows};
    int32_t *order = rp_alloc((s->count + 1 + (size_t)rows * s->used) * sizeof *order);
    struct rp_expert_order_args args = {
        .step = {.counts = &counts},
        .ids = {d->ids + (size_t)first * s->used, s->used, RP_DTYPE_F32},
        .order = order,
        .experts = {s->count, s->used}};
    rp_expert_order_cpu(&args, &single);
    return order;
}

/* Outputs by choice, f32. */
static float *by_choice(const struct data *d, const int32_t *order, uint32_t rows,
                        const unsigned char *out, size_t stride) {
    size_t choices = (size_t)rows * d->s->used;
    float *values = rp_alloc(choices * d->outputs * sizeof *values);
    size_t size = rp_dtype_bytes(d->out_dtype);
    for (size_t i = 0; i < choices; i++) {
        size_t choice = (size_t)order[d->s->count + 1 + i], from = d->gated ? i : choice;
        rp_to_f32(values + choice * d->outputs, out + from * stride * size, d->out_dtype,
                  d->outputs);
    }
    return values;
}

static enum rp_activation activation_of(const struct shape *s) {
    return s->bias ? RP_ACTIVATION_SWIGLU_CLAMPED : RP_ACTIVATION_SILU;
}

/* The scalar reference's outputs of all rows, by choice. */
static float *reference(const struct data *d) {
    const struct shape *s = d->s;
    static const struct rp_cpu_worker single = {0, 1, NULL};
    size_t choices = (size_t)s->rows * s->used, size = rp_dtype_bytes(d->in_dtype);
    int32_t *order = order_of(d, 0, s->rows);
    unsigned char *in = rp_alloc(choices * s->k * size);
    unsigned char *out = rp_alloc(choices * d->outputs * 4);
    for (size_t i = 0; i < (d->gated ? s->rows : choices); i++) {
        size_t from = d->gated ? i : (size_t)order[s->count + 1 + i];
        memcpy(in + i * s->k * size, d->in + from * s->k * size, s->k * size);
    }
    struct rp_expert_matmul_args args = {.gemm = {.weight = &d->host,
                                                  .bias = d->bias,
                                                  .in = in,
                                                  .out = out,
                                                  .in_stride = s->k,
                                                  .out_stride = d->outputs,
                                                  .out_dtype = d->out_dtype,
                                                  .gated = d->gated,
                                                  .fn = activation_of(s)},
                                         .experts = s->count,
                                         .order = order,
                                         .in_divisor = d->gated ? s->used : 0,
                                         .by_choice = !d->gated,
                                         .isa = RP_ISA_SCALAR};
    args.gemm.scratch_bytes = rp_expert_matmul_scratch_bytes(&d->host, s->rows);
    args.gemm.scratch = rp_alloc_aligned(RP_ALIGN_UP(args.gemm.scratch_bytes + 64, 64), 64);
    rp_expert_matmul(&args, &single);
    float *values = by_choice(d, order, s->rows, out, d->outputs);
    rp_free_aligned(args.gemm.scratch);
    rp_free(in);
    rp_free(out);
    rp_free(order);
    return values;
}

/* Input rows on the GPU as the GEMM reads them, NaN around them; W8A8: quantized, with scales. */
static void upload_rows(const struct data *d, uint32_t first, uint32_t rows, uint32_t max_rows,
                        const int32_t *order, struct rp_matmul_experts_cuda *op) {
    const struct shape *s = d->s;
    bool codes = is_w8a8(s);
    size_t size = codes ? 1 : rp_dtype_bytes(d->in_dtype), stride = RP_ALIGN_UP(s->k, 16u) + 16;
    size_t each = d->gated ? 1 : s->used, count = max_rows * each;
    unsigned char *to = rp_alloc(count * stride * size);
    float *scales = rp_alloc(count * sizeof *scales);
    memset(to, 0xFF, count * stride * size);
    memset(scales, 0xFF, count * sizeof *scales);
    for (size_t i = 0; i < rows * each; i++) {
        size_t own = d->gated ? i : (size_t)order[s->count + 1 + i];
        const unsigned char *from =
            d->in + (first * each + own) * s->k * rp_dtype_bytes(d->in_dtype);
        if (codes)
            scales[i] = rp_quantize_row(from, d->in_dtype, s->k, s->dtype, to + i * stride);
        else
            memcpy(to + i * stride * size, from, s->k * size);
    }
    op->in = rp_gpu_upload(to, count * stride * size);
    op->in_stride = stride;
    op->in_scales = codes ? rp_gpu_upload(scales, count * sizeof *scales) : NULL;
    rp_free(to);
    rp_free(scales);
}

/* EXPERT_ORDER's kernel, in place of which the GEMM's order and work list come. */
static void order_rows(const struct data *d, uint32_t first, uint32_t max_rows,
                       struct rp_matmul_experts_cuda *op) {
    const struct shape *s = d->s;
    struct rp_experts experts = {s->count, s->used};
    size_t choices = (size_t)max_rows * s->used;
    float *ids = rp_alloc(choices * sizeof *ids);
    for (size_t i = 0; i < choices; i++)
        ids[i] =
            first * s->used + i < (size_t)s->rows * s->used ? d->ids[first * s->used + i] : NAN;
    struct rp_expert_order_cuda args = {
        .rows = {.step = step.device, .rows = RP_ROWS_TOKEN, .max_rows = max_rows},
        .ids = {rp_gpu_upload(ids, choices * sizeof *ids), s->used, RP_DTYPE_F32},
        .order = rp_gpu_poisoned((s->count + 1 + choices) * sizeof(int32_t)),
        .experts = experts,
        .tile_rows = rp_matmul_experts_tile_rows(experts, max_rows, s->dtype == RP_DTYPE_BLOCKS)};
    args.tiles = rp_gpu_poisoned((1 + rp_expert_tiles_most(experts, max_rows, args.tile_rows)) *
                                 sizeof *args.tiles);
    assert_int_equal(rp_expert_order_cuda_run(&args, NULL), 0);
    op->order = args.order;
    op->tiles = args.tiles;
    rp_free(ids);
}

/* The outputs of rows [first, first + rows) by choice, in a bucket of max_rows. */
static float *run(const struct data *d, uint32_t first, uint32_t rows, uint32_t max_rows,
                  uint32_t tile_cols) {
    const struct shape *s = d->s;
    size_t size = rp_dtype_bytes(d->out_dtype);
    size_t stride = d->outputs + (s->rows % 2 ? 5 : 8); /* even: rows at multiples of 16 bytes */
    size_t choices = (size_t)max_rows * s->used, bytes = choices * stride * size;
    int32_t *order = order_of(d, first, rows);
    step.host.counts->token_count = rows;
    rp_gpu_step_upload(&step);
    struct rp_matmul_experts_cuda op = {
        .rows = {.step = step.device, .rows = RP_ROWS_TOKEN, .max_rows = (uint32_t)choices},
        .limits = limits,
        .weight = &d->device,
        .bias = d->bias ? rp_gpu_upload(d->bias, d->host.rows * sizeof *d->bias) : NULL,
        .experts = {s->count, s->used},
        .in_divisor = d->gated ? s->used : 0,
        .by_choice = !d->gated,
        .out = {rp_gpu_poisoned(bytes), stride, d->out_dtype},
        .gated = d->gated,
        .fn = activation_of(s)};
    struct rp_cuda_launch launch;
    upload_rows(d, first, rows, max_rows, order, &op);
    order_rows(d, first, max_rows, &op);
    assert_int_equal(rp_matmul_experts_cuda_plan_tile(&op, tile_cols, &memory, &launch, NULL),
                     RP_OK);
    assert_int_equal(launch.run(launch.args, NULL), 0);
    unsigned char *out = rp_alloc(bytes);
    rp_gpu_download(out, op.out.data, bytes);
    for (size_t i = 0; i < bytes; i++)
        if ((i / size % stride >= d->outputs || i / size / stride >= (size_t)rows * s->used) &&
            out[i] != 0xFF)
            fail_msg("byte %zu past the outputs was written", i);
    float *values = by_choice(d, order, rows, out, stride);
    rp_free(out);
    rp_free(order);
    rp_arena_reset(&memory);
    return values;
}

static void assert_near(const struct data *d, const float *got, const float *expected) {
    double allowed = d->s->dtype == RP_DTYPE_F32 ? 1e-5 : d->s->dtype == FP8 ? 8e-3 : 4e-3;
    for (size_t i = 0; i < (size_t)d->s->rows * d->s->used; i++) {
        double error =
            rp_relative_error(got + i * d->outputs, expected + i * d->outputs, d->outputs);
        if (!(error <= allowed))
            fail_msg("%u experts, %u rows, (%u, %u), type %d: choice %zu (expert %g): error %g",
                     d->s->count, d->s->rows, d->s->each, d->s->k, d->s->dtype, i,
                     (double)d->ids[i], error);
    }
}

static void for_every_shape(void (*check)(const struct data *)) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++)
        for (int gated = 0; gated < 2; gated++) {
            if (rp_gpu_is_tiny() && shapes[i].rows > 40)
                continue;
            struct data d = make(&shapes[i], gated);
            check(&d);
            free_data(&d);
        }
}

static void check_reference(const struct data *d) {
    float *expected = reference(d);
    float *got = run(d, 0, d->s->rows, d->s->rows + 3, 0);
    assert_near(d, got, expected);
    rp_free(got);
    rp_free(expected);
}

static void test_every_choice_has_the_numbers_of_the_scalar_reference(void **state) {
    (void)state;
    for_every_shape(check_reference);
}

static void same(const struct data *d, const float *all, uint32_t first, uint32_t rows, float *got,
                 uint32_t max_rows, uint32_t tile_cols) {
    size_t each = (size_t)d->s->used * d->outputs;
    if (memcmp(all + first * each, got, rows * each * sizeof *got) != 0)
        fail_msg("%u experts, (%u, %u), type %d, %s: rows %u to %u in a bucket of %u, tiles of %u: "
                 "other bits",
                 d->s->count, d->s->each, d->s->k, d->s->dtype, d->gated ? "gated" : "down", first,
                 first + rows, max_rows, tile_cols);
    rp_free(got);
}

/* Few rows and many, large buckets that take other tiles, tiles of every height. */
static void check_bits(const struct data *d) {
    static const uint32_t cols[] = {16, 32, 64, 80, 96, 112, 128};
    uint32_t rows = d->s->rows;
    float *all = run(d, 0, rows, rows, 0);
    for (size_t i = 0; i < RP_ARRAY_COUNT(cols); i++)
        same(d, all, 0, rows, run(d, 0, rows, rows, cols[i]), rows, cols[i]);
    for (uint32_t bucket = rows + 1; bucket <= 1200; bucket = bucket * 3 + 1)
        same(d, all, 0, rows, run(d, 0, rows, bucket, 0), bucket, 0);
    for (uint32_t some = 1; some < rows; some = some * 3 + 1) {
        uint32_t first = some * 7 % (rows - some + 1);
        same(d, all, first, some, run(d, first, some, some, 0), some, 0);
    }
    rp_free(all);
}

static void test_no_bucket_company_or_tile_changes_a_bit(void **state) {
    (void)state;
    for_every_shape(check_bits);
}

/* MXFP4's outputs are those of a bf16 matrix with the same values. */
static void check_tiles(const struct data *d) {
    const struct shape *s = d->s;
    if (s->dtype != RP_DTYPE_BLOCKS)
        return;
    struct data plain = *d;
    struct rp_matrix tiles = d->device;
    size_t values = (size_t)d->host.rows * s->k;
    unsigned char *packed = rp_alloc(rp_matrix_bytes(&tiles));
    uint16_t *weights = rp_alloc(values * sizeof *weights);
    assert_int_equal(rp_tiles_pack(&d->host, packed), RP_OK);
    tiles.data = packed;
    for (size_t i = 0; i < values; i++)
        weights[i] =
            rp_f32_to_bf16(rp_tiles_weight(&tiles, (uint32_t)(i / s->k), (uint32_t)(i % s->k)));
    plain.device = (struct rp_matrix){.rows = d->host.rows,
                                      .cols = s->k,
                                      .dtype = RP_DTYPE_BF16,
                                      .data = rp_gpu_upload(weights, values * sizeof *weights)};
    float *all = run(&plain, 0, s->rows, s->rows, 0);
    same(d, all, 0, s->rows, run(d, 0, s->rows, s->rows, 0), s->rows, 0);
    same(d, all, 0, s->rows, run(d, 0, s->rows, 1200, 0), 1200, 0);
    rp_free(all);
    rp_free(packed);
    rp_free(weights);
}

static void test_4_bits_have_the_bits_of_their_values_in_bf16(void **state) {
    (void)state;
    for_every_shape(check_tiles);
}

static void check_without_tensor_cores(const struct data *d) {
    if (d->s->rows <= 90)
        check_reference(d);
}

static void test_a_gpu_without_our_tensor_cores_has_the_same_numbers(void **state) {
    (void)state;
    uint32_t capability = limits.compute_capability;
    limits.compute_capability = 80;
    for_every_shape(check_without_tensor_cores);
    limits.compute_capability = capability;
}

/* Nothing is written, nothing waits for ever. */
static void test_a_step_without_rows_writes_nothing(void **state) {
    (void)state;
    for (int gated = 0; gated < 2; gated++) {
        struct data d = make(&shapes[2], gated);
        rp_free(run(&d, 0, 0, 5, 0));
        free_data(&d);
    }
}

RP_GPU_TEST_MAIN(set_up, tear_down,
                 cmocka_unit_test(test_every_choice_has_the_numbers_of_the_scalar_reference),
                 cmocka_unit_test(test_no_bucket_company_or_tile_changes_a_bit),
                 cmocka_unit_test(test_4_bits_have_the_bits_of_their_values_in_bf16),
                 cmocka_unit_test(test_a_gpu_without_our_tensor_cores_has_the_same_numbers),
                 cmocka_unit_test(test_a_step_without_rows_writes_nothing))
