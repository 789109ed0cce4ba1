/* Goal: every output of the generic GEMMs on a GPU is one chain of fmaf in ascending k, equal to
 * that of the C library's fmaf on the host, for any kernel, alignment and number of rows. */
#include "tests/gpu/matmul_generic_fixture.h"

struct problem {
    uint32_t live, max_rows, n, k;
    enum rp_dtype dtype, out_dtype;
    bool bias, accumulate;
    uint32_t in_pad, out_pad;      /* columns besides those of the GEMM */
    uint32_t in_skip, weight_skip; /* elements before the first: alignment */
};

/* The inputs of one problem, on the host. */
struct data {
    unsigned char *in, *weight, *out; /* as on the GPU */
    float *bias, *old;
    size_t in_stride, out_stride, in_bytes, weight_bytes, out_bytes;
};

static uint32_t random_state = 1;

/* Uniform in +-1, rarely larger or tiny: sums that depend on their order. */
static float next_value(void) {
    float value = rp_test_next_value(&random_state);
    return random_state % 61 == 0   ? value * 0x1p12f
           : random_state % 53 == 0 ? value * 0x1p-20f
                                    : value;
}

static void make(const struct problem *p, struct data *d) {
    size_t element = rp_dtype_bytes(p->dtype), out_element = rp_dtype_bytes(p->out_dtype);
    *d = (struct data){.in_stride = p->k + p->in_pad, .out_stride = p->n + p->out_pad};
    d->in_bytes = (p->max_rows * d->in_stride + p->in_skip) * element;
    d->weight_bytes = ((size_t)p->n * p->k + p->weight_skip) * element;
    d->out_bytes = p->max_rows * d->out_stride * out_element;
    d->in = allocate(d->in_bytes);
    d->weight = allocate(d->weight_bytes);
    d->out = allocate(d->out_bytes);
    d->bias = allocate(p->n * sizeof(float));
    d->old = allocate((size_t)p->max_rows * p->n * sizeof(float));
    memset(d->in, 0xFF, d->in_bytes); /* NaN outside of the columns and in rows that are not live */
    memset(d->out, 0xFF, d->out_bytes);
    for (size_t i = 0; i < (size_t)p->n * p->k; i++)
        rp_test_put(d->weight, p->dtype, p->weight_skip + i, next_value());
    for (size_t row = 0; row < p->live; row++)
        for (size_t c = 0; c < p->k; c++)
            rp_test_put(d->in, p->dtype, p->in_skip + row * d->in_stride + c, next_value());
    for (size_t c = 0; c < p->n; c++)
        d->bias[c] = next_value();
    for (size_t row = 0; row < p->max_rows && p->accumulate; row++)
        for (size_t c = 0; c < p->n; c++)
            rp_test_put(d->out, p->out_dtype, row * d->out_stride + c,
                        d->old[row * p->n + c] = next_value());
}

static void destroy(struct data *d) {
    rp_free(d->in);
    rp_free(d->weight);
    rp_free(d->out);
    rp_free(d->bias);
    rp_free(d->old);
}

/* Runs the GEMM on the GPU; d->out is the downloaded result. */
static void run(const struct problem *p, struct data *d) {
    size_t element = rp_dtype_bytes(p->dtype);
    struct rp_gpu_step step;
    open_step(&step, p->max_rows, p->live);
    unsigned char *in = rp_gpu_upload(d->in, d->in_bytes);
    unsigned char *weight_data = rp_gpu_upload(d->weight, d->weight_bytes);
    struct rp_matrix weight = {.rows = p->n,
                               .cols = p->k,
                               .dtype = p->dtype,
                               .data = weight_data + p->weight_skip * element};
    struct rp_matmul_cuda op = {
        .rows = {step.device, RP_ROWS_TOKEN, p->max_rows},
        .weight = &weight,
        .bias = p->bias ? rp_gpu_upload(d->bias, p->n * sizeof(float)) : NULL,
        .in = in + p->in_skip * element,
        .in_stride = d->in_stride,
        .out = {rp_gpu_upload(d->out, d->out_bytes), d->out_stride, p->out_dtype},
        .accumulate = p->accumulate};
    run_generic(&op, &weight, d->out, d->out_bytes, &step);
}

