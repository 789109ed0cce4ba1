/* Goal: every kernel computes the GEMM, writes nothing else, and gives a row the same bits in any
 * batch. Method: every instruction set of this machine and both layouts against a sum in f64 of the
 * rounded inputs; outputs poisoned with NaN inside guards; inputs surrounded by NaN. */
#include "base/bf16.h"
#include "base/memory.h"
#include "device/ops_simd.h"
#include "quant/matmul.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define K_MAX      2100
#define N_MAX      100
#define M_MAX      130
#define IN_PAD     3 /* odd strides: rows are aligned to their elements only */
#define OUT_PAD    5
#define GUARD      64
#define GUARD_BYTE 0x7B

static const uint32_t batch_sizes[] = {1, 2, 3, 5, 8, 17, 64, 130};
static const uint32_t worker_counts[] = {1, 2, 3, 7};

struct fixture {
    uint32_t m, n, k;
    enum rp_dtype dtype;
    struct rp_matrix plain, packed;
    void *in; /* (M_MAX, k + IN_PAD) */
    float *bias;
    double *reference; /* (M_MAX, n) */
    unsigned char *out, *other;
    size_t out_bytes;
    uint32_t seed;
};

static float next_value(struct fixture *f) {
    f->seed ^= f->seed << 13;
    f->seed ^= f->seed >> 17;
    f->seed ^= f->seed << 5;
    return (float)(int32_t)f->seed * 0x1p-31f;
}

static void put(void *to, size_t at, float value, enum rp_dtype dtype) {
    if (dtype == RP_DTYPE_F32)
        ((float *)to)[at] = value;
    else
        ((uint16_t *)to)[at] = rp_f32_to_bf16(value);
}

static float get(const void *from, size_t at, enum rp_dtype dtype) {
    return dtype == RP_DTYPE_F32 ? ((const float *)from)[at]
                                 : rp_bf16_to_f32(((const uint16_t *)from)[at]);
}

static int setup(void **state) {
    struct fixture *f = rp_calloc(1, sizeof *f);
    f->seed = 12345;
    f->in = rp_alloc((size_t)M_MAX * (K_MAX + IN_PAD) * 4);
    f->bias = rp_alloc(N_MAX * sizeof *f->bias);
    f->reference = rp_alloc((size_t)M_MAX * N_MAX * sizeof *f->reference);
    f->out_bytes = (size_t)M_MAX * (N_MAX + OUT_PAD) * 4 + 2 * GUARD;
    f->out = rp_alloc(f->out_bytes);
    f->other = rp_alloc(f->out_bytes);
    *state = f;
    return f->in && f->bias && f->reference && f->out && f->other ? 0 : -1;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_alloc_fail_at(0);
    rp_matrix_deinit(&f->plain);
    rp_matrix_deinit(&f->packed);
    rp_free(f->in);
    rp_free(f->bias);
    rp_free(f->reference);
    rp_free(f->out);
    rp_free(f->other);
    rp_free(f);
    return 0;
}

static void make_matrix(struct fixture *f, uint32_t n, uint32_t k, enum rp_dtype dtype) {
    rp_matrix_deinit(&f->plain);
    rp_matrix_deinit(&f->packed);
    f->plain = (struct rp_matrix){.rows = n, .cols = k, .dtype = dtype};
    f->plain.data = rp_alloc_aligned(rp_matrix_bytes(&f->plain), 64);
    f->packed = f->plain;
    f->packed.data = rp_alloc_aligned(rp_matrix_bytes(&f->plain), 64);
    assert_non_null(f->plain.data);
    assert_non_null(f->packed.data);
    for (size_t i = 0; i < (size_t)n * k; i++)
        put(f->plain.data, i, next_value(f), dtype);
    memcpy(f->packed.data, f->plain.data, rp_matrix_bytes(&f->plain));
    assert_int_equal(rp_matrix_prepare_cpu(&f->packed, RP_ISA_AVX2, NULL), RP_OK);
    assert_int_equal(f->packed.layout, RP_LAYOUT_PANEL_16);
}

