/* Goal: what the ranks of a group of GPUs exchange has the sums of the contract (device/program.h),
 * bit for bit, for any number of rows and columns, fused or not, in many replays, also where NCCL
 * gathers it.
 * Method: programs of two exchanges, or of an all-reduce that is added and normed, on 2 and 4 ranks
 * with values of their own; outputs are poisoned. Graphs are launched many times in a row, and what
 * is exchanged is another value each time. Ranks share a GPU where there are too few. */
#include "backend/group.h"
#include "base/bf16.h"
#include "base/memory.h"
#include "tests/support/gpu_test.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 4, REPLAYS = 5, NORM_REPLAYS = 3, IN_A_ROW = 40 };

struct group {
    const struct rp_backend *backend;
    struct rp_device *device;
    uint32_t ranks;
};

/* Four ranks would share GPUs, which a sanitizer makes very slow. */
static uint32_t ranks_max(void) { return rp_gpu_is_tiny() ? 2 : RANKS_MAX; }

static uint32_t gpu_count(void) {
    int count = 0;
    assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
    return (uint32_t)count;
}

static int try_group(uint32_t ranks, bool unmapped, struct group *out, struct rp_error *err) {
    bool share = gpu_count() < ranks;
    const struct rp_device_config config = {.ranks = ranks,
                                            .ranks_share_device = share,
                                            .no_peer_access = unmapped,
                                            .no_dependent_launch = share};
    *out = (struct group){.ranks = ranks};
    return rp_group_open(rp_backend_cuda_table(), &config, &out->backend, &out->device, err);
}

static struct group open_group(uint32_t ranks) {
    struct group group;
    struct rp_error err = {0};
    if (try_group(ranks, false, &group, &err) != RP_OK)
        fail_msg("%s", err.text);
    return group;
}

/* A value of rank, row and column: exact in bf16 for few of them. */
static float value_at(uint32_t rank, uint32_t row, uint32_t col) {
    uint32_t hash = (rank * 7919u + row * 104729u + col) * 2654435761u;
    return ((float)(hash >> 8) / (1 << 24) - 0.5f) * (float)(1u << (hash % 5 * 2));
}

static float rounded(float x, enum rp_dtype payload) {
    return payload == RP_DTYPE_BF16 ? rp_bf16_to_f32(rp_f32_to_bf16(x)) : x;
}

/* --- a program on the group ------------------------------------------------------------------ */

struct bed {
    struct group group;
    struct rp_program program;
    struct rp_bucket bucket;
    struct rp_graph *graph;
    struct rp_live_counts *live;
    unsigned char *arena;
    size_t offsets[5], bytes;
};

static void place(struct bed *bed) {
    for (uint32_t i = 0; i < bed->program.tensor_count; i++) {
        const struct rp_tensor *tensor = &bed->program.tensors[i];
        bed->offsets[i] = bed->bytes;
        bed->bytes += RP_ALIGN_UP(
            (size_t)bed->bucket.tokens * tensor->cols * rp_dtype_bytes(tensor->dtype), (size_t)256);
    }
    bed->arena = bed->group.backend->alloc(bed->group.device, bed->bytes, RP_MEMORY_DEVICE);
    bed->live = bed->group.backend->alloc(bed->group.device, sizeof *bed->live, RP_MEMORY_DEVICE);
    assert_true(bed->arena && bed->live);
}

static void *at(const struct bed *bed, uint32_t rank, int32_t tensor) {
    return bed->group.backend->rank_address(bed->group.device, rank,
                                            bed->arena + bed->offsets[tensor]);
}

static void capture(struct bed *bed, bool no_fusion) {
    const struct rp_lower_options options = {.no_fusion = no_fusion};
    struct rp_bindings bindings = {.arena = bed->arena, .tensor_offsets = bed->offsets};
    struct rp_error err = {0};
    bindings.step.counts = bed->live;
    if (bed->group.backend->capture(bed->group.device, &bed->program, 0, bed->program.op_count,
                                    &bed->bucket, &bindings, &options, false, &bed->graph,
                                    &err) != RP_OK)
        fail_msg("%s", err.text);
}

