/* attention_internal_cuda.h - what the CUDA attention kernels share: the plan, the workspace, and
 * the launchers that rp_attention_cuda_lower chooses from.
 *
 * The plan is written on the device once per forward graph, from the live rows, one for each mask
 * class (distinct window), and read by every layer:
 *
 *   head     how long the lists are
 *   decode   one entry per live decode row; their splits form one line, row by row, in each row KV head by
 *            KV head, in each head split by split. A block takes an equal part of the line.
 *   tiles    prompt rows cut into tiles of queries, those that see most keys first
 *
 * A program's class has more, from a kernel of its own after that one (attention_plan_program.cuh):
 *
 *   units    of each decode row the units of RP_ATTENTION_SPLIT keys that are not skipped, in rising order: index * 2,
 *            plus 1 where the pairs must be asked. The row's keys are numbered in this list's order, without gaps:
 *            first_split is 0, position is the last number, `first` is the token's own position.
 *   blocks   of each tile the blocks of keys that are not skipped, as bits: (tile, word, {any, partial})
 *   bounds   of each tile {past the last key that exists, how many blocks}
 *   order    the tiles, those with most blocks first
 *
 * A row or tile that sees nothing has one unit or block all the same, whose pairs say so.
 *
 * Plain C: the lowering and the kernels include it. */
#ifndef RP_ATTENTION_ATTENTION_INTERNAL_CUDA_H
#define RP_ATTENTION_ATTENTION_INTERNAL_CUDA_H

#include "attention/attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A decode row has at most this many splits: when it sees more keys than a split's times this, its
 * splits double until it fits. Where they lie depends on the row's position and window alone. One
 * more, because a window may begin inside a split. */
#define RP_ATTENTION_SPLITS     16u
#define RP_ATTENTION_SPLITS_MAX (RP_ATTENTION_SPLITS + 1u)

/* Keys of a decode row's shortest splits: of 8-bit pages twice as many, which are as many
 * bytes. A program's are RP_ATTENTION_SPLIT always, as its units. */
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
    uint32_t begin; /* splits of the rows before it, for one KV head */
    uint32_t splits;
    uint32_t split_log2;  /* keys per split, as a power of two */
    uint32_t first_split; /* the absolute index of its first one: first key >> split_log2 */
    uint32_t first;       /* first visible position */
    uint32_t position;    /* of its token: the last visible key */
    uint32_t token, slot;
};

struct rp_attention_plan_tile {
    uint32_t slot;
    uint32_t token;    /* of its first query, in the step's tokens */
    uint32_t position; /* of its first query */
    uint32_t count; /* queries, at most rp_attention_prefill_cuda_tile; they follow one another */
};

/* The plan of one mask class, on the device. The lists' capacities are those of the step. */
struct rp_attention_cuda_plan_view {
    struct rp_attention_plan_head *head;
    struct rp_attention_plan_row *rows;
    struct rp_attention_plan_tile *tiles;
    /* NULL without a mask program. */
    uint32_t *units;  /* (row_capacity, unit_capacity) */
    uint32_t *blocks; /* (tile_capacity, block_words, 2) */
    uint32_t *bounds; /* (tile_capacity, 2) */
    uint32_t *order;  /* (tile_capacity) */
    uint32_t *done;   /* blocks of the planner's kernel that are; zero between kernels */
};

/* The workspace, cut up. Counters are zero between kernels: whoever counts resets them. */
struct rp_attention_cuda_workspace {
    struct rp_attention_cuda_plan_view plans[RP_ATTENTION_CLASSES_MAX];
    uint32_t row_capacity, tile_capacity;
    uint32_t unit_capacity, block_words; /* of the longest sequence */
    uint32_t *arrivals; /* (row_capacity, kv_heads) splits of a decode row that are done */
    /* (RP_ATTENTION_CLAIMS) for kernels that claim work: [0] decode, [1] prefill */
    uint32_t *claims;
    float *partials; /* decode's unmerged splits: (blocks, slots, partial) */
    uint32_t partial_blocks;
};
#define RP_ATTENTION_CLAIMS 16u

/* Bytes of it; base NULL: counting. */
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
    const struct rp_attention_program *program; /* whose kernels are launched; NULL: built in */
};

/* Decode rows: pages of bf16 or 8 bits of at least 16 tokens, head dim 64, 96, 128 or 256, groups
 * up to 16. */
bool rp_attention_decode_cuda_supports(const struct rp_attention_cuda_config *config);
int rp_attention_decode_cuda_run(const void *args, struct CUstream_st *stream);
/* Its parts for 8-bit pages, in files of their own. */
int rp_attention_decode_int8_cuda_run(const struct rp_attention_cuda_args *args,
                                      struct CUstream_st *stream);
int rp_attention_decode_fp8_cuda_run(const struct rp_attention_cuda_args *args,
                                     struct CUstream_st *stream);
/* Blocks of its largest grid, and f32 values of one block's partials. */
uint32_t rp_attention_decode_cuda_blocks(const struct rp_attention_cuda_config *config);
size_t rp_attention_decode_cuda_partial_floats(const struct rp_attention_cuda_config *config);

/* Prompt rows. tile: queries of one tile of the plan; it depends on the sizes alone, not on the
 * bucket. */
bool rp_attention_prefill_cuda_supports(const struct rp_attention_cuda_config *config);
uint32_t rp_attention_prefill_cuda_tile(const struct rp_attention_cuda_config *config);
/* Whether Hopper's kernel supports these sizes. */
bool rp_attention_prefill_cuda_has_wgmma(const struct rp_attention_cuda_config *config);
/* Keys of one block. */
uint32_t rp_attention_prefill_cuda_keys(const struct rp_attention_cuda_config *config);
int rp_attention_prefill_cuda_run(const void *args, struct CUstream_st *stream);
/* Its parts by mma.sync for 8-bit pages, in files of their own. */
int rp_attention_prefill_int8_cuda_run(const struct rp_attention_cuda_args *args,
                                       struct CUstream_st *stream);
int rp_attention_prefill_fp8_cuda_run(const struct rp_attention_cuda_args *args,
                                      struct CUstream_st *stream);

/* Any head dim up to 256, pages of any type and size, any group; both kinds of rows. */
int rp_attention_generic_cuda_run(const void *args, struct CUstream_st *stream);

/* The planner. tile_queries 0: no list of tiles. */
struct rp_attention_plan_cuda {
    struct rp_attention_cuda_config config;
    struct rp_attention_cuda_workspace workspace;
    uint32_t tile_queries;
    struct rp_cuda_stamp stamp;
};
int rp_attention_plan_cuda_run(const void *args, struct CUstream_st *stream);

#define RP_ATTENTION_PLAN_PROGRAM_THREADS 256u

/* The lists of one program's class, after the planner. */
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
