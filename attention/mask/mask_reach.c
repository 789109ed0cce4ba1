#include "attention/mask/mask_reach.h"

#define BLOCK     64u
#define RUN_MAX   (1u << 20)
#define TILE_ROWS 64u /* tokens per classified tile */

/* Keys of the blocks that tokens [begin, end) see fully, and partially. */
static void count_keys(const struct rp_mask_reach_args *args, uint32_t begin, uint32_t end,
                       uint64_t *out_full, uint64_t *out_partial) {
    struct rp_mask_tile tile = {.q_begin = (int32_t)begin,
                                .q_end = (int32_t)end,
                                .h_end = (int32_t)args->heads,
                                .layer = args->layer};
    uint32_t run = BLOCK;
    *out_full = *out_partial = 0;
    for (uint32_t at = 0; at < args->end;) {
        uint32_t stop = RP_MIN(args->end - at, run) + at;
        tile.kv_begin = (int32_t)at;
        tile.kv_end = (int32_t)stop;
        enum rp_mask_class class = rp_mask_classify(args->mask, &tile, args->params);
        if (class == RP_MASK_PARTIAL && stop - at > BLOCK) {
            run = RP_MAX(run / 4, BLOCK);
            continue;
        }
        if (class == RP_MASK_FULL)
            *out_full += stop - at;
        else if (class == RP_MASK_PARTIAL)
            *out_partial += stop - at;
        if (class != RP_MASK_PARTIAL)
            run = RP_MIN(run * 2, RUN_MAX);
        at = stop;
    }
}

void rp_mask_reach(const struct rp_mask_reach_args *args, struct rp_mask_reach *out) {
    uint32_t end = args->start + args->count;
    uint64_t full, partial;
    count_keys(args, args->start, end, &full, &partial);
    out->keys = full + partial;
    out->pairs = out->keys;
    if (args->count == 1)
        return;
    out->pairs = 0;
    for (uint32_t begin = args->start; begin < end; begin += TILE_ROWS) {
        uint32_t rows = RP_MIN(end - begin, TILE_ROWS);
        count_keys(args, begin, begin + rows, &full, &partial);
        out->pairs += rows * full + rows * partial / 2;
    }
}
