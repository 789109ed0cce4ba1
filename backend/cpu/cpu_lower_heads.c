/* Launches of GEMMs that have a matrix for each head (HEAD_LINEAR, program.h). */
#include "backend/cpu/cpu_lower_internal.h"
#include "quant/matmul_heads.h"

struct head_launch {
    struct rp_step_view step;
    struct rp_head_matmul_args args;
};

static void run_heads(const void *args, const struct rp_cpu_worker *worker) {
    const struct head_launch *launch = args;
    rp_head_matmul(&launch->args, rp_live_rows(&launch->step, RP_ROWS_TOKEN), worker);
}

int rp_cpu_emit_head_linear(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                            struct rp_cpu_launch *launch) {
    const struct rp_op *op = op_of(low, fused, 0);
    struct rp_values in = values_of(low, &op->in[0]);
    struct rp_values out = values_of(low, &op->out);
    int status = rp_lowering_check_input(low->program, op, low->err);
    if (status != RP_OK)
        return status;
    struct head_launch *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    *args =
        (struct head_launch){.step = low->bindings->step,
                             .args = {.gemm = {.weight = op->weight,
                                               .in = in.data,
                                               .out = out.data,
                                               .in_stride = in.stride,
                                               .out_stride = out.stride,
                                               .out_dtype = out.dtype},
                                      .heads = op->u.head_linear.heads,
                                      .in_step = op->u.head_linear.in_step,
                                      .out_step = op->u.head_linear.out_step,
                                      .run = rp_matmul_select(low->graph->device->isa, op->weight),
                                      .copied = op->u.head_linear.copied,
                                      .copied_step = op->u.head_linear.copied_step}};
    if (op->u.head_linear.copied) {
        struct rp_values copy = values_of(low, &op->in[1]);
        args->args.copy = copy.data;
        args->args.copy_stride = copy.stride;
    }
    launch->run = run_heads;
    launch->args = args;
    return RP_OK;
}
