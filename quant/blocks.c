#include "quant/blocks.h"

#include "base/bf16.h"
#include "quant/blocks_decode.h"

#include <math.h>

/* Fields of a block with units of other sizes than 4 bytes; the codes make up the rest. */
struct field {
    uint16_t offset, bytes, unit;
};

static uint32_t fields_of(uint32_t type, struct field out[4]) {
    if (rp_block_is_int4(type)) {
        uint16_t bytes = (uint16_t)rp_block_int4_scale_bytes(type);
        out[0] = (struct field){0, bytes, bytes};
        out[1] = (struct field){bytes, 1, 1};
        return rp_block_int4_zeros(type) ? 2 : 1;
    }
    switch (type) {
    case RP_BLOCK_Q4_1:
    case RP_BLOCK_Q5_1:
        out[0] = (struct field){0, 4, 2};
        return 1;
    case RP_BLOCK_Q2_K:
        out[0] = (struct field){0, 16, 1};
        out[1] = (struct field){80, 4, 2};
        return 2;
    case RP_BLOCK_Q3_K:
        out[0] = (struct field){96, 12, 1};
        out[1] = (struct field){108, 2, 2};
        return 2;
    case RP_BLOCK_Q4_K:
    case RP_BLOCK_Q5_K:
        out[0] = (struct field){0, 4, 2};
        out[1] = (struct field){4, 12, 1};
        return 2;
    case RP_BLOCK_Q6_K:
        out[0] = (struct field){192, 16, 1};
        out[1] = (struct field){208, 2, 2};
        return 2;
    case RP_BLOCK_IQ4_XS:
        out[0] = (struct field){0, 4, 2};
        out[1] = (struct field){4, 4, 1};
        return 2;
    case RP_BLOCK_MXFP4:
    case RP_BLOCK_NVFP4:
        out[0] = (struct field){0, 1, 1};
        return 1;
    case RP_BLOCK_F16:
    case RP_BLOCK_BF16:
    case RP_BLOCK_Q4_0:
    case RP_BLOCK_Q5_0:
    case RP_BLOCK_Q8_0:
    case RP_BLOCK_IQ4_NL:
        out[0] = (struct field){0, 2, 2};
        return 1;
    default:
        return 0;
    }
}

/* Where each byte of a block is in the panel's block, for row 0; add row * unit. */
struct places {
    uint16_t at[RP_BLOCK_BYTES_MAX];
    uint8_t unit[RP_BLOCK_BYTES_MAX];
};

static void make_places(uint32_t type, struct places *places) {
    struct field fields[4];
    uint32_t count = fields_of(type, fields), bytes = rp_block_info(type).bytes;
    for (uint32_t b = 0; b < bytes; b++) {
        uint32_t begin = 0, unit = 4;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t end = (uint32_t)fields[i].offset + fields[i].bytes;
            if (b >= fields[i].offset && b < end) {
                begin = fields[i].offset;
                unit = fields[i].unit;
                break;
            }
            if (b >= end) /* the codes begin after it, or after a later one */
                begin = RP_MAX(begin, end);
        }
        uint32_t in = b - begin;
        places->unit[b] = (uint8_t)unit;
        places->at[b] = (uint16_t)(RP_BLOCK_PANEL * (begin + in / unit * unit) + in % unit);
    }
}

/* The fifth bits of Q5_0 and Q5_1: bit 4 t + i of the file's word is bit t of byte i. Its own
 * inverse it is not: `back` says which way. */
static void move_fifth_bits(uint32_t type, unsigned char *block, bool back) {
    if (type != RP_BLOCK_Q5_0 && type != RP_BLOCK_Q5_1)
        return;
    unsigned char *at = block + (type == RP_BLOCK_Q5_0 ? 2 : 4), out[4] = {0};
    for (uint32_t t = 0; t < 8; t++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t word = 4 * t + i;
            if (back)
                out[word / 8] |= (unsigned char)((at[i] >> t & 1) << word % 8);
            else
                out[i] |= (unsigned char)((at[word / 8] >> word % 8 & 1) << t);
        }
    memcpy(at, out, sizeof out);
}

static void lookup(const uint8_t *in, int8_t *low, int8_t *high, const int8_t values[16],
                   uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        low[i] = values[in[i] & 15];
        high[i] = values[in[i] >> 4];
    }
}

static float plain_value(uint32_t type, const unsigned char *in) {
    uint16_t half;
    float value;
    if (type == RP_BLOCK_F32) {
        memcpy(&value, in, sizeof value);
        return value;
    }
    memcpy(&half, in, sizeof half);
    return type == RP_BLOCK_BF16 ? rp_bf16_to_f32(half) : rp_f16_to_f32(half);
}

