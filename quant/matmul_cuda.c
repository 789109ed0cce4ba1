#include "quant/matmul_internal_cuda.h"
#include "quant/mid/matmul_mid_internal_cuda.h"
#include "quant/tiles/matmul_tiles_cuda.h"
#include "quant/wide/matmul_wide_cuda.h"

#include <cuda_runtime_api.h>
#include <string.h>

#define FLAG_BYTES    16384u
#define SEGMENTS_MAX  16u
#define SEGMENT_LEAST 256u /* columns */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static bool is_w8a8(const struct rp_matrix *w) {
    return rp_dtype_bytes(w->dtype) == 1 && w->input == RP_INPUT_QUANTIZED;
}

static bool is_w8a16(const struct rp_matrix *w) {
    return rp_dtype_bytes(w->dtype) == 1 && w->input == RP_INPUT_PLAIN;
}

/* Type of the GEMM's input rows. */
static enum rp_dtype in_dtype(const struct rp_matrix *w) {
    return is_w8a16(w) ? RP_DTYPE_BF16 : w->dtype;
}

/* Concurrent blocks when each of 132 computes an equal run of (rows outputs, segment). */
static uint32_t blocks_at_work(uint32_t n, uint32_t segments, uint32_t rows) {
    uint32_t units = RP_CEIL_DIV(n, rows) * segments;
    return RP_CEIL_DIV(units, RP_CEIL_DIV(units, 132u));
}

/* The fewest segments that keep most of 132 SMs busy, for few tokens (tiles of 64 outputs) and for
 * many (128). Depends only on n and k: the order of a sum must not depend on the GPU. */
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

uint32_t rp_matmul_cuda_segment_of(const struct rp_matmul_cuda *op) {
    return op->segment ? op->segment
                       : rp_matmul_cuda_segment(op->weight->rows, rp_matmul_cuda_units(op->weight),
                                                op->gate_up);
}

size_t rp_matmul_cuda_workspace_bytes(const struct rp_cuda_limits *limits, uint32_t row_capacity,
                                      uint32_t n_max) {
    /* Four segments of a tile of 128 outputs per block; also holds partial sums left to the
     * reader, whose number is that of 132 SMs on any GPU. */
    size_t tokens = RP_MIN(RP_ALIGN_UP(row_capacity, 8), (size_t)128);
    (void)n_max;
    return FLAG_BYTES + RP_MAX(limits->sm_count, 132u) * tokens * 128 * 4 * sizeof(float);
}

/* Shared memory limit of a GEMM: leaves room for the small kernels between the GEMMs of a decode
 * step. */
uint32_t rp_matmul_cuda_shared_room(const struct rp_matmul_cuda *op) {
    uint32_t room = op->limits.shared_bytes_block;
    if (op->rows.max_rows > 128 || room <= 64 * 1024)
        return room;
    return room - 12 * 1024;
}

/* Gated W8A16 of prompts: the tile size whose waves over all SMs take the least time. Shared memory
 * bounds those of 128 tokens: quantized values, tokens and copies take nine eighths of the tensor
 * cores' time. */
static uint32_t choose_tokens(const struct rp_matmul_cuda *op) {
    uint32_t rows = RP_CEIL_DIV(op->weight->rows, 128u), sms = op->limits.sm_count;
    uint32_t few = RP_CEIL_DIV(rows * RP_CEIL_DIV(op->rows.max_rows, 128u), sms);
    uint32_t many = RP_CEIL_DIV(rows * RP_CEIL_DIV(op->rows.max_rows, 192u), sms);
    bool blocks = op->weight->scale_kind == RP_SCALE_BLOCK_128;
    return !blocks && many * 192 < few * 144 ? 192 : 128;
}

