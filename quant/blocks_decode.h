/* blocks_decode.h - the codes, scales and minima of one block of `lanes` rows (blocks.h).
 *
 * lanes is 1 (a block as it is in the file, fifth bits transposed) or 16 (of a panel); it is a
 * constant wherever these functions are inlined, so that each of their loops is a vector operation.
 *
 *   codes  int8 [values / 4][lanes][4]
 *   scale  f32  [groups][lanes]; minimum likewise, of the types that have one */
#ifndef RP_QUANT_BLOCKS_DECODE_H
#define RP_QUANT_BLOCKS_DECODE_H

#include "base/block_type.h"

#include <string.h>

#define RP_DECODE static inline __attribute__((always_inline))

/* Values that share a scale. */
RP_DECODE uint32_t rp_block_group(uint32_t type) {
    if (rp_block_is_int4(type))
        return rp_block_int4_group(type);
    return type == RP_BLOCK_Q2_K || type == RP_BLOCK_Q3_K || type == RP_BLOCK_Q6_K ||
                   type == RP_BLOCK_NVFP4
               ? 16
               : 32;
}

RP_DECODE bool rp_block_has_min(uint32_t type) {
    return type == RP_BLOCK_Q4_1 || type == RP_BLOCK_Q5_1 || type == RP_BLOCK_Q2_K ||
           type == RP_BLOCK_Q4_K || type == RP_BLOCK_Q5_K;
}

/* Values of 4-bit codes: IQ4_NL and IQ4_XS; MXFP4's E2M1, doubled. */
static const int8_t rp_block_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t rp_block_fp4_values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};

/* Replaces each nibble by its value: low[i] of in[i] & 15, high[i] of in[i] >> 4; n bytes. */
typedef void (*rp_block_lookup)(const uint8_t *in, int8_t *low, int8_t *high,
                                const int8_t values[16], uint32_t n);

/* f16 without branches: exact, denormals and infinities included. */
RP_DECODE float rp_half(uint16_t half) {
    uint32_t bits = (uint32_t)(half & 0x7FFFu) << 13, out;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    memcpy(&out, &value, sizeof out);
    out = bits >= 0x0F800000u ? bits | 0x7F800000u : out;
    out |= (uint32_t)(half & 0x8000u) << 16;
    memcpy(&value, &out, sizeof value);
    return value;
}

/* `lanes` f16 at `in`, which is at an even address. */
RP_DECODE void rp_halves(const uint8_t *in, const uint32_t lanes, float *out) {
    const uint16_t *halves = (const uint16_t *)(const void *)in;
    for (uint32_t j = 0; j < lanes; j++)
        out[j] = rp_half(halves[j]);
}

/* --- codes ---------------------------------------------------------------------------------- */

/* Nibbles of 4 * lanes bytes, less `offset`. */
RP_DECODE void rp_nibbles(const uint8_t *in, const uint32_t lanes, int8_t *low, int8_t *high,
                          const int offset) {
    for (uint32_t i = 0; i < 4 * lanes; i++) {
        low[i] = (int8_t)((in[i] & 15) - offset);
        high[i] = (int8_t)((in[i] >> 4) - offset);
    }
}

/* Q4_0 and the others whose byte i has k = i and k = i + 16. */
RP_DECODE void rp_codes_split(const uint8_t *in, const uint32_t lanes, int8_t *codes,
                              const int offset) {
    const uint32_t step = 4 * lanes;
    for (uint32_t t = 0; t < 4; t++)
        rp_nibbles(in + t * step, lanes, codes + t * step, codes + (t + 4) * step, offset);
}

/* The same with fifth bits: bit t of byte i of `bits` belongs to k = 4 t + i. */
RP_DECODE void rp_codes_split_5(const uint8_t *in, const uint8_t *bits, const uint32_t lanes,
                                int8_t *codes, const int offset) {
    const uint32_t step = 4 * lanes;
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t i = 0; i < step; i++) {
            uint8_t code = in[t * step + i], bit = bits[i];
            codes[t * step + i] = (int8_t)(((code & 15) | (bit >> t & 1) << 4) - offset);
            codes[(t + 4) * step + i] =
                (int8_t)(((code >> 4) | (bit >> (t + 4) & 1) << 4) - offset);
        }
}

