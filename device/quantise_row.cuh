/* quantise_row.cuh - rp_quantise_row on a card: the same codes and the same scale, bit for bit (quantise_row.h).
 *
 * Whoever holds a row finds its largest magnitude as bits, by integer maxima in any order, and then makes each
 * code by itself:
 *
 *   most = max over the row of rp_magnitude_bits(x)
 *   rp_row_codes row(most, dtype)      row.scale is the row's; row.code(x) the code of one value */
#ifndef RP_DEVICE_QUANTISE_ROW_CUH
#define RP_DEVICE_QUANTISE_ROW_CUH

#include "device/program.h"

#include <cuda_runtime.h>

/* Bits of magnitudes order as the values do, infinities and NaN above all. */
__device__ __forceinline__ uint32_t rp_magnitude_bits(float x) {
    return __float_as_uint(x) & 0x7FFFFFFFu;
}

/* All lanes get the largest. */
__device__ __forceinline__ uint32_t rp_warp_max_bits(uint32_t bits) {
    for (int lane = 16; lane > 0; lane /= 2)
        bits = max(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, lane));
    return bits;
}

/* Nearest, ties to even; for finite values: rp_f32_to_fp8 (base/fp8.h). */
__device__ __forceinline__ uint32_t rp_fp8_code(float value) {
    uint32_t bits = __float_as_uint(value), sign = bits >> 24 & 0x80u;
    bits &= 0x7FFFFFFFu;
    /* Steps of 2^-9 below 2^-6, which adding 2^14 rounds to. */
    uint32_t small = __float_as_uint(__fadd_rn(__uint_as_float(bits), 16384.0f)) - 0x46800000u;
    uint32_t normal = ((bits + 0x7FFFFu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    return sign | (bits >= 0x43E00000u ? 0x7Eu : bits < 0x3C800000u ? small : normal);
}

/* How the values of one row become codes. */
struct rp_row_codes {
    float scale, inverse; /* inverse 0: all codes are 0 */
    bool is_int8;

    /* most: of the row's magnitudes, as bits. */
    __device__ __forceinline__ rp_row_codes(uint32_t most, rp_dtype dtype)
        : is_int8(dtype == RP_DTYPE_INT8) {
        const float largest = __uint_as_float(most), limit = is_int8 ? 127.0f : 448.0f;
        const bool is_finite = most < 0x7F800000u;
        const bool is_coded = is_finite && most >= 0x0D800000u; /* 2^-100 */
        inverse = is_coded ? __fdiv_rn(limit, largest) : 0.0f;
        scale = is_coded    ? __fdiv_rn(largest, limit)
                : is_finite ? 1.0f
                            : __uint_as_float(0x7FC00000u);
    }
    __device__ __forceinline__ uint32_t code(float x) const {
        const float value = __fmul_rn(x, inverse);
        const uint32_t shifted = __float_as_uint(__fadd_rn(value, 12582912.0f)) - 0x4B400000u;
        const uint32_t code = is_int8 ? shifted & 0xFFu : rp_fp8_code(value);
        return inverse == 0.0f ? 0 : code;
    }
};

#endif
