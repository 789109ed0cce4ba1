/* time_gemm.cu - times the GEMMs of a layer on a GPU, with a cold L2.
 *
 * Not part of the build. From the repository's root, after ./dev build:
 *   nvcc -O3 -std=c++17 -I. -gencode=arch=compute_90a,code=sm_90a tools/time_gemm.cu \
 *       build/release/librp_cuda.a build/release/librp_device.a build/release/librp_base.a -lxxhash \
 *       -o time_gemm
 *
 *   ./time_gemm WORD...      commands, executed from left to right:
 *   sweep M N K SEGMENTS,...     one GEMM, with every tile that fits M rows
 *   one M N K SEGMENTS TILE      one GEMM with this tile
 *   planned M                    each GEMM of a layer and the head separately, as planned
 *   chain M SMALL_US LABEL       all GEMMs of Llama-3.1-8B as one captured chain: 32 layers of qkv, o,
 *                                gate_up, down, then the head; with SMALL_US > 0 a kernel of about that
 *                                duration, one block of 256 threads per row, precedes each. As planned
 *                                unless `tile` was given: gate_up gated where that is supported
 *   segments N,N,N,N,N           for later chains: segments of qkv, o, gate_up, down, head
 *   tile GEMM TILE               for later chains: GEMM 0 to 4 as above, 9: all
 *   type TYPE                    for later commands: bf16 (default), fp8, int8, or block: fp8 with block scales
 *   quantized values | rows                 input of later 8-bit GEMMs: quantized values (default), or bf16 rows if the
 *                                kernel can quantize them itself
 *   pdl | plain                  programmatic dependent launch (default), or plain edges
 *   trace                        if matmul_tc_cuda.cu and matmul_rows_cuda.cu are built with -DRP_TRACE: when
 *                                the blocks of two layers started, waited and ended (min, median, max;
 *                                microseconds)
 * SEGMENTS: number of split-K segments of equal length. TILE: TOKENS,ROWS,BOXES,EAGER,ORDER,STAGES,
 * SHARED_KB,PARTIALS, as in struct rp_matmul_tile.
 *
 * A GEMM is captured many times in one graph, with copies of its weights that far exceed the L2
 * cache; the time is the median over replays. Shares are relative to 4.57 TB/s, the read bandwidth
 * of an H200. */
#include "device/cuda_kernel.cuh"
#include "quant/matmul_internal_cuda.h"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error = (call);                                                                \
        if (error != cudaSuccess) {                                                                \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

namespace {

const double BANDWIDTH = 4.57e12;

struct environment {
    rp_cuda_limits limits;
    rp_live_counts *counts;
    unsigned char *workspace;
    size_t workspace_bytes;
    unsigned char *pool; /* random bf16 */
    size_t pool_bytes;
    __nv_bfloat16 *in;
    float *out;
    float *scales; /* scales of rows and of weights, all equal */
    cudaStream_t stream;
    rp_dtype dtype;
    bool block_scales, rows_in_bf16;
    bool dependent;
} env;

const uint32_t SCALES = 1 << 20;

/* Bytes of a weight. */
uint32_t element() { return rp_dtype_bytes(env.dtype); }
/* K in units of two bytes, as in plans. */
uint32_t units_of(uint32_t k) { return k * element() / 2; }

__global__ void fill(uint32_t *to, size_t words) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32);
        x ^= x >> 15, x *= 0x85EBCA6Bu, x ^= x >> 13, x *= 0xC2B2AE35u, x ^= x >> 16;
        /* Two bf16 of either sign with exponents 2^-7 ... 1. */
        to[i] = (x & 0x80FF80FFu) | (0x3C003C00u + ((x >> 3) & 0x03000300u));
    }
}

/* Quantized values: bytes of either sign, as FP8 with exponents up to 0. */
__global__ void fill_quantized(uint32_t *to, size_t words) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32);
        x ^= x >> 15, x *= 0x85EBCA6Bu, x ^= x >> 13, x *= 0xC2B2AE35u, x ^= x >> 16;
        to[i] = x & 0xBFBFBFBFu;
    }
}

