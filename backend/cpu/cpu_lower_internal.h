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

static inline struct rp_values values_of(const struct rp_cpu_lowering *low,
                                         const struct rp_view *view) {
    return rp_lowering_values(low->program, low->bindings, view);
}

static inline void *new_args(struct rp_cpu_lowering *low, size_t bytes) {
    return rp_arena_alloc(&low->graph->memory, bytes);
}

static inline const struct rp_op *op_of(const struct rp_cpu_lowering *low,
                                        const struct rp_fused_op *fused, uint32_t member) {
    return &low->program->ops[fused->ops[member]];
}

static inline enum rp_rows rows_of(const struct rp_cpu_lowering *low, const struct rp_op *op) {
    return low->program->domains[op->rows].kind;
}

static inline int out_of_memory(struct rp_cpu_lowering *low) {
    return rp_error_set(low->err, RP_STATUS_NO_MEMORY, "lowering: out of memory");
}

/* cpu_lower_rows.c */
int rp_cpu_emit_rows(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                     struct rp_cpu_launch *launch);
int rp_cpu_emit_cols(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                     struct rp_cpu_launch *launch);
typedef void (*rp_cols_op)(const void *args, uint32_t row, uint32_t first, uint32_t last);
/* A worker's share of rows of `cols` columns: whole rows and parts of them. */
void rp_cpu_share_cols(const struct rp_cpu_worker *worker, uint32_t rows, size_t cols,
                       rp_cols_op run, const void *args);

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
