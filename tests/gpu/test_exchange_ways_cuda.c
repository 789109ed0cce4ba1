/* Goal: an all-reduce with add and norm has the same bits whatever way the data take between the
 * ranks (device/exchange_cuda.h), from a term or from partials, quantized or not, and exchanges
 * that follow each other without the host do not disturb each other.
 * Method: the kernel itself, on 2 and 4 ranks, in every way that can be; the new residual is
 * compared with the host's sum, bit for bit. Ranks share a GPU where there are too few.
 * --bench: prints the time of an exchange in a graph, by bytes of the payload and way. */
#include "backend/cuda/device_cuda.h"
#include "base/bf16.h"
#include "tests/support/gpu_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 4, TERMS = 3, SPLITS = 3, IN_A_ROW = 60, BENCH_NODES = 20, BENCH_REPLAYS = 20 };

static const char *const way_names[] = {"packets", "one shot", "two shots", "pushed", "NCCL"};

/* --- a group --------------------------------------------------------------------------------- */

struct group {
    struct rp_device *ranks[RANKS_MAX];
    uint32_t count;
    bool share;
};

/* Four ranks would share GPUs, which a sanitizer makes very slow. */
static uint32_t ranks_max(void) { return rp_gpu_is_tiny() ? 2 : RANKS_MAX; }

static uint32_t gpu_count(void) {
    int count = 0;
    assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
    return (uint32_t)count;
}

static void close_group(struct group *group) {
    for (uint32_t rank = 0; rank < group->count; rank++)
        rp_backend_cuda_table()->close(group->ranks[rank]);
}

static int open_group(struct group *group, uint32_t count, bool unmapped, struct rp_error *err) {
    const struct rp_backend *cuda = rp_backend_cuda_table();
    *group = (struct group){.count = count, .share = gpu_count() < count};
    for (uint32_t rank = 0; rank < count; rank++) {
        const struct rp_device_config config = {.ordinal = group->share ? 0 : rank,
                                                .no_peer_access = unmapped,
                                                .no_dependent_launch = group->share};
        assert_int_equal(cuda->open(&config, &group->ranks[rank], err), RP_OK);
    }
    return cuda->join(group->ranks, count, err);
}

static void synchronize(const struct group *group) {
    for (uint32_t rank = 0; rank < group->count; rank++)
        assert_int_equal(rp_backend_cuda_table()->synchronize(group->ranks[rank]), RP_OK);
}

/* --- what is exchanged ----------------------------------------------------------------------- */

/* Some are 0.0 and -0.0, alone and as pairs: two of them are RP_EXCHANGE_EMPTY. */
static float value_at(uint32_t salt, size_t index) {
    uint32_t hash = (salt * 7919u + (uint32_t)index) * 2654435761u;
    if (index / 2 % 5 == 0)
        return index % 2 ? -0.0f : 0.0f;
    if (hash % 11 == 0)
        return -0.0f;
    return ((float)(hash >> 8) / (1 << 24) - 0.5f) * (float)(1u << (hash % 5 * 2));
}

static float rounded(float x) { return rp_bf16_to_f32(rp_f32_to_bf16(x)); }

/* One rank's tensors. */
struct tensors {
    float *residual, *terms[TERMS], *partials, *weight, *scales;
    uint16_t *out, *payload; /* payload: what the rank gives, where a GEMM would have pushed it */
    unsigned char *quantized;
    struct rp_live_counts *counts;
};

struct bed {
    struct group *group;
    uint32_t rows, live, cols;
    bool partials, quantized;
    bool zeros; /* all values are 0, for the benchmark */
    struct tensors ranks[RANKS_MAX];
};

static void *device_bytes(struct rp_device *device, size_t bytes) {
    void *data = rp_backend_cuda_table()->alloc(device, bytes, RP_MEMORY_DEVICE);
    assert_non_null(data);
    assert_int_equal(cudaMemset(data, 0xFF, bytes), cudaSuccess);
    return data;
}

