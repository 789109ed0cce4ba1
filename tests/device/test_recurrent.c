/* Goal: the operators with recurrent state give what transformers gives, however a sequence is cut
 * into rows and however many workers share them; a state that is lost, or gates that are exchanged,
 * are seen.
 * Method: outputs of transformers, made by make_state_goldens.py from inputs that both sides make
 * from a formula; memory that nothing has written is NaN. */
#include "device/recurrent.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/state_goldens.h"

enum { TOKENS = 7, COLS = 6, KEY_HEADS = 2, VALUE_HEADS = 4, KEY_DIM = 3, VALUE_DIM = 2 };
enum { QKV_COLS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM, STATE_FLOATS = 64 };
enum kind { IN = 1, BEFORE, AFTER, CONV, QKV, BA, A_LOG, DT_BIAS };

/* As `values` of make_state_goldens.py. */
static void fill(enum kind kind, float *out, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t x = i + (uint32_t)kind * 0x9E3779B9u;
        x = (x ^ (x >> 16)) * 0x7FEB352Du;
        x = (x ^ (x >> 15)) * 0x846CA68Bu;
        x ^= x >> 16;
        out[i] = ((float)(x >> 16) / 65536.0f - 0.5f) * 4.0f;
    }
}

/* A step of one row. */
static struct rp_live_counts counts;
static struct rp_live_row rows[1];
static uint32_t token_rows[TOKENS];
static float places[3][STATE_FLOATS];
static struct rp_step_view view = {
    .config = {.slot_count = 1, .state_places = 3, .state_stride = sizeof places[0]},
    .counts = &counts,
    .rows = rows,
    .token_rows = token_rows,
    .state = (unsigned char *)places};
static float out[TOKENS * QKV_COLS];

static int poison(void **state) {
    (void)state;
    memset(places, 0xFF, sizeof places);
    memset(out, 0xFF, sizeof out);
    memset(token_rows, 0, sizeof token_rows);
    return 0;
}

typedef void (*operator_fn)(const void *args, const struct rp_cpu_worker *worker);

/* Tokens [begin, end) as one row that begins with the state of `from`, by `workers` workers. */
static void run(operator_fn fn, const void *args, uint32_t begin, uint32_t end, uint32_t from,
                uint32_t workers) {
    counts.row_count = 1;
    rows[0].token_begin = begin;
    rows[0].token_count = end - begin;
    rows[0].kv_begin = begin;
    rows[0].state_from = from;
    for (uint32_t i = 0; i < workers; i++) {
        const struct rp_cpu_worker worker = {i, workers, NULL};
        fn(args, &worker);
    }
}

static float worst(const float *want, uint32_t count) {
    float most = 0;
    for (uint32_t i = 0; i < count; i++)
        most = isnan(out[i]) ? INFINITY : fmaxf(most, fabsf(out[i] - want[i]));
    return most;
}

/* Cut after every token, by one and three workers; a snapshot on the way continues as well. */
static void check(operator_fn fn, const void *args, const float *want, uint32_t count) {
    float whole[TOKENS * QKV_COLS];
    run(fn, args, 0, TOKENS, RP_STATE_ZERO, 1);
    assert_true(worst(want, count) < 2e-6f);
    memcpy(whole, out, sizeof out);
    for (uint32_t cut = 1; cut < TOKENS; cut++)
        for (uint32_t workers = 1; workers <= 3; workers += 2) {
            (void)poison(NULL);
            run(fn, args, 0, cut, RP_STATE_ZERO, workers);
            run(fn, args, cut, TOKENS, 0, workers);
            assert_memory_equal(out, whole, sizeof out);
            (void)poison(NULL);
            rows[0].save_at = cut;
            rows[0].save_to = 2;
            run(fn, args, 0, TOKENS, RP_STATE_ZERO, workers);
            rows[0].save_at = 0;
            memset(places[0], 0xFF, sizeof places[0]);
            run(fn, args, cut, TOKENS, 2, workers);
            assert_memory_equal(out, whole, sizeof out);
            run(fn, args, cut, TOKENS, RP_STATE_ZERO, workers); /* the state is lost */
            assert_true(worst(want, count) > 0.01f);
        }
}

static struct rp_values columns(float *data, size_t stride) {
    return (struct rp_values){data, stride, RP_DTYPE_F32};
}

static float in[TOKENS * COLS], before[TOKENS * COLS], after[TOKENS * COLS];
static float weight[COLS * RP_CONV_WIDTH_MAX];

static struct rp_conv_args conv_args(uint32_t width, bool gated) {
    fill(IN, in, TOKENS * COLS);
    fill(BEFORE, before, TOKENS * COLS);
    fill(AFTER, after, TOKENS * COLS);
    fill(CONV, weight, COLS * width);
    return (struct rp_conv_args){.step = view,
                                 .in = columns(in, COLS),
                                 .gate_in = columns(before, COLS),
                                 .gate_out = columns(after, COLS),
                                 .out = columns(out, COLS),
                                 .weight = weight,
                                 .cols = COLS,
                                 .conv = {width, gated, !gated, 32}};
}

