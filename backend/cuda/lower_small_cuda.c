/* lower_small_cuda.c - embed, norm, rope, activation, add, gather, soft_cap, and what they are fused to. */
#include "backend/cuda/lower_internal_cuda.h"

int rp_lower_embed(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    struct rp_embed_cuda args = {.rows = rows_of(low, op->rows),
                                 .table = op->weight->data,
                                 .scales = op->weight->scales,
                                 .dtype = op->weight->dtype,
                                 .vocab = op->weight->rows,
                                 .hidden = op->weight->cols,
                                 .scale = op->u.embed.scale,
                                 .out = values_of(low, &op->out)};
    return ADD_LAUNCH(low, at, count, "embed", rp_embed_cuda_run, args);
}

/* Codes in place of the rows that the operators [at, at + count) give, where the next one is a product of them alone. */
static struct rp_cuda_codes give_codes(struct lowering *low, uint32_t at, uint32_t count,
                                       struct rp_values *out) {
    struct rp_cuda_codes codes = rp_lower_codes_of(low, at + count, &op_at(low, at)[count - 1].out);
    if (codes.data)
        out->data = NULL;
    return codes;
}

static int add_norm_launch(struct lowering *low, uint32_t at, uint32_t count,
                           const struct rp_op *norm, struct rp_values in, bool gather) {
    struct rp_norm_cuda args = {.rows = rows_of(low, norm->rows),
                                .in = in,
                                .out = values_of(low, &norm->out),
                                .cols = norm->in[0].cols,
                                .group = norm->u.norm.group,
                                .eps = norm->u.norm.eps,
                                .weight_offset = norm->u.norm.weight_offset,
                                .gather = gather};
    if (args.group == args.cols)
        args.codes = give_codes(low, at, count, &args.out);
    int status = constant_of(low, norm->vector, args.group, &args.weight);
    if (status != RP_OK)
        return status;
    const char *names[2][2] = {{"norm", "norm_codes"}, {"gather_norm", "gather_norm_codes"}};
    return ADD_LAUNCH(low, at, count, names[gather][args.codes.data != NULL], rp_norm_cuda_run,
                      args);
}

int rp_lower_norm(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    return add_norm_launch(low, at, count, op, values_of(low, &op->in[0]), false);
}

uint32_t rp_lower_match_gather_norm(const struct lowering *low, uint32_t at) {
    return rp_lowering_is_gather_norm(low->program, at, low->end) ? 2 : 0;
}

int rp_lower_gather_norm(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *gather = op_at(low, at);
    return add_norm_launch(low, at, count, gather + 1, values_of(low, &gather->in[0]), true);
}

int rp_lower_rope(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    struct rp_rope_cuda args = {.rows = rows_of(low, op->rows),
                                .x = values_of(low, &op->out),
                                .heads = op->u.rope.heads,
                                .head_dim = op->u.rope.head_dim,
                                .rotary_dim = op->u.rope.rotary_dim,
                                .position_count = op->u.rope.position_count};
    int status =
        constant_of(low, op->table, (size_t)args.position_count * args.rotary_dim, &args.table);
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, at, count, "rope", rp_rope_cuda_run, args);
}

int rp_lower_activation(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    struct rp_activation_cuda args = {.rows = rows_of(low, op->rows),
                                      .in = values_of(low, &op->in[0]),
                                      .out = values_of(low, &op->out),
                                      .partials = take_pending(low, op->in[0].tensor),
                                      .cols = op->out.cols,
                                      .fn = op->u.activation.fn};
    args.codes = give_codes(low, at, count, &args.out);
    return ADD_LAUNCH(low, at, count, args.codes.data ? "activation_codes" : "activation",
                      rp_activation_cuda_run, args);
}

int rp_lower_add(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    struct rp_add_cuda args = {rows_of(low, op->rows), values_of(low, &op->in[0]),
                               values_of(low, &op->in[1]), values_of(low, &op->out), op->out.cols};
    return ADD_LAUNCH(low, at, count, "add", rp_add_cuda_run, args);
}

int rp_lower_soft_cap(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    struct rp_soft_cap_cuda args = {rows_of(low, op->rows), values_of(low, &op->in[0]),
                                    values_of(low, &op->out), op->out.cols, op->u.soft_cap.cap};
    return ADD_LAUNCH(low, at, count, "soft_cap", rp_soft_cap_cuda_run, args);
}

int rp_lower_gather(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    struct rp_gather_cuda args = {rows_of(low, op->rows), values_of(low, &op->in[0]),
                                  values_of(low, &op->out), op->out.cols};
    return ADD_LAUNCH(low, at, count, "gather_rows", rp_gather_cuda_run, args);
}

/* add to the residual, then norm of it; the last layer's, which gathers, where its term was left unsummed. */
uint32_t rp_lower_match_add_norm(const struct lowering *low, uint32_t at) {
    uint32_t count = rp_lowering_add_norm(low->program, at, low->end);
    bool sums = low->pending.count && low->pending_tensor == op_at(low, at)->in[1].tensor;
    return count == 3 && !sums ? 0 : count;
}

int rp_lower_add_norm(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *add = op_at(low, at), *norm = add + count - 1;
    struct rp_add_norm_cuda args = {.rows = rows_of(low, norm->rows),
                                    .residual = values_of(low, &add->out),
                                    .term = values_of(low, &add->in[1]),
                                    .out = values_of(low, &norm->out),
                                    .partials = take_pending(low, add->in[1].tensor),
                                    .cols = norm->in[0].cols,
                                    .eps = norm->u.norm.eps,
                                    .weight_offset = norm->u.norm.weight_offset,
                                    .behind_product = low->attention.behind_product,
                                    .gather = count == 3};
    args.codes = give_codes(low, at, count, &args.out);
    int status = constant_of(low, norm->vector, args.cols, &args.weight);
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, at, count, args.codes.data ? "add_norm_codes" : "add_norm",
                      rp_add_norm_cuda_run, args);
}
