/* Goal: every output of the generic GEMMs with 8-bit weights on a GPU has the chains described in
 * matmul_generic_8_cuda.cu, bit for bit as with the C library's fmaf on the host, for any alignment
 * and number of rows, and is close to the CPU's reference. */
#include "device/quantize_row.h"
#include "tests/gpu/matmul_generic_fixture.h"

#define LANES 32
#define CHUNK 16

struct problem {
    uint32_t live, max_rows, n, k;
    enum rp_dtype dtype, out_dtype;
    bool quantized; /* W8A8: rows are quantized values with one scale each */
    bool blocks, bias, accumulate, gate_up;
    uint32_t in_pad, skip; /* elements beside the columns; before the first of weights and inputs */
};

/* The inputs of one problem, on the host as on the GPU. */
struct data {
    unsigned char *in, *weight, *out;
    float *scales, *in_scales, *bias, *old;
    size_t in_stride, in_element, scale_count, in_bytes, weight_bytes, out_bytes;
};

static uint32_t random_state = 1;

static float next_value(void) {
    float value = rp_test_next_value(&random_state);
    return random_state % 61 == 0 ? value * 0x1p4f : value;
}

static uint8_t next_quantized(enum rp_dtype dtype) {
    (void)next_value();
    uint8_t code = (uint8_t)(random_state >> 11);
    if (dtype == RP_DTYPE_INT8)
        return code == 0x80 ? 0x81 : code;
    return (code & 0x7F) == 0x7F ? 0x7E : code;
}

static void make(const struct problem *p, struct data *d) {
    size_t out_element = rp_dtype_bytes(p->out_dtype);
    *d = (struct data){.in_stride = p->k + p->in_pad, .in_element = p->quantized ? 1 : 2};
    d->scale_count = p->blocks ? RP_CEIL_DIV(p->n, 128ull) * RP_CEIL_DIV(p->k, 128ull) : p->n;
    d->in_bytes = (p->max_rows * d->in_stride + p->skip) * d->in_element;
    d->weight_bytes = (size_t)p->n * p->k + p->skip;
    d->out_bytes = (size_t)p->max_rows * p->n * out_element;
    d->in = allocate(d->in_bytes);
    d->weight = allocate(d->weight_bytes);
    d->out = allocate(d->out_bytes);
    d->scales = allocate(d->scale_count * sizeof(float));
    d->in_scales = allocate(p->max_rows * sizeof(float));
    d->bias = allocate(p->n * sizeof(float));
    d->old = allocate((size_t)p->max_rows * p->n * sizeof(float));
    memset(d->in, 0xFF, d->in_bytes); /* NaN outside of the columns and in rows that are not live */
    memset(d->out, 0xFF, d->out_bytes);
    memset(d->in_scales, 0xFF, p->max_rows * sizeof(float));
    for (size_t i = 0; i < (size_t)p->n * p->k; i++)
        d->weight[p->skip + i] = next_quantized(p->dtype);
    for (size_t row = 0; row < p->live; row++) {
        d->in_scales[row] = fabsf(next_value()) * 0x1p-7f + 0x1p-10f;
        for (size_t c = 0; c < p->k; c++) {
            size_t at = p->skip + row * d->in_stride + c;
            if (p->quantized)
                d->in[at] = next_quantized(p->dtype);
            else
                ((uint16_t *)(void *)d->in)[at] = rp_f32_to_bf16(next_value());
        }
    }
    for (size_t i = 0; i < d->scale_count; i++)
        d->scales[i] = fabsf(next_value()) * 0x1p-8f + 0x1p-12f;
    for (size_t c = 0; c < p->n; c++)
        d->bias[c] = next_value();
    for (size_t i = 0; i < (size_t)p->max_rows * p->n && p->accumulate; i++)
        ((float *)(void *)d->out)[i] = d->old[i] = next_value();
}

static void destroy(struct data *d) {
    void *all[] = {d->in, d->weight, d->out, d->scales, d->in_scales, d->bias, d->old};
    for (size_t i = 0; i < RP_ARRAY_COUNT(all); i++)
        rp_free(all[i]);
}

