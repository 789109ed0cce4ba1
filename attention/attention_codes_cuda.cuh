/* attention_codes_cuda.cuh - pages of 8 bits in kernels whose products are bf16: how codes get there.
 *
 * Every INT8 and FP8 E4M3 number is a bf16 number, so codes enter the products exactly, and their scales stay outside:
 * K's multiplies the score, V's the weight. Rounded is what is rounded with bf16 pages: q, and weight * scale of V
 * where a weight is alone there; both to bf16.
 *
 * Codes are converted as the four bytes of a word, two by two without moving bytes together: bytes 0 and 2, bytes 1
 * and 3. Kernels name their rows and columns so that these are neighbours (ldmatrix moves 16 bits at a time, and
 * transposes no bytes).
 *
 *   INT8   128 + low seven bits, minus 128 or 256: both have the code's bits as a mantissa
 *   FP8    its bits lie in a bf16 as they are, 2^120 too small (its denormals too); NaN codes, which are never
 *          stored, count as 480 */
#ifndef RP_ATTENTION_ATTENTION_CODES_CUDA_CUH
#define RP_ATTENTION_ATTENTION_CODES_CUDA_CUH

#include "device/program.h"

#include <cuda_runtime.h>

/* What a kernel is compiled for. */
template <rp_dtype Page> struct page_of {
    static constexpr bool has_codes = Page == RP_DTYPE_INT8 || Page == RP_DTYPE_FP8_E4M3;
    static constexpr uint32_t bytes = has_codes ? 1 : 2; /* of an element */
};

/* a * b + c of two bf16 each, rounded once. */
static __device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Four codes as bf16: even has bytes 0 and 2, odd bytes 1 and 3. */
template <rp_dtype Page>
static __device__ __forceinline__ void codes_to_bf16(uint32_t codes, uint32_t &even,
                                                     uint32_t &odd) {
    if constexpr (Page == RP_DTYPE_INT8) {
        const uint32_t moved = codes >> 8, one = 0x3F803F80u;
        even = fma_bf16x2((codes & 0x007F007Fu) | 0x43004300u, one,
                          (codes & 0x00800080u) | 0xC300C300u);
        odd = fma_bf16x2((moved & 0x007F007Fu) | 0x43004300u, one,
                         (moved & 0x00800080u) | 0xC300C300u);
    } else {
        const uint32_t power = 0x7B807B80u, minus_zero = 0x80008000u; /* 2^120 */
        even =
            fma_bf16x2((codes << 8 & 0x80008000u) | (codes << 4 & 0x07F007F0u), power, minus_zero);
        odd = fma_bf16x2((codes & 0x80008000u) | (codes >> 4 & 0x07F007F0u), power, minus_zero);
    }
}

#endif
