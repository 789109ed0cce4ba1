#include "quant/matmul_internal_cuda.h"

#include <string.h>

#define GATED_ROWS_MAX 64u
#define ROWS_MAX       16u /* with more rows, tokens fill too much of a stage */
#define ROWS_UNIT      8u  /* rows of a swizzled operand repeat so */
#define BOXES_MOST     4u
/* Bytes of a stage; and of weights in flight, until the ring was full once and afterwards.
 * Measured: bench/results/cuda_gemm.md. */
#define STAGE_MOST   (28u * 1024)
#define FLIGHT_EARLY (64u * 1024)
#define FLIGHT       (112u * 1024)
/* Where a block makes quantized values of its rows itself, which is no work of a warp's for each
 * stage: those of all parts may have BOXES_MOST. Gated GEMMs have three stages of 112 rows in
 * flight early; those whose ring holds all their weights, of rows that no norm is needed for, have
 * time until attention ends, which more would hold up. */
#define STAGE_OF_MADE      (36u * 1024)
#define FLIGHT_EARLY_GATED (90u * 1024)
#define FLIGHT_EARLY_WHOLE (32u * 1024)

/* Rows that each block quantizes itself. */
static bool fits_bf16_rows(const struct rp_matmul_cuda *op) {
    size_t bytes = (size_t)op->rows.max_rows * op->weight->cols;
    return op->rows.max_rows <= RP_MATMUL_NORM_ROWS &&
           op->weight->cols <= RP_MATMUL_QUANTIZE_COLS && bytes <= RP_MATMUL_QUANTIZE_BYTES &&
           op->in_stride % 8 == 0 && (uintptr_t)op->in % 16 == 0;
}

/* Made by this kernel: quantized values, of what a norm gives or of `in` in bf16. */
static bool quantizes_output(const struct rp_matmul_cuda *op) {
    return op->weight->dtype != RP_DTYPE_BF16 && (op->norm.cols || !op->in_scales);
}

static bool fits_rows(const struct rp_matmul_cuda *op) {
    if (op->rows.max_rows > GATED_ROWS_MAX || !rp_matmul_cuda_fits_weight(op) ||
        rp_matmul_cuda_units(op->weight) % RP_MATMUL_BLOCK != 0)
        return false;
    if (quantizes_output(op)) /* rp_matmul_rows_norms looks at the norm */
        return op->norm.cols ? op->rows.max_rows <= RP_MATMUL_NORM_ROWS : fits_bf16_rows(op);
    return rp_matmul_cuda_fits(op);
}

/* Equal shares of the outputs, each in as few tiles as can be. */
static void share_rows(struct rp_matmul_rows_args *args, uint32_t sm_count) {
    uint32_t units = RP_CEIL_DIV(args->rows, ROWS_UNIT), share = RP_CEIL_DIV(units, sm_count);
    args->tiles = RP_CEIL_DIV(share, 128 / ROWS_UNIT);
    args->tile_rows = RP_CEIL_DIV(share, args->tiles) * ROWS_UNIT;
    args->tiles = RP_CEIL_DIV(share * ROWS_UNIT, args->tile_rows);
    args->share = share * ROWS_UNIT;
    args->last_rows = args->share - (args->tiles - 1) * args->tile_rows;
    args->grid = RP_CEIL_DIV(units, share);
}

/* Each segment gets a warpgroup of its own where there are 2 or 4 of the same length and the rows
 * of a tile need but one; gated ones have two chains already. */
static void split_segments(struct rp_matmul_rows_args *args) {
    uint32_t segments = RP_CEIL_DIV(args->blocks, args->segment_blocks);
    bool split = (segments == 2 || segments == 4) && args->blocks % segments == 0 &&
                 args->segment_blocks == args->blocks / segments && args->tile_rows <= 64 &&
                 args->tokens <= 16 && !args->gated;
    args->parts = split ? segments : 1;
    args->part_blocks = split ? args->segment_blocks : args->blocks;
}

/* Assignment of work; segment: units of K. */
static void cut(struct rp_matmul_rows_args *args, const struct rp_matmul_cuda *op,
                uint32_t segment) {
    args->gated = op->gated;
    args->max_rows = op->rows.max_rows;
    args->rows = op->gated ? op->weight->rows / 2 : op->weight->rows;
    args->blocks = RP_CEIL_DIV(rp_matmul_cuda_units(op->weight), RP_MATMUL_BLOCK);
    args->segment_blocks = RP_MIN(segment / RP_MATMUL_BLOCK, args->blocks);
    args->tokens = 8;
    while (args->tokens < op->rows.max_rows)
        args->tokens *= 2;
    share_rows(args, op->limits.sm_count);
    split_segments(args);
}

