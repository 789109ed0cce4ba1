/* Hardware properties that the contract of quant/matmul_cuda.h assumes, tested on the GPU:
 *
 *   bf16  a chain of mma.sync m16n8k16 and a chain of wgmma m64nNk16 give equal bits in every element, for
 *         every width N, any position of a row or column in the tile, A from shared memory or registers, either
 *         matrix on either side, sums begun by scale-d = 0 or from zeros
 *   int8  exact in both
 *   fp8   wgmma gives the same bits for every width and position; mma.sync gives others (printed, not asserted)
 *
 * Another GPU or driver may differ: then this test fails before any model has wrong bits. */
#include "device/cuda_launch.h"
#include "tests/support/wgmma_probe.cuh"

extern "C" {
#include "tests/support/gpu.h"
}

#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <vector>

namespace {

constexpr uint32_t matrix_rows = 288, k_max = 16384;
constexpr uint32_t step_bytes = 32; /* of K in one instruction */
constexpr uint32_t stage_steps = 4;
constexpr uint32_t shifts = 32, row_tiles = 4;
constexpr uint32_t counted = 2; /* elements compared, elements that differ */

struct probe_args {
    const unsigned char *a, *b; /* (matrix_rows, steps * step_bytes) */
    uint32_t steps;
    bool transposed; /* compare with expected(col, row) */
    int first_add;   /* 0: the first instruction ignores the sums; 1: they are zeros */
    uint32_t shift;  /* of rows and columns; mma.sync alone */
    void *expected;  /* (matrix_rows, matrix_rows) */
    bool store;      /* writes expected instead */
    unsigned long long *counts;
};

template <typename T>
__device__ __forceinline__ void compare(const probe_args &args, uint32_t row, uint32_t col, T sum) {
    size_t at = args.transposed ? (size_t)col * matrix_rows + row : (size_t)row * matrix_rows + col;
    T *expected = (T *)args.expected;
    if (args.store) {
        expected[at] = sum;
        return;
    }
    uint32_t seen, wanted;
    memcpy(&seen, &sum, 4);
    memcpy(&wanted, &expected[at], 4);
    atomicAdd(&args.counts[0], 1ull);
    if (seen != wanted)
        atomicAdd(&args.counts[1], 1ull);
}

__device__ __forceinline__ uint32_t word_at(const unsigned char *data, uint32_t row, size_t pitch,
                                            size_t byte) {
    return *(const uint32_t *)(data + row * pitch + byte);
}

/* The four words of a thread's part of A: 16 rows from row0 on, 32 bytes of K. */
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const unsigned char *data, uint32_t row0,
                                       size_t pitch, size_t byte) {
    uint32_t lane = threadIdx.x % 32, row = row0 + lane / 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        a[i] = word_at(data, row + i % 2 * 8, pitch, byte + i / 2 * 16 + lane % 4 * 4);
}

template <probe_kind KIND> __global__ void mma_kernel(probe_args args) {
    using sum_type = typename probe_sum<KIND>::type;
    uint32_t lane = threadIdx.x % 32;
    uint32_t row0 = blockIdx.y * 16 + args.shift, col0 = blockIdx.x * 8 + args.shift;
    if (row0 + 16 > matrix_rows || col0 + 8 > matrix_rows)
        return;
    size_t pitch = (size_t)args.steps * step_bytes;
    sum_type d[4] = {};
#pragma unroll 4
    for (uint32_t step = 0; step < args.steps; step++) {
        uint32_t a[4], b[2];
        load_a(a, args.a, row0, pitch, (size_t)step * step_bytes);
        for (uint32_t i = 0; i < 2; i++)
            b[i] = word_at(args.b, col0 + lane / 4, pitch,
                           (size_t)step * step_bytes + i * 16 + lane % 4 * 4);
        mma_chain<KIND>(d, a, b);
    }
    for (uint32_t i = 0; i < 4; i++)
        compare(args, row0 + lane / 4 + i / 2 * 8, col0 + lane % 4 * 2 + i % 2, d[i]);
}

/* Core matrices of 8 rows by 16 bytes: 128 bytes from one to the next along K, 1024 along the
 * rows. */
__device__ __forceinline__ uint32_t core_at(uint32_t row, uint32_t byte) {
    return row / 8 * 1024 + byte / 16 * 128 + row % 8 * 16 + byte % 16;
}

