/* Goal: fusions follow definitions and uses. Each rule of fuse.h forbids what it must, and an
 * operator inserted between two others breaks no unrelated fusion.
 * Method: the CPU's table on the program of a described model, into which operators are inserted;
 * small programs for each rule; tables of the test for partial sums and for quantized rows. */
#include "backend/cpu/cpu_internal.h"
#include "base/memory.h"
#include "graphs/arena_plan.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct rp_bucket bucket = {4, 4, 4, true};
static struct rp_model model;
static struct rp_program program;
static struct rp_fused fused;
static size_t offsets[8];

static int teardown(void **state) {
    (void)state;
    rp_fused_deinit(&fused);
    rp_program_deinit(&program);
    rp_model_deinit(&model);
    return 0;
}

static void fuse(const struct rp_fusion_table *table, bool at_offsets) {
    const struct rp_fuse_input input = {.program = &program,
                                        .end = program.op_count,
                                        .bucket = &bucket,
                                        .tensor_offsets = at_offsets ? offsets : NULL,
                                        .table = table};
    rp_fused_deinit(&fused);
    assert_int_equal(rp_fuse(&input, &fused, NULL), RP_OK);
}

/* --- whole programs */

static void emit_model(void) {
    struct rp_model_config config;
    assert_int_equal(rp_model_shape("llama-3.2-1b", &config, NULL), RP_OK);
    config.layers = 2;
    assert_int_equal(rp_model_describe(&config, RP_DTYPE_BF16, &model, NULL), RP_OK);
    assert_int_equal(rp_model_emit(&model, &program, NULL), RP_OK);
}

/* The names of fused operators with at least two members: "a+b;c+d;" */
static void list_fused(char *text, size_t size) {
    size_t len = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < fused.count; i++)
        for (uint32_t m = 0; m < fused.ops[i].op_count && fused.ops[i].op_count > 1; m++)
            len += (size_t)snprintf(text + len, size - len, "%s%s",
                                    program.ops[fused.ops[i].ops[m]].name,
                                    m + 1 < fused.ops[i].op_count ? "+" : ";");
}

static uint32_t find(const char *name) {
    for (uint32_t i = 0; i < program.op_count; i++)
        if (strcmp(program.ops[i].name, name) == 0)
            return i;
    fail_msg("no operator %s", name);
    return 0;
}

/* Inserts an operator that works in place on the output of `after`. */
static void insert(enum rp_op_kind kind, const char *after) {
    uint32_t at = find(after);
    struct rp_op op = {.kind = kind, .rows = program.ops[at].rows, .name = "inserted"};
    op.out = program.ops[at].out;
    rp_op_add_input(&op, op.out);
    if (kind == RP_OP_ADD)
        rp_op_add_input(&op, op.out);
    assert_true(rp_program_add_op(&program, &op) >= 0);
    memmove(&program.ops[at + 2], &program.ops[at + 1], (program.op_count - 2 - at) * sizeof op);
    program.ops[at + 1] = op;
    program.sample_begin++;
}

/* All fusions of the original program exist, except `broken`; `made`, or NULL, is new. */
static void check_insertion(enum rp_op_kind kind, const char *after, const char *broken,
                            const char *made) {
    char before[4096], now[4096];
    emit_model();
    fuse(&rp_cpu_fusions, false);
    list_fused(before, sizeof before);
    assert_non_null(strstr(before, broken));
    insert(kind, after);
    fuse(&rp_cpu_fusions, false);
    list_fused(now, sizeof now);
    for (char *one = before, *end; (end = strchr(one, ';')); one = end + 1) {
        *end = '\0';
        assert_int_equal(strstr(now, one) != NULL, strcmp(one, broken) != 0);
    }
    if (made)
        assert_non_null(strstr(now, made));
    teardown(NULL);
}

