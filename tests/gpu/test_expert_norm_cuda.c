/* Goal: a launch that sums up what a row's experts have computed, adds it to the residual and norms
 * it has the bits of the three launches, and its quantized rows are those of its output.
 * Method: every place, type and number of experts, with and without a shared expert and its gate;
 * sizes of every shape of the kernel. Rows that are not live are NaN; outputs and what is around
 * them are NaN before, and equal to those of the three launches behind. */
#include "device/experts_cuda.h"
#include "device/quantize_row.h"
#include "tests/gpu/ops_fixture.h"

struct norm_case {
    uint32_t n;
    size_t place;
    uint32_t used, live, max_rows;
    enum rp_dtype dtype, out_dtype;
    bool shared, gated;
};

/* The tensors of a case; those of `two` are the three launches'. */
struct tensors {
    struct twin down, weights, shared, gate, norm;
    struct twin residual, residual_two, sum_two, out, out_two;
};

static struct rp_cuda_rows rows_of(const struct norm_case *c) {
    struct rp_cuda_rows rows = token_rows;
    rows.max_rows = c->max_rows;
    return rows;
}

static struct tensors make_tensors(const struct norm_case *c) {
    size_t stride = c->n + places[c->place].stride;
    uint32_t offset = places[c->place].offset, rows = c->max_rows, live = c->live;
    struct tensors t = {
        .down = twin_random(live * c->used, rows * c->used, c->n, stride, offset, c->dtype),
        .weights = twin_random(live, rows, c->used, 2 * c->used, 0, RP_DTYPE_F32),
        .shared = twin_random(live, rows, c->n, stride, offset, RP_DTYPE_F32),
        .gate = twin_random(live, rows, 1, 1 + c->place, 0, RP_DTYPE_F32),
        .norm = vector_random(c->n),
        .residual = twin_random(live, rows, c->n, stride, offset, RP_DTYPE_F32),
        .residual_two = twin_make(rows, c->n, stride, offset, RP_DTYPE_F32),
        .sum_two = twin_make(rows, c->n, c->n, 0, RP_DTYPE_F32),
        .out = twin_make(rows, c->n, stride, offset, c->out_dtype),
        .out_two = twin_make(rows, c->n, stride, offset, c->out_dtype)};
    memcpy(t.residual_two.host_base, t.residual.host_base, t.residual.bytes);
    twin_upload(&t.residual_two);
    step.host.counts->token_count = live;
    rp_gpu_step_upload(&step);
    return t;
}

static void end_tensors(void) {
    end_case();
    step.host.counts->token_count = LIVE_ROWS;
    rp_gpu_step_upload(&step);
}

static struct rp_expert_sum_args sum_of(const struct norm_case *c, const struct tensors *t) {
    struct rp_expert_sum_args sum = {
        .in = t->down.device, .weights = t->weights.device, .used = c->used};
    if (c->shared)
        sum.shared = t->shared.device;
    if (c->gated)
        sum.gate = t->gate.device;
    return sum;
}

static void run_apart(const struct norm_case *c, const struct tensors *t) {
    struct rp_expert_sum_cuda sum = {.rows = rows_of(c), .sum = sum_of(c, t), .cols = c->n};
    struct rp_add_cuda add = {rows_of(c), t->residual_two.device, t->sum_two.device,
                              t->residual_two.device, c->n};
    struct rp_norm_cuda norm = {.rows = rows_of(c),
                                .in = t->residual_two.device,
                                .out = t->out_two.device,
                                .weight = t->norm.device.data,
                                .cols = c->n,
                                .group = c->n,
                                .eps = 1e-6f,
                                .weight_offset = 1.0f};
    sum.sum.out = t->sum_two.device;
    assert_int_equal(rp_expert_sum_cuda_run(&sum, NULL), 0);
    assert_int_equal(rp_add_cuda_run(&add, NULL), 0);
    assert_int_equal(rp_norm_cuda_run(&norm, NULL), 0);
}

static struct rp_add_norm_cuda at_once(const struct norm_case *c, const struct tensors *t) {
    return (struct rp_add_norm_cuda){.rows = rows_of(c),
                                     .residual = t->residual.device,
                                     .term = t->sum_two.device, /* not read */
                                     .out = t->out.device,
                                     .experts = sum_of(c, t),
                                     .weight = t->norm.device.data,
                                     .cols = c->n,
                                     .eps = 1e-6f,
                                     .weight_offset = 1.0f,
                                     .behind_product = c->n % 2 == 0};
}

static void assert_same(const struct norm_case *c, const char *what, struct twin *seen,
                        struct twin *want) {
    twin_download(seen);
    twin_download(want);
    size_t size = rp_dtype_bytes(seen->host.dtype);
    for (size_t i = 0; i < seen->bytes / size; i++)
        if (memcmp(seen->host_base + i * size, want->host_base + i * size, size) != 0)
            fail_msg("%s of %u columns, %u experts of %s, %u of %u rows, place %zu%s%s: element "
                     "%zu differs",
                     what, c->n, c->used, rp_dtype_name(c->dtype), c->live, c->max_rows, c->place,
                     c->shared ? ", shared" : "", c->gated ? ", gated" : "", i);
}

static void check_norm(const struct norm_case *c) {
    struct tensors t = make_tensors(c);
    struct rp_add_norm_cuda args = at_once(c, &t);
    assert_int_equal(rp_add_norm_cuda_run(&args, NULL), 0);
    run_apart(c, &t);
    assert_same(c, "the residual", &t.residual, &t.residual_two);
    assert_same(c, "the output", &t.out, &t.out_two);
    end_tensors();
}

