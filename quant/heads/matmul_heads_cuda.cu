/* matmul_heads_cuda.cu - a GEMM for each head.
 *
 * A warp computes MT * 16 rows by NT * 8 outputs of one head, with fragments loaded straight from
 * memory: K is a few hundred columns, and each head's matrix is read by few warps. A lane loads
 * eight neighboring columns of a row, 16 bytes, and uses them as operands of two instructions,
 * whose columns are permuted alike on both sides. With q = lane % 4, in the i-th pair of
 * instructions:
 *
 *   columns 32 i + 8 q + {0, 1 | 2, 3} in the first one, {4, 5 | 6, 7} in the second
 *
 * So an output is one chain of instructions in rising i, whatever MT and NT are. f32 matrices, and
 * bf16 ones that are not aligned so, have a thread for each output. */
#include "device/cuda_kernel.cuh"
#include "quant/heads/matmul_heads_cuda.h"

namespace {

constexpr uint32_t WARPS = 4, THREADS = WARPS * 32;

__device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The copied columns of the head, of rows [row0, row0 + count). */
__device__ __forceinline__ void copy_columns(const rp_matmul_heads_cuda &args, uint32_t head,
                                             uint32_t row0, uint32_t count) {
    float *to = (float *)args.out.data + (size_t)head * args.out_step + args.n;
    const float *from = args.copy + (size_t)head * args.copied_step;
    for (uint32_t i = threadIdx.x; i < count * args.copied; i += THREADS) {
        uint32_t row = row0 + i / args.copied, col = i % args.copied;
        to[row * args.out.stride + col] = from[row * args.copy_stride + col];
    }
}

/* Eight columns of a row, from `col` on; zeros past the end: k is a multiple of eight. */
__device__ __forceinline__ uint4 load_eight(const __nv_bfloat16 *row, uint32_t col, uint32_t k) {
    return col < k ? *(const uint4 *)(row + col) : make_uint4(0, 0, 0, 0);
}

/* Two neighboring outputs of a head; col and n are even. */
__device__ __forceinline__ void store_two(const rp_matmul_heads_cuda &args, uint32_t row,
                                          uint32_t head, uint32_t col, float low, float high) {
    const size_t at = row * args.out.stride + (size_t)head * args.out_step + col;
    if (args.out.dtype == RP_DTYPE_F32 && ((uintptr_t)((float *)args.out.data + at) & 7) == 0) {
        *(float2 *)((float *)args.out.data + at) = make_float2(low, high);
        return;
    }
    rp_store(args.out.data, args.out.dtype, at, low);
    rp_store(args.out.data, args.out.dtype, at + 1, high);
}

/* STEPS: of 32 columns, whose operands are loaded together. */
template <int MT, int NT, int STEPS>
__global__ void __launch_bounds__(THREADS)
    heads_kernel(const __grid_constant__ rp_matmul_heads_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    const uint32_t lane = threadIdx.x % 32, group = lane / 4, q = lane % 4 * 8;
    const uint32_t head = blockIdx.y, row0 = blockIdx.z * MT * 16;
    const uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * NT * 8;
    const __nv_bfloat16 *weight[NT], *in[MT][2];
    uint4 w[STEPS][NT];
#pragma unroll
    for (int n = 0; n < NT; n++)
        weight[n] = (const __nv_bfloat16 *)args.weight +
                    ((size_t)head * args.n + min(first + n * 8 + group, args.n - 1)) * args.k;
    auto load_weights = [&](uint32_t col) {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int n = 0; n < NT; n++)
                w[s][n] = load_eight(weight[n], col + s * 32 + q, args.k);
    };
    rp_pdl_trigger();
    load_weights(0); /* constants: before the wait */
    stamp.wait();
    stamp.look();
    const uint32_t live = min(rp_live_count(args.rows.step, args.rows.rows), args.rows.max_rows);
    if (row0 >= live)
        return;
    if (blockIdx.x == 0 && args.copied)
        copy_columns(args, head, row0, min((uint32_t)MT * 16, live - row0));
    if (first >= args.n)
        return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) /* rows past the last one repeat it */
            in[m][half] = (const __nv_bfloat16 *)args.in + (size_t)head * args.in_step +
                          min(row0 + m * 16 + half * 8 + group, live - 1) * args.in_stride;
    float sum[MT][NT][4] = {};
    for (uint32_t col = 0; col < args.k; col += STEPS * 32) {
        uint4 x[STEPS][MT][2];
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    x[s][m][half] = load_eight(in[m][half], col + s * 32 + q, args.k);
        if (col != 0)
            load_weights(col);
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const uint4 a = x[s][m][0], b = x[s][m][1];
                    multiply(sum[m][n], a.x, b.x, a.y, b.y, w[s][n].x, w[s][n].y);
                    multiply(sum[m][n], a.z, b.z, a.w, b.w, w[s][n].z, w[s][n].w);
                }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t row = row0 + m * 16 + half * 8 + group;
                const uint32_t col = first + n * 8 + lane % 4 * 2;
                if (row < live && col < args.n)
                    store_two(args, row, head, col, sum[m][n][half * 2], sum[m][n][half * 2 + 1]);
            }
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