static void test_an_inserted_operator_breaks_its_own_fusion_alone(void **state) {
    (void)state;
    check_insertion(RP_OP_SOFT_CAP, "layer.0.mlp.gate_up", "layer.0.mlp.gate_up+layer.0.mlp.act",
                    NULL);
    check_insertion(RP_OP_ALLREDUCE, "layer.0.attn.o", "layer.0.attn.o+layer.0.attn.add",
                    "layer.0.attn.add+layer.0.mlp.norm;");
    check_insertion(RP_OP_ADD, "layer.0.mlp.down", "layer.0.mlp.down+layer.0.mlp.add",
                    "inserted+layer.0.mlp.add+layer.1.attn.norm;");
}

/* --- rules: a matmul into tensor 1 and an add of it to tensor 2 */

enum { IN, PRODUCT, SUM, OTHER, TENSORS };
static const struct rp_matrix matrix = {.rows = 32, .cols = 32, .dtype = RP_DTYPE_F32};

static void add_op(enum rp_op_kind kind, uint32_t rows, int32_t a, int32_t b, int32_t out) {
    struct rp_op op = {.kind = kind, .rows = rows, .out = rp_view_all(&program, out)};
    snprintf(op.name, sizeof op.name, "op.%u", program.op_count);
    rp_op_add_input(&op, rp_view_all(&program, a));
    if (b != RP_NO_TENSOR)
        rp_op_add_input(&op, rp_view_all(&program, b));
    if (kind == RP_OP_LINEAR)
        op.weight = &matrix;
    op.u.soft_cap.cap = 1;
    assert_true(rp_program_add_op(&program, &op) >= 0);
}

static void start(void) {
    teardown(NULL);
    rp_program_init(&program);
    for (int i = 0; i < TENSORS; i++) {
        offsets[i] = (size_t)i * 4096;
        assert_int_equal(rp_program_add_tensor(&program, RP_ROWS_TOKEN, RP_DTYPE_F32, 32, "t%d", i),
                         i);
    }
    add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, IN, RP_NO_TENSOR, PRODUCT);
}

static void end_with_add(uint32_t rows) { add_op(RP_OP_ADD, rows, SUM, PRODUCT, SUM); }

static bool is_fused(const char *why) {
    fuse(&rp_cpu_fusions, true);
    bool together = false, said = false;
    for (uint32_t i = 0; i < fused.count; i++) {
        together = together || (fused.ops[i].ops[0] == 0 && fused.ops[i].op_count == 2);
        said = said || (why && strstr(fused.ops[i].why_not, why));
    }
    assert_true(together || said || !why);
    return together;
}

static void test_an_operator_in_between_that_shares_nothing_is_passed(void **state) {
    (void)state;
    start();
    add_op(RP_OP_SOFT_CAP, RP_ROWS_TOKEN, OTHER, RP_NO_TENSOR, OTHER);
    end_with_add(RP_ROWS_TOKEN);
    assert_true(is_fused(NULL));
    assert_int_equal(fused.ops[1].ops[0], 0);
    assert_int_equal(fused.ops[1].ops[1], 2);
    assert_int_equal(fused.ops[0].ops[0], 1); /* the fused operator runs where its last member is */
}

static void test_what_the_kernel_keeps_has_a_single_reader(void **state) {
    (void)state;
    start();
    end_with_add(RP_ROWS_TOKEN);
    assert_true(is_fused(NULL));
    add_op(RP_OP_SOFT_CAP, RP_ROWS_TOKEN, PRODUCT, RP_NO_TENSOR, OTHER);
    assert_false(is_fused("reads it, too"));
}

static void test_members_work_on_the_same_rows(void **state) {
    (void)state;
    start();
    end_with_add(RP_ROWS_LOGIT);
    assert_false(is_fused("works on other rows"));
}

static void test_nobody_in_between_writes_what_a_member_reads(void **state) {
    (void)state;
    start();
    add_op(RP_OP_SOFT_CAP, RP_ROWS_TOKEN, OTHER, RP_NO_TENSOR, IN);
    end_with_add(RP_ROWS_TOKEN);
    assert_false(is_fused("writes between them what one of them reads"));
    /* The same through memory: another tensor has the input's address. */
    start();
    offsets[OTHER] = offsets[IN];
    add_op(RP_OP_SOFT_CAP, RP_ROWS_TOKEN, SUM, RP_NO_TENSOR, OTHER);
    end_with_add(RP_ROWS_TOKEN);
    assert_false(is_fused("writes between them what one of them reads"));
}