static const uint32_t useds[] = {1, 2, 3, 4, 6, 7, 8, 9, 10, 13, 17};

static void test_one_launch_has_the_bits_of_sum_add_and_norm(void **state) {
    (void)state;
    static const uint32_t columns[] = {1, 7, 100, 256, 257, 2048, 2880, 4096, 5120, 16388};
    uint32_t turn = 0;
    EACH(s, columns) EACH(p, places) EACH(u, useds) EACH(d, dtypes) {
        check_norm(&(struct norm_case){.n = columns[s],
                                       .place = p,
                                       .used = useds[u],
                                       .live = LIVE_ROWS,
                                       .max_rows = MAX_ROWS,
                                       .dtype = dtypes[d],
                                       .out_dtype = dtypes[turn % 3 == 0 ? 0 : 1],
                                       .shared = turn % 5 < 3,
                                       .gated = turn % 5 < 2});
        turn++;
    }
}

/* From no live row to all of them; from one row to the most that are fused. */
static void test_rows_that_are_not_live_are_left_as_they_are(void **state) {
    (void)state;
    static const uint32_t rows[][2] = {{0, 1},
                                       {1, 1},
                                       {0, 8},
                                       {3, 8},
                                       {8, 8},
                                       {31, 32},
                                       {5, 33},
                                       {0, 64},
                                       {64, 64},
                                       {77, 128},
                                       {RP_EXPERT_SUM_NORM_ROWS, RP_EXPERT_SUM_NORM_ROWS}};
    EACH(r, rows) EACH(d, dtypes) for (uint32_t shared = 0; shared < 3; shared++) {
        struct norm_case c = {.n = 2048,
                              .used = 8,
                              .live = rows[r][0],
                              .max_rows = rows[r][1],
                              .dtype = dtypes[d],
                              .out_dtype = RP_DTYPE_BF16,
                              .shared = shared > 0,
                              .gated = shared > 1};
        check_norm(&c);
        c.n = 2880;
        c.used = 4;
        check_norm(&c);
    }
}

/* given: the output is stored, too. */
static void check_quantized(const struct norm_case *c, enum rp_dtype kind, bool given) {
    struct tensors t = make_tensors(c);
    struct rp_add_norm_cuda args = at_once(c, &t);
    uint32_t stride = (uint32_t)RP_ALIGN_UP(c->n, 16u) + 16;
    size_t bytes = (size_t)c->max_rows * stride;
    unsigned char *seen = make_host(bytes), *want = make_host(bytes);
    float *scales = make_host(c->max_rows * sizeof *scales);
    args.quantized = (struct rp_cuda_quantized){.data = rp_gpu_poisoned(bytes),
                                                .scales = rp_gpu_poisoned(c->max_rows * 4),
                                                .stride = stride,
                                                .dtype = kind};
    if (!given)
        args.out.data = NULL;
    assert_int_equal(rp_add_norm_cuda_run(&args, NULL), 0);
    run_apart(c, &t);
    assert_same(c, "the residual", &t.residual, &t.residual_two);
    if (given)
        assert_same(c, "the output", &t.out, &t.out_two);
    twin_download(&t.out_two);
    memset(want, 0xFF, bytes);
    rp_gpu_download(seen, args.quantized.data, bytes);
    rp_gpu_download(scales, args.quantized.scales, c->max_rows * sizeof *scales);
    for (uint32_t row = 0; row < c->max_rows; row++) {
        const uint16_t *from = (const uint16_t *)t.out_two.host.data;
        float scale;
        memset(&scale, 0xFF, sizeof scale);
        if (row < c->live)
            scale = rp_quantize_row(from + row * t.out_two.host.stride, RP_DTYPE_BF16, c->n, kind,
                                    want + (size_t)row * stride);
        assert_memory_equal(&scales[row], &scale, sizeof scale);
    }
    assert_memory_equal(seen, want, bytes);
    rp_free_aligned(seen);
    rp_free_aligned(want);
    rp_free_aligned(scales);
    end_tensors();
}

static void test_quantized_rows_are_those_of_the_output(void **state) {
    (void)state;
    static const uint32_t columns[] = {7, 100, 257, 2048, 2880, 4096, 5120, 16388};
    static const enum rp_dtype kinds[] = {RP_DTYPE_INT8, RP_DTYPE_FP8_E4M3};
    uint32_t turn = 0;
    EACH(s, columns) EACH(p, places) EACH(k, kinds) {
        struct norm_case c = {.n = columns[s],
                              .place = p,
                              .used = useds[turn % RP_ARRAY_COUNT(useds)],
                              .live = turn % 7 == 0 ? 0 : LIVE_ROWS,
                              .max_rows = turn % 4 == 0 ? 33 : MAX_ROWS,
                              .dtype = dtypes[turn % 3 == 0 ? 0 : 1],
                              .out_dtype = RP_DTYPE_BF16,
                              .shared = turn % 2 == 0,
                              .gated = turn % 4 == 0};
        check_quantized(&c, kinds[k], turn % 3 == 0);
        turn++;
    }
}

RP_GPU_TEST_MAIN(set_up, tear_down,
                 cmocka_unit_test(test_one_launch_has_the_bits_of_sum_add_and_norm),
                 cmocka_unit_test(test_rows_that_are_not_live_are_left_as_they_are),
                 cmocka_unit_test(test_quantized_rows_are_those_of_the_output))
