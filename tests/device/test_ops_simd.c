/* Goal: the SIMD versions of the small operators agree with the scalar ones, write nothing else,
 * and give a value the same bits at every position. Method: every instruction set of this machine
 * against the reference for all column counts around its vector width, f32 and bf16, outputs
 * poisoned inside guards; values that are large, tiny and not finite. */
#include "base/bf16.h"
#include "device/ops_simd.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ROWS   3
#define COLS   70
#define STRIDE (2 * COLS + 3) /* odd: rows are aligned to their elements only */
#define GUARD  0x7B

static float in[ROWS * STRIDE], other_in[ROWS * STRIDE], weight[COLS];
static unsigned char expect[ROWS * STRIDE * 4], got[ROWS * STRIDE * 4];
static uint32_t seed = 777;

static float next_value(void) {
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return (float)(int32_t)seed * 0x1p-31f;
}

static int setup(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(in); i++) {
        in[i] = next_value() * 12;
        other_in[i] = next_value();
    }
    for (size_t i = 0; i < COLS; i++)
        weight[i] = 1 + next_value();
    memset(expect, GUARD, sizeof expect);
    memset(got, GUARD, sizeof got);
    return 0;
}

static float value_at(const unsigned char *from, size_t i, enum rp_dtype dtype) {
    float full;
    uint16_t half;
    if (dtype == RP_DTYPE_BF16) {
        memcpy(&half, from + 2 * i, sizeof half);
        return rp_bf16_to_f32(half);
    }
    memcpy(&full, from + 4 * i, sizeof full);
    return full;
}

/* Compares all of `got`, guards too, with `expect`; allows a relative `error` (0: equal bits). */
static void assert_close(enum rp_dtype dtype, double error, const char *what, uint32_t cols) {
    size_t count = sizeof got / rp_dtype_bytes(dtype);
    if (error == 0 && memcmp(got, expect, sizeof got) != 0)
        fail_msg("%s of %u columns: other bits", what, cols);
    for (size_t i = 0; i < count; i++) {
        double want = (double)value_at(expect, i, dtype), have = (double)value_at(got, i, dtype);
        if (isnan(want) != isnan(have) || fabs(want - have) > error * fabs(want) + 1e-30)
            fail_msg("%s of %u columns: %g instead of %g at %zu", what, cols, have, want, i);
    }
}

/* bf16 may round values that differ by a bit or two to neighbors. */
static double allowed(enum rp_dtype dtype) { return dtype == RP_DTYPE_BF16 ? 0x1p-8 : 1e-6; }

typedef void (*check_fn)(const struct rp_fast_ops *ops, uint32_t cols, enum rp_dtype dtype);

static void for_all(check_fn check) {
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++)
        for (uint32_t cols = 1; cols <= COLS; cols++)
            for (int half = 0; half < 2; half++) {
                memset(expect, GUARD, sizeof expect);
                memset(got, GUARD, sizeof got);
                check(rp_fast_ops_select((enum rp_cpu_isa)isa), cols,
                      half ? RP_DTYPE_BF16 : RP_DTYPE_F32);
            }
}

static void check_norm(const struct rp_fast_ops *ops, uint32_t cols, enum rp_dtype dtype) {
    struct rp_norm_args args = {
        {in, STRIDE, RP_DTYPE_F32}, {expect, STRIDE, dtype}, weight, cols, cols, 1e-5f, 0.5f};
    rp_norm_rows(&args, 0, ROWS);
    args.out.data = got;
    ops->norm(&args, 0, 1);
    ops->norm(&args, 1, ROWS);
    assert_close(dtype, allowed(dtype), "norm", cols);
}

static void test_norm_is_the_norm(void **state) {
    (void)state;
    for_all(check_norm);
}

static void check_norm_in_place(const struct rp_fast_ops *ops, uint32_t cols, enum rp_dtype dtype) {
    if (dtype != RP_DTYPE_F32)
        return;
    /* Two groups side by side, as the heads of q are. */
    struct rp_norm_args args = {
        {expect, STRIDE, dtype}, {expect, STRIDE, dtype}, weight, 2 * cols, cols, 1e-5f, 0.0f};
    memcpy(expect, in, sizeof in);
    memcpy(got, in, sizeof in);
    rp_norm_rows(&args, 0, ROWS);
    args.in.data = args.out.data = got;
    ops->norm(&args, 0, ROWS);
    assert_close(dtype, allowed(dtype), "norm in place", cols);
}

static void test_norm_of_groups_in_place_is_the_norm(void **state) {
    (void)state;
    for_all(check_norm_in_place);
}

