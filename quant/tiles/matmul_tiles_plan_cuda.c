/* matmul_tiles_plan_cuda.c - the choice between the kernel for tiles and bf16 scratch, and
 * tiling. */
#include "quant/matmul_internal_cuda.h"
#include "quant/tiles/matmul_tiles_cuda.h"

#include <string.h>

#define SEGMENT_LEAST 512u          /* columns */
#define EARLY_BYTES   (128u * 1024) /* most of a block's weights under way */
#define STAGES_MOST   16u
#define FLAG_BYTES    16384u /* of the workspace: other kernels' */

/* Tiles that a multiprocessor multiplies, of 132 whatever the GPU, if K has so many segments and a
 * block up to 16 panels. */
static uint32_t busiest(uint32_t panels, uint32_t tiles, uint32_t segments) {
    return RP_CEIL_DIV(panels * segments, 132u) * RP_CEIL_DIV(tiles, segments);
}

/* Enough segments for 16 panels on each of 132 multiprocessors; up to a half fewer, where they are
 * shared more equally. */
uint32_t rp_matmul_tiles_segment(uint32_t n, uint32_t k, bool gate_up) {
    uint32_t panels = RP_MAX(RP_CEIL_DIV(n, RP_TILE_ROWS), 1u),
             tiles = RP_CEIL_DIV(k, RP_TILE_COLS);
    uint32_t most = gate_up ? 1 : RP_MATMUL_TILES_PANELS * 132 / panels;
    most = RP_MIN(most, RP_MIN(k / SEGMENT_LEAST, RP_MATMUL_TILES_SEGMENTS));
    if (most < 2)
        return tiles * RP_TILE_COLS;
    uint32_t count = most;
    for (uint32_t i = most; i >= RP_MAX(most / 2, 2u); i--)
        if (busiest(panels, tiles, i) < busiest(panels, tiles, count))
            count = i;
    return RP_CEIL_DIV(tiles, count) * RP_TILE_COLS;
}

static uint32_t segment_of(const struct rp_matmul_cuda *op) {
    return op->segment ? op->segment
                       : rp_matmul_tiles_segment(op->weight->rows, op->weight->cols, op->gate_up);
}

static struct rp_tile_format format_of(const struct rp_matrix *w, uint32_t part) {
    return rp_tile_format_of(w->parts[part].type);
}

/* Gates and ups in panels of their own, of one format. */
static bool pairs_up(const struct rp_matmul_cuda *op) {
    const struct rp_matrix *w = op->weight;
    if (op->out.dtype != RP_DTYPE_BF16 || op->accumulate || op->bias || w->rows % 32 != 0 ||
        segment_of(op) < w->cols || w->part_count > 2)
        return false;
    return w->part_count == 1 ||
           (w->parts[1].row_begin == w->rows / 2 && rp_tile_same(format_of(w, 0), format_of(w, 1)));
}

/* The sums of several segments in the workspace. */
static size_t partial_bytes(const struct rp_matmul_cuda *op) {
    size_t segments = RP_CEIL_DIV(op->weight->cols, segment_of(op));
    return segments < 2
               ? 0
               : FLAG_BYTES + segments * op->rows.max_rows * op->weight->rows * sizeof(float);
}

bool rp_matmul_tiles_fits(const struct rp_matmul_cuda *op) {
    return op->weight->layout == RP_LAYOUT_TILES && rp_cuda_has_hopper(&op->limits) &&
           op->rows.max_rows <= RP_MATMUL_TILES_ROWS && !op->norm.cols &&
           op->weight->cols % 8 == 0 && op->in_stride % 8 == 0 && (uintptr_t)op->in % 16 == 0 &&
           op->limits.shared_bytes_block >= 200 * 1024 && segment_of(op) % RP_TILE_COLS == 0 &&
           (!op->gated || pairs_up(op));
}

