/* attention_cuda.h - attention over pages on CUDA: planner, decode and prefill kernels, and the
 * fused operator between the qkv GEMM and attention.
 *
 * A step's rows are of two kinds. Decode rows (RP_ROW_DECODE) have one token and go through the
 * decode kernels; prompt rows go through the prefill kernel, whatever their length. Each kind's
 * bits depend only on the row's own q, its sequence's pages and its position: not on batch, slot,
 * padding, chunk or tile.
 *
 *   plan     once per forward graph, after step_begin: work lists in device memory (from live
 *            counts)
 *   decode   query heads of a KV head packed in one tensor-core tile; keys cut into splits at
 *            absolute multiples of RP_ATTENTION_SPLIT (twice it with 8-bit pages; doubled until a
 *            row has few enough: a function of its position and window alone); splits merged in
 *            rising order
 *   prefill  tiles of queries over blocks of keys in rising order from the first block that any
 *            mask of the row can see
 *   latent   pages of latents of 512 + 64 values, decode and prompt rows in two launches: splits as in
 *            decode, tiles as in prefill
 *   generic  any head dim up to 640, f32 pages
 *
 * 8-bit pages (kvcache/kv_layout.h): quantized values enter the matmuls unscaled; K's scale
 * multiplies the score and V's the weight, in f32. Decode and prefill round q to bf16, and round
 * weight * V scale where bf16 pages round the weight; generic rounds nothing. kv_write and qkv_post
 * produce the same quantized values and scales as the CPU, bit for bit (device/quantize_row.h).
 *
 * Sinks are added once, after a row's last key or split.
 *
 * Dead rows (finished slots, padding) write nothing. */
#ifndef RP_ATTENTION_ATTENTION_CUDA_H
#define RP_ATTENTION_ATTENTION_CUDA_H

#include "attention/attention.h"
#include "base/memory.h"
#include "device/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_ATTENTION_SPLIT        128 /* keys; a power of two, at least 128 */
#define RP_ATTENTION_CLASSES_MAX  8   /* distinct windows and mask programs in one model */
#define RP_ATTENTION_LAUNCHES_MAX 4
#define RP_ATTENTION_PLANS_MAX    (1 + RP_ATTENTION_CLASSES_MAX)
#define RP_ATTENTION_CUDA_DIM_MAX 640

struct rp_attention_program; /* attention_program_cuda.h */

/* Shared by all attention operators of a network that have the same heads, KV heads and head
 * dim. */
struct rp_attention_cuda_config {
    struct rp_cuda_limits limits;
    struct rp_step_view step;
    struct rp_kv_layout kv;
    struct rp_bucket bucket;
    uint32_t heads, kv_heads, head_dim;
    uint32_t value_dim; /* as in rp_attention_args */
    uint32_t tables;    /* page tables of a slot, equally long; 0 is the same as 1 */
    /* Mask classes: which keys each query sees, regardless of caps. */
    uint32_t windows[RP_ATTENTION_CLASSES_MAX]; /* 0: no window */
    uint32_t window_count;                      /* of all classes */
    /* For a program class: its kernels, which outlive every launch, and the program, identified by
     * its canonical text. NULL: a window. */
    const struct rp_attention_program *programs[RP_ATTENTION_CLASSES_MAX];
    const struct rp_mask *masks[RP_ATTENTION_CLASSES_MAX];
    /* A GEMM has run since the step began (matmul_cuda.h): when attention's blocks start, the plan,
     * the page tables and all keys except the step's own are complete, and may be read before the
     * grid dependency wait. */
    bool behind_product;
    /* stamp of the next launch; later launches use the following ones */
    struct rp_cuda_stamp stamp;
    unsigned char *workspace; /* rp_attention_cuda_workspace_bytes, zeroed once */
    size_t workspace_bytes;
};

/* Enough for every bucket within the step's capacities (config->bucket is not read). */
size_t rp_attention_cuda_workspace_bytes(const struct rp_attention_cuda_config *config);

/* Launches of the planner, one more for each program; *out_count is 0 when no kernel needs a plan.
 * out must hold RP_ATTENTION_PLANS_MAX launches with programs, else one. */
int rp_attention_cuda_plan(const struct rp_attention_cuda_config *config, struct rp_arena *memory,
                           struct rp_cuda_launch *out, uint32_t *out_count, struct rp_error *err);

/* The mask class of a program, or of a window when program is NULL; negative: not found. */
int rp_attention_cuda_class(const struct rp_attention_cuda_config *config,
                            const struct rp_mask *mask, uint32_t window);

/* Launches of one attention operator, in order; args->step, kv and sizes agree with the config. */
int rp_attention_cuda_lower(const struct rp_attention_cuda_config *config,
                            const struct rp_attention_args *args, struct rp_arena *memory,
                            struct rp_cuda_launch out[RP_ATTENTION_LAUNCHES_MAX],
                            uint32_t *out_count, struct rp_error *err);

struct rp_kv_write_cuda {
    struct rp_cuda_rows rows;
    struct rp_kv_write_args write;
};
int rp_kv_write_cuda_run(const void *args, struct CUstream_st *stream);

/* Columns of a head that the kernel below supports. */
#define RP_QKV_POST_HEAD_DIM_MAX 256

/* Everything between the qkv matmul and attention in one kernel: (sum of partials + bias), norms of
 * q and k per head (when q_norm is set), rope on q and k, K and V into pages, q back into its
 * columns (f32). Bit-equal to norm, rope and kv_write run one after the other. */
struct rp_qkv_post_cuda {
    struct rp_cuda_rows rows;
    struct rp_kv_layout kv;
    struct rp_values qkv;             /* (rows, heads * dim + 2 * kv_heads * dim) f32 */
    struct rp_cuda_partials partials; /* count 0: qkv holds the values */
    const float *q_norm, *k_norm;     /* (head_dim), or NULL */
    const float *rope_table;          /* (position_count, rotary_dim / 2, {cos, sin}) */
    uint32_t heads, kv_heads, head_dim, rotary_dim, position_count;
    uint32_t layer, table; /* as in attention.h */
    float eps, weight_offset;
    bool behind_product; /* the step's counts, rows and slots may be read before the wait */
};
int rp_qkv_post_cuda_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
