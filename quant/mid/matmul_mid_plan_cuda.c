/* matmul_mid_plan_cuda.c - tiling of GEMMs of 65 to 256 rows. */
#include "quant/matmul_internal_cuda.h"
#include "quant/mid/matmul_mid_internal_cuda.h"

#include <string.h>

#define FLAG_BYTES 16384u /* of the workspace: other kernels' */

/* Tensor map of the output. A bulk store covers 32 columns of sums, or all of a gated tile. */
static int encode_out(struct rp_matmul_mid_args *args, struct rp_error *err) {
    uint32_t element = args->gated ? 2 : 4;
    args->boxes = (args->out_stride * element) % 16 == 0 && (uintptr_t)args->out % 16 == 0 &&
                  (args->split_stride * element) % 16 == 0;
    if (!args->boxes)
        return RP_OK;
    struct rp_matmul_map out = {
        .dtype = args->gated ? RP_DTYPE_BF16 : RP_DTYPE_F32,
        .rank = 3,
        .sizes = {args->columns, args->max_rows, args->segments},
        .strides = {args->out_stride * element, args->split_stride * element},
        .box = {args->gated ? args->tile.rows / 2 : 32, args->tile.tokens / 2, 1},
        .swizzle = args->gated ? 0 : 128};
    return rp_matmul_cuda_encode_map(&args->out_map, args->out, &out, err);
}

/* Units of work and stages. */
static int lay_out(struct rp_matmul_mid_args *args, const struct rp_matmul_cuda *op,
                   uint32_t segment) {
    const struct rp_matmul_mid_tile *tile = &args->tile;
    args->gated = op->gated;
    args->blocks = RP_CEIL_DIV(rp_matmul_cuda_units(op->weight), RP_MATMUL_BLOCK);
    args->segment_blocks = RP_MIN(segment / RP_MATMUL_BLOCK, args->blocks);
    args->segments = RP_CEIL_DIV(args->blocks, args->segment_blocks);
    args->units = RP_CEIL_DIV(op->weight->rows, tile->rows) * args->segments;
    args->grid = RP_MIN(args->units, op->limits.sm_count);
    uint32_t stage = (tile->width + tile->tokens) * RP_MATMUL_BLOCK * 2;
    uint32_t shared = RP_MIN(tile->shared_bytes, op->limits.shared_bytes_block);
    /* Beside the stages: room to align them, and scales of two tiles' weight rows after their
     * barrier. */
    bool scaled = op->weight->dtype != RP_DTYPE_BF16;
    uint32_t beside = 1024 + (scaled ? 16 + 2 * tile->width * (uint32_t)sizeof(float) : 0);
    args->stages = tile->stages ? tile->stages : (shared - beside) / (stage + 16);
    args->shared_bytes = args->stages * (stage + 16) + beside;
    args->shared_most = op->limits.shared_bytes_block;
    return args->stages >= 2 && args->shared_bytes <= args->shared_most ? RP_OK
                                                                        : RP_STATUS_UNSUPPORTED;
}

/* Where the sums go. */
static int lay_out_sums(struct rp_matmul_mid_args *args, const struct rp_matmul_cuda *op,
                        struct rp_cuda_partials *out_partials) {
    uint32_t n = op->weight->rows, segments = args->segments;
    args->columns = op->gated ? n / 2 : n;
    args->out = op->out.data;
    args->out_stride = op->out.stride;
    args->split_stride = (size_t)op->rows.max_rows * args->out_stride;
    args->max_rows = op->rows.max_rows;
    if (segments > 1) {
        size_t room = op->workspace_bytes > FLAG_BYTES ? op->workspace_bytes - FLAG_BYTES : 0;
        args->split_stride = (size_t)op->rows.max_rows * n;
        args->out_stride = n;
        args->out = op->workspace + FLAG_BYTES;
        if (!args->tile.partials || args->split_stride * segments * sizeof(float) > room)
            return RP_STATUS_UNSUPPORTED;
        *out_partials = (struct rp_cuda_partials){.data = args->out,
                                                  .bias = op->bias,
                                                  .count = segments,
                                                  .split_stride = args->split_stride,
                                                  .row_stride = n};
    }
    return args->out_stride % 2 == 0 && n % (op->gated ? 16 : 8) == 0 && (!op->bias || segments > 1)
               ? RP_OK
               : RP_STATUS_UNSUPPORTED;
}

/* Compiled kernels, by the weight rows of their instruction. */
static const struct width {
    uint32_t tokens, width;
    bool gated;
} widths[] = {{128, 128, false}, {128, 192, false}, {128, 256, false}, {128, 128, true},
              {128, 224, true},  {256, 128, false}, {256, 112, true}};