static void test_an_output_shares_no_memory_with_an_earlier_input(void **state) {
    (void)state;
    start();
    offsets[SUM] = offsets[IN];
    end_with_add(RP_ROWS_TOKEN);
    assert_false(is_fused("shares memory"));
}

/* A kernel that runs its members one after the other may: two tables that differ in this alone. */
static void test_members_one_after_the_other_may_share_memory(void **state) {
    (void)state;
    for (int serial = 0; serial < 2; serial++) {
        const struct rp_fusion rows[] = {
            {.name = "both",
             .form = RP_FUSION_ROWS,
             .flags = serial ? RP_FUSION_SERIAL : 0,
             .step_count = 2,
             .steps = {{RP_OP_LINEAR, 0}, {RP_OP_SOFT_CAP, 0}}},
            {.name = "linear", .step_count = 1, .steps = {{RP_OP_LINEAR, 0}}},
            {.name = "soft_cap", .step_count = 1, .steps = {{RP_OP_SOFT_CAP, 0}}}};
        const struct rp_fusion_table table = {.fusions = rows, .count = RP_ARRAY_COUNT(rows)};
        start();
        add_op(RP_OP_SOFT_CAP, RP_ROWS_TOKEN, PRODUCT, RP_NO_TENSOR, OTHER);
        fuse(&table, true);
        assert_int_equal(fused.count, 1);
        offsets[OTHER] = offsets[IN];
        fuse(&table, true);
        assert_int_equal(fused.count, serial ? 1 : 2);
    }
}

/* --- partial sums: a table whose matmuls store them, and whose adds read them */

static bool always(const struct rp_fuse_input *input, const struct rp_fused_op *candidate) {
    (void)input;
    (void)candidate;
    return true;
}

static const struct rp_fusion partial_rows[] = {
    {.name = "linear_partials",
     .flags = RP_FUSION_PARTIALS_OUT | RP_FUSION_PARTIALS_ONLY,
     .step_count = 1,
     .steps = {{RP_OP_LINEAR, 0}}},
    {.name = "add",
     .flags = RP_FUSION_PARTIALS_IN,
     .step_count = 1,
     .sums = 1,
     .steps = {{RP_OP_ADD, 0}}},
    {.name = "linear", .step_count = 1, .steps = {{RP_OP_LINEAR, 0}}},
};
static const struct rp_fusion_table partial_table = {
    .fusions = partial_rows, .count = RP_ARRAY_COUNT(partial_rows), .leaves_partials = always};

static void test_no_matmul_runs_before_partial_sums_are_read(void **state) {
    (void)state;
    start();
    end_with_add(RP_ROWS_TOKEN);
    fuse(&partial_table, true);
    assert_int_equal(fused.ops[0].partials_to, 1);
    assert_int_equal(fused.ops[1].partials_from, 0);
    assert_true(fused.ops[1].after_matmul && !fused.ops[0].after_matmul);
    start();
    add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, IN, RP_NO_TENSOR, OTHER);
    end_with_add(RP_ROWS_TOKEN);
    fuse(&partial_table, true);
    assert_int_equal(fused.ops[0].partials_to, RP_FUSED_NONE);
    assert_non_null(strstr(fused.ops[0].why_not, "a matmul runs before"));
}

/* -- a group: partial sums go through an all-reduce in place, into the add and the norm. */
static const struct rp_fusion exchange_rows[] = {
    {.name = "linear_partials",
     .flags = RP_FUSION_PARTIALS_OUT | RP_FUSION_PARTIALS_ONLY,
     .step_count = 1,
     .steps = {{RP_OP_LINEAR, 0}}},
    {.name = "allreduce_norm",
     .flags = RP_FUSION_RESIDUAL | RP_FUSION_STORES | RP_FUSION_PARTIALS_IN,
     .step_count = 3,
     .steps = {{RP_OP_ALLREDUCE, 0}, {RP_OP_ADD, 1}, {RP_OP_NORM, 0}}},
    {.name = "linear", .step_count = 1, .steps = {{RP_OP_LINEAR, 0}}},
    {.name = "allreduce",
     .flags = RP_FUSION_PARTIALS_IN,
     .step_count = 1,
     .steps = {{RP_OP_ALLREDUCE, 0}}},
    {.name = "add", .step_count = 1, .steps = {{RP_OP_ADD, 0}}},
    {.name = "norm", .step_count = 1, .steps = {{RP_OP_NORM, 0}}},
};
static const struct rp_fusion_table exchange_table = {
    .fusions = exchange_rows, .count = RP_ARRAY_COUNT(exchange_rows), .leaves_partials = always};

