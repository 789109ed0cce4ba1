/* matmul_generic_cuda.cu - GEMMs of any size, stride and alignment, in f32 arithmetic.
 *
 * Every output is one chain sum = fma(in[k], weight[k], sum), k rising from 0, sum from +0; then
 * bias, then the old value of out. Nothing is added at tails (a padded zero could turn -0 into +0),
 * so both kernels below give equal bits, and any number of rows does.
 *
 *   rows   up to 8 rows: a thread has one output column and one or two rows; weights and inputs stream
 *          through shared memory, four stages deep. K cannot be split: a chain of k fmas is the floor
 *          (about 4 cycles each), below what reading the weights takes wherever n is a few thousand.
 *   tile   more rows: tiles of 32 or 64 rows by 64 outputs, four or eight rows by four outputs a thread. */
#include "device/cuda_kernel.cuh"
#include "quant/matmul_internal_cuda.h"

#include <string.h>

namespace {

struct generic_args {
    rp_cuda_rows rows;
    const void *weight, *in;
    const float *bias;
    rp_values out;
    size_t in_stride;
    uint32_t n, k;
    bool accumulate;
    bool wide_weight, wide_in; /* every row starts at a multiple of 16 bytes, and so ends */
};

/* Bits of bf16 are the upper half of the f32. */
__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void unpack(const uint4 &raw, float (&out)[4]) {
    out[0] = __uint_as_float(raw.x), out[1] = __uint_as_float(raw.y);
    out[2] = __uint_as_float(raw.z), out[3] = __uint_as_float(raw.w);
}
__device__ __forceinline__ void unpack(const uint4 &raw, float (&out)[8]) {
    const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(pairs[i] << 16);
        out[2 * i + 1] = __uint_as_float(pairs[i] & 0xFFFF0000u);
    }
}

__device__ __forceinline__ void store(const generic_args &args, uint32_t row, uint32_t col,
                                      float sum) {
    size_t at = row * args.out.stride + col;
    if (args.bias)
        sum += args.bias[col];
    if (args.accumulate)
        sum += rp_load(args.out.data, args.out.dtype, at);
    rp_store(args.out.data, args.out.dtype, at, sum);
}

/* ---- few rows ------------------------------------------------------------------------- */

constexpr uint32_t row_workers = 128; /* and as many threads that only fetch */
constexpr uint32_t row_threads = 2 * row_workers, row_cols = 32, row_max = 8, row_stages = 4;
constexpr uint32_t row_bytes = 512;            /* of a row of weights or inputs in a stage */
constexpr uint32_t row_pitch = row_bytes + 16; /* no bank conflicts within a quarter warp */
constexpr uint32_t stage_bytes = (row_cols + row_max) * row_pitch;

__device__ __forceinline__ void copy_async(void *to, const void *from) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

/* Columns [k0, k0 + row_bytes / sizeof(T)) of `count` rows, at most MAX; nothing past k is written.
 * A warp fetches a row's 512 bytes. */
template <typename T, uint32_t MAX>
__device__ __forceinline__ void stage_rows(unsigned char *to, const T *from, size_t stride,
                                           uint32_t count, uint32_t k0, uint32_t k, bool wide,
                                           uint32_t thread) {
    constexpr uint32_t vector = 16 / sizeof(T), row_step = row_workers / 32;
    uint32_t row = thread / 32, at = k0 + thread % 32 * vector;
    if (at >= k)
        return;
    to += row * row_pitch + thread % 32 * 16;
    from += row * stride + at;
#pragma unroll
    for (uint32_t i = 0; i < MAX / row_step; i++)
        if (row + i * row_step < count) {
            unsigned char *target = to + i * row_step * row_pitch;
            const T *source = from + i * row_step * stride;
            if (wide)
                copy_async(target, source);
            else
                for (uint32_t j = 0; j < vector && at + j < k; j++)
                    ((T *)target)[j] = source[j];
        }
}

