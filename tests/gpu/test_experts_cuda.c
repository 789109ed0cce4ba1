/* Goal: on a GPU, rows choose the CPU's experts with its weights, choices have its order and are
 * counted alike, and sums have its numbers; a launch that does two of these gives the same bits.
 * Method: logits of few different values, so that many are equal; every kind of router; experts
 * without rows, with all; 1 to 1,100 rows. Outputs and what is around them are NaN. */
#include "base/memory.h"
#include "device/experts_cuda.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROWS_MAX 1200u

struct router {
    uint32_t count, used;
    enum rp_route_score score;
    bool renormalize, bias;
    uint32_t groups, groups_used, group_best;
    float factor;
    bool scaled;
};

static const struct router routers[] = {
    {1, 1, RP_ROUTE_SOFTMAX, false, false, 1, 1, 1, 1, false},
    {5, 2, RP_ROUTE_SOFTMAX, true, false, 1, 1, 1, 1, false},
    {7, 7, RP_ROUTE_SOFTMAX, false, false, 1, 1, 1, 1, false},
    {60, 4, RP_ROUTE_SOFTMAX, false, false, 1, 1, 1, 1, false},
    {128, 8, RP_ROUTE_SOFTMAX, true, false, 1, 1, 1, 1, false},
    {62, 6, RP_ROUTE_SOFTMAX_CHOSEN, false, false, 1, 1, 1, 1, false},
    {40, 40, RP_ROUTE_SOFTMAX_CHOSEN, false, false, 1, 1, 1, 0.5f, false},
    {12, 3, RP_ROUTE_SIGMOID, true, true, 4, 2, 2, 1.5f, false},
    {160, 8, RP_ROUTE_SIGMOID, true, true, 1, 1, 1, 1, false},
    {256, 8, RP_ROUTE_SIGMOID, true, true, 8, 4, 2, 2.5f, false},
    {160, 6, RP_ROUTE_SOFTMAX, false, false, 8, 3, 1, 16, false},
    {1024, 33, RP_ROUTE_SOFTMAX, true, false, 64, 40, 3, 1, false},
    {128, 8, RP_ROUTE_SOFTMAX, true, false, 1, 1, 1, 1, true},
    {20, 6, RP_ROUTE_SOFTMAX_CHOSEN, false, false, 1, 1, 1, 1, true},
};

static const uint32_t row_counts[] = {0, 1, 3, 8, 33, 128, 129, 300, 1100};

static struct rp_gpu_step step;
static struct rp_cuda_rows rows_of_step;
static uint32_t state_of_random = 7;

static int set_up(void **state) {
    (void)state;
    rp_gpu_step_open_rows(&step, ROWS_MAX);
    memset(step.host.expert_stats, 0, sizeof *step.host.expert_stats);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    rp_gpu_step_close(&step);
    return 0;
}

static uint32_t draw(uint32_t below) {
    rp_test_next_value(&state_of_random);
    return (state_of_random >> 8) % below;
}

static void set_live(uint32_t live) {
    step.host.counts->token_count = live;
    rp_gpu_step_upload(&step);
    rows_of_step = (struct rp_cuda_rows){
        .step = step.device, .rows = RP_ROWS_TOKEN, .max_rows = RP_MIN(live + 5, ROWS_MAX)};
}

static void end_case(void) {
    rp_gpu_synchronize();
    assert_true(rp_gpu_canaries_hold());
    rp_gpu_free_all();
}

