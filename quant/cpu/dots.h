/* dots.h - sums of products of rows in f64, by which gptq.c and cholesky.c do all that takes long.
 *
 *   out(i, j) += sign * sum over k of a(i, k) * b(j, k)        i < rows_a, j < rows_b
 *
 * Each sum has one order: pieces of 512 products; of each four sums of every fourth one, added from
 * the first on, then what is left at its end. Products and sums are rounded apart, so that bits are
 * the same on every machine and for any tiling. Threads: arguments alone are touched. */
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
