/* matmul_mid_internal_cuda.h - products of 65 to 256 rows: tiles and arguments of their kernel. */
#ifndef RP_QUANT_MATMUL_MID_INTERNAL_CUDA_H
#define RP_QUANT_MATMUL_MID_INTERNAL_CUDA_H

#include "quant/matmul_cuda.h"

#include <cuda.h> /* CUtensorMap */

#ifdef __cplusplus
extern "C" {
#endif

/* How a product is cut up. Nothing here changes a bit of the result. */
struct rp_matmul_mid_tile {
    uint32_t tokens;  /* 128 or 256 */
    uint32_t width;   /* weight rows of the instruction */
    uint32_t rows;    /* of them in use: of a tile */
    uint32_t cluster; /* blocks that read the same tokens, for different weights: 1, 2, 4 */
    uint32_t stages;  /* 0: as many as fit into shared_bytes */
    uint32_t shared_bytes;
    uint32_t early; /* stages of weights asked for before the kernel waits for its predecessor; 0: all */
    bool eager;     /* frees a stage as early as possible */
    bool partials;  /* a block takes one segment and leaves it to the reader; else it takes all of K */
};

/* Frozen arguments; 64-byte aligned, for the tensor maps. */
struct rp_matmul_mid_args {
    CUtensorMap weight_map; /* (n, k), or (n / 16)(gates, ups)(8)(k) */
    CUtensorMap in_map;     /* (max_rows, k) */
    const uint32_t *live;   /* live rows, on the device */
    void *out;
    size_t out_stride;
    float *partials; /* (segments, max_rows, n), or NULL */
    size_t split_stride;
    float *stash; /* of a block: what its tile's earlier segments come to */
    uint32_t n;
    uint32_t blocks, segment_blocks, segments; /* of K */
    uint32_t tiles, units;                     /* units of work: of a cluster */
    uint32_t grid, stages, early, shared_bytes, shared_most;
    struct rp_matmul_mid_tile tile;
    enum rp_activation fn;
    bool gated, dependent;
};

int rp_matmul_mid_cuda_run(const void *args, struct CUstream_st *stream);

/* Once per kernel that args uses, outside any capture. out_clusters: how many the card holds at a time.
 * NOT_FOUND when there is no kernel for the tile. */
int rp_matmul_mid_cuda_prepare(const struct rp_matmul_mid_args *args, uint32_t *out_clusters);

/* True when rp_matmul_mid_plan can plan the product; of sizes, types and alignment alone. */
bool rp_matmul_mid_takes(const struct rp_matmul_cuda *op);
/* As rp_matmul_cuda_plan. UNSUPPORTED, err untouched, where the workspace is too small. */
int rp_matmul_mid_plan(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                       struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                       struct rp_error *err);

/* Plans the product in this way; UNSUPPORTED where it cannot be done so. */
int rp_matmul_mid_plan_tile(const struct rp_matmul_cuda *op, const struct rp_matmul_mid_tile *tile,
                            uint32_t segment, struct rp_arena *memory,
                            struct rp_cuda_launch *out_launch,
                            struct rp_cuda_partials *out_partials, struct rp_error *err);

#ifdef __cplusplus
}
#endif
#endif