/* A GEMM of this shape with random inputs, and NaN between the rows. */
static void make(struct fixture *f, uint32_t m, uint32_t n, uint32_t k, enum rp_dtype dtype) {
    f->m = m;
    f->n = n;
    f->k = k;
    f->dtype = dtype;
    make_matrix(f, n, k, dtype);
    for (size_t row = 0; row < M_MAX; row++)
        for (size_t i = 0; i < k + IN_PAD; i++)
            put(f->in, row * (k + IN_PAD) + i, row < m && i < k ? next_value(f) : NAN, dtype);
    for (size_t i = 0; i < n; i++)
        f->bias[i] = next_value(f);
    for (size_t row = 0; row < m; row++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t i = 0; i < k; i++)
                sum += (double)get(f->in, row * (k + IN_PAD) + i, dtype) *
                       (double)get(f->plain.data, j * k + i, dtype);
            f->reference[row * n + j] = sum;
        }
}

static struct rp_matmul_args args_of(struct fixture *f, const struct rp_matrix *weight,
                                     enum rp_dtype out_dtype) {
    return (struct rp_matmul_args){.weight = weight,
                                   .in = f->in,
                                   .out = f->out + GUARD,
                                   .in_stride = f->k + IN_PAD,
                                   .out_stride = f->n + OUT_PAD,
                                   .out_dtype = out_dtype};
}

/* NaN in every output, a pattern around them. */
static void poison(struct fixture *f, enum rp_dtype out_dtype) {
    memset(f->out, GUARD_BYTE, f->out_bytes);
    for (size_t row = 0; row < f->m; row++)
        for (size_t j = 0; j < f->n; j++)
            put(f->out + GUARD, row * (f->n + OUT_PAD) + j, NAN, out_dtype);
}

static void assert_guards_intact(struct fixture *f, uint32_t m, enum rp_dtype out_dtype) {
    size_t element = out_dtype == RP_DTYPE_F32 ? 4 : 2, stride = (f->n + OUT_PAD) * element;
    for (size_t i = 0; i < f->out_bytes; i++) {
        bool inside =
            i >= GUARD && (i - GUARD) / stride < m && (i - GUARD) % stride < f->n * element;
        if (!inside && f->out[i] != GUARD_BYTE)
            fail_msg("byte %zu outside of the output was written", i);
    }
}

/* Runs the workers one after the other: kernels have no barrier inside. */
static void run(rp_matmul_fn fn, const struct rp_matmul_args *args, uint32_t m, uint32_t workers) {
    for (uint32_t w = 0; w < workers; w++) {
        struct rp_cpu_worker worker = {.index = w, .count = workers};
        fn(args, m, &worker);
    }
}

static double relative_error(struct fixture *f, enum rp_dtype out_dtype, bool bias) {
    double error = 0, norm = 0;
    for (size_t row = 0; row < f->m; row++)
        for (size_t j = 0; j < f->n; j++) {
            double want = f->reference[row * f->n + j] + (bias ? (double)f->bias[j] : 0);
            double got = (double)get(f->out + GUARD, row * (f->n + OUT_PAD) + j, out_dtype);
            error += (got - want) * (got - want);
            norm += want * want;
        }
    return sqrt(error / (norm > 0 ? norm : 1));
}

static void check_shape(struct fixture *f, uint32_t m, uint32_t n, uint32_t k,
                        enum rp_dtype dtype) {
    make(f, m, n, k, dtype);
    for (int isa = RP_ISA_SCALAR - 1; isa <= (int)rp_cpu_isa_detect(); isa++)
        for (int variant = 0; variant < 4; variant++) {
            bool plain = isa < RP_ISA_SCALAR; /* the reference, row-major, first */
            const struct rp_matrix *weight = plain ? &f->plain : &f->packed;
            enum rp_dtype out_dtype = variant & 1 ? RP_DTYPE_BF16 : RP_DTYPE_F32;
            struct rp_matmul_args args = args_of(f, weight, out_dtype);
            args.bias = variant & 2 ? f->bias : NULL;
            poison(f, out_dtype);
            enum rp_cpu_isa level = plain ? RP_ISA_SCALAR : (enum rp_cpu_isa)isa;
            run(rp_matmul_select(level, weight), &args, m, 2);
            assert_guards_intact(f, m, out_dtype);
            double error = relative_error(f, out_dtype, args.bias != NULL);
            if (!(error <= (out_dtype == RP_DTYPE_BF16 ? 4e-3 : 2e-6)))
                fail_msg("%s m=%u n=%u k=%u in=%d out=%d bias=%d: error %g", rp_cpu_isa_name(level),
                         m, n, k, dtype, out_dtype, args.bias != NULL, error);
        }
}

