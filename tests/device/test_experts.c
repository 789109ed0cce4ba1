/* Goal: the choice of experts, their order and their sum are those of transformers, and of the
 * formula; what is wrong on purpose is seen.
 * Method: blocks of seven routers, made by make_expert_goldens.py from weights that both sides make
 * from a formula; hand-made logits with ties, groups and NaN; outputs poisoned with NaN. */
#include "base/bf16.h"
#include "device/experts.h"
#include "quant/matmul_experts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define HIDDEN     16u
#define INNER      16u
#define TOKENS     6u
#define COUNT_MAX  12u
#define USED_MAX   8u
#define SHARED_MAX 32u

struct golden {
    const char *name;
    uint32_t count, used, shared, groups, groups_used;
    enum rp_route_score score;
    bool renormalize, bias, gated;
    float factor;
    uint32_t ids[TOKENS * USED_MAX];
    float weights[TOKENS * USED_MAX], output[TOKENS * HIDDEN];
};

#include "tests/device/expert_goldens.h"

enum kind { ROUTER = 1, GATE_UP, DOWN, SHARED_GATE_UP, SHARED_DOWN, SHARED_GATE, BIAS, INPUT };

/* As `values` of make_expert_goldens.py. */
static void fill(enum kind kind, float *out, uint32_t count) {
    float scale = kind == ROUTER ? 4.0f : kind == BIAS ? 0.5f : kind == INPUT ? 2.0f : 1.0f;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t x = i + (uint32_t)kind * 0x9E3779B9u;
        x = (x ^ (x >> 16)) * 0x7FEB352Du;
        x = (x ^ (x >> 15)) * 0x846CA68Bu;
        x ^= x >> 16;
        out[i] = ((float)(x >> 16) / 65536.0f - 0.5f) * scale;
    }
}

static const struct rp_cpu_worker single = {0, 1, NULL};

/* One block, computed by our kernels. */
struct block {
    float router[COUNT_MAX * HIDDEN], bias[COUNT_MAX];
    float gate_up[COUNT_MAX * 2 * INNER * HIDDEN], down[COUNT_MAX * HIDDEN * INNER];
    float shared_gate_up[2 * SHARED_MAX * HIDDEN], shared_down[HIDDEN * SHARED_MAX];
    float shared_gate[HIDDEN], input[TOKENS * HIDDEN];
    float logits[TOKENS * COUNT_MAX], route[TOKENS * 2 * USED_MAX];
    int32_t order[COUNT_MAX + 1 + TOKENS * USED_MAX];
    float act[TOKENS * USED_MAX * INNER], choices[TOKENS * USED_MAX * HIDDEN];
    float shared_act[TOKENS * SHARED_MAX], shared[TOKENS * HIDDEN], gate[TOKENS];
    float output[TOKENS * HIDDEN];
    struct rp_live_counts counts;
    struct rp_expert_stats stats;
};

static struct block b;

static void make_block(const struct golden *g) {
    memset(&b, 0xFF, sizeof b); /* NaN */
    memset(&b.stats, 0, sizeof b.stats);
    fill(ROUTER, b.router, g->count * HIDDEN);
    fill(BIAS, b.bias, g->count);
    fill(GATE_UP, b.gate_up, g->count * 2 * INNER * HIDDEN);
    fill(DOWN, b.down, g->count * HIDDEN * INNER);
    fill(SHARED_GATE_UP, b.shared_gate_up, 2 * g->shared * HIDDEN);
    fill(SHARED_DOWN, b.shared_down, HIDDEN * g->shared);
    fill(SHARED_GATE, b.shared_gate, HIDDEN);
    fill(INPUT, b.input, TOKENS * HIDDEN);
    b.counts.token_count = TOKENS;
}

