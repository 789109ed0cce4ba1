/* block_type.h - element types of matrices whose values lie in blocks that share scales: those of
 * GGUF files, and the 4-bit weights of safetensors checkpoints.
 *
 * A row of a tensor is a sequence of blocks of `block` values, `bytes` bytes each; the types
 * without scales have blocks of one value. The numbers of GGUF's types are those of the files
 * (ggml_type); the others are our own and occur in no file. */
#ifndef RP_BASE_BLOCK_TYPE_H
#define RP_BASE_BLOCK_TYPE_H

#include "base/base.h"

/* name, number in files, values and bytes of a block */
#define RP_BLOCK_TYPE_MAP(X)                                                                       \
    X(F32, 0, 1, 4)                                                                                \
    X(F16, 1, 1, 2)                                                                                \
    X(Q4_0, 2, 32, 18)                                                                             \
    X(Q4_1, 3, 32, 20)                                                                             \
    X(Q5_0, 6, 32, 22)                                                                             \
    X(Q5_1, 7, 32, 24)                                                                             \
    X(Q8_0, 8, 32, 34)                                                                             \
    X(Q2_K, 10, 256, 84)                                                                           \
    X(Q3_K, 11, 256, 110)                                                                          \
    X(Q4_K, 12, 256, 144)                                                                          \
    X(Q5_K, 13, 256, 176)                                                                          \
    X(Q6_K, 14, 256, 210)                                                                          \
    X(IQ4_NL, 20, 32, 18)                                                                          \
    X(IQ4_XS, 23, 256, 136)                                                                        \
    X(BF16, 30, 1, 2)                                                                              \
    X(MXFP4, 39, 32, 17)

enum rp_block_type {
#define X(name, number, block, bytes) RP_BLOCK_##name = (number),
    RP_BLOCK_TYPE_MAP(X)
#undef X
};

#define RP_BLOCK_FILE_LIMIT 64u  /* above every number in a GGUF file */
#define RP_BLOCK_TYPE_LIMIT 128u /* above every number */
#define RP_BLOCK_VALUES_MAX 256u
#define RP_BLOCK_BYTES_MAX  210u

/* 4-bit integers q of a group of 32, 64 or 128 columns with one scale: w = scale * (q - zero).
 *
 *   | scale: f16, bf16 or f32 | zero: u8, 0 to 16; absent: it is 8 | codes: group / 2 bytes |
 *
 * Four bytes hold eight columns: byte i has column i in its low nibble and column i + 4 in the
 * high one. */
enum rp_int4_scale { RP_INT4_F16, RP_INT4_BF16, RP_INT4_F32 };

#define RP_BLOCK_INT4       64u
#define RP_BLOCK_INT4_COUNT 32u

static inline bool rp_block_is_int4(uint32_t type) {
    return type - RP_BLOCK_INT4 < RP_BLOCK_INT4_COUNT && (type & 3) != 3 && (type >> 2 & 3) != 3;
}
/* The type with the longest groups that whole groups of `group` columns, a multiple of 32, consist
 * of: groups of 256 are two of 128 with the same scale. */
static inline uint32_t rp_block_int4(uint32_t group, enum rp_int4_scale scale, bool zeros) {
    uint32_t size = group % 128 == 0 ? 2 : group % 64 == 0 ? 1 : 0;
    return RP_BLOCK_INT4 + size + 4 * (uint32_t)scale + (zeros ? 16u : 0u);
}
static inline uint32_t rp_block_int4_group(uint32_t type) { return 32u << (type & 3); }
static inline enum rp_int4_scale rp_block_int4_scale(uint32_t type) {
    return (enum rp_int4_scale)(type >> 2 & 3);
}
static inline bool rp_block_int4_zeros(uint32_t type) { return type & 16; }
static inline uint32_t rp_block_int4_scale_bytes(uint32_t type) {
    return rp_block_int4_scale(type) == RP_INT4_F32 ? 4 : 2;
}

/* 16 values of E2M1 with a scale of E4M3: | scale | codes as above |; the part of the matrix has
 * another scale (quant/matrix.h). GGUF's type of this name has another layout. */
#define RP_BLOCK_NVFP4 96u

/* All zero and NULL for a number that is no type. */
struct rp_block_info {
    const char *name; /* "Q4_K" */
    uint32_t values, bytes;
};

static inline struct rp_block_info rp_block_info(uint32_t type) {
    switch (type) {
#define X(name, number, block, bytes)                                                              \
    case number:                                                                                   \
        return (struct rp_block_info){#name, block, bytes};
        RP_BLOCK_TYPE_MAP(X)
#undef X
    case RP_BLOCK_NVFP4:
        return (struct rp_block_info){"NVFP4", 16, 9};
    default:
        break;
    }
    if (rp_block_is_int4(type)) {
        static const char *const names[] = {"INT4_32", "INT4_64", "INT4_128"};
        uint32_t group = rp_block_int4_group(type);
        return (struct rp_block_info){names[type & 3], group,
                                      rp_block_int4_scale_bytes(type) + rp_block_int4_zeros(type) +
                                          group / 2};
    }
    return (struct rp_block_info){NULL, 0, 0};
}

/* F32, F16, BF16: values without scales. */
static inline bool rp_block_is_plain(uint32_t type) { return rp_block_info(type).values == 1; }

#endif
