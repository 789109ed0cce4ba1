/* matmul_tc_plan_cuda.c - small tiles for GEMMs of few outputs: routers, gates of shared experts,
 * narrow projections.
 *
 * Tiles as large as a batch are few, so that K is cut up between blocks to use more SMs. Where no
 * reader adds up the segments, the block that owns a tile adds them one after the other: 1 to 2 us
 * each, seven of them for K = 2,048 and N = 64, 20 us in all. With tiles of a few tokens there are
 * as many blocks without cutting up K. Each reads its weight rows again, from L2: that is paid back
 * as long as there are few.
 *
 * The choice is of the estimated time, from the launch's sizes alone. No bit of the result depends
 * on it: a block adds up the same segments in the same order. */
#include "quant/matmul_internal_cuda.h"

#define ROWS_FEW 32u /* up to so many rows tiles are small anyway */

/* Estimates for an H200, where bytes per nanosecond are those that come to shared memory: of one
 * block, of one of the kernel for prompts, of all blocks together. */
#define BLOCK_RATE 75u
#define WIDE_RATE  110u
#define ALL_RATE   7500u
#define BOX_NS     75u   /* a box of K at least: its instructions wait for each other */
#define SHARE_NS   1500u /* a share is stored, and its flag */
#define ADD_NS     700u  /* a segment is added: its flag and first sums come; then the rest */
#define ADD_RATE   50u

/* Sizes of a GEMM: K in boxes. */
struct sizes {
    uint32_t n, rows, boxes, segment, segments, sms;
};

static uint32_t count_tiles(const struct sizes *s, const struct rp_matmul_tile *tile) {
    return RP_CEIL_DIV(s->n, tile->rows) * RP_CEIL_DIV(s->rows, tile->tokens);
}

/* What a block copies for so many boxes of K. There are no copies of rows past the last one. */
static uint64_t bytes_of(const struct sizes *s, const struct rp_matmul_tile *tile, uint32_t boxes) {
    uint32_t rows = RP_MIN(tile->rows, s->n) + RP_MIN(tile->tokens, s->rows);
    return (uint64_t)rows * boxes * RP_MATMUL_BLOCK * 2;
}

static uint64_t once_ns(const struct sizes *s, const struct rp_matmul_tile *tile) {
    uint64_t bytes = bytes_of(s, tile, s->boxes), least = (uint64_t)s->boxes * BOX_NS;
    uint64_t alone = RP_MAX(bytes / BLOCK_RATE, least);
    return RP_MAX(alone, bytes * count_tiles(s, tile) / ALL_RATE);
}

/* The other orders; WAVES above 256 rows stands for the kernel for prompts. */
static uint64_t other_ns(const struct sizes *s, const struct rp_matmul_tile *tile) {
    uint32_t tiles = count_tiles(s, tile);
    if (tile->order == RP_MATMUL_ORDER_WAVES)
        return bytes_of(s, tile, s->boxes) * RP_CEIL_DIV(tiles, s->sms) /
               (s->rows > 256 ? WIDE_RATE : BLOCK_RATE);
    uint32_t share = RP_CEIL_DIV(tiles * s->segments, s->sms);
    uint64_t copies = bytes_of(s, tile, share * s->segment) / BLOCK_RATE;
    if (share % s->segments == 0)
        return copies;
    uint32_t added = s->segments - RP_MIN(share, s->segments - 1);
    uint64_t sums = (uint64_t)tile->rows * tile->tokens * sizeof(float);
    return copies + SHARE_NS + added * (ADD_NS + sums / ADD_RATE);
}

/* A compiled kernel: few boxes in a stage where the segment would leave some of them empty. */
static struct rp_matmul_tile small_tile(const struct sizes *s, uint32_t tokens, uint32_t rows) {
    uint32_t boxes = tokens > 64 ? 1 : tokens <= 32 && rows == 64 && s->segment % 4 == 0 ? 4 : 2;
    return (struct rp_matmul_tile){.tokens = tokens,
                                   .rows = rows,
                                   .order = RP_MATMUL_ORDER_ONCE,
                                   .boxes = boxes,
                                   .eager = tokens <= 64};
}

void rp_matmul_tc_choose_once(const struct rp_matmul_cuda *op, struct rp_matmul_tile *tile) {
    static const struct {
        uint32_t tokens, rows;
    } tiles[] = {{8, 64}, {16, 64}, {32, 64}, {64, 64}, {64, 128}, {128, 128}};
    const struct rp_matrix *w = op->weight;
    if (w->dtype != RP_DTYPE_BF16 || op->gated || op->norm.cols || op->rows.max_rows <= ROWS_FEW)
        return;
    uint32_t boxes = RP_CEIL_DIV(w->cols, RP_MATMUL_BLOCK);
    uint32_t segment = RP_MIN(rp_matmul_cuda_segment_of(op) / RP_MATMUL_BLOCK, boxes);
    struct sizes s = {.n = w->rows,
                      .rows = op->rows.max_rows,
                      .boxes = boxes,
                      .segment = segment,
                      .segments = RP_CEIL_DIV(boxes, segment),
                      .sms = op->limits.sm_count};
    uint64_t least = other_ns(&s, tile) * 4 / 5; /* an estimate: to be a fifth faster at least */
    struct rp_matmul_tile best = *tile;
    for (size_t i = 0; i < RP_ARRAY_COUNT(tiles); i++) {
        struct rp_matmul_tile small = small_tile(&s, tiles[i].tokens, tiles[i].rows);
        uint64_t time = once_ns(&s, &small);
        if (count_tiles(&s, &small) <= s.sms && time < least) {
            least = time;
            best = small;
        }
    }
    best.shared_bytes = tile->shared_bytes;
    *tile = best;
}