static void check_layer_norm(const struct rp_fast_ops *ops, uint32_t cols, enum rp_dtype dtype) {
    struct rp_layer_norm_args args = {{in, STRIDE, RP_DTYPE_F32},
                                      {expect, STRIDE, dtype},
                                      weight,
                                      cols % 2 ? other_in : NULL,
                                      cols,
                                      cols % 3 ? cols : cols / 3,
                                      1e-5f};
    rp_layer_norm_rows(&args, 0, ROWS);
    /* Against the formula: the reference is written from it. */
    double sum = 0, squares = 0;
    for (uint32_t c = 0; c < args.group; c++)
        sum += (double)in[c];
    for (uint32_t c = 0; c < args.group; c++)
        squares += pow((double)in[c] - sum / args.group, 2);
    double y = ((double)in[0] - sum / args.group) / sqrt(squares / args.group + 1e-5);
    y = y * (double)weight[0] + (args.bias ? (double)other_in[0] : 0.0);
    assert_true(fabs((double)value_at(expect, 0, dtype) - y) <= 1e-2 * fabs(y) + 1e-5);
    args.out.data = got;
    ops->layer_norm(&args, 0, 1);
    ops->layer_norm(&args, 1, ROWS);
    assert_close(dtype, dtype == RP_DTYPE_BF16 ? 0x1p-7 : 1e-5, "layer_norm", cols);
}

static void test_layer_norm_is_the_formula(void **state) {
    (void)state;
    for_all(check_layer_norm);
}

static void check_scale(const struct rp_fast_ops *ops, uint32_t cols, enum rp_dtype dtype) {
    const float table[2] = {1.5f, 0.7f};
    uint32_t positions[ROWS] = {0, 1, 9}; /* the last one is past the table */
    struct rp_scale_args args = {.in = {in, STRIDE, RP_DTYPE_F32},
                                 .out = {expect, STRIDE, dtype},
                                 .table = cols % 2 ? table : NULL,
                                 .cols = cols,
                                 .position_count = 2,
                                 .factor = 0.3f};
    args.step.positions = positions;
    rp_scale_rows(&args, 0, ROWS);
    if (dtype == RP_DTYPE_F32)
        assert_true(value_at(expect, 2 * STRIDE, dtype) ==
                    in[2 * STRIDE] * (cols % 2 ? 0.3f * 0.7f : 0.3f));
    args.out.data = got;
    ops->scale(&args, 0, ROWS);
    assert_close(dtype, 0, "scale", cols);
}

static void test_scale_gives_the_same_bits(void **state) {
    (void)state;
    for_all(check_scale);
}

static void check_rope(const struct rp_fast_ops *ops, uint32_t cols, enum rp_dtype dtype) {
    static float angles[4 * COLS];
    uint32_t positions[ROWS] = {0, 1, 9}; /* the last one is past the table */
    uint32_t half = (cols + 3) / 4;       /* 1 .. 18 */
    struct rp_rope_args args = {.x = {expect, STRIDE, dtype},
                                .table = angles,
                                .heads = 2,
                                .head_dim = 2 * half + cols % 3,
                                .rotary_dim = 2 * half,
                                .position_count = 2};
    args.step.positions = positions;
    for (size_t i = 0; i < RP_ARRAY_COUNT(angles); i++)
        angles[i] = other_in[i];
    for (size_t i = 0; i < RP_ARRAY_COUNT(in); i++) {
        uint16_t rounded = rp_f32_to_bf16(in[i]);
        memcpy(expect + i * rp_dtype_bytes(dtype),
               dtype == RP_DTYPE_BF16 ? (void *)&rounded : (void *)&in[i], rp_dtype_bytes(dtype));
    }
    memcpy(got, expect, sizeof got);
    rp_rope_rows(&args, 0, ROWS);
    args.x.data = got;
    ops->rope(&args, 0, ROWS);
    assert_close(dtype, 0, "rope", cols);
}

static void test_rope_gives_the_same_bits(void **state) {
    (void)state;
    for_all(check_rope);
}

static void check_add(const struct rp_fast_ops *ops, uint32_t cols, enum rp_dtype dtype) {
    struct rp_add_args args = {{in, STRIDE, RP_DTYPE_F32},
                               {other_in, STRIDE, RP_DTYPE_F32},
                               {expect, STRIDE, dtype},
                               cols};
    rp_add_rows(&args, 0, ROWS);
    args.out.data = got;
    ops->add(&args, 0, ROWS);
    assert_close(dtype, 0, "add", cols);
}

static void test_add_gives_the_same_bits(void **state) {
    (void)state;
    for_all(check_add);
}

