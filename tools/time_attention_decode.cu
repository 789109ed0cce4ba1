/* time_attention_decode.cu - measures how fast decode attention reads K and V, with a cold L2.
 *
 * Not part of the build. From the repository's root, after ./dev build:
 *   nvcc -O3 -std=c++17 -I. -gencode=arch=compute_90a,code=sm_90a tools/time_attention_decode.cu \
 *       build/release/librp_cuda.a build/release/librp_base.a -lxxhash -o time_attention_decode
 *   ./time_attention_decode [ROWSxLENGTH ...]
 *
 * Each shape is one graph with a launch per layer, with enough layers that their K and V are at
 * least four times the L2; the time per launch is the graph's time divided by the layers, the
 * median of nine replays. 32 query heads, 8 KV heads, head dim 128, pages of 64. "ROWSxLENGTHr":
 * random lengths from 1 to LENGTH. The page stride is that of a model of RP_LAYERS layers
 * (environment; default 32). "loads alone": only loads of the same number of contiguous bytes; "in
 * pages": only loads of the same pages through the page tables. */
#include "attention/attention_internal_cuda.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <vector>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error = (cudaError_t)(call);                                                   \
        if (error != cudaSuccess) {                                                                \
            printf("%s: %s\n", #call, cudaGetErrorString(error));                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const uint32_t HEADS = 32, KV_HEADS = 8, DIM = 128, PAGE = 64;

__global__ void fill(__nv_bfloat16 *data, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x)
        data[i] = __float2bfloat16((float)((i * 2654435761u >> 16) % 1000) * 0.002f - 1.0f);
}

__global__ void __launch_bounds__(1024) read_all(const uint4 *data, size_t count, uint4 *out) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    size_t stride = (size_t)gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 8
    for (; i < count; i += stride) {
        uint4 x = __ldcs(data + i);
        sum.x ^= x.x ^ x.y ^ x.z ^ x.w;
    }
    if (sum.x == 12345)
        *out = sum;
}

/* Loads the same pages in the same order without computing: the upper bound for this pattern. */
__global__ void __launch_bounds__(1024)
    read_pages(rp_kv_layout kv, rp_step_view step, uint32_t layer, uint32_t pages, uint4 *out) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    uint32_t runs = step.config.row_capacity * pages * KV_HEADS * 2;
    for (uint32_t run = blockIdx.x * 32 + threadIdx.x / 32; run < runs; run += gridDim.x * 32) {
        uint32_t which = run % 2, page = run / 2 % pages, head = run / 2 / pages % KV_HEADS,
                 row = run / 2 / pages / KV_HEADS;
        uint32_t at = step.slots[row * step.slot_words + RP_SLOT_PAGES + page];
        const uint4 *from =
            (const uint4 *)(kv.base + at * kv.page_stride + (layer * 2 + which) * kv.plane_stride +
                            head * kv.head_stride) +
            threadIdx.x % 32;
#pragma unroll 8
        for (uint32_t i = 0; i < PAGE * DIM * 2 / 512; i++) {
            uint4 x = __ldcs(from + i * 32);
            sum.x ^= x.x ^ x.y ^ x.z ^ x.w;
        }
    }
    if (sum.x == 12345)
        *out = sum;
}

template <typename T> static T *device(size_t count) {
    void *data;
    CHECK(cudaMalloc(&data, count * sizeof(T)));
    CHECK(cudaMemset(data, 0, count * sizeof(T)));
    return (T *)data;
}

template <typename T> static T *upload(const std::vector<T> &from) {
    T *to = device<T>(from.size());
    CHECK(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}

/* Time of one replay in microseconds. */
static double replay_us(cudaGraph_t graph, cudaStream_t stream, double *spread) {
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    std::vector<double> times;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < 11; i++) {
        float ms;
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 2)
            times.push_back(ms * 1e3);
    }
    std::sort(times.begin(), times.end());
    *spread = (times.back() - times.front()) / times[times.size() / 2];
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return times[times.size() / 2];
}

/* A shape and its device memory. */
struct shape_case {
    rp_attention_cuda_config config;
    rp_attention_args args;
    double bytes; /* unmasked K and V per layer */
    uint32_t layers;
};