static float *device_values(struct rp_device *device, uint32_t salt, size_t live, size_t count) {
    float *data = device_bytes(device, count * sizeof *data);
    if (live == 0) {
        assert_int_equal(cudaMemset(data, 0, count * sizeof *data), cudaSuccess);
        return data;
    }
    float *host = malloc(count * sizeof *host);
    memset(host, 0xFF, count * sizeof *host);
    for (size_t i = 0; i < live; i++)
        host[i] = value_at(salt, i);
    assert_int_equal(cudaMemcpy(data, host, count * sizeof *data, cudaMemcpyHostToDevice),
                     cudaSuccess);
    free(host);
    return data;
}

static uint32_t term_salt(uint32_t rank, uint32_t term) { return 100 + 10 * rank + term; }

/* Partial i of the sum; the first one has term_salt(rank, 0). */
static uint32_t partial_salt(uint32_t rank, uint32_t i) { return term_salt(rank, 0) + 1000 * i; }

static void open_bed(struct bed *bed) {
    size_t count = (size_t)bed->rows * bed->cols,
           live = bed->zeros ? 0 : (size_t)bed->live * bed->cols;
    const struct rp_live_counts counts = {.token_count = bed->live};
    for (uint32_t rank = 0; rank < bed->group->count; rank++) {
        struct rp_device *device = bed->group->ranks[rank];
        struct tensors *at = &bed->ranks[rank];
        rp_cuda_select(device);
        at->residual = device_values(device, 1, live, count);
        for (uint32_t t = 0; t < TERMS; t++)
            at->terms[t] = device_values(device, term_salt(rank, t), live, count);
        at->partials = device_bytes(device, SPLITS * count * sizeof(float));
        for (uint32_t i = 0; i < SPLITS; i++) {
            float *part = device_values(device, partial_salt(rank, i), live, count);
            assert_int_equal(cudaMemcpy(at->partials + i * count, part, count * sizeof(float),
                                        cudaMemcpyDeviceToDevice),
                             cudaSuccess);
            rp_cuda_free(device, part, RP_MEMORY_DEVICE);
        }
        at->weight = device_values(device, 2, bed->cols, bed->cols);
        at->out = device_bytes(device, count * sizeof *at->out);
        at->payload = device_bytes(device, count * sizeof *at->payload);
        at->quantized = device_bytes(device, (size_t)bed->rows * RP_ALIGN_UP(bed->cols, 16u));
        at->scales = device_bytes(device, bed->rows * sizeof *at->scales);
        at->counts = device_bytes(device, sizeof *at->counts);
        assert_int_equal(cudaMemcpy(at->counts, &counts, sizeof counts, cudaMemcpyHostToDevice),
                         cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    }
    struct rp_error err = {0};
    size_t bytes = RP_ALIGN_UP(3 * count * sizeof(uint16_t) + 4096 + bed->cols * sizeof(float),
                               (size_t)RP_CACHE_LINE);
    if (rp_backend_cuda_table()->reserve_exchange(bed->group->ranks, bed->group->count, bytes,
                                                  &err) != RP_OK)
        fail_msg("%s", err.text);
}

static float given(const struct bed *bed, uint32_t rank, uint32_t term, size_t i) {
    float sum = value_at(term_salt(rank, term), i);
    for (uint32_t p = 1; bed->partials && p < SPLITS; p++)
        sum += value_at(partial_salt(rank, p), i);
    return rounded(sum);
}

/* As a GEMM does: to memory of the rank and, for any number of the exchange, to the peer's. */
static void push_payloads(struct bed *bed) {
    size_t count = (size_t)bed->rows * bed->cols, live = (size_t)bed->live * bed->cols;
    uint16_t *host = malloc(count * sizeof *host);
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct rp_cuda_exchange *exchange = bed->group->ranks[rank]->exchange;
        memset(host, bed->zeros ? 0 : 0xFF, count * sizeof *host);
        for (size_t i = 0; i < live && !bed->zeros; i++)
            host[i] = rp_f32_to_bf16(given(bed, rank, 0, i));
        for (uint32_t place = 0; place < 3; place++)
            assert_int_equal(cudaMemcpy(place ? (void *)(exchange->blocks[1 - rank] +
                                                         (place - 1) * exchange->bytes)
                                              : bed->ranks[rank].payload,
                                        host, count * sizeof *host, cudaMemcpyDefault),
                             cudaSuccess);
    }
    free(host);
}

