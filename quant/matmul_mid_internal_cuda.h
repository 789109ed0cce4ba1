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
    uint32_t tokens; /* 128 or 256 */
    uint32_t width;  /* weight rows of the instruction */
    uint32_t rows;   /* of them in use: of a tile */
    uint32_t stages; /* 0: as many as fit into shared_bytes */
    uint32_t shared_bytes;
    uint32_t early; /* stages of weights asked for before the kernel waits for its predecessor; 0: all */
    uint32_t ahead; /* boxes of weights asked for, into L2, before their stages are free */
    uint32_t next_ahead; /* boxes of the next product's weights asked for, into L2, by each block */
    uint32_t group;      /* boxes of weights that are asked for at a time; 0: 1 */
    bool eager;          /* frees a stage as early as possible */
    bool partials;       /* a block takes one segment and leaves it to the reader */
    uint32_t promotion, policy; /* EXPERIMENT */
};

/* A matrix as the blocks of a product walk through it. */
struct rp_matmul_mid_weights {
    CUtensorMap map;         /* (n, k), or (n / 16)(gates, ups)(8)(k); a box is 64 columns of a tile */
    uint32_t rows;           /* of a tile */
    uint32_t units;          /* of work: (tile, segment), tile-major; block b has b, b + grid ... */
    uint32_t segments;       /* of K; 1 where the sum is not cut up */
    uint32_t blocks, segment_blocks; /* of 64 columns: in all, of a segment */
    uint32_t grid;
    bool gated;
};

/* Frozen arguments; 64-byte aligned, for the tensor maps. */
struct rp_matmul_mid_args {
    struct rp_matmul_mid_weights weights;
    struct rp_matmul_mid_weights next; /* of the product after this; units 0: none is known */
    CUtensorMap in_map;                /* (max_rows, k) */
    const uint32_t *live;              /* live rows, on the device */
    void *out;                         /* f32, gated: bf16; or the partials: (segments, max_rows, n) */
    size_t out_stride, split_stride;
    uint32_t columns; /* of out */
    uint32_t stages, shared_bytes, shared_most;
    struct rp_matmul_mid_tile tile;
    enum rp_activation fn;
    bool dependent;
};

int rp_matmul_mid_cuda_run(const void *args, struct CUstream_st *stream);

/* Once per kernel that args uses, outside any capture. NOT_FOUND when there is none for the tile. */
int rp_matmul_mid_cuda_prepare(const struct rp_matmul_mid_args *args);

/* True when rp_matmul_mid_plan can plan the product; of sizes, types and alignment alone. */
bool rp_matmul_mid_takes(const struct rp_matmul_cuda *op);
/* As rp_matmul_cuda_plan. UNSUPPORTED where the workspace is too small. */
int rp_matmul_mid_plan(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                       struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                       struct rp_error *err);

/* Plans the product in this way; UNSUPPORTED where it cannot be done so. */
int rp_matmul_mid_plan_tile(const struct rp_matmul_cuda *op, const struct rp_matmul_mid_tile *tile,
                            uint32_t segment, struct rp_arena *memory,
                            struct rp_cuda_launch *out_launch,
                            struct rp_cuda_partials *out_partials, struct rp_error *err);

/* `next` runs after `first`: what rp_matmul_cuda_follow does for products of this kernel. */
void rp_matmul_mid_follow(struct rp_cuda_launch *first, const struct rp_cuda_launch *next);

#ifdef __cplusplus
}
#endif
#endif
