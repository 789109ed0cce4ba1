/* Goal: products on INT8 and FP8 weights are what matmul.h says, in every batch, team and
 * instruction set; INT8 with quantized rows has one set of bits. Method: an f64 sum of the
 * quantized values; outputs poisoned inside guards, inputs among NaN. */
#include "base/bf16.h"
#include "base/fp8.h"
#include "base/memory.h"
#include "device/quantize_row.h"
#include "quant/matmul.h"
#include "quant/rounding/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define M_MAX   130
#define N_MAX   300
#define K_MAX   2100
#define PAD     3
#define GUARD   64
#define WORKERS 3

enum kind { CHANNEL, TENSOR, BLOCK };

struct fixture {
    uint32_t m, n, k;
    struct rp_matrix plain, packed;
    uint16_t *in;      /* (M_MAX, k + PAD) */
    double *reference; /* (M_MAX, n) */
    unsigned char *out, *other;
    size_t out_bytes;
    void *scratch;
    size_t scratch_bytes;
    float bias[N_MAX];
    uint32_t seed;
};

static float next_value(struct fixture *f) {
    f->seed ^= f->seed << 13;
    f->seed ^= f->seed >> 17;
    f->seed ^= f->seed << 5;
    return (float)(int32_t)f->seed * 0x1p-31f;
}

static int setup(void **state) {
    struct fixture *f = rp_calloc(1, sizeof *f);
    f->seed = 4711;
    f->in = rp_alloc((size_t)M_MAX * (K_MAX + PAD) * 2);
    f->reference = rp_alloc((size_t)M_MAX * N_MAX * sizeof *f->reference);
    f->out_bytes = (size_t)M_MAX * (N_MAX + PAD) * 4 + 2 * GUARD;
    f->out = rp_alloc(f->out_bytes);
    f->other = rp_alloc(f->out_bytes);
    *state = f;
    return f->in && f->reference && f->out && f->other ? 0 : -1;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_matrix_deinit(&f->plain);
    rp_matrix_deinit(&f->packed);
    rp_free_aligned(f->scratch);
    rp_free(f->in);
    rp_free(f->reference);
    rp_free(f->out);
    rp_free(f->other);
    rp_free(f);
    return 0;
}

static struct rp_matrix copy_of(const struct rp_matrix *from) {
    struct rp_matrix copy = *from;
    size_t scales = rp_matrix_scale_count(from) * sizeof(float);
    float *to = rp_alloc_aligned(scales, 64);
    copy.data = rp_alloc_aligned(rp_matrix_bytes(from), 64);
    assert_non_null(copy.data);
    memcpy(copy.data, from->data, rp_matrix_bytes(from));
    memcpy(to, from->scales, scales);
    copy.scales = to;
    return copy;
}

/* Quantized values over the whole range, -128 as checkpoints may have it. */
static void make_matrix(struct fixture *f, enum rp_dtype dtype, enum rp_matrix_input input,
                        enum kind kind) {
    static const enum rp_scale_kind kinds[] = {RP_SCALE_CHANNEL, RP_SCALE_TENSOR,
                                               RP_SCALE_BLOCK_128};
    rp_matrix_deinit(&f->plain);
    rp_matrix_deinit(&f->packed);
    f->plain = (struct rp_matrix){
        .rows = f->n, .cols = f->k, .dtype = dtype, .input = input, .scale_kind = kinds[kind]};
    f->plain.data = rp_alloc_aligned(rp_matrix_bytes(&f->plain), 64);
    size_t count = rp_matrix_scale_count(&f->plain);
    float *scales = rp_alloc_aligned(count * sizeof *scales, 64);
    for (size_t i = 0; i < count; i++)
        scales[i] = 0.01f + fabsf(next_value(f));
    f->plain.scales = scales;
    for (size_t i = 0; i < (size_t)f->n * f->k; i++) {
        int code = (int)(next_value(f) * 128.9f);
        ((int8_t *)f->plain.data)[i] = (int8_t)RP_MAX(code, -128);
        if (dtype == RP_DTYPE_FP8_E4M3)
            ((uint8_t *)f->plain.data)[i] = rp_f32_to_fp8(ldexpf(next_value(f), (int)(i % 13) - 4));
    }
    f->packed = copy_of(&f->plain);
    assert_int_equal(rp_matrix_prepare_cpu(&f->packed, RP_ISA_AVX2, NULL), RP_OK);
    rp_free_aligned(f->scratch);
    f->scratch_bytes = rp_matmul_scratch_bytes(&f->plain, M_MAX);
    f->scratch = rp_alloc_aligned(f->scratch_bytes * WORKERS, 64);
    memset(f->scratch, 0xFF, f->scratch_bytes * WORKERS);
}

