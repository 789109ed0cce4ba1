/* lower_small_cuda.c - embed, norm, layer_norm, rope, activation, add, scale, gather, soft_cap, and
 * their fusions. */
#include "backend/cuda/lower_internal_cuda.h"

int rp_lower_embed(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_embed_cuda args = {.rows = rows_of(low, op),
                                 .table = op->weight->data,
                                 .scales = op->weight->scales,
                                 .dtype = op->weight->dtype,
                                 .vocab = op->weight->rows,
                                 .hidden = op->weight->cols,
                                 .scale = op->u.embed.scale,
                                 .out = values_of(low, &op->out)};
    return ADD_LAUNCH(low, fused, "embed", rp_embed_cuda_run, args);
}

/* Where the output goes as quantized rows, in place of `out`, when a GEMM reads it so. */
static struct rp_cuda_quantized quantized_output(const struct lowering *low,
                                                 const struct rp_fused_op *fused,
                                                 struct rp_values *out) {
    if (fused->quantized_to == RP_FUSED_NONE)
        return (struct rp_cuda_quantized){0};
    const struct rp_fused_op *reader = &low->fused.ops[fused->quantized_to];
    out->data = NULL;
    return rp_lower_quantize(low, op_at(low, rp_fused_find(low->program, reader, RP_OP_LINEAR)));
}

int rp_lower_norm(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *first = member_of(low, fused, 0), *norm = last_of(low, fused);
    bool gather = first->kind == RP_OP_GATHER_ROWS;
    struct rp_norm_cuda args = {.rows = rows_of(low, norm),
                                .in = values_of(low, &first->in[0]),
                                .out = values_of(low, &norm->out),
                                .cols = norm->in[0].cols,
                                .group = norm->u.norm.group,
                                .eps = norm->u.norm.eps,
                                .weight_offset = norm->u.norm.weight_offset,
                                .gather = gather};
    args.quantized = quantized_output(low, fused, &args.out);
    int status = constant_of(low, norm->vector, args.group, &args.weight);
    if (status != RP_OK)
        return status;
    const char *names[2][2] = {{"norm", "norm_quantize"}, {"gather_norm", "gather_norm_quantize"}};
    return ADD_LAUNCH(low, fused, names[gather][args.quantized.data != NULL], rp_norm_cuda_run,
                      args);
}

int rp_lower_rope(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_rope_cuda args = {.rows = rows_of(low, op),
                                .x = values_of(low, &op->out),
                                .heads = op->u.rope.heads,
                                .head_dim = op->u.rope.head_dim,
                                .rotary_dim = op->u.rope.rotary_dim,
                                .position_count = op->u.rope.position_count};
    int status =
        constant_of(low, op->table, (size_t)args.position_count * args.rotary_dim, &args.table);
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, fused, "rope", rp_rope_cuda_run, args);
}

int rp_lower_activation(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_activation_cuda args = {.rows = rows_of(low, op),
                                      .in = values_of(low, &op->in[0]),
                                      .out = values_of(low, &op->out),
                                      .partials = partials_of(low, fused),
                                      .cols = op->out.cols,
                                      .fn = op->u.activation.fn};
    args.quantized = quantized_output(low, fused, &args.out);
    return ADD_LAUNCH(low, fused, args.quantized.data ? "activation_quantize" : "activation",
                      rp_activation_cuda_run, args);
}

int rp_lower_add(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_add_cuda args = {rows_of(low, op), values_of(low, &op->in[0]),
                               values_of(low, &op->in[1]), values_of(low, &op->out), op->out.cols};
    return ADD_LAUNCH(low, fused, "add", rp_add_cuda_run, args);
}

int rp_lower_soft_cap(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_soft_cap_cuda args = {rows_of(low, op), values_of(low, &op->in[0]),
                                    values_of(low, &op->out), op->out.cols, op->u.soft_cap.cap};
    return ADD_LAUNCH(low, fused, "soft_cap", rp_soft_cap_cuda_run, args);
}

int rp_lower_scale(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_scale_cuda args = {.rows = rows_of(low, op),
                                 .in = values_of(low, &op->in[0]),
                                 .out = values_of(low, &op->out),
                                 .cols = op->out.cols,
                                 .position_count = op->u.scale.position_count,
                                 .factor = op->u.scale.factor};
    int status = constant_of(low, op->table, args.position_count, &args.table);
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, fused, "scale", rp_scale_cuda_run, args);
}

int rp_lower_layer_norm(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_layer_norm_cuda args = {.rows = rows_of(low, op),
                                      .in = values_of(low, &op->in[0]),
                                      .out = values_of(low, &op->out),
                                      .cols = op->out.cols,
                                      .group = op->u.layer_norm.group,
                                      .eps = op->u.layer_norm.eps};
    int status = constant_of(low, op->vector, args.cols, &args.weight);
    if (status == RP_OK)
        status = constant_of(low, op->bias, args.cols, &args.bias);
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, fused, "layer_norm", rp_layer_norm_cuda_run, args);
}

int rp_lower_gather(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_gather_cuda args = {rows_of(low, op), values_of(low, &op->in[0]),
                                  values_of(low, &op->out), op->out.cols};
    return ADD_LAUNCH(low, fused, "gather_rows", rp_gather_cuda_run, args);
}

/* Adds to the residual, then norms it; after the last layer the norm's rows are gathered. */
int rp_lower_add_norm(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *add = member_of(low, fused, 0), *norm = last_of(low, fused);
    struct rp_add_norm_cuda args = {.rows = rows_of(low, norm),
                                    .residual = values_of(low, &add->out),
                                    .term = values_of(low, &add->in[1]),
                                    .out = values_of(low, &norm->out),
                                    .partials = partials_of(low, fused),
                                    .cols = norm->in[0].cols,
                                    .eps = norm->u.norm.eps,
                                    .weight_offset = norm->u.norm.weight_offset,
                                    .behind_product = fused->after_matmul,
                                    .gather = fused->op_count == 3};
    args.quantized = quantized_output(low, fused, &args.out);
    int status = constant_of(low, norm->vector, args.cols, &args.weight);
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, fused, args.quantized.data ? "add_norm_quantize" : "add_norm",
                      rp_add_norm_cuda_run, args);
}