static struct rp_matrix matrix_of(const struct problem *p, void *data, const float *scales) {
    return (struct rp_matrix){.rows = p->n,
                              .cols = p->k,
                              .dtype = p->dtype,
                              .scale_kind = p->blocks ? RP_SCALE_BLOCK_128 : RP_SCALE_CHANNEL,
                              .data = data,
                              .scales = scales,
                              .input = p->quantized ? RP_INPUT_QUANTIZED : RP_INPUT_PLAIN};
}

/* Runs the GEMM on the GPU; d->out is the downloaded result. */
static void run(const struct problem *p, struct data *d) {
    struct rp_gpu_step step;
    open_step(&step, p->max_rows, p->live);
    unsigned char *in = rp_gpu_upload(d->in, d->in_bytes);
    unsigned char *data = rp_gpu_upload(d->weight, d->weight_bytes);
    struct rp_matrix weight =
        matrix_of(p, data + p->skip, rp_gpu_upload(d->scales, d->scale_count * sizeof(float)));
    struct rp_matmul_cuda op = {
        .rows = {step.device, RP_ROWS_TOKEN, p->max_rows},
        .weight = &weight,
        .bias = p->bias ? rp_gpu_upload(d->bias, p->n * sizeof(float)) : NULL,
        .in = in + p->skip * d->in_element,
        .in_stride = d->in_stride,
        .in_scales = p->quantized ? rp_gpu_upload(d->in_scales, p->max_rows * sizeof(float)) : NULL,
        .out = {rp_gpu_upload(d->out, d->out_bytes), p->n, p->out_dtype},
        .accumulate = p->accumulate,
        .gate_up = p->gate_up};
    run_generic(&op, &weight, d->out, d->out_bytes, &step);
}

static float in_at(const struct problem *p, const struct data *d, size_t row, size_t k) {
    size_t at = p->skip + row * d->in_stride + k;
    return p->quantized ? rp_quantized_to_f32(d->in, p->dtype, at)
                        : rp_bf16_to_f32(((const uint16_t *)(const void *)d->in)[at]);
}

/* Lane `lane`'s part of columns [begin, end). */
static float lane_sum(const struct problem *p, const struct data *d, size_t row, size_t col,
                      size_t begin, size_t end, size_t lane) {
    float sum = 0.0f;
    for (size_t at = begin + CHUNK * lane; at < end; at += (size_t)CHUNK * LANES) {
        float part = p->blocks ? 0.0f : sum;
        for (size_t k = at; k < at + CHUNK; k++) {
            bool inside = k < end;
            float x = inside ? in_at(p, d, row, k) : 0.0f;
            float w =
                inside ? rp_quantized_to_f32(d->weight, p->dtype, p->skip + col * p->k + k) : 0.0f;
            part = fmaf(x, w, part);
        }
        size_t scale = col / 128 * RP_CEIL_DIV(p->k, 128u) + at / 128;
        sum = p->blocks ? fmaf(part, d->scales[scale], sum) : part;
    }
    return sum;
}

static float segment_sum(const struct problem *p, const struct data *d, size_t row, size_t col,
                         size_t begin, size_t end) {
    if (p->quantized && p->dtype == RP_DTYPE_INT8) {
        int32_t sum = 0;
        for (size_t k = begin; k < end; k++)
            sum += (int32_t)in_at(p, d, row, k) *
                   (int32_t)rp_quantized_to_f32(d->weight, p->dtype, p->skip + col * p->k + k);
        return (float)sum;
    }
    float lanes[LANES];
    for (size_t lane = 0; lane < LANES; lane++)
        lanes[lane] = lane_sum(p, d, row, col, begin, end, lane);
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return lanes[0];
}

static float output(const struct problem *p, const struct data *d, size_t row, size_t col) {
    size_t segment =
        p->quantized ? 2 * (size_t)rp_matmul_cuda_segment(p->n, RP_CEIL_DIV(p->k, 2u), p->gate_up)
                     : p->k;
    float total = 0.0f;
    for (size_t begin = 0; begin < p->k; begin += segment) {
        float scale = p->blocks ? 1.0f : d->scales[col];
        if (p->quantized)
            scale = d->in_scales[row] * scale;
        float part =
            segment_sum(p, d, row, col, begin, RP_MIN(begin + segment, (size_t)p->k)) * scale;
        total = begin ? total + part : part;
    }
    if (p->bias)
        total += d->bias[col];
    if (p->accumulate)
        total += d->old[row * p->n + col];
    return p->out_dtype == RP_DTYPE_F32 ? total : rp_round_bf16(total);
}