/* A thread for each output: one chain of fma in rising columns. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    plain_kernel(const __grid_constant__ rp_matmul_heads_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    const uint32_t head = blockIdx.y, row = blockIdx.z, n = blockIdx.x * THREADS + threadIdx.x;
    stamp.begin();
    stamp.look();
    if (row >= rp_live_count(args.rows.step, args.rows.rows))
        return;
    if (blockIdx.x == 0 && args.copied)
        copy_columns(args, head, row, 1);
    if (n >= args.n)
        return;
    const T *weight = (const T *)args.weight + ((size_t)head * args.n + n) * args.k;
    const T *in = (const T *)args.in + row * args.in_stride + (size_t)head * args.in_step;
    float sum = 0.0f;
    for (uint32_t k = 0; k < args.k; k++)
        sum = fmaf(to_float(in[k]), to_float(weight[k]), sum);
    rp_store(args.out.data, args.out.dtype,
             row * args.out.stride + (size_t)head * args.out_step + n, sum);
}

bool is_aligned(const rp_matmul_heads_cuda *op) {
    return op->dtype == RP_DTYPE_BF16 && ((uintptr_t)op->weight | (uintptr_t)op->in) % 16 == 0 &&
           (op->k | op->in_step) % 8 == 0 && op->in_stride % 8 == 0 && op->n % 2 == 0;
}

template <int MT, int NT, int STEPS>
int start(const rp_matmul_heads_cuda *op, cudaStream_t stream) {
    dim3 grid(RP_CEIL_DIV(op->n, WARPS * NT * 8), op->heads,
              RP_CEIL_DIV(op->rows.max_rows, MT * 16u));
    return rp_cuda_start(heads_kernel<MT, NT, STEPS>, grid, dim3(THREADS), 0, stream,
                         !op->rows.plain_edges, *op);
}

} // namespace

int rp_matmul_heads_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_heads_cuda *op = (const rp_matmul_heads_cuda *)args_void;
    const uint32_t rows = op->rows.max_rows;
    if (rows == 0 || op->n == 0)
        return 0;
    if (is_aligned(op))
        return rows <= 16    ? start<1, 1, 8>(op, stream)
               : rows <= 256 ? start<2, 2, 4>(op, stream)
                             : start<2, 4, 2>(op, stream);
    dim3 grid(RP_CEIL_DIV(op->n, THREADS), op->heads, rows);
    return op->dtype == RP_DTYPE_F32
               ? rp_cuda_start(plain_kernel<float>, grid, dim3(THREADS), 0, stream,
                               !op->rows.plain_edges, *op)
               : rp_cuda_start(plain_kernel<__nv_bfloat16>, grid, dim3(THREADS), 0, stream,
                               !op->rows.plain_edges, *op);
}
