/* lower_small_cuda.c - embed, norm, layer_norm, rope, activation, glu, add, scale, gather,
 * soft_cap, exchanges between ranks, and their fusions. */
#include "backend/cuda/lower_internal_cuda.h"
#include "quant/tiles/matmul_tiles_cuda.h"

int rp_lower_embed(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    if (op->weight->dtype == RP_DTYPE_BLOCKS) {
        struct rp_tiles_embed_cuda args = {.rows = rows_of(low, op),
                                           .table = op->weight->data,
                                           .format = rp_tile_format_of(op->weight->parts[0].type),
                                           .vocab = op->weight->rows,
                                           .hidden = op->weight->cols,
                                           .scale = op->u.embed.scale,
                                           .out = values_of(low, &op->out)};
        return ADD_LAUNCH(low, fused, "embed_tiles", rp_tiles_embed_cuda_run, args);
    }
    struct rp_embed_cuda args = {.rows = rows_of(low, op),
                                 .table = op->weight->data,
                                 .scales = op->weight->scales,
                                 .dtype = op->weight->dtype,
                                 .vocab = op->weight->rows,
                                 .hidden = op->weight->cols,
                                 .scale = op->u.embed.scale,
                                 .out = values_of(low, &op->out),
                                 .first_id = op->u.embed.first_id,
                                 .is_shard = low->program->ranks > 1};
    return ADD_LAUNCH(low, fused, "embed", rp_embed_cuda_run, args);
}

/* Where the output goes as quantized rows, when a GEMM reads it so; in place of `out` where nothing
 * else reads it. */
static struct rp_cuda_quantized quantized_output(const struct lowering *low,
                                                 const struct rp_fused_op *fused,
                                                 struct rp_values *out) {
    if (fused->quantized_to == RP_FUSED_NONE)
        return (struct rp_cuda_quantized){0};
    const struct rp_fused_op *reader = &low->fused.ops[fused->quantized_to];
    if (fused->quantized_alone)
        out->data = NULL;
    return rp_lower_quantize(low, fused, op_at(low, rp_fused_reader(low->program, reader)));
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

int rp_lower_glu(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *norm = member_of(low, fused, 0), *op = last_of(low, fused);
    bool normed = norm->kind == RP_OP_NORM;
    struct rp_glu_cuda args = {.rows = rows_of(low, op),
                               .gate = values_of(low, &op->in[0]),
                               .up = values_of(low, normed ? &norm->in[0] : &op->in[1]),
                               .out = values_of(low, &op->out),
                               .cols = op->out.cols,
                               .fn = op->u.activation.fn};
    args.quantized = quantized_output(low, fused, &args.out);
    int status = RP_OK;
    if (normed) {
        args.norm.group = norm->u.norm.group;
        args.norm.eps = norm->u.norm.eps;
        args.norm.weight_offset = norm->u.norm.weight_offset;
        status = constant_of(low, norm->vector, args.norm.group, &args.norm.weight);
    }
    static const char *const names[2][2] = {{"glu", "glu_quantize"},
                                            {"norm_glu", "norm_glu_quantize"}};
    return status == RP_OK ? ADD_LAUNCH(low, fused, names[normed][args.quantized.data != NULL],
                                        rp_glu_cuda_run, args)
                           : status;
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

static int describe_add_norm(const struct lowering *low, const struct rp_fused_op *fused,
                             const struct rp_op *add, struct rp_add_norm_cuda *out) {
    const struct rp_op *norm = last_of(low, fused);
    *out = (struct rp_add_norm_cuda){.rows = rows_of(low, norm),
                                     .residual = values_of(low, &add->out),
                                     .term = values_of(low, &add->in[1]),
                                     .out = values_of(low, &norm->out),
                                     .partials = partials_of(low, fused),
                                     .cols = norm->in[0].cols,
                                     .eps = norm->u.norm.eps,
                                     .weight_offset = norm->u.norm.weight_offset,
                                     .behind_product = fused->after_matmul};
    out->quantized = quantized_output(low, fused, &out->out);
    return constant_of(low, norm->vector, out->cols, &out->weight);
}

/* Adds to the residual, then norms it; after the last layer the norm's rows are gathered. */
int rp_lower_add_norm(struct lowering *low, const struct rp_fused_op *fused) {
    struct rp_add_norm_cuda args;
    int status = describe_add_norm(low, fused, member_of(low, fused, 0), &args);
    args.gather = fused->op_count == 3;
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, fused, args.quantized.data ? "add_norm_quantize" : "add_norm",
                      rp_add_norm_cuda_run, args);
}

/* The rows come from EXPERT_DOWN, whose kernels let their successors start after their own wait, as
 * all GEMMs do: the residual was complete before. */
static bool follows_down(const struct lowering *low, const struct rp_op *sum,
                         const struct rp_view *residual) {
    for (const struct rp_op *op = sum; op-- > low->program->ops;)
        if (rp_views_overlap(&op->out, residual) || rp_views_overlap(&op->out, &sum->in[0]))
            return op->kind == RP_OP_EXPERT_DOWN;
    return false;
}

/* The same where the term is the sum of the experts' results, which is stored nowhere. */
int rp_lower_expert_sum_norm(struct lowering *low, const struct rp_fused_op *fused) {
    struct rp_add_norm_cuda args;
    int status = describe_add_norm(low, fused, member_of(low, fused, 1), &args);
    args.experts = rp_lower_describe_sum(low, member_of(low, fused, 0));
    args.behind_product =
        follows_down(low, member_of(low, fused, 0), &member_of(low, fused, 1)->out);
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, fused,
                      args.quantized.data ? "expert_sum_norm_quantize" : "expert_sum_norm",
                      rp_add_norm_cuda_run, args);
}

