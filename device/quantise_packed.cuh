/* quantise_packed.cuh - rows of bf16 values as 8-bit codes and a scale, several at a time (quantise_row.cuh).
 *
 * What a thread has of its row it keeps packed, two bf16 a word, the first column below. The largest magnitude is looked
 * for in their bits; then each value takes one product. */
#ifndef RP_DEVICE_QUANTISE_PACKED_CUH
#define RP_DEVICE_QUANTISE_PACKED_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_cuda.h"
#include "device/quantise_row.cuh"

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
/* Of a block of whole warps, for all its threads. `shared`: read by nobody since the last barrier. */
__device__ __forceinline__ uint32_t rp_block_largest(uint32_t (&shared)[32], uint32_t most) {
    uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
    most = rp_warp_max_bits(most);
    if (warps == 1)
        return most;
    if (lane == 0)
        shared[threadIdx.x / 32] = most;
    __syncthreads();
    return rp_warp_max_bits(lane < warps ? shared[lane] : 0);
}

/* Of a row, from its largest magnitude in bits of bf16. */
__device__ __forceinline__ rp_row_codes rp_row_codes_of(uint32_t largest, rp_dtype dtype) {
    return rp_row_codes(largest << 16, dtype);
}

/* What an E4M3 code stands for; not of NaN. */
__device__ __forceinline__ float rp_fp8_value(uint32_t code) {
    uint32_t bits = (code & 0x80u) << 24 | (code & 0x7Fu) << 20;
    return __fmul_rn(__uint_as_float(bits), 0x1p120f); /* exponents are 120 too low */
}

/* Two E4M3 codes of finite values, the first below. */
__device__ __forceinline__ uint32_t rp_fp8_codes(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return rp_fp8_code(low) | rp_fp8_code(high) << 8;
#endif
}

/* Four codes, the first below. Both kinds of it take few enough instructions to be chosen without a branch. */
__device__ __forceinline__ uint32_t rp_codes4(const rp_row_codes &codes, uint32_t low,
                                              uint32_t high) {
    const float x[4] = {__fmul_rn(__uint_as_float(low << 16), codes.inverse),
                        __fmul_rn(__uint_as_float(low & 0xFFFF0000u), codes.inverse),
                        __fmul_rn(__uint_as_float(high << 16), codes.inverse),
                        __fmul_rn(__uint_as_float(high & 0xFFFF0000u), codes.inverse)};
    uint32_t word;
    if (codes.is_int8) { /* rp_row_codes::code: the lowest byte of the shifted value */
        uint32_t shifted[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            shifted[i] = __float_as_uint(__fadd_rn(x[i], 12582912.0f));
        word = __byte_perm(__byte_perm(shifted[0], shifted[1], 0x0040),
                           __byte_perm(shifted[2], shifted[3], 0x0040), 0x5410);
    } else {
        word = rp_fp8_codes(x[0], x[1]) | rp_fp8_codes(x[2], x[3]) << 16;
    }
    return codes.inverse == 0.0f ? 0 : word;
}

/* Four columns from `col`, a multiple of 4; those at or past `end` are not touched. */
__device__ __forceinline__ void rp_store_codes(const rp_cuda_codes &codes, size_t row, uint32_t col,
                                               uint32_t end, uint2 packed, const rp_row_codes &of) {
    unsigned char *to = (unsigned char *)codes.data + row * codes.stride + col;
    uint32_t word = rp_codes4(of, packed.x, packed.y);
    if (col + 4 <= end) {
        *(uint32_t *)to = word;
        return;
    }
    for (uint32_t i = 0; col + i < end; i++)
        to[i] = (unsigned char)(word >> 8 * i);
}

#endif
