/* tiles.h - blocks (blocks.h) as GPUs keep them: tiles of 16 rows by 128 columns.
 *
 * A matrix of RP_LAYOUT_TILES has its parts one after the other; a part is panels of 16 rows, a
 * panel its tiles, columns ascending. Rows past the part's and columns past the matrix's are zero.
 * A tile is one contiguous piece, so that one bulk copy brings it: scales, then codes.
 *
 *   scales, by kind; G = 128 / group
 *     SYM    S[G][16]                                    w = S * (u - offset)
 *     ZERO   S[G][16], z u8 [G][16]                      w = S * (u - z)
 *     MIN    S[G][16], M[G][16]                          w = S * u - M
 *     MIN_2  d f16 [16], dmin f16 [16], sc u8 [G][16],   S = d * sc, M = dmin * m; as MIN
 *            m u8 [G][16]
 *     SYM_2  d f16 [16], sc s8 [G][16]                   S = d * sc; as SYM
 *     FP4    S[16][G]                                    w = S * u, u of E2M1
 *     PLAIN  none                                        w = u, a bf16
 *
 * S and M are bf16: those that the file has in another type, and the products of two levels, are
 * rounded to it. u is an unsigned code of `bits` bits. A weight is rounded once more, to bf16:
 * what the tensor cores multiply. So w has at most two roundings, 2^-9 each, of which those of S
 * are shared by a group.
 *
 * Codes are in the order of the fragments of mma.m16n8k16 with the weights as operand A. A tile
 * has 8 steps of 16 columns; in a step lane l has rows l / 4 and l / 4 + 8 and columns 2 (l % 4) +
 * {0, 1, 8, 9}, as values v = 2 q + high, of register q: row l / 4 + 8 (q % 2), column 2 (l % 4) +
 * 8 (q / 2) + high.
 *
 *   4 bits   a word of a lane and step: v at bits 4 q + 16 high; lane's steps 0 to 3, then 4 to 7:
 *            [2][32 lanes][4 words]. Also the low bits of 5 and 6
 *   5 bits   then the fifth: [32][2 words], a word has four steps: bit q + 4 (step % 4) + 16 high
 *   6 bits   then two more: [32][4 words], a word has two steps: bits 2 q + 8 (step % 2) + 16 high
 *   8 bits   two words of a lane and step: v in word q / 2, byte q % 2 + 2 high; [4][32][2 steps][2 words]
 *   16 bits  four words: word q, v in half `high`; [8][32][4 words]
 *
 * Codes of FP4 lie so that a rotation and a mask turn a word into a register of bf16, with sign,
 * exponent and mantissa in place. [2][2 halves of rows][32 lanes][2 words]: two words of a lane
 * have the 16 codes of a row and four steps, columns as above: registers r = 2 (step % 4) + q / 2.
 * Bit p of register r, of the bits RP_TILE_FP4_MASK, is bit p - RP_TILE_FP4_ROTATIONS[r] (mod 32)
 * of the first word (r = 0, 1, 2), of the second (4, 5, 6), or (3, 7) of the one or the other: of
 * the first where RP_TILE_FP4_FIRST has a 1. Every bit of the two words belongs to one register.
 *
 * Thread: any. */
#ifndef RP_QUANT_TILES_H
#define RP_QUANT_TILES_H

#include "quant/matrix.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_TILE_ROWS 16u
#define RP_TILE_COLS 128u

#define RP_TILE_FP4_MASK      0x81C081C0u /* of a half word of E2M1: sign, exponent, mantissa */
#define RP_TILE_FP4_ROTATIONS 0xEC628A40u /* 4 bits each, the lowest: of register 0 */
#define RP_TILE_FP4_FIRST     0x06030603u

enum rp_tile_kind {
    RP_TILE_SYM,
    RP_TILE_ZERO,
    RP_TILE_MIN,
    RP_TILE_MIN_2,
    RP_TILE_SYM_2,
    RP_TILE_FP4,
    RP_TILE_PLAIN
};

struct rp_tile_format {
    uint32_t bits, group;
    enum rp_tile_kind kind;
    uint32_t offset; /* of SYM and SYM_2 */
};

static inline bool rp_tile_same(struct rp_tile_format a, struct rp_tile_format b) {
    return a.bits == b.bits && a.group == b.group && a.kind == b.kind && a.offset == b.offset;
}

/* Bytes of a tile's scales. */
static inline uint32_t rp_tile_scale_bytes(enum rp_tile_kind kind, uint32_t group) {
    uint32_t groups = RP_TILE_COLS / group;
    switch (kind) {
    case RP_TILE_ZERO:
        return 48 * groups;
    case RP_TILE_MIN:
        return 64 * groups;
    case RP_TILE_MIN_2:
        return 64 + 32 * groups;
    case RP_TILE_SYM_2:
        return 32 + 16 * groups;
    case RP_TILE_PLAIN:
        return 0;
    case RP_TILE_SYM:
    case RP_TILE_FP4:
        break;
    }
    return 32 * groups;
}

static inline uint32_t rp_tile_bytes(struct rp_tile_format format) {
    return rp_tile_scale_bytes(format.kind, format.group) +
           RP_TILE_ROWS * RP_TILE_COLS / 8 * format.bits;
}

/* The format of a block type. Types with fewer bits than 4, and those whose values are looked up,
 * have codes of 4 and 8 bits. */
struct rp_tile_format rp_tile_format_of(uint32_t type);

/* Bytes of a part. */
size_t rp_tiles_part_bytes(const struct rp_matrix_part *part, uint32_t cols);

/* Writes panels [begin, end) of a part of a row-major matrix of blocks, on the host, as tiles; to:
 * where the part begins. NO_MEMORY for the buffers of a row. */
int rp_tiles_pack_panels(const struct rp_matrix *matrix, uint32_t part, uint32_t begin,
                         uint32_t end, unsigned char *to);
/* All of it; to: rp_matrix_bytes of it with RP_LAYOUT_TILES. */
int rp_tiles_pack(const struct rp_matrix *matrix, unsigned char *to);

/* Weight (row, col) as the GEMMs on a GPU have it; of a matrix of RP_LAYOUT_TILES on the host. */
float rp_tiles_weight(const struct rp_matrix *matrix, uint32_t row, uint32_t col);

#ifdef __cplusplus
}
#endif
#endif
