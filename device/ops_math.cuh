/* ops_math.cuh - the arithmetic of norm, rope and activations.
 *
 * The separate kernels (norm_cuda.cu, ops_cuda.cu), the one that does everything between the qkv
 * GEMM and attention (attention/kv_write_cuda.cu) and gated GEMMs (quant/) use these
 * functions, and for that reason give equal bits. A thread has columns 4 * (thread + threads * i);
 * products and sums that the CPU rounds one by one are intrinsics, which no compiler contracts. */
#ifndef RP_DEVICE_OPS_MATH_CUH
#define RP_DEVICE_OPS_MATH_CUH

#include "device/ops.h"

#include <stdint.h>

/* The sum of squares of a thread's columns, in rising order. */
static __device__ __forceinline__ float rp_add_squares(float sum, float4 x) {
    return __fmaf_rn(x.w, x.w, __fmaf_rn(x.z, x.z, __fmaf_rn(x.y, x.y, __fmaf_rn(x.x, x.x, sum))));
}

/* 1 / sqrt(mean + eps) from the sum of all squares. */
static __device__ __forceinline__ float rp_inverse_root(float sum, uint32_t group, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)group), eps)));
}

static __device__ __forceinline__ float rp_norm_value(float x, float inverse, float weight,
                                                      float weight_offset) {
    return __fmul_rn(__fmul_rn(x, inverse), __fadd_rn(weight, weight_offset));
}

static __device__ __forceinline__ float4 rp_norm_values(float4 x, float inverse, float4 weight,
                                                        float weight_offset) {
    return make_float4(rp_norm_value(x.x, inverse, weight.x, weight_offset),
                       rp_norm_value(x.y, inverse, weight.y, weight_offset),
                       rp_norm_value(x.z, inverse, weight.z, weight_offset),
                       rp_norm_value(x.w, inverse, weight.w, weight_offset));
}

/* Activation of a gate, before it is multiplied by its up. */
static __device__ __forceinline__ float rp_activate(enum rp_activation fn, float x) {
    if (fn == RP_ACTIVATION_SILU)
        return __fdividef(x, 1.0f + expf(-x));
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static __device__ __forceinline__ float4 rp_activate4(enum rp_activation fn, float4 gate,
                                                      float4 up) {
    return make_float4(rp_activate(fn, gate.x) * up.x, rp_activate(fn, gate.y) * up.y,
                       rp_activate(fn, gate.z) * up.z, rp_activate(fn, gate.w) * up.w);
}

/* A gate's activation times its up, for every activation of a gated GEMM. NaN stays NaN. */
static __device__ __forceinline__ float rp_gate(enum rp_activation fn, float gate, float up) {
    if (fn != RP_ACTIVATION_SWIGLU_CLAMPED)
        return rp_activate(fn, gate) * up;
    float x = gate > RP_SWIGLU_LIMIT ? RP_SWIGLU_LIMIT : gate;
    float u = up > RP_SWIGLU_LIMIT    ? RP_SWIGLU_LIMIT
              : up < -RP_SWIGLU_LIMIT ? -RP_SWIGLU_LIMIT
                                      : up;
    return __fdividef(x, 1.0f + expf(-RP_SWIGLU_ALPHA * x)) * (u + 1.0f);
}

/* The rotated pair (x[i], x[i + rotary / 2]). */
static __device__ __forceinline__ float rp_rope_low(float low, float high, float cosine,
                                                    float sine) {
    return __fsub_rn(__fmul_rn(low, cosine), __fmul_rn(high, sine));
}
static __device__ __forceinline__ float rp_rope_high(float low, float high, float cosine,
                                                     float sine) {
    return __fadd_rn(__fmul_rn(high, cosine), __fmul_rn(low, sine));
}

#endif
