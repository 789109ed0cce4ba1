/* quantize_row.cuh - rp_quantize_row on a GPU: the same quantized values and the same scale, bit
 * for bit (quantize_row.h).
 *
 * A kernel reduces the row's largest magnitude as bits, by integer maxima in any order, and then
 * quantizes each value independently:
 *
 *   most = max over the row of rp_magnitude_bits(x)
 *   rp_quantized_row row(most, dtype)    row.scale; row.quantize(x): one value; row.four(x): four */
#ifndef RP_DEVICE_QUANTIZE_ROW_CUH
#define RP_DEVICE_QUANTIZE_ROW_CUH

#include "device/program.h"

#include <cuda_runtime.h>

/* Bits of magnitudes order as the values do, infinities and NaN above all. */
__device__ __forceinline__ uint32_t rp_magnitude_bits(float x) {
    return __float_as_uint(x) & 0x7FFFFFFFu;
}

/* All lanes get the largest. */
__device__ __forceinline__ uint32_t rp_warp_max_bits(uint32_t bits) {
    return __reduce_max_sync(0xFFFFFFFFu, bits);
}

/* Two E4M3 values, the first below: nearest, ties to even, saturating; for finite values
 * rp_f32_to_fp8 (base/fp8.h). */
__device__ __forceinline__ uint32_t rp_fp8_quantize(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t bits = __float_as_uint(i ? high : low), sign = bits >> 24 & 0x80u;
        bits &= 0x7FFFFFFFu;
        /* Steps of 2^-9 below 2^-6, which adding 2^14 rounds to. */
        uint32_t small = __float_as_uint(__fadd_rn(__uint_as_float(bits), 16384.0f)) - 0x46800000u;
        uint32_t normal = ((bits + 0x7FFFFu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
        uint32_t code = bits >= 0x43E00000u ? 0x7Eu : bits < 0x3C800000u ? small : normal;
        pair |= (sign | code) << 8 * i;
    }
    return pair;
#endif
}
/* Four INT8 values of magnitudes up to 127, the first below: adding 1.5 * 2^23 leaves no room for a
 * fraction. */
__device__ __forceinline__ uint32_t rp_int8_quantize(float a, float b, float c, float d) {
    const uint32_t low = __byte_perm(__float_as_uint(__fadd_rn(a, 12582912.0f)),
                                     __float_as_uint(__fadd_rn(b, 12582912.0f)), 0x0040);
    const uint32_t high = __byte_perm(__float_as_uint(__fadd_rn(c, 12582912.0f)),
                                      __float_as_uint(__fadd_rn(d, 12582912.0f)), 0x0040);
    return __byte_perm(low, high, 0x5410);
}

/* Scale of one row. */
struct rp_quantized_row {
    float scale, inverse; /* inverse 0: all quantized values are 0 */
    bool is_int8;

    /* most: of the row's magnitudes, as bits. */
    __device__ __forceinline__ rp_quantized_row(uint32_t most, rp_dtype dtype)
        : is_int8(dtype == RP_DTYPE_INT8) {
        const float largest = __uint_as_float(most), limit = is_int8 ? 127.0f : 448.0f;
        const bool is_finite = most < 0x7F800000u;
        const bool is_scaled = is_finite && most >= 0x0D800000u; /* 2^-100 */
        inverse = is_scaled ? __fdiv_rn(limit, largest) : 0.0f;
        scale = is_scaled   ? __fdiv_rn(largest, limit)
                : is_finite ? 1.0f
                            : __uint_as_float(0x7FC00000u);
    }
    /* Packs four values, the first in the low byte. */
    __device__ __forceinline__ uint32_t four(float4 x) const {
        x = make_float4(__fmul_rn(x.x, inverse), __fmul_rn(x.y, inverse), __fmul_rn(x.z, inverse),
                        __fmul_rn(x.w, inverse));
        const uint32_t quantized = is_int8 ? rp_int8_quantize(x.x, x.y, x.z, x.w)
                                           : rp_fp8_quantize(x.x, x.y) | rp_fp8_quantize(x.z, x.w)
                                                                             << 16;
        return inverse == 0.0f ? 0 : quantized;
    }
    __device__ __forceinline__ uint32_t quantize(float x) const {
        return four(make_float4(x, 0.0f, 0.0f, 0.0f)) & 0xFFu;
    }
};

#endif
