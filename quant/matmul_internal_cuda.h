/* matmul_internal_cuda.h - shared by the CUDA GEMMs: tiles, kernel arguments, and launchers. */
#ifndef RP_QUANT_MATMUL_INTERNAL_CUDA_H
#define RP_QUANT_MATMUL_INTERNAL_CUDA_H

#include "quant/matmul_cuda.h"

#include <cuda.h> /* CUtensorMap */

#ifdef __cplusplus
extern "C" {
#endif

#define RP_MATMUL_BLOCK 64 /* columns of K in one box of a bulk tensor copy: 128 bytes */

/* Columns of K as kernels and plans count them, in pairs of bytes: a box of RP_MATMUL_BLOCK is 64
 * of bf16, 128 of 8 bits. Quantized values may be described to tensor maps as half as many bf16. */
static inline uint32_t rp_matmul_cuda_units(const struct rp_matrix *weight) {
    return rp_dtype_bytes(weight->dtype) == 1 ? weight->cols / 2 : weight->cols;
}

enum rp_matmul_order {
    /* A block computes a contiguous run of (tile, segment): equal shares, a few tiles are split. */
    RP_MATMUL_ORDER_RUNS,
    /* A block computes every grid-th tile whole: concurrent blocks share weights and tokens in
     * L2. */
    RP_MATMUL_ORDER_WAVES,
    /* A block for each tile of all max_rows tokens, alive or not: which one is known before the
     * live rows are, so that its weights are requested before the kernel waits. */
    RP_MATMUL_ORDER_ONCE
};

/* Tiling of a GEMM. It does not affect a single bit of the result. */
struct rp_matmul_tile {
    uint32_t tokens; /* columns of the instruction: 8, 16, 32, 64, 128, 192, 256 */
    uint32_t rows;   /* of weights: 64, 128, 256 */
    enum rp_matmul_order order;
    uint32_t boxes;  /* of 64 columns of K in a stage */
    uint32_t stages; /* of the pipeline in shared memory; 0: as many as fit into shared_bytes */
    uint32_t shared_bytes;
    /* Cap on weight stages in flight: until the ring is first full, and afterwards; 0: no cap. Full
     * memory queues delay the loads of concurrent small kernels. */
    uint32_t flight_early, flight;
    bool eager; /* frees a stage as early as possible: for memory-bound tiles */
    /* leave split-K partial sums to the reader, where a tile would be split between blocks */
    bool partials;
};

/* Frozen arguments of the tensor-core kernel; 64-byte aligned, for the tensor maps. */
struct rp_matmul_tc_args {
    CUtensorMap weight_map; /* (n, k) */
    CUtensorMap in_map;     /* (max_rows, k) */
    const uint32_t *live;   /* live rows, on the device */
    struct rp_cuda_stamp stamp;
    const float *bias;
    void *out;
    size_t out_stride;
    float *partials; /* (segments, max_rows, n), or NULL */
    size_t split_stride;
    float *shares; /* split-K partial sums for the previous block: one share per block */
    size_t share_stride;
    uint32_t *flags; /* one per warpgroup of each block; zero between launches */
    uint32_t n;
    uint32_t blocks, segment_blocks, segments; /* of K */
    uint32_t row_tiles, token_tiles; /* of one block of threads, for all of n and max_rows */
    uint32_t grid, stages, shared_bytes, shared_most;
    uint32_t flight, flight_early; /* stages of weights; UINT32_MAX: no cap */
    struct rp_matmul_tile tile;
    /* (blocks, 4): when it started, waited, ended, and the SM: with RP_TRACE alone */
    uint64_t *trace;
    bool out_bf16, accumulate, dependent, block_scales;
    /* W8A16 of one segment: eight rows of gates alternate with their eight rows of ups */
    bool gated;
    /* W8A16: a stage's weights are one copy, and its tokens; maps of boxes of 64 units, (64, n,
     * blocks) or, gated, (64, 8, 2, n / 16, blocks), and (64, max_rows, 2 * blocks). */
    bool whole_stages;
    enum rp_activation fn;
    /* of the weights and the rows; they differ in W8A16, whose rows are bf16 */
    enum rp_dtype dtype, in_dtype;
    /* 8-bit GEMMs: (max_rows), NULL for W8A16; (n) or (ceil(n / 128), ceil(k / 128)) where
     * block_scales. */
    const float *in_scales, *weight_scales;
};

/* Shared memory of a normed GEMM: bf16 tokens, then the sums of squares of 128 columns each. */
#define RP_MATMUL_NORM_TOKEN_BYTES(rows, cols) ((size_t)(rows) * (cols)*2)
#define RP_MATMUL_NORM_BYTES(rows, cols)                                                           \
    (RP_MATMUL_NORM_TOKEN_BYTES(rows, cols) + (rows) * (RP_MATMUL_NORM_COLS / 128) * sizeof(float))

/* Rows that a GEMM quantizes in shared memory: the quantized values, then one board per row,
 * through which warps exchange its reductions. */
#define RP_MATMUL_QUANTIZE_COLS 16384 /* most columns of rows that come in bf16 */
/* Most bytes of quantized values in all: rows of 14,336 columns, four of them. */
#define RP_MATMUL_QUANTIZE_BYTES (56u * 1024)
struct rp_matmul_row_board {
    float sums[RP_MATMUL_NORM_COLS / 128]; /* of squares, of 128 columns each */
    uint32_t most[16];                     /* magnitudes, as bits, of each warp's columns */
    float scale, unused[3];
};
#define RP_MATMUL_CODE_BYTES(rows, cols)                                                           \
    ((size_t)(rows) * ((cols) + sizeof(struct rp_matmul_row_board)))

/* Frozen arguments of the kernel for few rows (matmul_rows_kernel.cuh); 64-byte aligned. One copy
 * brings a stage. */
struct rp_matmul_rows_args {
    /* (parts, part_blocks, halves, rows, 64): boxes of all parts, `boxes` blocks, all halves, and
     * tile_rows or last_rows */
    CUtensorMap weight_map, last_map;
    CUtensorMap in_map; /* (parts, part_blocks, max_rows, 64) */
    const uint32_t *live;
    struct rp_cuda_stamp stamp;
    const float *bias;
    void *out;
    size_t out_stride;
    uint32_t max_rows;
    uint32_t rows;                   /* outputs: n, or n / 2 where gated */
    uint32_t share;                  /* outputs of a block of threads */
    uint32_t tiles;                  /* of a block of threads */
    uint32_t tile_rows, last_rows;   /* outputs of a tile, up to 128; of a block's last one */
    uint32_t tile_bytes, last_bytes; /* of weights in a stage */
    uint32_t blocks, segment_blocks; /* of K */
    uint32_t parts, part_blocks;     /* where each segment has a warpgroup: segments; else 1 */
    uint32_t boxes;                  /* blocks of K in a stage, of each part */
    uint32_t tokens;                 /* columns of the instruction: 8, 16, 32, 64 */
    uint32_t grid, stages, stage_bytes, data_bytes, shared_bytes, shared_most;
    uint32_t flight, flight_early; /* as in rp_matmul_tile; UINT32_MAX: no cap */
    struct rp_matmul_norm norm;    /* weight NULL: tokens are `in` as it is */
    uint32_t norm_offset;          /* of normed tokens, from the stages */
    uint32_t others_offset;        /* of the sums of parts, from normed tokens */
    enum rp_activation fn;
    uint64_t *trace; /* as in rp_matmul_tc_args */
    bool gated, out_bf16, accumulate, dependent;
    bool quantizes;      /* rows come in bf16, in `in`, and become quantized values here */
    enum rp_dtype dtype; /* of the weights */
    /* 8-bit GEMMs: (max_rows), NULL where the rows are quantized here; and (n). */
    const float *in_scales, *weight_scales;
    const uint16_t *in;
    size_t in_stride;
};

int rp_matmul_rows_cuda_run(const void *args, struct CUstream_st *stream);
/* Once per kernel that args uses, outside any capture. NOT_FOUND when there is none. */
int rp_matmul_rows_cuda_prepare(const struct rp_matmul_rows_args *args);

int rp_matmul_tc_cuda_run(const void *args, struct CUstream_st *stream);
/* Once per kernel that args uses, outside any capture. NOT_FOUND when there is no kernel for the
 * tile. */
int rp_matmul_tc_cuda_prepare(const struct rp_matmul_tc_args *args);

/* Any size, stride, alignment and type: one fma chain in rising k per output; of 8 bits, with
 * in_scales where input is RP_INPUT_QUANTIZED, what matmul_generic_8_cuda.cu says. Takes a struct
 * rp_matmul_cuda and copies what it needs of it (the matrix's struct too): nothing is read
 * later. */
int rp_matmul_generic_cuda_run(const void *args, struct CUstream_st *stream);
/* The part of it for 8 bits. */
int rp_matmul_generic_8_cuda_run(const struct rp_matmul_cuda *op, struct CUstream_st *stream);

/* The tile that rp_matmul_cuda_plan chooses for a GEMM that fits. */
struct rp_matmul_tile rp_matmul_cuda_choose(const struct rp_matmul_cuda *op);

/* The same for a GEMM of few outputs, more than 32 rows and bf16, whose sums are not left to the
 * reader (matmul_tc_plan_cuda.c): replaces the tile, where it pays, by one in
 * RP_MATMUL_ORDER_ONCE. Above 256 rows it is to be faster than the kernel for prompts. */
void rp_matmul_tc_choose_once(const struct rp_matmul_cuda *op, struct rp_matmul_tile *tile);

/* rp_matmul_cuda_plan with a given tile and segment length in units of two bytes (tests,
 * measurements). */
int rp_matmul_cuda_plan_tile(const struct rp_matmul_cuda *op, const struct rp_matmul_tile *tile,
                             uint32_t segment, struct rp_arena *memory,
                             struct rp_cuda_launch *out_launch,
                             struct rp_cuda_partials *out_partials, struct rp_error *err);

/* The segment of this GEMM, in units. */
uint32_t rp_matmul_cuda_segment_of(const struct rp_matmul_cuda *op);

/* Shared by the planners. A tensor map; dimensions: the innermost first. */
struct rp_matmul_map {
    enum rp_dtype dtype; /* BF16, which also stands for pairs of quantized values, or F32 */
    uint32_t rank;
    cuuint64_t sizes[5], strides[4]; /* elements; bytes, of all but the innermost */
    cuuint32_t box[5];
    uint32_t swizzle; /* bytes of the pattern: 128, 64, 32; 0: none */
    bool is_words;    /* elements are any 8 bytes, whatever the dtype */
};
int rp_matmul_cuda_encode_map(CUtensorMap *map, const void *data, const struct rp_matmul_map *shape,
                              struct rp_error *err);
/* Tensor maps of a GEMM's operands: boxes of RP_MATMUL_BLOCK units by `rows`. paired: eight rows of
 * the weights' first half, the same eight of the second, the next eight of the first ... */
int rp_matmul_cuda_encode_weights(CUtensorMap *map, const struct rp_matrix *weight, bool paired,
                                  uint32_t box_rows, struct rp_error *err);
int rp_matmul_cuda_encode_tokens(CUtensorMap *map, const struct rp_matmul_cuda *op,
                                 uint32_t box_rows, struct rp_error *err);
/* bf16, 128-byte swizzle; strides in elements. */
int rp_matmul_cuda_encode(CUtensorMap *map, const void *data, uint32_t rank, const uint64_t *sizes,
                          const uint64_t *strides, const uint32_t *box, struct rp_error *err);
/* True when bulk tensor copies can read the operands and the GPU has wgmma: bf16, or W8A8 with a
 * scale per output. */
bool rp_matmul_cuda_fits(const struct rp_matmul_cuda *op);
/* The same for the weights only, whichever kernel produces the rows. */
bool rp_matmul_cuda_fits_weight(const struct rp_matmul_cuda *op);
/* The same for what one kernel serves for any number of rows, matmul_tc_kernel.cuh: W8A8 in FP8
 * with a scale per block, and W8A16 with either kind of scales. */
bool rp_matmul_cuda_fits_blocks(const struct rp_matmul_cuda *op);
bool rp_matmul_cuda_fits_w8a16(const struct rp_matmul_cuda *op);
/* Limit of shared memory per block of this GEMM. */
uint32_t rp_matmul_cuda_shared_room(const struct rp_matmul_cuda *op);
/* Converts a cap on stages in flight to kernel form, for a ring of `stages`; UINT32_MAX: no cap. */
uint32_t rp_matmul_cuda_flight(uint32_t stages, uint32_t ring);

/* The kernel for few rows, of matrices whose K is a multiple of 64 units. gates, norms, quantizes:
 * as in matmul_cuda.h; pays: where rp_matmul_cuda_plan takes it. plan_rows: with a given segment
 * length, up to 64 rows, gated or not. */
bool rp_matmul_rows_gates(const struct rp_matmul_cuda *op);
bool rp_matmul_rows_norms(const struct rp_matmul_cuda *op);
bool rp_matmul_rows_quantizes(const struct rp_matmul_cuda *op);
bool rp_matmul_rows_pays(const struct rp_matmul_cuda *op);
int rp_matmul_cuda_plan_rows(const struct rp_matmul_cuda *op, uint32_t segment,
                             struct rp_arena *memory, struct rp_cuda_launch *out_launch,
                             struct rp_error *err);

#ifdef __cplusplus
}
#endif
#endif
