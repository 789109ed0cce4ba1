/* lower_recurrent_cuda.c - operators with recurrent state. */
#include "backend/cuda/lower_internal_cuda.h"
#include "device/recurrent_cuda.h"

int rp_lower_conv(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_conv_cuda args = {.rows = rows_of(low, op),
                                .in = values_of(low, &op->in[0]),
                                .out = values_of(low, &op->out),
                                .cols = op->out.cols,
                                .conv = op->u.conv,
                                .max_seq_rows = low->bucket.rows,
                                .decode = low->bucket.decode};
    if (op->u.conv.gated) {
        args.gate_in = values_of(low, &op->in[1]);
        args.gate_out = values_of(low, &op->in[2]);
    }
    int status = constant_of(low, op->vector, (size_t)args.cols * args.conv.width, &args.weight);
    return status == RP_OK ? ADD_LAUNCH(low, fused, "conv", rp_conv_cuda_run, args) : status;
}

int rp_lower_gated_delta(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_gated_delta_cuda args = {.rows = rows_of(low, op),
                                       .limits = low->device->limits,
                                       .qkv = values_of(low, &op->in[0]),
                                       .ba = values_of(low, &op->in[1]),
                                       .out = values_of(low, &op->out),
                                       .delta = op->u.delta,
                                       .max_seq_rows = low->bucket.rows,
                                       .decode = low->bucket.decode};
    int status = constant_of(low, op->vector, args.delta.value_heads, &args.a_log);
    if (status == RP_OK)
        status = constant_of(low, op->bias, args.delta.value_heads, &args.dt_bias);
    return status == RP_OK ? ADD_LAUNCH(low, fused, "gated_delta", rp_gated_delta_cuda_run, args)
                           : status;
}