static void test_every_kernel_is_the_product_for_odd_and_even_shapes(void **state) {
    static const uint32_t shapes[][3] = {{1, 1, 1},    {3, 1, 7},    {1, 17, 1},   {2, 16, 2},
                                         {5, 15, 33},  {7, 48, 64},  {8, 65, 31},  {17, 100, 127},
                                         {64, 33, 96}, {98, 64, 16}, {1, 97, 2099}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        check_shape(*state, shapes[i][0], shapes[i][1], shapes[i][2], RP_DTYPE_F32);
        check_shape(*state, shapes[i][0], shapes[i][1], shapes[i][2], RP_DTYPE_BF16);
    }
}

/* k is long enough for several blocks of k. */
static void check_batches(struct fixture *f, enum rp_dtype dtype, uint32_t k) {
    make(f, M_MAX, 83, k, dtype);
    size_t stride = f->n + OUT_PAD;
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        rp_matmul_fn fn = rp_matmul_select((enum rp_cpu_isa)isa, &f->packed);
        /* Each row alone, */
        poison(f, RP_DTYPE_F32);
        for (size_t row = 0; row < M_MAX; row++) {
            struct rp_matmul_args args = args_of(f, &f->packed, RP_DTYPE_F32);
            args.in =
                (const char *)args.in + row * args.in_stride * (dtype == RP_DTYPE_F32 ? 4 : 2);
            args.out = (float *)args.out + row * stride;
            run(fn, &args, 1, 1);
        }
        memcpy(f->other, f->out, f->out_bytes);
        /* and in every batch, at two positions. The reference is slow, so it runs one batch. */
        size_t first = isa == RP_ISA_SCALAR ? RP_ARRAY_COUNT(batch_sizes) - 1 : 0;
        for (size_t b = first; b < RP_ARRAY_COUNT(batch_sizes); b++)
            for (size_t w = 0; w < RP_ARRAY_COUNT(worker_counts); w++) {
                uint32_t m = batch_sizes[b];
                size_t begin = (M_MAX - m) / 2;
                struct rp_matmul_args args = args_of(f, &f->packed, RP_DTYPE_F32);
                args.in = (const char *)args.in +
                          begin * args.in_stride * (dtype == RP_DTYPE_F32 ? 4 : 2);
                args.out = (float *)args.out + begin * stride;
                poison(f, RP_DTYPE_F32);
                run(fn, &args, m, worker_counts[w]);
                size_t at = GUARD + begin * stride * 4;
                if (memcmp(f->out + at, f->other + at, (m * stride - OUT_PAD) * 4) != 0)
                    fail_msg("%s k=%u: a batch of %u over %u workers changes bits",
                             rp_cpu_isa_name((enum rp_cpu_isa)isa), k, m, worker_counts[w]);
                if (isa == RP_ISA_SCALAR)
                    break;
            }
    }
}

static void test_a_row_has_the_same_bits_in_every_batch_and_team(void **state) {
    check_batches(*state, RP_DTYPE_BF16, 2099);
    check_batches(*state, RP_DTYPE_BF16, 64);
    check_batches(*state, RP_DTYPE_F32, 1031);
}

struct team_job {
    rp_matmul_fn fn;
    struct rp_matmul_args args;
    uint32_t m;
};

static void run_team_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    const struct team_job *job = arg0;
    (void)arg1;
    job->fn(&job->args, job->m, worker);
}

/* Here the thread sanitizer detects two workers that write the same address. */
static void test_a_team_computes_what_one_worker_does(void **state) {
    struct fixture *f = *state;
    struct rp_cpu_team *team;
    make(f, 20, 95, 300, RP_DTYPE_BF16);
    assert_int_equal(rp_cpu_team_create(3, &team, NULL), RP_OK);
    bool same = true;
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        struct team_job job = {.fn = rp_matmul_select((enum rp_cpu_isa)isa, &f->packed),
                               .args = args_of(f, &f->packed, RP_DTYPE_BF16),
                               .m = f->m};
        uint64_t number = 0;
        poison(f, RP_DTYPE_BF16);
        run(job.fn, &job.args, job.m, 1);
        memcpy(f->other, f->out, f->out_bytes);
        poison(f, RP_DTYPE_BF16);
        if (rp_cpu_team_submit(team, run_team_job, &job, 0, &number) != RP_OK)
            same = false;
        rp_cpu_team_wait(team, number, UINT64_MAX);
        same = same && memcmp(f->out, f->other, f->out_bytes) == 0;
    }
    rp_cpu_team_destroy(team);
    assert_true(same);
}