static float chain(const struct problem *p, const struct data *d, size_t row, size_t col,
                   double *exact) {
    float sum = 0.0f;
    *exact = 0.0;
    for (size_t k = 0; k < p->k; k++) {
        float x = rp_test_get(d->in, p->dtype, p->in_skip + row * d->in_stride + k);
        float w = rp_test_get(d->weight, p->dtype, p->weight_skip + col * p->k + k);
        sum = fmaf(x, w, sum);
        *exact += (double)x * w;
    }
    if (p->bias) {
        sum += d->bias[col];
        *exact += d->bias[col];
    }
    if (p->accumulate) {
        sum += d->old[row * p->n + col];
        *exact += d->old[row * p->n + col];
    }
    return p->out_dtype == RP_DTYPE_F32 ? sum : rp_round_bf16(sum);
}

static bool equal_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

static void check(const struct problem *p) {
    struct data d;
    make(p, &d);
    run(p, &d);
    double difference = 0.0, size = 0.0;
    for (size_t row = 0; row < p->max_rows; row++)
        for (size_t c = 0; c < d.out_stride; c++) {
            float value = rp_test_get(d.out, p->out_dtype, row * d.out_stride + c), expected;
            double exact;
            if (row >= p->live || c >= p->n) { /* as it was */
                if (p->accumulate && c < p->n)
                    assert_true(equal_bits(value, d.old[row * p->n + c]));
                else
                    assert_true(isnan(value));
                continue;
            }
            expected = chain(p, &d, row, c, &exact);
            if (!equal_bits(value, expected))
                fail_msg("live %u of %u, n %u, k %u, %s: row %zu col %zu is %a, not %a", p->live,
                         p->max_rows, p->n, p->k, rp_dtype_name(p->dtype), row, c, (double)value,
                         (double)expected);
            difference += (value - exact) * (value - exact);
            size += exact * exact;
        }
    if (size > 0.0)
        assert_true(sqrt(difference / size) < (p->out_dtype == RP_DTYPE_F32 ? 1e-5 : 4e-3));
    destroy(&d);
}

static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33, 64, 65, 130};

static void each_output_is_one_chain_for_any_number_of_rows(void **state) {
    (void)state;
    for (int dtype = RP_DTYPE_F32; dtype <= RP_DTYPE_BF16; dtype++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(row_counts); i++) {
            struct problem p = {row_counts[i],
                                row_counts[i],
                                96,
                                272,
                                (enum rp_dtype)dtype,
                                RP_DTYPE_F32,
                                false,
                                false,
                                0,
                                0,
                                0,
                                0};
            check(&p);
        }
}

static void odd_sizes_and_unaligned_rows_give_the_same_chain(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{1, 1},    {3, 7},    {31, 33},   {33, 127}, {63, 128},
                                        {65, 129}, {70, 255}, {129, 260}, {40, 1027}};
    static const uint32_t rows[] = {1, 4, 6, 20, 70};
    for (int dtype = RP_DTYPE_F32; dtype <= RP_DTYPE_BF16; dtype++)
        for (size_t s = 0; s < RP_ARRAY_COUNT(sizes); s++)
            for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++) {
                struct problem p = {rows[i],
                                    rows[i],
                                    sizes[s][0],
                                    sizes[s][1],
                                    (enum rp_dtype)dtype,
                                    RP_DTYPE_F32,
                                    false,
                                    false,
                                    (uint32_t)s,
                                    3,
                                    (uint32_t)(i + s) % 3,
                                    (uint32_t)i % 2};
                check(&p);
            }
}

static void bias_comes_before_the_old_value_and_bf16_rounds_once(void **state) {
    (void)state;
    for (int dtype = RP_DTYPE_F32; dtype <= RP_DTYPE_BF16; dtype++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(row_counts); i++)
            for (uint32_t kind = 0; kind < 4; kind++) {
                struct problem p = {.live = row_counts[i],
                                    .max_rows = row_counts[i],
                                    .n = 72,
                                    .k = 144,
                                    .dtype = (enum rp_dtype)dtype,
                                    .out_dtype = kind == 3 ? RP_DTYPE_BF16 : RP_DTYPE_F32,
                                    .bias = kind != 1,
                                    .accumulate = kind == 1 || kind == 2};
                check(&p);
            }
}