__global__ void fill_scales(float *to, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = 0.01f;
}

__global__ void set_counts(rp_live_counts *counts, uint32_t live) {
    counts->token_count = counts->logit_row_count = live;
}

struct small_args {
    uint32_t cycles;
};
__global__ void small_kernel(small_args args) {
    rp_pdl_begin();
    long long begin = clock64();
    while (clock64() - begin < args.cycles)
        ;
}

void fill_operands() {
    const size_t in_words = 8192ull * 28672 / 2;
    if (env.dtype == RP_DTYPE_BF16)
        fill<<<2048, 256>>>((uint32_t *)env.pool, env.pool_bytes / 4);
    else
        fill_quantized<<<2048, 256>>>((uint32_t *)env.pool, env.pool_bytes / 4);
    if (env.dtype == RP_DTYPE_BF16 || env.rows_in_bf16)
        fill<<<2048, 256>>>((uint32_t *)env.in, in_words);
    else
        fill_quantized<<<2048, 256>>>((uint32_t *)env.in, in_words);
    CHECK(cudaDeviceSynchronize());
}

bool set_type(const char *name) {
    static const struct {
        const char *name;
        rp_dtype dtype;
        bool block_scales;
    } types[] = {{"bf16", RP_DTYPE_BF16, false},
                 {"fp8", RP_DTYPE_FP8_E4M3, false},
                 {"int8", RP_DTYPE_INT8, false},
                 {"block", RP_DTYPE_FP8_E4M3, true}};
    for (const auto &type : types) {
        if (strcmp(name, type.name) != 0)
            continue;
        env.dtype = type.dtype;
        env.block_scales = type.block_scales;
        fill_operands();
        return true;
    }
    return false;
}

void open_environment() {
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    env.limits.sm_count = prop.multiProcessorCount;
    env.limits.compute_capability = prop.major * 10 + prop.minor;
    env.limits.shared_bytes_block = prop.sharedMemPerBlockOptin;
    env.limits.l2_bytes = prop.l2CacheSize;
    env.limits.dependent_launch = true;
    env.workspace_bytes = rp_matmul_cuda_workspace_bytes(&env.limits, 4096, 128256);
    CHECK(cudaMalloc((void **)&env.workspace, env.workspace_bytes));
    CHECK(cudaMemset(env.workspace, 0, env.workspace_bytes));
    CHECK(cudaMalloc((void **)&env.counts, sizeof *env.counts));
    env.pool_bytes = 15100ull << 20;
    CHECK(cudaMalloc((void **)&env.pool, env.pool_bytes));
    CHECK(cudaMalloc((void **)&env.in, 8192ull * 28672 * 2));
    CHECK(cudaMalloc((void **)&env.out, 4096ull * 28672 * 4));
    CHECK(cudaStreamCreate(&env.stream));
    CHECK(cudaMalloc((void **)&env.scales, SCALES * sizeof(float)));
    fill_scales<<<256, 256>>>(env.scales, SCALES);
    set_type("bf16");
    const char *carveout = getenv("RP_CARVEOUT_SMALL");
    if (!carveout || atoi(carveout) >= 0)
        CHECK(cudaFuncSetAttribute(small_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   carveout ? atoi(carveout) : 100));
}

struct request {
    uint32_t m, n, k, segment;
    const unsigned char *weight;
    rp_matmul_tile tile;
    bool chosen; /* tile chosen by rp_matmul_cuda_plan */
    bool gated;  /* gate_up, fused with the activation where a kernel supports it */
};

struct planned {
    rp_cuda_launch launch;
    rp_arena memory;
};