struct rp_matmul_tile rp_matmul_cuda_choose(const struct rp_matmul_cuda *op) {
    /* Up to so many rows; measured: bench/results/cuda_gemm.md. */
    static const struct {
        uint32_t max_rows;
        struct rp_matmul_tile tile;
    } choices[] = {
        {8, {8, 128, .boxes = 2, .flight_early = 2, .flight = 3, .eager = true, .partials = true}},
        {16,
         {16, 128, .boxes = 2, .flight_early = 2, .flight = 3, .eager = true, .partials = true}},
        {32,
         {32, 128, .boxes = 2, .flight_early = 2, .flight = 3, .eager = true, .partials = true}},
        {64,
         {64, 128, .boxes = 2, .flight_early = 2, .flight = 3, .eager = true, .partials = true}},
        {128, {128, 128, .boxes = 1, .partials = true}},
        {256, {256, 128, .boxes = 1, .partials = true}},
        {UINT32_MAX, {128, 128, .boxes = 1, .order = RP_MATMUL_ORDER_WAVES}},
    };
    const struct rp_matrix *w = op->weight;
    bool narrow = w->dtype != RP_DTYPE_BF16; /* tiles of up to 128 tokens only */
    bool plain = is_w8a16(w);
    size_t i = 0;
    while (op->rows.max_rows > choices[i].max_rows)
        i++;
    if (narrow && choices[i].tile.tokens > 128)
        i--;
    uint32_t units = rp_matmul_cuda_units(w);
    uint32_t segments = RP_CEIL_DIV(units, rp_matmul_cuda_segment_of(op));
    size_t partial_bytes = (size_t)segments * op->rows.max_rows * w->rows * sizeof(float);
    bool partials =
        op->partials_wanted && !op->accumulate && partial_bytes + FLAG_BYTES <= op->workspace_bytes;
    /* Tiles of 256 tokens have no registers for summing segments: only used when there is a single
     * segment. */
    if (choices[i].tile.tokens == 256 && segments > 1) {
        uint32_t work = RP_CEIL_DIV(w->rows, 128u) * segments;
        if (!partials || RP_CEIL_DIV(work, op->limits.sm_count) % segments == 0)
            i++;
    }
    struct rp_matmul_tile tile = choices[i].tile;
    /* Reduces delays of concurrent small kernels with quantized weights: 1 % of a step. */
    if (narrow && !plain && tile.tokens == 32)
        tile.flight_early = 1;
    /* A stage has twice the token bytes: use more stages with half of K each. */
    if (plain && tile.tokens == 64) {
        tile.boxes = 1;
        tile.flight_early = 4;
        tile.flight = 6;
    }
    uint32_t m = op->rows.max_rows;
    if (!narrow && m >= 1536 && w->rows >= 6144 && RP_CEIL_DIV(m, 192u) * 192 <= m + m / 16)
        tile.tokens = 192;
    if (plain && op->gated && m > 256)
        tile.tokens = choose_tokens(op);
    tile.partials = tile.partials && partials;
    tile.shared_bytes = rp_matmul_cuda_shared_room(op);
    if (!tile.partials)
        rp_matmul_tc_choose_once(op, &tile);
    return tile;
}

int rp_matmul_cuda_encode_map(CUtensorMap *map, const void *data, const struct rp_matmul_map *shape,
                              struct rp_error *err) {
    static encode_fn function; /* the same in every thread */
    static const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    if (!function) {
        void *found_at = NULL;
        enum cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found_at, 12000,
                                             cudaEnableDefault, &found) != cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            return rp_error_set(err, RP_STATUS_DEVICE, "the driver has no cuTensorMapEncodeTiled");
        memcpy(&function, &found_at, sizeof function);
    }
    CUtensorMapSwizzle swizzle = shape->swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                 : shape->swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                 : shape->swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                        : CU_TENSOR_MAP_SWIZZLE_NONE;
    CUresult result =
        function(map,
                 shape->is_words                ? CU_TENSOR_MAP_DATA_TYPE_UINT64
                 : shape->dtype == RP_DTYPE_F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                 shape->rank, (void *)(uintptr_t)data, shape->sizes, shape->strides, shape->box,
                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                 /* 256 bytes cost 3 to 7 % of a decode step's time */
                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return rp_error_set(err, RP_STATUS_DEVICE,
                            "no tensor map of %u dimensions for (%llu, %llu): error %d",
                            shape->rank, (unsigned long long)shape->sizes[1],
                            (unsigned long long)shape->sizes[0], (int)result);
    return RP_OK;
}

int rp_matmul_cuda_encode(CUtensorMap *map, const void *data, uint32_t rank, const uint64_t *sizes,
                          const uint64_t *strides, const uint32_t *box, struct rp_error *err) {
    struct rp_matmul_map shape = {.dtype = RP_DTYPE_BF16, .rank = rank, .swizzle = 128};
    for (uint32_t i = 0; i < rank; i++) {
        shape.sizes[i] = sizes[i];
        shape.box[i] = box[i];
        if (i + 1 < rank)
            shape.strides[i] = strides[i] * 2;
    }
    return rp_matmul_cuda_encode_map(map, data, &shape, err);
}

