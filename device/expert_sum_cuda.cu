/* The weighted sum of the rows that a row's experts have computed (experts_cuda.h). */
#include "device/experts_cuda.h"

#include "device/expert_sum.cuh"

#define SUM_BLOCK     128
#define SPECULATE_MAX 256
#define SUM_FLIGHT    8 /* rows of a sum whose loads are in flight */

namespace {

/* QUADS times four columns from `col` on, of an expert's row. */
template <bool VEC, int QUADS>
__device__ __forceinline__ void load_quads(const rp_values &from, size_t row, uint32_t col,
                                           uint32_t end, float4 (&to)[QUADS]) {
    if constexpr (QUADS == 2) {
        uint4 raw = *(const uint4 *)((const __nv_bfloat16 *)from.data + row * from.stride + col);
        to[0] = make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF0000u),
                            __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xFFFF0000u));
        to[1] = make_float4(__uint_as_float(raw.z << 16), __uint_as_float(raw.z & 0xFFFF0000u),
                            __uint_as_float(raw.w << 16), __uint_as_float(raw.w & 0xFFFF0000u));
    } else {
        to[0] = rp_load4<VEC>(from, row, col, end);
    }
}

/* QUADS 2: whole pieces of eight bf16 values at multiples of 16 bytes. */
template <bool VEC, int QUADS>
__global__ void __launch_bounds__(SUM_BLOCK) expert_sum_kernel(rp_expert_sum_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    const rp_expert_sum_args &from = args.sum;
    uint32_t row = blockIdx.y, end = args.cols;
    uint32_t col = (blockIdx.x * SUM_BLOCK + threadIdx.x) * 4 * QUADS;
    stamp.begin();
    stamp.look();
    /* With few rows all are read before the live count is known. */
    uint32_t live = rp_live_count(args.rows.step, args.rows.rows);
    if (col >= end || (args.rows.max_rows > SPECULATE_MAX && row >= live))
        return;
    const float *weights = (const float *)from.weights.data + row * from.weights.stride;
    float4 old[QUADS] = {};
#pragma unroll
    for (int q = 0; q < QUADS; q++)
        if (args.residual.data)
            old[q] = rp_load4<VEC>(args.residual, row, col + 4 * q, end);
    float4 sum[QUADS] = {};
    for (uint32_t first = 0; first < from.used; first += SUM_FLIGHT) {
        float4 x[SUM_FLIGHT][QUADS];
        float weight[SUM_FLIGHT];
#pragma unroll
        for (uint32_t i = 0; i < SUM_FLIGHT; i++)
            if (first + i < from.used) {
                size_t choice = (size_t)row * from.used + first + i;
                load_quads<VEC, QUADS>(from.in, choice, col, end, x[i]);
                weight[i] = weights[first + i];
            }
#pragma unroll
        for (uint32_t i = 0; i < SUM_FLIGHT; i++)
#pragma unroll
            for (int q = 0; q < QUADS; q++)
                if (first + i < from.used)
                    sum[q] = rp_add_weighted(sum[q], weight[i], x[i][q]);
    }
    if (row >= live)
        return;
    float scale = rp_shared_scale(from, rp_load_gate(from, row));
#pragma unroll
    for (int q = 0; q < QUADS; q++, col += 4) {
        if (from.shared.data)
            sum[q] = rp_add_weighted(sum[q], scale, rp_load4<VEC>(from.shared, row, col, end));
        if (args.residual.data)
            sum[q] = rp_add4(old[q], sum[q]);
        rp_store4<VEC>(from.out, row, col, end, sum[q]);
    }
}

} // namespace

int rp_expert_sum_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_expert_sum_cuda *args = (const rp_expert_sum_cuda *)args_void;
    const rp_expert_sum_args &sum = args->sum;
    bool vector = rp_vector_ok(sum.in) && rp_vector_ok(sum.out) && rp_vector_ok(sum.shared) &&
                  rp_vector_ok(args->residual);
    bool wide = vector && sum.in.dtype == RP_DTYPE_BF16 && args->cols % 8 == 0 &&
                (uintptr_t)sum.in.data % 16 == 0 && sum.in.stride % 8 == 0;
    dim3 grid(RP_CEIL_DIV(args->cols, SUM_BLOCK * (wide ? 8u : 4u)), args->rows.max_rows);
    return rp_cuda_start(wide     ? expert_sum_kernel<true, 2>
                         : vector ? expert_sum_kernel<true, 1>
                                  : expert_sum_kernel<false, 1>,
                         grid, dim3(SUM_BLOCK), 0, stream, !args->rows.plain_edges, *args);
}