bool plan(const request &r, rp_arena *memory, rp_cuda_launch *launch) {
    rp_matrix matrix = {};
    matrix.rows = r.n;
    matrix.cols = r.k;
    matrix.dtype = env.dtype;
    matrix.data = (void *)r.weight;
    if (env.dtype != RP_DTYPE_BF16) {
        matrix.input = RP_INPUT_QUANTIZED;
        matrix.scale_kind = env.block_scales ? RP_SCALE_BLOCK_128 : RP_SCALE_CHANNEL;
        matrix.scales = env.scales;
    }
    rp_matmul_cuda op = {};
    op.rows.step.counts = env.counts;
    op.rows.rows = RP_ROWS_TOKEN;
    op.rows.max_rows = r.m;
    op.limits = env.limits;
    op.limits.dependent_launch = env.dependent;
    op.weight = &matrix;
    op.in = env.in;
    op.in_stride = r.k;
    op.out.data = env.out;
    op.out.stride = r.n;
    op.out.dtype = RP_DTYPE_F32;
    op.partials_wanted = r.n <= 32768;
    op.workspace = env.workspace;
    op.workspace_bytes = env.workspace_bytes;
    rp_cuda_partials partials;
    rp_error err = {};
    op.gate_up = r.gated;
    bool quantizes = env.rows_in_bf16 && rp_matmul_cuda_quantizes(&op);
    if (env.dtype != RP_DTYPE_BF16 && !quantizes)
        op.in_scales = env.scales;
    op.gated = r.chosen && r.gated && rp_matmul_cuda_gates(&op);
    if (op.gated) {
        op.out.stride = r.n / 2;
        op.out.dtype = RP_DTYPE_BF16;
    }
    int status = r.chosen ? rp_matmul_cuda_plan(&op, memory, launch, &partials, &err)
                          : rp_matmul_cuda_plan_tile(&op, &r.tile, r.segment, memory, launch,
                                                     &partials, &err);
    if (status != RP_OK && status != RP_STATUS_UNSUPPORTED)
        fprintf(stderr, "plan: %s\n", err.text);
    return status == RP_OK;
}

