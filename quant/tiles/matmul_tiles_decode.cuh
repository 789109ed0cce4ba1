/* matmul_tiles_decode.cuh - weights of tiles (quant/tiles.h) as operands of mma.m16n8k16.
 *
 * A code u in the low bits of a half word has the bits of the bf16 number u * 2^-133, below the
 * normal ones or in their first binade. One fma makes it a weight, rounded once:
 *
 *   w * 2^-24 = u * (S * 2^109) - offset * S * 2^-24
 *
 * Weights stay 2^-24 times too small, so that S * 2^109 is finite; sums are multiplied by 2^24,
 * and both are exact. A code of 4 bits one place higher, in bits 4 to 7, is 16 u * 2^-133, still
 * exactly: rows lane / 4 + 8 have theirs there, without a shift, and 2^105 in place of 2^109. */
#ifndef RP_QUANT_MATMUL_TILES_DECODE_CUH
#define RP_QUANT_MATMUL_TILES_DECODE_CUH

#include "quant/tiles.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr float TILE_UNIT = 0x1p24f; /* from a decoded weight to its value */

__device__ __forceinline__ uint32_t bf16_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
/* The product; a sum with -0 keeps its sign. */
__device__ __forceinline__ uint32_t bf16_mul(uint32_t a, uint32_t b) {
    return bf16_fma(a, b, 0x80008000u);
}
/* One half of a by both of b. */
__device__ __forceinline__ uint32_t bf16_mul_half(uint32_t a, bool is_upper, uint32_t b) {
    uint32_t d;
    if (is_upper)
        asm("{ .reg .b16 l, u; .reg .b32 t; mov.b32 {l, u}, %1; mov.b32 t, {u, u};"
            "fma.rn.bf16x2 %0, t, %2, %3; }"
            : "=r"(d)
            : "r"(a), "r"(b), "r"(0x80008000u));
    else
        asm("{ .reg .b16 l, u; .reg .b32 t; mov.b32 {l, u}, %1; mov.b32 t, {l, l};"
            "fma.rn.bf16x2 %0, t, %2, %3; }"
            : "=r"(d)
            : "r"(a), "r"(b), "r"(0x80008000u));
    return d;
}
/* Twice the same number, rounded. */
__device__ __forceinline__ uint32_t bf16_pair(float value) {
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(d) : "f"(value));
    return d;
}
__device__ __forceinline__ uint32_t bf16_twice(uint32_t half) { return half | half << 16; }

constexpr uint32_t BF16_109 = 0x76007600u;         /* 2^109, twice */
constexpr uint32_t BF16_105 = 0x74007400u;         /* 2^105 */
constexpr uint32_t BF16_102 = 0x72807280u;         /* 2^102 */
constexpr uint32_t BF16_127 = 0x7F007F00u;         /* 2^127 */
constexpr uint32_t BF16_123 = 0x7D007D00u;         /* 2^123 */
constexpr uint32_t BF16_18_BELOW = 0x36803680u;    /* 2^-18 */
constexpr uint32_t BF16_24_BELOW = 0x33803380u;    /* 2^-24 */
constexpr uint32_t BF16_24_NEGATIVE = 0xB380B380u; /* -2^-24 */

template <int BITS_, int GROUP_, rp_tile_kind KIND_> struct tile_format {
    static constexpr int BITS = BITS_, GROUP = GROUP_, GROUPS = RP_TILE_COLS / GROUP_;
    static constexpr rp_tile_kind KIND = KIND_;
    static constexpr uint32_t SCALE_BYTES = KIND == RP_TILE_PLAIN   ? 0
                                            : KIND == RP_TILE_ZERO  ? 48 * GROUPS
                                            : KIND == RP_TILE_MIN   ? 64 * GROUPS
                                            : KIND == RP_TILE_MIN_2 ? 64 + 32 * GROUPS
                                            : KIND == RP_TILE_SYM_2 ? 32 + 16 * GROUPS
                                                                    : 32 * GROUPS;
    static constexpr uint32_t BYTES = SCALE_BYTES + 256 * BITS;
    /* codes of rows lane / 4 + 8 stay in bits 4 to 7 */
    static constexpr bool HIGHER = BITS == 4 && KIND != RP_TILE_FP4;
};

