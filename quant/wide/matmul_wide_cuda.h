/* matmul_wide_cuda.h - GEMMs of many rows of tokens (prompts), bf16 and W8A8 with a scale per
 * output: tiles of 128 tokens, persistent blocks. K is counted in units (rp_matmul_cuda_units). The
 * reduction contract is that of matmul_cuda.h. */
#ifndef RP_QUANT_MATMUL_WIDE_CUDA_H
#define RP_QUANT_MATMUL_WIDE_CUDA_H

#include "quant/matmul_cuda.h"

#include <cuda.h> /* CUtensorMap */

#ifdef __cplusplus
extern "C" {
#endif

#define RP_WIDE_TOKENS 128u /* of a tile: two warpgroups of 64 */
/* Blocks of a cluster, which share the weights of a tile of so many outputs. */
#define RP_WIDE_CLUSTER(cols) ((cols) > 128 ? 2u : 1u)

/* Frozen arguments; 64-byte aligned, for the tensor maps. */
struct rp_matmul_wide_args {
    CUtensorMap weight_map;      /* (n, k); gated: rows of 8 gates, 8 ups in turns */
    CUtensorMap in_map;          /* (max_rows, k) */
    CUtensorMap out_map;         /* (max_rows, out_cols), where bulk_stores */
    CUtensorMap copy_maps[2];    /* of rp_matmul_copy, by *number % 2 */
    const uint32_t *copy_number; /* NULL: no copy */
    uint16_t *copies[2];
    const uint32_t *live; /* live rows, on the device */
    struct rp_cuda_stamp stamp;
    const float *bias;
    void *out;
    size_t out_stride;
    uint32_t out_cols;
    uint32_t cols;                   /* weights of a tile: 128, 192, 256 */
    uint32_t blocks, segment_blocks; /* of 128 bytes of K */
    uint32_t token_tiles, col_tiles;
    uint32_t grid, shared_bytes;
    enum rp_activation fn;
    bool gated, out_bf16, accumulate, dependent;
    bool bulk_stores;                       /* out is aligned for the copy engine */
    enum rp_dtype dtype;                    /* of weights and tokens */
    const float *weight_scales, *in_scales; /* (n), (max_rows); of 8 bits */
};

int rp_matmul_wide_cuda_run(const void *args, struct CUstream_st *stream);
/* Once per kernel, outside any capture; sets the sizes that depend on the kernel. */
int rp_matmul_wide_cuda_prepare(struct rp_matmul_wide_args *args);

/* True when these kernels support the GEMM: more than 256 rows, and rp_matmul_cuda_fits. */
bool rp_matmul_wide_cuda_fits(const struct rp_matmul_cuda *op);

/* Like rp_matmul_cuda_plan, of a GEMM that fits, never with partials. cols: weights of a tile,
 * 0: chosen; it changes no bit. segment: in units. */
int rp_matmul_wide_cuda_plan(const struct rp_matmul_cuda *op, uint32_t cols, uint32_t segment,
                             struct rp_arena *memory, struct rp_cuda_launch *out_launch,
                             struct rp_error *err);

#ifdef __cplusplus
}
#endif
#endif