int rp_matmul_cuda_encode_weights(CUtensorMap *map, const struct rp_matrix *weight, bool paired,
                                  uint32_t box_rows, struct rp_error *err) {
    cuuint64_t units = rp_matmul_cuda_units(weight), row = units * 2;
    struct rp_matmul_map shape = {.dtype = RP_DTYPE_BF16,
                                  .rank = 2,
                                  .sizes = {units, weight->rows},
                                  .strides = {row},
                                  .box = {RP_MATMUL_BLOCK, box_rows},
                                  .swizzle = 128};
    if (paired)
        shape = (struct rp_matmul_map){.dtype = RP_DTYPE_BF16,
                                       .rank = 4,
                                       .sizes = {units, 8, 2, weight->rows / 16},
                                       .strides = {row, row * (weight->rows / 2), row * 8},
                                       .box = {RP_MATMUL_BLOCK, 8, 2, box_rows / 16},
                                       .swizzle = 128};
    return rp_matmul_cuda_encode_map(map, weight->data, &shape, err);
}

int rp_matmul_cuda_encode_tokens(CUtensorMap *map, const struct rp_matmul_cuda *op,
                                 uint32_t box_rows, struct rp_error *err) {
    RP_ASSERT(op->in_stride >= op->weight->cols);
    uint32_t bytes = (uint32_t)rp_dtype_bytes(in_dtype(op->weight));
    struct rp_matmul_map shape = {.dtype = RP_DTYPE_BF16,
                                  .rank = 2,
                                  .sizes = {op->weight->cols * bytes / 2, op->rows.max_rows},
                                  .strides = {op->in_stride * bytes},
                                  .box = {RP_MATMUL_BLOCK, box_rows},
                                  .swizzle = 128};
    return rp_matmul_cuda_encode_map(map, op->in, &shape, err);
}

/* Rows of both operands begin at multiples of 16 bytes; the input rows have the type that the
 * weights require. */
static bool fits_rows(const struct rp_matmul_cuda *op) {
    return op->in_stride * rp_dtype_bytes(in_dtype(op->weight)) % 16 == 0 &&
           (uintptr_t)op->in % 16 == 0;
}

static bool aligned_weight(const struct rp_matmul_cuda *op) {
    const struct rp_matrix *w = op->weight;
    return rp_cuda_has_hopper(&op->limits) && w->cols * rp_dtype_bytes(w->dtype) % 16 == 0 &&
           (uintptr_t)w->data % 16 == 0;
}

bool rp_matmul_cuda_fits_weight(const struct rp_matmul_cuda *op) {
    const struct rp_matrix *w = op->weight;
    return aligned_weight(op) &&
           (w->dtype == RP_DTYPE_BF16 || (is_w8a8(w) && w->scale_kind == RP_SCALE_CHANNEL));
}

/* Whether bulk tensor copies can read the operands, on a GPU that has wgmma. */
bool rp_matmul_cuda_fits(const struct rp_matmul_cuda *op) {
    bool has_rows = op->weight->dtype == RP_DTYPE_BF16 || op->in_scales;
    return rp_matmul_cuda_fits_weight(op) && has_rows && fits_rows(op);
}

bool rp_matmul_cuda_fits_blocks(const struct rp_matmul_cuda *op) {
    const struct rp_matrix *w = op->weight;
    return aligned_weight(op) && is_w8a8(w) && w->dtype == RP_DTYPE_FP8_E4M3 &&
           w->scale_kind == RP_SCALE_BLOCK_128 && op->in_scales && fits_rows(op);
}

bool rp_matmul_cuda_fits_w8a16(const struct rp_matmul_cuda *op) {
    const struct rp_matrix *w = op->weight;
    bool blocks = w->scale_kind == RP_SCALE_BLOCK_128 && w->dtype == RP_DTYPE_FP8_E4M3;
    /* Gates and ups of 64 rows of a tile, 32 each, are of one block of scales. */
    bool gates = op->gate_up && op->out.dtype == RP_DTYPE_BF16 && !op->accumulate && !op->bias &&
                 w->rows % (blocks ? 64 : 16) == 0;
    return aligned_weight(op) && is_w8a16(w) && (blocks || w->scale_kind == RP_SCALE_CHANNEL) &&
           (!op->gated || gates) && !op->norm.cols && fits_rows(op);
}

/* A stage counts as in flight until it is reused: a cap as large as the ring has no effect. */
uint32_t rp_matmul_cuda_flight(uint32_t stages, uint32_t ring) {
    return stages == 0 || stages >= ring ? UINT32_MAX : stages;
}

