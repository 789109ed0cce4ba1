/* latent_post_cuda.h - what lies between the GEMMs and attention over latents, in one kernel: the
 * norm of a token's latent, RoPE of its last columns, the row into the pages; RoPE of the last
 * columns of every head of q, and q rounded to the type of the GEMM that reads it. Bit-equal to
 * norm, rope, kv_write and scale run one after the other.
 *
 * The row and q may come from different tensors at different times: either may be left out. The row
 * is stored in the page alone; of q only the rotated columns are stored back. */
#ifndef RP_ATTENTION_LATENT_POST_CUDA_H
#define RP_ATTENTION_LATENT_POST_CUDA_H

#include "device/cuda_launch.h"
#include "kvcache/kv_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Columns of a latent and of its rotated part that the kernel supports: the sum of a norm of 512
 * columns has the order of four warps. */
#define RP_LATENT_POST_RANK 512u
#define RP_LATENT_POST_ROPE 64u

struct rp_latent_post_cuda {
    struct rp_cuda_rows rows;
    struct rp_kv_layout kv;
    struct rp_values row; /* f32, RANK + ROPE columns; data NULL: left out */
    const float *norm;    /* (RANK) */
    float eps, weight_offset;
    uint32_t layer, table;   /* as in attention.h */
    const float *rope_table; /* (position_count, ROPE / 2, {cos, sin}) */
    uint32_t position_count;
    struct rp_values q; /* f32, heads of head_dim columns, the last ROPE rotated; NULL: none */
    struct rp_values rounded; /* all columns of q; NULL: not wanted */
    uint32_t heads, head_dim; /* head_dim: a multiple of four */
};
int rp_latent_post_cuda_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