static float *floats(size_t count, uint32_t values, float scale) {
    float *data = rp_alloc((count + 1) * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = ((float)draw(values) - (float)(values / 2)) * scale;
    return data;
}

static struct rp_route_args route_of(const struct router *r) {
    return (struct rp_route_args){.experts = {r->count, r->used},
                                  .score = r->score,
                                  .renormalize = r->renormalize,
                                  .groups = r->groups,
                                  .groups_used = r->groups_used,
                                  .group_best = r->group_best,
                                  .factor = r->factor};
}

/* --- route ----------------------------------------------------------------------------------- */

#define PAD 3u /* columns between rows */

static void check_row(const struct router *r, uint32_t row, const float *got, const float *want) {
    for (uint32_t i = 0; i < r->used; i++) {
        if (got[r->used + i] != want[r->used + i])
            fail_msg("%u of %u experts, row %u: choice %u is %g, not %g", r->used, r->count, row, i,
                     (double)got[r->used + i], (double)want[r->used + i]);
        if (!(fabsf(got[i] - want[i]) <= 1e-5f * fabsf(want[i]) + 1e-12f))
            fail_msg("%u of %u experts, row %u: weight %u is %g, not %g", r->used, r->count, row, i,
                     (double)got[i], (double)want[i]);
    }
}

/* Logits that a GEMM has left in three parts give the same bits: all of these sums are exact. */
static void check_partials(struct rp_route_cuda *cuda, const float *logits, const float *want,
                           size_t bytes) {
    const float added[3] = {1.0f, -0.5f, -0.5f};
    size_t stride = cuda->route.logits.stride, count = rows_of_step.max_rows * stride;
    float *parts = rp_alloc(3 * count * sizeof *parts), *got = rp_alloc(bytes);
    for (size_t i = 0; i < 3 * count; i++)
        parts[i] = (i < count ? logits[i] : 0.0f) + added[i / count];
    cuda->partials = (struct rp_cuda_partials){.data = rp_gpu_upload(parts, 3 * count * 4),
                                               .count = 3,
                                               .split_stride = count,
                                               .row_stride = stride};
    cuda->route.logits.data = NULL;
    cuda->route.out.data = rp_gpu_poisoned(bytes);
    assert_int_equal(rp_route_cuda_run(cuda, NULL), 0);
    rp_gpu_download(got, cuda->route.out.data, bytes);
    assert_memory_equal(got, want, bytes);
    rp_free(parts);
    rp_free(got);
}

static void check_route(const struct router *r, uint32_t live) {
    set_live(live);
    uint32_t max_rows = rows_of_step.max_rows, cols = 2 * r->used;
    size_t stride = r->count + 1, out_stride = cols + PAD;
    float *logits = floats(max_rows * stride, 64, 1.0f / 16), *bias = floats(r->count, 3, 0.25f);
    float *scales = floats(r->count, 7, 0.75f);
    float *want = rp_alloc(max_rows * out_stride * sizeof *want);
    float *got = rp_alloc(max_rows * out_stride * sizeof *got);
    size_t bytes = max_rows * out_stride * sizeof *got;
    memset(logits + live * stride, 0xFF, (max_rows - live) * stride * sizeof *logits);
    memset(want, 0xFF, bytes);
    struct rp_route_args args = route_of(r);
    args.logits = (struct rp_values){logits, stride, RP_DTYPE_F32};
    args.out = (struct rp_values){want, out_stride, RP_DTYPE_F32};
    args.bias = r->bias ? bias : NULL;
    args.scales = r->scaled ? scales : NULL;
    rp_route_rows(&args, 0, live);
    struct rp_route_cuda cuda = {.rows = rows_of_step, .route = args};
    cuda.route.logits.data = rp_gpu_upload(logits, max_rows * stride * sizeof *logits);
    cuda.route.out.data = rp_gpu_poisoned(bytes);
    cuda.route.bias = r->bias ? rp_gpu_upload(bias, r->count * sizeof *bias) : NULL;
    cuda.route.scales = r->scaled ? rp_gpu_upload(scales, r->count * sizeof *scales) : NULL;
    assert_int_equal(rp_route_cuda_run(&cuda, NULL), 0);
    rp_gpu_download(got, cuda.route.out.data, bytes);
    for (size_t i = 0; i < max_rows * out_stride; i++)
        if (i / out_stride >= live || i % out_stride >= cols)
            assert_memory_equal(got + i, want + i, sizeof *got);
    for (uint32_t row = 0; row < live; row++)
        check_row(r, row, got + row * out_stride, want + row * out_stride);
    check_partials(&cuda, logits, got, bytes);
    rp_free(logits);
    rp_free(bias);
    rp_free(scales);
    rp_free(want);
    rp_free(got);
    end_case();
}

static void test_rows_choose_the_experts_of_the_cpu(void **state) {
    (void)state;
    for (size_t r = 0; r < RP_ARRAY_COUNT(routers); r++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(row_counts); i++)
            check_route(&routers[r], row_counts[i]);
}

static void test_nan_logits_give_nan_weights_and_different_experts_of_the_table(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(routers); i++) {
        const struct router *r = &routers[i];
        set_live(2);
        size_t count = (size_t)rows_of_step.max_rows * r->count; /* dead rows are read, too */
        float *logits = floats(count, 64, 1.0f / 16), *out = rp_alloc(4 * r->used * 4);
        for (uint32_t e = 0; e < r->count; e++)
            logits[e] = NAN;
        logits[r->count + r->count / 2] = NAN;
        struct rp_route_cuda cuda = {.rows = rows_of_step, .route = route_of(r)};
        cuda.route.logits =
            (struct rp_values){rp_gpu_upload(logits, count * 4), r->count, RP_DTYPE_F32};
        cuda.route.out =
            (struct rp_values){rp_gpu_poisoned(4 * r->used * 4), 2 * r->used, RP_DTYPE_F32};
        assert_int_equal(rp_route_cuda_run(&cuda, NULL), 0);
        rp_gpu_download(out, cuda.route.out.data, 4 * r->used * 4);
        for (uint32_t row = 0; row < 2; row++) {
            bool seen[RP_EXPERTS_MAX] = {false};
            const float *at = out + row * 2 * r->used;
            assert_true(isnan(at[0]));
            for (uint32_t u = 0; u < r->used; u++) {
                float id = at[r->used + u];
                assert_true(id >= 0 && id < (float)r->count && !seen[(uint32_t)id]);
                seen[(uint32_t)id] = true;
            }
        }
        rp_free(logits);
        rp_free(out);
        end_case();
    }
}