/* linear -> all-reduce in place -> SUM += -> norm into OTHER, to which `again` is added. */
static void emit_exchange(int32_t again) {
    start();
    add_op(RP_OP_ALLREDUCE, RP_ROWS_TOKEN, PRODUCT, RP_NO_TENSOR, PRODUCT);
    add_op(RP_OP_ADD, RP_ROWS_TOKEN, SUM, PRODUCT, SUM);
    add_op(RP_OP_NORM, RP_ROWS_TOKEN, SUM, RP_NO_TENSOR, OTHER);
    add_op(RP_OP_ADD, RP_ROWS_TOKEN, OTHER, again, OTHER);
    fuse(&exchange_table, false);
}

static void test_partial_sums_go_through_an_all_reduce_that_is_added_and_normed(void **state) {
    (void)state;
    emit_exchange(SUM); /* which the kernel stores */
    assert_int_equal(fused.count, 3);
    assert_int_equal(fused.ops[1].op_count, 3);
    assert_int_equal(fused.ops[0].partials_to, 1);
    emit_exchange(PRODUCT); /* the sum itself, which it does not */
    assert_int_equal(fused.count, 5);
    assert_int_equal(fused.ops[1].op_count, 1);
    assert_int_equal(fused.ops[0].partials_to, 1); /* the all-reduce alone adds them up */
}

/* --- experts: their sum, the add and the norm as one kernel; the table's other rows are single
 * operators */

static const char *refuse_other_than_three(const struct rp_fuse_input *input,
                                           const struct rp_fused_op *candidate) {
    (void)input;
    return candidate->op_count == 3 ? NULL : "it has not three members";
}

enum { ROUTER_ORDER, EXPERT_SUM_NORM, EXPERT_SUM_ADD, EXPERT_ROWS };
static struct rp_fusion expert_rows[EXPERT_ROWS + RP_OP_KIND_COUNT] = {
    [ROUTER_ORDER] = {.name = "router_order",
                      .form = RP_FUSION_ROWS,
                      .flags = RP_FUSION_SERIAL,
                      .step_count = 3,
                      .steps = {{RP_OP_LINEAR, 0}, {RP_OP_ROUTE, 0}, {RP_OP_EXPERT_ORDER, 0}},
                      .refuses = refuse_other_than_three},
    [EXPERT_SUM_NORM] = {.name = "expert_sum_norm",
                         .flags = RP_FUSION_RESIDUAL | RP_FUSION_STORES,
                         .step_count = 3,
                         .steps = {{RP_OP_EXPERT_SUM, 0}, {RP_OP_ADD, 1}, {RP_OP_NORM, 0}}},
    [EXPERT_SUM_ADD] = {.name = "expert_sum_add",
                        .flags = RP_FUSION_RESIDUAL,
                        .step_count = 2,
                        .steps = {{RP_OP_EXPERT_SUM, 0}, {RP_OP_ADD, 1}}}};
static const struct rp_fusion_table expert_table = {.fusions = expert_rows,
                                                    .count = RP_ARRAY_COUNT(expert_rows)};