template <typename T, int R>
__global__ void __launch_bounds__(row_threads) rows_kernel(generic_args args) {
    rp_stamp stamp(args.rows.stamp);
    extern __shared__ __align__(16) unsigned char stages[];
    constexpr uint32_t vector = 16 / sizeof(T), chunk = row_bytes / sizeof(T);
    stamp.wait();
    rp_pdl_trigger();
    stamp.look();
    uint32_t live = min(rp_live_count(args.rows.step, args.rows.rows), args.rows.max_rows);
    uint32_t lane = threadIdx.x % 32, row0 = threadIdx.x / 32 * R, col0 = blockIdx.x * row_cols;
    uint32_t cols = min(row_cols, args.n - col0), chunks = (args.k + chunk - 1) / chunk;
    if (live == 0)
        return;
    auto fetch = [&](uint32_t index) {
        if (index < chunks) {
            unsigned char *to = stages + index % row_stages * stage_bytes;
            stage_rows<T, row_cols>(to, (const T *)args.weight + (size_t)col0 * args.k, args.k,
                                    cols, index * chunk, args.k, args.wide_weight,
                                    threadIdx.x - row_workers);
            stage_rows<T, row_max>(to + row_cols * row_pitch, (const T *)args.in, args.in_stride,
                                   live, index * chunk, args.k, args.wide_in,
                                   threadIdx.x - row_workers);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float sum[R] = {};
    bool fetches = threadIdx.x >= row_workers;
    for (uint32_t i = 0; fetches && i < row_stages - 1; i++)
        fetch(i);
    for (uint32_t i = 0; i < chunks; i++) {
        if (fetches)
            asm volatile("cp.async.wait_group %0;" ::"n"(row_stages - 2) : "memory");
        __syncthreads();
        if (fetches)
            fetch(i + row_stages - 1);
        if (fetches || row0 >= live)
            continue;
        const unsigned char *stage = stages + i % row_stages * stage_bytes;
        const unsigned char *w = stage + lane * row_pitch;
        const unsigned char *x = stage + (row_cols + row0) * row_pitch;
        uint32_t count = min(chunk, args.k - i * chunk), k = 0;
#pragma unroll 8
        for (; k + vector <= count; k += vector) {
            float wv[vector], xv[vector];
            unpack(*(const uint4 *)(w + k * sizeof(T)), wv);
#pragma unroll
            for (int r = 0; r < R; r++) {
                unpack(*(const uint4 *)(x + r * row_pitch + k * sizeof(T)), xv);
#pragma unroll
                for (uint32_t j = 0; j < vector; j++)
                    sum[r] = fmaf(xv[j], wv[j], sum[r]);
            }
        }
        for (; k < count; k++)
#pragma unroll
            for (int r = 0; r < R; r++)
                sum[r] = fmaf(to_float(((const T *)(x + r * row_pitch))[k]),
                              to_float(((const T *)w)[k]), sum[r]);
    }
    if (!fetches && lane < cols)
#pragma unroll
        for (int r = 0; r < R; r++)
            if (row0 + r < live)
                store(args, row0 + r, col0 + lane, sum[r]);
}

/* ---- tiles ---------------------------------------------------------------------------- */

constexpr uint32_t tile_threads = 128, tile_cols = 64, tile_k = 32;

/* Element k of row r lies at [k][r ^ (k / 4 % 8 * 4)]: a warp that stores four k of four rows, and
 * one that reads four rows of one k, meet every bank once. */
template <uint32_t ROWS> __device__ __forceinline__ uint32_t tile_at(uint32_t k, uint32_t row) {
    return k * ROWS + (row ^ (k / 4 % 8 * 4));
}

/* Four values of a row as they lie in memory. They are converted when stored into the tile, and the
 * only branch is around all loads of a tile; otherwise each load would wait for the one before. */
template <typename T> struct four { using bits = uint4; };
template <> struct four<__nv_bfloat16> { using bits = uint2; };

/* Columns [k0, k0 + tile_k) of ROWS rows, four at a time; zeros (never used) past the end and for
 * rows past the matrix. */
template <typename T, uint32_t ROWS>
__device__ __forceinline__ void fetch_tile(typename four<T>::bits (&to)[ROWS / 16], const T *from,
                                           size_t stride, uint32_t rows, uint32_t k0, uint32_t k,
                                           bool wide) {
    using bits = typename four<T>::bits;
    uint32_t row = threadIdx.x / 8, at = k0 + threadIdx.x % 8 * 4;
    from += row * stride + at;
    if (wide) {
#pragma unroll
        for (uint32_t i = 0; i < ROWS / 16; i++) {
            to[i] = bits{};
            if (row + i * 16 < rows && at < k)
                to[i] = *(const bits *)(from + i * 16 * stride);
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < ROWS / 16; i++) {
        T values[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            values[j] = row + i * 16 < rows && at + j < k ? from[i * 16 * stride + j] : T(0.0f);
        memcpy(&to[i], values, sizeof to[i]);
    }
}

template <typename T, uint32_t ROWS>
__device__ __forceinline__ void put_tile(float *to,
                                         const typename four<T>::bits (&from)[ROWS / 16]) {
#pragma unroll
    for (uint32_t i = 0; i < ROWS / 16; i++) {
        T values[4];
        memcpy(values, &from[i], sizeof values);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            to[tile_at<ROWS>(threadIdx.x % 8 * 4 + j, threadIdx.x / 8 + i * 16)] =
                to_float(values[j]);
    }
}

/* A thread has rows ty * 4 + 0..3 of each group of 32 rows, and columns tx * 4 + 0..3. */
template <uint32_t ROWS>
__device__ __forceinline__ void multiply(float (&sum)[ROWS / 8][4], const float *a, const float *b,
                                         uint32_t k, uint32_t tx, uint32_t ty) {
    float4 bv = *(const float4 *)(b + tile_at<tile_cols>(k, tx * 4));
#pragma unroll
    for (uint32_t g = 0; g < ROWS / 32; g++) {
        float4 av = *(const float4 *)(a + tile_at<ROWS>(k, g * 32 + ty * 4));
        const float x[4] = {av.x, av.y, av.z, av.w}, w[4] = {bv.x, bv.y, bv.z, bv.w};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                sum[g * 4 + i][j] = fmaf(x[i], w[j], sum[g * 4 + i][j]);
    }
}

template <typename T, uint32_t ROWS>
__global__ void __launch_bounds__(tile_threads) tile_kernel(generic_args args) {
    rp_stamp stamp(args.rows.stamp);
    __shared__ __align__(16) float a[2][ROWS * tile_k], b[2][tile_cols * tile_k];
    typename four<T>::bits next_a[ROWS / 16], next_b[tile_cols / 16];
    float sum[ROWS / 8][4] = {};
    stamp.wait();
    rp_pdl_trigger();
    stamp.look();
    uint32_t live = min(rp_live_count(args.rows.step, args.rows.rows), args.rows.max_rows);
    uint32_t row0 = blockIdx.y * ROWS, col0 = blockIdx.x * tile_cols;
    uint32_t tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    if (row0 >= live)
        return;
    const T *in = (const T *)args.in + (size_t)row0 * args.in_stride;
    const T *weight = (const T *)args.weight + (size_t)col0 * args.k;
    auto fetch = [&](uint32_t k0) {
        fetch_tile<T, ROWS>(next_a, in, args.in_stride, live - row0, k0, args.k, args.wide_in);
        fetch_tile<T, tile_cols>(next_b, weight, args.k, args.n - col0, k0, args.k,
                                 args.wide_weight);
    };
    fetch(0);
    for (uint32_t k0 = 0, turn = 0; k0 < args.k; k0 += tile_k, turn ^= 1) {
        put_tile<T, ROWS>(a[turn], next_a);
        put_tile<T, tile_cols>(b[turn], next_b);
        __syncthreads();
        if (k0 + tile_k < args.k)
            fetch(k0 + tile_k);
        if (args.k - k0 >= tile_k) {
#pragma unroll
            for (uint32_t k = 0; k < tile_k; k++)
                multiply<ROWS>(sum, a[turn], b[turn], k, tx, ty);
        } else {
            for (uint32_t k = 0; k < args.k - k0; k++)
                multiply<ROWS>(sum, a[turn], b[turn], k, tx, ty);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < ROWS / 8; i++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t row = row0 + i / 4 * 32 + ty * 4 + i % 4, col = col0 + tx * 4 + j;
            if (row < live && col < args.n)
                store(args, row, col, sum[i][j]);
        }
}

/* ---- launch --------------------------------------------------------------------------- */

bool is_wide(const void *data, size_t stride, uint32_t k, uint32_t element) {
    return (uintptr_t)data % 16 == 0 && stride * element % 16 == 0 && k * element % 16 == 0;
}

template <typename T, int R>
int start_rows(const generic_args &args, bool dependent, cudaStream_t stream) {
    constexpr uint32_t bytes = row_stages * stage_bytes;
    cudaError_t error =
        cudaFuncSetAttribute(rows_kernel<T, R>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess)
        return (int)error;
    return rp_cuda_start(rows_kernel<T, R>, dim3(RP_CEIL_DIV(args.n, row_cols)), dim3(row_threads),
                         bytes, stream, dependent, args);
}

template <typename T> int start(const generic_args &args, bool dependent, cudaStream_t stream) {
    uint32_t rows = args.rows.max_rows;
    if (rows <= row_workers / 32)
        return start_rows<T, 1>(args, dependent, stream);
    if (rows <= row_max)
        return start_rows<T, 2>(args, dependent, stream);
    uint32_t cols = RP_CEIL_DIV(args.n, tile_cols);
    if (rows <= 32)
        return rp_cuda_start(tile_kernel<T, 32>, dim3(cols), dim3(tile_threads), 0, stream,
                             dependent, args);
    return rp_cuda_start(tile_kernel<T, 64>, dim3(cols, RP_CEIL_DIV(rows, 64u)), dim3(tile_threads),
                         0, stream, dependent, args);
}

} // namespace

int rp_matmul_generic_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_cuda *op = (const rp_matmul_cuda *)args_void;
    const rp_matrix *weight = op->weight;
    uint32_t element = rp_dtype_bytes(weight->dtype);
    generic_args args = {};
    if (op->rows.max_rows == 0 || weight->rows == 0)
        return 0;
    if (element == 1)
        return rp_matmul_generic_8_cuda_run(op, stream);
    args.rows = op->rows;
    args.weight = weight->data;
    args.in = op->in;
    args.bias = op->bias;
    args.out = op->out;
    args.in_stride = op->in_stride;
    args.n = weight->rows;
    args.k = weight->cols;
    args.accumulate = op->accumulate;
    args.wide_weight = is_wide(weight->data, weight->cols, weight->cols, element);
    args.wide_in = is_wide(op->in, op->in_stride, weight->cols, element);
    return weight->dtype == RP_DTYPE_F32
               ? start<float>(args, op->limits.dependent_launch, stream)
               : start<__nv_bfloat16>(args, op->limits.dependent_launch, stream);
}