/* --- order ----------------------------------------------------------------------------------- */

static const struct {
    struct rp_experts experts;
    uint32_t tile_rows;
} orders[] = {{{1, 1}, 8},   {{5, 2}, 16},  {{128, 8}, 8},   {{128, 8}, 64}, {{60, 4}, 256},
              {{256, 8}, 8}, {{7, 7}, 192}, {{1024, 3}, 32}, {{33, 1}, 128}};

enum pattern { RANDOM, SAME, FEW, PATTERNS };

static float *make_ids(struct rp_experts experts, uint32_t rows, enum pattern pattern) {
    size_t count = (size_t)rows * experts.used;
    float *ids = rp_alloc((count + 1) * sizeof *ids);
    for (size_t i = 0; i < count; i++) {
        uint32_t id = pattern == RANDOM ? draw(experts.count)
                      : pattern == SAME ? experts.count - 1
                                        : 0;
        if (pattern == FEW)
            id = draw(100) ? draw(2) * (experts.count / 2) : draw(experts.count);
        ids[i] = (float)id;
    }
    return ids;
}

/* The work list that the offsets ask for. */
static uint32_t expect_tiles(const int32_t *offsets, uint32_t count, uint32_t tile_rows,
                             struct rp_expert_tile *out) {
    uint32_t tiles = 0;
    for (uint32_t e = 0; e < count; e++) {
        uint32_t rows = (uint32_t)(offsets[e + 1] - offsets[e]),
                 parts = RP_CEIL_DIV(rows, tile_rows);
        uint32_t each = parts ? (uint32_t)RP_ALIGN_UP(RP_CEIL_DIV(rows, parts), 8u) : 0;
        for (uint32_t at = 0; at < rows; at += each)
            out[tiles++] =
                (struct rp_expert_tile){e, (uint32_t)offsets[e] + at, RP_MIN(each, rows - at), 0};
    }
    return tiles;
}

struct order_case {
    struct rp_experts experts;
    uint32_t tile_rows, live;
    size_t words, bytes; /* of the order, in the bucket */
    uint32_t tiles_most;
    int32_t *want;
    struct rp_expert_order_cuda cuda;
};

