/* matmul_experts_plan_cuda.c - tiling of the GEMMs of experts. None of it changes a bit. */
#include "quant/experts/matmul_experts_internal_cuda.h"
#include "quant/matmul_internal_cuda.h"

#include <math.h>
#include <string.h>

#define COLS_MOST 128u /* weight rows of a tile */
/* Rows of a tile at most: five stages fit, and 512 rows are three tiles. Where weights are in
 * tiles, registers hold decoded ones, too. */
#define MANY_ROWS 192u
#define FEW_ROWS  24u /* of an expert on average: up to this many, tiles are those of few rows */
/* Shared memory of a block of which two fit into an SM, one KiB reserved for each. */
#define HALF_SHARED (112u * 1024)
/* Where experts have many rows: stages that the second warpgroup is behind the first. */
#define STAGES_AHEAD 2u
/* What a tile costs besides its weights, in rows of weights: estimated. */
#define TILE_COST 6u

static bool is_few(struct rp_experts experts, uint32_t tokens) {
    return (uint64_t)tokens * experts.used <= (uint64_t)FEW_ROWS * experts.count;
}

uint32_t rp_matmul_experts_tile_rows(struct rp_experts experts, uint32_t tokens, bool in_tiles) {
    static const uint32_t few[] = {8, 16, 32, RP_EXPERTS_FEW};
    static const uint32_t many[] = {64, 128, 192, RP_EXPERTS_MANY};
    const uint32_t *widths = is_few(experts, tokens) ? few : many;
    /* In tiles: 32 where experts have up to 16 rows on average. Room for rows that are not there is
     * missing for weights under way; those of an expert with more rows are read again, from L2. */
    bool spread = in_tiles && (uint64_t)tokens * experts.used <= 16ull * experts.count;
    uint32_t i = 0;
    while (i < 3 && tokens > widths[i] && !(spread && widths[i] == 32))
        i++;
    return RP_MIN(widths[i], MANY_ROWS);
}

static bool is_tiles(const struct rp_matrix *w) {
    return w->dtype == RP_DTYPE_BLOCKS && w->layout == RP_LAYOUT_TILES;
}

/* Gates and ups begin panels of their own. */
static bool fits_tiles(const struct rp_matmul_experts_cuda *op) {
    const struct rp_matrix *w = op->weight;
    uint32_t each = w->rows / op->experts.count;
    return rp_cuda_has_hopper(&op->limits) && op->out.dtype == RP_DTYPE_BF16 &&
           each % (op->gated ? 2 * RP_TILE_ROWS : RP_TILE_ROWS) == 0 && w->cols % 8 == 0 &&
           op->in_stride % 8 == 0 && (uintptr_t)op->in % 16 == 0;
}

/* Whether the tensor-core kernel takes it. */
static bool fits(const struct rp_matmul_experts_cuda *op) {
    const struct rp_matrix *w = op->weight;
    if (is_tiles(w))
        return fits_tiles(op);
    uint32_t bytes = rp_dtype_bytes(w->dtype), each = w->rows / op->experts.count;
    bool w8a8 = bytes == 1 && w->input == RP_INPUT_QUANTIZED && w->scale_kind == RP_SCALE_CHANNEL &&
                op->in_scales;
    return rp_cuda_has_hopper(&op->limits) && (w->dtype == RP_DTYPE_BF16 || w8a8) &&
           op->out.dtype == RP_DTYPE_BF16 && each % 16 == 0 && w->cols * bytes % 16 == 0 &&
           (uintptr_t)w->data % 16 == 0 && (uintptr_t)op->in % 16 == 0 &&
           op->in_stride * bytes % 16 == 0;
}

static int encode_maps(struct rp_matmul_experts_args *args, const struct rp_matmul_experts_cuda *op,
                       struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    cuuint64_t units = rp_matmul_cuda_units(w), row = units * 2, half = args->each / 2;
    struct rp_matmul_map map = {.dtype = RP_DTYPE_BF16,
                                .rank = 2,
                                .sizes = {units, w->rows},
                                .strides = {row},
                                .box = {RP_MATMUL_BLOCK, args->cols},
                                .swizzle = 128};
    if (op->gated)
        map = (struct rp_matmul_map){.dtype = RP_DTYPE_BF16,
                                     .rank = 4,
                                     .sizes = {units, 8, 2, (w->rows - half) / 8},
                                     .strides = {row, row * half, row * 8},
                                     .box = {RP_MATMUL_BLOCK, 8, 2, args->cols / 16},
                                     .swizzle = 128};
    int status = rp_matmul_cuda_encode_map(&args->weight_map, w->data, &map, err);
    if (status != RP_OK || !args->in_order)
        return status;
    map = (struct rp_matmul_map){.dtype = RP_DTYPE_BF16,
                                 .rank = 2,
                                 .sizes = {units, op->rows.max_rows},
                                 .strides = {args->in_stride},
                                 .box = {RP_MATMUL_BLOCK, RP_EXPERTS_BOX},
                                 .swizzle = 128};
    return rp_matmul_cuda_encode_map(&args->in_map, op->in, &map, err);
}

