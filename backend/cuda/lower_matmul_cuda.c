/* lower_matmul_cuda.c - GEMMs, with the norm before and the activation or sum after them.
 *
 * The rows of a W8A8 GEMM (RP_INPUT_QUANTIZED) come in one of three ways, as the fusion pass
 * decided: its kernel quantizes them, those of a fused norm too; the operator before it stored them
 * quantized; or a launch of their own does it. */
#include "backend/cuda/lower_internal_cuda.h"
#include "quant/tiles/matmul_tiles_cuda.h"

/* --numerics fast: from so many rows on cuBLASLt is faster than our bf16 kernels
 * (bench/results). */
#define CUBLASLT_ROWS 513

static bool is_8_bits(const struct rp_op *linear) {
    return rp_dtype_bytes(linear->weight->dtype) == 1;
}

bool rp_lower_is_w8a8(const struct rp_op *linear) {
    return linear->kind == RP_OP_LINEAR && is_8_bits(linear) &&
           linear->weight->input == RP_INPUT_QUANTIZED;
}

static uint32_t quantized_stride(uint32_t cols) { return (uint32_t)RP_ALIGN_UP(cols, 16u); }

/* The order of columns of a matrix, the same for all of its parts; NULL: none. */
static const uint32_t *order_of(const struct rp_op *linear) {
    return linear->kind == RP_OP_LINEAR && linear->weight->dtype == RP_DTYPE_BLOCKS
               ? linear->weight->parts[0].columns
               : NULL;
}

static uint32_t ordered_stride(uint32_t cols) { return (uint32_t)RP_ALIGN_UP(cols, 8u); }

static int open_quantized(struct lowering *low, enum rp_cuda_scratch_kind kind, size_t rows,
                          uint32_t widest, struct rp_lower_quantized *out) {
    size_t bytes = RP_ALIGN_UP(rows * quantized_stride(widest), (size_t)256);
    if (widest == 0)
        return RP_OK;
    out->data = scratch_of(low, kind, bytes + rows * sizeof(float));
    if (!out->data)
        return out_of_memory(low, "quantized rows");
    out->scales = (float *)(void *)(out->data + bytes);
    return RP_OK;
}

int rp_lower_rows_open(struct lowering *low) {
    const struct rp_step_config *step = &low->bindings->step.config;
    size_t rows = RP_MAX(step->token_capacity, step->logit_row_capacity);
    uint32_t widest = 0, widest_side = 0, widest_ordered = 0;
    for (uint32_t i = 0; i < low->program->op_count; i++) {
        const struct rp_op *op = op_at(low, i);
        if (rp_lower_is_w8a8(op) ||
            (op->kind == RP_OP_EXPERT_GATE_UP && rp_lower_experts_are_w8a8(op)))
            widest = RP_MAX(widest, op->weight->cols);
        if (rp_lower_is_w8a8(op) && op->branch == RP_BRANCH_SIDE)
            widest_side = RP_MAX(widest_side, op->weight->cols);
        if (order_of(op))
            widest_ordered = RP_MAX(widest_ordered, ordered_stride(op->weight->cols));
    }
    if (widest_ordered) {
        low->ordered =
            scratch_of(low, RP_CUDA_SCRATCH_ORDERED, rows * widest_ordered * sizeof(uint16_t));
        if (!low->ordered)
            return out_of_memory(low, "rows in the order of columns");
    }
    int status = open_quantized(low, RP_CUDA_SCRATCH_QUANTIZED, rows, widest, &low->quantized);
    return status == RP_OK ? open_quantized(low, RP_CUDA_SCRATCH_QUANTIZED_SIDE, RP_BRANCH_TOKENS,
                                            widest_side, &low->quantized_side)
                           : status;
}