static void check_activation(const struct rp_fast_ops *ops, uint32_t cols, enum rp_dtype dtype) {
    for (int fn = RP_ACTIVATION_SILU; fn <= RP_ACTIVATION_GELU_TANH; fn++) {
        struct rp_activation_args args = {
            {in, STRIDE, RP_DTYPE_F32}, {expect, STRIDE, dtype}, cols, (enum rp_activation)fn};
        rp_activation_rows(&args, 0, ROWS);
        args.out.data = got;
        ops->activation(&args, 0, ROWS);
        /* In the reference GELU's tail is the difference of two numbers near one. */
        for (size_t i = 0; fn == RP_ACTIVATION_GELU_TANH && i < ROWS * (size_t)STRIDE; i++)
            if (in[i] < -2.0f)
                return;
        assert_close(dtype, allowed(dtype), "activation", cols);
    }
}

static void test_activation_is_the_activation(void **state) {
    (void)state;
    for_all(check_activation);
}

/* Against the formula in f64, over the whole range of a gate. */
static void test_activations_of_any_size_are_right(void **state) {
    (void)state;
    float gate[64], one[64], out[64];
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++)
        for (float first = -120.0f; first < 120.0f; first += 0.37f)
            for (int fn = RP_ACTIVATION_SILU; fn <= RP_ACTIVATION_GELU_TANH; fn++) {
                for (int i = 0; i < 64; i++) {
                    gate[i] = first + (float)i * 0.005f;
                    one[i] = 1.0f;
                }
                rp_fast_ops_select((enum rp_cpu_isa)isa)
                    ->gate((enum rp_activation)fn, gate, one, 64, out, RP_DTYPE_F32);
                for (int i = 0; i < 64; i++) {
                    double x = (double)gate[i];
                    double u = 2 * 0.7978845608028654 * (x + 0.044715 * x * x * x);
                    double want = x / (1 + exp(fn == RP_ACTIVATION_SILU ? -x : -u));
                    if (!(fabs((double)out[i] - want) <= 2e-6 * fabs(want) + 3e-6))
                        fail_msg("isa %d fn %d at %g: %g instead of %g", isa, fn, x, (double)out[i],
                                 want);
                }
            }
}

/* gpt-oss's activation; gates and ups inside the limits, at them, and past them. */
static void test_the_clamped_activation_limits_gate_and_up(void **state) {
    (void)state;
    float gate[21], up[21], out[21], nan = NAN, two = 2.0f;
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        const struct rp_fast_ops *ops = rp_fast_ops_select((enum rp_cpu_isa)isa);
        for (float first = -120.0f; first < 20.0f; first += 0.37f) {
            for (int i = 0; i < 21; i++) {
                gate[i] = first + (float)i * 0.05f;
                up[i] = (float)(i - 10);
            }
            ops->gate(RP_ACTIVATION_SWIGLU_CLAMPED, gate, up, 21, out, RP_DTYPE_F32);
            for (int i = 0; i < 21; i++) {
                double g = fmin((double)gate[i], 7), u = fmax(fmin((double)up[i], 7), -7);
                double want = (u + 1) * g / (1 + exp(-1.702 * g));
                if (!(fabs((double)out[i] - want) <= 3e-6 * fabs(want) + 3e-6))
                    fail_msg("isa %d at %g, %g: %g instead of %g", isa, (double)gate[i],
                             (double)up[i], (double)out[i], want);
            }
        }
        ops->gate(RP_ACTIVATION_SWIGLU_CLAMPED, &nan, &two, 1, out, RP_DTYPE_F32);
        ops->gate(RP_ACTIVATION_SWIGLU_CLAMPED, &two, &nan, 1, out + 1, RP_DTYPE_F32);
        assert_true(isnan(out[0]) && isnan(out[1]));
    }
}

static void test_a_sigmoid_gate_is_the_formula_on_every_instruction_set(void **state) {
    float gate[21], up[21], out[21];
    (void)state;
    for (int i = 0; i < 21; i++) {
        gate[i] = (float)(i - 10) * 8.5f; /* nearly the largest argument of exp */
        up[i] = (float)(i % 5) - 1.5f;
    }
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        const struct rp_fast_ops *ops = rp_fast_ops_select((enum rp_cpu_isa)isa);
        memset(out, 0xFF, sizeof out);
        ops->gate(RP_ACTIVATION_SIGMOID, gate, up, 21, out, RP_DTYPE_F32);
        for (int i = 0; i < 21; i++) {
            double want = (double)up[i] / (1 + exp(-(double)gate[i]));
            if (!(fabs((double)out[i] - want) <= 3e-6 * fabs(want) + 1e-30))
                fail_msg("isa %d at %g: %g instead of %g", isa, (double)gate[i], (double)out[i],
                         want);
        }
    }
}