static void fuse_experts(const size_t *tensor_offsets) {
    for (uint32_t kind = 0; kind < RP_OP_KIND_COUNT; kind++)
        expert_rows[EXPERT_ROWS + kind] =
            (struct rp_fusion){.name = rp_op_kind_name((enum rp_op_kind)kind),
                               .step_count = 1,
                               .steps = {{(enum rp_op_kind)kind, 0}}};
    const struct rp_fuse_input input = {.program = &program,
                                        .end = program.op_count,
                                        .bucket = &bucket,
                                        .tensor_offsets = tensor_offsets,
                                        .table = &expert_table};
    rp_fused_deinit(&fused);
    assert_int_equal(rp_fuse(&input, &fused, NULL), RP_OK);
}

static uint32_t count_fused(uint32_t row) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < fused.count; i++)
        count += fused.ops[i].fusion == row;
    return count;
}

/* The sum of experts' rows IN into PRODUCT, SUM += PRODUCT, norm of SUM into OTHER. */
static void emit_expert_sum(enum rp_op_kind between) {
    start();
    program.op_count = 0;
    add_op(RP_OP_EXPERT_SUM, RP_ROWS_TOKEN, IN, IN, PRODUCT);
    if (between != RP_OP_EXPERT_SUM)
        add_op(between, RP_ROWS_TOKEN, PRODUCT, RP_NO_TENSOR, PRODUCT);
    end_with_add(RP_ROWS_TOKEN);
    add_op(RP_OP_NORM, RP_ROWS_TOKEN, SUM, RP_NO_TENSOR, OTHER);
}

static void test_the_sum_of_experts_is_added_and_normed_by_one_kernel(void **state) {
    (void)state;
    emit_expert_sum(RP_OP_EXPERT_SUM);
    add_op(RP_OP_ADD, RP_ROWS_TOKEN, SUM, OTHER, SUM); /* reads the residual, which is stored */
    fuse_experts(offsets);
    assert_int_equal(count_fused(EXPERT_SUM_NORM), 1);
    assert_int_equal(fused.count, 2);
}

static void test_the_sum_of_experts_is_not_fused_past_a_reader_or_an_exchange(void **state) {
    (void)state;
    emit_expert_sum(RP_OP_EXPERT_SUM);
    add_op(RP_OP_SOFT_CAP, RP_ROWS_TOKEN, PRODUCT, RP_NO_TENSOR, OTHER); /* reads the sum itself */
    fuse_experts(offsets);
    assert_int_equal(count_fused(EXPERT_SUM_NORM) + count_fused(EXPERT_SUM_ADD), 0);
    static const enum rp_op_kind between[] = {RP_OP_ALLREDUCE, RP_OP_NORM, RP_OP_SCALE};
    for (size_t i = 0; i < RP_ARRAY_COUNT(between); i++) {
        emit_expert_sum(between[i]);
        fuse_experts(offsets);
        assert_int_equal(count_fused(EXPERT_SUM_NORM) + count_fused(EXPERT_SUM_ADD), 0);
    }
}

static void test_a_norm_over_the_rows_of_experts_is_left_alone(void **state) {
    (void)state;
    emit_expert_sum(RP_OP_EXPERT_SUM);
    offsets[OTHER] = offsets[IN];
    fuse_experts(offsets);
    assert_int_equal(count_fused(EXPERT_SUM_NORM), 0);
    assert_int_equal(count_fused(EXPERT_SUM_ADD), 1);
}

/* In the arena of a whole model, too: all layers but the last, whose rows are gathered first. */
static void test_models_with_experts_have_memory_for_the_fused_sum(void **state) {
    (void)state;
    static const char *const shapes[] = {"qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite",
                                         "qwen3.5-35b-a3b"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        struct rp_model_config config;
        size_t bytes, *placed;
        uint32_t layers = 0;
        teardown(NULL);
        assert_int_equal(rp_model_shape(shapes[i], &config, NULL), RP_OK);
        assert_int_equal(rp_model_describe(&config, RP_DTYPE_BF16, &model, NULL), RP_OK);
        assert_int_equal(rp_model_emit(&model, &program, NULL), RP_OK);
        placed = rp_calloc(program.tensor_count, sizeof *placed);
        assert_non_null(placed);
        assert_int_equal(rp_arena_plan(&program, &bucket, false, placed, &bytes), RP_OK);
        for (uint32_t op = 0; op < program.op_count; op++)
            layers += program.ops[op].kind == RP_OP_EXPERT_SUM;
        fuse_experts(placed);
        rp_free(placed);
        assert_true(layers > 1);
        assert_int_equal(count_fused(EXPERT_SUM_NORM), layers - 1);
        assert_int_equal(count_fused(EXPERT_SUM_ADD), 1);
        /* A router's GEMM, route and order, and no other GEMM: each begins with the router. */
        assert_int_equal(count_fused(ROUTER_ORDER), layers);
        for (uint32_t at = 0; at < fused.count; at++)
            if (fused.ops[at].fusion == ROUTER_ORDER)
                assert_non_null(strstr(program.ops[fused.ops[at].ops[0]].name, "moe.router"));
    }
}

