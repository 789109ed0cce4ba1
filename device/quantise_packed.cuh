/* quantise_row.cuh - rows of bf16 values as 8-bit codes and a scale, bit for bit as quantise_row.c makes them.
 *
 * What a thread has of its row it keeps packed, two bf16 a word, the first column below. The largest magnitude is looked
 * for in their bits, which order as the values do, infinities and NaN above all; then each value takes one product. */
#ifndef RP_DEVICE_QUANTISE_ROW_CUH
#define RP_DEVICE_QUANTISE_ROW_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_cuda.h"

__device__ __forceinline__ uint32_t rp_pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&pair;
}
__device__ __forceinline__ uint2 rp_pack_bf16(float4 x) {
    return make_uint2(rp_pack_bf16(x.x, x.y), rp_pack_bf16(x.z, x.w));
}

/* The larger of `most` and the two magnitudes, as bits of bf16. */
__device__ __forceinline__ uint32_t rp_largest(uint32_t most, uint32_t pair) {
    return max(most, max(pair & 0x7FFFu, pair >> 16 & 0x7FFFu));
}
__device__ __forceinline__ uint32_t rp_warp_largest(uint32_t most) {
    for (int lane = 16; lane > 0; lane /= 2)
        most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, lane));
    return most;
}
/* Of a block of whole warps, for all its threads. `shared`: read by nobody since the last barrier. */
__device__ __forceinline__ uint32_t rp_block_largest(uint32_t (&shared)[32], uint32_t most) {
    uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
    most = rp_warp_largest(most);
    if (warps == 1)
        return most;
    if (lane == 0)
        shared[threadIdx.x / 32] = most;
    __syncthreads();
    return rp_warp_largest(lane < warps ? shared[lane] : 0);
}

/* value = code * scale, code = round(value * inverse); inverse 0: all codes are zero. */
struct rp_code_factor {
    float inverse, scale;
};
__device__ __forceinline__ rp_code_factor rp_code_factor_of(uint32_t largest, rp_dtype dtype) {
    float most = __uint_as_float(largest << 16), limit = dtype == RP_DTYPE_INT8 ? 127.0f : 448.0f;
    if (largest >= 0x7F80u) /* an infinity or a NaN */
        return {0.0f, __uint_as_float(0x7FC00000u)};
    if (most < 0x1p-100f)
        return {0.0f, 1.0f};
    return {__fdiv_rn(limit, most), __fdiv_rn(most, limit)};
}

/* Two E4M3 codes, as base/fp8.h has them; the first below. */
__device__ __forceinline__ uint32_t rp_fp8_codes(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    const float values[2] = {low, high};
    uint32_t codes = 0;
    for (int i = 0; i < 2; i++) {
        uint32_t bits = __float_as_uint(values[i]), sign = bits >> 24 & 0x80u, code;
        bits &= 0x7FFFFFFFu;
        if (bits > 0x7F800000u)
            code = 0x7Fu;
        else if (bits >= 0x43E00000u) /* 448 */
            code = 0x7Eu;
        else if (bits < 0x3C800000u) /* 2^-6: steps of 2^-9 */
            code = __float_as_uint(__fadd_rn(__uint_as_float(bits), 0x1p14f)) - 0x46800000u;
        else
            code = ((bits + 0x7FFFFu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
        codes |= (sign | code) << 8 * i;
    }
    return codes;
#endif
}

/* Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits. */
__device__ __forceinline__ uint32_t rp_int8_code(float value) {
    return __float_as_uint(__fadd_rn(value, 0x1.8p23f)) & 0xFFu;
}

__device__ __forceinline__ uint32_t rp_codes2(uint32_t pair, float inverse, rp_dtype dtype) {
    float low = __fmul_rn(__uint_as_float(pair << 16), inverse);
    float high = __fmul_rn(__uint_as_float(pair & 0xFFFF0000u), inverse);
    return dtype == RP_DTYPE_INT8 ? rp_int8_code(low) | rp_int8_code(high) << 8
                                  : rp_fp8_codes(low, high);
}

/* Four columns from `col`, a multiple of 4; those at or past `end` are not touched. */
__device__ __forceinline__ void rp_store_codes(const rp_cuda_codes &codes, size_t row, uint32_t col,
                                               uint32_t end, uint2 packed,
                                               const rp_code_factor &factor) {
    unsigned char *to = (unsigned char *)codes.data + row * codes.stride + col;
    uint32_t word = 0;
    if (factor.inverse != 0.0f)
        word = rp_codes2(packed.x, factor.inverse, codes.dtype) |
               rp_codes2(packed.y, factor.inverse, codes.dtype) << 16;
    if (col + 4 <= end) {
        *(uint32_t *)to = word;
        return;
    }
    for (uint32_t i = 0; col + i < end; i++)
        to[i] = (unsigned char)(word >> 8 * i);
}

#endif