__device__ __forceinline__ uint64_t descriptor(const unsigned char *data) {
    uint64_t address = (uint32_t)__cvta_generic_to_shared(data);
    return (address >> 4 & 0x3FFF) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(1024 >> 4) << 32;
}

__device__ __forceinline__ void stage(unsigned char *to, const unsigned char *from, uint32_t rows,
                                      size_t pitch, uint32_t bytes) {
    uint32_t vectors = bytes / 16;
    for (uint32_t i = threadIdx.x; i < rows * vectors; i += blockDim.x) {
        uint32_t row = i / vectors, byte = i % vectors * 16;
        *(uint4 *)(to + core_at(row, byte)) = *(const uint4 *)(from + row * pitch + byte);
    }
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* Block (shift, tile): 64 rows from a shifted position, N columns from another. Every element is at
 * many positions in the tile. */
template <probe_kind KIND, int N, bool FROM_REGISTERS>
__global__ void __launch_bounds__(128) wgmma_kernel(probe_args args) {
    using sum_type = typename probe_sum<KIND>::type;
    __shared__ __align__(128) unsigned char a_stage[64 * stage_steps * step_bytes];
    __shared__ __align__(128) unsigned char b_stage[N * stage_steps * step_bytes];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t row0 = blockIdx.y * 64 + blockIdx.x, col0 = blockIdx.x * 37 % (matrix_rows - N + 1);
    if (args.store) { /* plain tiles over the whole matrix */
        row0 = min(blockIdx.y * 64, matrix_rows - 64);
        col0 = min(blockIdx.x * N, matrix_rows - N);
    }
    size_t pitch = (size_t)args.steps * step_bytes;
    sum_type d[N / 2] = {};
    uint32_t a[stage_steps][4], step0 = 0;
    auto load = [&](uint32_t count) {
        size_t byte0 = (size_t)step0 * step_bytes;
        __syncthreads();
        stage(a_stage, args.a + row0 * pitch + byte0, 64, pitch, count * step_bytes);
        stage(b_stage, args.b + col0 * pitch + byte0, N, pitch, count * step_bytes);
#pragma unroll
        for (uint32_t i = 0; i < stage_steps; i++)
            load_a(a[i], args.a, row0 + warp * 16, pitch, byte0 + min(i, count - 1) * step_bytes);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
    };
    auto multiply = [&](uint32_t i) {
        wgmma_chain<KIND, N, FROM_REGISTERS>(d, a[i], descriptor(a_stage + i * 256),
                                             descriptor(b_stage + i * 256),
                                             step0 + i > 0 ? 1 : args.first_add);
    };
    for (; step0 + stage_steps <= args.steps; step0 += stage_steps) {
        load(stage_steps);
        wgmma_fence(); /* all in flight at once, as in a fast kernel */
#pragma unroll
        for (uint32_t i = 0; i < stage_steps; i++)
            multiply(i);
        wgmma_wait();
    }
    for (; step0 < args.steps; step0++) {
        load(1);
        wgmma_fence();
        multiply(0);
        wgmma_wait();
    }
#pragma unroll
    for (uint32_t i = 0; i < N / 2; i++)
        compare(args, row0 + warp * 16 + lane / 4 + i % 4 / 2 * 8,
                col0 + i / 4 * 8 + lane % 4 * 2 + i % 2, d[i]);
}

/* ---- host ----------------------------------------------------------------------------------- */

void check_cuda(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}
#define CHECK(call) check_cuda((call), #call)

enum probe_data { UNIFORM, SPREAD, CANCELLING, TINY, DATA_COUNT };
const char *const data_names[] = {"uniform", "spread", "cancelling", "tiny"};

struct tally {
    unsigned long long compared, different;
    char first[48]; /* where it differed first */
};

struct probe {
    unsigned char *x, *w;
    float *expected;
    unsigned long long *counts;
    std::vector<unsigned char> x_host, w_host;
    uint64_t random;
};

uint32_t next_random(probe &p) {
    p.random ^= p.random << 13, p.random ^= p.random >> 7, p.random ^= p.random << 17;
    return (uint32_t)(p.random >> 16);
}

/* Sign, exponent (of 2) and seven bits of fraction. */
uint16_t bf16_of(uint32_t random, int exponent) {
    return (uint16_t)((random & 0x8000) | (uint32_t)(exponent + 127) << 7 | (random & 0x7F));
}

uint16_t bf16_value(probe &p, probe_data data) {
    uint32_t random = next_random(p);
    int spread = (int)(random >> 16) % 61 - 30; /* 2^-30 to 2^30 */
    if (data == SPREAD)
        return bf16_of(random, spread);
    if (data == TINY) /* products around the smallest f32 */
        return bf16_of(random, -68 + spread / 4);
    int shallow = __builtin_clz(random | 1) - 1; /* as of a uniform number below 1 */
    return bf16_of(random * 2654435761u, -1 - shallow);
}

void make_bf16(probe &p, std::vector<unsigned char> &to, probe_data data, bool negate_odd) {
    uint16_t *values = (uint16_t *)to.data();
    for (size_t i = 0; i < to.size() / 2; i++) {
        values[i] = bf16_value(p, data);
        if (data == CANCELLING && i % 2 && next_random(p) % 8) /* most pairs cancel */
            values[i] = values[i - 1] ^ (negate_odd ? 0x8000 : 0);
    }
}

void make_bytes(probe &p, std::vector<unsigned char> &to, probe_kind kind, probe_data data) {
    for (size_t i = 0; i < to.size(); i++) {
        uint32_t random = next_random(p);
        if (kind == PROBE_FP8 && data == UNIFORM)
            to[i] = __nv_fp8_e4m3((float)(int32_t)(random ^ random << 16) * 0x1p-31f).__x;
        else if (kind == PROBE_FP8) /* every number, no NaN */
            to[i] = (random & 0x7F) == 0x7F ? 0x7E : (unsigned char)random;
        else
            to[i] = (unsigned char)random;
    }
}

void make(probe &p, probe_kind kind, probe_data data) {
    if (kind == PROBE_BF16) {
        make_bf16(p, p.x_host, data, true);
        make_bf16(p, p.w_host, data, false);
    } else {
        make_bytes(p, p.x_host, kind, data);
        make_bytes(p, p.w_host, kind, data);
    }
    CHECK(cudaMemcpy(p.x, p.x_host.data(), p.x_host.size(), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(p.w, p.w_host.data(), p.w_host.size(), cudaMemcpyHostToDevice));
}

uint32_t element_bytes(probe_kind kind) { return kind == PROBE_BF16 ? 2 : 1; }

probe_args args_for(const probe &p, probe_kind kind, uint32_t k, bool swapped) {
    probe_args args = {};
    args.a = swapped ? p.w : p.x;
    args.b = swapped ? p.x : p.w;
    args.steps = k * element_bytes(kind) / step_bytes;
    args.transposed = swapped;
    args.expected = p.expected;
    args.counts = p.counts;
    return args;
}

template <probe_kind KIND> void run_mma(const probe_args &args) {
    mma_kernel<KIND><<<dim3(matrix_rows / 8, matrix_rows / 16), 32>>>(args);
    CHECK(cudaGetLastError());
}

template <probe_kind KIND, int N, bool FROM_REGISTERS> void run_wgmma(const probe_args &args) {
    dim3 grid =
        args.store ? dim3((matrix_rows + N - 1) / N, row_tiles + 1) : dim3(shifts, row_tiles);
    wgmma_kernel<KIND, N, FROM_REGISTERS><<<grid, 128>>>(args);
    CHECK(cudaGetLastError());
}

/* Adds the counts of the launches since the last call. */
void collect(probe &p, tally &to, uint32_t k, probe_data data) {
    unsigned long long counts[counted];
    CHECK(cudaMemcpy(counts, p.counts, sizeof counts, cudaMemcpyDeviceToHost));
    CHECK(cudaMemset(p.counts, 0, sizeof counts));
    if (counts[1] && !to.different)
        snprintf(to.first, sizeof to.first, ", first at k = %u, %s", k, data_names[data]);
    to.compared += counts[0];
    to.different += counts[1];
}

constexpr int widths[] = {8, 16, 24, 32, 48, 64, 96, 112, 128, 160, 192, 224, 256};
constexpr int width_count = sizeof widths / sizeof widths[0];

struct wgmma_tallies {
    tally of[width_count][2][2]; /* width, A from registers, sides swapped */
};

template <probe_kind KIND, int I>
void all_widths(probe &p, wgmma_tallies &tallies, uint32_t k, probe_data data) {
    for (int swapped = 0; swapped < 2; swapped++) {
        probe_args args = args_for(p, KIND, k, swapped);
        for (args.first_add = 0; args.first_add < 2; args.first_add++)
            run_wgmma<KIND, widths[I], false>(args);
        collect(p, tallies.of[I][0][swapped], k, data);
        for (args.first_add = 0; args.first_add < 2; args.first_add++)
            run_wgmma<KIND, widths[I], true>(args);
        collect(p, tallies.of[I][1][swapped], k, data);
    }
    if constexpr (I + 1 < width_count)
        all_widths<KIND, I + 1>(p, tallies, k, data);
}

bool report(const char *what, const tally &t, bool asserted) {
    bool equal = t.different == 0 && t.compared > 0;
    printf("  %-58s %12llu compared, ", what, t.compared);
    if (equal)
        printf("all equal\n");
    else
        printf("%llu DIFFER (%.3g %%)%s%s\n", t.different,
               100.0 * (double)t.different / (double)(t.compared ? t.compared : 1), t.first,
               asserted ? "  <== the contract does not hold here" : "");
    return equal || !asserted;
}

bool report_all(const char *kind, const wgmma_tallies &tallies, bool assert_swapped,
                bool assert_registers) {
    bool good = true;
    for (int i = 0; i < width_count; i++)
        for (int registers = 0; registers < 2; registers++)
            for (int swapped = 0; swapped < 2; swapped++) {
                char what[96];
                snprintf(what, sizeof what, "%s wgmma n%d, A from %s%s", kind, widths[i],
                         registers ? "registers" : "shared memory",
                         swapped ? ", sides swapped" : "");
                good &= report(what, tallies.of[i][registers][swapped],
                               (!swapped || assert_swapped) && (!registers || assert_registers));
            }
    return good;
}

double value_of(const unsigned char *data, probe_kind kind, size_t at) {
    if (kind == PROBE_INT8)
        return (double)(signed char)data[at];
    if (kind == PROBE_FP8) {
        __nv_fp8_e4m3 value;
        value.__x = data[at];
        return (double)(float)value;
    }
    uint32_t bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* ||expected - f64|| / ||f64|| over every 16th row and 8th column: `expected` is the product. */
double error_of(const probe &p, probe_kind kind, uint32_t k) {
    std::vector<float> seen(matrix_rows * matrix_rows);
    double difference = 0, size = 0;
    CHECK(cudaMemcpy(seen.data(), p.expected, seen.size() * 4, cudaMemcpyDeviceToHost));
    for (uint32_t row = 5; row < matrix_rows; row += 16)
        for (uint32_t col = 3; col < matrix_rows; col += 9) {
            double sum = 0, value = seen[row * matrix_rows + col];
            for (uint32_t i = 0; i < k; i++)
                sum += value_of(p.x_host.data(), kind, (size_t)row * k + i) *
                       value_of(p.w_host.data(), kind, (size_t)col * k + i);
            if (kind == PROBE_INT8) {
                int exact;
                memcpy(&exact, &seen[row * matrix_rows + col], 4);
                value = exact;
            }
            difference += (value - sum) * (value - sum);
            size += sum * sum;
        }
    return sqrt(difference / (size > 0 ? size : 1));
}

const uint32_t bf16_ks[] = {16, 32, 48, 64, 80, 256, 1040, 4096, 14336, 16384};
const uint32_t byte_ks[] = {32, 64, 96, 128, 512, 2048, 4096, 16384};

bool bf16_chains_have_equal_bits_in_both_families(probe &p) {
    wgmma_tallies tallies = {};
    tally places = {}, swaps = {};
    bool good = true;
    for (int data = 0; data < DATA_COUNT; data++) {
        make(p, PROBE_BF16, (probe_data)data);
        for (uint32_t k : bf16_ks) {
            probe_args args = args_for(p, PROBE_BF16, k, false);
            args.store = true;
            run_mma<PROBE_BF16>(args);
            if (k == 256 || k == 16384) {
                double error = error_of(p, PROBE_BF16, k);
                printf("  bf16 k = %u, %s: relative error %.2g\n", k, data_names[data], error);
                good &= data != UNIFORM || error < (k == 256 ? 1e-6 : 1e-4);
            }
            args.store = false;
            for (args.shift = 1; args.shift < 16; args.shift++)
                run_mma<PROBE_BF16>(args);
            collect(p, places, k, (probe_data)data);
            run_mma<PROBE_BF16>(args_for(p, PROBE_BF16, k, true));
            collect(p, swaps, k, (probe_data)data);
            all_widths<PROBE_BF16, 0>(p, tallies, k, (probe_data)data);
        }
    }
    good &= report("bf16 mma.sync, any place in the tile", places, true);
    good &= report("bf16 mma.sync, sides swapped", swaps, true);
    return report_all("bf16", tallies, true, true) && good;
}

bool int8_sums_are_exact_in_both_families(probe &p) {
    wgmma_tallies tallies = {};
    bool good = true;
    make(p, PROBE_INT8, UNIFORM);
    for (uint32_t k : byte_ks) {
        probe_args args = args_for(p, PROBE_INT8, k, false);
        args.store = true;
        run_mma<PROBE_INT8>(args);
        good &= error_of(p, PROBE_INT8, k) == 0.0;
        all_widths<PROBE_INT8, 0>(p, tallies, k, UNIFORM);
    }
    printf("  int8 mma.sync against the host: %s\n", good ? "exact" : "NOT exact");
    return report_all("int8", tallies, true, true) && good;
}

bool fp8_wgmma_has_equal_bits_for_every_width_and_place(probe &p) {
    wgmma_tallies tallies = {};
    tally families = {};
    for (int data = UNIFORM; data <= SPREAD; data++) {
        make(p, PROBE_FP8, (probe_data)data);
        for (uint32_t k : byte_ks) {
            probe_args args = args_for(p, PROBE_FP8, k, false);
            args.store = true;
            run_mma<PROBE_FP8>(args);
            double exact = error_of(p, PROBE_FP8, k);
            args.store = false;
            run_wgmma<PROBE_FP8, 256, false>(args);
            collect(p, families, k, (probe_data)data);
            args.store = true;
            run_wgmma<PROBE_FP8, 64, false>(args); /* the expected bits of all widths */
            printf("  fp8 k = %u, %s: relative error %.2g by mma.sync, %.2g by wgmma\n", k,
                   data_names[data], exact, error_of(p, PROBE_FP8, k));
            all_widths<PROBE_FP8, 0>(p, tallies, k, (probe_data)data);
        }
    }
    report("fp8 wgmma against mma.sync", families, false);
    return report_all("fp8", tallies, false, false);
}

} // namespace

int main() {
    static const struct {
        const char *name;
        bool (*run)(probe &p);
    } cases[] = {
        {"bf16_chains_have_equal_bits_in_both_families",
         bf16_chains_have_equal_bits_in_both_families},
        {"int8_sums_are_exact_in_both_families", int8_sums_are_exact_in_both_families},
        {"fp8_wgmma_has_equal_bits_for_every_width_and_place",
         fp8_wgmma_has_equal_bits_for_every_width_and_place},
    };
    if (rp_gpu_skip_code())
        return 77;
    probe p = {};
    p.random = 0x9E3779B97F4A7C15ull;
    p.x_host.resize((size_t)matrix_rows * k_max * 2);
    p.w_host.resize(p.x_host.size());
    CHECK(cudaMalloc(&p.x, p.x_host.size()));
    CHECK(cudaMalloc(&p.w, p.w_host.size()));
    CHECK(cudaMalloc(&p.expected, matrix_rows * matrix_rows * sizeof(float)));
    CHECK(cudaMalloc(&p.counts, counted * sizeof *p.counts));
    CHECK(cudaMemset(p.counts, 0, counted * sizeof *p.counts));
    int failed = 0;
    for (auto &test : cases) {
        printf("[ RUN      ] %s\n", test.name);
        bool good = test.run(p);
        failed += !good;
        printf("[ %s ] %s\n", good ? "      OK" : " FAILED ", test.name);
    }
    CHECK(cudaDeviceSynchronize());
    return failed != 0;
}
