/* blocks.h - the values of blocks (base/block_type.h), and their panels for the CPU.
 *
 * Every weight is w = S * c - M in f32: c an integer of up to 8 bits, S and M the scale and the
 * minimum of its group of 16 or 32 values. S = d * sub-scale and S * c are exact in f32, so only
 * the subtraction of M rounds; the values equal those of the `gguf` package bit for bit.
 *
 * A panel is 16 rows; its block holds the bytes of the same block of each row, transposed: a field
 * of the block at byte `off` is at 16 * off, its units (1, 2 or 4 bytes) row after row:
 *
 *   row-major  | d | scales | 4 codes, 4 codes, .. |          one block of one row
 *   panel      | 16 d | 16 scales[0], 16 scales[1], .. | 16 x 4 codes, 16 x 4 codes, .. |
 *
 * What lies past the end of a row in its last block is not read.
 *
 * So panels have the file's bytes per weight, but for the padding of the last panel of a part. The
 * fifth bits of Q5_0 and Q5_1 are also transposed inside their four bytes. Thread: any. */
#ifndef RP_QUANT_BLOCKS_H
#define RP_QUANT_BLOCKS_H

#include "base/block_type.h"

#define RP_BLOCK_PANEL 16u

/* Bytes of a row. */
static inline size_t rp_blocks_row_bytes(uint32_t type, size_t cols) {
    struct rp_block_info info = rp_block_info(type);
    return RP_CEIL_DIV(cols, (size_t)info.values) * info.bytes;
}

/* Adds the 4-bit code of column k, below the block's values, to a block whose code is zero there;
 * of INT4, NVFP4 and MXFP4. */
static inline void rp_block_put_code(uint32_t type, unsigned char *block, uint32_t k,
                                     uint32_t code) {
    struct rp_block_info info = rp_block_info(type);
    unsigned char *codes = block + info.bytes - info.values / 2;
    if (type == RP_BLOCK_MXFP4)
        codes[k % 16] |= (unsigned char)(code << k / 16 * 4);
    else
        codes[k / 8 * 4 + k % 4] |= (unsigned char)(code << k % 8 / 4 * 4);
}

/* The values of `count` blocks of one row. */
void rp_blocks_to_f32(uint32_t type, const unsigned char *blocks, size_t count, float *out);

/* The integers, scales and minima of one block; minimum[] is 0 where the type has none. Of a type
 * with scales only. Returns the values of a group. */
uint32_t rp_blocks_split(uint32_t type, const unsigned char *block, int8_t *codes, float *scale,
                         float *minimum);

/* False: a scale (of the types without scales: a value) is a NaN or an infinity, in block
 * *out_bad. */
bool rp_blocks_finite(uint32_t type, const unsigned char *blocks, size_t count, size_t *out_bad);

/* Rows [0, live) of `row_bytes` each into one panel; the others become zero. */
void rp_blocks_pack(uint32_t type, const unsigned char *rows, uint32_t live, size_t row_bytes,
                    unsigned char *panel);
/* Block `block` of row `row` back out of a panel. */
void rp_blocks_unpack_row(uint32_t type, const unsigned char *panel, size_t block, uint32_t row,
                          unsigned char *out);

#endif