static float out_at(const struct problem *p, const struct data *d, size_t at) {
    return p->out_dtype == RP_DTYPE_F32 ? ((float *)(void *)d->out)[at]
                                        : rp_bf16_to_f32(((uint16_t *)(void *)d->out)[at]);
}

static void check(const struct problem *p) {
    struct data d;
    make(p, &d);
    run(p, &d);
    for (size_t row = 0; row < p->live; row++)
        for (size_t col = 0; col < p->n; col++) {
            float got = out_at(p, &d, row * p->n + col), want = output(p, &d, row, col);
            if (memcmp(&got, &want, sizeof got) != 0)
                fail_msg("%s %s%s, (%u, %u), row %zu of %u, column %zu: %.9g, not %.9g",
                         rp_dtype_name(p->dtype), p->quantized ? "by codes" : "by bf16",
                         p->blocks ? ", blocks" : "", p->n, p->k, row, p->live, col, got, want);
        }
    for (size_t at = (size_t)p->live * p->n; at < (size_t)p->max_rows * p->n; at++)
        if (p->accumulate)
            assert_true(out_at(p, &d, at) == d.old[at]);
        else
            assert_true(isnan(out_at(p, &d, at)));
    destroy(&d);
}

/* Every kind of GEMM. */
static const struct {
    enum rp_dtype dtype;
    bool quantized, blocks;
} formats[] = {{RP_DTYPE_INT8, true, false},     {RP_DTYPE_INT8, false, false},
               {RP_DTYPE_FP8_E4M3, true, false}, {RP_DTYPE_FP8_E4M3, false, false},
               {RP_DTYPE_FP8_E4M3, true, true},  {RP_DTYPE_FP8_E4M3, false, true}};

static struct problem problem_of(size_t format, uint32_t live, uint32_t max_rows, uint32_t n,
                                 uint32_t k) {
    return (struct problem){.live = live,
                            .max_rows = max_rows,
                            .n = n,
                            .k = k,
                            .dtype = formats[format].dtype,
                            .out_dtype = RP_DTYPE_F32,
                            .quantized = formats[format].quantized,
                            .blocks = formats[format].blocks};
}

#define EACH_FORMAT(f) for (size_t f = 0; f < RP_ARRAY_COUNT(formats); f++)

static void each_output_is_its_chains_for_any_number_of_rows(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 8, 9, 17};
    EACH_FORMAT(f)
    for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++) {
        struct problem p = problem_of(f, rows[i], rows[i], 130, 528);
        check(&p);
    }
}

static void odd_sizes_and_unaligned_rows_give_the_same_chains(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{1, 1},   {3, 7},     {31, 33},   {9, 127},
                                        {7, 128}, {129, 300}, {17, 1027}, {5, 2064}};
    static const uint32_t rows[] = {1, 3, 9};
    EACH_FORMAT(f)
    for (size_t s = 0; s < RP_ARRAY_COUNT(sizes); s++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++) {
            struct problem p = problem_of(f, rows[i], rows[i], sizes[s][0], sizes[s][1]);
            p.in_pad = s % 3 == 0 ? 16 : (uint32_t)s;
            p.skip = (uint32_t)(i + s) % 3;
            check(&p);
        }
}

/* Sizes whose K is divided into several segments, and the same with one. */
static void segments_are_scaled_apart_and_added_in_rising_order(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{64, 4096}, {48, 3200}, {16, 14336}};
    EACH_FORMAT(f)
    for (size_t s = 0; s < RP_ARRAY_COUNT(sizes); s++)
        for (int gate_up = 0; gate_up < 2; gate_up++) {
            struct problem p = problem_of(f, 2, 2, sizes[s][0], sizes[s][1]);
            p.gate_up = gate_up > 0;
            check(&p);
        }
    assert_true(rp_matmul_cuda_segment(64, 2048, false) < 2048);
}

static void bias_comes_before_the_old_value_and_bf16_rounds_once(void **state) {
    (void)state;
    EACH_FORMAT(f)
    for (uint32_t kind = 0; kind < 4; kind++) {
        struct problem p = problem_of(f, 1 + 3 * kind, 1 + 3 * kind, 72, 144);
        p.out_dtype = kind == 3 ? RP_DTYPE_BF16 : RP_DTYPE_F32;
        p.bias = kind != 1;
        p.accumulate = kind == 1 || kind == 2;
        check(&p);
    }
}