static void linear(const float *in, float *weight, uint32_t rows, uint32_t cols, bool gated,
                   float *out) {
    struct rp_matrix matrix = {.rows = rows, .cols = cols, .dtype = RP_DTYPE_F32, .data = weight};
    struct rp_matmul_args args = {.weight = &matrix,
                                  .in = in,
                                  .out = out,
                                  .in_stride = cols,
                                  .out_stride = gated ? rows / 2 : rows,
                                  .out_dtype = RP_DTYPE_F32};
    if (!gated) {
        rp_matmul_scalar(&args, TOKENS, &single);
        return;
    }
    float both[TOKENS * 2 * SHARED_MAX];
    args.out = both;
    args.out_stride = rows;
    rp_matmul_scalar(&args, TOKENS, &single);
    for (uint32_t row = 0; row < TOKENS; row++)
        rp_gate_values(RP_ACTIVATION_SILU, both + row * rows, both + row * rows + rows / 2,
                       rows / 2, out + row * (rows / 2), RP_DTYPE_F32);
}

static struct rp_values values_at(float *data, size_t stride) {
    return (struct rp_values){data, stride, RP_DTYPE_F32};
}

static struct rp_route_args route_args(const struct golden *g) {
    return (struct rp_route_args){.logits = values_at(b.logits, g->count),
                                  .out = values_at(b.route, 2 * g->used),
                                  .bias = g->bias ? b.bias : NULL,
                                  .experts = {g->count, g->used},
                                  .score = g->score,
                                  .renormalize = g->renormalize,
                                  .groups = g->groups ? g->groups : 1,
                                  .groups_used = g->groups_used,
                                  .group_best = 2,
                                  .factor = g->factor};
}

static void choose(const struct golden *g) {
    struct rp_route_args route = route_args(g);
    linear(b.input, b.router, g->count, HIDDEN, false, b.logits);
    rp_route_rows(&route, 0, TOKENS);
}

static void sort_choices(const struct golden *g) {
    struct rp_expert_order_args order = {.step = {.counts = &b.counts},
                                         .ids = values_at(b.route + g->used, 2 * g->used),
                                         .order = b.order,
                                         .experts = {g->count, g->used},
                                         .stats = &b.stats};
    rp_expert_order_cpu(&order, &single);
}

static void compute(const struct golden *g) {
    struct rp_matrix gate_up = {
        .rows = g->count * 2 * INNER, .cols = HIDDEN, .dtype = RP_DTYPE_F32, .data = b.gate_up};
    struct rp_matrix down = {
        .rows = g->count * HIDDEN, .cols = INNER, .dtype = RP_DTYPE_F32, .data = b.down};
    float scratch[TOKENS * 16 * 16] __attribute__((aligned(64)));
    struct rp_expert_matmul_args args = {.gemm = {.weight = &gate_up,
                                                  .in = b.input,
                                                  .out = b.act,
                                                  .in_stride = HIDDEN,
                                                  .out_stride = INNER,
                                                  .out_dtype = RP_DTYPE_F32,
                                                  .gated = true,
                                                  .fn = RP_ACTIVATION_SILU,
                                                  .scratch = scratch,
                                                  .scratch_bytes = sizeof scratch},
                                         .experts = g->count,
                                         .order = b.order,
                                         .in_divisor = g->used};
    assert_true(rp_expert_matmul_scratch_bytes(&gate_up, TOKENS) <= sizeof scratch);
    rp_expert_matmul(&args, &single);
    args.gemm.weight = &down;
    args.gemm.in = b.act;
    args.gemm.out = b.choices;
    args.gemm.in_stride = INNER;
    args.gemm.out_stride = HIDDEN;
    args.gemm.gated = false;
    args.in_divisor = 0;
    args.by_choice = true;
    rp_expert_matmul(&args, &single);
    if (g->shared) {
        linear(b.input, b.shared_gate_up, 2 * g->shared, HIDDEN, true, b.shared_act);
        linear(b.shared_act, b.shared_down, HIDDEN, g->shared, false, b.shared);
        linear(b.input, b.shared_gate, 1, HIDDEN, false, b.gate);
    }
}