/* Weight rows of a block's tiles, and the kernel for them, so that the busiest block has as few
 * rows as possible; among equals the tallest tile, which reads the tokens least often. False when
 * no kernel fits. */
static bool choose_rows(const struct rp_matmul_cuda *op, uint32_t segments,
                        struct rp_matmul_mid_tile *tile) {
    uint32_t step = op->gated ? 16 : 8, n = op->weight->rows, best = UINT32_MAX;
    for (size_t i = 0; i < RP_ARRAY_COUNT(widths); i++) {
        const struct width *w = &widths[i];
        if (w->tokens != tile->tokens || w->gated != op->gated)
            continue;
        for (uint32_t rows = w->width; rows >= 64; rows -= step) {
            uint32_t rounds = RP_CEIL_DIV(RP_CEIL_DIV(n, rows) * segments, op->limits.sm_count);
            if (rounds * rows < best || (rounds * rows == best && rows > tile->rows)) {
                best = rounds * rows;
                tile->rows = rows;
                tile->width = w->width;
            }
        }
    }
    return best != UINT32_MAX;
}

bool rp_matmul_mid_takes(const struct rp_matmul_cuda *op) {
    const struct rp_matrix *w = op->weight;
    bool one = rp_matmul_cuda_segment_of(op) >= rp_matmul_cuda_units(w);
    bool stores = op->gated ? one && op->out.dtype == RP_DTYPE_BF16 && w->rows % 16 == 0
                            : op->out.dtype == RP_DTYPE_F32 && w->rows % 8 == 0 &&
                                  (one ? !op->bias : op->partials_wanted);
    return rp_matmul_cuda_fits(op) && op->rows.max_rows > 64 && op->rows.max_rows <= 256 &&
           stores && !op->accumulate && op->out.stride % 2 == 0;
}

int rp_matmul_mid_plan(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                       struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                       struct rp_error *err) {
    uint32_t segment = rp_matmul_cuda_segment_of(op);
    uint32_t segments = RP_CEIL_DIV(rp_matmul_cuda_units(op->weight), segment);
    struct rp_matmul_mid_tile tile = {
        .tokens = op->rows.max_rows <= 128 ? 128 : 256,
        .partials = !op->gated && segments > 1,
        .shared_bytes = op->limits.shared_bytes_block,
    };
    if (!choose_rows(op, tile.partials ? segments : 1, &tile))
        return RP_STATUS_UNSUPPORTED;
    return rp_matmul_mid_plan_tile(op, &tile, segment, memory, out_launch, out_partials, err);
}

int rp_matmul_mid_plan_tile(const struct rp_matmul_cuda *op, const struct rp_matmul_mid_tile *tile,
                            uint32_t segment, struct rp_arena *memory,
                            struct rp_cuda_launch *out_launch,
                            struct rp_cuda_partials *out_partials, struct rp_error *err) {
    memset(out_partials, 0, sizeof *out_partials);
    const struct rp_matrix *w = op->weight;
    const struct rp_live_counts *counts = op->rows.step.counts;
    /* The arena aligns to 16 bytes, tensor maps want 64. */
    unsigned char *bytes = rp_arena_alloc(memory, sizeof(struct rp_matmul_mid_args) + 64);
    if (!bytes)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a GEMM");
    struct rp_matmul_mid_args *args = (void *)RP_ALIGN_UP((uintptr_t)bytes, 64);
    memset(args, 0, sizeof *args);
    args->live = op->rows.rows == RP_ROWS_TOKEN ? &counts->token_count : &counts->logit_row_count;
    args->stamp = op->rows.stamp;
    args->fn = op->fn;
    args->dtype = w->dtype;
    args->weight_scales = w->scales;
    args->in_scales = op->in_scales;
    args->dependent = op->limits.dependent_launch;
    args->tile = *tile;
    args->tile.early = tile->early ? tile->early : UINT32_MAX;
    if (op->rows.max_rows > tile->tokens || lay_out(args, op, segment) != RP_OK ||
        lay_out_sums(args, op, out_partials) != RP_OK || rp_matmul_mid_cuda_prepare(args) != RP_OK)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "GEMM (%u, %u): not in tiles of %u x %u",
                            w->rows, w->cols, tile->rows, tile->tokens);
    int status = rp_matmul_cuda_encode_weights(&args->weight_map, w, op->gated, tile->rows, err);
    if (status == RP_OK)
        status = rp_matmul_cuda_encode_tokens(&args->in_map, op, tile->tokens, err);
    if (status == RP_OK)
        status = encode_out(args, err);
    if (status == RP_OK)
        *out_launch = (struct rp_cuda_launch){"matmul_mid", rp_matmul_mid_cuda_run, args};
    return status;
}
