/* matmul_heads.h - a GEMM for each head, on the CPU: head h's columns of the input times its own
 * matrix. The weight has the matrices of all heads one after the other, rows / heads of each: a
 * multiple of 16.
 *
 * Every output is the sum that rp_matmul_* makes of this row and this head's matrix: the same bits
 * whatever other rows there are. */
#ifndef RP_QUANT_MATMUL_HEADS_H
#define RP_QUANT_MATMUL_HEADS_H

#include "quant/matmul.h"

struct rp_head_matmul_args {
    /* weight: f32 or bf16, of all heads; in and out: of head 0; no bias, no accumulation, no gate,
     * no scratch */
    struct rp_matmul_args gemm;
    uint32_t heads, in_step, out_step; /* steps: columns from a head to the next */
    rp_matmul_fn run;                  /* of the weight */
    /* `copied` columns of each head that follow the output, which is f32 then; NULL and 0: none */
    const float *copy;
    size_t copy_stride;
    uint32_t copied, copied_step;
};

/* Computes this worker's share of rows [0, m). No barrier inside: callers put one after. */
void rp_head_matmul(const struct rp_head_matmul_args *args, uint32_t m,
                    const struct rp_cpu_worker *worker);

#endif