static void add_up(const struct golden *g, uint32_t split) {
    struct rp_expert_sum_args sum = {.in = values_at(b.choices, HIDDEN),
                                     .weights = values_at(b.route, 2 * g->used),
                                     .out = values_at(b.output, HIDDEN),
                                     .used = g->used};
    if (g->shared)
        sum.shared = values_at(b.shared, HIDDEN);
    if (g->gated)
        sum.gate = values_at(b.gate, 1);
    for (uint32_t row = 0; row < TOKENS; row++)
        for (uint32_t c = 0; c < HIDDEN; c += split)
            rp_expert_sum_cols(&sum, row, c, RP_MIN(c + split, HIDDEN));
}

static void run_block(const struct golden *g) {
    choose(g);
    sort_choices(g);
    compute(g);
    add_up(g, HIDDEN);
}

static float worst_output(const struct golden *g) {
    float worst = 0.0f;
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) {
        float difference = fabsf(b.output[i] - g->output[i]);
        worst = difference <= worst ? worst : difference; /* NaN stays */
    }
    return worst;
}

/* Whether the golden's choices are ours, in any order, with their weights. */
static bool same_choices(const struct golden *g) {
    bool same = true;
    for (uint32_t row = 0; row < TOKENS; row++)
        for (uint32_t r = 0; r < g->used; r++) {
            const float *ours = b.route + row * 2 * g->used;
            uint32_t at = 0, id = g->ids[row * g->used + r];
            while (at < g->used && ours[g->used + at] != (float)id)
                at++;
            same = same && at < g->used && fabsf(ours[at] - g->weights[row * g->used + r]) <= 1e-6f;
        }
    return same;
}

static void test_routers_choose_as_transformers_does(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(goldens); i++) {
        const struct golden *g = &goldens[i];
        make_block(g);
        choose(g);
        if (!same_choices(g))
            fail_msg("%s: other choices", g->name);
        for (uint32_t row = 0; row < TOKENS && !g->bias; row++)
            for (uint32_t r = 1; r < g->used; r++)
                assert_true(b.route[row * 2 * g->used + r] <= b.route[row * 2 * g->used + r - 1]);
    }
}

static void test_blocks_compute_what_transformers_does(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(goldens); i++) {
        make_block(&goldens[i]);
        run_block(&goldens[i]);
        float worst = worst_output(&goldens[i]);
        if (!(worst <= 2e-6f))
            fail_msg("%s: outputs differ by %g", goldens[i].name, (double)worst);
    }
}

static void swap_experts(float *weights, uint32_t a, uint32_t other, uint32_t size) {
    for (uint32_t i = 0; i < size; i++) {
        float value = weights[a * size + i];
        weights[a * size + i] = weights[other * size + i];
        weights[other * size + i] = value;
    }
}

static void test_swapped_experts_are_seen(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(goldens); i++) {
        const struct golden *g = &goldens[i];
        make_block(g);
        swap_experts(b.down, g->ids[0], (g->ids[0] + 1) % g->count, HIDDEN * INNER);
        run_block(g);
        assert_true(worst_output(g) > 1e-3f);
        make_block(g);
        swap_experts(b.router, g->ids[0], (g->ids[0] + 1) % g->count, HIDDEN);
        choose(g);
        assert_false(same_choices(g));
    }
}

static void test_a_dropped_bias_factor_sum_or_group_limit_is_seen(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(goldens); i++) {
        struct golden g = goldens[i];
        make_block(&g);
        if (g.bias) {
            g.bias = false;
            choose(&g);
            assert_false(same_choices(&g));
            g.bias = true;
            g.factor = 1.0f;
            choose(&g);
            assert_false(same_choices(&g));
            g.factor = goldens[i].factor;
        }
        if (g.groups) {
            g.groups = 0;
            choose(&g);
            assert_false(same_choices(&g));
        }
        if (g.used < g.count && g.score != RP_ROUTE_SOFTMAX_CHOSEN) {
            g.renormalize = !g.renormalize;
            choose(&g);
            assert_false(same_choices(&g));
        }
        if (g.shared) {
            make_block(&goldens[i]);
            g = goldens[i];
            g.shared = 0;
            run_block(&g);
            assert_true(worst_output(&g) > 1e-3f);
        }
    }
}

