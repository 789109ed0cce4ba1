/* Goal: on a GPU, operators with recurrent state give the CPU's numbers and leave the CPU's states;
 * a sequence has the same bits wherever it is cut, in a bucket of decode or of prompts, alone or in
 * company.
 * Method: steps whose rows begin with zeros, with their slot's state or with a snapshot, are stored
 * on the way, or are finished; sizes that fit no vector and no block. Outputs, what is around them
 * and places that nobody has stored are NaN. */
#include "base/memory.h"
#include "device/recurrent.h"
#include "device/recurrent_cuda.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SLOTS = 16, PLACES = 2 * SLOTS, TOKENS = 256, PAD = 5, MANY = 10000 };
#define FREE 0xFFFFFFFEu /* state_from of a row whose slot is finished */

/* A row of a step. */
struct row {
    uint32_t tokens, from, save_at, save_to;
};

static struct rp_gpu_step step;
static uint32_t state_of_random;
/* Multiprocessors that a kernel is told the GPU has; few: each has many heads. */
static uint32_t multiprocessors;

static int tear_down(void **state) {
    (void)state;
    if (step.host_state)
        rp_gpu_step_close(&step);
    memset(&step, 0, sizeof step);
    rp_gpu_free_all();
    return 0;
}

/* A step of `count` rows in the slots 0, 1, ...; places hold random values where a row begins with
 * them, else NaN. */
static void open_step(const struct row *rows, uint32_t count, size_t state_bytes) {
    const struct rp_step_config config = {.slot_count = SLOTS,
                                          .pages_per_slot = 1,
                                          .row_capacity = SLOTS,
                                          .token_capacity = TOKENS,
                                          .logit_row_capacity = SLOTS,
                                          .edit_capacity = 1,
                                          .prompt_ring_capacity = 64,
                                          .state_places = PLACES,
                                          .state_stride =
                                              RP_ALIGN_UP(state_bytes, (size_t)RP_CACHE_LINE)};
    uint32_t tokens = 0;
    rp_gpu_step_open(&step, &config);
    memset(step.host.state, 0xFF, PLACES * config.state_stride);
    for (uint32_t r = 0; r < count; r++) {
        bool finished = rows[r].from == FREE;
        step.host.rows[r] = (struct rp_live_row){.slot = r,
                                                 .token_begin = tokens,
                                                 .token_count = rows[r].tokens,
                                                 .state_from = finished ? r : rows[r].from,
                                                 .save_at = rows[r].save_at,
                                                 .save_to = rows[r].save_to};
        for (uint32_t i = 0; i < rows[r].tokens; i++)
            step.host.token_rows[tokens + i] = finished ? RP_ROW_NONE : r;
        tokens += rows[r].tokens;
        if (finished || rows[r].from == RP_STATE_ZERO)
            continue;
        float *place = (float *)(void *)rp_state_place(&step.host, rows[r].from);
        for (size_t i = 0; i < state_bytes / sizeof(float); i++)
            place[i] = rp_test_next_value(&state_of_random);
    }
    assert_true(tokens <= TOKENS);
    *step.host.counts = (struct rp_live_counts){.row_count = count, .token_count = tokens};
    rp_gpu_step_upload(&step);
}

static struct rp_cuda_rows rows_of(uint32_t max_rows) {
    return (struct rp_cuda_rows){
        .step = step.device, .rows = RP_ROWS_TOKEN, .max_rows = max_rows, .plain_edges = true};
}

