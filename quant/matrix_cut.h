/* matrix_cut.h - the part of a matrix that one rank of a group has: runs of rows below each other,
 * or a range of columns, with the scales that belong to them. Quantized values and scales are
 * copied, never computed again: a rank multiplies with the weights of the whole matrix.
 * Thread: any. Memory: rp_matrix_cut allocates data and scales of `out`. */
#ifndef RP_QUANT_MATRIX_CUT_H
#define RP_QUANT_MATRIX_CUT_H

#include "quant/matrix.h"

struct rp_matrix_cut {
    struct {
        uint32_t from, rows; /* rows past the end of the matrix are zeros, with scale 1 */
    } runs[RP_MATRIX_PARTS_MAX];
    uint32_t run_count;
    /* The runs are taken from each of so many equal sections of the rows, the experts of a stack;
     * 0: the matrix is one. */
    uint32_t sections;
    uint32_t col, cols;
};

/* NULL, or why the matrix cannot be cut so: a run or a column range that is not whole blocks of the
 * weights or of their scales. Static text. */
const char *rp_matrix_cut_refusal(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut);
/* The shape, type and scale kind of the result; its data and scales are NULL. */
struct rp_matrix rp_matrix_cut_shape(const struct rp_matrix *matrix,
                                     const struct rp_matrix_cut *cut);
/* Copies the data of a row-major matrix in host memory to `out`, which has that shape and is the
 * caller's to release, also after an error: NO_MEMORY, or UNSUPPORTED where columns are cut that
 * have an order of their own (GPTQ's act-order). */
int rp_matrix_cut(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                  struct rp_matrix *out) RP_MUST_USE;

#endif
