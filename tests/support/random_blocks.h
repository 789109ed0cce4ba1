/* random_blocks.h - random blocks of every type: any codes, and scales of about 0.01. */
#ifndef RP_TESTS_SUPPORT_RANDOM_BLOCKS_H
#define RP_TESTS_SUPPORT_RANDOM_BLOCKS_H

#include "base/bf16.h"
#include "quant/blocks.h"

#include <string.h>

/* INT4 with each group, type of scales, and zero points; all others. */
static const uint32_t random_block_types[] = {
    RP_BLOCK_INT4 + 0,   RP_BLOCK_INT4 + 1,  RP_BLOCK_INT4 + 2,
    RP_BLOCK_INT4 + 4,   RP_BLOCK_INT4 + 10, RP_BLOCK_INT4 + 16,
    RP_BLOCK_INT4 + 17,  RP_BLOCK_INT4 + 18, RP_BLOCK_NVFP4,
#define X(name, number, block, bytes) number,
    RP_BLOCK_TYPE_MAP(X)
#undef X
};
#define RANDOM_BLOCK_TYPES RP_ARRAY_COUNT(random_block_types)

static inline uint32_t random_block_bits(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* In [0.001, 0.019). */
static inline float random_block_scale(uint32_t *seed) {
    return 0.001f + 0.018f * (float)random_block_bits(seed) * 0x1p-24f;
}

static inline void random_block_half(unsigned char *to, bool is_bf16, uint32_t *seed) {
    float value = random_block_scale(seed);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t half = is_bf16 ? rp_f32_to_bf16(value) : (uint16_t)((bits >> 13) - (112u << 10));
    memcpy(to, &half, sizeof half);
}

static inline void random_block(uint32_t type, unsigned char *block, uint32_t *seed) {
    struct rp_block_info info = rp_block_info(type);
    float value = random_block_scale(seed);
    for (uint32_t i = 0; i < info.bytes; i++)
        block[i] = (unsigned char)random_block_bits(seed);
    if (rp_block_is_int4(type)) {
        enum rp_int4_scale kind = rp_block_int4_scale(type);
        if (kind == RP_INT4_F32)
            memcpy(block, &value, sizeof value);
        else
            random_block_half(block, kind == RP_INT4_BF16, seed);
        if (rp_block_int4_zeros(type))
            block[rp_block_int4_scale_bytes(type)] %= 17;
        return;
    }
    switch (type) {
    case RP_BLOCK_F32:
        memcpy(block, &value, sizeof value);
        break;
    case RP_BLOCK_BF16:
        random_block_half(block, true, seed);
        break;
    case RP_BLOCK_MXFP4:
        block[0] = (unsigned char)(118 + block[0] % 8);
        break;
    case RP_BLOCK_NVFP4:
        block[0] &= 0x7F;
        block[0] = block[0] == 0x7F ? 0x38 : block[0];
        break;
    case RP_BLOCK_Q2_K:
        random_block_half(block + 80, false, seed);
        random_block_half(block + 82, false, seed);
        break;
    case RP_BLOCK_Q3_K:
        random_block_half(block + 108, false, seed);
        break;
    case RP_BLOCK_Q6_K:
        random_block_half(block + 208, false, seed);
        break;
    default:
        random_block_half(block, false, seed);
        if (type == RP_BLOCK_Q4_1 || type == RP_BLOCK_Q5_1 || type == RP_BLOCK_Q4_K ||
            type == RP_BLOCK_Q5_K)
            random_block_half(block + 2, false, seed);
        break;
    }
}

#endif