static void test_caps_are_the_formula_at_any_size_and_place(void **state) {
    (void)state;
    float x[COLS], out[COLS], alone[COLS];
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        const struct rp_fast_ops *ops = rp_fast_ops_select((enum rp_cpu_isa)isa);
        for (int scale = -20; scale <= 12; scale++) {
            for (size_t i = 0; i < COLS; i++)
                x[i] = ldexpf(in[i], scale);
            struct rp_soft_cap_args args = {
                {x, COLS, RP_DTYPE_F32}, {out, COLS, RP_DTYPE_F32}, COLS, 30.0f};
            memset(out, 0xFF, sizeof out);
            ops->soft_cap_cols(&args, 0, 0, COLS);
            args.out.data = alone;
            ops->soft_cap_cols(&args, 0, 5, 6);
            assert_memory_equal(&alone[5], &out[5], sizeof alone[5]);
            for (size_t i = 0; i < COLS; i++) {
                double want = 30 * tanh((double)x[i] / 30);
                if (!(fabs((double)out[i] - want) <= 1e-6 * fabs(want)))
                    fail_msg("isa %d at %g: %g instead of %g", isa, (double)x[i], (double)out[i],
                             want);
            }
        }
        x[3] = NAN;
        x[4] = INFINITY;
        x[5] = -INFINITY;
        struct rp_soft_cap_args args = {
            {x, COLS, RP_DTYPE_F32}, {x, COLS, RP_DTYPE_F32}, COLS, 30.0f};
        ops->soft_cap_cols(&args, 0, 0, COLS);
        assert_true(isnan(x[3]) && fabsf(x[4] - 30) < 1e-4f && fabsf(x[5] + 30) < 1e-4f);
    }
}

static void test_a_value_has_the_same_bits_at_every_place(void **state) {
    (void)state;
    float out[COLS], alone;
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        const struct rp_fast_ops *ops = rp_fast_ops_select((enum rp_cpu_isa)isa);
        for (size_t count = 1; count <= COLS; count++) {
            ops->gate(RP_ACTIVATION_SILU, in, other_in, count, out, RP_DTYPE_F32);
            for (size_t i = 0; i < count; i++) {
                ops->gate(RP_ACTIVATION_SILU, in + i, other_in + i, 1, &alone, RP_DTYPE_F32);
                assert_memory_equal(&alone, &out[i], sizeof alone);
            }
        }
    }
}

static void test_nan_and_rounding_to_bf16_are_those_of_the_truth(void **state) {
    (void)state;
    float values[64], zero[64] = {0};
    uint16_t out[64];
    for (int i = 0; i < 64; i++) {
        uint32_t bits = i < 8    ? 0x7F800000u + (uint32_t)i
                        : i < 16 ? 0x3F800000u + 0x4000u * (uint32_t)(i - 8)
                        : i < 24 ? 0x00000001u << i
                                 : 0x3F80u * (uint32_t)i * 0x10001u;
        memcpy(&values[i], &bits, sizeof bits);
    }
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        struct rp_add_args args = {
            {values, 64, RP_DTYPE_F32}, {zero, 64, RP_DTYPE_F32}, {out, 64, RP_DTYPE_BF16}, 64};
        rp_fast_ops_select((enum rp_cpu_isa)isa)->add(&args, 0, 1);
        for (int i = 0; i < 64; i++)
            assert_int_equal(out[i], rp_f32_to_bf16(values[i] + 0.0f));
        float nan = NAN, up = 2.0f, result = 0.0f;
        rp_fast_ops_select((enum rp_cpu_isa)isa)
            ->gate(RP_ACTIVATION_SILU, &nan, &up, 1, &result, RP_DTYPE_F32);
        assert_true(isnan(result));
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        TEST(test_norm_is_the_norm),
        TEST(test_norm_of_groups_in_place_is_the_norm),
        TEST(test_layer_norm_is_the_formula),
        TEST(test_scale_gives_the_same_bits),
        TEST(test_rope_gives_the_same_bits),
        TEST(test_add_gives_the_same_bits),
        TEST(test_activation_is_the_activation),
        TEST(test_activations_of_any_size_are_right),
        TEST(test_the_clamped_activation_limits_gate_and_up),
        TEST(test_a_sigmoid_gate_is_the_formula_on_every_instruction_set),
        TEST(test_caps_are_the_formula_at_any_size_and_place),
        TEST(test_a_value_has_the_same_bits_at_every_place),
        TEST(test_nan_and_rounding_to_bf16_are_those_of_the_truth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