static void make_reference(struct fixture *f) {
    float x[K_MAX];
    int8_t quantized[K_MAX];
    for (size_t row = 0; row < f->m; row++) {
        const uint16_t *in = f->in + row * (f->k + PAD);
        double scale = 1;
        for (size_t i = 0; i < f->k; i++)
            x[i] = rp_bf16_to_f32(in[i]);
        if (f->plain.input == RP_INPUT_QUANTIZED) {
            scale = (double)rp_quantize_row(in, RP_DTYPE_BF16, f->k, f->plain.dtype, quantized);
            for (size_t i = 0; i < f->k; i++)
                x[i] = f->plain.dtype == RP_DTYPE_INT8 ? (float)quantized[i]
                                                       : rp_fp8_to_f32((uint8_t)quantized[i]);
        }
        for (size_t n = 0; n < f->n; n++) {
            double sum = 0;
            for (size_t i = 0; i < f->k; i++)
                sum += (double)x[i] * (double)rp_matrix_quantized(&f->plain, n, i) *
                       (double)rp_matrix_scale(&f->plain, n, i);
            f->reference[row * f->n + n] = sum * scale;
        }
    }
}

static void make(struct fixture *f, uint32_t m, uint32_t n, uint32_t k, enum rp_dtype dtype,
                 enum rp_matrix_input input, enum kind kind) {
    f->m = m;
    f->n = n;
    f->k = k;
    make_matrix(f, dtype, input, kind);
    for (size_t row = 0; row < M_MAX; row++)
        for (size_t i = 0; i < k + PAD; i++)
            f->in[row * (k + PAD) + i] = rp_f32_to_bf16(row < m && i < k ? next_value(f) * 5 : NAN);
    for (size_t i = 0; i < n; i++)
        f->bias[i] = next_value(f);
    make_reference(f);
}

static void poison(struct fixture *f) { memset(f->out, 0xFF, f->out_bytes); }

static struct rp_matmul_args args_of(struct fixture *f, const struct rp_matrix *weight) {
    return (struct rp_matmul_args){.weight = weight,
                                   .in = f->in,
                                   .out = f->out + GUARD,
                                   .in_stride = f->k + PAD,
                                   .out_stride = f->n + PAD,
                                   .out_dtype = RP_DTYPE_F32,
                                   .scratch = f->scratch,
                                   .scratch_bytes = f->scratch_bytes};
}

static void run(enum rp_cpu_isa isa, const struct rp_matmul_args *args, uint32_t m,
                uint32_t workers) {
    rp_matmul_fn fn = rp_matmul_select(isa, args->weight);
    for (uint32_t w = 0; w < workers; w++) {
        struct rp_cpu_worker worker = {.index = w, .count = workers};
        fn(args, m, &worker);
    }
}

static void check_guards(struct fixture *f, size_t columns) {
    for (size_t i = 0; i < f->out_bytes; i++) {
        size_t stride = (f->n + PAD) * 4;
        bool inside =
            i >= GUARD && (i - GUARD) / stride < f->m && (i - GUARD) % stride < columns * 4;
        if (!inside && f->out[i] != 0xFF)
            fail_msg("byte %zu outside of the output was written", i);
    }
}

static void check_error(struct fixture *f, bool bias, int isa) {
    double error = 0, norm = 1e-30;
    for (size_t row = 0; row < f->m; row++)
        for (size_t n = 0; n < f->n; n++) {
            double want = f->reference[row * f->n + n] + (bias ? (double)f->bias[n] : 0);
            double got = (double)((float *)(void *)(f->out + GUARD))[row * (f->n + PAD) + n];
            error += (got - want) * (got - want);
            norm += want * want;
        }
    if (!(sqrt(error / norm) < 2e-6))
        fail_msg("isa %d m=%u n=%u k=%u dtype=%d input=%d scales=%d: error %g", isa, f->m, f->n,
                 f->k, f->plain.dtype, f->plain.input, f->plain.scale_kind, sqrt(error / norm));
}

#define FOR_FORMATS(dtype, input, kind)                                                            \
    for (int dtype = RP_DTYPE_FP8_E4M3; dtype <= RP_DTYPE_INT8; dtype++)                           \
        for (int input = RP_INPUT_PLAIN; input <= RP_INPUT_QUANTIZED; input++)                     \
            for (int kind = CHANNEL; kind <= (dtype == RP_DTYPE_INT8 ? TENSOR : BLOCK); kind++)