RP_DECODE void rp_codes_lookup(const uint8_t *in, const uint32_t lanes, int8_t *codes,
                               const int8_t *values, const rp_block_lookup lookup) {
    const uint32_t step = 4 * lanes;
    for (uint32_t t = 0; t < 4; t++)
        lookup(in + t * step, codes + t * step, codes + (t + 4) * step, values, step);
}

RP_DECODE void rp_codes_q4_k(const uint8_t *in, const uint32_t lanes, int8_t *codes) {
    const uint32_t step = 4 * lanes;
    for (uint32_t t = 0; t < 32; t++) {
        uint32_t quad = t / 8 * 16 + t % 8;
        rp_nibbles(in + t * step, lanes, codes + quad * step, codes + (quad + 8) * step, 0);
    }
}

RP_DECODE void rp_codes_q5_k(const uint8_t *in, const uint8_t *bits, const uint32_t lanes,
                             int8_t *codes) {
    const uint32_t step = 4 * lanes;
    for (uint32_t t = 0; t < 32; t++) {
        const uint8_t *from = in + t * step, *bit = bits + t % 8 * step;
        uint32_t quad = t / 8 * 16 + t % 8, group = t / 8 * 2;
        for (uint32_t i = 0; i < step; i++) {
            codes[quad * step + i] = (int8_t)((from[i] & 15) | (bit[i] >> group & 1) << 4);
            codes[(quad + 8) * step + i] =
                (int8_t)((from[i] >> 4) | (bit[i] >> (group + 1) & 1) << 4);
        }
    }
}

RP_DECODE void rp_codes_q6_k(const uint8_t *in, const uint8_t *bits, const uint32_t lanes,
                             int8_t *codes) {
    const uint32_t step = 4 * lanes;
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t u = 0; u < 8; u++) {
            const uint8_t *a = in + (16 * h + u) * step, *b = a + 8 * step;
            const uint8_t *two = bits + (8 * h + u) * step;
            int8_t *to = codes + (32 * h + u) * step;
            for (uint32_t i = 0; i < step; i++) {
                to[i] = (int8_t)(((a[i] & 15) | (two[i] & 3) << 4) - 32);
                to[8 * step + i] = (int8_t)(((b[i] & 15) | (two[i] >> 2 & 3) << 4) - 32);
                to[16 * step + i] = (int8_t)(((a[i] >> 4) | (two[i] >> 4 & 3) << 4) - 32);
                to[24 * step + i] = (int8_t)(((b[i] >> 4) | (two[i] >> 6) << 4) - 32);
            }
        }
}

/* Q2_K; with `bits` Q3_K, whose third bit says that 4 is not subtracted. */
RP_DECODE void rp_codes_q2_k(const uint8_t *in, const uint8_t *bits, const uint32_t lanes,
                             int8_t *codes) {
    const uint32_t step = 4 * lanes;
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t u = 0; u < 8; u++) {
            const uint8_t *from = in + (8 * h + u) * step;
            for (uint32_t part = 0; part < 4; part++) {
                int8_t *to = codes + (32 * h + 8 * part + u) * step;
                for (uint32_t i = 0; i < step; i++) {
                    int code = from[i] >> 2 * part & 3;
                    if (bits)
                        code += (bits[u * step + i] >> (4 * h + part) & 1) * 4 - 4;
                    to[i] = (int8_t)code;
                }
            }
        }
}

/* INT4; `zero`: a byte for each lane, or NULL: 8. */
RP_DECODE void rp_codes_int4(const uint8_t *in, const uint8_t *zero, const uint32_t group,
                             const uint32_t lanes, int8_t *codes) {
    const uint32_t step = 4 * lanes;
    uint8_t zeros[64];
    for (uint32_t i = 0; i < step; i++)
        zeros[i] = zero ? zero[i / 4] : 8;
    for (uint32_t u = 0; u < group / 8; u++) {
        const uint8_t *from = in + u * step;
        int8_t *to = codes + 2 * u * step;
        for (uint32_t i = 0; i < step; i++) {
            to[i] = (int8_t)((from[i] & 15) - zeros[i]);
            to[step + i] = (int8_t)((from[i] >> 4) - zeros[i]);
        }
    }
}

/* --- scales --------------------------------------------------------------------------------- */

