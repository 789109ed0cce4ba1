#include "quant/matmul_internal_cuda.h"

#include <cuda_runtime_api.h>
#include <string.h>
#ifdef RP_X
#include <stdlib.h>
static uint32_t env(const char *name, uint32_t otherwise) {
    const char *text = getenv(name);
    return text ? (uint32_t)atoi(text) : otherwise;
}
#endif

#define FLAG_BYTES    16384u
#define SEGMENTS_MAX  16u
#define SEGMENT_LEAST 256u /* columns */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Blocks at work when each of 132 takes an equal run of (rows outputs, segment). */
static uint32_t blocks_at_work(uint32_t n, uint32_t segments, uint32_t rows) {
    uint32_t units = RP_CEIL_DIV(n, rows) * segments;
    return RP_CEIL_DIV(units, RP_CEIL_DIV(units, 132u));
}

/* As few segments as keep most of 132 multiprocessors at work, on few tokens (tiles of 64 outputs) and on
 * many (128). Of n and k alone: the order of a sum must not depend on the card. */
uint32_t rp_matmul_cuda_segment(uint32_t n, uint32_t k, bool gate_up) {
    static const uint32_t counts[] = {1, 2, 3, 4, 6, 8, 12, 16};
    uint32_t best = 0, segment = (uint32_t)RP_ALIGN_UP(k, RP_MATMUL_BLOCK);
    for (size_t i = 0; i < RP_ARRAY_COUNT(counts) && !gate_up; i++) {
        uint32_t columns = (uint32_t)RP_ALIGN_UP(RP_CEIL_DIV(k, counts[i]), RP_MATMUL_BLOCK);
        uint32_t segments = RP_CEIL_DIV(k, columns);
        if (i > 0 && columns < SEGMENT_LEAST)
            break;
        uint32_t few = RP_MIN(blocks_at_work(n, segments, 64), 120u);
        uint32_t many = RP_MIN(blocks_at_work(n, segments, 128), 96u);
        uint32_t score = 1000 + 2 * few * 100 / 120 + many * 100 / 96 - 2 * segments;
        if (score > best) {
            best = score;
            segment = columns;
        }
    }
    return segment;
}

size_t rp_matmul_cuda_workspace_bytes(const struct rp_cuda_limits *limits, uint32_t row_capacity,
                                      uint32_t n_max) {
    /* Four segments of a tile of 128 outputs for every block; as partials it is used as it comes. */
    size_t tokens = RP_MIN(RP_ALIGN_UP(row_capacity, 8), (size_t)128);
    (void)n_max;
    return FLAG_BYTES + limits->sm_count * tokens * 128 * 4 * sizeof(float);
}

/* Shared memory that a product may take: room for the small kernels between the products of a decode step,
 * or for the larger one that is to fit beside. */
static uint32_t shared_room(const struct rp_matmul_cuda *op) {
    uint32_t room = op->limits.shared_bytes_block;
    if (op->rows.max_rows > 128 || room <= 64 * 1024)
        return room;
#ifdef RP_X
    room = RP_MIN(room, env("RP_KB", 1000) << 10);
    if (op->weight->cols == 4096 && op->weight->rows <= 6144) room = RP_MIN(room, env("RP_Q", 1000) << 10);
#endif
    return room - RP_MIN(RP_MAX(op->beside_bytes + 1024, 12u * 1024), room);
}

