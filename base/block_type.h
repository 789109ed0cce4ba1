/* block_type.h - the element types of GGUF files: values in blocks that share scales.
 *
 * A row of a tensor is a sequence of blocks of `block` values, `bytes` bytes each; the types
 * without scales have blocks of one value. The numbers are those of the files (ggml_type). */
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

#define RP_BLOCK_TYPE_LIMIT 64u /* above every number */
#define RP_BLOCK_VALUES_MAX 256u
#define RP_BLOCK_BYTES_MAX  210u

/* All zero and NULL for a number that is not in the map. */
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
    default:
        return (struct rp_block_info){NULL, 0, 0};
    }
}

/* F32, F16, BF16: values without scales. */
static inline bool rp_block_is_plain(uint32_t type) { return rp_block_info(type).values == 1; }

#endif