static void test_accumulating_is_the_product_and_then_an_addition(void **state) {
    struct fixture *f = *state;
    for (int type = 0; type < 2; type++) {
        make(f, 13, 50, 77, type ? RP_DTYPE_BF16 : RP_DTYPE_F32);
        for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
            rp_matmul_fn fn = rp_matmul_select((enum rp_cpu_isa)isa, &f->packed);
            struct rp_matmul_args args = args_of(f, &f->packed, RP_DTYPE_F32);
            args.bias = f->bias;
            poison(f, RP_DTYPE_F32);
            run(fn, &args, f->m, 1);
            memcpy(f->other, f->out, f->out_bytes);
            float *sums = (float *)(void *)(f->other + GUARD);
            float *out = (float *)(void *)(f->out + GUARD);
            for (size_t row = 0; row < f->m; row++)
                for (size_t j = 0; j < f->n; j++) {
                    size_t at = row * args.out_stride + j;
                    out[at] = next_value(f) * 4;
                    sums[at] = out[at] + sums[at];
                }
            args.accumulate = true;
            run(fn, &args, f->m, 2);
            assert_memory_equal(f->out, f->other, f->out_bytes);
        }
    }
}

/* The GEMM into f32 with the bias, then the activation of ops_simd.h: bit for bit. */
static void check_gated(struct fixture *f, enum rp_cpu_isa isa, uint32_t m, enum rp_dtype out_dtype,
                        bool bias) {
    const struct rp_fast_ops *ops = rp_fast_ops_select(isa);
    struct rp_matmul_args args = args_of(f, &f->packed, RP_DTYPE_F32);
    size_t half = f->n / 2, element = rp_dtype_bytes(out_dtype);
    rp_matmul_fn fn = rp_matmul_select(isa, &f->packed);
    enum rp_activation activation = bias ? RP_ACTIVATION_GELU_TANH : RP_ACTIVATION_SILU;
    args.bias = bias ? f->bias : NULL;
    run(fn, &args, m, 1);
    memset(f->other, GUARD_BYTE, f->out_bytes);
    for (size_t row = 0; row < m; row++) {
        const float *sums = (const float *)args.out + row * args.out_stride;
        ops->gate(activation, sums, sums + half, half,
                  f->other + GUARD + row * (half + OUT_PAD) * element, out_dtype);
    }
    args.out_dtype = out_dtype;
    args.out_stride = half + OUT_PAD;
    args.gated = true;
    args.fn = activation;
    for (size_t w = 0; w < RP_ARRAY_COUNT(worker_counts); w++) {
        memset(f->out, GUARD_BYTE, f->out_bytes);
        for (size_t row = 0; row < m; row++)
            for (size_t j = 0; j < half; j++)
                put(f->out + GUARD, row * args.out_stride + j, NAN, out_dtype);
        run(fn, &args, m, worker_counts[w]);
        if (memcmp(f->out, f->other, f->out_bytes) != 0)
            fail_msg("%s m=%u n=%u k=%u out=%d bias=%d: gated is not product, then activation",
                     rp_cpu_isa_name(isa), m, f->n, f->k, out_dtype, bias);
    }
}

static void test_gated_is_the_product_and_then_the_activation(void **state) {
    struct fixture *f = *state;
    static const uint32_t shapes[][3] = {{1, 32, 7}, {2, 96, 31}, {13, 64, 77}, {130, 96, 1100}};
    for (size_t s = 0; s < RP_ARRAY_COUNT(shapes); s++)
        for (int type = 0; type < 2; type++) {
            make(f, shapes[s][0], shapes[s][1], shapes[s][2], type ? RP_DTYPE_BF16 : RP_DTYPE_F32);
            for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++)
                for (int variant = 0; variant < 4; variant++)
                    check_gated(f, (enum rp_cpu_isa)isa, f->m,
                                variant & 1 ? RP_DTYPE_BF16 : RP_DTYPE_F32, variant & 2);
        }
}

