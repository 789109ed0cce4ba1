/* Launches of a mixture of experts (struct rp_experts, program.h). */
#include "backend/cpu/cpu_lower_internal.h"
#include "quant/matmul_experts.h"

int rp_cpu_emit_expert_order(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                             struct rp_cpu_launch *launch) {
    const struct rp_op *op = op_of(low, fused, 0);
    struct rp_expert_order_args *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    *args = (struct rp_expert_order_args){
        .step = low->bindings->step,
        .ids = values_of(low, &op->in[0]),
        .order = values_of(low, &op->out).data,
        .experts = op->u.experts.experts,
        /* All ranks route all rows: one of them counts. */
        .stats = low->graph->device->rank == 0 ? low->bindings->step.expert_stats : NULL};
    launch->run = rp_expert_order_cpu;
    launch->args = args;
    return RP_OK;
}

static void run_gemm(const void *args, const struct rp_cpu_worker *worker) {
    rp_expert_matmul(args, worker);
}

int rp_cpu_emit_expert_gemm(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                            struct rp_cpu_launch *launch) {
    const struct rp_op *op = op_of(low, fused, 0);
    struct rp_values in = values_of(low, &op->in[0]), out = values_of(low, &op->out);
    bool down = op->kind == RP_OP_EXPERT_DOWN;
    int status = rp_lowering_check_input(low->program, op, low->err);
    struct rp_expert_matmul_args *args = status == RP_OK ? new_args(low, sizeof *args) : NULL;
    if (!args)
        return status == RP_OK ? out_of_memory(low) : status;
    *args = (struct rp_expert_matmul_args){.gemm = {.weight = op->weight,
                                                    .bias = op->vector,
                                                    .in = in.data,
                                                    .out = out.data,
                                                    .in_stride = in.stride,
                                                    .out_stride = out.stride,
                                                    .out_dtype = out.dtype,
                                                    .gated = !down,
                                                    .fn = op->u.experts.fn,
                                                    .scratch = low->scratch,
                                                    .scratch_bytes = low->scratch_bytes},
                                           .experts = op->u.experts.experts.count,
                                           .order = values_of(low, &op->in[1]).data,
                                           .in_divisor = down ? 0 : op->u.experts.experts.used,
                                           .by_choice = down,
                                           .isa = low->graph->device->isa};
    launch->run = run_gemm;
    launch->args = args;
    return RP_OK;
}

struct sum_launch {
    struct rp_step_view step;
    uint32_t cols;
    struct rp_expert_sum_args args;
};

static void sum_cols(const void *args, uint32_t row, uint32_t first, uint32_t last) {
    rp_expert_sum_cols(args, row, first, last);
}

static void run_sum(const void *args, const struct rp_cpu_worker *worker) {
    const struct sum_launch *launch = args;
    rp_cpu_share_cols(worker, rp_live_rows(&launch->step, RP_ROWS_TOKEN), launch->cols, sum_cols,
                      &launch->args);
}

int rp_cpu_emit_expert_sum(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                           struct rp_cpu_launch *launch) {
    const struct rp_op *op = op_of(low, fused, 0);
    bool shared = op->u.expert_sum.shared, gated = op->u.expert_sum.gated;
    struct sum_launch *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    *args = (struct sum_launch){.step = low->bindings->step,
                                .cols = op->out.cols,
                                .args = {.in = values_of(low, &op->in[0]),
                                         .weights = values_of(low, &op->in[1]),
                                         .out = values_of(low, &op->out),
                                         .used = op->u.expert_sum.experts.used}};
    if (shared)
        args->args.shared = values_of(low, &op->in[2]);
    if (gated)
        args->args.gate = values_of(low, &op->in[3]);
    launch->run = run_sum;
    launch->args = args;
    return RP_OK;
}
