/* quantize_packed.cuh - rows of bf16 values as 8-bit quantized values and a scale, several at a
 * time (quantize_row.cuh).
 *
 * What a thread has of its row it keeps packed, two bf16 a word, the first column below. The
 * largest magnitude is looked for in their bits; then each value takes one GEMM. */
#ifndef RP_DEVICE_QUANTIZE_PACKED_CUH
#define RP_DEVICE_QUANTIZE_PACKED_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_cuda.h"
#include "device/quantize_row.cuh"

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
/* The same of both halves apart, `most` a pair, too: fewer instructions where there are many
 * words. */
__device__ __forceinline__ uint32_t rp_largest_pair(uint32_t most, uint32_t pair) {
    pair &= 0x7FFF7FFFu;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return __vmaxu2(most, pair);
#else
    return max(most & 0xFFFFu, pair & 0xFFFFu) | max(most & 0xFFFF0000u, pair & 0xFFFF0000u);
#endif
}
/* Maximum over a block of whole warps, for all its threads. `shared` is not in use since the last
 * barrier. */
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

/* Scale of a row from its largest magnitude, given as bf16 bits. */
__device__ __forceinline__ rp_quantized_row rp_quantized_row_of(uint32_t largest, rp_dtype dtype) {
    return rp_quantized_row(largest << 16, dtype);
}

/* Value of an E4M3 byte; NaN is not handled. */
__device__ __forceinline__ float rp_fp8_value(uint32_t code) {
    uint32_t bits = (code & 0x80u) << 24 | (code & 0x7Fu) << 20;
    return __fmul_rn(__uint_as_float(bits), 0x1p120f); /* exponents are 120 too low */
}

/* Four quantized values of four packed values. */
__device__ __forceinline__ uint32_t rp_codes4(const rp_quantized_row &quantized, uint32_t low,
                                              uint32_t high) {
    return quantized.four(
        make_float4(__uint_as_float(low << 16), __uint_as_float(low & 0xFFFF0000u),
                    __uint_as_float(high << 16), __uint_as_float(high & 0xFFFF0000u)));
}

/* Four columns from `col`, a multiple of 4; those at or past `end` are not touched. */
__device__ __forceinline__ void rp_store_quantized(const rp_cuda_quantized &quantized, size_t row,
                                                   uint32_t col, uint32_t end, uint2 packed,
                                                   const rp_quantized_row &of) {
    unsigned char *to = (unsigned char *)quantized.data + row * quantized.stride + col;
    uint32_t word = rp_codes4(of, packed.x, packed.y);
    if (col + 4 <= end) {
        *(uint32_t *)to = word;
        return;
    }
    for (uint32_t i = 0; col + i < end; i++)
        to[i] = (unsigned char)(word >> 8 * i);
}

#endif