struct rp_matmul_cuda rp_matmul_tiles_plain(const struct rp_matmul_cuda *op,
                                            struct rp_matrix *out_weight) {
    struct rp_matmul_cuda plain = *op;
    *out_weight = (struct rp_matrix){.rows = op->weight->rows,
                                     .cols = op->weight->cols,
                                     .dtype = RP_DTYPE_BF16,
                                     .data = op->weight_scratch};
    plain.weight = out_weight;
    plain.segment = segment_of(op);
    /* GEMMs read weights before they wait for earlier kernels: these are an earlier kernel's. */
    plain.limits.dependent_launch = false;
    return plain;
}

/* Where the GEMM alone fits the kernel for tiles, decoding to bf16 for the activation does not
 * pay. */
bool rp_matmul_tiles_gates(const struct rp_matmul_cuda *op) {
    struct rp_matrix weight;
    struct rp_matmul_cuda gated = *op, alone = *op;
    gated.gated = true;
    alone.gated = false;
    if (rp_matmul_tiles_fits(&alone))
        return rp_matmul_tiles_fits(&gated);
    gated = rp_matmul_tiles_plain(&gated, &weight);
    return rp_matmul_cuda_gates(&gated);
}

/* --- the kernel for tiles --------------------------------------------------------------------- */

/* As many panels of a block as keep every multiprocessor busy, at most `most`; gated: pairs. */
static void lay_out_panels(struct rp_matmul_tiles_args *args, uint32_t sms, uint32_t most) {
    uint32_t each = args->gated ? 2 : 1;
    uint32_t count = RP_MIN(RP_CEIL_DIV(args->panels * args->segments, sms), most / each);
    args->block_panels = count * each;
    args->warps =
        args->tokens > 8 ? (uint32_t)RP_ALIGN_UP(args->block_panels, 4u) : args->block_panels;
    args->grid = RP_CEIL_DIV(args->panels, count) * args->segments;
}

/* Stages that fit into shared memory. Two blocks of one GEMM must not share a multiprocessor while
 * others have none: a block takes more than half of it where its weights are so many. */
static void lay_out_stages(struct rp_matmul_tiles_args *args, uint32_t room) {
    uint32_t weights = args->block_panels * rp_tile_bytes(args->format);
    if (args->gated) { /* copies write to multiples of 128 bytes */
        args->ups_begin = (uint32_t)RP_ALIGN_UP(weights / 2, 128u);
        weights = 2 * args->ups_begin;
    }
    args->weight_bytes = (uint32_t)RP_ALIGN_UP(weights, 128u);
    uint32_t stage = 2 * 128 * args->tokens + args->weight_bytes;
    uint32_t most = RP_MAX(EARLY_BYTES / args->weight_bytes, 2u);
    args->stages = RP_MIN(room / (stage + 24), most);
    args->stages = RP_MIN(args->stages, RP_MIN(STAGES_MOST, args->segment_tiles));
    args->shared_bytes = 1024 + args->stages * (stage + 24);
}

/* Tokens of a block, its warps, and what fits into shared memory. */
static int lay_out(struct rp_matmul_tiles_args *args, const struct rp_matmul_cuda *op) {
    uint32_t room = rp_matmul_cuda_shared_room(op) - 1024;
    args->tokens = 8;
    while (args->tokens < 64 && args->tokens < op->rows.max_rows)
        args->tokens *= 2;
    args->token_tiles = RP_CEIL_DIV(op->rows.max_rows, args->tokens);
    args->shared_most = op->limits.shared_bytes_block;
    /* A warp has the codes of a stage before it gives back the one before, with wgmma that of two
     * before. */
    for (uint32_t most = RP_MATMUL_TILES_PANELS; most >= 2; most /= 2) {
        lay_out_panels(args, op->limits.sm_count, most);
        lay_out_stages(args, room);
        if (args->stages >= RP_MIN(args->segment_tiles, args->tokens > 8 ? 3u : 2u))
            return RP_OK;
    }
    return RP_STATUS_RANGE;
}

static int encode_tokens(struct rp_matmul_tiles_args *args, const struct rp_matmul_cuda *op,
                         struct rp_error *err) {
    struct rp_matmul_map shape = {.dtype = RP_DTYPE_BF16,
                                  .rank = 2,
                                  .sizes = {op->weight->cols, op->rows.max_rows},
                                  .strides = {op->in_stride * 2},
                                  .box = {64, args->tokens},
                                  .swizzle = 128};
    return rp_matmul_cuda_encode_map(&args->in_map, op->in, &shape, err);
}