uint32_t rp_blocks_split(uint32_t type, const unsigned char *block, int8_t *codes, float *scale,
                         float *minimum) {
    _Alignas(16) unsigned char moved[RP_BLOCK_BYTES_MAX];
    memset(minimum, 0, 16 * sizeof *minimum);
    memcpy(moved, block, rp_block_info(type).bytes);
    move_fifth_bits(type, moved, false);
    rp_block_decode(type, moved, 1, lookup, codes, scale, minimum);
    return rp_block_group(type);
}

void rp_blocks_to_f32(uint32_t type, const unsigned char *blocks, size_t count, float *out) {
    struct rp_block_info info = rp_block_info(type);
    RP_ASSERT(info.values != 0);
    for (size_t b = 0; b < count; b++, blocks += info.bytes, out += info.values) {
        int8_t codes[RP_BLOCK_VALUES_MAX];
        float scale[16], minimum[16];
        if (info.values == 1) {
            *out = plain_value(type, blocks);
            continue;
        }
        uint32_t group = rp_blocks_split(type, blocks, codes, scale, minimum);
        for (uint32_t k = 0; k < info.values; k++) {
            float value = scale[k / group] * (float)codes[k];
            out[k] = rp_block_has_min(type) ? value - minimum[k / group] : value;
        }
    }
}

static bool half_is_finite(const unsigned char *in) { return (in[1] & 0x7Cu) != 0x7Cu; }

static bool int4_scale_is_finite(uint32_t type, const unsigned char *block) {
    uint16_t half;
    memcpy(&half, block, sizeof half);
    switch (rp_block_int4_scale(type)) {
    case RP_INT4_F16:
        return half_is_finite(block);
    case RP_INT4_BF16:
        return isfinite(rp_bf16_to_f32(half));
    default:
        return isfinite(plain_value(RP_BLOCK_F32, block));
    }
}

static bool is_finite(uint32_t type, const unsigned char *block) {
    if (rp_block_is_int4(type))
        return int4_scale_is_finite(type, block);
    switch (type) {
    case RP_BLOCK_NVFP4:
        return (block[0] & 0x7Fu) != 0x7Fu;
    case RP_BLOCK_F32:
    case RP_BLOCK_BF16:
        return isfinite(plain_value(type, block));
    case RP_BLOCK_MXFP4:
        return block[0] <= 250; /* 2^123 * 6 is the largest that leaves room for a sum */
    case RP_BLOCK_Q4_1:
    case RP_BLOCK_Q5_1:
    case RP_BLOCK_Q4_K:
    case RP_BLOCK_Q5_K:
        return half_is_finite(block) && half_is_finite(block + 2);
    case RP_BLOCK_Q2_K:
        return half_is_finite(block + 80) && half_is_finite(block + 82);
    case RP_BLOCK_Q3_K:
        return half_is_finite(block + 108);
    case RP_BLOCK_Q6_K:
        return half_is_finite(block + 208);
    default:
        return half_is_finite(block);
    }
}

bool rp_blocks_finite(uint32_t type, const unsigned char *blocks, size_t count, size_t *out_bad) {
    uint32_t bytes = rp_block_info(type).bytes;
    for (size_t b = 0; b < count; b++)
        if (!is_finite(type, blocks + b * bytes)) {
            *out_bad = b;
            return false;
        }
    return true;
}

void rp_blocks_pack(uint32_t type, const unsigned char *rows, uint32_t live, size_t row_bytes,
                    unsigned char *panel) {
    uint32_t bytes = rp_block_info(type).bytes;
    struct places places;
    make_places(type, &places);
    if (live < RP_BLOCK_PANEL)
        memset(panel, 0, RP_BLOCK_PANEL * row_bytes);
    for (size_t at = 0; at < row_bytes; at += bytes)
        for (uint32_t j = 0; j < live; j++) {
            unsigned char block[RP_BLOCK_BYTES_MAX], *to = panel + RP_BLOCK_PANEL * at;
            memcpy(block, rows + j * row_bytes + at, bytes);
            move_fifth_bits(type, block, false);
            for (uint32_t b = 0; b < bytes; b++)
                to[places.at[b] + j * places.unit[b]] = block[b];
        }
}

void rp_blocks_unpack_row(uint32_t type, const unsigned char *panel, size_t block, uint32_t row,
                          unsigned char *out) {
    uint32_t bytes = rp_block_info(type).bytes;
    struct places places;
    make_places(type, &places);
    const unsigned char *from = panel + RP_BLOCK_PANEL * block * bytes;
    for (uint32_t b = 0; b < bytes; b++)
        out[b] = from[places.at[b] + row * places.unit[b]];
    move_fifth_bits(type, out, true);
}