bool rp_matmul_rows_gates(const struct rp_matmul_cuda *op) {
    return op->weight->rows % 2 == 0 && !op->accumulate && op->out.dtype == RP_DTYPE_BF16 &&
           fits_rows(op);
}

bool rp_matmul_rows_quantizes(const struct rp_matmul_cuda *op) {
    return !op->norm.cols && quantizes_output(op) && rp_matmul_rows_pays(op);
}

bool rp_matmul_rows_pays(const struct rp_matmul_cuda *op) {
    if (!fits_rows(op) || (!op->gated && op->rows.max_rows > ROWS_MAX))
        return false;
    struct rp_matmul_rows_args args;
    cut(&args, op, rp_matmul_cuda_segment_of(op));
    /* One chain over many segments is slower than the other kernel, which shares them out. */
    return args.gated || args.parts > 1 || args.segment_blocks == args.blocks;
}

bool rp_matmul_rows_norms(const struct rp_matmul_cuda *op) {
    const struct rp_matmul_norm *norm = &op->norm;
    return op->rows.max_rows <= RP_MATMUL_NORM_ROWS && norm->cols == op->weight->cols &&
           norm->cols > 256 && norm->cols <= RP_MATMUL_NORM_COLS && norm->in_stride % 4 == 0 &&
           (uintptr_t)norm->in % 16 == 0 && rp_matmul_rows_pays(op);
}

/* Shared memory for tokens that each block computes itself. */
static uint32_t made_bytes(const struct rp_matmul_rows_args *args, uint32_t cols) {
    if (args->norm.weight && args->dtype == RP_DTYPE_BF16)
        return (uint32_t)RP_MATMUL_NORM_BYTES(args->max_rows, cols);
    return args->norm.weight || args->quantizes
               ? (uint32_t)RP_MATMUL_CODE_BYTES(args->max_rows, cols)
               : 0;
}

static int lay_out(struct rp_matmul_rows_args *args, const struct rp_matmul_cuda *op) {
    uint32_t row = RP_MATMUL_BLOCK * 2, halves = args->gated ? 2 : 1;
    uint32_t box = args->parts * halves * args->tile_rows * row;
    bool makes = quantizes_output(op);
    uint32_t most = makes ? BOXES_MOST : BOXES_MOST / args->parts;
    args->boxes = RP_MIN(RP_MAX((makes ? STAGE_OF_MADE : STAGE_MOST) / box, 1u), most);
    /* A stage belongs to one segment. */
    while (args->segment_blocks % args->boxes)
        args->boxes--;
    args->tile_bytes = args->boxes * box;
    args->last_bytes = args->tile_bytes / args->tile_rows * args->last_rows;
    /* Quantized values that are made here are no part of a stage. */
    args->stage_bytes =
        args->tile_bytes + (makes ? 0 : args->boxes * args->parts * args->tokens * row);
    /* The last instruction reads 64 rows wherever its own begin: of whatever lies after the
     * stages. */
    uint32_t beyond = (RP_ALIGN_UP(args->tile_rows, 64) - args->tile_rows) * row;
    uint32_t more = made_bytes(args, op->weight->cols);
    args->others_offset = more;
    more += (args->parts - 1) * args->tokens / 2 * 128 * (uint32_t)sizeof(float);
    more = RP_MAX(more, beyond);
    uint32_t room = rp_matmul_cuda_shared_room(op);
    if (room < 1032 + more)
        return RP_STATUS_RANGE;
    /* 24 bytes of barriers a stage and 8 more */
    args->stages = RP_MIN((room - 1032 - more) / (args->stage_bytes + 24), 32u);
    args->norm_offset = args->stages * args->stage_bytes;
    args->data_bytes = args->norm_offset + more;
    args->shared_bytes = args->data_bytes + args->stages * 24 + 1032;
    args->shared_most = op->limits.shared_bytes_block;
    args->flight = rp_matmul_cuda_flight(RP_MAX(FLIGHT / args->tile_bytes, 1u), args->stages);
    bool whole = args->tiles * (args->part_blocks / args->boxes) <= args->stages;
    uint32_t early = makes && args->gated       ? FLIGHT_EARLY_GATED
                     : args->quantizes && whole ? FLIGHT_EARLY_WHOLE
                                                : FLIGHT_EARLY;
    args->flight_early = rp_matmul_cuda_flight(RP_MAX(early / args->tile_bytes, 1u), args->stages);
    return args->stages >= 2 ? RP_OK : RP_STATUS_RANGE;
}

