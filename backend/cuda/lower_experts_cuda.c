/* lower_experts_cuda.c - route, order, GEMMs and sum of a mixture of experts. The order's launch
 * leaves the work list of the two GEMMs in scratch memory. */
#include "backend/cuda/lower_internal_cuda.h"

bool rp_lower_experts_are_w8a8(const struct rp_op *gemm) {
    return rp_dtype_bytes(gemm->weight->dtype) == 1 && gemm->weight->input == RP_INPUT_QUANTIZED;
}

static uint32_t row_stride(const struct rp_op *op) {
    return (uint32_t)RP_ALIGN_UP(op->weight->cols, 16u);
}

static bool is_gemm(const struct rp_op *op) {
    return op->kind == RP_OP_EXPERT_GATE_UP || op->kind == RP_OP_EXPERT_DOWN;
}

/* Bytes and number of the quantized rows of any layer's second GEMM. Those of its first one are
 * where other GEMMs have theirs. */
static size_t quantized_rows(const struct lowering *low, size_t *bytes) {
    size_t tokens = low->bindings->step.config.token_capacity, most = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < low->program->op_count; i++) {
        const struct rp_op *op = op_at(low, i);
        if (op->kind != RP_OP_EXPERT_DOWN || !rp_lower_experts_are_w8a8(op))
            continue;
        size_t used = op->u.experts.experts.used;
        *bytes = RP_MAX(*bytes, RP_ALIGN_UP(tokens * used * row_stride(op), (size_t)256));
        most = RP_MAX(most, tokens * used);
    }
    return most;
}

int rp_lower_experts_open(struct lowering *low) {
    struct rp_lower_experts *experts = &low->experts;
    uint32_t tokens = low->bindings->step.config.token_capacity;
    size_t tiles = 0, totals = RP_ALIGN_UP(sizeof(struct rp_expert_stats), (size_t)256), bytes;
    for (uint32_t i = 0; i < low->program->op_count; i++)
        if (op_at(low, i)->kind == RP_OP_EXPERT_ORDER)
            tiles = RP_MAX(tiles, (size_t)rp_expert_tiles_most(op_at(low, i)->u.experts.experts,
                                                               tokens, RP_EXPERT_TILE_LEAST));
    if (tiles == 0)
        return RP_OK;
    unsigned char *data =
        scratch_of(low, RP_CUDA_SCRATCH_EXPERTS, totals + (1 + tiles) * sizeof *experts->tiles);
    if (!data)
        return out_of_memory(low, "the work list of experts");
    experts->totals = (struct rp_expert_stats *)(void *)data;
    experts->tiles = (struct rp_expert_tile *)(void *)(data + totals);
    size_t rows = quantized_rows(low, &bytes);
    if (rows == 0)
        return RP_OK;
    experts->quantized = scratch_of(low, RP_CUDA_SCRATCH_EXPERT_ROWS, bytes + rows * sizeof(float));
    if (!experts->quantized)
        return out_of_memory(low, "quantized rows of experts");
    experts->quantized_scales = (float *)(void *)(experts->quantized + bytes);
    return RP_OK;
}

static int describe_route(const struct lowering *low, const struct rp_fused_op *fused,
                          const struct rp_op *op, struct rp_route_cuda *out) {
    *out = (struct rp_route_cuda){.rows = rows_of(low, op),
                                  .route = rp_lowering_route(low->program, low->bindings, op),
                                  .partials = partials_of(low, fused)};
    int status = constant_of(low, op->vector, op->u.route.experts.count, &out->route.bias);
    return status == RP_OK
               ? constant_of(low, op->bias, op->u.route.experts.count, &out->route.scales)
               : status;
}

static bool is_last_order(const struct lowering *low, const struct rp_op *op) {
    for (const struct rp_op *at = op + 1; at < low->program->ops + low->program->op_count; at++)
        if (at->kind == RP_OP_EXPERT_ORDER)
            return false;
    return true;
}

