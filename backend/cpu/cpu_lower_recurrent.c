/* Launches of operators with recurrent state (device/recurrent.h). */
#include "backend/cpu/cpu_lower_internal.h"
#include "device/recurrent.h"

int rp_cpu_emit_conv(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                     struct rp_cpu_launch *launch) {
    const struct rp_op *op = op_of(low, fused, 0);
    struct rp_conv_args *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    *args = (struct rp_conv_args){.step = low->bindings->step,
                                  .in = values_of(low, &op->in[0]),
                                  .out = values_of(low, &op->out),
                                  .weight = op->vector,
                                  .cols = op->out.cols,
                                  .conv = op->u.conv};
    if (op->u.conv.gated) {
        args->gate_in = values_of(low, &op->in[1]);
        args->gate_out = values_of(low, &op->in[2]);
    }
    launch->run = rp_conv_cpu;
    launch->args = args;
    return RP_OK;
}

int rp_cpu_emit_gated_delta(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                            struct rp_cpu_launch *launch) {
    const struct rp_op *op = op_of(low, fused, 0);
    struct rp_gated_delta_args *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    *args = (struct rp_gated_delta_args){.step = low->bindings->step,
                                         .qkv = values_of(low, &op->in[0]),
                                         .ba = values_of(low, &op->in[1]),
                                         .out = values_of(low, &op->out),
                                         .a_log = op->vector,
                                         .dt_bias = op->bias,
                                         .delta = op->u.delta};
    launch->run = rp_gated_delta_cpu;
    launch->args = args;
    return RP_OK;
}