static void test_every_kernel_is_the_product_for_every_format_and_odd_sizes(void **state) {
    struct fixture *f = *state;
    static const uint32_t shapes[][3] = {{1, 1, 1},   {3, 17, 5},    {2, 16, 4},    {5, 15, 33},
                                         {7, 48, 64}, {98, 33, 130}, {1, 290, 257}, {4, 150, 2099}};
    for (size_t s = 0; s < RP_ARRAY_COUNT(shapes); s++)
        FOR_FORMATS(dtype, input, kind) {
            make(f, shapes[s][0], shapes[s][1], shapes[s][2], (enum rp_dtype)dtype,
                 (enum rp_matrix_input)input, (enum kind)kind);
            for (int isa = RP_ISA_SCALAR - 1; isa <= (int)rp_cpu_isa_detect(); isa++) {
                struct rp_matmul_args args =
                    args_of(f, isa < RP_ISA_SCALAR ? &f->plain : &f->packed);
                args.bias = isa & 1 ? f->bias : NULL;
                poison(f);
                run((enum rp_cpu_isa)RP_MAX(isa, RP_ISA_SCALAR), &args, f->m, 2);
                check_guards(f, f->n);
                check_error(f, args.bias != NULL, isa);
            }
        }
}

/* INT8 with quantized rows: the first level's bits are everybody's. */
static void test_a_row_has_the_same_bits_in_every_batch_team_and_instruction_set(void **state) {
    struct fixture *f = *state;
    static const uint32_t batches[] = {1, 2, 3, 4, 7, 16, 97, 130};
    FOR_FORMATS(dtype, input, kind) {
        bool exact = dtype == RP_DTYPE_INT8 && input == RP_INPUT_QUANTIZED;
        make(f, M_MAX, 83, 1203, (enum rp_dtype)dtype, (enum rp_matrix_input)input,
             (enum kind)kind);
        size_t stride = f->n + PAD;
        for (int isa = exact ? RP_ISA_SCALAR : RP_ISA_AVX2; isa <= (int)rp_cpu_isa_detect();
             isa++) {
            struct rp_matmul_args args = args_of(f, &f->packed);
            if (isa <= RP_ISA_AVX2 && (isa == RP_ISA_SCALAR || !exact)) {
                poison(f);
                for (size_t row = 0; row < M_MAX; row++) {
                    args.in = f->in + row * args.in_stride;
                    args.out = (float *)(void *)(f->out + GUARD) + row * stride;
                    run((enum rp_cpu_isa)isa, &args, 1, 1);
                }
                memcpy(f->other, f->out, f->out_bytes);
            }
            for (size_t b = isa == RP_ISA_SCALAR ? 7 : 0; b < RP_ARRAY_COUNT(batches); b++)
                for (uint32_t workers = 1; workers <= WORKERS; workers++) {
                    size_t begin = (M_MAX - batches[b]) / 2;
                    args.in = f->in + begin * args.in_stride;
                    args.out = (float *)(void *)(f->out + GUARD) + begin * stride;
                    poison(f);
                    run((enum rp_cpu_isa)isa, &args, batches[b], workers);
                    size_t at = GUARD + begin * stride * 4;
                    if (memcmp(f->out + at, f->other + at, (batches[b] * stride - PAD) * 4) != 0)
                        fail_msg("isa %d dtype=%d input=%d scales=%d: %u rows over %u workers", isa,
                                 dtype, input, kind, batches[b], workers);
                }
        }
    }
}

static void test_sums_of_the_largest_quantized_values_are_exact(void **state) {
    struct fixture *f = *state;
    make(f, 5, 40, 2048, RP_DTYPE_INT8, RP_INPUT_QUANTIZED, TENSOR);
    memset(f->plain.data, -128, (size_t)f->n * f->k);
    ((float *)(uintptr_t)f->plain.scales)[0] = 1.0f;
    rp_matrix_deinit(&f->packed);
    f->packed = copy_of(&f->plain);
    assert_int_equal(rp_matrix_prepare_cpu(&f->packed, RP_ISA_AVX2, NULL), RP_OK);
    for (size_t i = 0; i < 5 * (size_t)(f->k + PAD); i++)
        f->in[i] = rp_f32_to_bf16(i % 2 && i < f->k + PAD ? 127.0f : -127.0f);
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        struct rp_matmul_args args = args_of(f, &f->packed);
        poison(f);
        run((enum rp_cpu_isa)isa, &args, 5, 1);
        const float *out = args.out;
        assert_true(out[0] == 0.0f);
        assert_true(out[args.out_stride + 39] == 127.0f * 128 * 2048);
    }
}

