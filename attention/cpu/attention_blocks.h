/* attention_blocks.h - for the CPU kernels: which key blocks a piece of work reads under a mask
 * program, and which keys of a block its rows see.
 *
 * A block is 64 keys at a multiple of 64. Blocks in which a program sees nothing are found by
 * classifying whole runs of them: their page table entries and keys are neither read nor
 * prefetched. Without a program nothing is classified. Thread: one worker. Memory: the caller's
 * stack. */
#ifndef RP_ATTENTION_ATTENTION_BLOCKS_H
#define RP_ATTENTION_ATTENTION_BLOCKS_H

#include "attention/cpu/attention_internal.h"

/* A row is one (token, query head). */
#define RP_ATTENTION_PIECE_TOKENS 16u
#define RP_ATTENTION_PIECE_HEADS  8u
#define RP_ATTENTION_PIECE_ROWS   (RP_ATTENTION_PIECE_TOKENS * RP_ATTENTION_PIECE_HEADS)

/* Tokens [token, token + token_count) of one sequence x query heads [head, head + head_count) of
 * one KV head. */
struct rp_attention_piece {
    uint32_t token, token_count, head, head_count, kv_head;
};

/* The parameters of a sequence's program. */
static inline const int32_t *rp_attention_params(const struct rp_step_view *step,
                                                 const struct rp_live_row *row) {
    return (const int32_t *)(step->slots + (size_t)row->slot * step->slot_words +
                             RP_SLOT_MASK_PARAMS);
}

/* A walk over the blocks of a piece, in rising order. */
struct rp_attention_blocks {
    const struct rp_attention_args *args; /* with a program */
    const struct rp_attention_piece *piece;
    const int32_t *params;
    const uint32_t *positions; /* of the piece's tokens */
    uint32_t at, end;          /* first key not yet returned */
    uint32_t full_until;       /* keys below it are seen by every row; 0: unknown from `at` on */
    uint32_t stride;           /* keys to classify next */
};

void rp_attention_blocks_begin(struct rp_attention_blocks *blocks,
                               const struct rp_attention_args *args,
                               const struct rp_attention_piece *piece);

/* Visibility of one block to the rows of a piece: bit i is the key at position at + i. */
struct rp_attention_seen {
    uint32_t at;
    uint64_t any;                           /* keys seen by any row, which may be read; never 0 */
    bool heads_differ;                      /* rows of one token may see different keys */
    uint64_t rows[RP_ATTENTION_PIECE_ROWS]; /* token by token, head by head */
};

/* The next block of which a row sees anything; false: there is none. */
bool rp_attention_blocks_next(struct rp_attention_blocks *blocks, struct rp_attention_seen *out);

#endif