static struct order_case order_open(struct rp_experts experts, uint32_t tile_rows, uint32_t live) {
    struct order_case c = {.experts = experts, .tile_rows = tile_rows, .live = live};
    set_live(live);
    c.words = experts.count + 1 + (size_t)rows_of_step.max_rows * experts.used;
    c.bytes = c.words * sizeof *c.want;
    c.tiles_most = rp_expert_tiles_most(experts, rows_of_step.max_rows, tile_rows);
    c.want = rp_alloc(c.bytes);
    memset(c.want, 0xFF, c.bytes);
    c.cuda = (struct rp_expert_order_cuda){
        .rows = rows_of_step,
        .order = rp_gpu_poisoned(c.bytes),
        .experts = experts,
        .tiles = rp_gpu_poisoned((1 + c.tiles_most) * sizeof(struct rp_expert_tile)),
        .tile_rows = tile_rows};
    return c;
}

/* The CPU's order of these ids. */
static void order_expect(struct order_case *c, struct rp_values ids,
                         struct rp_expert_stats *stats) {
    static const struct rp_cpu_worker single = {0, 1, NULL};
    struct rp_expert_order_args args = {
        .step = step.host, .ids = ids, .order = c->want, .experts = c->experts, .stats = stats};
    rp_expert_order_cpu(&args, &single);
}

static void order_close(struct order_case *c) {
    int32_t *got = rp_alloc(c->bytes);
    struct rp_expert_tile *tiles = rp_alloc((1 + c->tiles_most) * sizeof *tiles);
    struct rp_expert_tile *want = rp_alloc((1 + c->tiles_most) * sizeof *want);
    rp_gpu_download(got, c->cuda.order, c->bytes);
    rp_gpu_download(tiles, c->cuda.tiles, (1 + c->tiles_most) * sizeof *tiles);
    for (size_t i = 0; i < c->words; i++)
        if (got[i] != c->want[i])
            fail_msg("%u of %u experts, %u rows: word %zu is %d, not %d", c->experts.used,
                     c->experts.count, c->live, i, got[i], c->want[i]);
    uint32_t count = expect_tiles(c->want, c->experts.count, c->tile_rows, want);
    assert_true(count <= c->tiles_most);
    assert_int_equal(tiles[0].count, count);
    assert_memory_equal(tiles + 1, want, count * sizeof *tiles);
    rp_free(got);
    rp_free(tiles);
    rp_free(want);
    rp_free(c->want);
}

static void check_order(size_t index, uint32_t live, enum pattern pattern) {
    struct order_case c = order_open(orders[index].experts, orders[index].tile_rows, live);
    float *ids = make_ids(c.experts, rows_of_step.max_rows, pattern);
    struct rp_values values = {ids, c.experts.used, RP_DTYPE_F32};
    order_expect(&c, values, NULL);
    c.cuda.ids = values;
    c.cuda.ids.data =
        rp_gpu_upload(ids, (size_t)rows_of_step.max_rows * c.experts.used * sizeof *ids);
    assert_int_equal(rp_expert_order_cuda_run(&c.cuda, NULL), 0);
    order_close(&c);
    rp_free(ids);
    end_case();
}

static void test_choices_have_the_order_of_the_cpu_and_a_work_list(void **state) {
    (void)state;
    for (size_t o = 0; o < RP_ARRAY_COUNT(orders); o++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(row_counts); i++)
            for (int pattern = 0; pattern < PATTERNS; pattern++)
                check_order(o, row_counts[i], (enum pattern)pattern);
}

/* Three layers; the host sees the counts after the last one alone. */
static void test_rows_are_counted_as_the_cpu_does(void **state) {
    (void)state;
    struct rp_expert_stats want = {0}, *seen = step.device.expert_stats;
    memset(seen, 0, sizeof *seen);
    struct rp_expert_stats *totals = rp_gpu_zeroed(sizeof want);
    for (uint32_t layer = 0; layer < 6; layer++) {
        struct order_case c = order_open((struct rp_experts){60, 4}, 64, 37 * layer + 1);
        float *ids = make_ids(c.experts, rows_of_step.max_rows, (enum pattern)(layer % PATTERNS));
        struct rp_values values = {ids, c.experts.used, RP_DTYPE_F32};
        order_expect(&c, values, &want);
        c.cuda.ids = values;
        c.cuda.ids.data =
            rp_gpu_upload(ids, (size_t)rows_of_step.max_rows * c.experts.used * sizeof *ids);
        c.cuda.stats = seen;
        c.cuda.totals = totals;
        c.cuda.is_last = layer % 3 == 2;
        memcpy(c.cuda.ratio_bounds, rp_expert_ratio_bounds, sizeof c.cuda.ratio_bounds);
        assert_int_equal(rp_expert_order_cuda_run(&c.cuda, NULL), 0);
        order_close(&c);
        if (c.cuda.is_last)
            assert_memory_equal(seen, &want, sizeof want);
        else
            assert_int_equal(seen->samples, layer / 3 * 3);
        rp_free(ids);
    }
    end_case();
}