static void
test_accumulated_bf16_and_gated_products_are_the_product_and_then_the_rest(void **state) {
    struct fixture *f = *state;
    FOR_FORMATS(dtype, input, kind)
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        make(f, 6, 96, 77, (enum rp_dtype)dtype, (enum rp_matrix_input)input, (enum kind)kind);
        struct rp_matmul_args args = args_of(f, &f->packed);
        size_t stride = args.out_stride;
        float *out = (float *)(void *)(f->out + GUARD);
        float *sums = (float *)(void *)(f->other + GUARD);
        args.bias = f->bias;
        run((enum rp_cpu_isa)isa, &args, f->m, 1);
        memcpy(f->other, f->out, f->out_bytes);
        args.accumulate = true;
        for (size_t i = 0; i < f->m * stride; i++)
            out[i] = 2.5f;
        run((enum rp_cpu_isa)isa, &args, f->m, 2);
        for (size_t row = 0; row < f->m; row++)
            for (size_t n = 0; n < f->n; n++)
                assert_true(out[row * stride + n] == 2.5f + sums[row * stride + n]);
        args.accumulate = false;
        args.gated = true;
        args.fn = RP_ACTIVATION_SILU;
        poison(f);
        run((enum rp_cpu_isa)isa, &args, f->m, 3);
        check_guards(f, 48);
        for (size_t row = 0; row < f->m; row++)
            for (size_t n = 0; n < 48; n++) {
                double gate = (double)sums[row * stride + n];
                double want = gate / (1 + exp(-gate)) * (double)sums[row * stride + 48 + n];
                double got = (double)out[row * stride + n];
                assert_true(fabs(got - want) <= 1e-5 * fabs(want) + 1e-6);
            }
        args.gated = false;
        args.out_dtype = RP_DTYPE_BF16;
        run((enum rp_cpu_isa)isa, &args, f->m, 1);
        for (size_t n = 0; n < f->n; n++)
            assert_int_equal(((uint16_t *)args.out)[n], rp_f32_to_bf16(sums[n]));
    }
}

static void test_a_nan_or_an_infinity_spoils_its_own_row_alone(void **state) {
    struct fixture *f = *state;
    FOR_FORMATS(dtype, input, kind) {
        make(f, 9, 30, 41, (enum rp_dtype)dtype, (enum rp_matrix_input)input, (enum kind)kind);
        f->in[4 * (f->k + PAD) + 7] = rp_f32_to_bf16(NAN);
        for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
            struct rp_matmul_args args = args_of(f, &f->packed);
            poison(f);
            run((enum rp_cpu_isa)isa, &args, f->m, 1);
            for (size_t row = 0; row < f->m; row++)
                for (size_t n = 0; n < f->n; n++)
                    assert_int_equal(row == 4,
                                     isnan(((float *)args.out)[row * args.out_stride + n]) != 0);
        }
    }
}

static void test_what_has_no_product_is_refused(void **state) {
    (void)state;
    struct rp_error err;
    struct rp_matrix matrix = {
        .rows = 4, .cols = 4, .dtype = RP_DTYPE_INT8, .scale_kind = RP_SCALE_BLOCK_128};
    assert_int_equal(rp_matrix_prepare_cpu(&matrix, RP_ISA_AVX2, &err), RP_STATUS_UNSUPPORTED);
    matrix.scale_kind = RP_SCALE_CHANNEL;
    matrix.cols = RP_INT8_COLS_MAX + 1;
    assert_int_equal(rp_matrix_prepare_cpu(&matrix, RP_ISA_AVX2, &err), RP_STATUS_UNSUPPORTED);
    matrix.cols = 4;
    assert_int_equal(rp_matrix_prepare_cpu(&matrix, RP_ISA_AVX2, &err), RP_OK);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_every_kernel_is_the_product_for_every_format_and_odd_sizes),
        TEST(test_a_row_has_the_same_bits_in_every_batch_team_and_instruction_set),
        TEST(test_sums_of_the_largest_quantized_values_are_exact),
        TEST(test_accumulated_bf16_and_gated_products_are_the_product_and_then_the_rest),
        TEST(test_a_nan_or_an_infinity_spoils_its_own_row_alone),
        TEST(test_what_has_no_product_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
