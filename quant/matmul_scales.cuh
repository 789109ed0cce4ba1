/* matmul_scales.cuh - the sums of 8-bit GEMMs as floats: (f32)sum * (row's scale * weight's scale),
 * one rounding each, never contracted with the addition after it; and the scales, in the layout of
 * an instruction's sums.
 *
 * Row scales are written by earlier kernels: they are read after the wait, bypassing L1. */
#ifndef RP_QUANT_MATMUL_SCALES_CUH
#define RP_QUANT_MATMUL_SCALES_CUH

#include "device/program.h"
#include "quant/matmul_wgmma.cuh"

/* The instruction for weights of this dtype by rows of the same. */
static inline rp_wgmma_type rp_wgmma_type_of(rp_dtype dtype) {
    return dtype == RP_DTYPE_INT8       ? RP_WGMMA_INT8
           : dtype == RP_DTYPE_FP8_E4M3 ? RP_WGMMA_FP8
                                        : RP_WGMMA_BF16;
}

/* W8A16: quantized weights, held in registers as bf16, for bf16 rows. */
template <rp_wgmma_type TYPE> constexpr bool rp_wgmma_is_8 = TYPE != RP_WGMMA_BF16;
template <rp_wgmma_type TYPE>
constexpr bool rp_wgmma_is_held = TYPE == RP_WGMMA_FP8_BF16 || TYPE == RP_WGMMA_INT8_BF16;

/* The product of two scales, or of a sum and one. */
__device__ __forceinline__ float rp_scaled(float sum, float scale) { return __fmul_rn(sum, scale); }
__device__ __forceinline__ float rp_scaled(int32_t sum, float scale) {
    return __fmul_rn(__int2float_rn(sum), scale);
}

/* Prefetches the weights' scales, one line per thread: in full memory queues they would arrive
 * late. They are constants, so this may run before the wait. */
__device__ __forceinline__ void rp_scales_prefetch(const float *scales, uint32_t count) {
    uint32_t at = threadIdx.x * 32;
    if (count > 0 && at < count + 31)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(scales + min(at, count - 1)) : "memory");
}

/* Scales of the N columns of an instruction, which a warp's lanes share: lane l has those of
 * columns l, l + 32 ... All lanes of a warp call each function together. */
template <int N> struct rp_column_scales {
    float of[(N + 31) / 32];

    /* Columns at or past count: 0. from: device memory that earlier kernels may have written. */
    __device__ __forceinline__ void load(const float *from, uint32_t count) {
#pragma unroll
        for (int i = 0; i < (N + 31) / 32; i++) {
            uint32_t column = threadIdx.x % 32 + 32 * i;
            of[i] = column < count ? __ldcg(from + column) : 0.0f;
        }
    }
    /* Scale for the column of this thread's sum d[i] (matmul_wgmma.cuh). */
    __device__ __forceinline__ float at(int i) const {
        return __shfl_sync(0xFFFFFFFFu, of[i / 16], i / 4 % 4 * 8 + threadIdx.x % 4 * 2 + i % 2);
    }
};

#endif
