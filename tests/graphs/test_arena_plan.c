/* Goal: tensors that are live at the same time never share bytes, and others may.
 * Method: a small program by hand, then random programs against brute force. */
#include "graphs/arena_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct rp_bucket bucket = {.tokens = 4, .rows = 4, .logit_rows = 2};

static struct rp_program program; /* freed in teardown */

static int teardown(void **state) {
    (void)state;
    rp_program_deinit(&program);
    return 0;
}

static void add_copy(int32_t from, int32_t to) {
    struct rp_op op = {.kind = RP_OP_ADD, .rows = RP_ROWS_TOKEN, .name = "op"};
    op.out = (struct rp_view){RP_NO_TENSOR, 0, 0};
    if (from != RP_NO_TENSOR)
        rp_op_add_input(&op, rp_view_all(&program, from));
    if (to != RP_NO_TENSOR)
        op.out = rp_view_all(&program, to);
    assert_true(rp_program_add_op(&program, &op) >= 0);
}

static int32_t tensor(uint32_t cols) {
    return rp_program_add_tensor(&program, RP_ROWS_TOKEN, RP_DTYPE_F32, cols, "t%u", cols);
}

static void test_what_two_neighbors_read_and_write_never_overlaps(void **state) {
    (void)state;
    size_t offsets[4], bytes;
    rp_program_init(&program);
    int32_t ids[4];
    for (int i = 0; i < 4; i++)
        ids[i] = tensor(64);
    for (int i = 0; i < 3; i++)
        add_copy(ids[i], ids[i + 1]);
    assert_int_equal(rp_arena_plan(&program, &bucket, false, offsets, &bytes), RP_OK);
    /* Operators 0 and 1 as one kernel read tensor 0 and write tensor 2; 3 is later. */
    assert_int_equal(bytes, 3 * 4 * 64 * sizeof(float));
    assert_int_equal(offsets[0], offsets[3]);
}

/* The sum of experts, the addition to the residual and the norm may be one kernel. */
static void test_what_the_sum_of_experts_reads_is_not_overwritten_by_the_norm(void **state) {
    (void)state;
    for (int experts = 0; experts < 2; experts++) {
        size_t offsets[4], bytes;
        rp_program_init(&program);
        int32_t down = tensor(64), sum = tensor(64), residual = tensor(64), normed = tensor(64);
        add_copy(RP_NO_TENSOR, residual);
        add_copy(RP_NO_TENSOR, down);
        add_copy(down, sum);
        if (experts)
            program.ops[2].kind = RP_OP_EXPERT_SUM;
        add_copy(sum, residual);
        add_copy(residual, normed);
        assert_int_equal(rp_arena_plan(&program, &bucket, false, offsets, &bytes), RP_OK);
        assert_int_equal(offsets[normed] == offsets[down], !experts);
        teardown(NULL);
    }
}

/* in -> a -> b on one branch, in -> c -> d on the other, then b + d. */
static void test_branches_that_run_together_share_no_bytes(void **state) {
    (void)state;
    for (uint32_t tokens = RP_BRANCH_TOKENS; tokens <= RP_BRANCH_TOKENS + 1; tokens++) {
        const struct rp_bucket sized = {.tokens = tokens, .rows = 4, .logit_rows = 2};
        size_t offsets[6], bytes, first, second;
        int32_t ids[6];
        rp_program_init(&program);
        for (int i = 0; i < 6; i++)
            ids[i] = tensor(64);
        add_copy(RP_NO_TENSOR, ids[0]);
        for (int i = 0; i < 4; i++) {
            add_copy(i == 2 ? ids[0] : ids[i], ids[i + 1]);
            program.ops[1 + i].branch = i < 2 ? RP_BRANCH_MAIN : RP_BRANCH_SIDE;
            program.ops[1 + i].branch_tokens = RP_BRANCH_TOKENS;
        }
        add_copy(ids[4], ids[5]);
        rp_op_add_input(&program.ops[5], rp_view_all(&program, ids[2]));
        assert_int_equal(rp_arena_plan(&program, &sized, false, offsets, &bytes), RP_OK);
        bool shares = false;
        for (int a = 0; a < 5; a++)
            for (int b = 0; b < a; b++) {
                assert_true(rp_tensor_bytes(&program, &program.tensors[a], &sized, &first));
                assert_true(rp_tensor_bytes(&program, &program.tensors[b], &sized, &second));
                shares =
                    shares || (offsets[a] < offsets[b] + second && offsets[b] < offsets[a] + first);
            }
        assert_int_equal(shares, tokens > RP_BRANCH_TOKENS);
        rp_program_deinit(&program);
    }
}