struct rp_cuda_quantized rp_lower_quantize(const struct lowering *low,
                                           const struct rp_fused_op *maker,
                                           const struct rp_op *reader) {
    const struct rp_lower_quantized *rows =
        branch_of(low, maker) == RP_BRANCH_SIDE ? &low->quantized_side : &low->quantized;
    return (struct rp_cuda_quantized){.data = rows->data,
                                      .scales = rows->scales,
                                      .stride = quantized_stride(reader->weight->cols),
                                      .dtype = reader->weight->dtype};
}

static const struct rp_op *linear_of(const struct lowering *low, const struct rp_fused_op *fused) {
    return op_at(low, rp_fused_find(low->program, fused, RP_OP_LINEAR));
}

struct rp_matmul_cuda rp_lower_describe_matmul(const struct lowering *low,
                                               const struct rp_fused_op *fused, bool quantized) {
    const struct rp_op *first = member_of(low, fused, 0), *last = last_of(low, fused);
    uint32_t at = rp_fused_find(low->program, fused, RP_OP_LINEAR);
    const struct rp_op *op = op_at(low, at);
    struct rp_values in = values_of(low, &op->in[0]);
    const struct rp_fused_op *maker =
        fused->quantized_from == RP_FUSED_NONE ? fused : &low->fused.ops[fused->quantized_from];
    struct rp_cuda_quantized made = {0};
    if (quantized)
        made = rp_lower_quantize(low, maker, op);
    struct rp_matmul_cuda matmul = {.rows = rows_of(low, op),
                                    .limits = low->device->limits,
                                    .weight = op->weight,
                                    .in = quantized ? made.data : in.data,
                                    .in_stride = quantized ? made.stride : in.stride,
                                    .in_scales = made.scales,
                                    .out = values_of(low, &last->out),
                                    .gate_up = rp_feeds_activation(low->program, at),
                                    .gated = last->kind == RP_OP_ACTIVATION,
                                    .accumulate = last->kind == RP_OP_ADD};
    if (matmul.gated)
        matmul.fn = last->u.activation.fn;
    if (order_of(op)) {
        matmul.in = low->ordered;
        matmul.in_stride = ordered_stride(op->weight->cols);
    }
    if (first->kind == RP_OP_NORM) {
        struct rp_values rows = values_of(low, &first->in[0]);
        matmul.norm = (struct rp_matmul_norm){.in = rows.data,
                                              .in_stride = rows.stride,
                                              .cols = first->in[0].cols,
                                              .eps = first->u.norm.eps,
                                              .weight_offset = first->u.norm.weight_offset};
    }
    return matmul;
}

bool rp_lower_uses_library(const struct lowering *low, const struct rp_matmul_cuda *matmul) {
    return low->device->cublaslt && rp_dtype_bytes(matmul->weight->dtype) != 1 &&
           matmul->weight->dtype != RP_DTYPE_BLOCKS && matmul->rows.max_rows >= CUBLASLT_ROWS;
}

/* The largest of all matrices of blocks by rows of this kind, or of those in side branches: one
 * buffer serves them. */
static size_t most_weight_scratch(const struct lowering *low, uint32_t rows, bool is_side) {
    size_t most = 0;
    for (uint32_t i = 0; i < low->program->op_count; i++) {
        const struct rp_op *op = op_at(low, i);
        if (op->kind == RP_OP_LINEAR && op->rows == rows && op->weight->dtype == RP_DTYPE_BLOCKS &&
            (!is_side || op->branch == RP_BRANCH_SIDE))
            most = RP_MAX(most, (size_t)op->weight->rows * op->weight->cols * sizeof(uint16_t));
    }
    return most;
}

