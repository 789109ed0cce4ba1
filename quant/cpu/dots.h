/* dots.h - dot products of rows in f64, the bulk of the work of gptq.c and cholesky.c.
 *
 *   out(i, j) += sign * sum over k of a(i, k) * b(j, k)        i < rows_a, j < rows_b
 *
 * The order of each sum is fixed: pieces of 512 terms; in each, four sums of every fourth term,
 * added in order, then the remainder. Multiplication and addition are rounded separately, so that
 * bits are the same on every machine and for any tiling. Threads: no shared state. */
#ifndef RP_QUANT_DOTS_H
#define RP_QUANT_DOTS_H

#include "device/cpu_isa.h"

#include <stddef.h>

struct rp_dots {
    const double *a, *b;
    size_t a_stride, b_stride, out_stride; /* elements */
    size_t rows_a, rows_b, len;
    double *out; /* overlaps neither */
    double sign;
};

typedef void (*rp_dots_fn)(const struct rp_dots *dots);
rp_dots_fn rp_dots_find(enum rp_cpu_isa isa);

#endif
