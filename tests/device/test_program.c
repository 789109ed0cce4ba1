/* Goal: a program contains what was added to it, and its fingerprint changes exactly when it
 * does. */
#include "base/memory.h"
#include "device/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct rp_program program;

static int setup(void **state) {
    (void)state;
    rp_program_init(&program);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rp_alloc_fail_at(0);
    rp_program_deinit(&program);
    return 0;
}

static struct rp_op norm_op(float eps) {
    struct rp_op op;
    memset(&op, 0xAB, sizeof op); /* padding and unused members must not matter */
    op.kind = RP_OP_NORM;
    op.rows = RP_ROWS_TOKEN;
    memset(op.name, 0, sizeof op.name);
    memcpy(op.name, "norm", 4);
    op.layer = RP_LAYER_NONE;
    op.in_count = 1;
    op.in[0] = op.in[1] = (struct rp_view){0, 0, 8};
    op.out = (struct rp_view){0, 0, 8};
    op.weight = NULL;
    op.vector = NULL;
    op.table = NULL;
    op.u.norm.eps = eps;
    op.u.norm.group = 8;
    op.u.norm.weight_offset = 0;
    return op;
}

static uint64_t fingerprint_with(uint32_t cols, enum rp_dtype dtype, const char *name,
                                 const struct rp_op *op) {
    struct rp_program p;
    rp_program_init(&p);
    assert_int_equal(rp_program_add_tensor(&p, RP_ROWS_TOKEN, dtype, cols, "%s", name), 0);
    assert_int_equal(rp_program_add_op(&p, op), 0);
    uint64_t fingerprint = rp_program_fingerprint(&p);
    rp_program_deinit(&p);
    return fingerprint;
}

static void test_tensors_and_operators_get_consecutive_indices(void **state) {
    (void)state;
    for (int i = 0; i < 200; i++)
        assert_int_equal(
            rp_program_add_tensor(&program, RP_ROWS_LOGIT, RP_DTYPE_BF16, 8, "layer.%d.x", i), i);
    struct rp_op op = norm_op(1e-5f);
    for (int i = 0; i < 200; i++)
        assert_int_equal(rp_program_add_op(&program, &op), i);
    assert_int_equal(program.tensor_count, 200);
    assert_int_equal(program.op_count, 200);
    assert_string_equal(program.tensors[199].name, "layer.199.x");
    assert_int_equal(program.tensors[199].rows, RP_ROWS_LOGIT);
    assert_int_equal(program.tensors[199].dtype, RP_DTYPE_BF16);
    assert_string_equal(program.ops[199].name, "norm");
    assert_int_equal(rp_view_all(&program, 199).cols, 8);
}

static void test_the_fingerprint_does_not_see_addresses_or_padding(void **state) {
    (void)state;
    float weight[8];
    struct rp_op op = norm_op(1e-5f), other = norm_op(1e-5f);
    uint64_t fingerprint = fingerprint_with(8, RP_DTYPE_F32, "x", &op);
    other.vector = weight;
    other.in[1].col = 3; /* past in_count */
    assert_true(fingerprint_with(8, RP_DTYPE_F32, "x", &other) == fingerprint);
}

static void test_the_fingerprint_sees_every_part_of_a_program(void **state) {
    (void)state;
    struct rp_op op = norm_op(1e-5f), eps = norm_op(1e-6f), rows = op, name = op, kind = op,
                 view = op, two = op, three = op;
    struct rp_op layer = op;
    rows.rows = RP_ROWS_LOGIT;
    name.name[0] = 'm';
    kind.kind = RP_OP_ADD;
    view.out.cols = 4;
    layer.layer = 0;
    two.in_count = 2;
    three.in_count = 3;
    three.in[2] = op.in[0];
    const uint64_t all[] = {
        fingerprint_with(8, RP_DTYPE_F32, "x", &op),
        fingerprint_with(9, RP_DTYPE_F32, "x", &op),
        fingerprint_with(8, RP_DTYPE_BF16, "x", &op),
        fingerprint_with(8, RP_DTYPE_F32, "y", &op),
        fingerprint_with(8, RP_DTYPE_F32, "x", &eps),
        fingerprint_with(8, RP_DTYPE_F32, "x", &rows),
        fingerprint_with(8, RP_DTYPE_F32, "x", &name),
        fingerprint_with(8, RP_DTYPE_F32, "x", &kind),
        fingerprint_with(8, RP_DTYPE_F32, "x", &layer),
        fingerprint_with(8, RP_DTYPE_F32, "x", &view),
        fingerprint_with(8, RP_DTYPE_F32, "x", &two),
        fingerprint_with(8, RP_DTYPE_F32, "x", &three),
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(all); i++)
        for (size_t j = 0; j < i; j++)
            assert_true(all[i] != all[j]);
}

static void test_memory_that_is_out_is_a_status_and_keeps_the_program(void **state) {
    (void)state;
    struct rp_op op = norm_op(1e-5f);
    rp_alloc_fail_at(1);
    assert_int_equal(rp_program_add_tensor(&program, RP_ROWS_TOKEN, RP_DTYPE_F32, 8, "x"),
                     RP_STATUS_NO_MEMORY);
    rp_alloc_fail_at(0);
    assert_int_equal(rp_program_add_tensor(&program, RP_ROWS_TOKEN, RP_DTYPE_F32, 8, "x"), 0);
    rp_alloc_fail_at(1);
    assert_int_equal(rp_program_add_op(&program, &op), RP_STATUS_NO_MEMORY);
    rp_alloc_fail_at(0);
    assert_int_equal(rp_program_add_op(&program, &op), 0);
}

static void test_every_kind_and_type_has_a_name(void **state) {
    (void)state;
    for (int kind = 0; kind < RP_OP_KIND_COUNT; kind++)
        assert_string_not_equal(rp_op_kind_name((enum rp_op_kind)kind), "?");
    assert_string_equal(rp_op_kind_name(RP_OP_KV_WRITE), "kv_write");
    assert_string_equal(rp_op_kind_name(RP_OP_KIND_COUNT), "?");
    for (int dtype = 0; dtype <= RP_DTYPE_I32; dtype++) {
        assert_string_not_equal(rp_dtype_name((enum rp_dtype)dtype), "?");
        assert_in_range(rp_dtype_bytes((enum rp_dtype)dtype), 1, 4);
    }
    assert_string_equal(rp_dtype_name(RP_DTYPE_BF16), "bf16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_tensors_and_operators_get_consecutive_indices),
        TEST(test_the_fingerprint_does_not_see_addresses_or_padding),
        TEST(test_the_fingerprint_sees_every_part_of_a_program),
        TEST(test_memory_that_is_out_is_a_status_and_keeps_the_program),
        TEST(test_every_kind_and_type_has_a_name),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
