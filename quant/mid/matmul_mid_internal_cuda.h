/* matmul_mid_internal_cuda.h - GEMMs of 65 to 256 rows: tiles and arguments of their kernel. */
#ifndef RP_QUANT_MATMUL_MID_INTERNAL_CUDA_H
#define RP_QUANT_MATMUL_MID_INTERNAL_CUDA_H

#include "quant/matmul_cuda.h"

#include <cuda.h> /* CUtensorMap */

#ifdef __cplusplus
extern "C" {
#endif

/* Tiling of a GEMM. It does not affect a single bit of the result. */
struct rp_matmul_mid_tile {
    uint32_t tokens; /* 128 or 256 */
    uint32_t width;  /* weight rows of the instruction */
    uint32_t rows;   /* of them in use: of a tile */
    uint32_t stages; /* 0: as many as fit into shared_bytes */
    uint32_t shared_bytes;
    /* stages of weights requested before the kernel waits for its predecessor; 0: all */
    uint32_t early;
    /* split-K: a block computes one segment; the reader adds the partial sums */
    bool partials;
};

/* Frozen arguments; 64-byte aligned, for the tensor maps. */
struct rp_matmul_mid_args {
    /* (n, k), or (n / 16)(gates, ups)(8)(k); k in units (rp_matmul_cuda_units) */
    CUtensorMap weight_map;
    CUtensorMap in_map;   /* (max_rows, k) */
    CUtensorMap out_map;  /* (segments)(max_rows)(columns) of out */
    const uint32_t *live; /* live rows, on the device */
    struct rp_cuda_stamp stamp;
    void *out; /* f32, gated: bf16; or the partials */
    size_t out_stride, split_stride;
    uint32_t columns, max_rows; /* of out */
    uint32_t units;    /* of work: (tile, segment), tile-major; block b has b, b + grid ... */
    uint32_t segments; /* of K; 1 where the sum is not cut up */
    uint32_t blocks, segment_blocks; /* of 128 bytes of K: in all, of a segment */
    uint32_t grid, stages, shared_bytes, shared_most;
    struct rp_matmul_mid_tile tile;
    enum rp_activation fn;
    bool gated, boxes /* out_map is there */, dependent;
    enum rp_dtype dtype;                    /* of weights and tokens */
    const float *weight_scales, *in_scales; /* (n), (max_rows); of 8 bits */
};

int rp_matmul_mid_cuda_run(const void *args, struct CUstream_st *stream);

/* Once per kernel that args uses, outside any capture. NOT_FOUND when there is none for the
 * tile. */
int rp_matmul_mid_cuda_prepare(const struct rp_matmul_mid_args *args);

/* True when rp_matmul_mid_plan can plan the GEMM; of sizes, types and alignment alone. */
bool rp_matmul_mid_takes(const struct rp_matmul_cuda *op);
/* As rp_matmul_cuda_plan. UNSUPPORTED where the workspace is too small: the caller falls back to
 * another kernel. */
int rp_matmul_mid_plan(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                       struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                       struct rp_error *err);

/* Plans the GEMM in this way, segment in units; UNSUPPORTED where it cannot be done so: n must
 * be a multiple of 8 (gated: 16), out's stride even, and more than one segment takes tile.partials
 * and their reader. */
int rp_matmul_mid_plan_tile(const struct rp_matmul_cuda *op, const struct rp_matmul_mid_tile *tile,
                            uint32_t segment, struct rp_arena *memory,
                            struct rp_cuda_launch *out_launch,
                            struct rp_cuda_partials *out_partials, struct rp_error *err);

#ifdef __cplusplus
}
#endif
#endif
