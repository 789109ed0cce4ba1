#include "attention/cpu/attention_blocks.h"

#include <string.h>

#define BLOCK RP_ATTENTION_BLOCK_KEYS
/* Longest run of keys classified at once. */
#define STRIDE_MAX (1u << 20)

static const struct rp_live_row *row_of(const struct rp_attention_args *args, uint32_t token) {
    return &args->step.rows[args->step.token_rows[token]];
}

void rp_attention_blocks_begin(struct rp_attention_blocks *blocks,
                               const struct rp_attention_args *args,
                               const struct rp_attention_piece *piece) {
    *blocks = (struct rp_attention_blocks){
        .args = args,
        .piece = piece,
        .params = rp_attention_params(&args->step, row_of(args, piece->token)),
        .positions = args->step.positions + piece->token,
        .end = rp_attention_end(args, piece->token + piece->token_count - 1),
        .stride = BLOCK,
    };
}

static enum rp_mask_class classify(const struct rp_attention_blocks *blocks, uint32_t begin,
                                   uint32_t end) {
    const struct rp_attention_piece *piece = blocks->piece;
    uint32_t head = blocks->args->first_head + piece->head;
    const struct rp_mask_tile tile = {
        .q_begin = (int32_t)blocks->positions[0],
        .q_end = (int32_t)blocks->positions[piece->token_count - 1] + 1,
        .kv_begin = (int32_t)begin,
        .kv_end = (int32_t)end,
        .h_begin = (int32_t)head,
        .h_end = (int32_t)(head + piece->head_count),
        .layer = (int32_t)blocks->args->layer,
    };
    return rp_mask_classify(blocks->args->mask, &tile, blocks->params);
}

/* The next block that is not SKIP; false: none. The run classified at once doubles while the result
 * is not PARTIAL, so a distant window is found in a few steps. */
static bool find(struct rp_attention_blocks *blocks, uint32_t *out_at, bool *out_full) {
    while (blocks->at < blocks->end) {
        uint32_t at = blocks->at;
        bool full = at < blocks->full_until;
        if (!full) {
            uint32_t stop = (uint32_t)RP_MIN((uint64_t)at + blocks->stride, blocks->end);
            enum rp_mask_class found = classify(blocks, at, stop);
            if (found == RP_MASK_PARTIAL && stop - at > BLOCK) {
                blocks->stride = RP_MAX(blocks->stride / 4, BLOCK);
                continue;
            }
            if (found != RP_MASK_PARTIAL)
                blocks->stride = RP_MIN(blocks->stride * 2, STRIDE_MAX);
            if (found == RP_MASK_SKIP) {
                blocks->at = stop;
                continue;
            }
            full = found == RP_MASK_FULL;
            blocks->full_until = full ? stop : 0;
        }
        blocks->at = (uint32_t)RP_MIN((uint64_t)at + BLOCK, blocks->end);
        *out_at = at;
        *out_full = full;
        return true;
    }
    return false;
}

static uint64_t pack(const bool *seen) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < BLOCK; i++)
        bits |= (uint64_t)seen[i] << i;
    return bits;
}

/* Evaluates the mask for every row of the piece. */
static void evaluate_rows(const struct rp_attention_blocks *blocks, uint32_t count,
                          struct rp_attention_seen *out) {
    const struct rp_attention_args *args = blocks->args;
    const struct rp_attention_piece *piece = blocks->piece;
    bool seen[BLOCK] = {false};
    for (uint32_t t = 0; t < piece->token_count; t++) {
        uint64_t *bits = out->rows + (size_t)t * piece->head_count;
        for (uint32_t h = 0; h < piece->head_count; h++) {
            const struct rp_mask_pair pair = {.q = (int32_t)blocks->positions[t],
                                              .kv = (int32_t)out->at,
                                              .h = (int32_t)(args->first_head + piece->head + h),
                                              .layer = (int32_t)args->layer};
            if (h > 0 && !out->heads_differ) {
                bits[h] = bits[0];
                continue;
            }
            rp_mask_sees_keys(args->mask, &pair, blocks->params, count, seen);
            bits[h] = pack(seen);
            out->any |= bits[h];
        }
    }
}

bool rp_attention_blocks_next(struct rp_attention_blocks *blocks, struct rp_attention_seen *out) {
    const struct rp_attention_piece *piece = blocks->piece;
    bool full;
    while (find(blocks, &out->at, &full)) {
        uint32_t count = RP_MIN(blocks->end - out->at, BLOCK);
        out->any = 0;
        out->heads_differ = !full && rp_mask_reads_head(blocks->args->mask);
        if (full) {
            out->any = ~(uint64_t)0 >> (BLOCK - count);
            for (uint32_t i = 0; i < piece->token_count * piece->head_count; i++)
                out->rows[i] = out->any;
        } else {
            evaluate_rows(blocks, count, out);
        }
        if (out->any)
            return true;
    }
    return false;
}

/* Runs that are classified to estimate the cost of one item. */
#define LENGTH_CLASSIFICATIONS 8u

uint64_t rp_attention_masked_length(const struct rp_attention_args *args, uint32_t token,
                                    uint32_t count) {
    const struct rp_attention_piece piece = {
        .token = token, .token_count = count, .head_count = args->heads};
    struct rp_attention_blocks blocks;
    uint64_t length = 0;
    rp_attention_blocks_begin(&blocks, args, &piece);
    uint32_t stride = RP_ALIGN_UP(RP_CEIL_DIV(blocks.end, LENGTH_CLASSIFICATIONS), BLOCK);
    for (uint32_t at = 0; at < blocks.end; at += stride) {
        uint32_t stop = RP_MIN(blocks.end - at, stride) + at;
        if (classify(&blocks, at, stop) != RP_MASK_SKIP)
            length += stop - at;
    }
    return length * count;
}
