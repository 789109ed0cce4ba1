/* fp4.h - quantizes rows to blocks of E2M1 values (base/block_type.h) with one scale per group.
 *
 *   w(n, k) ~ value * scale * factor,   value +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}
 *
 *   NVFP4   groups of 16, the scale an E4M3, the factor a power of two for a whole matrix
 *   MXFP4   groups of 32, the scale a power of two, no factor
 *
 * Weights are rounded to nearest. Of the scales with which the largest weight of a group becomes
 * about 3.5 to 8 (MXFP4: 2 to 8, two scales) the best in the sum of squares is taken: what is cut
 * off at 6 may cost less than coarser steps for all others. A value times its scale and factor has
 * six bits, so it is exact also in bf16. The result has the same bits on every machine. Threads: no
 * shared state. */
#ifndef RP_QUANT_FP4_H
#define RP_QUANT_FP4_H

#include "quant/rounding/quantize.h"

#define RP_NVFP4_GROUP 16u
#define RP_MXFP4_GROUP 32u

/* The factor of --quantization nvfp4, which rounds rows before it has seen the others. Groups whose
 * largest weight is 7e-4 to 21 have a scale of full precision, those below a coarser one. */
#define RP_NVFP4_FACTOR 0x1p-7f
/* The factor for a matrix whose largest weight is `most`: its scale is then 224 to 448. */
float rp_nvfp4_factor(float most);

/* The nearest E2M1 value, doubled, ties to the even code: +-{0, 1, 2, 3, 4, 6, 8, 12}. */
static inline float rp_fp4_round_doubled(float doubled) {
    float size = doubled < 0 ? -doubled : doubled;
    float step = size < 4.0f ? 1.0f : size < 8.0f ? 2.0f : 4.0f;
    float rounded = doubled / step + 0x1.8p23f - 0x1.8p23f;
    rounded *= step;
    return size >= 12.0f ? (doubled < 0 ? -12.0f : 12.0f) : rounded;
}
/* The four bits of a doubled value. */
uint8_t rp_fp4_code(int8_t doubled);

/* type: RP_BLOCK_NVFP4 or RP_BLOCK_MXFP4. The scale's byte in a block, and what a doubled value is
 * multiplied with. */
float rp_fp4_half_scale(uint32_t type, uint8_t scale, float factor);

/* Up to a group of values to doubled ones. False: a value is a NaN, an infinity, or too large for
 * the type (NVFP4: 6 * 448 * factor; MXFP4: 6 * 2^123). */
bool rp_fp4_quantize_group(uint32_t type, float factor, const float *values, size_t count,
                           uint8_t *out_scale, int8_t *doubled) RP_MUST_USE;

/* `cols` values to blocks. Adds to loss unless NULL. False: as above; what was written is void. */
bool rp_fp4_quantize_row(uint32_t type, float factor, const float *values, size_t cols,
                         unsigned char *blocks, struct rp_quant_loss *loss) RP_MUST_USE;

#endif
