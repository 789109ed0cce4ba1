/* matrix.h - a weight matrix in any format, and the reduction contract of GEMMs on it.
 *
 * Logical shape (rows, cols) = (outputs n, inputs k), as Hugging Face stores a Linear.
 *
 *   RP_LAYOUT_ROW_MAJOR   data[n * cols + k]
 *   RP_LAYOUT_PANEL_16    panels of 16 outputs, K in pairs, so that one 64-byte load of bf16 (128 of
 *                         f32) feeds 16 outputs:
 *     bf16: panel p: for k2 in 0..ceil(K/2): for j in 0..15: { w[16p+j][2*k2], w[16p+j][2*k2+1] }
 *     f32:  panel p: for k in 0..K: for j in 0..15: w[16p+j][k]
 *     8 bits: panel p: 16 int32, for INT8 -128 * sum over k of w[16p+j][k], else 0;
 *             then for k4 in 0..ceil(K/4): for j in 0..15: { w[16p+j][4*k4], .., w[16p+j][4*k4+3] }
 *     outputs past `rows` and k past K are zero.
 *   RP_LAYOUT_TILES       of BLOCKS on a GPU: tiles.h
 *
 * Reduction contract (DESIGN: numerics): each output is one sum over k in an order that depends
 * only on the matrix and the kernel family, never on the number of input rows, the row's place, the
 * thread or the chunk. So a row's result is bit-equal in any batch.
 *
 * INT8 and FP8 E4M3: a weight is data * scale, f32, symmetric: there is no zero point.
 *
 *   RP_SCALE_TENSOR       scales[0]
 *   RP_SCALE_CHANNEL      scales[n]                                      one per output
 *   RP_SCALE_BLOCK_128    scales[(n / 128) * ceil(cols / 128) + k / 128]  FP8 only
 *   RP_SCALE_GROUP_K      reserved: scales[n * ceil(cols / scale_group) + k / scale_group]
 *
 * `input` is the type of the activation rows: unquantized (bf16; W8A16), or quantized per row by
 * the GEMM (W8A8): each row x to integers or FP8 with one scale, max|x| / 127 or max|x| / 448. INT8
 * sums are exact.
 *
 * BLOCKS: rows in blocks (blocks.h), GGUF's or of 4-bit weights with scales per group along K, in
 * parts of whole rows, each of one type. data is part after part; row-major, or in panels that have
 * the same bytes. PLAIN inputs are f32, BF16 inputs are bf16 (W4A16), and an output is the sum over
 * k of an f32 matrix with the same values, k ascending in the order of a part's `columns`.
 * QUANTIZED inputs are bf16, rounded to 8 bits with a scale for each 32
 * columns: an exact integer sum for each group of weights, then, groups ascending,
 *
 *   total = fma(S, (f32)sum * xs, total);  total = fma(-M, xs * (f32)(sum of x), total)
 *
 * Parts without scales (F16, ..) multiply the bf16 values in f32, as PLAIN. */
#ifndef RP_QUANT_MATRIX_H
#define RP_QUANT_MATRIX_H

#include "device/program.h"
#include "quant/blocks.h"

enum rp_layout { RP_LAYOUT_ROW_MAJOR, RP_LAYOUT_PANEL_16, RP_LAYOUT_TILES };

enum rp_scale_kind {
    RP_SCALE_NONE,
    RP_SCALE_TENSOR,
    RP_SCALE_CHANNEL,
    RP_SCALE_BLOCK_128,
    RP_SCALE_GROUP_K
};

enum rp_matrix_input {
    RP_INPUT_PLAIN,     /* f32 for f32 and BLOCKS, bf16 for everything else */
    RP_INPUT_QUANTIZED, /* bf16, quantized row by row inside the GEMM */
    RP_INPUT_BF16       /* of BLOCKS: bf16, as it is */
};

/* Rows of a matrix of blocks that have the same type: q, k and v of one file may differ. */
#define RP_MATRIX_PARTS_MAX 3u
struct rp_matrix_part {
    uint32_t row_begin, rows;
    uint32_t type; /* rp_block_type */
    /* NVFP4: the scale of the part, that its blocks' scales are multiplied or divided by. */
    float factor;
    bool divides;
    /* Column of the input that column k of the part is multiplied with, (cols), owned; parts may
     * share it. NULL: column k. Of BF16 inputs alone: GPTQ's act-order. */
    uint32_t *columns;
};

struct rp_matrix {
    uint32_t rows, cols; /* n, k */
    enum rp_dtype dtype; /* F32, BF16, INT8, FP8_E4M3 or BLOCKS */
    enum rp_layout layout;
    enum rp_scale_kind scale_kind;
    uint32_t scale_group; /* columns per scale of RP_SCALE_GROUP_K */
    void *data;           /* rp_alloc_aligned, owned; NULL when only the shape is known (inspect) */
    /* of scale_kind; rp_alloc_aligned, owned; NULL: none, or only the shape is known */
    const float *scales;
    enum rp_matrix_input input;
    struct rp_matrix_part parts[RP_MATRIX_PARTS_MAX]; /* of BLOCKS, rows ascending */
    uint32_t part_count;
    uint32_t rank; /* of a group of devices: whose it is */
};

/* Columns of 8-bit matrices at most: sums of 128 * 127 stay below 2^31. */
#define RP_INT8_COLS_MAX 131072u

/* Bytes of a panel of 8 bits. */
static inline size_t rp_matrix_panel_bytes_8(uint32_t cols) {
    return 64 + RP_CEIL_DIV((size_t)cols, 4) * 64;
}

/* Scales of the matrix's kind, and the one that weight (row, col) is multiplied with; 1 where there
 * are none. */
size_t rp_matrix_scale_count(const struct rp_matrix *matrix);
float rp_matrix_scale(const struct rp_matrix *matrix, size_t row, size_t col);
/* Weight (row, col) of an 8-bit matrix in any layout, before its scale. */
float rp_matrix_quantized(const struct rp_matrix *matrix, size_t row, size_t col);

/* Type of the input rows of a GEMM with the matrix. */
enum rp_dtype rp_matrix_input_dtype(const struct rp_matrix *matrix);

/* BLOCKS: where the part's data begins. */
size_t rp_matrix_part_offset(const struct rp_matrix *matrix, uint32_t part);
/* BLOCKS: block `block` of row `row`, as in the file. */
void rp_matrix_block(const struct rp_matrix *matrix, const struct rp_matrix_part *part, size_t row,
                     size_t block, unsigned char *out);
/* The same block's values as f32, in the part's order of columns. */
void rp_matrix_block_f32(const struct rp_matrix *matrix, const struct rp_matrix_part *part,
                         size_t row, size_t block, float *out);
/* Applies the part's own scale to `count` scales of its blocks. */
void rp_matrix_part_scale(const struct rp_matrix_part *part, float *scales, size_t count);

/* Rows [begin, begin + rows) of a matrix, as a matrix that borrows its data: whole panels in
 * PANEL_16, and whole blocks of scales. Of BLOCKS: of a matrix with one part. */
struct rp_matrix rp_matrix_slice(const struct rp_matrix *matrix, uint32_t begin, uint32_t rows);

/* Bytes of data in its layout, padding of panels included; 0 on overflow. */
size_t rp_matrix_bytes(const struct rp_matrix *matrix);
void rp_matrix_deinit(struct rp_matrix *matrix);

#endif
