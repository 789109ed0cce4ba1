/* cholesky.h - the triangular factor of a symmetric matrix that is positive definite, from its last
 * row on.
 *
 *   H = R R^T        R upper triangular, its diagonal above 0
 *
 *   R(j, j) = sqrt(H(j, j) - sum over m > j of R(j, m)^2)
 *   R(i, j) = (H(i, j) - sum over m > j of R(i, m) R(j, m)) / R(j, j)        i < j
 *
 * In blocks of 64 columns: one update by all columns after them, then the block itself. n^3 / 6
 * multiply-adds. The bits do not depend on the number of workers. */
#ifndef RP_QUANT_CHOLESKY_H
#define RP_QUANT_CHOLESKY_H

#include "device/cpu_team.h"
#include "quant/cpu/dots.h"

/* h (n, n), row-major: its upper triangle becomes R, elements below the diagonal are neither read
 * nor written. A pivot below `least` (above 0), which only rounding makes where every eigenvalue of
 * H is larger, counts as `least`. Called by every worker of a job; barriers inside, and one at the
 * end. */
void rp_cholesky_upper(double *h, size_t n, double least, rp_dots_fn add,
                       const struct rp_cpu_worker *worker);

#endif