static void rows_past_the_live_count_are_neither_used_nor_written(void **state) {
    (void)state;
    static const uint32_t pairs[][2] = {{0, 1},  {0, 70},  {1, 2},  {1, 8},    {5, 8},
                                        {3, 20}, {17, 32}, {1, 64}, {64, 200}, {65, 130}};
    for (int dtype = RP_DTYPE_F32; dtype <= RP_DTYPE_BF16; dtype++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(pairs); i++) {
            struct problem p = {pairs[i][0],
                                pairs[i][1],
                                80,
                                160,
                                (enum rp_dtype)dtype,
                                RP_DTYPE_F32,
                                true,
                                i % 2 == 1,
                                16,
                                8,
                                0,
                                0};
            check(&p);
        }
}

static void long_chains_stay_chains(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 3, 8, 12, 40};
    for (int dtype = RP_DTYPE_F32; dtype <= RP_DTYPE_BF16; dtype++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++) {
            struct problem p = {
                rows[i], rows[i], 48, 14336, (enum rp_dtype)dtype, RP_DTYPE_F32, false, false,
                0,       0,       0,  0};
            check(&p);
        }
}

/* Chains whose sum is -0 or underflows: an added zero would show. */
static void a_tail_adds_nothing_to_a_negative_zero(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 8, 40};
    for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++) {
        struct problem p = {rows[i], rows[i], 5, 3, RP_DTYPE_F32, RP_DTYPE_F32, false, false,
                            1,       0,       0, 0};
        struct data d;
        double exact;
        make(&p, &d);
        memset(d.weight, 0, d.weight_bytes);
        for (size_t at = 2; at < (size_t)p.n * p.k; at += p.k)
            ((float *)d.weight)[at] = 0x1p-100f;
        for (size_t row = 0; row < p.live; row++)
            for (size_t k = 0; k < p.k; k++)
                ((float *)d.in)[row * d.in_stride + k] = -0x1p-100f;
        run(&p, &d);
        assert_true(signbit(chain(&p, &d, 0, 0, &exact)));
        for (size_t at = 0; at < (size_t)p.live * p.n; at++)
            assert_true(((float *)d.out)[at] == 0.0f && signbit(((float *)d.out)[at]));
        destroy(&d);
    }
}

static void the_scalar_truth_of_the_cpu_is_near(void **state) {
    (void)state;
    for (int dtype = RP_DTYPE_F32; dtype <= RP_DTYPE_BF16; dtype++) {
        struct problem p = {21, 21, 100, 514, (enum rp_dtype)dtype, RP_DTYPE_F32, true, false,
                            0,  0,  0,   0};
        struct data d;
        make(&p, &d);
        run(&p, &d);
        struct rp_matrix weight = {.rows = p.n, .cols = p.k, .dtype = p.dtype, .data = d.weight};
        float *truth = allocate((size_t)p.live * p.n * sizeof *truth);
        struct rp_matmul_args args = {.weight = &weight,
                                      .bias = d.bias,
                                      .in = d.in,
                                      .out = truth,
                                      .in_stride = d.in_stride,
                                      .out_stride = p.n,
                                      .out_dtype = RP_DTYPE_F32};
        struct rp_cpu_worker worker = {.index = 0, .count = 1};
        rp_matmul_scalar(&args, p.live, &worker);
        assert_true(rp_relative_error((float *)d.out, truth, (size_t)p.live * p.n) < 1e-5);
        rp_free(truth);
        destroy(&d);
    }
}

RP_GPU_TEST_MAIN(NULL, NULL, cmocka_unit_test(each_output_is_one_chain_for_any_number_of_rows),
                 cmocka_unit_test(odd_sizes_and_unaligned_rows_give_the_same_chain),
                 cmocka_unit_test(bias_comes_before_the_old_value_and_bf16_rounds_once),
                 cmocka_unit_test(rows_past_the_live_count_are_neither_used_nor_written),
                 cmocka_unit_test(long_chains_stay_chains),
                 cmocka_unit_test(a_tail_adds_nothing_to_a_negative_zero),
                 cmocka_unit_test(the_scalar_truth_of_the_cpu_is_near))