/* Q4_K and Q5_K: eight scales and eight minima of 6 bits in 12 bytes. */
RP_DECODE void rp_scales_6(const uint8_t *in, const float *d, const float *dmin,
                           const uint32_t lanes, float *scale, float *minimum) {
    for (uint32_t g = 0; g < 4; g++)
        for (uint32_t j = 0; j < lanes; j++) {
            uint8_t a = in[g * lanes + j], b = in[(g + 4) * lanes + j], c = in[(g + 8) * lanes + j];
            scale[g * lanes + j] = d[j] * (float)(a & 63);
            minimum[g * lanes + j] = dmin[j] * (float)(b & 63);
            scale[(g + 4) * lanes + j] = d[j] * (float)((c & 15) | (a >> 6) << 4);
            minimum[(g + 4) * lanes + j] = dmin[j] * (float)((c >> 4) | (b >> 6) << 4);
        }
}

RP_DECODE void rp_scales_q2_k(const uint8_t *in, const float *d, const float *dmin,
                              const uint32_t lanes, float *scale, float *minimum) {
    for (uint32_t g = 0; g < 16; g++)
        for (uint32_t j = 0; j < lanes; j++) {
            scale[g * lanes + j] = d[j] * (float)(in[g * lanes + j] & 15);
            minimum[g * lanes + j] = dmin[j] * (float)(in[g * lanes + j] >> 4);
        }
}

/* Sixteen scales: 4 low bits in 8 bytes, 2 high bits in 4. */
RP_DECODE void rp_scales_q3_k(const uint8_t *in, const float *d, const uint32_t lanes,
                              float *scale) {
    for (uint32_t g = 0; g < 16; g++)
        for (uint32_t j = 0; j < lanes; j++) {
            int low = in[g % 8 * lanes + j] >> g / 8 * 4 & 15;
            int high = in[(8 + g % 4) * lanes + j] >> g / 4 * 2 & 3;
            scale[g * lanes + j] = d[j] * (float)((low | high << 4) - 32);
        }
}

RP_DECODE void rp_scales_q6_k(const uint8_t *in, const float *d, const uint32_t lanes,
                              float *scale) {
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t j = 0; j < lanes; j++)
            scale[i * lanes + j] = d[j] * (float)(int8_t)in[i * lanes + j];
}

RP_DECODE void rp_scales_iq4_xs(const uint8_t *high, const uint8_t *low, const float *d,
                                const uint32_t lanes, float *scale) {
    const uint16_t *pairs = (const uint16_t *)(const void *)high;
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t j = 0; j < lanes; j++) {
            int code = (low[g / 2 * lanes + j] >> g % 2 * 4 & 15) | (pairs[j] >> 2 * g & 3) << 4;
            scale[g * lanes + j] = d[j] * (float)(code - 32);
        }
}

/* Half of 2^(e - 127), since the values of E2M1 are doubled. */
RP_DECODE void rp_scales_mxfp4(const uint8_t *in, const uint32_t lanes, float *scale) {
    for (uint32_t j = 0; j < lanes; j++) {
        uint32_t bits = in[j] < 2 ? 0x00200000u << in[j] : (uint32_t)(in[j] - 1) << 23;
        memcpy(&scale[j], &bits, sizeof bits);
    }
}

RP_DECODE void rp_scales_int4(const uint8_t *in, const enum rp_int4_scale kind,
                              const uint32_t lanes, float *scale) {
    if (kind == RP_INT4_F16) {
        rp_halves(in, lanes, scale);
    } else if (kind == RP_INT4_F32) {
        memcpy(scale, in, lanes * sizeof *scale);
    } else {
        for (uint32_t j = 0; j < lanes; j++) {
            uint32_t bits = (uint32_t)in[2 * j] << 16 | (uint32_t)in[2 * j + 1] << 24;
            memcpy(&scale[j], &bits, sizeof bits);
        }
    }
}

/* Half of an E4M3, as the values of E2M1 are doubled; its exponents become those of f32. */
RP_DECODE void rp_scales_nvfp4(const uint8_t *in, const uint32_t lanes, float *scale) {
    for (uint32_t j = 0; j < lanes; j++) {
        uint32_t bits = (uint32_t)(in[j] & 0x7F) << 20 | (uint32_t)(in[j] & 0x80) << 24;
        float value;
        memcpy(&value, &bits, sizeof value);
        scale[j] = value * 0x1p119f;
    }
}

RP_DECODE void rp_block_decode_int4(const uint32_t type, const uint8_t *in, const uint32_t lanes,
                                    int8_t *codes, float *scale) {
    uint32_t at = rp_block_int4_scale_bytes(type) * lanes;
    const uint8_t *zero = rp_block_int4_zeros(type) ? in + at : NULL;
    rp_scales_int4(in, rp_block_int4_scale(type), lanes, scale);
    rp_codes_int4(zero ? zero + lanes : in + at, zero, rp_block_int4_group(type), lanes, codes);
}