/* Experts that the bucket's tokens touch, if they choose at random. */
static double touched(const struct rp_matmul_experts_cuda *op) {
    double count = op->experts.count, tokens = (double)op->rows.max_rows / op->experts.used;
    return count * (1.0 - pow(1.0 - op->experts.used / count, tokens));
}

/* The weight rows of a tile with which the last wave of blocks wastes the least time. Of weights in
 * tiles, more than eight rows are multiplied by four warps together, which have 64 weight rows: 96
 * are for one wave, where the experts have a row or two. */
static uint32_t choose_cols(const struct rp_matmul_experts_cuda *op, uint32_t each) {
    static const uint32_t choices[] = {128, 96, 64};
    bool pairs = is_tiles(op->weight) && is_few(op->experts, op->rows.max_rows / op->experts.used);
    uint32_t blocks = op->limits.sm_count * (pairs ? 2 : 1); /* at a time */
    uint32_t unit = is_tiles(op->weight) && op->gated ? 32 : 16;
    uint32_t most = (uint32_t)RP_ALIGN_UP(RP_MIN(each, COLS_MOST), unit), best = most;
    double least = INFINITY;
    for (size_t i = 0; i < RP_ARRAY_COUNT(choices); i++) {
        uint32_t cols = RP_MIN(choices[i], most);
        double waves = touched(op) * RP_CEIL_DIV(each, cols) / blocks;
        if (is_tiles(op->weight) && choices[i] % 64 != 0 && waves > 1)
            continue;
        double cost = (waves < 2 ? ceil(waves - 1e-6) : waves + 0.5) * (cols + TILE_COST);
        if (cost < least) {
            least = cost;
            best = cols;
        }
    }
    return best;
}

/* Whether the kernel is that of matmul_experts_many_kernel.cuh. */
static bool is_many(const struct rp_matmul_experts_args *args) {
    return args->many && !args->weights;
}

/* Shared memory that comes on top of what a launch asks for, at most. */
static uint32_t static_bytes(const struct rp_matmul_experts_args *args) {
    return is_many(args) ? RP_EXPERTS_STATIC_BYTES : 1024;
}

/* Stages: as many as fit. */
static int lay_out(struct rp_matmul_experts_args *args, const struct rp_matmul_experts_cuda *op) {
    uint32_t room = op->limits.shared_bytes_block - (args->many ? static_bytes(args) : 256);
    uint32_t beside = 1024 + (is_many(args) ? RP_EXPERTS_STORE_BYTES : 0);
    if (!args->many)
        room = RP_MIN(room, HALF_SHARED - 256);
    args->stage_bytes = args->weight_bytes + args->token_bytes;
    /* An instruction reads 64 weight rows, past the last stage too. */
    uint32_t reach = args->weights ? 0 : (uint32_t)RP_ALIGN_UP(args->cols, 64) * 128;
    uint32_t least = args->weights ? RP_EXPERTS_STAGES_LEAST_TILES : RP_EXPERTS_STAGES_LEAST;
    beside += reach > args->stage_bytes ? reach - args->stage_bytes : 0;
    args->stages = (room - beside) / (args->stage_bytes + 16);
    args->shared_bytes = beside + args->stages * (args->stage_bytes + 16);
    return args->stages >= least ? RP_OK : RP_STATUS_UNSUPPORTED;
}

/* What a stage of K is: 128 bytes of both operands; of weights in tiles 128 columns. */
static void lay_out_stage(struct rp_matmul_experts_args *args,
                          const struct rp_matmul_experts_cuda *op, uint32_t tile_rows) {
    const struct rp_matrix *w = op->weight;
    if (!is_tiles(w)) {
        args->blocks = RP_CEIL_DIV(rp_matmul_cuda_units(w), RP_MATMUL_BLOCK);
        args->row_bytes = w->cols * rp_dtype_bytes(w->dtype);
        args->weight_bytes = args->cols * 128;
        args->token_bytes = tile_rows * 128;
        return;
    }
    args->weights = w->data;
    args->format = rp_tile_format_of(w->parts[0].type);
    if (op->gated)
        args->cols = (uint32_t)RP_ALIGN_UP(args->cols, 32);
    args->blocks = RP_CEIL_DIV(w->cols, RP_TILE_COLS);
    args->row_bytes = w->cols * 2;
    /* The swizzle of rows wants multiples of 1 KiB. */
    args->weight_bytes = (uint32_t)RP_ALIGN_UP(
        args->cols / RP_TILE_ROWS * rp_tile_bytes(args->format), (uint32_t)1024);
    args->token_bytes = tile_rows * 256;
}