/* Until copies from pageable memory and between GPUs have ended: no stream of the group waits for
 * them. */
static void settle(void) {
    uint32_t count = gpu_count();
    for (uint32_t i = 0; i < count; i++)
        assert_true(cudaSetDevice((int)i) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
}

/* Every rank's rows of a tensor: values of value_at, and NaN past the live rows; salt: of rank 0,
 * and step more for each rank after it. */
static void fill(const struct bed *bed, int32_t tensor, uint32_t live, uint32_t salt,
                 uint32_t step) {
    uint32_t cols = bed->program.tensors[tensor].cols, rows = bed->bucket.tokens;
    float *host = malloc((size_t)rows * cols * sizeof *host);
    for (uint32_t rank = 0; rank < bed->group.ranks; rank++) {
        memset(host, 0xFF, (size_t)rows * cols * sizeof *host);
        for (uint32_t row = 0; row < live; row++)
            for (uint32_t col = 0; col < cols; col++)
                host[(size_t)row * cols + col] = value_at(salt + rank * step, row, col);
        assert_int_equal(cudaMemcpy(at(bed, rank, tensor), host, (size_t)rows * cols * sizeof *host,
                                    cudaMemcpyDefault),
                         cudaSuccess);
    }
    settle();
    free(host);
}

static void launch(struct bed *bed, uint32_t live, uint32_t times) {
    const struct rp_live_counts counts = {.token_count = live};
    const struct rp_backend *backend = bed->group.backend;
    assert_int_equal(backend->copy(bed->group.device, bed->live, &counts, sizeof counts), RP_OK);
    for (uint32_t i = 0; i < times; i++)
        assert_int_equal(backend->launch(bed->group.device, bed->graph), RP_OK);
    assert_int_equal(backend->synchronize(bed->group.device), RP_OK);
}

static float *read(const struct bed *bed, uint32_t rank, int32_t tensor) {
    size_t bytes = (size_t)bed->bucket.tokens * bed->program.tensors[tensor].cols *
                   rp_dtype_bytes(bed->program.tensors[tensor].dtype);
    float *host = malloc(bytes);
    assert_int_equal(cudaMemcpy(host, at(bed, rank, tensor), bytes, cudaMemcpyDefault),
                     cudaSuccess);
    return host;
}

static void close_bed(struct bed *bed) {
    const struct rp_backend *backend = bed->group.backend;
    backend->graph_destroy(bed->group.device, bed->graph);
    backend->free(bed->group.device, bed->arena, RP_MEMORY_DEVICE);
    backend->free(bed->group.device, bed->live, RP_MEMORY_DEVICE);
    rp_program_deinit(&bed->program);
    bed->bytes = 0;
}

/* --- one exchange ---------------------------------------------------------------------------- */

static struct rp_op exchange_op(enum rp_op_kind kind, enum rp_dtype payload) {
    struct rp_op op = {.kind = kind, .rows = RP_ROWS_TOKEN, .name = "exchange"};
    op.u.exchange.payload = payload;
    return op;
}

/* What `times` all-reduces in a row make of the ranks' values: after the first one they all have
 * the sum. */
static float summed(uint32_t ranks, enum rp_dtype payload, uint32_t salt, uint32_t row,
                    uint32_t col, uint32_t times) {
    float sum = 0.0f;
    for (uint32_t rank = 0; rank < ranks; rank++)
        sum += rounded(value_at(salt + rank, row, col), payload);
    for (uint32_t i = 1; i < times; i++) {
        float each = rounded(sum, payload);
        sum = 0.0f;
        for (uint32_t rank = 0; rank < ranks; rank++)
            sum += each;
    }
    return sum;
}

static void check_exchange(const struct bed *bed, enum rp_op_kind kind, enum rp_dtype payload,
                           int32_t tensor, uint32_t live, uint32_t salt, uint32_t times) {
    uint32_t cols = bed->program.tensors[0].cols, wide = bed->program.tensors[tensor].cols;
    for (uint32_t rank = 0; rank < bed->group.ranks; rank++) {
        float *out = read(bed, rank, tensor);
        for (uint32_t row = 0; row < live; row++)
            for (uint32_t col = 0; col < wide; col++) {
                float want = kind == RP_OP_ALLGATHER
                                 ? value_at(salt + col / cols, row, col % cols)
                                 : summed(bed->group.ranks, payload, salt, row, col, times);
                if (out[(size_t)row * wide + col] != want)
                    fail_msg("rank %u, row %u of %u, column %u of %u: %a, not %a", rank, row, live,
                             col, wide, out[(size_t)row * wide + col], want);
            }
        for (size_t i = (size_t)live * wide; i < (size_t)bed->bucket.tokens * wide; i++)
            assert_true(out[i] != out[i]); /* rows past the live ones are left alone */
        free(out);
    }
}

/* x and z are reduced in place, or gathered into y. */
static void run_exchange(struct group group, enum rp_op_kind kind, enum rp_dtype payload,
                         uint32_t rows, uint32_t cols) {
    struct bed bed = {.group = group, .bucket = {rows, 1, 1, false}};
    bool gathers = kind == RP_OP_ALLGATHER;
    rp_program_init(&bed.program);
    bed.program.ranks = group.ranks;
    int32_t x = rp_program_add_tensor(&bed.program, RP_ROWS_TOKEN, RP_DTYPE_F32, cols, "x");
    int32_t y =
        rp_program_add_tensor(&bed.program, RP_ROWS_TOKEN, RP_DTYPE_F32, cols * group.ranks, "y");
    int32_t z = rp_program_add_tensor(&bed.program, RP_ROWS_TOKEN, RP_DTYPE_F32, cols, "z");
    for (int i = 0; i < 2; i++) {
        struct rp_op op = exchange_op(kind, payload);
        rp_op_add_input(&op, rp_view_all(&bed.program, i ? z : x));
        op.out = rp_view_all(&bed.program, gathers ? y : i ? z : x);
        assert_true(rp_program_add_op(&bed.program, &op) >= 0);
    }
    place(&bed);
    capture(&bed, false);
    for (uint32_t i = 0; i < REPLAYS; i++) {
        uint32_t live = i == 0 ? rows : i == 1 ? 0 : RP_MAX(1u, rows / i);
        uint32_t times = i == 3 ? IN_A_ROW : 1, salt = 16 * i;
        fill(&bed, y, 0, 0, 0);
        fill(&bed, x, live, salt, 1);
        fill(&bed, z, live, salt + 8, 1);
        launch(&bed, live, times);
        if (gathers)
            check_exchange(&bed, kind, payload, y, live, salt + 8, times);
        else
            check_exchange(&bed, kind, payload, x, live, salt, times);
        if (!gathers)
            check_exchange(&bed, kind, payload, z, live, salt + 8, times);
    }
    close_bed(&bed);
}

/* 64 KB (packets), 256 KB (two shots of 4 ranks) and their neighbors. */
static void run_shapes(struct group group) {
    static const uint32_t shapes[][2] = {
        {1, 5},     {3, 64},   {1, 4096},   {8, 4096}, {9, 4096},   {31, 4100}, {32, 4096},
        {33, 4096}, {300, 64}, {132, 4096}, {3, 9001}, {300, 4100}, {1, 40000},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i += rp_gpu_is_tiny() ? 4 : 1) {
        run_exchange(group, RP_OP_ALLREDUCE, RP_DTYPE_BF16, shapes[i][0], shapes[i][1]);
        run_exchange(group, RP_OP_ALLREDUCE, RP_DTYPE_F32, shapes[i][0], shapes[i][1]);
        run_exchange(group, RP_OP_ALLGATHER, RP_DTYPE_F32, shapes[i][0], shapes[i][1]);
    }
}

static void test_sums_and_gathered_columns_are_exact_for_any_shape(void **state) {
    (void)state;
    for (uint32_t ranks = 2; ranks <= ranks_max(); ranks *= 2) {
        struct group group = open_group(ranks);
        run_shapes(group);
        group.backend->close(group.device);
    }
}

/* --- all-reduce, add, norm ------------------------------------------------------------------- */

/* residual += sum(x); y = norm(residual), with values that make every rounding visible. */
static void run_norm(struct group group, uint32_t rows, uint32_t cols, enum rp_dtype out,
                     bool no_fusion, float **residual, float **y) {
    struct bed bed = {.group = group, .bucket = {rows, 1, 1, false}};
    float *weight = malloc(cols * sizeof *weight);
    for (uint32_t c = 0; c < cols; c++)
        weight[c] = value_at(99, 0, c);
    rp_program_init(&bed.program);
    bed.program.ranks = group.ranks;
    int32_t at_x = rp_program_add_tensor(&bed.program, RP_ROWS_TOKEN, RP_DTYPE_F32, cols, "x");
    int32_t at_r = rp_program_add_tensor(&bed.program, RP_ROWS_TOKEN, RP_DTYPE_F32, cols, "r");
    int32_t at_y = rp_program_add_tensor(&bed.program, RP_ROWS_TOKEN, out, cols, "y");
    int32_t at_z = rp_program_add_tensor(&bed.program, RP_ROWS_TOKEN, RP_DTYPE_F32, cols, "z");
    struct rp_op reduce = exchange_op(RP_OP_ALLREDUCE, RP_DTYPE_BF16);
    rp_op_add_input(&reduce, rp_view_all(&bed.program, at_x));
    reduce.out = rp_view_all(&bed.program, at_x);
    struct rp_op add = {.kind = RP_OP_ADD, .rows = RP_ROWS_TOKEN, .name = "add"};
    rp_op_add_input(&add, rp_view_all(&bed.program, at_r));
    rp_op_add_input(&add, rp_view_all(&bed.program, at_x));
    add.out = rp_view_all(&bed.program, at_r);
    struct rp_op norm = {
        .kind = RP_OP_NORM, .rows = RP_ROWS_TOKEN, .name = "norm", .vector = weight};
    rp_op_add_input(&norm, rp_view_all(&bed.program, at_r));
    norm.out = rp_view_all(&bed.program, at_y);
    norm.u.norm.eps = 1e-5f;
    norm.u.norm.group = cols;
    assert_true(rp_program_add_op(&bed.program, &reduce) >= 0 &&
                rp_program_add_op(&bed.program, &add) >= 0 &&
                rp_program_add_op(&bed.program, &norm) >= 0);
    reduce.in[0] = reduce.out = rp_view_all(&bed.program, at_z); /* an exchange of another kernel */
    assert_true(rp_program_add_op(&bed.program, &reduce) >= 0);
    place(&bed);
    capture(&bed, no_fusion);
    struct rp_launch_info info;
    group.backend->graph_launch_info(bed.graph, 0, &info);
    if (!no_fusion && cols % 4 == 0)
        assert_string_equal(info.kernel, "allreduce_norm");
    uint32_t live = RP_MAX(1u, rows - 1);
    for (uint32_t i = 0; i < NORM_REPLAYS; i++) {
        fill(&bed, at_x, live, i, 1);
        fill(&bed, at_r, live, 50, 0); /* the ranks' residuals are equal in a model */
        fill(&bed, at_z, live, i, 1);
        launch(&bed, live, 1);
    }
    *residual = read(&bed, 0, at_r);
    *y = read(&bed, 0, at_y);
    for (uint32_t rank = 1; rank < group.ranks; rank++) {
        float *other = read(&bed, rank, at_y);
        assert_memory_equal(other, *y, (size_t)live * cols * rp_dtype_bytes(out));
        free(other);
    }
    close_bed(&bed);
    free(weight);
}

static void compare_norm(struct group group, uint32_t rows, uint32_t cols, enum rp_dtype out) {
    uint32_t live = RP_MAX(1u, rows - 1);
    size_t count = (size_t)live * cols;
    float *residual[2], *y[2];
    for (int i = 0; i < 2; i++)
        run_norm(group, rows, cols, out, i == 1, &residual[i], &y[i]);
    assert_memory_equal(residual[0], residual[1], count * sizeof(float));
    assert_memory_equal(y[0], y[1], count * rp_dtype_bytes(out));
    for (size_t i = 0; i < count; i++) {
        uint32_t row = (uint32_t)(i / cols), col = (uint32_t)(i % cols);
        assert_true(residual[0][i] ==
                    value_at(50, row, col) +
                        summed(group.ranks, RP_DTYPE_BF16, NORM_REPLAYS - 1, row, col, 1));
    }
    for (int i = 0; i < 2; i++) {
        free(residual[i]);
        free(y[i]);
    }
}

static void test_the_fused_norm_has_the_bits_of_separate_kernels(void **state) {
    static const uint32_t rows[] = {1, 2, 9, 40, 150, 601};
    static const uint32_t cols[] = {64, 100, 2048, 4096, 5120, 8192};
    (void)state;
    for (uint32_t ranks = 2; ranks <= ranks_max(); ranks *= 2) {
        struct group group = open_group(ranks);
        for (size_t r = 0; r < RP_ARRAY_COUNT(rows); r += rp_gpu_is_tiny() ? 2 : 1)
            for (size_t c = 0; c < RP_ARRAY_COUNT(cols); c += rp_gpu_is_tiny() ? 3 : 1) {
                compare_norm(group, rows[r], cols[c], RP_DTYPE_F32);
                compare_norm(group, rows[r], cols[c], RP_DTYPE_BF16);
            }
        group.backend->close(group.device);
    }
}

/* --- without mapped memory ------------------------------------------------------------------- */

static void test_nccl_brings_the_same_bits_where_memory_is_not_mapped(void **state) {
    struct group group;
    struct rp_error err = {0};
    (void)state;
    if (gpu_count() < 2 || rp_gpu_is_tiny()) {
        printf("one GPU, or a sanitizer: not run\n");
        skip();
    }
    if (try_group(2, true, &group, &err) != RP_OK) {
        assert_non_null(strstr(err.text, "cannot map the memory of GPU"));
        assert_non_null(strstr(err.text, "nccl"));
        printf("%s: not run\n", err.text);
        skip();
    }
    run_shapes(group);
    compare_norm(group, 9, 4096, RP_DTYPE_BF16);
    compare_norm(group, 601, 8192, RP_DTYPE_BF16);
    group.backend->close(group.device);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void test_groups_that_are_opened_and_closed_leave_no_memory(void **state) {
    size_t free_bytes[2], total;
    const int last = rp_gpu_is_tiny() ? 3 : 21;
    (void)state;
    for (int i = 0; i <= last; i++) {
        struct group group = open_group(2);
        run_exchange(group, RP_OP_ALLREDUCE, RP_DTYPE_BF16, 40, 4096);
        group.backend->close(group.device);
        if (i == 1 || i == last)
            assert_int_equal(cudaMemGetInfo(&free_bytes[i == last], &total), cudaSuccess);
    }
    assert_true(free_bytes[1] + (1u << 20) >= free_bytes[0]);
}

RP_GPU_TEST_MAIN(NULL, NULL,
                 cmocka_unit_test(test_sums_and_gathered_columns_are_exact_for_any_shape),
                 cmocka_unit_test(test_the_fused_norm_has_the_bits_of_separate_kernels),
                 cmocka_unit_test(test_nccl_brings_the_same_bits_where_memory_is_not_mapped),
                 cmocka_unit_test(test_groups_that_are_opened_and_closed_leave_no_memory))