int rp_lower_plan_matmul(const struct lowering *low, const struct rp_fused_op *fused,
                         bool quantized, const struct rp_matmul_copy *copy, struct rp_arena *memory,
                         struct rp_cuda_launch *launch, struct rp_cuda_partials *partials) {
    const struct rp_op *op = linear_of(low, fused), *first = member_of(low, fused, 0);
    const struct rp_step_config *step = &low->bindings->step.config;
    struct rp_matmul_cuda matmul = rp_lower_describe_matmul(low, fused, quantized);
    matmul.partials_wanted = fused->partials_to != RP_FUSED_NONE;
    if (copy && copy->to) {
        matmul.copy = *copy;
        matmul.out.dtype = RP_DTYPE_BF16;
    }
    const bool is_side = branch_of(low, fused) == RP_BRANCH_SIDE;
    matmul.workspace_bytes = rp_matmul_cuda_workspace_bytes(
        &low->device->limits,
        is_side ? RP_BRANCH_TOKENS : RP_MAX(step->token_capacity, step->logit_row_capacity),
        rp_lowering_widest_linear(low->program));
    matmul.workspace =
        scratch_of(low, is_side ? RP_CUDA_SCRATCH_MATMUL_SIDE : RP_CUDA_SCRATCH_MATMUL,
                   matmul.workspace_bytes);
    if (!matmul.workspace)
        return out_of_memory(low, "the matmuls' workspace");
    size_t weight_bytes = rp_matmul_cuda_weight_scratch(&matmul);
    if (weight_bytes)
        weight_bytes = most_weight_scratch(low, op->rows, is_side);
    if (weight_bytes)
        matmul.weight_scratch = scratch_of(
            low, is_side ? RP_CUDA_SCRATCH_WEIGHTS_SIDE : RP_CUDA_SCRATCH_WEIGHTS, weight_bytes);
    if (weight_bytes && !matmul.weight_scratch)
        return out_of_memory(low, "decoded weights");
    int status = rp_lowering_check_input(low->program, op, low->err);
    if (status == RP_OK)
        status = constant_of(low, op->vector, op->weight->rows, &matmul.bias);
    if (status == RP_OK && matmul.norm.cols)
        status = constant_of(low, first->vector, matmul.norm.cols, &matmul.norm.weight);
    if (status != RP_OK)
        return status;
    if (rp_lower_uses_library(low, &matmul) && !matmul.gated && !matmul.copy.to) {
        memset(partials, 0, sizeof *partials);
        status = rp_cublaslt_plan(low->device->cublaslt, &matmul, memory, launch, NULL);
        if (status != RP_STATUS_UNSUPPORTED)
            return status;
    }
    return rp_matmul_cuda_plan(&matmul, memory, launch, partials, low->err);
}

static int quantize_rows(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = linear_of(low, fused);
    struct rp_quantize_cuda args = {.rows = rows_of(low, op),
                                    .in = values_of(low, &op->in[0]),
                                    .cols = op->weight->cols,
                                    .quantized = rp_lower_quantize(low, fused, op),
                                    .behind_product = fused->after_matmul};
    struct rp_fused_op alone = *fused;
    alone.op_count = 1;
    alone.ops[0] = rp_fused_find(low->program, fused, RP_OP_LINEAR);
    int status = ADD_LAUNCH(low, &alone, "quantize", rp_quantize_cuda_run, args);
    if (status == RP_OK)
        low->graph->nodes[low->graph->node_count - 1].info.prepares = true;
    return status;
}

static int order_rows(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = linear_of(low, fused);
    struct rp_values in = values_of(low, &op->in[0]);
    struct rp_tiles_order_cuda args = {
        .rows = rows_of(low, op),
        .in = in.data,
        .in_stride = in.stride,
        .columns = rp_cuda_constant(low->device, order_of(op), op->weight->cols * sizeof(uint32_t)),
        .cols = op->weight->cols,
        .out = low->ordered,
        .out_stride = ordered_stride(op->weight->cols)};
    if (!args.columns)
        return out_of_memory(low, "an order of columns");
    int status = ADD_LAUNCH(low, fused, "order_columns", rp_tiles_order_cuda_run, args);
    if (status == RP_OK)
        low->graph->nodes[low->graph->node_count - 1].info.prepares = true;
    return status;
}