/* Sets tiles, the shares of the blocks, and the layout of pipeline and workspace. */
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
    if (tile->order == RP_MATMUL_ORDER_ONCE)
        args->grid = tiles;

    /* As many token columns as weight columns. */
    uint32_t token_boxes = args->in_dtype == args->dtype ? 1 : 2;
    uint32_t stage = (tile->rows + tile->tokens * token_boxes) * RP_MATMUL_BLOCK * 2 * tile->boxes;
    uint32_t room = RP_MIN(tile->shared_bytes, op->limits.shared_bytes_block);
    args->stages = tile->stages ? tile->stages : RP_MIN((room - 1024) / (stage + 24), 32u);
    args->shared_bytes = args->stages * (stage + 24) + 1024;
    args->flight = rp_matmul_cuda_flight(tile->flight, args->stages);
    args->flight_early =
        RP_MIN(rp_matmul_cuda_flight(tile->flight_early, args->stages), args->flight);
    return args->stages >= 2 && args->shared_bytes <= op->limits.shared_bytes_block
               ? RP_OK
               : RP_STATUS_RANGE;
}

/* One thread issues a stage: one copy costs a fifth of the time of four. */
static int encode_stages(struct rp_matmul_tc_args *args, const struct rp_matmul_cuda *op,
                         struct rp_error *err) {
    const struct rp_matmul_tile *tile = &args->tile;
    uint64_t units = rp_matmul_cuda_units(op->weight), n = op->weight->rows;
    uint64_t sizes[3] = {RP_MATMUL_BLOCK, n, args->blocks}, strides[2] = {units, RP_MATMUL_BLOCK};
    uint32_t box[3] = {RP_MATMUL_BLOCK, tile->rows, tile->boxes};
    uint64_t gated_sizes[5] = {RP_MATMUL_BLOCK, 8, 2, n / 16, args->blocks};
    uint64_t gated_strides[4] = {units, units * (n / 2), units * 8, RP_MATMUL_BLOCK};
    uint32_t gated_box[5] = {RP_MATMUL_BLOCK, 8, 2, tile->rows / 16, tile->boxes};
    int status = op->gated ? rp_matmul_cuda_encode(&args->weight_map, op->weight->data, 5,
                                                   gated_sizes, gated_strides, gated_box, err)
                           : rp_matmul_cuda_encode(&args->weight_map, op->weight->data, 3, sizes,
                                                   strides, box, err);
    uint64_t in_sizes[3] = {RP_MATMUL_BLOCK, op->rows.max_rows, 2 * (uint64_t)args->blocks};
    uint64_t in_strides[2] = {op->in_stride, RP_MATMUL_BLOCK};
    uint32_t in_box[3] = {RP_MATMUL_BLOCK, tile->tokens, 2 * tile->boxes};
    RP_ASSERT(op->in_stride >= op->weight->cols);
    return status != RP_OK
               ? status
               : rp_matmul_cuda_encode(&args->in_map, op->in, 3, in_sizes, in_strides, in_box, err);
}

static int encode_boxes(struct rp_matmul_tc_args *args, const struct rp_matmul_cuda *op,
                        struct rp_error *err) {
    const struct rp_matmul_tile *tile = &args->tile;
    int status =
        rp_matmul_cuda_encode_weights(&args->weight_map, op->weight, op->gated, tile->rows, err);
    return status != RP_OK ? status
                           : rp_matmul_cuda_encode_tokens(&args->in_map, op, tile->tokens, err);
}

static int fill_args(struct rp_matmul_tc_args *args, const struct rp_matmul_cuda *op,
                     const struct rp_matmul_tile *tile, uint32_t segment, struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    const struct rp_live_counts *counts = op->rows.step.counts;
    args->live = op->rows.rows == RP_ROWS_TOKEN ? &counts->token_count : &counts->logit_row_count;
    args->stamp = op->rows.stamp;
    args->bias = op->bias;
    args->dtype = w->dtype;
    args->in_dtype = in_dtype(w);
    args->in_scales = op->in_scales;
    args->weight_scales = w->scales;
    args->block_scales = w->scale_kind == RP_SCALE_BLOCK_128;
    args->out = op->out.data;
    args->out_stride = op->out.stride;
    args->out_bf16 = op->out.dtype == RP_DTYPE_BF16;
    args->accumulate = op->accumulate;
    args->gated = op->gated;
    args->fn = op->fn;
    args->dependent = op->limits.dependent_launch;
    args->n = w->rows;
    args->blocks = RP_CEIL_DIV(rp_matmul_cuda_units(w), RP_MATMUL_BLOCK);
    args->segment_blocks = segment / RP_MATMUL_BLOCK;
    args->segments = RP_CEIL_DIV(args->blocks, args->segment_blocks);
    args->tile = *tile;
    args->shared_most = op->limits.shared_bytes_block;
    if (lay_out(args, op) != RP_OK)
        return rp_error_set(err, RP_STATUS_RANGE,
                            "GEMM (%u, %u): no room for two stages in %u bytes", w->rows, w->cols,
                            tile->shared_bytes);
    bool one_segment = op->gated || tile->tokens * tile->rows > 128 * 192;
    if (args->segments > 1 && one_segment && !args->tile.partials)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "tiles of %u x %u take one segment",
                            tile->rows, tile->tokens);
    /* No box reaches past K, no stage past its segment. */
    args->whole_stages = is_w8a16(w) && w->cols % (2 * RP_MATMUL_BLOCK) == 0 &&
                         args->segment_blocks % tile->boxes == 0 && args->blocks % tile->boxes == 0;
    int status = args->whole_stages ? encode_stages(args, op, err) : encode_boxes(args, op, err);
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
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a GEMM");
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

