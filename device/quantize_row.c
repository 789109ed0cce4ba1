#include "device/quantize_row.h"

#include "base/bf16.h"

#include <math.h>
#include <string.h>

/* Below it 127 / largest could overflow, and products of scales underflow. */
#define SMALLEST_ROW 0x1p-100f

static inline float value_at(const void *from, enum rp_dtype dtype, size_t i) {
    return dtype == RP_DTYPE_F32 ? ((const float *)from)[i]
                                 : rp_bf16_to_f32(((const uint16_t *)from)[i]);
}

/* max|x| of `count` values; not finite when one of them is not. Bits of magnitudes order as the values do,
 * infinities and NaN above all. */
static float largest(const void *from, enum rp_dtype dtype, size_t count) {
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        if (dtype == RP_DTYPE_F32)
            memcpy(&bits, (const float *)from + i, sizeof bits);
        else
            bits = (uint32_t)((const uint16_t *)from)[i] << 16;
        bits &= 0x7FFFFFFFu;
        most = bits > most ? bits : most;
    }
    float value;
    memcpy(&value, &most, sizeof value);
    return value;
}

/* Nearest integer, ties to even: adding 1.5 * 2^23 leaves no room for a fraction. Exact for |value| < 2^22. */
static inline int8_t round_int8(float value) {
    float shifted = value + 0x1.8p23f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (int8_t)(bits - 0x4B400000);
}

static void encode(const void *from, enum rp_dtype from_dtype, size_t cols, float inverse,
                   enum rp_dtype dtype, void *quantized) {
    if (dtype == RP_DTYPE_INT8)
        for (size_t i = 0; i < cols; i++)
            ((int8_t *)quantized)[i] = round_int8(value_at(from, from_dtype, i) * inverse);
    else
        for (size_t i = 0; i < cols; i++)
            ((uint8_t *)quantized)[i] = rp_f32_to_fp8(value_at(from, from_dtype, i) * inverse);
}

float rp_quantize_row(const void *from, enum rp_dtype from_dtype, size_t cols, enum rp_dtype dtype,
                      void *quantized) {
    RP_ASSERT(from_dtype == RP_DTYPE_F32 || from_dtype == RP_DTYPE_BF16);
    RP_ASSERT(dtype == RP_DTYPE_INT8 || dtype == RP_DTYPE_FP8_E4M3);
    float most = largest(from, from_dtype, cols);
    float limit = dtype == RP_DTYPE_INT8 ? 127.0f : RP_FP8_MAX;
    if (!(most >= SMALLEST_ROW) || !isfinite(most)) {
        memset(quantized, 0, cols);
        return isfinite(most) ? 1.0f : NAN;
    }
    encode(from, from_dtype, cols, limit / most, dtype, quantized);
    return most / limit;
}