/* Factors of a group for a lane's two rows: w * 2^-24 = u * a + c; ZERO: (u * 2^127 + c) * a. */
struct tile_scales {
    uint32_t a[2], c[2];
};

/* Factors of a row in a group. offset: -offset * 2^-24, twice, of SYM and SYM_2. unit: 2^109, or
 * 2^105 for codes in bits 4 to 7. */
template <typename Format>
__device__ __forceinline__ void load_scale(const unsigned char *tile, int group, uint32_t row,
                                           uint32_t offset, uint32_t unit, uint32_t &a,
                                           uint32_t &c) {
    constexpr rp_tile_kind KIND = Format::KIND;
    uint32_t at = KIND == RP_TILE_FP4 ? row * Format::GROUPS + group : group * 16 + row;
    const uint16_t *halves = (const uint16_t *)tile;
    if constexpr (KIND == RP_TILE_MIN_2) {
        const unsigned char *levels = tile + 64;
        float d = __half2float(__ushort_as_half(halves[row]));
        float dmin = __half2float(__ushort_as_half(halves[16 + row]));
        a = bf16_mul(bf16_pair(d * (float)levels[at]), unit);
        c = bf16_mul(bf16_pair(dmin * (float)levels[16 * Format::GROUPS + at]), BF16_24_NEGATIVE);
    } else if constexpr (KIND == RP_TILE_SYM_2) {
        float d = __half2float(__ushort_as_half(halves[row]));
        uint32_t scale = bf16_pair(d * (float)(signed char)tile[32 + at]);
        a = bf16_mul(scale, unit);
        c = bf16_mul(scale, offset);
    } else if constexpr (KIND != RP_TILE_PLAIN) {
        uint32_t scale = bf16_twice(halves[at]);
        if constexpr (KIND == RP_TILE_SYM) {
            a = bf16_mul(scale, unit);
            c = bf16_mul(scale, offset);
        } else if constexpr (KIND == RP_TILE_MIN) {
            a = bf16_mul(scale, unit);
            c = bf16_mul(bf16_twice(halves[16 * Format::GROUPS + at]), BF16_24_NEGATIVE);
        } else if constexpr (KIND == RP_TILE_ZERO) {
            a = bf16_mul(scale, BF16_18_BELOW);
            c = bf16_pair((float)tile[32 * Format::GROUPS + at] * -0x1p-6f);
        } else {
            a = bf16_mul(scale, BF16_102);
        }
    }
}

/* Those of rows lane / 4 and lane / 4 + 8. */
template <typename Format>
__device__ __forceinline__ void load_scales(const unsigned char *tile, int group, uint32_t row,
                                            uint32_t offset, tile_scales &to) {
#pragma unroll
    for (int i = 0; i < 2; i++)
        load_scale<Format>(tile, group, row + 8 * i, offset,
                           Format::HIGHER && i == 1 ? BF16_105 : BF16_109, to.a[i], to.c[i]);
}

/* The codes of a lane for two steps, 2 * pair and the next; of FP4 for four: the two words of row
 * lane / 4, then those of row lane / 4 + 8. */
template <typename Format> struct tile_codes {
    static constexpr bool IS_FP4 = Format::KIND == RP_TILE_FP4;
    uint32_t words[Format::BITS == 16 ? 8 : Format::BITS == 8 || IS_FP4 ? 4 : 2];
    uint32_t high; /* of 5 and 6 bits */
};

template <typename Format>
__device__ __forceinline__ void load_codes(const unsigned char *codes, int pair, uint32_t lane,
                                           tile_codes<Format> &to) {
    constexpr int BITS = Format::BITS;
    if constexpr (BITS == 16) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint4 *)(to.words + 4 * i) =
                *(const uint4 *)(codes + (2 * pair + i) * 512 + lane * 16);
    } else if constexpr (BITS == 8) {
        *(uint4 *)to.words = *(const uint4 *)(codes + pair * 512 + lane * 16);
    } else if constexpr (Format::KIND == RP_TILE_FP4) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint2 *)(to.words + 2 * i) =
                *(const uint2 *)(codes + pair / 2 * 512 + i * 256 + lane * 8);
    } else {
        *(uint2 *)to.words = *(const uint2 *)(codes + pair / 2 * 512 + lane * 16 + pair % 2 * 8);
    }
    if constexpr (BITS == 5)
        to.high = *(const uint32_t *)(codes + 1024 + lane * 8 + pair / 2 * 4);
    if constexpr (BITS == 6)
        to.high = *(const uint32_t *)(codes + 1024 + lane * 16 + pair * 4);
}

