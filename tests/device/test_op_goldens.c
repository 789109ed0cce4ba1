/* Goal: the small operators agree with numbers from another implementation.
 * Method: the operator goldens of the test data (inputs and outputs computed by vLLM on torch),
 * each within the tolerance that its manifest states. Outputs are poisoned before. */
#include "base/bf16.h"
#include "base/memory.h"
#include "device/ops.h"
#include "model/rope.h"
#include "quant/matmul.h"
#include "tests/support/data.h"
#include "tests/support/npy.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TENSORS_MAX 8

struct golden {
    char dir[1024];
    json_t *manifest;
    struct rp_npy tensors[TENSORS_MAX];
    const char *names[TENSORS_MAX];
    uint32_t count;
};

static struct golden golden; /* freed in teardown, also when a test fails */

static int teardown(void **state) {
    (void)state;
    for (uint32_t i = 0; i < golden.count; i++)
        rp_free(golden.tensors[i].values);
    json_decref(golden.manifest);
    memset(&golden, 0, sizeof golden);
    return 0;
}

static void open_golden(const char *name) {
    char path[1200], relative[256];
    snprintf(relative, sizeof relative, "op_goldens/%s", name);
    if (!rp_test_data(relative, golden.dir, sizeof golden.dir))
        skip();
    snprintf(path, sizeof path, "%s/manifest.json", golden.dir);
    golden.manifest = json_load_file(path, 0, NULL);
    assert_non_null(golden.manifest);
}

static const struct rp_npy *tensor(const char *name) {
    char path[1200];
    for (uint32_t i = 0; i < golden.count; i++)
        if (strcmp(golden.names[i], name) == 0)
            return &golden.tensors[i];
    assert_true(golden.count < TENSORS_MAX);
    snprintf(path, sizeof path, "%s/%s.npy", golden.dir, name);
    assert_true(rp_npy_read(path, &golden.tensors[golden.count]));
    golden.names[golden.count] = name;
    return &golden.tensors[golden.count++];
}

static double number(const char *object, const char *key) {
    return json_number_value(json_object_get(json_object_get(golden.manifest, object), key));
}

static void check(const char *name, const float *got) {
    const struct rp_npy *want = tensor(name);
    double atol = number("tol", "atol"), rtol = number("tol", "rtol"), worst = 0.0;
    for (size_t i = 0; i < want->count; i++) {
        double difference = fabs((double)got[i] - want->values[i]);
        assert_false(isnan(got[i]));
        worst = fmax(worst, difference / (atol + rtol * fabs(want->values[i])));
    }
    printf("%s %s: worst difference is %.3g of the tolerance\n", golden.dir, name, worst);
    assert_true(worst <= 1.0);
}

static float *poisoned(size_t count) {
    float *values = rp_alloc(count * sizeof *values);
    memset(values, 0xFF, count * sizeof *values); /* NaN */
    return values;
}

static void check_rms_norm(const char *name, bool fused) {
    open_golden(name);
    const struct rp_npy *x = tensor("x"), *weight = tensor("weight");
    uint32_t cols = (uint32_t)weight->count, rows = (uint32_t)(x->count / cols);
    float *out = poisoned(x->count), *sum = poisoned(x->count);
    const float *in = x->values;
    if (fused) {
        struct rp_values a = {x->values, cols, RP_DTYPE_F32},
                         b = {tensor("residual_in")->values, cols, RP_DTYPE_F32},
                         to = {sum, cols, RP_DTYPE_F32};
        struct rp_add_args add = {a, b, to, cols};
        rp_add_rows(&add, 0, rows);
        in = sum;
        check("residual_out", sum);
    }
    struct rp_norm_args args = {.in = {(void *)(uintptr_t)in, cols, RP_DTYPE_F32},
                                .out = {out, cols, RP_DTYPE_F32},
                                .weight = weight->values,
                                .cols = cols,
                                .group = cols,
                                .eps = (float)number("args", "eps")};
    rp_norm_rows(&args, 0, rows);
    check("out", out);
    rp_free(out);
    rp_free(sum);
}

static void test_rms_norm_in_f32_agrees(void **state) {
    (void)state;
    check_rms_norm("rmsnorm_f32_8x128", false);
}

static void test_rms_norm_in_bf16_agrees(void **state) {
    (void)state;
    check_rms_norm("rmsnorm_bf16_8x128", false);
}

static void test_add_then_rms_norm_agrees(void **state) {
    (void)state;
    check_rms_norm("rmsnorm_fused_residual_f32_8x128", true);
}