static void test_route_and_order_in_one_launch_give_the_same_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(routers); i++)
        for (uint32_t live = 0; live <= RP_ROUTE_ORDER_ROWS; live = live * 2 + 1 + live / 63) {
            const struct router *r = &routers[i];
            struct order_case c = order_open((struct rp_experts){r->count, r->used}, 8, live);
            uint32_t max_rows = rows_of_step.max_rows;
            size_t bytes = (size_t)max_rows * 2 * r->used * sizeof(float);
            float *logits = floats((size_t)max_rows * r->count, 64, 1.0f / 16);
            float *bias = floats(r->count, 3, 0.25f);
            float *one = rp_alloc(bytes), *both = rp_alloc(bytes);
            struct rp_route_cuda route = {.rows = rows_of_step, .route = route_of(r)};
            route.route.bias = r->bias ? rp_gpu_upload(bias, r->count * sizeof *bias) : NULL;
            route.route.logits = (struct rp_values){
                rp_gpu_upload(logits, (size_t)max_rows * r->count * sizeof *logits), r->count,
                RP_DTYPE_F32};
            route.route.out = (struct rp_values){rp_gpu_poisoned(bytes), 2 * r->used, RP_DTYPE_F32};
            assert_int_equal(rp_route_cuda_run(&route, NULL), 0);
            rp_gpu_download(one, route.route.out.data, bytes);
            route.route.out.data = rp_gpu_poisoned(bytes);
            struct rp_route_order_cuda fused = {route, c.cuda};
            fused.order.ids = (struct rp_values){(float *)route.route.out.data + r->used,
                                                 2 * r->used, RP_DTYPE_F32};
            assert_int_equal(rp_route_order_cuda_run(&fused, NULL), 0);
            rp_gpu_download(both, route.route.out.data, bytes);
            assert_memory_equal(one, both, bytes);
            order_expect(&c, (struct rp_values){one + r->used, 2 * r->used, RP_DTYPE_F32}, NULL);
            order_close(&c);
            rp_free(logits);
            rp_free(bias);
            rp_free(one);
            rp_free(both);
            end_case();
        }
}

/* --- sum ------------------------------------------------------------------------------------- */

struct sum_case {
    uint32_t used, cols, live;
    enum rp_dtype dtype;
    bool shared, gated, residual;
};

static struct rp_values upload_values(const float *from, uint32_t rows, uint32_t cols,
                                      uint32_t stride) {
    (void)cols;
    return (struct rp_values){rp_gpu_upload(from, (size_t)rows * stride * sizeof *from), stride,
                              RP_DTYPE_F32};
}

