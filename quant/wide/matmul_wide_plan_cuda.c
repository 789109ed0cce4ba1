#include "quant/matmul_internal_cuda.h"
#include "quant/wide/matmul_wide_cuda.h"

#include <string.h>

bool rp_matmul_wide_cuda_fits(const struct rp_matmul_cuda *op) {
    return rp_matmul_cuda_fits(op) && op->rows.max_rows > 256 &&
           op->limits.shared_bytes_block >= 227 * 1024 &&
           (!op->gated || op->weight->rows % 16 == 0);
}

/* Kernels whose sums and totals fit into the registers. A gated matrix is one segment. */
static bool has_kernel(const struct rp_matmul_cuda *op, uint32_t cols) {
    return !op->gated || cols != 192;
}

/* Tiles of so many outputs; a cluster has as many of them as blocks, with the same weights. */
static uint32_t tiles_of(const struct rp_matmul_cuda *op, uint32_t cols) {
    uint32_t token_tiles = RP_CEIL_DIV(op->rows.max_rows, RP_WIDE_TOKENS);
    return (uint32_t)RP_ALIGN_UP(token_tiles, RP_WIDE_CLUSTER(cols)) *
           RP_CEIL_DIV(op->weight->rows, cols);
}

/* Blocks that the GPU holds at once. */
static uint32_t blocks_of(const struct rp_matmul_cuda *op, uint32_t cols) {
    return RP_MAX(op->limits.sm_count / RP_WIDE_CLUSTER(cols), 1u) * RP_WIDE_CLUSTER(cols);
}

/* The tiles that minimize the time of all waves over the SMs. */
static uint32_t choose(const struct rp_matmul_cuda *op) {
    /* cost: of a tile in bf16, measured, bench/results/cuda_gemm_wide.md. One of 8 bits takes about
     * half of it. */
    static const struct { uint32_t cols, cost; } widths[] = {{128, 130}, {192, 180}, {256, 245}};
    uint32_t least = UINT32_MAX, best = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(widths); i++) {
        uint32_t cols = widths[i].cols;
        uint32_t cost = RP_CEIL_DIV(tiles_of(op, cols), blocks_of(op, cols)) * widths[i].cost;
        if (cost < least && has_kernel(op, cols)) {
            least = cost;
            best = cols;
        }
    }
    return best;
}

static int encode_maps(struct rp_matmul_wide_args *args, const struct rp_matmul_cuda *op,
                       struct rp_error *err) {
    int status = rp_matmul_cuda_encode_weights(&args->weight_map, op->weight, op->gated,
                                               args->cols / RP_WIDE_CLUSTER(args->cols), err);
    if (status == RP_OK)
        status = rp_matmul_cuda_encode_tokens(&args->in_map, op, RP_WIDE_TOKENS, err);
    if (status != RP_OK)
        return status;
    args->bulk_stores = (uintptr_t)op->out.data % 16 == 0 &&
                        op->out.stride * rp_dtype_bytes(op->out.dtype) % 16 == 0;
    if (!args->bulk_stores)
        return RP_OK;
    /* Boxes of 64 rows that tile the outputs, as wide as the swizzle has it (store_slice). */
    uint32_t element = (uint32_t)rp_dtype_bytes(op->out.dtype);
    uint32_t bytes = args->cols / (op->gated ? 2 : 1) * element;
    uint32_t box = bytes % 128 == 0 && !op->gated ? 128 : bytes % 64 == 0 ? 64 : 32;
    struct rp_matmul_map out = {.dtype = op->out.dtype,
                                .rank = 2,
                                .sizes = {args->out_cols, op->rows.max_rows},
                                .strides = {op->out.stride * element},
                                .box = {box / element, 64},
                                .swizzle = box};
    status = rp_matmul_cuda_encode_map(&args->out_map, op->out.data, &out, err);
    out.strides[0] = (size_t)args->out_cols * element;
    for (uint32_t i = 0; i < 2 && op->copy.to && status == RP_OK; i++)
        status = rp_matmul_cuda_encode_map(&args->copy_maps[i], args->copies[i], &out, err);
    return status;
}

static int fill_args(struct rp_matmul_wide_args *args, const struct rp_matmul_cuda *op,
                     uint32_t cols, uint32_t segment, struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    const struct rp_live_counts *counts = op->rows.step.counts;
    args->live = op->rows.rows == RP_ROWS_TOKEN ? &counts->token_count : &counts->logit_row_count;
    args->stamp = op->rows.stamp;
    args->bias = op->bias;
    args->dtype = w->dtype;
    args->weight_scales = w->scales;
    args->in_scales = op->in_scales;
    args->out = op->out.data;
    args->out_stride = op->out.stride;
    if (op->copy.to) {
        args->copy_number = op->copy.number;
        for (uint32_t i = 0; i < 2; i++)
            args->copies[i] = (uint16_t *)(void *)(op->copy.to + i * op->copy.bytes);
    }
    args->out_bf16 = op->out.dtype == RP_DTYPE_BF16;
    args->accumulate = op->accumulate;
    args->gated = op->gated;
    args->fn = op->fn;
    args->dependent = op->limits.dependent_launch;
    args->out_cols = op->gated ? w->rows / 2 : w->rows;
    args->blocks = RP_CEIL_DIV(rp_matmul_cuda_units(w), RP_MATMUL_BLOCK);
    args->segment_blocks = segment / RP_MATMUL_BLOCK;
    args->cols = cols;
    args->token_tiles = RP_CEIL_DIV(op->rows.max_rows, RP_WIDE_TOKENS);
    args->col_tiles = RP_CEIL_DIV(w->rows, cols);
    args->grid = RP_MIN(tiles_of(op, cols), blocks_of(op, cols));
    int status = encode_maps(args, op, err);
    if (status == RP_OK && rp_matmul_wide_cuda_prepare(args) != RP_OK)
        status = rp_error_set(err, RP_STATUS_DEVICE, "no kernel for tiles of %u outputs", cols);
    return status;
}

int rp_matmul_wide_cuda_plan(const struct rp_matmul_cuda *op, uint32_t cols, uint32_t segment,
                             struct rp_arena *memory, struct rp_cuda_launch *out_launch,
                             struct rp_error *err) {
    RP_ASSERT(segment > 0 && segment % RP_MATMUL_BLOCK == 0);
    RP_ASSERT(op->out.dtype == RP_DTYPE_F32 || !op->accumulate);
    RP_ASSERT(!op->gated || segment >= rp_matmul_cuda_units(op->weight));
    /* The arena aligns to 16 bytes, tensor maps want 64. */
    unsigned char *bytes = rp_arena_alloc(memory, sizeof(struct rp_matmul_wide_args) + 64);
    if (!bytes)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a GEMM");
    struct rp_matmul_wide_args *args = (void *)RP_ALIGN_UP((uintptr_t)bytes, 64);
    memset(args, 0, sizeof *args);
    int status = fill_args(args, op, cols ? cols : choose(op), segment, err);
    if (status == RP_OK)
        *out_launch = (struct rp_cuda_launch){"matmul_wide", rp_matmul_wide_cuda_run, args};
    return status;
}