static void close_bed(struct bed *bed) {
    for (uint32_t rank = 0; rank < bed->group->count; rank++) {
        struct tensors *at = &bed->ranks[rank];
        void *all[] = {at->residual,  at->terms[0], at->terms[1], at->terms[2],
                       at->partials,  at->weight,   at->out,      at->payload,
                       at->quantized, at->scales,   at->counts};
        for (size_t i = 0; i < RP_ARRAY_COUNT(all); i++)
            rp_cuda_free(bed->group->ranks[rank], all[i], RP_MEMORY_DEVICE);
    }
}

/* --- the kernel ------------------------------------------------------------------------------ */

static bool can(const struct bed *bed, enum rp_exchange_way way) {
    const struct rp_cuda_exchange *exchange = bed->group->ranks[0]->exchange;
    if (exchange->library.gather)
        return way == RP_EXCHANGE_LIBRARY;
    return way == RP_EXCHANGE_ONE_SHOT || way == RP_EXCHANGE_TWO_SHOT ||
           (way == RP_EXCHANGE_PUSHED && bed->group->count == 2) ||
           (way == RP_EXCHANGE_PACKETS && bed->rows <= exchange->resident &&
            (size_t)bed->rows * bed->cols * sizeof(uint16_t) <=
                rp_exchange_packet_room(exchange->ranks));
}

static struct rp_exchange_norm_cuda describe(const struct bed *bed, uint32_t rank,
                                             enum rp_exchange_way way, uint32_t term) {
    const struct tensors *at = &bed->ranks[rank];
    size_t count = (size_t)bed->rows * bed->cols;
    struct rp_exchange_norm_cuda args = {.exchange = *bed->group->ranks[rank]->exchange};
    struct rp_add_norm_cuda *norm = &args.norm;
    norm->rows = (struct rp_cuda_rows){
        .rows = RP_ROWS_TOKEN, .max_rows = bed->rows, .plain_edges = bed->group->share};
    norm->rows.step.counts = at->counts;
    norm->residual = (struct rp_values){at->residual, bed->cols, RP_DTYPE_F32};
    norm->term = (struct rp_values){at->terms[term], bed->cols, RP_DTYPE_F32};
    norm->out = (struct rp_values){at->out, bed->cols, RP_DTYPE_BF16};
    if (way == RP_EXCHANGE_PUSHED)
        norm->term = (struct rp_values){at->payload, bed->cols, RP_DTYPE_BF16};
    else if (bed->partials)
        norm->partials = (struct rp_cuda_partials){at->partials, NULL, SPLITS, count, bed->cols};
    norm->weight = at->weight;
    norm->cols = bed->cols;
    norm->eps = 1e-5f;
    if (bed->quantized)
        norm->quantized = (struct rp_cuda_quantized){at->quantized, at->scales,
                                                     RP_ALIGN_UP(bed->cols, 16u), RP_DTYPE_INT8};
    args.exchange.payload = RP_DTYPE_BF16;
    rp_exchange_choose(&args.exchange, bed->rows, bed->cols);
    args.exchange.way = way;
    if (way == RP_EXCHANGE_LIBRARY) {
        args.exchange.bytes = 0;
        args.exchange.library.bytes = RP_ALIGN_UP(count * sizeof(uint16_t), (size_t)RP_CACHE_LINE);
        for (uint32_t r = 0; r < args.exchange.ranks; r++)
            args.exchange.blocks[r] =
                bed->group->ranks[rank]->exchange->blocks[rank] + r * args.exchange.library.bytes;
    }
    return args;
}

