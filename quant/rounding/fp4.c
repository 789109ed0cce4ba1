#include "quant/rounding/fp4.h"

#include "base/fp8.h"

#include <math.h>
#include <string.h>

#define LANES           8u
#define TINY            0x1p-100f /* a group without larger values is zero */
#define E4M3_ONE        0x38u
#define E4M3_LAST       0x7Eu
#define NVFP4_TRIES     11u /* E4M3 has eight numbers in a binade */
#define MXFP4_LAST      250u
#define MXFP4_BIAS      127
#define EXPONENT_LIMIT  100 /* of a factor */
#define DOUBLED_LARGEST 12.0f

float rp_nvfp4_factor(float most) {
    int exponent;
    if (!(most > TINY) || !isfinite(most))
        return 1.0f;
    /* 6 * 448 / most = m * 2^exponent with m from 0.5 to 1. */
    frexpf(6.0f * RP_FP8_MAX / most, &exponent);
    exponent = RP_MAX(RP_MIN(exponent - 1, EXPONENT_LIMIT), -EXPONENT_LIMIT);
    return ldexpf(1.0f, -exponent);
}

uint8_t rp_fp4_code(int8_t doubled) {
    static const uint8_t codes[13] = {0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7};
    return doubled < 0 ? (uint8_t)(codes[-doubled] | 8) : codes[doubled];
}

float rp_fp4_half_scale(uint32_t type, uint8_t scale, float factor) {
    return type == RP_BLOCK_NVFP4 ? 0.5f * rp_fp8_to_f32(scale) * factor
                                  : ldexpf(1.0f, (int)scale - MXFP4_BIAS - 1);
}

/* Sum of squared errors, relative to the largest value, so that no square overflows; lane sums, so
 * that it is vectorized with the same order everywhere. count is a multiple of LANES. */
static float noise_with(const float *values, size_t count, float scale, float most) {
    float sums[LANES] = {0}, inverse = 1.0f / scale, relative = scale / most;
    for (size_t i = 0; i < count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++) {
            float value = values[i + lane] * inverse, lost = value - rp_fp4_round_doubled(value);
            sums[lane] += lost * lost;
        }
    for (size_t lane = 1; lane < LANES; lane++)
        sums[0] += sums[lane];
    return sums[0] * relative * relative;
}

/* The first scale to be tried, and how many follow each other. */
static uint8_t first_scale(uint32_t type, float factor, float most, uint32_t *out_tries) {
    int exponent;
    if (type == RP_BLOCK_NVFP4) {
        uint8_t code = rp_f32_to_fp8(most / (8.0f * factor));
        code = RP_MAX(code, (uint8_t)1);
        *out_tries = RP_MIN(NVFP4_TRIES, E4M3_LAST + 1u - code);
        return code;
    }
    frexpf(most,
           &exponent); /* most is 2^(exponent - 1) to 2^exponent: with the first scale, 4 to 8 */
    *out_tries = 2;
    return (uint8_t)RP_MIN(RP_MAX(exponent - 3 + MXFP4_BIAS, 2), (int)MXFP4_LAST - 1);
}

/* False: a value is not finite, or too large. */
static bool find_largest(uint32_t type, float factor, const float *values, size_t count,
                         float *out_most) {
    float most = 0, limit = type == RP_BLOCK_NVFP4 ? 6.0f * RP_FP8_MAX * factor : 0x1.8p125f;
    for (size_t i = 0; i < count; i++) {
        float size = fabsf(values[i]);
        if (!(size <= limit))
            return false;
        most = RP_MAX(most, size);
    }
    *out_most = most;
    return true;
}

bool rp_fp4_quantize_group(uint32_t type, float factor, const float *values, size_t count,
                           uint8_t *out_scale, int8_t *doubled) {
    float padded[RP_MXFP4_GROUP] = {0}, most, least = INFINITY, scale = 1.0f;
    size_t whole = RP_ALIGN_UP(count, (size_t)LANES);
    uint32_t tries = 0;
    RP_ASSERT_CMP(count, <=, RP_MXFP4_GROUP);
    if (!find_largest(type, factor, values, count, &most))
        return false;
    memcpy(padded, values, count * sizeof *values);
    *out_scale = type == RP_BLOCK_NVFP4 ? E4M3_ONE : MXFP4_BIAS;
    uint8_t first = most > TINY ? first_scale(type, factor, most, &tries) : 0;
    for (uint32_t i = 0; i < tries; i++) {
        float tried = rp_fp4_half_scale(type, (uint8_t)(first + i), factor);
        float noise = noise_with(padded, whole, tried, most);
        if (noise < least) {
            least = noise;
            scale = tried;
            *out_scale = (uint8_t)(first + i);
        }
    }
    for (size_t i = 0; i < count; i++)
        doubled[i] = tries ? (int8_t)rp_fp4_round_doubled(values[i] * (1.0f / scale)) : 0;
    return true;
}

bool rp_fp4_quantize_row(uint32_t type, float factor, const float *values, size_t cols,
                         unsigned char *blocks, struct rp_quant_loss *loss) {
    struct rp_block_info info = rp_block_info(type);
    for (size_t begin = 0; begin < cols; begin += info.values, blocks += info.bytes) {
        size_t count = RP_MIN(cols - begin, (size_t)info.values);
        int8_t doubled[RP_MXFP4_GROUP];
        memset(blocks, 0, info.bytes);
        if (!rp_fp4_quantize_group(type, factor, values + begin, count, blocks, doubled))
            return false;
        float scale = rp_fp4_half_scale(type, blocks[0], factor);
        for (size_t i = 0; i < count; i++) {
            double w = (double)values[begin + i], lost = w - (double)(scale * (float)doubled[i]);
            rp_block_put_code(type, blocks, (uint32_t)i, rp_fp4_code(doubled[i]));
            if (loss) {
                loss->signal += w * w;
                loss->noise += lost * lost;
            }
        }
    }
    return true;
}