/* Whether a GEMM that reads the order's work list has its weights in tiles. */
static bool orders_tiles(const struct lowering *low, const struct rp_op *order) {
    const struct rp_op *end = low->program->ops + low->program->op_count;
    for (const struct rp_op *op = order + 1; op < end && op->kind != RP_OP_EXPERT_ORDER; op++)
        if (is_gemm(op) && op->weight->dtype == RP_DTYPE_BLOCKS)
            return true;
    return false;
}

static struct rp_expert_order_cuda describe_order(const struct lowering *low,
                                                  const struct rp_op *op) {
    struct rp_experts experts = op->u.experts.experts;
    const struct rp_cuda_exchange *exchange = low->device->exchange;
    bool counts = !exchange || exchange->rank == 0; /* all ranks route all rows: one counts */
    struct rp_expert_order_cuda args = {.rows = rows_of(low, op),
                                        .ids = values_of(low, &op->in[0]),
                                        .order = values_of(low, &op->out).data,
                                        .experts = experts,
                                        .tiles = low->experts.tiles,
                                        .tile_rows = rp_matmul_experts_tile_rows(
                                            experts, low->bucket.tokens, orders_tiles(low, op)),
                                        .stats = counts ? low->bindings->step.expert_stats : NULL,
                                        .totals = low->experts.totals,
                                        .is_last = is_last_order(low, op)};
    memcpy(args.ratio_bounds, rp_expert_ratio_bounds, sizeof args.ratio_bounds);
    return args;
}

int rp_lower_route(struct lowering *low, const struct rp_fused_op *fused) {
    struct rp_route_cuda args;
    int status = describe_route(low, fused, member_of(low, fused, 0), &args);
    return status == RP_OK ? ADD_LAUNCH(low, fused, "route", rp_route_cuda_run, args) : status;
}

int rp_lower_expert_order(struct lowering *low, const struct rp_fused_op *fused) {
    struct rp_expert_order_cuda args = describe_order(low, member_of(low, fused, 0));
    return ADD_LAUNCH(low, fused, "expert_order", rp_expert_order_cuda_run, args);
}

int rp_lower_route_order(struct lowering *low, const struct rp_fused_op *fused) {
    struct rp_route_order_cuda args = {.order = describe_order(low, last_of(low, fused))};
    int status = describe_route(low, fused, member_of(low, fused, 0), &args.route);
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, fused, "route_order", rp_route_order_cuda_run, args);
}

struct rp_router_cuda rp_lower_describe_router(const struct lowering *low, const struct rp_op *gemm,
                                               const struct rp_op *route) {
    struct rp_values in = values_of(low, &gemm->in[0]);
    struct rp_router_cuda args = {
        .weight = gemm->weight->data,
        .in = in.data,
        .in_stride = in.stride,
        .k = gemm->weight->cols,
        .segment = rp_matmul_cuda_segment(gemm->weight->rows, gemm->weight->cols, false)};
    args.order.route.rows = rows_of(low, route);
    args.order.route.route.experts = route->u.route.experts;
    return args;
}

/* The router's GEMM, ROUTE and EXPERT_ORDER. */
int rp_lower_router(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *gemm = member_of(low, fused, 0), *route = member_of(low, fused, 1);
    struct rp_router_cuda args = rp_lower_describe_router(low, gemm, route);
    int status = rp_lowering_check_input(low->program, gemm, low->err);
    if (status == RP_OK)
        status = constant_of(low, gemm->vector, gemm->weight->rows, &args.bias);
    if (status == RP_OK)
        status = describe_route(low, fused, route, &args.order.route);
    if (status != RP_OK)
        return status;
    args.order.order = describe_order(low, last_of(low, fused));
    return ADD_LAUNCH(low, fused, "router_order", rp_router_cuda_run, args);
}