static shape_case make_case(uint32_t rows, uint32_t length, bool random, cudaStream_t stream) {
    const char *wanted = getenv("RP_LAYERS");
    const uint32_t stride_layers = wanted ? (uint32_t)atoi(wanted) : 32;
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    rp_step_view step = {};
    step.config.slot_count = rows;
    step.config.pages_per_slot = (length + PAGE - 1) / PAGE;
    step.config.row_capacity = step.config.token_capacity = rows;
    step.slot_words = RP_SLOT_PAGES + step.config.pages_per_slot;
    std::vector<uint32_t> slots(rows * step.slot_words), positions(rows), token_rows(rows);
    std::vector<rp_live_row> live(rows);
    uint32_t pages = 1;
    uint64_t tokens = 0;
    srand(1);
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t mine = random ? 1 + (uint32_t)rand() % length : length;
        live[i] = {i, i, 1, mine - 1, RP_ROW_DECODE, 0};
        positions[i] = mine - 1;
        token_rows[i] = i;
        tokens += mine;
        for (uint32_t p = 0; p < step.config.pages_per_slot; p++)
            slots[i * step.slot_words + RP_SLOT_PAGES + p] = pages++;
    }
    for (uint32_t i = 0; i < rows; i++) /* scattered */
        for (uint32_t p = 0; p < step.config.pages_per_slot; p++)
            std::swap(slots[i * step.slot_words + RP_SLOT_PAGES + p],
                      slots[(uint32_t)rand() % rows * step.slot_words + RP_SLOT_PAGES +
                            (uint32_t)rand() % step.config.pages_per_slot]);
    double bytes = (double)tokens * KV_HEADS * DIM * 2 * 2;
    uint32_t layers = std::max(4u, std::min(128u, (uint32_t)(4.0 * prop.l2CacheSize / bytes) + 1));
    const size_t run = PAGE * DIM * 2;
    rp_kv_layout kv = {nullptr,
                       run * KV_HEADS * 2 * std::max(layers, stride_layers),
                       run * KV_HEADS,
                       run,
                       layers,
                       KV_HEADS,
                       DIM,
                       PAGE,
                       RP_DTYPE_BF16};
    kv.base = device<unsigned char>(kv.page_stride * pages);
    fill<<<2048, 256, 0, stream>>>((__nv_bfloat16 *)kv.base, kv.page_stride * pages / 2);
    std::vector<rp_live_counts> counts(1);
    counts[0].row_count = counts[0].token_count = rows;
    step.slots = upload(slots);
    step.rows = upload(live);
    step.positions = upload(positions);
    step.token_rows = upload(token_rows);
    step.counts = upload(counts);

    rp_attention_cuda_config config = {};
    config.limits.sm_count = (uint32_t)prop.multiProcessorCount;
    config.limits.compute_capability = (uint32_t)(prop.major * 10 + prop.minor);
    config.limits.shared_bytes_block = (uint32_t)prop.sharedMemPerBlockOptin;
    config.limits.dependent_launch = true;
    config.step = step;
    config.kv = kv;
    config.bucket = {rows, rows, rows, true};
    config.heads = HEADS;
    config.kv_heads = KV_HEADS;
    config.head_dim = DIM;
    config.window_count = 1;
    config.workspace_bytes = rp_attention_cuda_workspace_bytes(&config);
    config.workspace = device<unsigned char>(config.workspace_bytes);
    std::vector<float> q((size_t)rows * HEADS * DIM);
    for (float &x : q)
        x = (float)(rand() % 1000) * 0.002f - 1.0f;
    rp_attention_args args = {};
    args.step = step;
    args.kv = kv;
    args.q = upload(q);
    args.out = device<__nv_bfloat16>(q.size());
    args.q_stride = args.out_stride = HEADS * DIM;
    args.out_dtype = RP_DTYPE_BF16;
    args.heads = HEADS;
    args.kv_heads = KV_HEADS;
    args.head_dim = DIM;
    args.scale = 0.088f;
    return {config, args, bytes, layers};
}