/* Bits [0, width) of mask where value's bit `from` is bit `to` of the result's. */
__device__ __forceinline__ uint32_t moved(uint32_t value, int from, int to) {
    return from >= to ? value >> (from - to) : value << (to - from);
}

/* Register r of eight (quant/tiles.h): two codes of E2M1 where bf16 has sign, exponent and
 * mantissa. */
__device__ __forceinline__ uint32_t fp4_register(uint32_t first, uint32_t second, int r) {
    uint32_t word = r < 4 ? first : second, by = RP_TILE_FP4_ROTATIONS >> 4 * r & 15;
    if (r % 4 == 3)
        word = (first & RP_TILE_FP4_FIRST) | (second & ~RP_TILE_FP4_FIRST);
    /* the lowest bits of each half word are not asked for: no rotation where a shift will do */
    return (by <= 6 ? word << by : __funnelshift_l(word, word, by)) & RP_TILE_FP4_MASK;
}

/* Register q of step 2 * pair + odd: two codes, each in the low bits of a half word; of E2M1 where
 * bf16 has sign, exponent and mantissa. */
template <typename Format>
__device__ __forceinline__ uint32_t codes_of(const tile_codes<Format> &codes, int pair, int odd,
                                             int q) {
    constexpr int BITS = Format::BITS;
    if constexpr (BITS == 16) {
        return codes.words[4 * odd + q];
    } else if constexpr (BITS == 8) {
        return moved(codes.words[2 * odd + q / 2], q % 2 * 8, 0) & 0x00FF00FFu;
    } else if constexpr (Format::KIND == RP_TILE_FP4) {
        return fp4_register(codes.words[q % 2 * 2], codes.words[q % 2 * 2 + 1],
                            pair % 2 * 4 + 2 * odd + q / 2);
    } else if constexpr (Format::HIGHER) {
        return moved(codes.words[odd], q / 2 * 8, 0) & (q % 2 ? 0x00F000F0u : 0x000F000Fu);
    } else {
        uint32_t low = moved(codes.words[odd], 4 * q, 0) & 0x000F000Fu;
        if constexpr (BITS == 5)
            low |= moved(codes.high, q + (2 * (pair % 2) + odd) * 4, 4) & 0x00100010u;
        if constexpr (BITS == 6)
            low |= moved(codes.high, 2 * q + 8 * odd, 4) & 0x00300030u;
        return low;
    }
}

/* Two weights, 2^-24 times too small. */
template <typename Format>
__device__ __forceinline__ uint32_t weights_of(uint32_t codes, const tile_scales &scales, int q) {
    constexpr rp_tile_kind KIND = Format::KIND;
    if constexpr (KIND == RP_TILE_PLAIN)
        return bf16_mul(codes, BF16_24_BELOW);
    else if constexpr (KIND == RP_TILE_FP4)
        return bf16_mul(codes, scales.a[q % 2]);
    else if constexpr (KIND == RP_TILE_ZERO)
        return bf16_mul(
            bf16_fma(codes, Format::HIGHER && q % 2 ? BF16_123 : BF16_127, scales.c[q % 2]),
            scales.a[q % 2]);
    else
        return bf16_fma(codes, scales.a[q % 2], scales.c[q % 2]);
}

/* The operand of one step. */
template <typename Format>
__device__ __forceinline__ void decode_step(const tile_codes<Format> &codes, int pair, int odd,
                                            const tile_scales &scales, uint32_t (&a)[4]) {
#pragma unroll
    for (int q = 0; q < 4; q++)
        a[q] = weights_of<Format>(codes_of<Format>(codes, pair, odd, q), scales, q);
}

/* -offset * 2^-24, twice. */
__device__ __forceinline__ uint32_t tile_offset(const rp_tile_format &format) {
    return bf16_pair((float)format.offset * -0x1p-24f);
}

} // namespace

#endif
