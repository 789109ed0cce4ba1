/* cpu_lower_internal.h - the state of lowering for the CPU, shared by its files. */
#ifndef RP_BACKEND_CPU_LOWER_INTERNAL_H
#define RP_BACKEND_CPU_LOWER_INTERNAL_H

#include "backend/cpu/cpu_internal.h"
#include "backend/lowering.h"
#include "device/experts.h"

struct rp_cpu_lowering {
    struct rp_graph *graph;
    const struct rp_program *program;
    const struct rp_bindings *bindings;
    const struct rp_bucket *bucket;
    struct rp_error *err;
    /* For GEMMs with 8-bit weights, and those of experts: one block per worker, as large as the
     * graph's largest GEMM needs. */
    void *scratch;
    size_t scratch_bytes;
    /* The launch before the fused operator in work, which exchanges what its members give; bytes of
     * the block that are taken. */
    struct rp_cpu_exchange_args *exchange;
    size_t exchange_at;
};

/* cpu_lower_experts.c */
int rp_cpu_emit_expert_order(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                             struct rp_cpu_launch *launch);
int rp_cpu_emit_expert_gemm(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                            struct rp_cpu_launch *launch);
int rp_cpu_emit_expert_sum(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                           struct rp_cpu_launch *launch);

/* cpu_lower_heads.c */
int rp_cpu_emit_head_linear(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                            struct rp_cpu_launch *launch);

/* cpu_lower_recurrent.c */
int rp_cpu_emit_conv(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                     struct rp_cpu_launch *launch);
int rp_cpu_emit_gated_delta(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                            struct rp_cpu_launch *launch);

#endif