/* The block at `in`, of a type with scales. */
RP_DECODE void rp_block_decode(const uint32_t type, const uint8_t *in, const uint32_t lanes,
                               const rp_block_lookup lookup, int8_t *codes, float *scale,
                               float *minimum) {
    float d[16], dmin[16];
    switch (type) {
    case RP_BLOCK_Q4_0:
        rp_halves(in, lanes, scale);
        rp_codes_split(in + 2 * lanes, lanes, codes, 8);
        break;
    case RP_BLOCK_Q4_1:
    case RP_BLOCK_Q5_1:
        rp_halves(in, lanes, scale);
        rp_halves(in + 2 * lanes, lanes, minimum);
        for (uint32_t j = 0; j < lanes; j++)
            minimum[j] = -minimum[j]; /* the file's is added */
        if (type == RP_BLOCK_Q4_1)
            rp_codes_split(in + 4 * lanes, lanes, codes, 0);
        else
            rp_codes_split_5(in + 8 * lanes, in + 4 * lanes, lanes, codes, 0);
        break;
    case RP_BLOCK_Q5_0:
        rp_halves(in, lanes, scale);
        rp_codes_split_5(in + 6 * lanes, in + 2 * lanes, lanes, codes, 16);
        break;
    case RP_BLOCK_Q8_0:
        rp_halves(in, lanes, scale);
        memcpy(codes, in + 2 * lanes, 32 * lanes);
        break;
    case RP_BLOCK_IQ4_NL:
        rp_halves(in, lanes, scale);
        rp_codes_lookup(in + 2 * lanes, lanes, codes, rp_block_iq4_values, lookup);
        break;
    case RP_BLOCK_MXFP4:
        rp_scales_mxfp4(in, lanes, scale);
        rp_codes_lookup(in + lanes, lanes, codes, rp_block_fp4_values, lookup);
        break;
    case RP_BLOCK_Q2_K:
        rp_halves(in + 80 * lanes, lanes, d);
        rp_halves(in + 82 * lanes, lanes, dmin);
        rp_scales_q2_k(in, d, dmin, lanes, scale, minimum);
        rp_codes_q2_k(in + 16 * lanes, NULL, lanes, codes);
        break;
    case RP_BLOCK_Q3_K:
        rp_halves(in + 108 * lanes, lanes, d);
        rp_scales_q3_k(in + 96 * lanes, d, lanes, scale);
        rp_codes_q2_k(in + 32 * lanes, in, lanes, codes);
        break;
    case RP_BLOCK_Q4_K:
    case RP_BLOCK_Q5_K:
        rp_halves(in, lanes, d);
        rp_halves(in + 2 * lanes, lanes, dmin);
        rp_scales_6(in + 4 * lanes, d, dmin, lanes, scale, minimum);
        if (type == RP_BLOCK_Q4_K)
            rp_codes_q4_k(in + 16 * lanes, lanes, codes);
        else
            rp_codes_q5_k(in + 48 * lanes, in + 16 * lanes, lanes, codes);
        break;
    case RP_BLOCK_Q6_K:
        rp_halves(in + 208 * lanes, lanes, d);
        rp_scales_q6_k(in + 192 * lanes, d, lanes, scale);
        rp_codes_q6_k(in, in + 128 * lanes, lanes, codes);
        break;
    case RP_BLOCK_IQ4_XS:
        rp_halves(in, lanes, d);
        rp_scales_iq4_xs(in + 2 * lanes, in + 4 * lanes, d, lanes, scale);
        for (uint32_t g = 0; g < 8; g++)
            rp_codes_lookup(in + (8 + 16 * g) * lanes, lanes, codes + 32 * g * lanes,
                            rp_block_iq4_values, lookup);
        break;
    case RP_BLOCK_NVFP4:
        rp_scales_nvfp4(in, lanes, scale);
        for (uint32_t u = 0; u < 2; u++)
            lookup(in + (1 + 4 * u) * lanes, codes + 8 * u * lanes, codes + (8 * u + 4) * lanes,
                   rp_block_fp4_values, 4 * lanes);
        break;
    default:
        rp_block_decode_int4(type, in, lanes, codes, scale);
        break;
    }
}

#endif
