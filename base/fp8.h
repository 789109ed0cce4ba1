/* fp8.h - FP8 E4M3, the kind without infinities ("e4m3fn").
 *
 *   bit  7   6 5 4 3   2 1 0
 *        s   e e e e   m m m      e > 0: +-(1 + m/8) * 2^(e - 7);  e = 0: +-(m/8) * 2^-6
 *   0x7E is 448, the largest; 0x7F and 0xFF are NaN.
 *
 * Rounding is to nearest, ties to even; what lies beyond 448 becomes 448, infinities too; NaN stays
 * NaN. */
#ifndef RP_BASE_FP8_H
#define RP_BASE_FP8_H

#include "base/base.h"

#include <string.h>

#define RP_FP8_MAX 448.0f

static inline float rp_fp8_to_f32(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, rest = code & 0x7Fu, bits;
    float value;
    if (rest == 0x7Fu)
        bits = sign | 0x7FC00000u;
    else if (rest < 8)
        return sign ? -(float)rest * 0x1p-9f : (float)rest * 0x1p-9f;
    else
        bits = sign | ((rest << 20) + (120u << 23));
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint8_t rp_f32_to_fp8(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    bits &= 0x7FFFFFFFu;
    if (bits > 0x7F800000u)
        return sign | 0x7Fu;
    if (bits >= 0x43E00000u) /* 448 */
        return sign | 0x7Eu;
    if (bits < 0x3C800000u) { /* 2^-6: steps of 2^-9, which adding 2^14 rounds to */
        float magnitude, shifted;
        memcpy(&magnitude, &bits, sizeof magnitude);
        shifted = magnitude + 0x1p14f;
        memcpy(&bits, &shifted, sizeof bits);
        return (uint8_t)(sign | (bits - 0x46800000u));
    }
    bits += 0x7FFFFu + (bits >> 20 & 1u);
    return (uint8_t)(sign | ((bits >> 20) - (120u << 3)));
}

/* The value of an FP8 operand of a GEMM. */
static inline float rp_round_fp8(float value) { return rp_fp8_to_f32(rp_f32_to_fp8(value)); }

#endif
