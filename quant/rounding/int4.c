#include "quant/rounding/int4.h"

#include "base/bf16.h"

#include <math.h>
#include <string.h>

#define GROUP_MAX 128u
#define LANES     8u
/* Scales tried: max|w| / 6.5, / 6.75, .. A group whose largest value is negative may use -8. */
#define DIVISOR_FIRST 6.5f
#define DIVISOR_STEP  0.25f
#define TRIES         13
#define TINY          0x1p-100f /* a group without larger values is zero */

/* The nearest integer, ties to even, within what four bits hold; of |value| up to 16. */
static inline float code_of(float value) {
    float code = value + 0x1.8p23f - 0x1.8p23f;
    code = code < -8.0f ? -8.0f : code;
    return code > 7.0f ? 7.0f : code;
}

/* Sum of squared errors in units of the scale; count is a multiple of LANES. Lane sums, so that it
 * is vectorized with the same order everywhere. */
static float noise_of(const float *values, size_t count, float inverse) {
    float sums[LANES] = {0};
    for (size_t i = 0; i < count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++) {
            float value = values[i + lane] * inverse, lost = value - code_of(value);
            sums[lane] += lost * lost;
        }
    for (size_t lane = 1; lane < LANES; lane++)
        sums[0] += sums[lane];
    return sums[0];
}

/* Relative to the largest value, so that no square overflows. */
static float noise_with(const float *values, size_t count, float scale, float most) {
    float relative = scale / most;
    return noise_of(values, count, 1.0f / scale) * relative * relative;
}

/* The bf16 scale of least squares for the codes that `scale` gives. */
static float fitted(const float *values, size_t count, float scale) {
    double along = 0, square = 0;
    for (size_t i = 0; i < count; i++) {
        double code = (double)code_of(values[i] / scale);
        along += (double)values[i] * code;
        square += code * code;
    }
    float out = square > 0 ? rp_bf16_to_f32(rp_f32_to_bf16((float)(along / square))) : scale;
    return out > 0 ? out : scale;
}

uint16_t rp_int4_quantize_group(const float *values, size_t count, int8_t *codes) {
    float padded[GROUP_MAX] = {0}, most = 0, best = 1.0f, least = INFINITY;
    size_t whole = RP_ALIGN_UP(count, (size_t)LANES);
    RP_ASSERT_CMP(count, <=, GROUP_MAX);
    for (size_t i = 0; i < count; i++) {
        padded[i] = values[i];
        most = RP_MAX(most, fabsf(values[i]));
    }
    for (int i = 0; i < TRIES && most > TINY; i++) {
        float divisor = DIVISOR_FIRST + DIVISOR_STEP * (float)i;
        float scale = rp_bf16_to_f32(rp_f32_to_bf16(most / divisor));
        float noise = noise_with(padded, whole, scale, most);
        if (noise < least) {
            least = noise;
            best = scale;
        }
    }
    if (most > TINY) {
        float scale = fitted(padded, count, best);
        if (scale > most / 16 && noise_with(padded, whole, scale, most) < least)
            best = scale;
    }
    for (size_t i = 0; i < count; i++)
        codes[i] = most > TINY ? (int8_t)code_of(values[i] * (1.0f / best)) : 0;
    return rp_f32_to_bf16(best);
}

bool rp_int4_quantize_row(const float *values, size_t cols, uint32_t type, unsigned char *blocks,
                          struct rp_quant_loss *loss) {
    struct rp_block_info info = rp_block_info(type);
    RP_ASSERT(rp_block_int4_scale(type) == RP_INT4_BF16 && !rp_block_int4_zeros(type));
    for (size_t begin = 0; begin < cols; begin += info.values, blocks += info.bytes) {
        size_t count = RP_MIN(cols - begin, (size_t)info.values);
        int8_t codes[GROUP_MAX];
        for (size_t i = 0; i < count; i++)
            if (!isfinite(values[begin + i]))
                return false;
        uint16_t bits = rp_int4_quantize_group(values + begin, count, codes);
        float scale = rp_bf16_to_f32(bits);
        memset(blocks, 0, info.bytes);
        memcpy(blocks, &bits, sizeof bits);
        for (size_t i = 0; i < count; i++) {
            double w = (double)values[begin + i], lost = w - (double)(scale * (float)codes[i]);
            rp_block_put_code(type, blocks, (uint32_t)i, (uint32_t)(codes[i] + 8));
            if (loss) {
                loss->signal += w * w;
                loss->noise += lost * lost;
            }
        }
        for (size_t i = count; i < info.values; i++) /* past the end: zero weights */
            rp_block_put_code(type, blocks, (uint32_t)i, 8);
    }
    return true;
}