struct rp_matmul_tile rp_matmul_cuda_choose(const struct rp_matmul_cuda *op) {
    /* Up to so many rows; measured: bench/results/cuda_products.md. */
    static const struct {
        uint32_t max_rows;
        struct rp_matmul_tile tile;
    } choices[] = {
        {8, {8, 64, .boxes = 4, .eager = true, .partials = true}},
        {16, {16, 64, .boxes = 4, .eager = true, .partials = true}},
        {32, {32, 64, .boxes = 4, .eager = true, .partials = true}},
        {64, {64, 64, .boxes = 2, .eager = true, .partials = true}},
        {128, {128, 128, .boxes = 1, .partials = true}},
        {256, {256, 128, .boxes = 1, .partials = true}},
        {UINT32_MAX, {128, 128, .boxes = 1, .order = RP_MATMUL_ORDER_WAVES}},
    };
    size_t i = 0;
    while (op->rows.max_rows > choices[i].max_rows)
        i++;
    const struct rp_matrix *w = op->weight;
    uint32_t segments = RP_CEIL_DIV(w->cols, rp_matmul_cuda_segment(w->rows, w->cols, op->gate_up));
    size_t partial_bytes = (size_t)segments * op->rows.max_rows * w->rows * sizeof(float);
    bool partials =
        op->partials_wanted && !op->accumulate && partial_bytes + FLAG_BYTES <= op->workspace_bytes;
    /* Tiles of 256 tokens have no registers to sum segments up in: only where none is to be summed. */
    if (choices[i].tile.tokens == 256 && segments > 1) {
        uint32_t units = RP_CEIL_DIV(w->rows, 128u) * segments;
        if (!partials || RP_CEIL_DIV(units, op->limits.sm_count) % segments == 0)
            i++;
    }
    struct rp_matmul_tile tile = choices[i].tile;
    uint32_t m = op->rows.max_rows;
    if (m >= 1536 && w->rows >= 6144 && RP_CEIL_DIV(m, 192u) * 192 <= m + m / 16)
        tile.tokens = 192;
    tile.partials = tile.partials && partials;
#ifdef RP_X
    if (tile.tokens <= 32 && tile.rows == 64 && getenv("RP_B"))
        tile.boxes = env("RP_B", 4);
    if (getenv("RP_T") && tile.tokens <= 64) { tile.rows = 128; tile.boxes = env("RP_T", 1); }
    { uint32_t kb = tile.boxes * tile.rows / 8;
    if (env("RP_F", 0)) tile.flight = RP_MAX(env("RP_F", 0) / kb, 1);
    if (env("RP_E", 0)) tile.flight_early = RP_MAX(env("RP_E", 0) / kb, 1); }
    if (op->rows.max_rows > 64) tile.flight = tile.flight_early = 0;
#endif
    tile.shared_bytes = shared_room(op);
    return tile;
}

/* sizes: of `rank` dimensions, the innermost first; strides: in elements, of all but the innermost. */
static int encode(CUtensorMap *map, const void *data, uint32_t rank, const uint64_t *sizes,
                  const uint64_t *strides, const uint32_t *box, struct rp_error *err) {
    static encode_fn function; /* the same in every thread */
    if (!function) {
        void *found_at = NULL;
        enum cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found_at, 12000,
                                             cudaEnableDefault, &found) != cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            return rp_error_set(err, RP_STATUS_DEVICE, "the driver has no cuTensorMapEncodeTiled");
        memcpy(&function, &found_at, sizeof function);
    }
    cuuint64_t counts[5], bytes[5];
    cuuint32_t boxes[5], steps[5] = {1, 1, 1, 1, 1};
    for (uint32_t i = 0; i < rank; i++) {
        counts[i] = sizes[i];
        boxes[i] = box[i];
        bytes[i] = i + 1 < rank ? strides[i] * 2 : 0;
    }
    CUresult result = function(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank,
                               (void *)(uintptr_t)data, counts, bytes, boxes, steps,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               /* 256 bytes cost 3 to 7 % of a decode step's time */
                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return rp_error_set(err, RP_STATUS_DEVICE, "no tensor map of %u dimensions: error %d", rank,
                            (int)result);
    return RP_OK;
}

static int encode_map(CUtensorMap *map, const void *data, uint64_t rows, uint64_t cols,
                      uint64_t stride, uint32_t box_rows, struct rp_error *err) {
    uint64_t sizes[2] = {cols, rows};
    uint32_t box[2] = {RP_MATMUL_BLOCK, box_rows};
    return encode(map, data, 2, sizes, &stride, box, err);
}