static void start(const struct bed *bed, uint32_t rank, enum rp_exchange_way way, uint32_t term) {
    const struct rp_exchange_norm_cuda args = describe(bed, rank, way, term);
    rp_cuda_select(bed->group->ranks[rank]);
    assert_int_equal(rp_exchange_norm_cuda_run(&args, bed->group->ranks[rank]->stream),
                     cudaSuccess);
}

/* --- results --------------------------------------------------------------------------------- */

struct results {
    float *residual, *scales;
    uint16_t *out;
    unsigned char *quantized;
};

static void *host_copy(const void *data, size_t bytes) {
    void *host = malloc(bytes);
    assert_int_equal(cudaMemcpy(host, data, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
}

static struct results read_results(const struct bed *bed, uint32_t rank) {
    const struct tensors *at = &bed->ranks[rank];
    size_t count = (size_t)bed->rows * bed->cols;
    rp_cuda_select(bed->group->ranks[rank]);
    return (struct results){
        host_copy(at->residual, count * sizeof(float)),
        host_copy(at->scales, bed->rows * sizeof(float)),
        host_copy(at->out, count * sizeof(uint16_t)),
        host_copy(at->quantized, (size_t)bed->rows * RP_ALIGN_UP(bed->cols, 16u))};
}

static void free_results(struct results *results) {
    free(results->residual);
    free(results->scales);
    free(results->out);
    free(results->quantized);
}

static float residual_after(const struct bed *bed, float before, uint32_t term, size_t i) {
    float sum = 0.0f;
    for (uint32_t rank = 0; rank < bed->group->count; rank++)
        sum += given(bed, rank, term, i);
    return before + sum;
}

/* The norm, within the rounding of bf16. */
static void check_norm(const struct bed *bed, const struct results *results) {
    for (uint32_t row = 0; row < bed->live; row++) {
        const float *x = results->residual + (size_t)row * bed->cols;
        double squares = 0.0;
        for (uint32_t c = 0; c < bed->cols; c++)
            squares += (double)x[c] * (double)x[c];
        double inverse = 1.0 / sqrt(squares / bed->cols + 1e-5);
        for (uint32_t c = 0; c < bed->cols; c++) {
            double want = (double)x[c] * inverse * (double)value_at(2, c);
            double got = (double)rp_bf16_to_f32(results->out[(size_t)row * bed->cols + c]);
            assert_true(fabs(got - want) <= fabs(want) / 200 + 1e-30);
        }
    }
}

/* --- tests ----------------------------------------------------------------------------------- */

static struct results run_way(struct bed *bed, enum rp_exchange_way way) {
    open_bed(bed);
    if (way == RP_EXCHANGE_PUSHED)
        push_payloads(bed);
    for (uint32_t rank = 0; rank < bed->group->count; rank++)
        start(bed, rank, way, 0);
    synchronize(bed->group);
    struct results first = read_results(bed, 0);
    size_t live = (size_t)bed->live * bed->cols;
    for (uint32_t rank = 1; rank < bed->group->count; rank++) {
        struct results other = read_results(bed, rank);
        assert_memory_equal(first.residual, other.residual, live * sizeof(float));
        assert_memory_equal(first.out, other.out, live * sizeof(uint16_t));
        free_results(&other);
    }
    for (size_t i = 0; i < (size_t)bed->rows * bed->cols; i++)
        if (i < live)
            assert_true(first.residual[i] == residual_after(bed, value_at(1, i), 0, i));
        else
            assert_true(first.residual[i] != first.residual[i] && first.out[i] == 0xFFFF);
    close_bed(bed);
    return first;
}

static void compare_ways(struct bed *bed) {
    struct results first = run_way(bed, RP_EXCHANGE_ONE_SHOT);
    size_t live = (size_t)bed->live * bed->cols, stride = RP_ALIGN_UP(bed->cols, 16u);
    check_norm(bed, &first);
    for (enum rp_exchange_way way = RP_EXCHANGE_PACKETS; way <= RP_EXCHANGE_PUSHED; way++) {
        if (!can(bed, way) || way == RP_EXCHANGE_ONE_SHOT)
            continue;
        struct results other = run_way(bed, way);
        assert_memory_equal(first.residual, other.residual, live * sizeof(float));
        assert_memory_equal(first.out, other.out, live * sizeof(uint16_t));
        assert_memory_equal(first.scales, other.scales, bed->live * sizeof(float));
        for (uint32_t row = 0; row < bed->live; row++)
            assert_memory_equal(first.quantized + row * stride, other.quantized + row * stride,
                                bed->cols);
        free_results(&other);
    }
    free_results(&first);
}

static void test_all_ways_have_the_same_bits(void **state) {
    static const uint32_t rows[] = {1, 2, 7, 33, 150, 601};
    static const uint32_t cols[] = {4, 64, 132, 256, 1028, 2048, 4096, 5120, 8192};
    (void)state;
    for (uint32_t count = 2; count <= ranks_max(); count *= 2) {
        struct group group;
        struct rp_error err = {0};
        assert_int_equal(open_group(&group, count, false, &err), RP_OK);
        for (size_t r = 0; r < RP_ARRAY_COUNT(rows); r += rp_gpu_is_tiny() ? 3 : 1)
            for (size_t c = 0; c < RP_ARRAY_COUNT(cols); c += rp_gpu_is_tiny() ? 3 : 1)
                for (uint32_t form = 0; form<4; form += rows[r]> 200 || rp_gpu_is_tiny() ? 3 : 1) {
                    struct bed bed = {.group = &group,
                                      .rows = rows[r],
                                      .live = RP_MAX(1u, rows[r] - 1),
                                      .cols = cols[c],
                                      .partials = form & 1,
                                      .quantized = form & 2};
                    compare_ways(&bed);
                }
        close_group(&group);
    }
}

/* Ways and terms alternate at their own paces. */
static void run_in_a_row(struct bed *bed) {
    static const enum rp_exchange_way ways[] = {
        RP_EXCHANGE_PACKETS,  RP_EXCHANGE_ONE_SHOT, RP_EXCHANGE_PACKETS, RP_EXCHANGE_PACKETS,
        RP_EXCHANGE_TWO_SHOT, RP_EXCHANGE_TWO_SHOT, RP_EXCHANGE_ONE_SHOT};
    open_bed(bed);
    for (uint32_t rank = 0; rank < bed->group->count; rank++)
        for (uint32_t i = 0; i < IN_A_ROW; i++) {
            enum rp_exchange_way way = ways[i % RP_ARRAY_COUNT(ways)];
            start(bed, rank, can(bed, way) ? way : RP_EXCHANGE_ONE_SHOT, i % TERMS);
        }
    synchronize(bed->group);
    for (uint32_t rank = 0; rank < bed->group->count; rank++) {
        struct results results = read_results(bed, rank);
        for (size_t at = 0; at < (size_t)bed->live * bed->cols; at++) {
            float want = value_at(1, at);
            for (uint32_t i = 0; i < IN_A_ROW; i++)
                want = residual_after(bed, want, i % TERMS, at);
            assert_true(results.residual[at] == want);
        }
        free_results(&results);
    }
    close_bed(bed);
}

static void test_exchanges_in_a_row_do_not_disturb_each_other(void **state) {
    static const uint32_t shapes[][2] = {{1, 4096}, {1, 8192}, {8, 4096}, {5, 2048}, {150, 4096}};
    (void)state;
    for (uint32_t count = 2; count <= ranks_max(); count *= 2) {
        struct group group;
        struct rp_error err = {0};
        assert_int_equal(open_group(&group, count, false, &err), RP_OK);
        for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
            struct bed bed = {
                .group = &group, .rows = shapes[i][0], .live = shapes[i][0], .cols = shapes[i][1]};
            run_in_a_row(&bed);
        }
        close_group(&group);
    }
}

/* --- the benchmark --------------------------------------------------------------------------- */

static cudaGraphExec_t capture(const struct bed *bed, uint32_t rank, enum rp_exchange_way way) {
    cudaStream_t stream = bed->group->ranks[rank]->stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    rp_cuda_select(bed->group->ranks[rank]);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int i = 0; i < BENCH_NODES; i++)
        start(bed, rank, way, 0);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
}

