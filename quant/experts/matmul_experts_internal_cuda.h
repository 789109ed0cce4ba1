/* matmul_experts_internal_cuda.h - arguments of the kernels for experts, and their launchers. */
#ifndef RP_QUANT_MATMUL_EXPERTS_INTERNAL_CUDA_H
#define RP_QUANT_MATMUL_EXPERTS_INTERNAL_CUDA_H

#include "quant/experts/matmul_experts_cuda.h"
#include "quant/tiles.h"

#include <cuda.h> /* CUtensorMap */

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a tile at most: where experts have few rows each, two blocks share an SM. */
#define RP_EXPERTS_FEW  64u
#define RP_EXPERTS_MANY 256u

/* Many rows: those of a box where they lie in the order; shared memory that outputs leave through;
 * static shared memory. */
#define RP_EXPERTS_BOX          32u
#define RP_EXPERTS_STORE_BYTES  (16u * 1024)
#define RP_EXPERTS_STATIC_BYTES (4u * 1024)

/* Stages of the pipeline at least; where they are larger, of tiles. */
#define RP_EXPERTS_STAGES_LEAST       4u
#define RP_EXPERTS_STAGES_LEAST_TILES 3u

/* Frozen arguments of the tensor-core kernel; 64-byte aligned, for the tensor map. */
struct rp_matmul_experts_args {
    /* (rows, k) of all experts; gated: (k)(8)(gates, ups)(eighths of rows). k in units
     * (rp_matmul_cuda_units) */
    CUtensorMap weight_map;
    CUtensorMap in_map;           /* (positions, k), where in_order */
    const unsigned char *weights; /* in tiles of this format; NULL: as the map says */
    struct rp_tile_format format;
    struct rp_cuda_stamp stamp;
    const struct rp_expert_tile *tiles;
    const int32_t *choices; /* of the positions */
    const unsigned char *in;
    size_t in_stride; /* bytes */
    void *out;
    size_t out_stride;                      /* elements */
    const float *weight_scales, *in_scales; /* 8 bits */
    const float *bias;                      /* (rows of all experts), or NULL */
    uint32_t in_divisor;
    uint32_t each;                      /* rows of an expert's matrix */
    uint32_t cols;                      /* weight rows of a tile, 16 to 128 */
    uint32_t col_tiles;                 /* of an expert */
    uint32_t blocks;                    /* stages of K: 128 bytes, of tiles 128 columns */
    uint32_t row_bytes;                 /* of an input row */
    uint32_t weight_bytes, token_bytes; /* of a stage; weights begin it */
    uint32_t stages, stage_bytes, shared_bytes, shared_most, grid;
    uint32_t ahead;         /* many: stages that the first warpgroup is before the second */
    uint64_t weight_policy; /* of L2 */
    enum rp_activation fn;
    enum rp_dtype dtype;
    bool paired;  /* two neighboring outputs lie at a multiple of four bytes */
    bool aligned; /* pieces of 8 outputs lie at a multiple of 16 bytes */
    bool many, gated, by_choice, dependent;
    bool in_order; /* many: an input row is at its position */
};

/* matmul_experts_tiles_kernel.cuh */
int rp_matmul_experts_tiles_run(const void *args, struct CUstream_st *stream);
int rp_matmul_experts_tiles_prepare(const struct rp_matmul_experts_args *args);

int rp_matmul_experts_tc_run(const void *args, struct CUstream_st *stream);
/* Once per kernel that args uses, outside any capture. */
int rp_matmul_experts_tc_prepare(const struct rp_matmul_experts_args *args);

/* Any type, size and GPU; takes a struct rp_matmul_experts_cuda and a copy of its matrix. */
struct rp_matmul_experts_generic {
    struct rp_matmul_experts_cuda op;
    struct rp_matrix weight;
};
int rp_matmul_experts_generic_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