static void rows_past_the_live_count_are_neither_used_nor_written(void **state) {
    (void)state;
    static const uint32_t pairs[][2] = {{0, 1}, {0, 9}, {1, 2}, {1, 8}, {5, 8}, {3, 20}, {9, 40}};
    EACH_FORMAT(f)
    for (size_t i = 0; i < RP_ARRAY_COUNT(pairs); i++) {
        struct problem p = problem_of(f, pairs[i][0], pairs[i][1], 21, 160);
        p.accumulate = i % 2 == 1;
        check(&p);
    }
}

/* A row that could not be quantized has scale NaN and quantized values of zero: its outputs are
 * NaN, its neighbors' are not. */
static void a_row_of_scale_nan_gives_nan_alone(void **state) {
    (void)state;
    EACH_FORMAT(f) {
        struct problem p = problem_of(f, 3, 3, 20, 96);
        struct data d;
        if (!p.quantized)
            continue;
        make(&p, &d);
        d.in_scales[1] = NAN;
        memset(d.in + d.in_stride, 0, p.k);
        run(&p, &d);
        for (size_t at = 0; at < 3ull * p.n; at++)
            assert_int_equal(isnan(((float *)(void *)d.out)[at]) != 0, at / p.n == 1);
        destroy(&d);
    }
}

/* The CPU's reference quantizes its rows itself: it gets bf16 rows, and the GPU their quantized
 * values. */
static void the_scalar_truth_of_the_cpu_is_near(void **state) {
    (void)state;
    EACH_FORMAT(f) {
        struct problem p = problem_of(f, 5, 5, 140, 1030);
        struct data d;
        p.bias = true;
        make(&p, &d);
        uint16_t *rows = allocate((size_t)p.live * p.k * sizeof *rows);
        for (size_t r = 0; r < p.live; r++) {
            uint16_t *row = rows + r * p.k;
            for (size_t c = 0; c < p.k; c++)
                row[c] = rp_f32_to_bf16(next_value());
            if (p.quantized)
                d.in_scales[r] =
                    rp_quantize_row(row, RP_DTYPE_BF16, p.k, p.dtype, d.in + r * d.in_stride);
            else
                memcpy(d.in + r * d.in_stride * 2, row, p.k * sizeof *row);
        }
        run(&p, &d);
        struct rp_matrix weight = matrix_of(&p, d.weight, d.scales);
        float *truth = allocate((size_t)p.live * p.n * sizeof *truth);
        size_t scratch_bytes = rp_matmul_scratch_bytes(&weight, p.live);
        void *scratch = rp_alloc_aligned(scratch_bytes, RP_CACHE_LINE);
        struct rp_matmul_args args = {.weight = &weight,
                                      .bias = d.bias,
                                      .in = rows,
                                      .out = truth,
                                      .in_stride = p.k,
                                      .out_stride = p.n,
                                      .out_dtype = RP_DTYPE_F32,
                                      .scratch = scratch,
                                      .scratch_bytes = scratch_bytes};
        struct rp_cpu_worker worker = {.index = 0, .count = 1};
        rp_matmul_select(RP_ISA_SCALAR, &weight)(&args, p.live, &worker);
        assert_true(rp_relative_error((float *)(void *)d.out, truth, (size_t)p.live * p.n) < 1e-5);
        rp_free_aligned(scratch);
        rp_free(truth);
        rp_free(rows);
        destroy(&d);
    }
}

RP_GPU_TEST_MAIN(NULL, NULL, cmocka_unit_test(each_output_is_its_chains_for_any_number_of_rows),
                 cmocka_unit_test(odd_sizes_and_unaligned_rows_give_the_same_chains),
                 cmocka_unit_test(segments_are_scaled_apart_and_added_in_rising_order),
                 cmocka_unit_test(bias_comes_before_the_old_value_and_bf16_rounds_once),
                 cmocka_unit_test(rows_past_the_live_count_are_neither_used_nor_written),
                 cmocka_unit_test(a_row_of_scale_nan_gives_nan_alone),
                 cmocka_unit_test(the_scalar_truth_of_the_cpu_is_near))