static void test_a_guarded_plan_shares_nothing_and_has_room_for_canaries(void **state) {
    (void)state;
    size_t offsets[3], bytes;
    rp_program_init(&program);
    int32_t a = tensor(64), b = tensor(64), c = tensor(64);
    add_copy(a, b);
    add_copy(b, c);
    assert_int_equal(rp_arena_plan(&program, &bucket, true, offsets, &bytes), RP_OK);
    assert_int_equal(bytes, 3 * (4 * 64 * sizeof(float) + RP_CANARY_BYTES));
}

static void test_random_programs_never_overlap_what_lives_together(void **state) {
    (void)state;
    uint32_t random = 1;
    for (int run = 0; run < 300; run++) {
        enum { TENSORS = 24, OPS = 40 };
        size_t offsets[TENSORS], bytes;
        struct rp_lifetime lives[TENSORS];
        rp_program_init(&program);
        for (int i = 0; i < TENSORS; i++) {
            random = random * 1664525u + 1013904223u;
            tensor(1 + random % 500);
        }
        for (int i = 0; i < OPS; i++) {
            random = random * 1664525u + 1013904223u;
            add_copy((int32_t)(random >> 8) % TENSORS, (int32_t)(random >> 16) % TENSORS);
        }
        assert_int_equal(rp_arena_plan(&program, &bucket, false, offsets, &bytes), RP_OK);
        rp_program_lifetimes(&program, &bucket, lives);
        for (int a = 0; a < TENSORS; a++) {
            size_t a_bytes, b_bytes;
            assert_true(rp_tensor_bytes(&program, &program.tensors[a], &bucket, &a_bytes));
            if (lives[a].first > lives[a].last)
                continue;
            assert_true(offsets[a] % RP_ARENA_ALIGN == 0 && offsets[a] + a_bytes <= bytes);
            for (int b = 0; b < a; b++) {
                if (lives[b].first > lives[a].last || lives[b].last < lives[a].first)
                    continue;
                assert_true(rp_tensor_bytes(&program, &program.tensors[b], &bucket, &b_bytes));
                assert_true(offsets[a] >= offsets[b] + b_bytes ||
                            offsets[b] >= offsets[a] + a_bytes);
            }
        }
        rp_program_deinit(&program);
    }
}

static void test_a_size_that_overflows_is_refused(void **state) {
    (void)state;
    size_t offsets[2], bytes;
    struct rp_bucket huge = {.tokens = UINT32_MAX, .rows = 1, .logit_rows = 1};
    rp_program_init(&program);
    int32_t a = tensor(UINT32_MAX), b = tensor(1);
    add_copy(a, b);
    assert_int_equal(rp_arena_plan(&program, &huge, false, offsets, &bytes), RP_STATUS_OVERFLOW);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_what_two_neighbors_read_and_write_never_overlaps, teardown),
        cmocka_unit_test_teardown(test_what_the_sum_of_experts_reads_is_not_overwritten_by_the_norm,
                                  teardown),
        cmocka_unit_test_teardown(test_branches_that_run_together_share_no_bytes, teardown),
        cmocka_unit_test_teardown(test_a_guarded_plan_shares_nothing_and_has_room_for_canaries,
                                  teardown),
        cmocka_unit_test_teardown(test_random_programs_never_overlap_what_lives_together, teardown),
        cmocka_unit_test_teardown(test_a_size_that_overflows_is_refused, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
