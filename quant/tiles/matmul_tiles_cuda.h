/* matmul_tiles_cuda.h - GEMMs of weights in tiles (quant/tiles.h) on CUDA, with rows of bf16.
 *
 * Up to RP_MATMUL_TILES_ROWS rows one kernel decodes weights in registers and multiplies
 * (matmul_tiles_kernel.cuh). More rows, and sizes outside its rules: the weights are written as a
 * bf16 matrix to scratch memory, and the GEMMs of bf16 do the rest. Both have the reduction
 * contract of bf16 weights (matmul_cuda.h) with the values of rp_tiles_weight and segments of
 * rp_matmul_tiles_segment. */
#ifndef RP_QUANT_MATMUL_TILES_CUDA_H
#define RP_QUANT_MATMUL_TILES_CUDA_H

#include "quant/matmul_cuda.h"
#include "quant/tiles.h"

#include <cuda.h> /* CUtensorMap */

#ifdef __cplusplus
extern "C" {
#endif

#define RP_MATMUL_TILES_ROWS     256u /* most rows of the kernel for tiles */
#define RP_MATMUL_TILES_PANELS   16u  /* most panels of a block */
#define RP_MATMUL_TILES_SEGMENTS 8u

/* Frozen arguments of one part, or of several of one format; 64-byte aligned, for the tensor
 * map. */
struct rp_matmul_tiles_args {
    CUtensorMap in_map; /* (max_rows, k): boxes of `tokens` rows by 64 columns */
    /* (panels, tiles * pieces, bytes of a piece): boxes of a tile of each panel of a block */
    CUtensorMap weight_map;
    const uint32_t *live;
    struct rp_cuda_stamp stamp;
    struct rp_tile_format format;
    const unsigned char *data; /* tiles */
    const float *bias;
    void *out; /* of the first row of the part */
    size_t out_stride;
    /* (segments, split_stride), rows of partial_stride, from the part's first row; NULL: none */
    float *partials;
    size_t split_stride, partial_stride;
    uint32_t rows;                           /* outputs */
    uint32_t panels;                         /* of 16 outputs; gated: of gates */
    uint32_t warps;                          /* multiplying ones of a block */
    uint32_t block_panels;                   /* of a block; gated: gates and ups */
    uint32_t pieces;                         /* of a tile: a box has at most 256 elements a side */
    uint32_t ups_begin, weight_bytes;        /* of a stage: of the block's ups, of all */
    uint32_t tiles, segment_tiles, segments; /* of K; a block has one segment */
    uint32_t tokens;                         /* of a block: 8, 16, 32, 64 */
    uint32_t stages;                         /* of 128 columns, tokens and a block's weights */
    uint32_t grid, token_tiles, shared_bytes, shared_most;
    enum rp_activation fn;
    bool gated, out_bf16, accumulate, dependent;
};

int rp_matmul_tiles_cuda_prepare(const struct rp_matmul_tiles_args *args);
int rp_matmul_tiles_cuda_start(const struct rp_matmul_tiles_args *args, struct CUstream_st *stream);

/* Adds up segments that the GEMM left in memory: out = sum + bias (+ out). */
struct rp_tiles_sum_cuda {
    struct rp_cuda_rows rows;
    struct rp_cuda_partials partials;
    struct rp_values out;
    uint32_t cols;
    bool accumulate, dependent;
};
int rp_tiles_sum_start(const struct rp_tiles_sum_cuda *args, struct CUstream_st *stream);

/* Weights of a part to bf16 rows. */
struct rp_tiles_to_bf16 {
    const unsigned char *data;
    struct rp_tile_format format;
    uint32_t rows, cols;
    uint16_t *out; /* (rows, stride) */
    size_t stride;
    bool dependent;
};
int rp_tiles_to_bf16_start(const struct rp_tiles_to_bf16 *args, struct CUstream_st *stream);

/* Rows with their columns in another order: out[k] = in[columns[k]]. */
struct rp_tiles_order_cuda {
    struct rp_cuda_rows rows;
    const uint16_t *in; /* (max_rows, in_stride) bf16 */
    size_t in_stride;
    const uint32_t *columns; /* (cols) on the device */
    uint32_t cols;
    uint16_t *out; /* (max_rows, out_stride) */
    size_t out_stride;
};
int rp_tiles_order_cuda_run(const void *args, struct CUstream_st *stream);

/* A table of embeddings in tiles. */
struct rp_tiles_embed_cuda {
    struct rp_cuda_rows rows;
    const unsigned char *table; /* one part */
    struct rp_tile_format format;
    uint32_t vocab, hidden;
    float scale;
    struct rp_values out;
};
int rp_tiles_embed_cuda_run(const void *args, struct CUstream_st *stream);

/* Random codes, and scales that make weights of about `scale`; of formats with one level of
 * scales. */
int rp_tiles_fill_random(void *data, struct rp_tile_format format, size_t tiles, uint64_t seed,
                         float scale, struct CUstream_st *stream);

/* Columns of K in a segment, a multiple of 128. */
uint32_t rp_matmul_tiles_segment(uint32_t n, uint32_t k, bool gate_up);

/* True when the kernel for tiles takes the GEMM. */
bool rp_matmul_tiles_fits(const struct rp_matmul_cuda *op);

/* rp_matmul_cuda_gates of weights in tiles. */
bool rp_matmul_tiles_gates(const struct rp_matmul_cuda *op);

/* The GEMM of the same matrix in bf16, in scratch memory; *out_weight is the matrix. */
struct rp_matmul_cuda rp_matmul_tiles_plain(const struct rp_matmul_cuda *op,
                                            struct rp_matrix *out_weight);

int rp_matmul_tiles_plan(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                         struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                         struct rp_error *err);

#ifdef __cplusplus
}
#endif
#endif
