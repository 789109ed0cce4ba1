/* bf16.h - conversions between f32 and the 16-bit formats of model files.
 * bf16 rounding is to nearest, ties to even; NaN stays a NaN (quiet bit set). */
#ifndef RP_BASE_BF16_H
#define RP_BASE_BF16_H

#include "base/base.h"

#include <string.h>

static inline float rp_bf16_to_f32(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t rp_f32_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    bits += 0x7FFFu + ((bits >> 16) & 1u);
    return (uint16_t)(bits >> 16);
}

/* The value of a bf16 operand of a GEMM. */
static inline float rp_round_bf16(float value) { return rp_bf16_to_f32(rp_f32_to_bf16(value)); }

/* IEEE 754 binary16 to f32, denormals and infinities included. */
static inline float rp_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1Fu, fraction = half & 0x3FFu, bits;
    if (exponent == 0) {
        /* Denormal: fraction * 2^-24, exact in f32. */
        float value = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    if (exponent == 0x1F)
        bits = sign | 0x7F800000u | (fraction << 13);
    else
        bits = sign | ((exponent + 112u) << 23) | (fraction << 13);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