bool rp_matmul_cuda_gates(const struct rp_matmul_cuda *op) {
    if (op->weight->dtype == RP_DTYPE_BLOCKS)
        return rp_matmul_tiles_gates(op);
    return rp_matmul_rows_gates(op) || rp_matmul_mid_takes(op) || rp_matmul_wide_cuda_fits(op) ||
           rp_matmul_cuda_fits_w8a16(op);
}

size_t rp_matmul_cuda_weight_scratch(const struct rp_matmul_cuda *op) {
    const struct rp_matrix *w = op->weight;
    return w->dtype == RP_DTYPE_BLOCKS && !rp_matmul_tiles_fits(op)
               ? (size_t)w->rows * w->cols * sizeof(uint16_t)
               : 0;
}

bool rp_matmul_cuda_chains(const struct rp_matmul_cuda *op) {
    return op->weight->dtype == RP_DTYPE_BF16 && rp_matmul_cuda_fits(op);
}

bool rp_matmul_cuda_norms(const struct rp_matmul_cuda *op) { return rp_matmul_rows_norms(op); }

bool rp_matmul_cuda_quantizes(const struct rp_matmul_cuda *op) {
    return rp_matmul_rows_quantizes(op);
}

static bool is_once(const struct rp_matmul_cuda *op) {
    return rp_matmul_cuda_choose(op).order == RP_MATMUL_ORDER_ONCE;
}

static bool is_wide(const struct rp_matmul_cuda *op) {
    return rp_matmul_wide_cuda_fits(op) && !is_once(op);
}

bool rp_matmul_cuda_copies(const struct rp_matmul_cuda *op) {
    return op->weight->dtype != RP_DTYPE_BLOCKS && !rp_matmul_mid_takes(op) && is_wide(op) &&
           !op->gated && !op->accumulate && op->weight->rows % 8 == 0;
}

int rp_matmul_cuda_plan(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                        struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                        struct rp_error *err) {
    RP_ASSERT(!op->gated || rp_matmul_cuda_gates(op));
    RP_ASSERT(!op->norm.weight || rp_matmul_cuda_norms(op));
    RP_ASSERT(!op->copy.to || (rp_matmul_cuda_copies(op) && op->out.dtype == RP_DTYPE_BF16));
    RP_ASSERT(!is_w8a8(op->weight) || op->in_scales || op->norm.weight ||
              rp_matmul_cuda_quantizes(op));
    if (op->weight->dtype == RP_DTYPE_BLOCKS)
        return rp_matmul_tiles_plan(op, memory, out_launch, out_partials, err);
    uint32_t segment = rp_matmul_cuda_segment_of(op);
    memset(out_partials, 0, sizeof *out_partials);
    if (rp_matmul_mid_takes(op)) {
        int status = rp_matmul_mid_plan(op, memory, out_launch, out_partials, err);
        if (status != RP_STATUS_UNSUPPORTED || op->gated)
            return status;
    }
    if (is_wide(op))
        return rp_matmul_wide_cuda_plan(op, 0, segment, memory, out_launch, err);
    if (rp_matmul_rows_pays(op))
        return rp_matmul_cuda_plan_rows(op, segment, memory, out_launch, err);
    if (rp_matmul_cuda_fits(op) || rp_matmul_cuda_fits_blocks(op) ||
        rp_matmul_cuda_fits_w8a16(op)) {
        struct rp_matmul_tile tile = rp_matmul_cuda_choose(op);
        return rp_matmul_cuda_plan_tile(op, &tile, segment, memory, out_launch, out_partials, err);
    }
    struct rp_matmul_cuda *args = rp_arena_alloc(memory, sizeof *args);
    if (!args)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a GEMM");
    *args = *op;
    *out_launch = (struct rp_cuda_launch){"matmul_generic", rp_matmul_generic_cuda_run, args};
    return RP_OK;
}