/* --- quantized rows: a table whose norms store them, and whose matmuls need them */

static const struct rp_fusion quantized_rows[] = {
    {.name = "norm", .flags = RP_FUSION_QUANTIZES, .step_count = 1, .steps = {{RP_OP_NORM, 0}}},
    {.name = "linear", .step_count = 1, .steps = {{RP_OP_LINEAR, 0}}},
    {.name = "expert_gate_up", .step_count = 1, .steps = {{RP_OP_EXPERT_GATE_UP, 0}}},
    {.name = "soft_cap", .step_count = 1, .steps = {{RP_OP_SOFT_CAP, 0}}},
};
static const struct rp_fusion_table quantized_table = {
    .fusions = quantized_rows, .count = RP_ARRAY_COUNT(quantized_rows), .needs_quantized = always};

/* ROWS are normed, or else capped, into bf16 and read by a matmul. */
enum { ROWS = OTHER };
static void start_rows(bool norm) {
    start();
    program.op_count = 0;
    program.tensors[ROWS].dtype = RP_DTYPE_BF16;
    add_op(norm ? RP_OP_NORM : RP_OP_SOFT_CAP, RP_ROWS_TOKEN, IN, RP_NO_TENSOR, ROWS);
    if (norm)
        program.ops[0].u.norm.group = 32;
    add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, ROWS, RP_NO_TENSOR, PRODUCT);
}

static void check_rows(uint32_t reader, uint32_t from) {
    assert_true(fused.ops[reader].input_quantized);
    assert_int_equal(fused.ops[reader].quantized_from, from);
}

static void test_matmuls_of_the_same_rows_share_what_their_producer_quantized(void **state) {
    (void)state;
    start_rows(true);
    uint32_t choices = rp_program_add_domain(&program, "choices", RP_ROWS_TOKEN, 2, 0);
    add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, ROWS, RP_NO_TENSOR, SUM);
    add_op(RP_OP_EXPERT_GATE_UP, choices, ROWS, RP_NO_TENSOR, IN);
    program.ops[3].weight = &matrix;
    fuse(&quantized_table, false);
    assert_int_equal(fused.ops[0].quantized_to, 1);
    assert_true(fused.ops[0].quantized_alone);
    for (uint32_t reader = 1; reader < 4; reader++)
        check_rows(reader, 0);
    /* Another operator reads the rows as they are: they are stored, too. */
    add_op(RP_OP_SOFT_CAP, RP_ROWS_TOKEN, ROWS, RP_NO_TENSOR, IN);
    fuse(&quantized_table, false);
    assert_int_equal(fused.ops[0].quantized_to, 1);
    assert_false(fused.ops[0].quantized_alone);
    check_rows(3, 0);
}

static void test_matmuls_share_rows_that_a_launch_quantized(void **state) {
    (void)state;
    start_rows(false);
    add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, ROWS, RP_NO_TENSOR, SUM);
    add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, ROWS, RP_NO_TENSOR, IN);
    fuse(&quantized_table, false);
    check_rows(1, RP_FUSED_NONE);
    assert_non_null(strstr(fused.ops[1].why_not, "does not quantize"));
    check_rows(2, 1);
    check_rows(3, 1);
}