/* What bulk tensor copies can read, on a card that has wgmma. */
static bool fits_tensor_cores(const struct rp_matmul_cuda *op) {
    const struct rp_matrix *w = op->weight;
    return rp_cuda_has_hopper(&op->limits) && w->dtype == RP_DTYPE_BF16 && w->cols % 8 == 0 &&
           op->in_stride % 8 == 0 && (uintptr_t)w->data % 16 == 0 && (uintptr_t)op->in % 16 == 0;
}

/* A stage's copies are counted while it is not used again: caps as large as the ring are none. */
static uint32_t flight_cap(uint32_t stages, uint32_t ring) {
    return stages == 0 || stages >= ring ? UINT32_MAX : stages;
}

/* Tiles, shares of the blocks, and where the pipeline and the workspace lie. */
static int lay_out(struct rp_matmul_tc_args *args, const struct rp_matmul_cuda *op) {
    struct rp_matmul_tile *tile = &args->tile;
    args->row_tiles = RP_CEIL_DIV(args->n, tile->rows);
    args->token_tiles = RP_CEIL_DIV(op->rows.max_rows, tile->tokens);
    uint32_t tiles = args->row_tiles * args->token_tiles;

    size_t data_bytes = op->workspace_bytes > FLAG_BYTES ? op->workspace_bytes - FLAG_BYTES : 0;
    float *data = (float *)(void *)(op->workspace + FLAG_BYTES);
    uint32_t units = tiles * args->segments, share = RP_CEIL_DIV(units, op->limits.sm_count);
    bool is_split = tile->order == RP_MATMUL_ORDER_RUNS && share % args->segments != 0;
    args->split_stride = (size_t)op->rows.max_rows * args->n;
    if (op->accumulate || args->split_stride * args->segments * sizeof(float) > data_bytes)
        tile->partials = false;
    tile->partials = tile->partials && is_split;
    if (tile->partials)
        args->partials = data;

    if (tile->order == RP_MATMUL_ORDER_RUNS) {
        args->grid = RP_CEIL_DIV(units, share);
        args->share_stride = (size_t)RP_MIN(share, args->segments - 1) * tile->rows * tile->tokens;
        bool fits = args->grid * args->share_stride * sizeof(float) <= data_bytes &&
                    args->grid * 2 * sizeof(uint32_t) <= FLAG_BYTES;
        if (is_split && !tile->partials && !fits)
            tile->order = RP_MATMUL_ORDER_WAVES;
        args->shares = data;
        args->flags = (uint32_t *)(void *)op->workspace;
    }
    if (tile->order == RP_MATMUL_ORDER_WAVES)
        args->grid = RP_MIN(tiles, op->limits.sm_count);

    uint32_t stage = (tile->rows + tile->tokens) * RP_MATMUL_BLOCK * 2 * tile->boxes;
    uint32_t room = RP_MIN(tile->shared_bytes, op->limits.shared_bytes_block);
    args->stages = tile->stages ? tile->stages : RP_MIN((room - 1024) / (stage + 24), 32u);
    args->shared_bytes = args->stages * (stage + 24) + 1024;
    args->flight = flight_cap(tile->flight, args->stages);
    args->flight_early = RP_MIN(flight_cap(tile->flight_early, args->stages), args->flight);
#ifdef RP_X
    if (op->rows.max_rows <= 64) {
        args->ahead = env("RP_A", 0) / (tile->boxes * tile->rows / 8);
        args->steady = env("RP_S", 1);
        args->stop = env("RP_ST", 1);
        args->pace = env("RP_P", 1000) * (tile->boxes * tile->rows / 8) / 16;
    }
#endif
    return args->stages >= 2 && args->shared_bytes <= op->limits.shared_bytes_block
               ? RP_OK
               : RP_STATUS_RANGE;
}

