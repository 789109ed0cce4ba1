/* matrix.h - a weight matrix in any format, and what a product promises about it.
 *
 * Logical shape (rows, cols) = (outputs n, inputs k), as Hugging Face stores a Linear.
 *
 *   RP_LAYOUT_ROW_MAJOR   data[n * cols + k]
 *   RP_LAYOUT_PANEL_16    panels of 16 outputs, K in pairs, so that one 64-byte load of bf16 (128 of
 *                         f32) feeds 16 outputs:
 *     bf16: panel p: for k2 in 0..ceil(K/2): for j in 0..15: { w[16p+j][2*k2], w[16p+j][2*k2+1] }
 *     f32:  panel p: for k in 0..K: for j in 0..15: w[16p+j][k]
 *     outputs past `rows` and the odd last k are zero.
 *
 * Reduction contract (DESIGN: numerics): each output is one sum over k in an order that depends only on
 * the matrix and the kernel family, never on the number of input rows, the row's place, the thread or
 * the chunk. So a row's result is bit-equal whoever else is in the batch.
 *
 * Scales are reserved for the quantised formats: per tensor, per output channel, per 128x128 block, and
 * per group along k. */
#ifndef RP_QUANT_MATRIX_H
#define RP_QUANT_MATRIX_H

#include "device/program.h"

enum rp_layout { RP_LAYOUT_ROW_MAJOR, RP_LAYOUT_PANEL_16 };

enum rp_scale_kind {
    RP_SCALE_NONE,
    RP_SCALE_TENSOR,
    RP_SCALE_CHANNEL,
    RP_SCALE_BLOCK_128,
    RP_SCALE_GROUP_K
};

struct rp_matrix {
    uint32_t rows, cols; /* n, k */
    enum rp_dtype dtype; /* F32 or BF16 */
    enum rp_layout layout;
    enum rp_scale_kind scale_kind;
    uint32_t scale_group; /* columns per scale of RP_SCALE_GROUP_K */
    void *data;           /* rp_alloc_aligned, owned; NULL when only the shape is known (inspect) */
    const float *scales;
};

/* Bytes of data in its layout, padding of panels included; 0 on overflow. */
size_t rp_matrix_bytes(const struct rp_matrix *matrix);
void rp_matrix_deinit(struct rp_matrix *matrix);

#endif