static struct rp_cuda_quantized quantized_of(const struct lowering *low,
                                             const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    if (op->kind == RP_OP_EXPERT_GATE_UP)
        return rp_lower_quantize(low, fused, op);
    return (struct rp_cuda_quantized){.data = low->experts.quantized,
                                      .scales = low->experts.quantized_scales,
                                      .stride = row_stride(op),
                                      .dtype = op->weight->dtype};
}

/* A launch that quantizes the rows of a GEMM. */
static int quantize_rows(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    uint32_t used = op->kind == RP_OP_EXPERT_DOWN ? op->u.experts.experts.used : 1;
    struct rp_quantize_cuda args = {.rows = rows_of(low, op),
                                    .in = values_of(low, &op->in[0]),
                                    .cols = op->weight->cols,
                                    .quantized = quantized_of(low, fused),
                                    .each = used};
    args.rows.max_rows = low->bucket.tokens * used;
    int status = ADD_LAUNCH(low, fused, "quantize", rp_quantize_cuda_run, args);
    if (status == RP_OK)
        low->graph->nodes[low->graph->node_count - 1].info.prepares = true;
    return status;
}

int rp_lower_expert_gemm(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    bool down = op->kind == RP_OP_EXPERT_DOWN, quantized = rp_lower_experts_are_w8a8(op);
    int status = rp_lowering_check_input(low->program, op, low->err);
    const float *bias = NULL;
    if (status == RP_OK)
        status = constant_of(low, op->vector, op->weight->rows, &bias);
    if (status == RP_OK && quantized && fused->quantized_from == RP_FUSED_NONE)
        status = quantize_rows(low, fused);
    if (status != RP_OK)
        return status;
    struct rp_values in = values_of(low, &op->in[0]);
    struct rp_cuda_quantized rows = {0};
    if (quantized)
        rows = quantized_of(low, fused);
    struct rp_experts experts = op->u.experts.experts;
    struct rp_matmul_experts_cuda args = {.rows = rows_of(low, op),
                                          .limits = low->device->limits,
                                          .weight = op->weight,
                                          .bias = bias,
                                          .experts = experts,
                                          .order = values_of(low, &op->in[1]).data,
                                          .tiles = low->experts.tiles,
                                          .in = quantized ? rows.data : in.data,
                                          .in_stride = quantized ? rows.stride : in.stride,
                                          .in_scales = rows.scales,
                                          .in_divisor = down ? 0 : experts.used,
                                          .by_choice = down,
                                          .out = values_of(low, &op->out),
                                          .gated = !down,
                                          .fn = op->u.experts.fn};
    struct rp_cuda_launch launch;
    status = rp_matmul_experts_cuda_plan(&args, &low->graph->memory, &launch, low->err);
    return status == RP_OK ? append(low, fused, &launch) : status;
}

struct rp_expert_sum_args rp_lower_describe_sum(const struct lowering *low,
                                                const struct rp_op *op) {
    struct rp_expert_sum_args sum = {.in = values_of(low, &op->in[0]),
                                     .weights = values_of(low, &op->in[1]),
                                     .out = values_of(low, &op->out),
                                     .used = op->u.expert_sum.experts.used};
    if (op->u.expert_sum.shared)
        sum.shared = values_of(low, &op->in[2]);
    if (op->u.expert_sum.gated)
        sum.gate = values_of(low, &op->in[3]);
    return sum;
}

int rp_lower_expert_sum(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0), *last = last_of(low, fused);
    struct rp_expert_sum_cuda args = {
        .rows = rows_of(low, op), .sum = rp_lower_describe_sum(low, op), .cols = op->out.cols};
    args.sum.out = values_of(low, &last->out);
    if (last->kind == RP_OP_ADD)
        args.residual = values_of(low, &last->in[0]);
    return ADD_LAUNCH(low, fused, last->kind == RP_OP_ADD ? "expert_sum_add" : "expert_sum",
                      rp_expert_sum_cuda_run, args);
}