static int fill_args(struct rp_matmul_tc_args *args, const struct rp_matmul_cuda *op,
                     const struct rp_matmul_tile *tile, uint32_t segment, struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    const struct rp_live_counts *counts = op->rows.step.counts;
    args->live = op->rows.rows == RP_ROWS_TOKEN ? &counts->token_count : &counts->logit_row_count;
    args->bias = op->bias;
    args->out = op->out.data;
    args->out_stride = op->out.stride;
    args->out_bf16 = op->out.dtype == RP_DTYPE_BF16;
    args->accumulate = op->accumulate;
    args->dependent = op->limits.dependent_launch;
    args->n = w->rows;
    args->blocks = RP_CEIL_DIV(w->cols, RP_MATMUL_BLOCK);
    args->segment_blocks = segment / RP_MATMUL_BLOCK;
    args->segments = RP_CEIL_DIV(args->blocks, args->segment_blocks);
    args->tile = *tile;
    args->shared_most = op->limits.shared_bytes_block;
    if (lay_out(args, op) != RP_OK)
        return rp_error_set(err, RP_STATUS_RANGE,
                            "product (%u, %u): no room for two stages in %u bytes", w->rows,
                            w->cols, tile->shared_bytes);
    bool one_segment = tile->tokens * tile->rows > 128 * 192;
    if (args->segments > 1 && one_segment && !args->tile.partials)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "tiles of %u x %u take one segment",
                            tile->rows, tile->tokens);
    RP_ASSERT(op->in_stride >= w->cols);
    int status = encode_map(&args->weight_map, w->data, w->rows, w->cols, w->cols, tile->rows, err);
    if (status == RP_OK)
        status = encode_map(&args->in_map, op->in, op->rows.max_rows, w->cols, op->in_stride,
                            tile->tokens, err);
    if (status == RP_OK && rp_matmul_tc_cuda_prepare(args) != RP_OK)
        status = rp_error_set(err, RP_STATUS_DEVICE, "no kernel for tiles of %u x %u", tile->rows,
                              tile->tokens);
    return status;
}

int rp_matmul_cuda_plan_tile(const struct rp_matmul_cuda *op, const struct rp_matmul_tile *tile,
                             uint32_t segment, struct rp_arena *memory,
                             struct rp_cuda_launch *out_launch,
                             struct rp_cuda_partials *out_partials, struct rp_error *err) {
    memset(out_partials, 0, sizeof *out_partials);
    RP_ASSERT(segment > 0 && segment % RP_MATMUL_BLOCK == 0);
    RP_ASSERT(op->out.dtype == RP_DTYPE_F32 || !op->accumulate);
    /* The arena aligns to 16 bytes, tensor maps want 64. */
    unsigned char *bytes = rp_arena_alloc(memory, sizeof(struct rp_matmul_tc_args) + 64);
    if (!bytes)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a product");
    struct rp_matmul_tc_args *args = (void *)RP_ALIGN_UP((uintptr_t)bytes, 64);
    int status = fill_args(args, op, tile, segment, err);
    if (status != RP_OK)
        return status;
    if (args->tile.partials)
        *out_partials = (struct rp_cuda_partials){.data = args->partials,
                                                  .bias = op->bias,
                                                  .count = args->segments,
                                                  .split_stride = args->split_stride,
                                                  .row_stride = args->n};
    *out_launch = (struct rp_cuda_launch){"matmul_tc", rp_matmul_tc_cuda_run, args};
    return RP_OK;
}

#define ROWS_MAX   64u
#define ROWS_UNIT  8u /* rows of a swizzled operand repeat so */
#define STAGE_MOST (28u * 1024)

static bool fits_rows(const struct rp_matmul_cuda *op) {
    return op->rows.max_rows <= ROWS_MAX && op->weight->cols % RP_MATMUL_BLOCK == 0 &&
           fits_tensor_cores(op);
}

bool rp_matmul_cuda_gates(const struct rp_matmul_cuda *op) {
#ifdef RP_X
    if (!env("RP_G", 1)) return false;
#endif
    return op->weight->rows % 2 == 0 && !op->accumulate && op->out.dtype == RP_DTYPE_BF16 &&
           fits_rows(op);
}

