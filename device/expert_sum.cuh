/* expert_sum.cuh - the sum of what a row's experts have computed, for expert_sum_cuda.cu and
 * norm_cuda.cu: both have the same bits. */
#ifndef RP_DEVICE_EXPERT_SUM_CUH
#define RP_DEVICE_EXPERT_SUM_CUH

#include "device/cuda_vector.cuh"
#include "device/experts.h"

static __device__ __forceinline__ float4 rp_add_weighted(float4 sum, float weight, float4 x) {
    return make_float4(__fmaf_rn(weight, x.x, sum.x), __fmaf_rn(weight, x.y, sum.y),
                       __fmaf_rn(weight, x.z, sum.z), __fmaf_rn(weight, x.w, sum.w));
}

/* What the shared expert's result is multiplied with: 1 where there is no gate, whose value is
 * loaded apart: before other loads that need not wait for it. */
static __device__ __forceinline__ float rp_load_gate(const rp_expert_sum_args &from, uint32_t row) {
    return from.gate.data ? ((const float *)from.gate.data)[row * from.gate.stride] : 0.0f;
}
static __device__ __forceinline__ float rp_shared_scale(const rp_expert_sum_args &from,
                                                        float gate) {
    return from.gate.data ? __fdiv_rn(1.0f, 1.0f + expf(-gate)) : 1.0f;
}

/* Four columns of a rank's row as they lie in memory: uint2 is bf16, float4 any type. */
template <bool VEC>
static __device__ __forceinline__ void rp_load_rank(const rp_values &from, size_t row, uint32_t col,
                                                    uint32_t, uint2 &to) {
    static_assert(VEC, "eight bytes at once");
    to = *(const uint2 *)((const __nv_bfloat16 *)from.data + row * from.stride + col);
}
template <bool VEC>
static __device__ __forceinline__ void rp_load_rank(const rp_values &from, size_t row, uint32_t col,
                                                    uint32_t end, float4 &to) {
    to = rp_load4<VEC>(from, row, col, end);
}
static __device__ __forceinline__ float4 rp_rank_values(uint2 raw) {
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF0000u),
                       __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xFFFF0000u));
}
static __device__ __forceinline__ float4 rp_rank_values(float4 x) { return x; }

/* Adds COUNT ranks from `first` on: all rows are requested before the first is looked at. */
template <bool VEC, typename QUAD, uint32_t COUNT>
static __device__ __forceinline__ float4 rp_add_ranks(const rp_expert_sum_args &from, uint32_t row,
                                                      uint32_t first, uint32_t col, uint32_t end,
                                                      float4 sum) {
    const float *weights = (const float *)from.weights.data + row * from.weights.stride + first;
    size_t choice = (size_t)row * from.used + first;
    QUAD x[COUNT];
    float weight[COUNT];
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
        rp_load_rank<VEC>(from.in, choice + i, col, end, x[i]);
        weight[i] = weights[i];
    }
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++)
        sum = rp_add_weighted(sum, weight[i], rp_rank_values(x[i]));
    return sum;
}

/* Four columns of the sum over the ranks. The numbers of experts that models use most have a copy
 * each: with a condition at each load, registers run out. */
template <bool VEC, typename QUAD>
static __device__ __forceinline__ float4 rp_ranks_sum4(const rp_expert_sum_args &from, uint32_t row,
                                                       uint32_t col, uint32_t end) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    uint32_t first = 0;
    constexpr bool SMALL = sizeof(QUAD) == 8; /* registers for eight ranks */
    if (SMALL && from.used == 6)
        return rp_add_ranks<VEC, QUAD, 6>(from, row, 0, col, end, sum);
    for (; SMALL && first + 8 <= from.used; first += 8)
        sum = rp_add_ranks<VEC, QUAD, 8>(from, row, first, col, end, sum);
    for (; first + 4 <= from.used; first += 4)
        sum = rp_add_ranks<VEC, QUAD, 4>(from, row, first, col, end, sum);
    for (; first < from.used; first++)
        sum = rp_add_ranks<VEC, QUAD, 1>(from, row, first, col, end, sum);
    return sum;
}

/* The same with the shared expert's part: what EXPERT_SUM stores. VEC: rows of a multiple of four
 * columns, too. */
template <bool VEC>
static __device__ __forceinline__ float4 rp_expert_sum4(const rp_expert_sum_args &from,
                                                        uint32_t row, uint32_t col, uint32_t end) {
    float4 shared = make_float4(0.0f, 0.0f, 0.0f, 0.0f), sum;
    if (from.shared.data)
        shared = rp_load4<VEC>(from.shared, row, col, end);
    float gate = rp_load_gate(from, row);
    if constexpr (VEC)
        sum = from.in.dtype == RP_DTYPE_BF16 ? rp_ranks_sum4<true, uint2>(from, row, col, end)
                                             : rp_ranks_sum4<true, float4>(from, row, col, end);
    else
        sum = rp_ranks_sum4<false, float4>(from, row, col, end);
    return from.shared.data ? rp_add_weighted(sum, rp_shared_scale(from, gate), shared) : sum;
}

#endif