/* Time in ms of the launches captured as one graph: median of `replays`. */
double time_graph(const std::vector<rp_cuda_launch> &launches, uint32_t replays, uint32_t small,
                  uint32_t small_cycles, uint32_t m) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(env.stream, cudaStreamCaptureModeThreadLocal));
    for (const rp_cuda_launch &launch : launches) {
        if (small)
            CHECK((cudaError_t)rp_cuda_start(small_kernel, dim3(m), dim3(256), 0, env.stream,
                                             env.dependent, small_args{small_cycles}));
        CHECK((cudaError_t)launch.run(launch.args, env.stream));
    }
    CHECK(cudaStreamEndCapture(env.stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (uint32_t i = 0; i < replays + 1; i++) {
        float ms;
        CHECK(cudaEventRecord(begin, env.stream));
        CHECK(cudaGraphLaunch(exec, env.stream));
        CHECK(cudaEventRecord(end, env.stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i > 0)
            times.push_back(ms);
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

const char *const orders[] = {"runs", "waves", "once"};

/* Times one GEMM and prints a line. */
void measure(request r, const char *extra) {
    size_t bytes = (size_t)r.n * r.k * element();
    uint32_t copies = (uint32_t)std::min<size_t>(env.pool_bytes / bytes, 160);
    uint32_t count = (uint32_t)std::max<double>(3, std::min<double>(copies, 2e9 / (double)bytes));
    if (r.m > 256)
        count = std::min(count, 6u);
    rp_arena memory = {};
    std::vector<rp_cuda_launch> launches;
    for (uint32_t i = 0; i < count; i++) {
        rp_cuda_launch launch;
        r.weight = env.pool + bytes * (i % copies);
        if (!plan(r, &memory, &launch)) {
            rp_arena_deinit(&memory);
            return;
        }
        launches.push_back(launch);
    }
    set_counts<<<1, 1>>>(env.counts, r.m);
    double us = time_graph(launches, 5, 0, 0, r.m) * 1e3 / count;
    const rp_matmul_tc_args *args = (const rp_matmul_tc_args *)launches[0].args;
    printf(
        "%5u %6u %5u seg %2u  tile %3u x %3u x %u %s %-5s stages %2u grid %3u %-8s %s%s %8.2f us "
        "%5.2f TB/s %5.1f %% %6.1f TFLOP/s\n",
        r.m, r.n, r.k, args->segments, args->tile.rows, args->tile.tokens, args->tile.boxes,
        args->tile.eager ? "eager" : "later", orders[args->tile.order], args->stages, args->grid,
        args->tile.partials ? "partials" : "sum", env.dependent ? "pdl " : "", extra, us,
        (double)bytes / us * 1e-6, (double)bytes / us * 1e6 / BANDWIDTH * 100,
        2e-6 * r.m * r.n * r.k / us);
    fflush(stdout);
    rp_arena_deinit(&memory);
}

uint32_t segment_of(uint32_t k, uint32_t count) {
    return (uint32_t)RP_ALIGN_UP(RP_CEIL_DIV(units_of(k), count), 64);
}

/* Whether the kernel is from matmul_rows_cuda.cu, which supports tracing. */
bool is_rows(const rp_cuda_launch &launch) { return launch.run == rp_matmul_rows_cuda_run; }

/* Times every tile that fits m rows. */
void sweep(uint32_t m, uint32_t n, uint32_t k, const std::vector<uint32_t> &segments) {
    static const uint32_t tiles[][4] = {
        {8, 64, 2, 1},    {8, 64, 4, 1},   {16, 64, 2, 1},  {16, 64, 4, 1},   {32, 64, 2, 1},
        {32, 64, 4, 1},   {8, 128, 2, 1},  {16, 128, 2, 1}, {32, 128, 1, 1},  {32, 128, 2, 1},
        {64, 128, 1, 1},  {64, 128, 2, 1}, {64, 64, 2, 1},  {128, 128, 1, 1}, {128, 128, 1, 0},
        {192, 128, 1, 0}, {256, 128, 1, 0}};
    for (uint32_t count : segments) {
        for (const uint32_t *t : tiles) {
            bool supports_8_bit = t[1] == 128 && t[0] <= 128 && t[2] == (t[0] < 128 ? 2 : 1) &&
                                  (t[0] < 128 || t[3] == env.block_scales);
            if (env.dtype != RP_DTYPE_BF16 && !supports_8_bit)
                continue;
            if (m <= 128 ? t[0] < m || t[0] >= 2 * std::max(m, 8u) : t[0] < 96)
                continue;
            for (int variant = 0; variant < 3; variant++) {
                request r = {};
                r.m = m, r.n = n, r.k = k, r.segment = segment_of(k, count);
                r.tile.tokens = t[0];
                r.tile.rows = t[1];
                r.tile.boxes = t[2];
                r.tile.eager = t[3] != 0;
                r.tile.shared_bytes = env.limits.shared_bytes_block - (m <= 128 ? 12 << 10 : 0);
                r.tile.partials = variant == 1;
                r.tile.order = variant == 2 ? RP_MATMUL_ORDER_WAVES : RP_MATMUL_ORDER_RUNS;
                if ((r.tile.partials && (count == 1 || m > 256 || n > 32768)) ||
                    (r.tile.order && m <= 128))
                    continue;
                measure(r, "");
            }
        }
    }
}

bool trace_chain;

struct layer_gemm {
    const char *name;
    uint32_t n, k, segments; /* segments 0: as planned */
    rp_matmul_tile tile;     /* tokens 0: as planned */
};

layer_gemm gemms[] = {{"qkv", 6144, 4096, 0, {}},
                      {"o", 4096, 4096, 0, {}},
                      {"gate_up", 28672, 4096, 0, {}},
                      {"down", 4096, 14336, 0, {}},
                      {"head", 128256, 4096, 0, {}}};

/* Prints a line per GEMM: back-to-back dependent launches, each with different weights. */
void each_planned(uint32_t m) {
    for (const layer_gemm &p : gemms) {
        request r = {};
        r.m = m, r.n = p.n, r.k = p.k;
        r.chosen = true;
        r.gated = p.n == 28672;
        const size_t bytes = (size_t)p.n * p.k * element();
        const uint32_t copies = (uint32_t)std::min<size_t>(env.pool_bytes / bytes, 64);
        rp_arena memory = {};
        std::vector<rp_cuda_launch> launches(copies);
        for (uint32_t i = 0; i < copies; i++) {
            r.weight = env.pool + bytes * i;
            if (!plan(r, &memory, &launches[i]))
                exit(1);
        }
        set_counts<<<1, 1>>>(env.counts, m);
        const double us = time_graph(launches, 9, 0, 0, m) * 1e3 / copies;
        printf("%5u rows %-8s %6u x %5u %8.2f us %5.2f TB/s %7.1f TFLOP/s %s\n", m, p.name, p.n,
               p.k, us, (double)bytes / us * 1e-6, 2e-6 * m * p.n * p.k / us, launches[0].kernel);
        fflush(stdout);
        rp_arena_deinit(&memory);
    }
}

void chain(uint32_t m, double small_us, const char *label) {
    rp_arena memory = {};
    std::vector<rp_cuda_launch> launches;
    size_t at = 0;
    for (uint32_t i = 0; i < 129; i++) {
        const layer_gemm &p = gemms[i == 128 ? 4 : i % 4];
        request r = {};
        r.m = m, r.n = p.n, r.k = p.k;
        r.segment = p.segments ? segment_of(p.k, p.segments)
                               : rp_matmul_cuda_segment(p.n, units_of(p.k), p.n == 28672);
        r.tile = p.tile;
        r.chosen = p.tile.tokens == 0;
        r.gated = p.n == 28672;
        r.weight = env.pool + at;
        at += (size_t)p.n * p.k * element();
        rp_cuda_launch launch;
        if (at > env.pool_bytes || !plan(r, &memory, &launch)) {
            printf("chain: no plan for %s\n", p.name);
            exit(1);
        }
        launches.push_back(launch);
    }
    set_counts<<<1, 1>>>(env.counts, m);
    uint64_t *trace = NULL;
    if (trace_chain) {
        CHECK(cudaMalloc((void **)&trace, 129 * 132 * 32));
        CHECK(cudaMemset(trace, 0, 129 * 132 * 32));
        for (uint32_t i = 0; i < 129; i++)
            if (!strcmp(launches[i].kernel, "matmul_tc"))
                ((rp_matmul_tc_args *)launches[i].args)->trace = trace + i * 132 * 4;
            else if (is_rows(launches[i]))
                ((rp_matmul_rows_args *)launches[i].args)->trace = trace + i * 132 * 4;
    }
    double ms = time_graph(launches, 10, small_us > 0, (uint32_t)(small_us * 1755), m);
    printf("chain M %4u %s small %.1f us %s: %.3f ms, %5.1f %% of the bandwidth, %.1f TFLOP/s\n", m,
           env.dependent ? "pdl  " : "plain", small_us, label, ms,
           (double)at / ms * 1e3 / BANDWIDTH * 100, 2.0 / element() * (double)at * m / ms * 1e-9);
    fflush(stdout);
    if (trace) {
        std::vector<uint64_t> t(129 * 132 * 4);
        CHECK(cudaMemcpy(t.data(), trace, t.size() * 8, cudaMemcpyDeviceToHost));
        uint64_t zero = t[16 * 132 * 4];
        for (uint32_t i = 16; i < 25; i++) {
            bool is_tc = !strcmp(launches[i].kernel, "matmul_tc");
            if (!is_tc && !is_rows(launches[i]))
                continue;
            uint32_t grid = is_tc ? ((const rp_matmul_tc_args *)launches[i].args)->grid
                                  : ((const rp_matmul_rows_args *)launches[i].args)->grid;
            std::vector<double> v[3];
            uint32_t per_sm[132] = {}, doubled = 0;
            for (uint32_t b = 0; b < grid; b++) {
                const uint64_t *at = &t[(i * 132 + b) * 4];
                for (int e = 0; e < 3; e++)
                    v[e].push_back((double)(int64_t)(at[e] - zero) * 1e-3);
                doubled += per_sm[at[3]]++ > 0;
            }
            printf("  trace %-8s grid %3u, %u doubled:", gemms[i % 4].name, grid, doubled);
            for (int e = 0; e < 3; e++) {
                std::sort(v[e].begin(), v[e].end());
                printf("  %s %8.2f %8.2f %8.2f",
                       e == 0   ? "start"
                       : e == 1 ? "wait"
                                : "end",
                       v[e][0], v[e][grid / 2], v[e][grid - 1]);
            }
            printf("\n");
        }
        CHECK(cudaFree(trace));
    }
    rp_arena_deinit(&memory);
}

rp_matmul_tile tile_of(const std::vector<uint32_t> &t) {
    rp_matmul_tile tile = {};
    tile.tokens = t[0];
    tile.rows = t[1];
    tile.boxes = t[2];
    tile.eager = t[3] != 0;
    tile.order = (rp_matmul_order)t[4];
    tile.stages = t[5];
    tile.shared_bytes = t[6] << 10;
    tile.partials = t[7] != 0;
    return tile;
}

std::vector<uint32_t> numbers(const char *text) {
    std::vector<uint32_t> list;
    for (char *end; *text; text = *end ? end + 1 : end)
        list.push_back((uint32_t)strtoul(text, &end, 10));
    return list;
}

} // namespace

int main(int argc, char **argv) {
    open_environment();
    env.dependent = true;
    for (int i = 1; i < argc; i++) {
        const char *verb = argv[i];
        if (!strcmp(verb, "plain") || !strcmp(verb, "pdl")) {
            env.dependent = verb[1] == 'd';
        } else if (!strcmp(verb, "type") && i + 1 < argc && set_type(argv[i + 1])) {
            i++;
        } else if (!strcmp(verb, "codes") || !strcmp(verb, "rows")) {
            env.rows_in_bf16 = verb[0] == 'r';
            fill_operands();
        } else if (!strcmp(verb, "segments") && i + 1 < argc) {
            std::vector<uint32_t> list = numbers(argv[++i]);
            for (size_t p = 0; p < 5 && p < list.size(); p++)
                gemms[p].segments = list[p];
        } else if (!strcmp(verb, "tile") && i + 2 < argc) {
            uint32_t p = (uint32_t)atoi(argv[i + 1]);
            std::vector<uint32_t> t = numbers(argv[i + 2]);
            t.resize(8);
            for (uint32_t q = 0; q < 5; q++)
                if (p == q || p == 9)
                    gemms[q].tile = tile_of(t);
            i += 2;
        } else if (!strcmp(verb, "sweep") && i + 4 < argc) {
            sweep((uint32_t)atoi(argv[i + 1]), (uint32_t)atoi(argv[i + 2]),
                  (uint32_t)atoi(argv[i + 3]), numbers(argv[i + 4]));
            i += 4;
        } else if (!strcmp(verb, "one") && i + 5 < argc) {
            std::vector<uint32_t> t = numbers(argv[i + 5]);
            t.resize(8);
            request r = {};
            r.m = (uint32_t)atoi(argv[i + 1]);
            r.n = (uint32_t)atoi(argv[i + 2]);
            r.k = (uint32_t)atoi(argv[i + 3]);
            r.segment = segment_of(r.k, (uint32_t)atoi(argv[i + 4]));
            r.tile = tile_of(t);
            measure(r, "");
            i += 5;
        } else if (!strcmp(verb, "planned") && i + 1 < argc) {
            each_planned((uint32_t)atoi(argv[++i]));
        } else if (!strcmp(verb, "trace")) {
            trace_chain = true;
        } else if (!strcmp(verb, "chain") && i + 3 < argc) {
            chain((uint32_t)atoi(argv[i + 1]), atof(argv[i + 2]), argv[i + 3]);
            i += 3;
        } else {
            fprintf(stderr, "unknown or incomplete command: %s\n", verb);
            return 2;
        }
    }
    return 0;
}