static void route_one(const float *logits, uint32_t count, struct rp_route_args *args, float *out) {
    float copy[COUNT_MAX];
    memcpy(copy, logits, count * sizeof *copy);
    args->logits = values_at(copy, count);
    args->out = values_at(out, 0);
    args->experts.count = count;
    rp_route_rows(args, 0, 1);
}

static void test_equal_scores_go_to_the_lower_expert_and_group(void **state) {
    (void)state;
    static const float ties[] = {1, 3, 3, 1, 3, 0};
    float out[2 * USED_MAX];
    struct rp_route_args args = {.experts = {0, 3}, .groups = 1, .factor = 1};
    for (int score = RP_ROUTE_SOFTMAX; score <= RP_ROUTE_SIGMOID; score++) {
        args.score = (enum rp_route_score)score;
        route_one(ties, 6, &args, out);
        assert_true(out[3] == 1 && out[4] == 2 && out[5] == 4);
        assert_true(out[0] == out[1] && out[1] == out[2]);
    }
    /* groups (1, 3), (3, 1), (3, 0) by their best: the first two; by their best two: the same */
    for (args.group_best = 1; args.group_best <= 2; args.group_best++) {
        args.groups = 3;
        args.groups_used = 2;
        route_one(ties, 6, &args, out);
        assert_true(out[3] == 1 && out[4] == 2 && out[5] == 0);
    }
    /* by the best one of each group the third wins, by the best two the second */
    static const float two[] = {0, 0, 4, 4, 5, -9};
    args.score = RP_ROUTE_SOFTMAX_CHOSEN;
    args.groups_used = 1;
    args.experts.used = 2;
    args.group_best = 1;
    route_one(two, 6, &args, out);
    assert_true(out[2] == 4 && out[3] == 5);
    args.group_best = 2;
    route_one(two, 6, &args, out);
    assert_true(out[2] == 2 && out[3] == 3);
}

