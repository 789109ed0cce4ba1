/* attention_quantized_cuda.cuh - 8-bit pages in kernels whose matmuls are bf16 or f16: conversion
 * of quantized values to the operand type.
 *
 * Every INT8 and FP8 E4M3 number is a bf16 number, so quantized values enter the matmuls exactly,
 * and their scales are applied outside: K's multiplies the score, V's the weight. The same operands
 * are rounded as with bf16 pages: q, and weight * V scale in place of the weight; to bf16 in
 * prefill, to f16 in decode.
 *
 * Conversion to bf16 works on the four bytes of a word in pairs, without shuffling bytes: bytes 0
 * and 2, then bytes 1 and 3. Kernels permute their rows and columns so that these are neighbors
 * (ldmatrix moves 16 bits at a time and does not transpose bytes).
 *
 *   INT8   128 + low seven bits, minus 128 or 256: both have the quantized value's bits as the
 *   mantissa
 *   FP8    its bits placed in a bf16 give the value times 2^-120 (denormals too); NaN, which is
 *   never stored, converts to 480
 *
 * Decode multiplies in f16: conversion takes a third of the instructions, and is a hardware
 * instruction for FP8 (sm_89). Quantized values are exact in f16 as well; the other operand is
 * scaled by a power of two so that it fits the range of f16 (attention_decode_kernel.cuh). */
#ifndef RP_ATTENTION_ATTENTION_QUANTIZED_CUDA_CUH
#define RP_ATTENTION_ATTENTION_QUANTIZED_CUDA_CUH

#include "device/program.h"

#include <cuda_runtime.h>

/* Page type that a kernel is compiled for. */
template <rp_dtype Page> struct page_of {
    static constexpr bool is_quantized = Page == RP_DTYPE_INT8 || Page == RP_DTYPE_FP8_E4M3;
    static constexpr uint32_t bytes = is_quantized ? 1 : 2; /* of an element */
};

/* a * b + c of two bf16 each, rounded once. */
static __device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Four quantized values as bf16: even has bytes 0 and 2, odd bytes 1 and 3. */
template <rp_dtype Page>
static __device__ __forceinline__ void quantized_to_bf16(uint32_t quantized, uint32_t &even,
                                                         uint32_t &odd) {
    if constexpr (Page == RP_DTYPE_INT8) {
        const uint32_t moved = quantized >> 8, one = 0x3F803F80u;
        even = fma_bf16x2((quantized & 0x007F007Fu) | 0x43004300u, one,
                          (quantized & 0x00800080u) | 0xC300C300u);
        odd = fma_bf16x2((moved & 0x007F007Fu) | 0x43004300u, one,
                         (moved & 0x00800080u) | 0xC300C300u);
    } else {
        const uint32_t power = 0x7B807B80u, minus_zero = 0x80008000u; /* 2^120 */
        even = fma_bf16x2((quantized << 8 & 0x80008000u) | (quantized << 4 & 0x07F007F0u), power,
                          minus_zero);
        odd = fma_bf16x2((quantized & 0x80008000u) | (quantized >> 4 & 0x07F007F0u), power,
                         minus_zero);
    }
}

static __device__ __forceinline__ uint32_t add_f16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* Four FP8 values as f16. */
static __device__ __forceinline__ void fp8_to_f16(uint32_t quantized, uint32_t &low,
                                                  uint32_t &high) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    asm("{\n"
        ".reg .b16 pair0, pair1;\n"
        "mov.b32 {pair0, pair1}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, pair0;\n"
        "cvt.rn.f16x2.e4m3x2 %1, pair1;\n"
        "}"
        : "=r"(low), "=r"(high)
        : "r"(quantized));
#else
    const uint32_t pairs[2] = {__byte_perm(quantized, 0, 0x1404),
                               __byte_perm(quantized, 0, 0x3424)};
    uint32_t *const to[2] = {&low, &high};
    for (int i = 0; i < 2; i++) /* 2^8 times the value of the shifted bits */
        asm("mul.rn.f16x2 %0, %1, %2;"
            : "=r"(*to[i])
            : "r"((pairs[i] & 0x80008000u) | (pairs[i] >> 1 & 0x3F803F80u)), "r"(0x5C005C00u));
#endif
}

/* Four quantized values as f16: bytes 0 and 1, 2 and 3 where Crossed is not set, else 0 and 2, 1
 * and 3. INT8: 1,024 + 128 + quantized value has the quantized value's bits, with the sign bit
 * inverted, as its mantissa. */
template <rp_dtype Page, bool Crossed>
static __device__ __forceinline__ void quantized_to_f16(uint32_t quantized, uint32_t &first,
                                                        uint32_t &second) {
    if constexpr (Page == RP_DTYPE_INT8) {
        const uint32_t turned = quantized ^ 0x80808080u, bias = 0xE480E480u; /* -1,152 */
        first = add_f16x2(__byte_perm(turned, 0x64646464u, Crossed ? 0x4240 : 0x4140), bias);
        second = add_f16x2(__byte_perm(turned, 0x64646464u, Crossed ? 0x4341 : 0x4342), bias);
    } else {
        fp8_to_f16(Crossed ? __byte_perm(quantized, 0, 0x3120) : quantized, first, second);
    }
}

/* The largest power of two <= x (x >= 0), at least 2^-100; and its reciprocal. */
static __device__ __forceinline__ float power_below(float x) {
    return __uint_as_float(__float_as_uint(fmaxf(x, 0x1p-100f)) & 0x7F800000u);
}
static __device__ __forceinline__ float inverse_of_power(float power) {
    return __uint_as_float(0x7F000000u - __float_as_uint(power));
}

#endif
