/* quantize_row.h - a row of numbers as 8-bit quantized values with one f32 scale: value = q *
 * scale.
 *
 *   INT8        scale = max|x| / 127, quantized values in [-127, 127]
 *   FP8 E4M3    scale = max|x| / 448, quantized values as in base/fp8.h
 *
 * Symmetric; rounds to nearest, ties to even: quantized value = round(x * (127 / max)), one f32
 * division and one f32 product. A row whose largest is below 2^-100 is all zeros with scale 1.
 * Threads: arguments alone are touched. */
#ifndef RP_DEVICE_QUANTIZE_ROW_H
#define RP_DEVICE_QUANTIZE_ROW_H

#include "base/fp8.h"
#include "device/program.h"

/* Quantized values (cols) of a row of F32 or BF16; the result is its scale. dtype: INT8 or
 * FP8_E4M3. A row with a NaN or an infinity has scale NaN and quantized values of zero, so that
 * what is computed with it is NaN. */
float rp_quantize_row(const void *from, enum rp_dtype from_dtype, size_t cols, enum rp_dtype dtype,
                      void *quantized);

/* Quantized value i as f32, without its scale. */
static inline float rp_quantized_to_f32(const void *quantized, enum rp_dtype dtype, size_t i) {
    return dtype == RP_DTYPE_INT8 ? (float)((const int8_t *)quantized)[i]
                                  : rp_fp8_to_f32(((const uint8_t *)quantized)[i]);
}

#endif