/* Microseconds of an exchange: the mean over a row of graphs, seen by rank 0. */
static double time_way(struct bed *bed, enum rp_exchange_way way) {
    cudaGraphExec_t graphs[RANKS_MAX];
    cudaEvent_t events[2];
    float ms = 0.0f;
    open_bed(bed);
    for (uint32_t rank = 0; rank < bed->group->count; rank++)
        graphs[rank] = capture(bed, rank, way);
    rp_cuda_select(bed->group->ranks[0]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cudaEventCreate(&events[i]), cudaSuccess);
    for (int i = 0; i < BENCH_REPLAYS + 2; i++)
        for (uint32_t rank = 0; rank < bed->group->count; rank++) {
            cudaStream_t stream = bed->group->ranks[rank]->stream;
            rp_cuda_select(bed->group->ranks[rank]);
            if (rank == 0 && i == 2)
                assert_int_equal(cudaEventRecord(events[0], stream), cudaSuccess);
            assert_int_equal(cudaGraphLaunch(graphs[rank], stream), cudaSuccess);
            if (rank == 0 && i == BENCH_REPLAYS + 1)
                assert_int_equal(cudaEventRecord(events[1], stream), cudaSuccess);
        }
    synchronize(bed->group);
    assert_int_equal(cudaEventElapsedTime(&ms, events[0], events[1]), cudaSuccess);
    for (uint32_t rank = 0; rank < bed->group->count; rank++) {
        rp_cuda_select(bed->group->ranks[rank]);
        assert_int_equal(cudaGraphExecDestroy(graphs[rank]), cudaSuccess);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(cudaEventDestroy(events[i]), cudaSuccess);
    close_bed(bed);
    return (double)ms * 1e3 / (BENCH_REPLAYS * BENCH_NODES);
}

static void bench_group(uint32_t count, bool unmapped) {
    /* 8 KB to 128 MB of bf16 */
    static const uint32_t shapes[][2] = {
        {1, 4096},   {2, 4096},   {1, 8192},   {8, 4096},    {32, 4096},   {32, 8192},  {64, 8192},
        {128, 4096}, {128, 8192}, {512, 4096}, {4096, 4096}, {2048, 8192}, {8192, 8192}};
    struct group group;
    struct rp_error err = {0};
    if (open_group(&group, count, unmapped, &err) != RP_OK) {
        printf("%s\n", err.text);
        close_group(&group);
        return;
    }
    printf("%u ranks%s\n", count, group.share ? " on one GPU" : "");
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++)
        for (enum rp_exchange_way way = RP_EXCHANGE_PACKETS; way <= RP_EXCHANGE_LIBRARY; way++) {
            struct bed bed = {.group = &group,
                              .rows = shapes[i][0],
                              .live = shapes[i][0],
                              .cols = shapes[i][1],
                              .zeros = true};
            for (int form = 0; form < 2 && can(&bed, way); form++) {
                bed.partials = form == 1;
                printf("%8.0f KB  %4u x %u  %-9s  %-8s  %9.2f us\n",
                       (double)bed.rows * bed.cols * 2 / 1024, bed.rows, bed.cols, way_names[way],
                       form ? "partials" : "term", time_way(&bed, way));
                fflush(stdout);
            }
        }
    close_group(&group);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ways_have_the_same_bits),
        cmocka_unit_test(test_exchanges_in_a_row_do_not_disturb_each_other)};
    bool bench = argc > 1 && strcmp(argv[1], "--bench") == 0;
    /* Before CUDA is asked anything: a kernel that is loaded at its first use may wait for one that
     * waits for a rank whose kernels are not launched yet. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    if (rp_gpu_test_skips(bench ? 1 : argc, argv))
        return 77;
    if (!bench)
        return cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t count = 2; count <= RP_MIN(gpu_count(), (uint32_t)RANKS_MAX); count *= 2) {
        bench_group(count, false);
        bench_group(count, true);
    }
    return 0;
}