static int encode_weights(struct rp_matmul_tiles_args *args, struct rp_error *err) {
    uint32_t tile = rp_tile_bytes(args->format), pieces = 1;
    while (tile / 8 / pieces > 256)
        pieces *= 2;
    args->pieces = pieces;
    struct rp_matmul_map shape = {
        .is_words = true,
        .rank = 3,
        .sizes = {tile / 8 / pieces, args->tiles * pieces,
                  args->gated ? 2 * args->panels : args->panels},
        .strides = {tile / pieces, (cuuint64_t)args->tiles * tile},
        .box = {tile / 8 / pieces, pieces,
                args->gated ? args->block_panels / 2 : args->block_panels}};
    return rp_matmul_cuda_encode_map(&args->weight_map, args->data, &shape, err);
}

/* Parts [begin, end) have one format and follow each other in whole panels; gated: all of them. */
static int fill_args(struct rp_matmul_tiles_args *args, const struct rp_matmul_cuda *op,
                     uint32_t begin, uint32_t end, struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    const struct rp_live_counts *counts = op->rows.step.counts;
    uint32_t first = w->parts[begin].row_begin, rows = 0;
    for (uint32_t i = begin; i < end; i++)
        rows += w->parts[i].rows;
    memset(args, 0, sizeof *args);
    args->live = op->rows.rows == RP_ROWS_TOKEN ? &counts->token_count : &counts->logit_row_count;
    args->stamp = op->rows.stamp;
    args->format = format_of(w, begin);
    args->data = (const unsigned char *)w->data + rp_matrix_part_offset(w, begin);
    args->gated = op->gated;
    args->fn = op->fn;
    args->rows = op->gated ? rows / 2 : rows;
    args->panels = RP_CEIL_DIV(args->rows, RP_TILE_ROWS);
    args->tiles = RP_CEIL_DIV(w->cols, RP_TILE_COLS);
    args->segment_tiles = RP_MIN(segment_of(op) / RP_TILE_COLS, args->tiles);
    args->segments = RP_CEIL_DIV(args->tiles, args->segment_tiles);
    args->bias = op->bias ? op->bias + first : NULL;
    args->out = (unsigned char *)op->out.data + first * rp_dtype_bytes(op->out.dtype);
    args->out_stride = op->out.stride;
    args->out_bf16 = op->out.dtype == RP_DTYPE_BF16;
    args->accumulate = op->accumulate;
    args->dependent = op->limits.dependent_launch;
    int status = lay_out(args, op);
    if (status != RP_OK)
        return rp_error_set(err, status, "GEMM (%u, %u): its tiles do not fit into shared memory",
                            w->rows, w->cols);
    status = encode_tokens(args, op, err);
    if (status == RP_OK)
        status = encode_weights(args, err);
    if (status == RP_OK && rp_matmul_tiles_cuda_prepare(args) != RP_OK)
        status = rp_error_set(err, RP_STATUS_DEVICE, "no kernel for tiles of %s",
                              rp_block_info(w->parts[begin].type).name);
    return status;
}

/* A launch for each run of parts of one format, and one that adds up their segments. */
struct launches {
    struct rp_matmul_tiles_args *parts[RP_MATRIX_PARTS_MAX];
    uint32_t count;
    struct rp_tiles_sum_cuda sum; /* cols 0: none */
};

static int run_launches(const void *args, struct CUstream_st *stream) {
    const struct launches *launches = args;
    int error = 0;
    for (uint32_t i = 0; i < launches->count && error == 0; i++)
        error = rp_matmul_tiles_cuda_start(launches->parts[i], stream);
    return error || launches->sum.cols == 0 ? error : rp_tiles_sum_start(&launches->sum, stream);
}

/* Where segments go; count 0: there is one. */
static struct rp_cuda_partials partials_of(const struct rp_matmul_cuda *op) {
    size_t n = op->weight->rows;
    if (partial_bytes(op) == 0)
        return (struct rp_cuda_partials){0};
    return (struct rp_cuda_partials){.data = (float *)(void *)(op->workspace + FLAG_BYTES),
                                     .bias = op->bias,
                                     .count = RP_CEIL_DIV(op->weight->cols, segment_of(op)),
                                     .split_stride = op->rows.max_rows * n,
                                     .row_stride = n};
}

