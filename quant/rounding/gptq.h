/* gptq.h - rounds weights to 8 or 4 bits using the statistics of their inputs: GPTQ (Frantar et al.
 * 2022).
 *
 * The output error on input rows x is delta H delta^T for each output, with delta = w - quantized
 * value * scale and H = sum of x x^T. With H + lambda I = R R^T (cholesky.h), U(i, j) = R(i, j) /
 * R(j, j):
 *
 *   error = sum over j of R(j, j)^2 * (delta(j) + sum over i < j of delta(i) U(i, j))^2
 *
 * so columns are taken in rising order, and each is rounded to the quantized value that is nearest
 * to w(j) + sum of delta(i) U(i, j). This is GPTQ in the form of QuIP (Chee et al. 2023, theorem
 * 6): the same quantized values without inverting H. Scales are unchanged, as are quantized values
 * without feedback. lambda is 1 % of H's mean diagonal, or 1 where that is 0, so that inputs that
 * are always zero, and fewer rows than columns, are handled.
 *
 * Cost for k columns and n outputs, in f64: k^2 * 8 bytes, T k^2 / 2 multiply-adds for H of T rows,
 * k^3 / 6 for R, n k^2 / 2 for the quantized values. Bits depend neither on the number of workers
 * nor on the machine. Thread: one, the team's owner. */
#ifndef RP_QUANT_GPTQ_H
#define RP_QUANT_GPTQ_H

#include "base/status.h"
#include "device/cpu_team.h"
#include "device/program.h"

/* Error statistics of one input, shared by all matrices that have it. */
struct rp_gptq_factor {
    size_t cols;
    double *values; /* (cols, cols): R(j, j) on the diagonal, U(i, j) at (j, i); above it void */
};

/* Bytes of a factor, and of the scratch to compute it; SIZE_MAX on overflow. */
size_t rp_gptq_factor_bytes(size_t cols);

/* inputs: (count, cols) bf16, finite; each divided by divisors[column], above 0, unless NULL.
 * Errors: OVERFLOW, NO_MEMORY; *out is empty then. */
int rp_gptq_factor_make(const uint16_t *inputs, size_t count, size_t cols, const float *divisors,
                        struct rp_cpu_team *team, struct rp_gptq_factor *out,
                        struct rp_error *err) RP_MUST_USE;
void rp_gptq_factor_deinit(struct rp_gptq_factor *factor);

/* Which numbers an INT8 quantized value may be. E2M1: doubled values, as in fp4.h. */
enum rp_gptq_grid { RP_GPTQ_8_BITS, RP_GPTQ_INT4, RP_GPTQ_E2M1 };

/* Rows of weights as quantized values, the factor's columns wide. */
struct rp_gptq_matrix {
    size_t rows;
    const float *weights; /* (rows, cols), finite */
    const float *scales;  /* (rows), or (rows, groups); above 0 */
    size_t group;         /* columns per scale; 0: all */
    enum rp_dtype dtype;  /* INT8 or FP8_E4M3 */
    enum rp_gptq_grid grid;
    void *quantized; /* (rows, cols) */
};

/* Nearest quantized values become GPTQ's: within +-127, -8 to 7, +-12, or +-448. errors: (rows)
 * as above, or NULL. NO_MEMORY: quantized values are as before. */
int rp_gptq_round(const struct rp_gptq_factor *factor, const struct rp_gptq_matrix *matrix,
                  struct rp_cpu_team *team, double *errors, struct rp_error *err) RP_MUST_USE;

/* The same error of the quantized values as they are, and of quantized values of zero: the outputs'
 * own sum of squares. */
int rp_gptq_errors(const struct rp_gptq_factor *factor, const struct rp_gptq_matrix *matrix,
                   struct rp_cpu_team *team, double *errors, struct rp_error *err) RP_MUST_USE;
int rp_gptq_signals(const struct rp_gptq_factor *factor, const struct rp_gptq_matrix *matrix,
                    struct rp_cpu_team *team, double *signals, struct rp_error *err) RP_MUST_USE;

#endif