bool rp_matmul_cuda_norms(const struct rp_matmul_cuda *op) {
    const struct rp_matmul_norm *norm = &op->norm;
#ifdef RP_X
    if (op->rows.max_rows > env("RP_N", 0)) return false;
#endif
    return op->rows.max_rows <= RP_MATMUL_NORM_ROWS && norm->cols == op->weight->cols &&
           norm->cols > 256 &&
           norm->cols <= RP_MATMUL_NORM_COLS && norm->in_stride % 4 == 0 &&
           (uintptr_t)norm->in % 16 == 0 && fits_rows(op);
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

/* Each segment gets a warpgroup of its own where there are 2 or 4 of the same length and the rows of a tile
 * need but one; gated ones have two chains already. */
static void split_segments(struct rp_matmul_rows_args *args) {
    uint32_t segments = RP_CEIL_DIV(args->blocks, args->segment_blocks);
    bool split = (segments == 2 || segments == 4) && args->blocks % segments == 0 &&
                 args->segment_blocks == args->blocks / segments && args->tile_rows <= 64 &&
                 args->tokens <= 32 && !args->gated;
#ifdef RP_X
    split = split && env("RP_SP", 1);
#endif
    args->parts = split ? segments : 1;
    args->part_blocks = split ? args->segment_blocks : args->blocks;
}

static int lay_out_rows(struct rp_matmul_rows_args *args, const struct rp_matmul_cuda *op) {
    uint32_t row = RP_MATMUL_BLOCK * 2, halves = args->gated ? 2 : 1;
    uint32_t box = args->parts * halves * args->tile_rows * row;
    args->boxes = RP_MIN(RP_MAX(STAGE_MOST / box, 1u), 4 / args->parts);
#ifdef RP_X
    args->boxes = RP_MIN(args->boxes, env("RP_RB", 4));
#endif
    /* A stage belongs to one segment. */
    while (args->segment_blocks % args->boxes)
        args->boxes--;
    args->tile_bytes = args->boxes * box;
    args->last_bytes = args->tile_bytes / args->tile_rows * args->last_rows;
    args->stage_bytes = args->tile_bytes + args->boxes * args->parts * args->tokens * row;
    /* The last instruction reads 64 rows wherever its own begin. */
    uint32_t beyond = (RP_ALIGN_UP(args->tile_rows, 64) - args->tile_rows) * row;
    uint32_t more = args->norm.weight
                        ? (uint32_t)RP_MATMUL_NORM_BYTES(args->max_rows, args->norm.cols)
                        : 0;
    args->others_offset = more;
    more += (args->parts - 1) * args->tokens / 2 * 128 * (uint32_t)sizeof(float);
    uint32_t room = shared_room(op);
    if (room < 1024 + beyond + more)
        return RP_STATUS_RANGE;
    args->stages = RP_MIN((room - 1024 - beyond - more) / (args->stage_bytes + 24), 32u);
    args->norm_offset = args->stages * args->stage_bytes + beyond;
    args->data_bytes = args->norm_offset + more;
    args->shared_bytes = args->data_bytes + args->stages * 24 + 1024;
    args->shared_most = op->limits.shared_bytes_block;
    args->flight = args->flight_early = UINT32_MAX;
#ifdef RP_X
    uint32_t kb = args->tile_bytes / 1024;
    if (env("RP_F", 0)) args->flight = flight_cap(RP_MAX(env("RP_F", 0) / kb, 1), args->stages);
    if (env("RP_E", 0)) args->flight_early = RP_MIN(flight_cap(RP_MAX(env("RP_E", 0) / kb, 1), args->stages), args->flight);
#endif
    return args->stages >= 2 ? RP_OK : RP_STATUS_RANGE;
}

static int encode_rows_maps(struct rp_matmul_rows_args *args, const struct rp_matmul_cuda *op,
                            struct rp_error *err) {
    uint64_t cols = op->weight->cols, part = (uint64_t)args->part_blocks * RP_MATMUL_BLOCK;
    uint32_t halves = args->gated ? 2 : 1;
    uint64_t sizes[5] = {RP_MATMUL_BLOCK, args->rows, halves, args->part_blocks, args->parts};
    uint64_t strides[4] = {cols, args->rows * cols, RP_MATMUL_BLOCK, part};
    uint32_t box[5] = {RP_MATMUL_BLOCK, args->tile_rows, halves, args->boxes, args->parts};
    int status = encode(&args->weight_map, op->weight->data, 5, sizes, strides, box, err);
    box[1] = args->last_rows;
    if (status == RP_OK)
        status = encode(&args->last_map, op->weight->data, 5, sizes, strides, box, err);
    if (status != RP_OK || args->norm.weight)
        return status;
    uint64_t in_sizes[4] = {RP_MATMUL_BLOCK, args->max_rows, args->part_blocks, args->parts};
    uint64_t in_strides[3] = {op->in_stride, RP_MATMUL_BLOCK, part};
    uint32_t in_box[4] = {RP_MATMUL_BLOCK, args->tokens, args->boxes, args->parts};
    return encode(&args->in_map, op->in, 4, in_sizes, in_strides, in_box, err);
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
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a product");
    struct rp_matmul_rows_args *args = (void *)RP_ALIGN_UP((uintptr_t)bytes, 64);
    memset(args, 0, sizeof *args);
    args->live = op->rows.rows == RP_ROWS_TOKEN ? &counts->token_count : &counts->logit_row_count;
    args->bias = op->bias;
    args->out = op->out.data;
    args->out_stride = op->out.stride;
    args->out_bf16 = op->out.dtype == RP_DTYPE_BF16;
    args->accumulate = op->accumulate;
    args->gated = op->gated;
    args->fn = op->fn;
    args->norm = op->norm;
    args->dependent = op->limits.dependent_launch;
    args->max_rows = op->rows.max_rows;
    args->rows = op->gated ? w->rows / 2 : w->rows;
    args->blocks = RP_CEIL_DIV(w->cols, RP_MATMUL_BLOCK);
    args->segment_blocks = RP_MIN(segment / RP_MATMUL_BLOCK, args->blocks);
    args->tokens = 8;
    while (args->tokens < op->rows.max_rows)
        args->tokens *= 2;
    share_rows(args, op->limits.sm_count);
    split_segments(args);
    if (lay_out_rows(args, op) != RP_OK)
        return rp_error_set(err, RP_STATUS_RANGE, "product (%u, %u): no room for two stages",
                            w->rows, w->cols);
    int status = encode_rows_maps(args, op, err);
    if (status == RP_OK && rp_matmul_rows_cuda_prepare(args) != RP_OK)
        status = rp_error_set(err, RP_STATUS_DEVICE, "no kernel for tiles of %u rows",
                              args->tile_rows);
    *out_launch = (struct rp_cuda_launch){op->gated ? "matmul_gated" : "matmul_rows",
                                          rp_matmul_rows_cuda_run, args};
    return status;
}

int rp_matmul_cuda_plan(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                        struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                        struct rp_error *err) {
    RP_ASSERT(!op->gated || rp_matmul_cuda_gates(op));
    uint32_t segment = rp_matmul_cuda_segment(op->weight->rows, op->weight->cols, op->gate_up);
    bool rows_pay = op->gated || op->norm.weight;
#ifdef RP_X
    rows_pay = rows_pay || (fits_rows(op) && op->rows.max_rows <= env("RP_R", 0) && !(op->weight->rows > 65536 && env("RP_H", 1) == 0) && !(env("RP_QR", 1) == 0 && op->weight->rows == 6144));
#endif
    if (rows_pay) {
        memset(out_partials, 0, sizeof *out_partials);
        return rp_matmul_cuda_plan_rows(op, segment, memory, out_launch, err);
    }
    if (fits_tensor_cores(op)) {
        struct rp_matmul_tile tile = rp_matmul_cuda_choose(op);
        return rp_matmul_cuda_plan_tile(op, &tile, segment, memory, out_launch, out_partials, err);
    }
    struct rp_matmul_cuda *args = rp_arena_alloc(memory, sizeof *args);
    memset(out_partials, 0, sizeof *out_partials);
    if (!args)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a product");
    *args = *op;
    *out_launch = (struct rp_cuda_launch){"matmul_generic", rp_matmul_generic_cuda_run, args};
    return RP_OK;
}
