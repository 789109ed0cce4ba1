/* Goal: a launch that computes a router's logits, routes the rows and orders their choices has the
 * bits of the three operators.
 * Method: the planned GEMM's logits go through route and order; numbers of experts, columns and
 * rows that fill the cluster, its warps and their steps, or do not; rows that are not live are NaN.
 * Outputs are NaN before, and equal behind. Several launches in a row. */
#include "base/memory.h"
#include "device/experts_cuda.h"
#include "tests/support/gpu_matmul.h"

#include <string.h>

struct shape {
    uint32_t experts, used, k;
    enum rp_route_score score;
    bool bias, route_bias, renormalize;
    uint32_t groups, groups_used, group_best, most_rows; /* most_rows: that fit */
};

static const struct shape shapes[] = {
    {128, 8, 2048, RP_ROUTE_SOFTMAX, false, false, true, 1, 1, 1, 8},
    {32, 4, 2880, RP_ROUTE_SOFTMAX_CHOSEN, true, false, false, 1, 1, 1, 8},
    {64, 6, 2048, RP_ROUTE_SOFTMAX, false, false, false, 1, 1, 1, 8},
    {256, 8, 2048, RP_ROUTE_SOFTMAX, true, false, true, 1, 1, 1, 4},
    {256, 8, 1024, RP_ROUTE_SIGMOID, false, true, true, 8, 4, 2, 8},
    {160, 6, 2048, RP_ROUTE_SOFTMAX, false, false, false, 8, 3, 1, 6},
    {16, 2, 80, RP_ROUTE_SOFTMAX, true, false, true, 1, 1, 1, 8},
    {16, 16, 256, RP_ROUTE_SIGMOID, true, true, false, 1, 1, 1, 8},
    {64, 4, 64, RP_ROUTE_SOFTMAX, false, false, true, 1, 1, 1, 8},
    {128, 8, 256, RP_ROUTE_SOFTMAX, false, false, true, 1, 1, 1, 8},
    {256, 8, 192, RP_ROUTE_SOFTMAX_CHOSEN, true, false, false, 1, 1, 1, 8},
    {128, 4, 512, RP_ROUTE_SOFTMAX, false, true, true, 1, 1, 1, 8},
    {64, 3, 768, RP_ROUTE_SOFTMAX, false, false, true, 1, 1, 1, 8},
    {128, 8, 1904, RP_ROUTE_SOFTMAX, true, false, true, 1, 1, 1, 8},
    {144, 5, 1024, RP_ROUTE_SOFTMAX, true, false, true, 1, 1, 1, 8},
    {240, 9, 1536, RP_ROUTE_SOFTMAX_CHOSEN, false, false, false, 1, 1, 1, 5},
    {32, 5, 4096, RP_ROUTE_SOFTMAX, true, false, true, 1, 1, 1, 8},
    {16, 4, 2880, RP_ROUTE_SOFTMAX, false, false, true, 1, 1, 1, 8},
};

/* What a launch writes. */
struct outputs {
    float *route;
    int32_t *order;
    struct rp_expert_tile *tiles;
    size_t route_bytes, order_bytes, tile_bytes;
};

static struct outputs make_outputs(const struct shape *s, uint32_t rows) {
    struct rp_experts experts = {s->experts, s->used};
    struct outputs out = {
        .route_bytes = (size_t)rows * 2 * s->used * sizeof(float),
        .order_bytes = (s->experts + 1 + (size_t)rows * s->used) * sizeof(int32_t),
        .tile_bytes = (1 + rp_expert_tiles_most(experts, rows, 8)) * sizeof(struct rp_expert_tile)};
    out.route = rp_gpu_poisoned(out.route_bytes);
    out.order = rp_gpu_poisoned(out.order_bytes);
    out.tiles = rp_gpu_poisoned(out.tile_bytes);
    return out;
}

static struct rp_route_order_cuda launch_of(const struct shape *s, const struct outputs *out,
                                            const struct rp_cuda_rows *rows, const float *bias) {
    struct rp_experts experts = {s->experts, s->used};
    struct rp_route_order_cuda launch = {.route = {.rows = *rows,
                                                   .route = {.experts = experts,
                                                             .score = s->score,
                                                             .renormalize = s->renormalize,
                                                             .groups = s->groups,
                                                             .groups_used = s->groups_used,
                                                             .group_best = s->group_best,
                                                             .factor = 1.5f}},
                                         .order = {.rows = *rows,
                                                   .order = out->order,
                                                   .experts = experts,
                                                   .tiles = out->tiles,
                                                   .tile_rows = 8}};
    launch.route.route.bias = s->route_bias ? bias : NULL;
    launch.route.route.out = (struct rp_values){out->route, 2 * s->used, RP_DTYPE_F32};
    launch.order.ids = (struct rp_values){out->route + s->used, 2 * s->used, RP_DTYPE_F32};
    return launch;
}