static void check_sum(const struct sum_case *s) {
    set_live(s->live);
    uint32_t rows = rows_of_step.max_rows, stride = s->cols + s->cols % 3;
    size_t choices = (size_t)rows * s->used, size = rp_dtype_bytes(s->dtype);
    float *values = floats(choices * stride, 1000, 0.01f), *weights = floats(choices, 100, 0.02f);
    float *shared = floats((size_t)rows * stride, 1000, 0.01f), *gate = floats(rows, 100, 0.1f);
    float *old = floats((size_t)rows * stride, 1000, 0.1f),
          *got = rp_alloc((size_t)rows * stride * 4);
    float *want = rp_alloc((size_t)rows * stride * 4);
    unsigned char *in = rp_alloc(choices * stride * size);
    for (size_t i = 0; i < choices * stride; i++)
        rp_test_put(in, s->dtype, i, i / stride < (size_t)s->live * s->used ? values[i] : NAN);
    memset(want, 0xFF, (size_t)rows * stride * 4);
    struct rp_expert_sum_args args = {.in = {in, stride, s->dtype},
                                      .weights = {weights, s->used, RP_DTYPE_F32},
                                      .out = {want, stride, RP_DTYPE_F32},
                                      .used = s->used};
    if (s->shared)
        args.shared = (struct rp_values){shared, stride, RP_DTYPE_F32};
    if (s->gated)
        args.gate = (struct rp_values){gate, 1, RP_DTYPE_F32};
    for (uint32_t row = 0; row < s->live; row++)
        rp_expert_sum_cols(&args, row, 0, s->cols);
    struct rp_expert_sum_cuda cuda = {.rows = rows_of_step, .sum = args, .cols = s->cols};
    cuda.sum.in.data = rp_gpu_upload(in, choices * stride * size);
    cuda.sum.weights = upload_values(weights, rows, s->used, s->used);
    cuda.sum.out.data = rp_gpu_poisoned((size_t)rows * stride * 4);
    if (s->shared)
        cuda.sum.shared = upload_values(shared, rows, s->cols, stride);
    if (s->gated)
        cuda.sum.gate = upload_values(gate, rows, 1, 1);
    if (s->residual) {
        memset(old + (size_t)s->live * stride, 0xFF, (size_t)(rows - s->live) * stride * 4);
        for (size_t i = 0; i < (size_t)rows * stride; i++)
            if (i % stride >= s->cols)
                memset(old + i, 0xFF, sizeof *old);
        cuda.residual = upload_values(old, rows, s->cols, stride);
        cuda.sum.out.data = cuda.residual.data;
    }
    assert_int_equal(rp_expert_sum_cuda_run(&cuda, NULL), 0);
    rp_gpu_download(got, cuda.sum.out.data, (size_t)rows * stride * 4);
    for (size_t i = 0; i < (size_t)rows * stride; i++) {
        if (i / stride >= s->live || i % stride >= s->cols) {
            assert_memory_equal(got + i, want + i, sizeof *got);
            continue;
        }
        float expected = s->residual ? old[i] + want[i] : want[i];
        if (!(fabsf(got[i] - expected) <= 1e-4f))
            fail_msg("%u used, %u columns: element %zu is %g, not %g", s->used, s->cols, i,
                     (double)got[i], (double)expected);
    }
    float *const blocks[] = {values, weights, shared, gate, old, got, want};
    for (size_t i = 0; i < RP_ARRAY_COUNT(blocks); i++)
        rp_free(blocks[i]);
    rp_free(in);
    end_case();
}

static void test_sums_are_those_of_the_cpu(void **state) {
    (void)state;
    static const uint32_t cols[] = {1, 16, 511, 513, 2048};
    static const uint32_t used[] = {1, 2, 8, 11};
    for (size_t c = 0; c < RP_ARRAY_COUNT(cols); c++)
        for (size_t u = 0; u < RP_ARRAY_COUNT(used); u++)
            for (uint32_t bits = 0; bits < 16; bits++)
                check_sum(&(struct sum_case){.used = used[u],
                                             .cols = cols[c],
                                             .live = bits % 4 * 3,
                                             .dtype = bits & 1 ? RP_DTYPE_F32 : RP_DTYPE_BF16,
                                             .shared = (bits & 2) != 0,
                                             .gated = (bits & 6) == 6,
                                             .residual = (bits & 8) != 0});
}

RP_GPU_TEST_MAIN(
    set_up, tear_down, cmocka_unit_test(test_rows_choose_the_experts_of_the_cpu),
    cmocka_unit_test(test_nan_logits_give_nan_weights_and_different_experts_of_the_table),
    cmocka_unit_test(test_choices_have_the_order_of_the_cpu_and_a_work_list),
    cmocka_unit_test(test_rows_are_counted_as_the_cpu_does),
    cmocka_unit_test(test_route_and_order_in_one_launch_give_the_same_bits),
    cmocka_unit_test(test_sums_are_those_of_the_cpu))