static void test_a_convolution_with_gates_is_that_of_lfm2(void **state) {
    (void)state;
    struct rp_conv_args args = conv_args(3, true);
    check(rp_conv_cpu, &args, golden_gated_conv, TOKENS * COLS);
    struct rp_values gate = args.gate_in;
    args.gate_in = args.gate_out;
    args.gate_out = gate;
    run(rp_conv_cpu, &args, 0, TOKENS, RP_STATE_ZERO, 1);
    assert_true(worst(golden_gated_conv, TOKENS * COLS) > 0.1f);
}

static void test_a_convolution_with_silu_is_that_of_qwen3_next(void **state) {
    (void)state;
    struct rp_conv_args args = conv_args(4, false);
    check(rp_conv_cpu, &args, golden_silu_conv, TOKENS * COLS);
}

static void test_a_convolution_of_many_columns_is_shared_by_blocks(void **state) {
    enum { WIDE = 150 };
    static float wide_in[2 * WIDE], wide_out[2 * WIDE], wide_weight[WIDE * 2];
    static float wide_places[WIDE];
    (void)state;
    for (uint32_t i = 0; i < 2 * WIDE; i++) {
        wide_in[i] = (float)(i % 13) - 6;
        wide_weight[i] = (float)(i % 7) - 3;
    }
    struct rp_conv_args args = {.step = view,
                                .in = columns(wide_in, WIDE),
                                .out = columns(wide_out, WIDE),
                                .weight = wide_weight,
                                .cols = WIDE,
                                .conv = {.width = 2}};
    args.step.state = (unsigned char *)wide_places;
    args.step.config.state_stride = sizeof wide_places;
    run(rp_conv_cpu, &args, 0, 2, RP_STATE_ZERO, 2);
    for (uint32_t c = 0; c < WIDE; c++) {
        assert_float_equal(wide_out[c], wide_in[c] * wide_weight[2 * c + 1], 0);
        assert_float_equal(
            wide_out[WIDE + c],
            wide_in[c] * wide_weight[2 * c] + wide_in[WIDE + c] * wide_weight[2 * c + 1], 0);
        assert_float_equal(wide_places[c], wide_in[WIDE + c], 0);
    }
}

static void test_a_gated_delta_rule_is_that_of_transformers(void **state) {
    static float qkv[TOKENS * QKV_COLS], ba[TOKENS * 2 * VALUE_HEADS];
    static float a_log[VALUE_HEADS], dt_bias[VALUE_HEADS];
    (void)state;
    fill(QKV, qkv, TOKENS * QKV_COLS);
    fill(BA, ba, TOKENS * 2 * VALUE_HEADS);
    fill(A_LOG, a_log, VALUE_HEADS);
    fill(DT_BIAS, dt_bias, VALUE_HEADS);
    struct rp_gated_delta_args args = {.step = view,
                                       .qkv = columns(qkv, QKV_COLS),
                                       .ba = columns(ba, 2 * VALUE_HEADS),
                                       .out = columns(out, VALUE_HEADS * VALUE_DIM),
                                       .a_log = a_log,
                                       .dt_bias = dt_bias,
                                       .delta = {KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, 64}};
    check(rp_gated_delta_cpu, &args, golden_delta, TOKENS * VALUE_HEADS * VALUE_DIM);
    args.a_log = dt_bias;
    run(rp_gated_delta_cpu, &args, 0, TOKENS, RP_STATE_ZERO, 1);
    assert_true(worst(golden_delta, TOKENS * VALUE_HEADS * VALUE_DIM) > 0.01f);
}

static void test_a_finished_row_gives_zeros_and_stores_nothing(void **state) {
    (void)state;
    struct rp_conv_args args = conv_args(3, true);
    for (uint32_t i = 0; i < TOKENS; i++)
        token_rows[i] = RP_ROW_NONE;
    rows[0].save_at = 1;
    rows[0].save_to = 1;
    run(rp_conv_cpu, &args, 0, TOKENS, RP_STATE_ZERO, 1);
    rows[0].save_at = 0;
    for (uint32_t i = 0; i < TOKENS * COLS; i++)
        assert_float_equal(out[i], 0, 0);
    for (uint32_t i = 0; i < 3 * STATE_FLOATS; i++)
        assert_true(isnan(places[i / STATE_FLOATS][i % STATE_FLOATS]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_convolution_with_gates_is_that_of_lfm2, poison),
        cmocka_unit_test_setup(test_a_convolution_with_silu_is_that_of_qwen3_next, poison),
        cmocka_unit_test_setup(test_a_convolution_of_many_columns_is_shared_by_blocks, poison),
        cmocka_unit_test_setup(test_a_gated_delta_rule_is_that_of_transformers, poison),
        cmocka_unit_test_setup(test_a_finished_row_gives_zeros_and_stores_nothing, poison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