static void free_case(const shape_case &at) {
    const rp_step_view &step = at.config.step;
    for (const void *data :
         {(const void *)at.config.kv.base, (const void *)step.slots, (const void *)step.rows,
          (const void *)step.positions, (const void *)step.token_rows, (const void *)step.counts,
          (const void *)at.config.workspace, (const void *)at.args.q, (const void *)at.args.out})
        CHECK(cudaFree((void *)data));
}

static void time_shape(uint32_t rows, uint32_t length, bool random, cudaStream_t stream) {
    const shape_case at = make_case(rows, length, random, stream);
    rp_attention_cuda_config config = at.config;
    rp_attention_args args = at.args;
    const rp_step_view step = config.step;
    const rp_kv_layout kv = config.kv;
    const double bytes = at.bytes;
    const uint32_t layers = at.layers;
    const size_t run = PAGE * DIM * 2;
    double us[3], spread[3];
    rp_cuda_launch launches[RP_ATTENTION_LAUNCHES_MAX];
    uint32_t count;
    rp_error err;
    for (int dependent = 1; dependent >= 0; dependent--) {
        rp_arena memory = {};
        cudaGraph_t graph;
        config.limits.dependent_launch = dependent;
        rp_attention_cuda_plan(&config, &memory, launches, &count, &err);
        CHECK(launches[0].run(launches[0].args, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (uint32_t i = 0; i < layers; i++) {
            args.layer = i;
            rp_attention_cuda_lower(&config, &args, &memory, launches, &count, &err);
            CHECK(launches[0].run(launches[0].args, stream));
        }
        CHECK(cudaStreamEndCapture(stream, &graph));
        us[dependent] = replay_us(graph, stream, &spread[dependent]) / layers;
        if (dependent) {
            rp_attention_cuda_plan(&config, &memory, launches, &count, &err);
            CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
            for (uint32_t i = 0; i < 50; i++)
                CHECK(launches[0].run(launches[0].args, stream));
            CHECK(cudaStreamEndCapture(stream, &graph));
            us[2] = replay_us(graph, stream, &spread[2]) / 50;
        }
        rp_arena_deinit(&memory);
    }
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < layers; i++)
        read_all<<<std::min(2112u, (uint32_t)(bytes / 16384) + 1), 1024, 0, stream>>>(
            (const uint4 *)kv.base + (size_t)(i * bytes / 16), (size_t)(bytes / 16),
            (uint4 *)args.out);
    CHECK(cudaStreamEndCapture(stream, &graph));
    double ignored, floor_us = replay_us(graph, stream, &ignored) / layers;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < layers; i++)
        read_pages<<<2 * config.limits.sm_count, 1024, 0, stream>>>(
            kv, step, i, step.config.pages_per_slot, (uint4 *)args.out);
    CHECK(cudaStreamEndCapture(stream, &graph));
    double pages_us = replay_us(graph, stream, &ignored) / layers;
    const double paged = (double)rows * step.config.pages_per_slot * run * KV_HEADS * 2;
    printf("%4ux%-6u%s %7.1f MB | %7.2f us %5.2f TB/s +-%.1f%% | plain edges %7.2f us %5.2f TB/s | "
           "loads alone %7.2f us %5.2f TB/s | in pages %7.2f us %5.2f TB/s | plan %.2f us\n",
           rows, length, random ? "r" : " ", bytes / 1e6, us[1], bytes / us[1] / 1e6,
           spread[1] * 50, us[0], bytes / us[0] / 1e6, floor_us, bytes / floor_us / 1e6, pages_us,
           paged / pages_us / 1e6, us[2]);
    fflush(stdout);
    free_case(at);
}

int main(int argc, char **argv) {
    static const char *const defaults[] = {"1x512",   "1x2048",   "1x8192",   "1x32768", "8x512",
                                           "8x4096",  "32x512",   "32x4096",  "128x512", "128x2048",
                                           "256x512", "32x8000r", "128x3000r"};
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    std::vector<const char *> shapes(argv + 1, argv + argc);
    if (shapes.empty())
        shapes.assign(defaults, defaults + sizeof defaults / sizeof *defaults);
    for (const char *shape : shapes) {
        unsigned rows, length;
        if (sscanf(shape, "%ux%u", &rows, &length) == 2)
            time_shape(rows, length, strchr(shape, 'r') != nullptr, stream);
    }
    return 0;
}