static void test_only_whole_panels_can_be_gated(void **state) {
    struct fixture *f = *state;
    for (uint32_t n = 16; n <= 96; n += 8) {
        make_matrix(f, n, 10, RP_DTYPE_BF16);
        assert_int_equal(rp_matmul_gates(&f->plain), n % 32 == 0);
        assert_int_equal(rp_matmul_gates(&f->packed), n % 32 == 0);
    }
}

/* Shares large enough to be split into parts, complete panels or not, with one late worker. */
static void test_a_large_product_in_parts_is_what_one_worker_computes(void **state) {
    struct fixture *f = *state;
    struct rp_cpu_team *team;
    const uint32_t n = 4099, k = 515;
    make_matrix(f, n, k, RP_DTYPE_BF16);
    f->k = k;
    f->n = n;
    for (size_t i = 0; i < (size_t)7 * (k + IN_PAD); i++)
        put(f->in, i, next_value(f), RP_DTYPE_BF16);
    size_t count = (size_t)7 * (n + OUT_PAD);
    float *one = rp_alloc(count * sizeof *one), *many = rp_alloc(count * sizeof *many);
    assert_non_null(one);
    assert_non_null(many);
    assert_int_equal(rp_cpu_team_create(3, &team, NULL), RP_OK);
    bool same = true;
    for (uint32_t m = 1; m <= 7; m += 6) {
        struct team_job job = {.fn = rp_matmul_select(rp_cpu_isa_detect(), &f->packed),
                               .args = args_of(f, &f->packed, RP_DTYPE_F32),
                               .m = m};
        memset(one, GUARD_BYTE, count * sizeof *one);
        job.args.out = one;
        run(job.fn, &job.args, m, 1);
        job.args.out = many;
        for (int again = 0; again < 5; again++) {
            uint64_t number = 0;
            memset(many, GUARD_BYTE, count * sizeof *many);
            same = same && rp_cpu_team_submit(team, run_team_job, &job, 0, &number) == RP_OK &&
                   rp_cpu_team_wait(team, number, UINT64_MAX) &&
                   memcmp(one, many, count * sizeof *one) == 0;
        }
    }
    rp_cpu_team_destroy(team);
    rp_free(one);
    rp_free(many);
    assert_true(same);
}

static void test_avx2_and_avx512_give_the_same_bits(void **state) {
    struct fixture *f = *state;
    if (rp_cpu_isa_detect() < RP_ISA_AVX512)
        skip();
    for (int type = 0; type < 2; type++) {
        make(f, 19, 83, 1501, type ? RP_DTYPE_BF16 : RP_DTYPE_F32);
        struct rp_matmul_args args = args_of(f, &f->packed, RP_DTYPE_F32);
        poison(f, RP_DTYPE_F32);
        run(rp_matmul_select(RP_ISA_AVX2, &f->packed), &args, f->m, 1);
        memcpy(f->other, f->out, f->out_bytes);
        poison(f, RP_DTYPE_F32);
        run(rp_matmul_select(RP_ISA_AVX512, &f->packed), &args, f->m, 1);
        assert_memory_equal(f->out, f->other, f->out_bytes);
    }
}

static void test_no_rows_means_no_writes(void **state) {
    struct fixture *f = *state;
    make(f, 0, 40, 40, RP_DTYPE_BF16);
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        struct rp_matmul_args args = args_of(f, &f->packed, RP_DTYPE_F32);
        memset(f->out, GUARD_BYTE, f->out_bytes);
        run(rp_matmul_select((enum rp_cpu_isa)isa, &f->packed), &args, 0, 3);
        assert_guards_intact(f, 0, RP_DTYPE_F32);
    }
}

static void test_a_nan_in_one_row_stays_in_that_row(void **state) {
    struct fixture *f = *state;
    make(f, 9, 30, 41, RP_DTYPE_BF16);
    for (size_t i = 0; i < f->k; i++)
        put(f->in, 4 * (f->k + IN_PAD) + i, NAN, RP_DTYPE_BF16);
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        struct rp_matmul_args args = args_of(f, &f->packed, RP_DTYPE_F32);
        poison(f, RP_DTYPE_F32);
        run(rp_matmul_select((enum rp_cpu_isa)isa, &f->packed), &args, f->m, 1);
        for (size_t row = 0; row < f->m; row++)
            for (size_t j = 0; j < f->n; j++)
                assert_int_equal(row == 4,
                                 isnan(((float *)args.out)[row * args.out_stride + j]) != 0);
    }
}