static float *random_floats(size_t count, float scale) {
    float *data = rp_alloc((count + 1) * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = rp_test_next_value(&state_of_random) * scale;
    return data;
}

/* --- one case of an operator ----------------------------------------------------------------- */

/* Inputs on the host; values are columns of rows with PAD more of them. */
struct values {
    float *data;
    size_t stride;
};

static struct values values_of(uint32_t cols, uint32_t pad) {
    struct values values = {.stride = cols + pad};
    values.data = random_floats(TOKENS * values.stride, 2.0f);
    return values;
}

static struct rp_values host_of(const struct values *values) {
    return (struct rp_values){values->data, values->stride, RP_DTYPE_F32};
}

/* The rows from `first` on, on the GPU. */
static struct rp_values device_of(const struct values *values, uint32_t first) {
    size_t skip = first * values->stride;
    return (struct rp_values){
        rp_gpu_upload(values->data + skip, (TOKENS * values->stride - skip) * sizeof(float)),
        values->stride, RP_DTYPE_F32};
}

struct conv_case {
    uint32_t cols, width, pad;
    bool gated, silu;
    enum rp_dtype out;
};

struct delta_case {
    uint32_t key_heads, value_heads, key_dim, value_dim, pad;
};

/* Everything of a case but the step. */
struct operator_case {
    struct conv_case conv; /* cols 0: it is the delta rule */
    struct delta_case delta;
    struct values in[3];
    float *vectors[2];
    uint32_t out_cols, state_at; /* floats before the operator's part of a place */
    size_t state_bytes, out_stride;
    enum rp_dtype out_dtype;
};

static struct operator_case conv_open(const struct conv_case *conv) {
    struct operator_case c = {.conv = *conv, .out_cols = conv->cols, .out_dtype = conv->out};
    c.state_at = RP_CACHE_LINE / sizeof(float);
    c.state_bytes = RP_CACHE_LINE + (conv->width - 1) * conv->cols * sizeof(float) + 4;
    for (uint32_t i = 0; i < (conv->gated ? 3 : 1); i++)
        c.in[i] = values_of(conv->cols, conv->pad);
    c.vectors[0] = random_floats((size_t)conv->cols * conv->width, 1.0f);
    c.out_stride = c.out_cols + conv->pad;
    return c;
}

static struct operator_case delta_open(const struct delta_case *delta) {
    struct operator_case c = {.delta = *delta, .out_dtype = RP_DTYPE_F32};
    uint32_t cols = 2 * delta->key_heads * delta->key_dim + delta->value_heads * delta->value_dim;
    c.out_cols = delta->value_heads * delta->value_dim;
    c.state_at = RP_CACHE_LINE / sizeof(float);
    c.state_bytes = RP_CACHE_LINE + (size_t)c.out_cols * delta->key_dim * sizeof(float) + 4;
    c.in[0] = values_of(cols, delta->pad);
    c.in[1] = values_of(2 * delta->value_heads, delta->pad);
    c.vectors[0] = random_floats(delta->value_heads, 2.0f);
    c.vectors[1] = random_floats(delta->value_heads, 2.0f);
    c.out_stride = c.out_cols + delta->pad;
    return c;
}

static void close_case(struct operator_case *c) {
    for (uint32_t i = 0; i < 3; i++)
        rp_free(c->in[i].data);
    rp_free(c->vectors[0]);
    rp_free(c->vectors[1]);
}

static struct rp_conv conv_of(const struct operator_case *c) {
    return (struct rp_conv){c->conv.width, c->conv.gated, c->conv.silu, RP_CACHE_LINE};
}

static struct rp_gated_delta delta_of(const struct operator_case *c) {
    const struct delta_case *delta = &c->delta;
    return (struct rp_gated_delta){delta->key_heads, delta->value_heads, delta->key_dim,
                                   delta->value_dim, RP_CACHE_LINE};
}

static void run_cpu(const struct operator_case *c, void *out) {
    const struct rp_cpu_worker worker = {.index = 0, .count = 1};
    struct rp_values to = {out, c->out_stride, c->out_dtype};
    if (c->conv.cols) {
        const struct rp_conv_args args = {.step = step.host,
                                          .in = host_of(&c->in[0]),
                                          .gate_in = host_of(&c->in[1]),
                                          .gate_out = host_of(&c->in[2]),
                                          .out = to,
                                          .weight = c->vectors[0],
                                          .cols = c->conv.cols,
                                          .conv = conv_of(c)};
        rp_conv_cpu(&args, &worker);
        return;
    }
    const struct rp_gated_delta_args args = {.step = step.host,
                                             .qkv = host_of(&c->in[0]),
                                             .ba = host_of(&c->in[1]),
                                             .out = to,
                                             .a_log = c->vectors[0],
                                             .dt_bias = c->vectors[1],
                                             .delta = delta_of(c)};
    rp_gated_delta_cpu(&args, &worker);
}

/* The step's first token is token `first` of the case's inputs. Returns the output, on the GPU. */
static void *run_gpu(const struct operator_case *c, uint32_t first, bool decode) {
    void *out = rp_gpu_poisoned(TOKENS * c->out_stride * rp_dtype_bytes(c->out_dtype));
    struct rp_values to = {out, c->out_stride, c->out_dtype};
    uint32_t max_rows = decode ? SLOTS : TOKENS;
    if (c->conv.cols) {
        struct rp_conv_cuda args = {
            .rows = rows_of(max_rows),
            .in = device_of(&c->in[0], first),
            .out = to,
            .weight = rp_gpu_upload(c->vectors[0], (size_t)c->conv.cols * c->conv.width * 4),
            .cols = c->conv.cols,
            .conv = conv_of(c),
            .max_seq_rows = SLOTS,
            .decode = decode};
        if (c->conv.gated) {
            args.gate_in = device_of(&c->in[1], first);
            args.gate_out = device_of(&c->in[2], first);
        }
        assert_int_equal(rp_conv_cuda_run(&args, NULL), 0);
        return out;
    }
    size_t vector = c->delta.value_heads * sizeof(float);
    struct rp_cuda_limits limits;
    rp_gpu_limits(&limits);
    limits.sm_count = multiprocessors;
    const struct rp_gated_delta_cuda args = {.rows = rows_of(max_rows),
                                             .limits = limits,
                                             .qkv = device_of(&c->in[0], first),
                                             .ba = device_of(&c->in[1], first),
                                             .out = to,
                                             .a_log = rp_gpu_upload(c->vectors[0], vector),
                                             .dt_bias = rp_gpu_upload(c->vectors[1], vector),
                                             .delta = delta_of(c),
                                             .max_seq_rows = SLOTS,
                                             .decode = decode};
    assert_int_equal(rp_gated_delta_cuda_run(&args, NULL), 0);
    return out;
}

/* --- against the CPU ------------------------------------------------------------------------- */

/* Equal bits (NaN, too), or numbers that differ by little of the largest. */
static void assert_near(const char *what, const float *got, const float *want, size_t count,
                        float allowed) {
    float largest = 0;
    for (size_t i = 0; i < count; i++)
        if (!isnan(want[i]))
            largest = fmaxf(largest, fabsf(want[i]));
    for (size_t i = 0; i < count; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 &&
            !(fabsf(got[i] - want[i]) <= allowed * largest))
            fail_msg("%s: number %zu of %zu is %.9g, not %.9g", what, i, count, (double)got[i],
                     (double)want[i]);
}

static void assert_near_out(const struct operator_case *c, const void *got, const void *want) {
    size_t count = TOKENS * c->out_stride;
    float *a = rp_alloc(count * sizeof *a), *b = rp_alloc(count * sizeof *b);
    rp_to_f32(a, got, c->out_dtype, count);
    rp_to_f32(b, want, c->out_dtype, count);
    assert_near("output", a, b, count, c->out_dtype == RP_DTYPE_F32 ? 1e-5f : 8e-3f);
    rp_free(a);
    rp_free(b);
}

/* The state of a convolution is its inputs: the same bits. */
static void check_rows(const struct operator_case *c, const struct row *rows, uint32_t count,
                       bool decode) {
    size_t out_bytes = TOKENS * c->out_stride * rp_dtype_bytes(c->out_dtype);
    open_step(rows, count, c->state_bytes);
    size_t places = PLACES * step.host.config.state_stride;
    unsigned char *want = rp_alloc(out_bytes), *got = rp_alloc(out_bytes);
    unsigned char *left = rp_alloc(places);
    memset(want, 0xFF, out_bytes);
    void *out = run_gpu(c, 0, decode);
    run_cpu(c, want);
    rp_gpu_download(got, out, out_bytes);
    rp_gpu_download(left, step.device.state, places);
    assert_near_out(c, got, want);
    assert_near("state", (const float *)(void *)left, (const float *)(void *)step.host.state,
                places / sizeof(float), c->conv.cols ? 0 : 1e-5f);
    assert_true(rp_gpu_canaries_hold());
    rp_free(want);
    rp_free(got);
    rp_free(left);
    (void)tear_down(NULL);
}

static const struct row prompts[] = {{1, 0, 0, 0},
                                     {7, RP_STATE_ZERO, 3, SLOTS + 1},
                                     {8, 2, 8, SLOTS + 2},
                                     {2, FREE, 1, SLOTS + 3},
                                     {9, SLOTS + 9, 1, SLOTS + 4},
                                     {40, RP_STATE_ZERO, 32, SLOTS + 5},
                                     {1, SLOTS + 10, 1, SLOTS + 6},
                                     {3, RP_STATE_ZERO, 2, SLOTS + 7},
                                     {17, SLOTS + 10, 16, SLOTS + 8},
                                     {16, 9, 0, 0},
                                     {1, RP_STATE_ZERO, 0, 0},
                                     {2, 11, 0, 0}};
static const struct row decodes[] = {{1, 0, 0, 0},    {1, RP_STATE_ZERO, 1, SLOTS + 1},
                                     {1, FREE, 1, 9}, {1, SLOTS + 9, 1, SLOTS + 2},
                                     {1, 4, 0, 0},    {1, SLOTS + 9, 0, 0}};

static void check_case(struct operator_case c) {
    check_rows(&c, prompts, RP_ARRAY_COUNT(prompts), false);
    check_rows(&c, decodes, RP_ARRAY_COUNT(decodes), true);
    check_rows(&c, decodes, RP_ARRAY_COUNT(decodes), false);
    check_rows(&c, prompts, 0, false);
    check_rows(&c, prompts, 0, true);
    for (multiprocessors = 1; !c.conv.cols && multiprocessors < 8; multiprocessors += 3) {
        check_rows(&c, decodes, RP_ARRAY_COUNT(decodes), true);
        check_rows(&c, prompts, 0, true);
    }
    multiprocessors = MANY;
    close_case(&c);
}

static const struct conv_case convolutions[] = {
    {1, 2, 0, false, false, RP_DTYPE_F32},    {6, 3, 0, true, false, RP_DTYPE_F32},
    {64, 3, 4, true, false, RP_DTYPE_BF16},   {150, 4, PAD, false, true, RP_DTYPE_F32},
    {512, 4, 0, false, true, RP_DTYPE_F32},   {516, 4, 0, false, true, RP_DTYPE_BF16},
    {1030, 3, PAD, true, true, RP_DTYPE_F32}, {40, 5, 0, true, false, RP_DTYPE_F32},
    {44, 6, 0, false, true, RP_DTYPE_F32},    {9, 7, 3, false, false, RP_DTYPE_F32},
    {96, 8, 0, true, true, RP_DTYPE_F32}};

static void test_a_convolution_follows_the_cpu_and_leaves_its_states(void **state) {
    (void)state;
    for (size_t i = 0; i < (rp_gpu_is_tiny() ? 4 : RP_ARRAY_COUNT(convolutions)); i++)
        check_case(conv_open(&convolutions[i]));
}

static const struct delta_case deltas[] = {
    {2, 4, 3, 2, PAD},   {1, 1, 16, 32, 0}, {2, 6, 12, 20, 0},   {1, 2, 33, 40, 4},
    {2, 4, 128, 128, 0}, {1, 3, 64, 64, 0}, {1, 1, 200, 250, 0}, {1, 2, 256, 256, 4},
    {1, 1, 17, 33, PAD}, {3, 3, 1, 1, 0},   {1, 3, 128, 128, 4}};

static void test_a_gated_delta_rule_follows_the_cpu_and_leaves_its_states(void **state) {
    (void)state;
    for (size_t i = 0; i < (rp_gpu_is_tiny() ? 4 : RP_ARRAY_COUNT(deltas)); i++)
        check_case(delta_open(&deltas[i]));
}

/* --- bits ------------------------------------------------------------------------------------ */

enum { LENGTH = 37 };

/* Tokens [begin, end) of the sequence in slot 3 of a step of its own; the state that it leaves is
 * carried over in `carried`. */
static void run_piece(const struct operator_case *c, uint32_t begin, uint32_t end, bool decode,
                      unsigned char *carried, unsigned char *out) {
    const struct row rows[] = {{1, FREE, 0, 0},
                               {1, FREE, 0, 0},
                               {1, FREE, 0, 0},
                               {end - begin, begin ? SLOTS : RP_STATE_ZERO, 0, 0}};
    size_t row_bytes = c->out_stride * rp_dtype_bytes(c->out_dtype);
    open_step(rows, 4, c->state_bytes);
    size_t stride = step.host.config.state_stride;
    memcpy(rp_state_place(&step.host, SLOTS), carried, c->state_bytes);
    rp_gpu_step_upload(&step);
    struct operator_case moved = *c; /* three tokens of other rows come first */
    for (uint32_t i = 0; i < 3; i++)
        if (c->in[i].data) {
            moved.in[i].data = rp_alloc(TOKENS * c->in[i].stride * sizeof(float));
            memset(moved.in[i].data, 0xFF, TOKENS * c->in[i].stride * sizeof(float));
            memcpy(moved.in[i].data + 3 * c->in[i].stride, c->in[i].data + begin * c->in[i].stride,
                   (end - begin) * c->in[i].stride * sizeof(float));
        }
    unsigned char *from = run_gpu(&moved, 0, decode);
    rp_gpu_download(out + begin * row_bytes, from + 3 * row_bytes, (end - begin) * row_bytes);
    rp_gpu_download(carried, step.device.state + 3 * stride, c->state_bytes);
    for (uint32_t i = 0; i < 3; i++)
        rp_free(c->in[i].data ? moved.in[i].data : NULL);
    (void)tear_down(NULL);
}

static void check_bits(struct operator_case c) {
    size_t bytes = LENGTH * c.out_stride * rp_dtype_bytes(c.out_dtype);
    unsigned char *whole = rp_alloc(bytes), *out = rp_alloc(bytes);
    unsigned char *state = rp_alloc(c.state_bytes), *carried = rp_alloc(c.state_bytes);
    run_piece(&c, 0, LENGTH, false, state, whole);
    for (uint32_t cut = 1; cut < LENGTH; cut += cut < 10 ? 1 : 7) {
        run_piece(&c, 0, cut, false, carried, out);
        run_piece(&c, cut, LENGTH, false, carried, out);
        assert_memory_equal(out, whole, bytes);
        assert_memory_equal(carried, state, c.state_bytes);
    }
    for (multiprocessors = MANY; multiprocessors; multiprocessors = multiprocessors == MANY) {
        for (uint32_t token = 0; token < LENGTH; token++)
            run_piece(&c, token, token + 1, true, carried, out);
        assert_memory_equal(out, whole, bytes);
        assert_memory_equal(carried, state, c.state_bytes);
    }
    multiprocessors = MANY;
    /* the first row of a step */
    const struct row row = {LENGTH, RP_STATE_ZERO, 0, 0};
    open_step(&row, 1, c.state_bytes);
    rp_gpu_download(out, run_gpu(&c, 0, false), bytes);
    assert_memory_equal(out, whole, bytes);
    (void)tear_down(NULL);
    rp_free(whole);
    rp_free(out);
    rp_free(state);
    rp_free(carried);
    close_case(&c);
}

static void test_a_sequence_has_the_same_bits_wherever_it_is_cut(void **state) {
    (void)state;
    check_bits(conv_open(&convolutions[2]));
    check_bits(conv_open(&convolutions[3]));
    check_bits(delta_open(&deltas[2]));
    check_bits(delta_open(&deltas[4]));
}

static int set_up(void **state) {
    (void)state;
    state_of_random = 7;
    multiprocessors = MANY;
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

RP_GPU_TEST_MAIN(NULL, NULL, TEST(test_a_convolution_follows_the_cpu_and_leaves_its_states),
                 TEST(test_a_gated_delta_rule_follows_the_cpu_and_leaves_its_states),
                 TEST(test_a_sequence_has_the_same_bits_wherever_it_is_cut))