static void test_nan_logits_give_nan_weights_and_different_experts_of_the_table(void **state) {
    (void)state;
    static const float bad[][6] = {
        {NAN, NAN, NAN, NAN, NAN, NAN},
        {1, 0, 2, 0, NAN, 0},
        {INFINITY, INFINITY, 0, 0, 0, 0},
        {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++)
        for (int score = RP_ROUTE_SOFTMAX; score <= RP_ROUTE_SIGMOID; score++) {
            float out[2 * USED_MAX];
            struct rp_route_args args = {.experts = {0, 4},
                                         .score = (enum rp_route_score)score,
                                         .groups = 3,
                                         .groups_used = 2,
                                         .group_best = 2,
                                         .factor = 1};
            uint32_t seen = 0;
            route_one(bad[i], 6, &args, out);
            for (uint32_t r = 0; r < 4; r++) {
                assert_true(out[4 + r] >= 0 && out[4 + r] < 6);
                seen |= 1u << (uint32_t)out[4 + r];
            }
            assert_int_equal(__builtin_popcount(seen), 4);
            assert_true(i > 1 || isnan(out[0]));
        }
}

static void test_choices_are_sorted_by_expert_and_row(void **state) {
    (void)state;
    const struct golden *g = &goldens[1];
    make_block(g);
    choose(g);
    sort_choices(g);
    const int32_t *choices = b.order + g->count + 1;
    assert_int_equal(b.order[0], 0);
    assert_int_equal(b.order[g->count], TOKENS * g->used);
    for (uint32_t e = 0; e < g->count; e++)
        for (int32_t at = b.order[e]; at < b.order[e + 1]; at++) {
            uint32_t row = (uint32_t)choices[at] / g->used, rank = (uint32_t)choices[at] % g->used;
            assert_true(b.route[row * 2 * g->used + g->used + rank] == (float)e);
            assert_true(at == b.order[e] || choices[at - 1] < choices[at]);
        }
}

static void test_rows_past_the_step_are_not_ordered(void **state) {
    (void)state;
    const struct golden *g = &goldens[1];
    make_block(g);
    choose(g);
    b.counts.token_count = 0;
    sort_choices(g);
    for (uint32_t e = 0; e <= g->count; e++)
        assert_int_equal(b.order[e], 0);
    assert_int_equal(b.stats.samples, 0);
    b.counts.token_count = 2;
    sort_choices(g);
    assert_int_equal(b.order[g->count], 2 * g->used);
    assert_int_equal(b.order[g->count + 1 + 2 * g->used], -1); /* the poison */
}

static void test_columns_are_summed_alike_in_any_shares(void **state) {
    (void)state;
    const struct golden *g = &goldens[1];
    float whole[TOKENS * HIDDEN];
    make_block(g);
    run_block(g);
    memcpy(whole, b.output, sizeof whole);
    for (uint32_t split = 1; split < HIDDEN; split += 2) {
        memset(b.output, 0xFF, sizeof b.output);
        add_up(g, split);
        assert_memory_equal(b.output, whole, sizeof whole);
    }
    /* Rows of bf16 are widened exactly. */
    uint16_t half[TOKENS * USED_MAX * HIDDEN];
    for (uint32_t i = 0; i < TOKENS * g->used * HIDDEN; i++) {
        half[i] = rp_f32_to_bf16(b.choices[i]);
        b.choices[i] = rp_bf16_to_f32(half[i]);
    }
    add_up(g, HIDDEN);
    memcpy(whole, b.output, sizeof whole);
    struct rp_expert_sum_args sum = {.in = {half, HIDDEN, RP_DTYPE_BF16},
                                     .weights = values_at(b.route, 2 * g->used),
                                     .shared = values_at(b.shared, HIDDEN),
                                     .gate = values_at(b.gate, 1),
                                     .out = values_at(b.output, HIDDEN),
                                     .used = g->used};
    for (uint32_t row = 0; row < TOKENS; row++)
        rp_expert_sum_cols(&sum, row, 0, HIDDEN);
    assert_memory_equal(b.output, whole, sizeof whole);
}

static void test_rows_of_experts_are_counted(void **state) {
    (void)state;
    /* Expert 2 has 5 rows, expert 0 has 1, the others none: 5 * 4 / 6 = 3.33 times the mean. */
    static const float ids[] = {2, 2, 0, 2, 2, 2};
    const struct golden g = {.count = 4, .used = 1};
    memset(&b, 0, sizeof b);
    for (uint32_t i = 0; i < TOKENS; i++)
        b.route[2 * i + 1] = ids[i];
    b.counts.token_count = TOKENS;
    sort_choices(&g);
    sort_choices(&g);
    assert_int_equal(b.stats.samples, 2);
    assert_int_equal(b.stats.rows, 12);
    assert_int_equal(b.stats.touched, 4);
    assert_int_equal(b.stats.rows_bins[0], 2);
    assert_int_equal(b.stats.rows_bins[3], 2);  /* 5 to 8 */
    assert_int_equal(b.stats.ratio_bins[5], 2); /* 3 to 4 */
    assert_int_equal(b.stats.ratio_thousandths, 2 * 3333);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routers_choose_as_transformers_does),
        cmocka_unit_test(test_blocks_compute_what_transformers_does),
        cmocka_unit_test(test_swapped_experts_are_seen),
        cmocka_unit_test(test_a_dropped_bias_factor_sum_or_group_limit_is_seen),
        cmocka_unit_test(test_equal_scores_go_to_the_lower_expert_and_group),
        cmocka_unit_test(test_nan_logits_give_nan_weights_and_different_experts_of_the_table),
        cmocka_unit_test(test_choices_are_sorted_by_expert_and_row),
        cmocka_unit_test(test_rows_past_the_step_are_not_ordered),
        cmocka_unit_test(test_columns_are_summed_alike_in_any_shares),
        cmocka_unit_test(test_rows_of_experts_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
