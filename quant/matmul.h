/* matmul.h - out(m, n) = in(m, k) * weight(n, k)^T [+ bias(n)] [+ residual], on the CPU; or, gated,
 * the activation of gate_up's GEMM: out(m, n / 2) = fn(first half) * second half.
 *
 * in has the weight's dtype (f32 or bf16; bf16 for 8-bit weights) and out is f32 or bf16; sums are
 * f32. Rows [0, m) are computed, m is read at run time from the step's live counts by the caller.
 * Scalar reference in matmul_cpu.c (row-major or panels); fast variants in matmul_cpu_simd.c
 * (panels).
 *
 * Weights of 8 bits: matmul_cpu_8.c, tiles in matmul_cpu_8_simd.c. x are the input's values, or
 * their quantized values with a scale a row (RP_INPUT_QUANTIZED; quantize.h); xs that scale or 1,
 * ws the weight's.
 *   INT8, input quantized   (f32)sum * (xs * ws), sum an exact int32: the same bits for every m,
 *   tile, worker, instruction set
 *   all others              f32 sum over k ascending of x * quantized value, fma (the reference
 *   rounds multiplication and addition separately),
 *                           then sum * (xs * ws); with blocks, a sum each 128 columns: total += sum
 *                           * ws, then total * xs */
#ifndef RP_QUANT_MATMUL_H
#define RP_QUANT_MATMUL_H

#include "device/cpu_isa.h"
#include "device/cpu_team.h"
#include "quant/matrix.h"

struct rp_matmul_args {
    /* copied by the caller if the args outlive lowering */
    const struct rp_matrix *weight;
    const float *bias;            /* (n) or NULL */
    const void *in;               /* (m, in_stride) of weight->dtype */
    void *out;                    /* (m, out_stride) of out_dtype */
    size_t in_stride, out_stride; /* elements */
    enum rp_dtype out_dtype;
    /* out (f32) += GEMM: the fused residual add; same bits as GEMM, then add */
    bool accumulate;
    /* Only where rp_matmul_gates says so; same bits as the GEMM into f32, then the activation
     * (ops_simd.h). */
    bool gated;
    enum rp_activation fn;
    /* rp_matmul_scratch_bytes for each worker of the team, one after the other, aligned to a cache
     * line. */
    void *scratch;
    size_t scratch_bytes; /* of one worker */
};

/* Computes this worker's share of the outputs. No barrier inside: callers put one after. */
typedef void (*rp_matmul_fn)(const struct rp_matmul_args *args, uint32_t m,
                             const struct rp_cpu_worker *worker);

void rp_matmul_scalar(const struct rp_matmul_args *args, uint32_t m,
                      const struct rp_cpu_worker *worker);

/* Scratch that a worker needs for a GEMM of up to m rows, a multiple of a cache line: prepared
 * input rows of 8-bit GEMMs. 0 for f32 and bf16 weights. */
size_t rp_matmul_scratch_bytes(const struct rp_matrix *weight, uint32_t m);

/* The kernel for this format; never NULL (scalar is the fallback). */
rp_matmul_fn rp_matmul_select(enum rp_cpu_isa isa, const struct rp_matrix *weight);

/* Whether the GEMM can do the activation after a gate_up matrix: both halves are whole panels.
 * The same for every kernel, so that programs are lowered alike on all machines. */
bool rp_matmul_gates(const struct rp_matrix *weight);

/* Repacks a row-major matrix for `isa` in place (PANEL_16 for all but scalar); takes ownership of
 * data. A matrix already in panels is unchanged. */
int rp_matrix_prepare_cpu(struct rp_matrix *matrix, enum rp_cpu_isa isa,
                          struct rp_error *err) RP_MUST_USE;

/* Row `row` of the matrix in any layout, as f32 into out(cols): the embedding of tied weights. */
void rp_matrix_row_f32(const struct rp_matrix *matrix, uint32_t row, float *out);

#endif