static void test_a_branch_reads_no_rows_that_the_other_one_quantized(void **state) {
    (void)state;
    for (uint32_t norm = 0; norm < 2; norm++) {
        start_rows(norm);
        add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, ROWS, RP_NO_TENSOR, SUM);
        add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, ROWS, RP_NO_TENSOR, IN);
        program.ops[1].branch = RP_BRANCH_MAIN;
        program.ops[2].branch = program.ops[3].branch = RP_BRANCH_SIDE;
        fuse(&quantized_table, false);
        check_rows(1, norm ? 0 : RP_FUSED_NONE);
        check_rows(2, norm ? 0 : RP_FUSED_NONE);
        check_rows(3, norm ? 0 : 2);
    }
}

static void test_operators_of_two_branches_are_not_fused(void **state) {
    (void)state;
    for (uint32_t branches = 0; branches < 2; branches++) {
        start();
        end_with_add(RP_ROWS_TOKEN);
        if (branches) {
            program.ops[0].branch = RP_BRANCH_MAIN;
            program.ops[1].branch = RP_BRANCH_SIDE;
        }
        assert_int_equal(is_fused(branches ? "not of the same branch" : NULL), !branches);
    }
}

static void test_quantized_rows_are_shared_until_others_replace_them(void **state) {
    (void)state;
    start_rows(true);
    add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, PRODUCT, RP_NO_TENSOR, SUM);
    add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, ROWS, RP_NO_TENSOR, IN);
    fuse(&quantized_table, false);
    check_rows(1, 0);
    check_rows(2, RP_FUSED_NONE);
    check_rows(3, RP_FUSED_NONE);
    assert_non_null(strstr(fused.ops[3].why_not, "other rows have replaced"));
    assert_false(fused.ops[0].quantized_alone);
    /* The tensor gets other values. */
    start_rows(true);
    add_op(RP_OP_SOFT_CAP, RP_ROWS_TOKEN, ROWS, RP_NO_TENSOR, ROWS);
    add_op(RP_OP_LINEAR, RP_ROWS_TOKEN, ROWS, RP_NO_TENSOR, IN);
    fuse(&quantized_table, false);
    check_rows(1, 0);
    check_rows(3, RP_FUSED_NONE);
}

static void test_an_operator_without_a_kernel_is_refused_by_name(void **state) {
    (void)state;
    struct rp_error err = {0};
    start();
    add_op(RP_OP_SOFT_CAP, RP_ROWS_TOKEN, OTHER, RP_NO_TENSOR, OTHER);
    const struct rp_fuse_input input = {
        .program = &program, .end = program.op_count, .bucket = &bucket, .table = &partial_table};
    assert_int_equal(rp_fuse(&input, &fused, &err), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "op.1"));
    assert_non_null(strstr(err.text, "soft_cap"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_teardown(name, teardown)
        TEST(test_an_inserted_operator_breaks_its_own_fusion_alone),
        TEST(test_an_operator_in_between_that_shares_nothing_is_passed),
        TEST(test_what_the_kernel_keeps_has_a_single_reader),
        TEST(test_members_work_on_the_same_rows),
        TEST(test_nobody_in_between_writes_what_a_member_reads),
        TEST(test_an_output_shares_no_memory_with_an_earlier_input),
        TEST(test_members_one_after_the_other_may_share_memory),
        TEST(test_no_matmul_runs_before_partial_sums_are_read),
        TEST(test_partial_sums_go_through_an_all_reduce_that_is_added_and_normed),
        TEST(test_the_sum_of_experts_is_added_and_normed_by_one_kernel),
        TEST(test_the_sum_of_experts_is_not_fused_past_a_reader_or_an_exchange),
        TEST(test_a_norm_over_the_rows_of_experts_is_left_alone),
        TEST(test_models_with_experts_have_memory_for_the_fused_sum),
        TEST(test_matmuls_of_the_same_rows_share_what_their_producer_quantized),
        TEST(test_matmuls_share_rows_that_a_launch_quantized),
        TEST(test_a_branch_reads_no_rows_that_the_other_one_quantized),
        TEST(test_operators_of_two_branches_are_not_fused),
        TEST(test_quantized_rows_are_shared_until_others_replace_them),
        TEST(test_an_operator_without_a_kernel_is_refused_by_name),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
