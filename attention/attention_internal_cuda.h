/* attention_internal_cuda.h - shared by the CUDA attention kernels: the plan, the workspace, and
 * the launchers that rp_attention_cuda_lower chooses from.
 *
 * The plan is written on the device once per forward graph, from the live rows, one for each mask
 * class (distinct window), and read by every layer:
 *
 *   head     how long the lists are
 *   decode   one entry per live decode row; their splits form one sequence, row by row, in each row
 *   KV head by
 *            KV head, in each head split by split. A block processes an equal part of the sequence.
 *   tiles    prompt rows cut into query tiles, those that see most keys first. In pairs: two
 *            neighboring tiles are one of twice the queries, listed twice, for each half of the KV
 *            heads; a row's last one may have no neighbor and is listed once, for all KV heads
 *
 * A program class has more lists, written by a second kernel (attention_plan_program.cuh):
 *
 *   units    per decode row the units of RP_ATTENTION_SPLIT keys that are not skipped, in rising
 *   order: index * 2,
 *            plus 1 where single pairs must be evaluated. The row's keys are numbered in this
 *            list's
 *            order, without gaps:
 *            first_split is 0, position is the last number, `first` is the token's own position.
 *   blocks   per tile the key blocks that are not skipped, as bits: (tile, word, {any, partial})
 *   bounds   per tile {end of the existing keys, number of blocks}
 *   order    the tiles, those with most blocks first
 *
 * A row or tile that sees nothing still has one unit or block, all of whose pairs are masked.
 *
 * Plain C: the lowering and the kernels include it. */
#ifndef RP_ATTENTION_ATTENTION_INTERNAL_CUDA_H
#define RP_ATTENTION_ATTENTION_INTERNAL_CUDA_H

#include "attention/attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Most splits of a decode row: a row that sees more keys than this many splits hold doubles its
 * split size until it fits. Split boundaries depend only on the row's position and window.
 * SPLITS_MAX has one more, because a window may begin inside a split. */
#define RP_ATTENTION_SPLITS     16u
#define RP_ATTENTION_SPLITS_MAX (RP_ATTENTION_SPLITS + 1u)

/* Keys in the shortest split of a decode row: twice as many with 8-bit pages, for the same number
 * of bytes. With a mask program always RP_ATTENTION_SPLIT, the size of its units. */
#define RP_ATTENTION_SHORTEST_SPLIT(page)                                                          \
    ((page) == RP_DTYPE_INT8 || (page) == RP_DTYPE_FP8_E4M3 ? 2 * RP_ATTENTION_SPLIT               \
                                                            : RP_ATTENTION_SPLIT)

/* Query heads per KV head that the tensor-core kernels pack into one tile. */
#define RP_ATTENTION_GROUP_MAX 16u

struct rp_attention_plan_head {
    uint32_t decode_rows;
    uint32_t decode_splits; /* sum over the rows, for one KV head */
    uint32_t tiles;
    uint32_t pad[13];
};

struct rp_attention_plan_row {
    uint32_t begin; /* splits of all earlier rows, for one KV head */
    uint32_t splits;
    uint32_t split_log2;  /* keys per split, as a power of two */
    uint32_t first_split; /* the absolute index of its first one: first key >> split_log2 */
    uint32_t first;       /* first visible position */
    uint32_t position;    /* of the row's token: the last visible key */
    uint32_t token, slot;
};

struct rp_attention_plan_tile {
    uint32_t slot;
    uint32_t token;    /* of its first query, in the step's tokens */
    uint32_t position; /* of its first query */
    uint32_t count;    /* consecutive queries, at most rp_attention_prefill_cuda_tile, or twice */
    uint32_t half;     /* 1: for the second half of the KV heads */
};

/* The plan of one mask class, in device memory. List capacities are those of the step. */
struct rp_attention_cuda_plan_view {
    struct rp_attention_plan_head *head;
    struct rp_attention_plan_row *rows;
    struct rp_attention_plan_tile *tiles;
    /* NULL without a mask program. */
    uint32_t *units;  /* (row_capacity, unit_capacity) */
    uint32_t *blocks; /* (tile_capacity, block_words, 2) */
    uint32_t *bounds; /* (tile_capacity, 2) */
    uint32_t *order;  /* (tile_capacity) */
    uint32_t *done;   /* finished blocks of the planner kernel; zero between kernels */
};

/* Layout of the workspace. Counters are zero between kernels: the last block to count resets
 * them. */
struct rp_attention_cuda_workspace {
    struct rp_attention_cuda_plan_view plans[RP_ATTENTION_CLASSES_MAX];
    uint32_t row_capacity, tile_capacity;
    uint32_t unit_capacity, block_words; /* of the longest sequence */
    /* (row_capacity, KV heads or groups of heads) finished splits of a decode row */
    uint32_t *arrivals;
    /* (RP_ATTENTION_CLAIMS) for kernels that claim work: [0] decode, [1] prefill */
    uint32_t *claims;
    float *partials; /* unmerged partial sums of decode splits: (blocks, slots, partial) */
    uint32_t partial_blocks;
};
#define RP_ATTENTION_CLAIMS 16u