static int encode_maps(struct rp_matmul_rows_args *args, const struct rp_matmul_cuda *op,
                       struct rp_error *err) {
    uint64_t units = rp_matmul_cuda_units(op->weight);
    uint64_t part = (uint64_t)args->part_blocks * RP_MATMUL_BLOCK;
    uint64_t in_stride = op->in_stride * rp_dtype_bytes(op->weight->dtype) / 2;
    uint32_t halves = args->gated ? 2 : 1;
    uint64_t sizes[5] = {RP_MATMUL_BLOCK, args->rows, halves, args->part_blocks, args->parts};
    uint64_t strides[4] = {units, args->rows * units, RP_MATMUL_BLOCK, part};
    uint32_t box[5] = {RP_MATMUL_BLOCK, args->tile_rows, halves, args->boxes, args->parts};
    int status =
        rp_matmul_cuda_encode(&args->weight_map, op->weight->data, 5, sizes, strides, box, err);
    box[1] = args->last_rows;
    if (status == RP_OK)
        status =
            rp_matmul_cuda_encode(&args->last_map, op->weight->data, 5, sizes, strides, box, err);
    if (status != RP_OK || args->norm.weight || args->quantizes)
        return status;
    uint64_t in_sizes[4] = {RP_MATMUL_BLOCK, args->max_rows, args->part_blocks, args->parts};
    uint64_t in_strides[3] = {in_stride, RP_MATMUL_BLOCK, part};
    uint32_t in_box[4] = {RP_MATMUL_BLOCK, args->tokens, args->boxes, args->parts};
    return rp_matmul_cuda_encode(&args->in_map, op->in, 4, in_sizes, in_strides, in_box, err);
}

int rp_matmul_cuda_plan_rows(const struct rp_matmul_cuda *op, uint32_t segment,
                             struct rp_arena *memory, struct rp_cuda_launch *out_launch,
                             struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    const struct rp_live_counts *counts = op->rows.step.counts;
    RP_ASSERT(fits_rows(op) && (op->norm.weight || op->in_stride >= w->cols));
    RP_ASSERT(!op->gated || (!op->bias && !op->accumulate && op->out.dtype == RP_DTYPE_BF16));
    unsigned char *bytes = rp_arena_alloc(memory, sizeof(struct rp_matmul_rows_args) + 64);
    if (!bytes)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a GEMM");
    struct rp_matmul_rows_args *args = (void *)RP_ALIGN_UP((uintptr_t)bytes, 64);
    memset(args, 0, sizeof *args);
    args->live = op->rows.rows == RP_ROWS_TOKEN ? &counts->token_count : &counts->logit_row_count;
    args->stamp = op->rows.stamp;
    args->bias = op->bias;
    args->out = op->out.data;
    args->out_stride = op->out.stride;
    args->out_bf16 = op->out.dtype == RP_DTYPE_BF16;
    args->accumulate = op->accumulate;
    args->fn = op->fn;
    args->norm = op->norm;
    args->dependent = op->limits.dependent_launch;
    args->dtype = w->dtype;
    args->in_scales = op->in_scales;
    args->weight_scales = w->scales;
    args->in = op->in;
    args->in_stride = op->in_stride;
    args->quantizes = quantizes_output(op) && !op->norm.weight;
    cut(args, op, segment);
    if (args->gated && args->dtype != RP_DTYPE_BF16 && args->segment_blocks < args->blocks)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "gated GEMMs of quantized values need a single segment");
    if (lay_out(args, op) != RP_OK)
        return rp_error_set(err, RP_STATUS_RANGE, "GEMM (%u, %u): no room for two stages", w->rows,
                            w->cols);
    int status = encode_maps(args, op, err);
    if (status == RP_OK && rp_matmul_rows_cuda_prepare(args) != RP_OK)
        status =
            rp_error_set(err, RP_STATUS_DEVICE, "no kernel for tiles of %u rows", args->tile_rows);
    *out_launch = (struct rp_cuda_launch){op->gated ? "matmul_gated" : "matmul_rows",
                                          rp_matmul_rows_cuda_run, args};
    return status;
}