/* -- between the ranks of a group ------------------------------------------------------------- */

static struct rp_cuda_exchange exchange_of(const struct lowering *low, const struct rp_op *op) {
    struct rp_cuda_exchange exchange = *low->device->exchange;
    bool sums = op->kind == RP_OP_ALLREDUCE;
    exchange.payload = sums ? op->u.exchange.payload : RP_DTYPE_F32;
    if (exchange.library.gather) {
        exchange.way = RP_EXCHANGE_LIBRARY;
        exchange.library.bytes = rp_op_exchange_bytes(low->program, op, &low->bucket);
        exchange.bytes = 0;
        for (uint32_t rank = 0; rank < exchange.ranks; rank++)
            exchange.blocks[rank] =
                low->device->exchange->blocks[exchange.rank] + rank * exchange.library.bytes;
    } else if (sums) {
        rp_exchange_choose(&exchange, rp_program_rows(low->program, &low->bucket, op->rows),
                           op->in[0].cols);
    } else {
        exchange.way = RP_EXCHANGE_ONE_SHOT;
    }
    return exchange;
}

/* ALLREDUCE, alone or with the ADD that reads it, ALLGATHER, GROUP_NORM. */
int rp_lower_exchange(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0), *last = last_of(low, fused);
    if (!low->device->exchange && op->kind == RP_OP_ALLREDUCE)
        return RP_OK; /* in place, and the group is this device alone: the sum is there */
    if (!low->device->exchange)
        return rp_error_set(low->err, RP_STATUS_UNSUPPORTED,
                            "%s: the device belongs to no group of ranks", op->name);
    struct rp_exchange_cuda args = {.rows = rows_of(low, op),
                                    .exchange = exchange_of(low, op),
                                    .kind = RP_EXCHANGE_GATHER,
                                    .in = values_of(low, &op->in[0]),
                                    .out = values_of(low, &last->out),
                                    .partials = partials_of(low, fused),
                                    .cols = op->in[0].cols};
    if (op->kind == RP_OP_ALLREDUCE)
        args.kind = last->kind == RP_OP_ADD ? RP_EXCHANGE_ADD : RP_EXCHANGE_REDUCE;
    if (op->kind == RP_OP_GROUP_NORM) {
        args.kind = RP_EXCHANGE_NORM;
        args.eps = op->u.group_norm.eps;
        args.norm_cols = op->u.group_norm.cols;
        int status = constant_of(low, op->vector, args.cols, &args.weight);
        if (status != RP_OK)
            return status;
    }
    static const char *const names[] = {"allreduce", "allreduce_add", "allgather", "group_norm"};
    return ADD_LAUNCH(low, fused, names[args.kind], rp_exchange_cuda_run, args);
}

int rp_lower_allreduce_norm(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_exchange_norm_cuda args = {.exchange = exchange_of(low, op)};
    int status = describe_add_norm(low, fused, member_of(low, fused, 1), &args.norm);
    if (status != RP_OK)
        return status;
    /* The residual and the number of exchanges are complete when a GEMM begins, and nothing has
     * changed them since where the GEMM is the operator before. */
    uint32_t at = fused->ops[0];
    args.norm.behind_product = args.norm.behind_product && fused->ops[2] == at + 2 && at > 0 &&
                               op_at(low, at - 1)->kind == RP_OP_LINEAR;
    if (low->pushed_to == (uint32_t)(fused - low->fused.ops)) {
        args.exchange.way = RP_EXCHANGE_PUSHED;
        args.norm.term.dtype = args.exchange.payload;
    }
    return ADD_LAUNCH(low, fused,
                      args.norm.quantized.data ? "allreduce_norm_quantize" : "allreduce_norm",
                      rp_exchange_norm_cuda_run, args);
}