static void assert_same(const void *a, const void *b, size_t bytes, const char *what,
                        const struct matmul_case *p) {
    unsigned char *host[2] = {rp_alloc(bytes), rp_alloc(bytes)};
    rp_gpu_download(host[0], a, bytes);
    rp_gpu_download(host[1], b, bytes);
    for (size_t i = 0; i < bytes; i += 4)
        if (memcmp(host[0] + i, host[1] + i, 4) != 0)
            fail_msg("%u experts, %u columns, %u of %u rows: word %zu of %s differs", p->n, p->k,
                     p->live, p->max_rows, i / 4, what);
    rp_free(host[0]);
    rp_free(host[1]);
}

static void check_router(const struct shape *s, uint32_t live, uint32_t max_rows) {
    const struct matmul_case p = {.max_rows = max_rows,
                                  .live = live,
                                  .n = s->experts,
                                  .k = s->k,
                                  .dtype = BF16,
                                  .out_dtype = RP_DTYPE_F32,
                                  .bias = s->bias};
    struct matmul_data d = matmul_make(&p);
    struct rp_matmul_cuda gemm = matmul_describe(&p, &d, false);
    struct outputs one = make_outputs(s, max_rows), apart = make_outputs(s, max_rows);
    struct rp_router_cuda router = {.order = launch_of(s, &one, &gemm.rows, d.bias_device),
                                    .weight = gemm.weight->data,
                                    .bias = gemm.bias,
                                    .in = gemm.in,
                                    .in_stride = gemm.in_stride,
                                    .k = s->k,
                                    .segment = matmul_segment(&p)};
    assert_true(rp_matmul_cuda_chains(&gemm));
    assert_int_equal(rp_router_cuda_fits(&router), max_rows <= s->most_rows);
    if (max_rows <= s->most_rows) {
        struct rp_route_order_cuda two = launch_of(s, &apart, &gemm.rows, d.bias_device);
        float *logits = matmul_run(&p, &d, (struct matmul_how){0});
        two.route.route.logits =
            (struct rp_values){rp_gpu_upload(logits, max_rows * d.out_stride * sizeof *logits),
                               d.out_stride, RP_DTYPE_F32};
        assert_int_equal(rp_route_order_cuda_run(&two, NULL), 0);
        for (int times = 0; times < 3; times++)
            assert_int_equal(rp_router_cuda_run(&router, NULL), 0);
        rp_gpu_synchronize();
        assert_same(one.route, apart.route, one.route_bytes, "the route", &p);
        assert_same(one.order, apart.order, one.order_bytes, "the order", &p);
        assert_same(one.tiles, apart.tiles, one.tile_bytes, "the tiles", &p);
        free(logits);
    }
    matmul_free(&d);
}

static void test_one_launch_has_the_bits_of_gemm_route_and_order(void **state) {
    (void)state;
    for (size_t s = 0; s < RP_ARRAY_COUNT(shapes); s++)
        for (uint32_t rows = 1; rows <= 9; rows++) {
            check_router(&shapes[s], rows, rows);
            check_router(&shapes[s], rows / 2, rows);
        }
}

/* More experts than the order's block has threads, odd numbers, and segments that no warp holds. */
static void test_sizes_without_a_kernel_are_refused(void **state) {
    (void)state;
    static const uint32_t sizes[][4] = {
        {8, 2, 256, 256},    {24, 2, 256, 256},   {272, 2, 256, 256},
        {32, 2, 264, 256},   {32, 2, 1024, 384},  {32, 2, 1024, 0},
        {128, 8, 4096, 256}, {256, 8, 4096, 256}, {256, 129, 256, 256}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(sizes); i++) {
        struct rp_router_cuda router = {
            .in_stride = sizes[i][2], .k = sizes[i][2], .segment = sizes[i][3]};
        router.order.route.rows.max_rows = 8;
        router.order.route.route.experts = (struct rp_experts){sizes[i][0], sizes[i][1]};
        assert_false(rp_router_cuda_fits(&router));
        assert_true(rp_router_cuda_run(&router, NULL) != 0);
    }
}

MATMUL_TEST_MAIN(cmocka_unit_test(test_one_launch_has_the_bits_of_gemm_route_and_order),
                 cmocka_unit_test(test_sizes_without_a_kernel_are_refused))