static void test_rows_read_back_from_panels_are_the_rows_that_went_in(void **state) {
    struct fixture *f = *state;
    float from_plain[K_MAX], from_packed[K_MAX];
    for (int type = 0; type < 2; type++) {
        make_matrix(f, 37, 51, type ? RP_DTYPE_BF16 : RP_DTYPE_F32);
        for (uint32_t row = 0; row < 37; row++) {
            rp_matrix_row_f32(&f->plain, row, from_plain);
            rp_matrix_row_f32(&f->packed, row, from_packed);
            assert_memory_equal(from_plain, from_packed, 51 * sizeof(float));
            assert_true(from_plain[50] == get(f->plain.data, row * 51 + 50, f->plain.dtype));
        }
    }
}

static void test_preparing_without_memory_leaves_the_matrix_as_it_was(void **state) {
    struct fixture *f = *state;
    struct rp_error err;
    make_matrix(f, 20, 20, RP_DTYPE_BF16);
    void *data = f->plain.data;
    rp_alloc_fail_at(1);
    assert_int_equal(rp_matrix_prepare_cpu(&f->plain, RP_ISA_AVX2, &err), RP_STATUS_NO_MEMORY);
    rp_alloc_fail_at(0);
    assert_ptr_equal(f->plain.data, data);
    assert_int_equal(f->plain.layout, RP_LAYOUT_ROW_MAJOR);
}

static void test_preparing_keeps_rows_for_the_scalar_level_and_refuses_other_types(void **state) {
    struct fixture *f = *state;
    struct rp_matrix odd = {.rows = 4, .cols = 4, .dtype = RP_DTYPE_I32};
    make_matrix(f, 20, 20, RP_DTYPE_F32);
    assert_int_equal(rp_matrix_prepare_cpu(&f->plain, RP_ISA_SCALAR, NULL), RP_OK);
    assert_int_equal(f->plain.layout, RP_LAYOUT_ROW_MAJOR);
    assert_int_equal(rp_matrix_prepare_cpu(&odd, RP_ISA_AVX2, NULL), RP_STATUS_UNSUPPORTED);
}

static void test_bytes_count_the_padding_of_panels_and_see_overflow(void **state) {
    (void)state;
    struct rp_matrix matrix = {.rows = 17, .cols = 3, .dtype = RP_DTYPE_BF16};
    assert_int_equal(rp_matrix_bytes(&matrix), 17 * 3 * 2);
    matrix.layout = RP_LAYOUT_PANEL_16;
    assert_int_equal(rp_matrix_bytes(&matrix), 32 * 4 * 2);
    matrix.dtype = RP_DTYPE_F32;
    assert_int_equal(rp_matrix_bytes(&matrix), 32 * 3 * 4);
    matrix.rows = matrix.cols = UINT32_MAX;
    assert_int_equal(rp_matrix_bytes(&matrix), 0);
    matrix.layout = RP_LAYOUT_ROW_MAJOR;
    assert_int_equal(rp_matrix_prepare_cpu(&matrix, RP_ISA_AVX2, NULL), RP_STATUS_OVERFLOW);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_every_kernel_is_the_product_for_odd_and_even_shapes),
        TEST(test_a_row_has_the_same_bits_in_every_batch_and_team),
        TEST(test_a_team_computes_what_one_worker_does),
        TEST(test_accumulating_is_the_product_and_then_an_addition),
        TEST(test_gated_is_the_product_and_then_the_activation),
        TEST(test_only_whole_panels_can_be_gated),
        TEST(test_a_large_product_in_parts_is_what_one_worker_computes),
        TEST(test_avx2_and_avx512_give_the_same_bits),
        TEST(test_no_rows_means_no_writes),
        TEST(test_a_nan_in_one_row_stays_in_that_row),
        TEST(test_rows_read_back_from_panels_are_the_rows_that_went_in),
        TEST(test_preparing_without_memory_leaves_the_matrix_as_it_was),
        TEST(test_preparing_keeps_rows_for_the_scalar_level_and_refuses_other_types),
        TEST(test_bytes_count_the_padding_of_panels_and_see_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
