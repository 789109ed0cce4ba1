/* experts_cuda.h - which experts compute a row, in what order, and the sum of what they compute, on
 * CUDA: one launcher each. Layouts and rules are those of experts.h; softmax and sums of a row are
 * added in another order than the CPU's, which depends on the row alone.
 *
 * Counts never leave the device. EXPERT_ORDER also writes the work list of the GEMMs that follow
 * (rp_expert_tile): their blocks find their work by its index.
 * Thread: the one that owns the stream. Errors: a cudaError_t as int. */
#ifndef RP_DEVICE_EXPERTS_CUDA_H
#define RP_DEVICE_EXPERTS_CUDA_H

#include "device/cuda_launch.h"
#include "device/experts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The work list, on the device: count of the first entry is how many follow. Each has the positions
 * [first, first + count) of the order, all of one expert; those of an expert have equal counts, up
 * to the last one, and none is empty. */
struct rp_expert_tile {
    uint32_t expert, first, count, unused;
};
#define RP_EXPERT_TILE_LEAST 8u /* rows of a tile at most: a multiple of this */

/* Entries after the first at most, where `rows` rows choose experts and a tile has at most
 * tile_rows of them. */
static inline uint32_t rp_expert_tiles_most(struct rp_experts experts, uint32_t rows,
                                            uint32_t tile_rows) {
    uint32_t choices = rows * experts.used;
    return RP_MIN(experts.count, choices) + choices / tile_rows;
}

struct rp_route_cuda {
    struct rp_cuda_rows rows;
    /* Bias on the device. Logits, or partials, of max_rows rows: dead ones are read, too. */
    struct rp_route_args route;
    struct rp_cuda_partials partials; /* count not 0: the sums of these in place of logits */
};
int rp_route_cuda_run(const void *args, struct CUstream_st *stream);

struct rp_expert_order_cuda {
    struct rp_cuda_rows rows;
    struct rp_values ids; /* (rows, used) f32 */
    int32_t *order;       /* offsets (count + 1), then choices */
    struct rp_experts experts;
    struct rp_expert_tile *tiles; /* 1 + rp_expert_tiles_most */
    uint32_t tile_rows;           /* a multiple of 8 */
    /* Host memory; NULL: not counted. It is read and written by the last layer's launch alone, for
     * it is far; until then `totals` on the device has the counts, zeros when made. */
    struct rp_expert_stats *stats, *totals;
    bool is_last;
    double ratio_bounds[RP_EXPERT_BINS - 1]; /* rp_expert_ratio_bounds */
};
int rp_expert_order_cuda_run(const void *args, struct CUstream_st *stream);

/* Both in one launch, the order of what the route has chosen: up to RP_ROUTE_ORDER_ROWS rows. */
#define RP_ROUTE_ORDER_ROWS 32u
struct rp_route_order_cuda {
    struct rp_route_cuda route;
    struct rp_expert_order_cuda order;
};
int rp_route_order_cuda_run(const void *args, struct CUstream_st *stream);

/* Both, and before them the router's GEMM of bf16, in one launch; logits are stored nowhere. They
 * have the bits of quant/matmul_cuda.h: segments of K, each a chain of m*n*k16 from zero, added in
 * rising order, then the bias. */
struct rp_router_cuda {
    struct rp_route_order_cuda order; /* without logits and partials */
    const void *weight;               /* (experts, k), row-major */
    const float *bias;                /* (experts) on the device, or NULL */
    const void *in;                   /* (max_rows, in_stride) */
    size_t in_stride;
    uint32_t k, segment; /* columns, and those of a segment */
};
/* Whether there is a kernel for these sizes; it needs Hopper. */
bool rp_router_cuda_fits(const struct rp_router_cuda *args);
int rp_router_cuda_run(const void *args, struct CUstream_st *stream);

/* out = the sum, or residual + the sum. */
struct rp_expert_sum_cuda {
    struct rp_cuda_rows rows;
    struct rp_expert_sum_args sum;
    struct rp_values residual; /* f32; data NULL: none */
    uint32_t cols;
};
int rp_expert_sum_cuda_run(const void *args, struct CUstream_st *stream);
/* Up to so many rows one launch adds the sum to the residual and norms it (ops_cuda.h:
 * rp_add_norm_cuda). */
#define RP_EXPERT_SUM_NORM_ROWS 128u

#ifdef __cplusplus
}
#endif
#endif