/* Where the operator that follows sums up the outputs of two ranks, a GEMM of many rows stores its
 * own at the peer while it runs: as bf16, to which each rank's part is rounded in any case. */
static struct rp_matmul_copy copy_for_peer(const struct lowering *low,
                                           const struct rp_fused_op *fused, uint32_t next) {
    const struct rp_cuda_exchange *exchange = low->device->exchange;
    const struct rp_matmul_cuda matmul =
        rp_lower_describe_matmul(low, fused, fused->input_quantized);
    struct rp_matmul_copy none = {NULL};
    if (!exchange || exchange->ranks != 2 || exchange->library.gather ||
        matmul.rows.max_rows <= exchange->resident || next == low->fused.count ||
        fused->partials_to != RP_FUSED_NONE)
        return none;
    const struct rp_fused_op *reader = &low->fused.ops[next];
    const struct rp_op *sum = member_of(low, reader, 0);
    if (sum->kind != RP_OP_ALLREDUCE || reader->op_count != 3 ||
        sum->u.exchange.payload != RP_DTYPE_BF16 ||
        !rp_same_view(&sum->in[0], &last_of(low, fused)->out) || !rp_matmul_cuda_copies(&matmul))
        return none;
    return (struct rp_matmul_copy){.to = exchange->blocks[1 - exchange->rank],
                                   .number = exchange->state,
                                   .bytes = exchange->bytes};
}

int rp_lower_matmul(struct lowering *low, const struct rp_fused_op *fused) {
    uint32_t at = (uint32_t)(fused - low->fused.ops);
    struct rp_cuda_partials *partials = &low->partials[at];
    struct rp_matmul_copy copy = copy_for_peer(low, fused, at + 1);
    struct rp_cuda_launch launch;
    low->pushed_to = copy.to ? at + 1 : RP_FUSED_NONE;
    int status = fused->input_quantized && fused->quantized_from == RP_FUSED_NONE
                     ? quantize_rows(low, fused)
                     : RP_OK;
    if (order_of(linear_of(low, fused)))
        status = order_rows(low, fused);
    if (status == RP_OK)
        status = rp_lower_plan_matmul(low, fused, fused->input_quantized, &copy,
                                      &low->graph->memory, &launch, partials);
    RP_ASSERT(status != RP_OK || (partials->count != 0) == (fused->partials_to != RP_FUSED_NONE));
    return status == RP_OK ? append(low, fused, &launch) : status;
}

/* A GEMM of each head with a matrix of its own. */
int rp_lower_head_linear(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    const uint32_t heads = op->u.head_linear.heads;
    struct rp_values in = values_of(low, &op->in[0]);
    struct rp_matmul_heads_cuda args = {.rows = rows_of(low, op),
                                        .weight = op->weight->data,
                                        .in = in.data,
                                        .in_stride = in.stride,
                                        .out = values_of(low, &op->out),
                                        .dtype = op->weight->dtype,
                                        .heads = heads,
                                        .n = op->weight->rows / heads,
                                        .k = op->weight->cols,
                                        .in_step = op->u.head_linear.in_step,
                                        .out_step = op->u.head_linear.out_step,
                                        .copied = op->u.head_linear.copied,
                                        .copied_step = op->u.head_linear.copied_step};
    int status = rp_lowering_check_input(low->program, op, low->err);
    if (args.dtype != RP_DTYPE_F32 && args.dtype != RP_DTYPE_BF16)
        return rp_error_set(low->err, RP_STATUS_UNSUPPORTED, "%s: %s matrices of heads", op->name,
                            rp_dtype_name(args.dtype));
    if (status != RP_OK)
        return status;
    if (args.copied) {
        struct rp_values copy = values_of(low, &op->in[1]);
        args.copy = copy.data;
        args.copy_stride = copy.stride;
    }
    return ADD_LAUNCH(low, fused, "head_linear", rp_matmul_heads_cuda_run, args);
}
