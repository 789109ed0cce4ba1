/* matmul_experts_cuda.h - the GEMMs of a layer of experts on CUDA: each row with the matrices of
 * the experts that it chose.
 *
 * The weight has the matrices of all experts one after the other (quant/matmul_experts.h). The work
 * list that EXPERT_ORDER leaves on the device says which rows an expert has: the grid is made for
 * the most that a bucket can hold, and each touched expert's weights are read once for up to
 * rp_matmul_experts_tile_rows rows, those of the others never.
 *
 * Reduction contract: the sums of matmul_cuda.h with one segment, all of K. So a row's bits depend
 * on the row and its experts alone. Types, sizes and GPUs without a tensor-core kernel, and W8A16
 * and block scales, take f32 chains: lane l of a warp has the columns l + 32 j in rising j, and
 * lanes are added by halves (matmul_experts_generic_cuda.cu). Weights in tiles (quant/tiles.h) of
 * MXFP4 have the bits of bf16 weights of the same values. A bias is added to the finished sum. */
#ifndef RP_QUANT_MATMUL_EXPERTS_CUDA_H
#define RP_QUANT_MATMUL_EXPERTS_CUDA_H

#include "device/experts_cuda.h"
#include "quant/matmul_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_matmul_experts_cuda {
    struct rp_cuda_rows rows; /* max_rows: choices of the bucket */
    struct rp_cuda_limits limits;
    /* data and scales on the device: row-major, or MXFP4 in tiles, one part */
    const struct rp_matrix *weight;
    const float *bias; /* (rows of weight) on the device, or NULL */
    struct rp_experts experts;
    const int32_t *order;               /* EXPERT_ORDER's output */
    const struct rp_expert_tile *tiles; /* its work list, of rp_matmul_experts_tile_rows */
    const void *in;                     /* of the weight's dtype; for W8A16 and tiles bf16 */
    size_t in_stride;
    const float *in_scales; /* W8A8: of each row of `in` */
    /* The input of the choice c is row c / in_divisor; 0: the row of its position in the order. */
    uint32_t in_divisor;
    bool by_choice;       /* its output is row c, else the row of its position */
    struct rp_values out; /* f32 or bf16 */
    bool gated;           /* as in struct rp_matmul_cuda */
    enum rp_activation fn;
};

/* Rows of a tile at most, for a bucket of so many tokens. in_tiles: a GEMM that reads the work list
 * has its weights in tiles. */
uint32_t rp_matmul_experts_tile_rows(struct rp_experts experts, uint32_t tokens, bool in_tiles);

int rp_matmul_experts_cuda_plan(const struct rp_matmul_experts_cuda *op, struct rp_arena *memory,
                                struct rp_cuda_launch *out_launch, struct rp_error *err);

/* Tests: any tile of weights, a multiple of 16 (gated: of gates and ups together; those of weights
 * in tiles are rounded up to 32) up to 128. 0: as planned. */
int rp_matmul_experts_cuda_plan_tile(const struct rp_matmul_experts_cuda *op, uint32_t tile_cols,
                                     struct rp_arena *memory, struct rp_cuda_launch *out_launch,
                                     struct rp_error *err);

#ifdef __cplusplus
}
#endif
#endif