/* Its size in bytes; base NULL: only counts. */
size_t rp_attention_cuda_carve(const struct rp_attention_cuda_config *config, unsigned char *base,
                               struct rp_attention_cuda_workspace *out);

enum rp_attention_cuda_rows {
    RP_ATTENTION_DECODE_ROWS = 1,
    RP_ATTENTION_PROMPT_ROWS = 2,
    RP_ATTENTION_ALL_ROWS = 3
};

/* Arguments of every attention launcher below. */
struct rp_attention_cuda_args {
    struct rp_attention_cuda_config config;
    struct rp_attention_args args;
    struct rp_attention_cuda_workspace workspace;
    uint32_t mask_class; /* index into config.windows and workspace.plans */
    uint32_t rows;       /* generic: enum rp_attention_cuda_rows; it needs no plan */
    struct rp_cuda_stamp stamp;
    /* launches this program's kernels; NULL: the built-in ones */
    const struct rp_attention_program *program;
};

/* Decode rows: pages of bf16 or 8 bits of at least 16 tokens, head dim 64, 96, 128 or 256, groups
 * up to 16. */
bool rp_attention_decode_cuda_supports(const struct rp_attention_cuda_config *config);
int rp_attention_decode_cuda_run(const void *args, struct CUstream_st *stream);
/* Variants for 8-bit pages, each compiled in its own file. */
int rp_attention_decode_int8_cuda_run(const struct rp_attention_cuda_args *args,
                                      struct CUstream_st *stream);
int rp_attention_decode_fp8_cuda_run(const struct rp_attention_cuda_args *args,
                                     struct CUstream_st *stream);
/* Blocks in its largest grid, and f32 values in one block's partial sums. */
uint32_t rp_attention_decode_cuda_blocks(const struct rp_attention_cuda_config *config);
size_t rp_attention_decode_cuda_partial_floats(const struct rp_attention_cuda_config *config);

/* Prompt rows. tile: queries per tile of the plan; depends only on the sizes, not on the bucket. */
bool rp_attention_prefill_cuda_supports(const struct rp_attention_cuda_config *config);
uint32_t rp_attention_prefill_cuda_tile(const struct rp_attention_cuda_config *config);
/* Whether its plan lists tiles in pairs. */
bool rp_attention_prefill_cuda_pairs(const struct rp_attention_cuda_config *config);
/* Whether Hopper's kernel supports these sizes. */
bool rp_attention_prefill_cuda_has_wgmma(const struct rp_attention_cuda_config *config);
/* Keys of one block. */
uint32_t rp_attention_prefill_cuda_keys(const struct rp_attention_cuda_config *config);
int rp_attention_prefill_cuda_run(const void *args, struct CUstream_st *stream);
/* mma.sync variants for 8-bit pages, each compiled in its own file. */
int rp_attention_prefill_int8_cuda_run(const struct rp_attention_cuda_args *args,
                                       struct CUstream_st *stream);
int rp_attention_prefill_fp8_cuda_run(const struct rp_attention_cuda_args *args,
                                      struct CUstream_st *stream);

/* Latents of 512 + 64 values, in pages of bf16 or 8 bits, under masks without a program: decode
 * rows, then prompt rows. groups: of heads that share a decode block; blocks, partial_floats: as of
 * decode; tile: tokens of a prompt tile of the plan. */
bool rp_attention_latent_cuda_supports(const struct rp_attention_cuda_config *config);
uint32_t rp_attention_latent_cuda_groups(const struct rp_attention_cuda_config *config);
uint32_t rp_attention_latent_cuda_blocks(const struct rp_attention_cuda_config *config);
size_t rp_attention_latent_cuda_partial_floats(const struct rp_attention_cuda_config *config);
uint32_t rp_attention_latent_cuda_tile(const struct rp_attention_cuda_config *config);
int rp_attention_latent_cuda_run(const void *args, struct CUstream_st *stream);
int rp_attention_latent_prefill_cuda_run(const void *args, struct CUstream_st *stream);

/* Any head dim up to 640, pages of any type and size, of latents too, any group; decode and prompt
 * rows. */
int rp_attention_generic_cuda_run(const void *args, struct CUstream_st *stream);

/* The planner. tile_queries 0: no tile list. */
struct rp_attention_plan_cuda {
    struct rp_attention_cuda_config config;
    struct rp_attention_cuda_workspace workspace;
    uint32_t tile_queries;
    bool pairs;
    struct rp_cuda_stamp stamp;
};
int rp_attention_plan_cuda_run(const void *args, struct CUstream_st *stream);

#define RP_ATTENTION_PLAN_PROGRAM_THREADS 256u

/* Writes the lists of one program class, after the planner. */
struct rp_attention_plan_program_args {
    struct rp_step_view step;
    struct rp_attention_cuda_plan_view plan;
    uint32_t row_capacity, tile_capacity, unit_capacity, block_words;
    uint32_t heads, block_keys; /* block_keys 0: no tiles */
    struct rp_cuda_stamp stamp;
};
struct rp_attention_plan_program {
    struct rp_attention_plan_program_args args;
    const struct rp_attention_program *program;
    uint32_t blocks; /* of the grid */
    bool dependent_launch;
};
int rp_attention_plan_program_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