static int plan_tiles(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                      struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                      struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    struct rp_cuda_partials partials = partials_of(op);
    struct launches *launches = rp_arena_alloc(memory, sizeof *launches);
    if (!launches)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a GEMM");
    *launches = (struct launches){0};
    if (op->partials_wanted && !op->accumulate)
        *out_partials = partials;
    else if (partials.count)
        launches->sum = (struct rp_tiles_sum_cuda){.rows = op->rows,
                                                   .partials = partials,
                                                   .out = op->out,
                                                   .cols = w->rows,
                                                   .accumulate = op->accumulate,
                                                   .dependent = op->limits.dependent_launch};
    for (uint32_t begin = 0, end; begin < w->part_count; begin = end) {
        end = begin + 1;
        while (end < w->part_count && w->parts[end - 1].rows % RP_TILE_ROWS == 0 &&
               rp_tile_same(format_of(w, begin), format_of(w, end)))
            end++;
        /* The arena aligns to 16 bytes, tensor maps want 64. */
        unsigned char *bytes = rp_arena_alloc(memory, sizeof(struct rp_matmul_tiles_args) + 64);
        if (!bytes)
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a GEMM");
        struct rp_matmul_tiles_args *args = (void *)RP_ALIGN_UP((uintptr_t)bytes, 64);
        int status = fill_args(args, op, begin, end, err);
        if (status != RP_OK)
            return status;
        if (partials.count) {
            args->partials = (float *)(uintptr_t)partials.data + w->parts[begin].row_begin;
            args->split_stride = partials.split_stride;
            args->partial_stride = partials.row_stride;
        }
        launches->parts[launches->count++] = args;
    }
    *out_launch = (struct rp_cuda_launch){op->gated ? "matmul_tiles_gated" : "matmul_tiles",
                                          run_launches, launches};
    return RP_OK;
}

/* --- bf16 scratch ----------------------------------------------------------------------------- */

struct decoded {
    struct rp_tiles_to_bf16 parts[RP_MATRIX_PARTS_MAX];
    uint32_t count;
    struct rp_matrix weight; /* in scratch memory */
    struct rp_cuda_launch gemm;
};

static int run_decoded(const void *args, struct CUstream_st *stream) {
    const struct decoded *decoded = args;
    int error = 0;
    for (uint32_t i = 0; i < decoded->count && error == 0; i++)
        error = rp_tiles_to_bf16_start(&decoded->parts[i], stream);
    return error ? error : decoded->gemm.run(decoded->gemm.args, stream);
}

static int plan_decoded(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                        struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                        struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    struct decoded *decoded = rp_arena_alloc(memory, sizeof *decoded);
    if (!decoded)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a GEMM");
    decoded->count = w->part_count;
    for (uint32_t i = 0; i < w->part_count; i++)
        decoded->parts[i] = (struct rp_tiles_to_bf16){
            .data = (const unsigned char *)w->data + rp_matrix_part_offset(w, i),
            .format = format_of(w, i),
            .rows = w->parts[i].rows,
            .cols = w->cols,
            .out = (uint16_t *)op->weight_scratch + (size_t)w->parts[i].row_begin * w->cols,
            .stride = w->cols,
            .dependent = op->limits.dependent_launch};
    struct rp_matmul_cuda plain = rp_matmul_tiles_plain(op, &decoded->weight);
    int status = rp_matmul_cuda_plan(&plain, memory, &decoded->gemm, out_partials, err);
    *out_launch = (struct rp_cuda_launch){"matmul_decoded", run_decoded, decoded};
    return status;
}

int rp_matmul_tiles_plan(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                         struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                         struct rp_error *err) {
    memset(out_partials, 0, sizeof *out_partials);
    return rp_matmul_tiles_fits(op) ? plan_tiles(op, memory, out_launch, out_partials, err)
                                    : plan_decoded(op, memory, out_launch, out_partials, err);
}
