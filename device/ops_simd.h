/* ops_simd.h - the small operators in vectors, for the processor that is there.
 *
 * The same formulas as ops.h, and the same bits, but for the sums of norms (f64 either way, in
 * another order), the exponential of an activation (exp_simd.h, 2 ulp) and the tangent of a cap
 * (tanh_simd.h, 4e-7). What a value becomes depends on its own inputs alone, never on its place in
 * a vector: so rows shared among workers, chunks and fused kernels give equal bits.
 * Thread: the workers of one job. */
#ifndef RP_DEVICE_OPS_SIMD_H
#define RP_DEVICE_OPS_SIMD_H

#include "device/cpu_isa.h"
#include "device/ops.h"

struct rp_fast_ops {
    rp_row_op norm, layer_norm, rope, activation, add, scale;
    void (*activation_cols)(const struct rp_activation_args *args, uint32_t row, uint32_t col_begin,
                            uint32_t col_end);
    void (*soft_cap_cols)(const struct rp_soft_cap_args *args, uint32_t row, uint32_t col_begin,
                          uint32_t col_end);
    /* rp_gate_values */
    void (*gate)(enum rp_activation fn, const float *gate, const float *up, size_t count, void *out,
                 enum rp_dtype out_dtype);
};

/* The fastest of each; never NULL (the reference of ops.h for RP_ISA_SCALAR). */
const struct rp_fast_ops *rp_fast_ops_select(enum rp_cpu_isa isa);

#endif
