/* ops_math.cuh - the arithmetic of one head in registers of one warp: norm and rope.
 *
 * The separate kernels (device/ops_cuda.cu: norm of groups of up to 256 columns, rope) and the fused one
 * (attention/kv_write_cuda.cu: qkv_post) both use these functions, and for that reason give equal bits.
 * Every operation is written as an intrinsic that the compiler may not contract.
 *
 * A warp holds a head of `cols` columns in x[]: lane l has columns l, l + 32, l + 64, ... in x[0], x[1],
 * ...; what lies past the head is 0. */
#ifndef RP_DEVICE_OPS_MATH_CUH
#define RP_DEVICE_OPS_MATH_CUH

#include "device/cuda_kernel.cuh"

#define RP_HEAD_COLS_MAX 256
#define RP_HEAD_WORDS    (RP_HEAD_COLS_MAX / 32)

/* 1 / sqrt(mean(x^2) + eps): each lane sums its columns in rising order, then the lanes by xor. */
template <int Words>
__device__ __forceinline__ float rp_head_inverse(const float (&x)[Words], uint32_t cols,
                                                 float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < Words; j++)
        sum = __fmaf_rn(x[j], x[j], sum); /* columns past the head are 0 and change nothing */
    sum = rp_warp_sum(sum);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)cols), eps)));
}

/* One column of the norm. */
__device__ __forceinline__ float rp_norm_value(float x, float inverse, float weight,
                                               float weight_offset) {
    return __fmul_rn(__fmul_rn(x, inverse), __fadd_rn(weight, weight_offset));
}

/* The rotated pair (x[i], x[i + rotary / 2]). */
__device__ __forceinline__ float rp_rope_low(float low, float high, float cosine, float sine) {
    return __fsub_rn(__fmul_rn(low, cosine), __fmul_rn(high, sine));
}
__device__ __forceinline__ float rp_rope_high(float low, float high, float cosine, float sine) {
    return __fadd_rn(__fmul_rn(high, cosine), __fmul_rn(low, sine));
}

#endif
