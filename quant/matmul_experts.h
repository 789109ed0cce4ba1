/* matmul_experts.h - the GEMMs of a layer of experts, on the CPU: each row with the matrices of the
 * experts that it chose.
 *
 * The weight has the matrices of all experts one after the other, rows / count of each: a multiple
 * of 16, and of 32 where gated. Work is shared among the workers as (expert, block of rows,
 * panels), so that each touched expert's weights are read once for up to 96 rows of a step, and
 * those of the others never. Of BLOCKS: one part, which has one type and no order of columns.
 *
 * Every output is the sum that rp_matmul_* makes of this row and this expert's matrix: the same
 * bits whatever other rows there are. */
#ifndef RP_QUANT_MATMUL_EXPERTS_H
#define RP_QUANT_MATMUL_EXPERTS_H

#include "quant/matmul.h"

struct rp_expert_matmul_args {
    /* weight: of all experts, bias too (its rows), or NULL; no accumulation; in and out as below;
     * scratch as rp_expert_matmul_scratch_bytes says, for each worker */
    struct rp_matmul_args gemm;
    uint32_t experts;
    const int32_t *order; /* EXPERT_ORDER's output (program.h) */
    /* The input of the choice c is row c / in_divisor; 0: the row of its position in the order. */
    uint32_t in_divisor;
    bool by_choice; /* its output is row c, else the row of its position */
    enum rp_cpu_isa isa;
};

/* Computes this worker's share. No barrier inside: callers put one after. */
void rp_expert_matmul(const struct rp_expert_matmul_args *args, const struct rp_cpu_worker *worker);

/* tokens: most rows of one expert. */
size_t rp_expert_matmul_scratch_bytes(const struct rp_matrix *weight, uint32_t tokens);

#endif