static void check_rope(const char *name) {
    open_golden(name);
    const struct rp_npy *positions = tensor("positions"), *q = tensor("q_in"), *k = tensor("k_in");
    uint32_t tokens = (uint32_t)positions->count, head_dim = (uint32_t)number("args", "head_size");
    uint32_t q_heads = (uint32_t)number("args", "num_q_heads");
    uint32_t kv_heads = (uint32_t)number("args", "num_kv_heads");
    uint32_t rotary = (uint32_t)number("args", "rotary_dim"), longest = 0;
    uint32_t position_ids[64];
    for (uint32_t i = 0; i < tokens; i++) {
        position_ids[i] = (uint32_t)positions->values[i];
        longest = RP_MAX(longest, position_ids[i]);
    }
    /* The table of a model that rotates whole heads. */
    struct rp_rope rope = {.theta = number("args", "base")};
    float *table = rp_alloc((size_t)(longest + 1) * rotary * sizeof *table);
    rp_rope_table_fill(&rope, rotary, longest + 1, table);
    struct rp_rope_args args = {.step.positions = position_ids,
                                .table = table,
                                .head_dim = head_dim,
                                .rotary_dim = rotary,
                                .position_count = longest + 1};
    args.x = (struct rp_values){q->values, (size_t)q_heads * head_dim, RP_DTYPE_F32};
    args.heads = q_heads;
    rp_rope_rows(&args, 0, tokens);
    args.x = (struct rp_values){k->values, (size_t)kv_heads * head_dim, RP_DTYPE_F32};
    args.heads = kv_heads;
    rp_rope_rows(&args, 0, tokens);
    check("q_out", q->values);
    check("k_out", k->values);
    rp_free(table);
}

static void test_rope_agrees_at_short_positions(void **state) {
    (void)state;
    check_rope("rope_f32_pos_short");
}

static void test_rope_agrees_at_131072(void **state) {
    (void)state;
    check_rope("rope_f32_pos_131k");
}

static void test_silu_times_up_agrees(void **state) {
    (void)state;
    open_golden("silu_and_mul_bf16_8x256");
    const struct rp_npy *x = tensor("x");
    uint32_t rows = 8, cols = (uint32_t)(x->count / rows / 2);
    float *out = poisoned((size_t)rows * cols);
    struct rp_activation_args args = {{x->values, (size_t)cols * 2, RP_DTYPE_F32},
                                      {out, cols, RP_DTYPE_F32},
                                      cols,
                                      RP_ACTIVATION_SILU};
    rp_activation_rows(&args, 0, rows);
    check("out", out);
    rp_free(out);
}

static void test_embedding_agrees(void **state) {
    (void)state;
    open_golden("embedding_bf16_32ids");
    const struct rp_npy *table = tensor("table"), *ids = tensor("ids");
    uint32_t vocab = 64, hidden = (uint32_t)(table->count / vocab);
    int32_t tokens[64];
    float *out = poisoned(ids->count * hidden);
    struct rp_matrix matrix = {
        .rows = vocab, .cols = hidden, .dtype = RP_DTYPE_F32, .data = table->values};
    for (size_t i = 0; i < ids->count; i++)
        tokens[i] = (int32_t)ids->values[i];
    struct rp_embed_args args = {.step.token_ids = tokens,
                                 .table = &matrix,
                                 .read_row = rp_matrix_row_f32,
                                 .vocab = vocab,
                                 .hidden = hidden,
                                 .scale = 1.0f,
                                 .out = {out, hidden, RP_DTYPE_F32}};
    rp_embed_rows(&args, 0, (uint32_t)ids->count);
    check("out", out);
    rp_free(out);
}

/* a (m, k) bf16 times b (k, n) bf16: the weight is b transposed. Every kernel family is tried. */
static void test_matmul_in_bf16_agrees_with_every_kernel(void **state) {
    (void)state;
    open_golden("matmul_bf16_16x64x32");
    const uint32_t m = 16, k = 64, n = 32;
    const struct rp_npy *a = tensor("a"), *b = tensor("b");
    for (enum rp_cpu_isa isa = RP_ISA_SCALAR; isa <= rp_cpu_isa_detect(); isa++) {
        float *out = poisoned((size_t)m * n);
        uint16_t *in = rp_alloc((size_t)m * k * 2), *data = rp_alloc_aligned((size_t)n * k * 2, 64);
        for (uint32_t i = 0; i < m * k; i++)
            in[i] = rp_f32_to_bf16(a->values[i]);
        for (uint32_t row = 0; row < n; row++)
            for (uint32_t col = 0; col < k; col++)
                data[row * k + col] = rp_f32_to_bf16(b->values[col * n + row]);
        struct rp_matrix weight = {.rows = n, .cols = k, .dtype = RP_DTYPE_BF16, .data = data};
        assert_int_equal(rp_matrix_prepare_cpu(&weight, isa, NULL), RP_OK);
        struct rp_matmul_args args = {.weight = &weight,
                                      .in = in,
                                      .out = out,
                                      .in_stride = k,
                                      .out_stride = n,
                                      .out_dtype = RP_DTYPE_F32};
        const struct rp_cpu_worker alone = {0, 1, NULL};
        rp_matmul_select(isa, &weight)(&args, m, &alone);
        printf("%s ", rp_cpu_isa_name(isa));
        check("out", out);
        rp_matrix_deinit(&weight);
        rp_free(in);
        rp_free(out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_rms_norm_in_f32_agrees, teardown),
        cmocka_unit_test_teardown(test_rms_norm_in_bf16_agrees, teardown),
        cmocka_unit_test_teardown(test_add_then_rms_norm_agrees, teardown),
        cmocka_unit_test_teardown(test_rope_agrees_at_short_positions, teardown),
        cmocka_unit_test_teardown(test_rope_agrees_at_131072, teardown),
        cmocka_unit_test_teardown(test_silu_times_up_agrees, teardown),
        cmocka_unit_test_teardown(test_embedding_agrees, teardown),
        cmocka_unit_test_teardown(test_matmul_in_bf16_agrees_with_every_kernel, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