static int fill_args(struct rp_matmul_experts_args *args, const struct rp_matmul_experts_cuda *op,
                     uint32_t tile_cols, struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    uint32_t tokens = op->rows.max_rows / op->experts.used;
    uint32_t tile_rows = rp_matmul_experts_tile_rows(op->experts, tokens, is_tiles(w));
    args->stamp = op->rows.stamp;
    args->tiles = op->tiles;
    args->choices = op->order + op->experts.count + 1;
    args->in = op->in;
    args->in_stride = op->in_stride * (is_tiles(w) ? 2 : rp_dtype_bytes(w->dtype));
    args->bias = op->bias;
    args->out = op->out.data;
    args->out_stride = op->out.stride;
    args->paired = (uintptr_t)op->out.data % 4 == 0 && op->out.stride % 2 == 0;
    args->aligned = (uintptr_t)op->out.data % 16 == 0 && op->out.stride % 8 == 0;
    args->weight_scales = w->scales;
    args->in_scales = op->in_scales;
    args->in_divisor = op->in_divisor;
    args->each = w->rows / op->experts.count;
    args->many = !is_few(op->experts, tokens);
    args->in_order = args->many && !is_tiles(w) && op->in_divisor == 0;
    args->ahead = STAGES_AHEAD;
    args->cols = tile_cols ? tile_cols : choose_cols(op, args->each);
    lay_out_stage(args, op, tile_rows);
    args->col_tiles = RP_CEIL_DIV(args->each, args->cols);
    args->fn = op->fn;
    args->dtype = w->dtype;
    args->gated = op->gated;
    args->by_choice = op->by_choice;
    args->dependent = op->limits.dependent_launch;
    args->shared_most = op->limits.shared_bytes_block - static_bytes(args);
    /* createpolicy's results (matmul_pipeline.cuh): weights of few rows are read once. */
    args->weight_policy = args->many ? 0x1000000000000000ull : 0x12F0000000000000ull;
    uint64_t units =
        (uint64_t)rp_expert_tiles_most(op->experts, tokens, tile_rows) * args->col_tiles;
    /* One block's warps alone cannot decode 4 bits as fast as memory brings them. */
    uint32_t blocks = op->limits.sm_count * (args->weights && !args->many ? 2 : 1);
    args->grid = (uint32_t)RP_MIN(units, (uint64_t)blocks);
    if (lay_out(args, op) != RP_OK)
        return rp_error_set(err, RP_STATUS_RANGE, "experts' GEMM (%u, %u): no room for its stages",
                            args->each, w->cols);
    int status = args->weights ? RP_OK : encode_maps(args, op, err);
    int found = status != RP_OK ? RP_OK
                : args->weights ? rp_matmul_experts_tiles_prepare(args)
                                : rp_matmul_experts_tc_prepare(args);
    if (status == RP_OK && found != RP_OK)
        status = rp_error_set(err, RP_STATUS_DEVICE, "no kernel for experts of (%u, %u)",
                              args->each, w->cols);
    return status;
}

int rp_matmul_experts_cuda_plan_tile(const struct rp_matmul_experts_cuda *op, uint32_t tile_cols,
                                     struct rp_arena *memory, struct rp_cuda_launch *out_launch,
                                     struct rp_error *err) {
    RP_ASSERT(op->weight->rows % op->experts.count == 0 && tile_cols % 16 == 0);
    RP_ASSERT(op->rows.max_rows % op->experts.used == 0 && tile_cols <= COLS_MOST);
    if (op->weight->dtype == RP_DTYPE_BLOCKS &&
        (!is_tiles(op->weight) || op->weight->part_count != 1 ||
         op->weight->parts[0].type != RP_BLOCK_MXFP4))
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "experts' GEMMs on CUDA have no kernel for these blocks");
    if (fits(op)) {
        /* The arena aligns to 16 bytes, tensor maps want 64. */
        unsigned char *bytes = rp_arena_alloc(memory, sizeof(struct rp_matmul_experts_args) + 64);
        if (!bytes)
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a GEMM");
        struct rp_matmul_experts_args *args = (void *)RP_ALIGN_UP((uintptr_t)bytes, 64);
        memset(args, 0, sizeof *args);
        *out_launch =
            is_tiles(op->weight)
                ? (struct rp_cuda_launch){"matmul_experts_tiles", rp_matmul_experts_tiles_run, args}
                : (struct rp_cuda_launch){"matmul_experts", rp_matmul_experts_tc_run, args};
        return fill_args(args, op, tile_cols, err);
    }
    struct rp_matmul_experts_generic *args = rp_arena_alloc(memory, sizeof *args);
    if (!args)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a GEMM");
    *args = (struct rp_matmul_experts_generic){*op, *op->weight};
    *out_launch =
        (struct rp_cuda_launch){"matmul_experts_generic", rp_matmul_experts_generic_run, args};
    return RP_OK;
}

int rp_matmul_experts_cuda_plan(const struct rp_matmul_experts_cuda *op, struct rp_arena *memory,
                                struct rp_cuda_launch *out_launch, struct rp_error *err) {
    return rp_matmul_experts_cuda_plan_tile(op, 0, memory, out_launch, err);
}
