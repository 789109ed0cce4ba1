/* matmul_internal.h - interface of matmul_cpu_simd.c to matmul_cpu.c. */
#ifndef RP_QUANT_MATMUL_INTERNAL_H
#define RP_QUANT_MATMUL_INTERNAL_H

#include "quant/matmul.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define RP_MATMUL_HAS_SIMD 1
/* NULL when `isa` has no kernel for this format. */
rp_matmul_fn rp_matmul_select_simd(enum rp_cpu_isa isa, const struct rp_matrix *weight);
#else
#define RP_MATMUL_HAS_SIMD 0
#endif

/* matmul_cpu_8.c: GEMMs on 8-bit weights, every layout and level. */
rp_matmul_fn rp_matmul_select_8(enum rp_cpu_isa isa, const struct rp_matrix *weight);

/* Bias, accumulation and rounding of `count` outputs from column n of one row. */
void rp_matmul_finish(const struct rp_matmul_args *args, size_t row, size_t n, size_t count,
                      float *values);
/* The same for gates and their ups; `half`: rows of each. */
void rp_matmul_finish_gated(const struct rp_matmul_args *args, enum rp_cpu_isa isa, size_t row,
                            size_t n, size_t half, size_t count, float *gates, float *ups);

/* matmul_cpu_blocks.c: GEMMs on GGUF's blocks, every layout and level. */
rp_matmul_fn rp_matmul_select_blocks(enum rp_cpu_isa isa, const struct rp_matrix *weight);
size_t rp_matmul_scratch_blocks(const struct rp_matrix *weight, uint32_t m);

/* --- GEMMs of experts (matmul_experts.h): what each kernel adds to matmul_experts.c ----------- */

/* Rows of one expert that are computed together. */
#define RP_EXPERT_ROWS 96u

struct rp_expert_block {
    struct rp_matrix weight;    /* of the expert */
    struct rp_matmul_args args; /* with this weight; in: the block's first row, or scratch */
    uint32_t rows;              /* 1 to RP_EXPERT_ROWS */
    const int32_t *out_rows;    /* (rows) rows of out; NULL: 0, 1, .. */
    unsigned char *scratch;     /* 8 bits and blocks: the prepared rows */
};

static inline size_t rp_expert_out_row(const int32_t *out_rows, size_t row) {
    return out_rows ? (size_t)out_rows[row] : row;
}

/* All of a block's rows times panels [panel, panel + panels) of its weight; gated: panels of gates,
 * and those of their ups. On the calling thread. */
void rp_expert_run_scalar(const struct rp_expert_block *block, size_t panel, size_t panels);
void rp_expert_run_8(enum rp_cpu_isa isa, const struct rp_expert_block *block, size_t panel,
                     size_t panels);
/* Row `row` of args->in becomes prepared row `at` of the block. */
void rp_expert_prepare_8(enum rp_cpu_isa isa, const struct rp_expert_block *block, size_t row,
                         uint32_t at);
void rp_expert_run_blocks(enum rp_cpu_isa isa, const struct rp_expert_block *block, size_t panel,
                          size_t panels);
void rp_expert_prepare_blocks(const struct rp_expert_block *block, size_t row, uint32_t at);
#if RP_MATMUL_HAS_SIMD
void rp_expert_run_simd(enum rp_cpu_isa isa, const struct rp_expert_block *block, size_t panel,
                        size_t panels);
#endif

/* --- tiles of matmul_cpu_8_simd.c ------------------------------------------------------ */

#define RP_TILE_8_ROWS   4u
#define RP_TILE_8_PANELS 2u

/* rows x panels outputs of 16, over `quads` of k. */
struct rp_tile_8 {
    const unsigned char *weights; /* first panel, first quad */
    const int32_t *heads;         /* first panel's -128 * sums */
    const unsigned char *inputs;  /* first row, first quad: f32, int8, or int8 + 128 (offset) */
    void *sums;                   /* (rows, RP_TILE_8_PANELS, 16) f32 or int32 */
    size_t panel_stride, row_bytes, quads;
    bool begin; /* the sums begin */
};

typedef void (*rp_tile_8_fn)(const struct rp_tile_8 *tile);

struct rp_kernel_8 {
    enum rp_cpu_isa isa;
    bool integers;                       /* sums are int32 */
    bool offset;                         /* inputs are int8 + 128 */
    uint32_t rows[RP_TILE_8_PANELS + 1]; /* most rows of a tile with that many panels */
    rp_tile_8_fn tiles[RP_TILE_8_ROWS][RP_TILE_8_PANELS];
};

#if RP_MATMUL_HAS_SIMD
/* NULL when `isa` has no tiles; `integers`: INT8 times quantized rows. */
const struct rp_kernel_8 *rp_kernel_8_select(enum rp_cpu_isa isa, enum rp_dtype dtype,
                                             bool integers);
#endif

/* --- tiles of matmul_cpu_blocks_simd.c -------------------------------------------------- */

/* Columns that are decoded at a time: one block of 256, or eight of 32. */
#define RP_CHUNK_COLS           256u
#define RP_TILE_BLOCKS_ROWS_MAX 8u

/* rows x 16 outputs, added to `totals`. The rows' fields are row_bytes apart. */
struct rp_tile_blocks {
    float *totals;  /* (rows, 16) */
    const float *x; /* f32 tiles: inputs of the chunk */
    const float *w; /* (cols, 16): their weights */
    size_t row_bytes;
    uint32_t cols;
    /* integer tiles: */
    const int8_t *codes;          /* (cols / 4, 16, 4) */
    const float *scale, *minimum; /* (groups, 16); minimum NULL: none */
    uint32_t group;               /* 16 or 32 columns */
    const int8_t *quantized;      /* inputs */
    const float *input_scales;    /* for each 32 columns */
    const int32_t *input_sums;    /* of `quantized`, for each 16 columns */
};

typedef void (*rp_tile_blocks_fn)(const struct rp_tile_blocks *tile);

struct rp_kernel_blocks {
    enum rp_cpu_isa isa;
    /* One block of a panel (blocks_decode.h). */
    void (*decode)(uint32_t type, const unsigned char *block, int8_t *codes, float *scale,
                   float *minimum);
    /* `cols` columns of a panel to f32 (cols, 16): of a type without scales, and of one with. */
    void (*widen)(uint32_t type, const unsigned char *values, uint32_t cols, float *w);
    void (*expand)(const int8_t *codes, const float *scale, const float *minimum, uint32_t group,
                   uint32_t cols, float *w);
    /* By rows: 1, 2, 4, 8; NULL: not so many. */
    rp_tile_blocks_fn integers[4], floats[4];
    bool few; /* rp_kernel_blocks_few is for it */
};

/* Decodes and multiplies a chunk of a panel without a buffer between: the tile's codes, scale and
 * minimum are not read. */
typedef void (*rp_few_blocks_fn)(const unsigned char *panel, const struct rp_tile_blocks *tile);

#if RP_MATMUL_HAS_SIMD
/* NULL when `isa` has no tiles. */
const struct rp_kernel_blocks *rp_kernel_blocks_select(enum rp_cpu_isa isa);
/* matmul_cpu_blocks_few.c, for AVX-512 VNNI; NULL: not for this type, or for so many rows. */
rp_few_blocks_fn rp_kernel_blocks_few(uint32_t type, size_t rows);
#endif

#endif
