/* lower_products_cuda.c - products, with the norm before and the activation or sum behind them.
 *
 * Rows of 8-bit products (RP_INPUT_QUANTIZED) come in one of three ways: the product makes codes of them by itself, its
 * fused norm's too; the operator before it made them, instead of the rows (rp_lower_codes_of); or a launch of their own
 * in front of it does. Which one is decided by take_of() alone, whoever asks first. */
#include "backend/cuda/lower_internal_cuda.h"

/* --numerics fast: from so many rows on cuBLASLt is faster than our products of bf16 (bench/results). */
#define CUBLASLT_ROWS 513

static bool is_8_bits(const struct rp_op *op) { return rp_dtype_bytes(op->weight->dtype) == 1; }

static bool is_quantized(const struct rp_op *op) {
    return op->kind == RP_OP_LINEAR && is_8_bits(op) && op->weight->input == RP_INPUT_QUANTIZED;
}

static uint32_t codes_stride(uint32_t cols) { return (uint32_t)RP_ALIGN_UP(cols, 16u); }

int rp_lower_codes_open(struct lowering *low) {
    const struct rp_step_config *step = &low->bindings->step.config;
    size_t rows = RP_MAX(step->token_capacity, step->logit_row_capacity);
    uint32_t widest = 0;
    for (uint32_t i = 0; i < low->program->op_count; i++)
        if (is_quantized(op_at(low, i)))
            widest = RP_MAX(widest, op_at(low, i)->weight->cols);
    if (widest == 0)
        return RP_OK;
    size_t code_bytes = RP_ALIGN_UP(rows * codes_stride(widest), (size_t)256);
    low->codes = scratch_of(low, RP_CUDA_SCRATCH_CODES, code_bytes + rows * sizeof(float));
    if (!low->codes)
        return out_of_memory(low, "rows of 8 bits");
    low->code_scales = (float *)(void *)(low->codes + code_bytes);
    return RP_OK;
}

/* -- what a product is described as --------------------------------------------------------------------- */

/* The product of operator `at` into `out`, without what has to be allocated; of codes or of the rows as they are. */
static struct rp_matmul_cuda describe_product(const struct lowering *low, uint32_t at,
                                              const struct rp_view *out, bool codes) {
    const struct rp_op *op = op_at(low, at);
    struct rp_values in = values_of(low, &op->in[0]);
    return (struct rp_matmul_cuda){.rows = rows_of(low, op->rows),
                                   .limits = low->device->limits,
                                   .weight = op->weight,
                                   .in = codes ? low->codes : in.data,
                                   .in_stride = codes ? codes_stride(op->weight->cols) : in.stride,
                                   .in_scales = codes ? low->code_scales : NULL,
                                   .out = values_of(low, out),
                                   .gate_up = rp_lowering_feeds_activation(low->program, at)};
}

/* gate_up and the activation behind it in one kernel, where a product's kernel does both. */
static struct rp_matmul_cuda describe_gated(const struct lowering *low, uint32_t at, bool codes) {
    const struct rp_op *activation = op_at(low, at) + 1;
    struct rp_matmul_cuda product = describe_product(low, at, &activation->out, codes);
    product.gated = true;
    product.fn = activation->u.activation.fn;
    return product;
}

/* linear alone, or linear and the add of its result to the residual. */
static struct rp_matmul_cuda describe_linear(const struct lowering *low, uint32_t at,
                                             uint32_t count, bool codes) {
    const struct rp_op *op = op_at(low, at);
    struct rp_matmul_cuda product =
        describe_product(low, at, count == 2 ? &op[1].out : &op->out, codes);
    product.accumulate = count == 2;
    return product;
}

/* A norm and the product that alone reads it: of a few rows each block makes its own. */
static struct rp_matmul_norm describe_norm(const struct lowering *low, uint32_t at) {
    const struct rp_op *norm = op_at(low, at);
    struct rp_values in = values_of(low, &norm->in[0]);
    return (struct rp_matmul_norm){.in = in.data,
                                   .in_stride = in.stride,
                                   .cols = norm->in[0].cols,
                                   .eps = norm->u.norm.eps,
                                   .weight_offset = norm->u.norm.weight_offset};
}

/* -- how a product takes its rows, and whether it does the activation ------------------------------------ */

struct take {
    bool codes; /* reads codes; else rows as they are, which it may quantize by itself */
    bool gated;
};

static bool may_gate(const struct lowering *low, uint32_t at) {
    const struct rp_op *op = op_at(low, at), *activation = op + 1;
    return low->fuse && at + 1 < low->end && rp_lowering_feeds_activation(low->program, at) &&
           !op->vector && activation->rows == op->rows &&
           !rp_lowering_is_read(low->program, at + 2, op->out.tensor);
}

/* The product's input dies before the activation: in one kernel they must not share memory. */
static bool gates(const struct lowering *low, uint32_t at, const struct rp_matmul_cuda *product) {
    struct rp_values in = values_of(low, &op_at(low, at)->in[0]);
    bool library = low->device->cublaslt && product->rows.max_rows >= CUBLASLT_ROWS;
    if ((library && !is_8_bits(op_at(low, at))) ||
        (!product->in_scales && rp_lowering_overlap(&in, &product->out, product->rows.max_rows)))
        return false;
    return rp_matmul_cuda_gates(product);
}

/* norm: what is fused in front of the product at `at`, or NULL. */
static struct take take_of(const struct lowering *low, uint32_t at,
                           const struct rp_matmul_norm *norm) {
    const struct rp_op *op = op_at(low, at);
    struct take take = {0};
    struct rp_matmul_cuda product;
    if (may_gate(low, at)) {
        product = describe_gated(low, at, false);
        product.norm = norm ? *norm : product.norm;
        take.gated = gates(low, at, &product) &&
                     (!is_quantized(op) || norm || rp_matmul_cuda_quantizes(&product));
    }
    if (take.gated || norm || !is_quantized(op))
        return take;
    if (may_gate(low, at)) {
        product = describe_gated(low, at, true);
        take.codes = take.gated = gates(low, at, &product);
        if (take.gated)
            return take;
    }
    product = describe_linear(low, at, rp_lower_match_linear(low, at), false);
    take.codes = !rp_matmul_cuda_quantizes(&product);
    return take;
}

struct rp_cuda_codes rp_lower_codes_of(struct lowering *low, uint32_t next,
                                       const struct rp_view *out) {
    const struct rp_op *op = next < low->end ? op_at(low, next) : NULL;
    if (!low->fuse || !op || !is_quantized(op) || !rp_lowering_same_view(out, &op->in[0]) ||
        low->program->tensors[out->tensor].dtype != RP_DTYPE_BF16 ||
        rp_lowering_is_read(low->program, next + 1, out->tensor) || !take_of(low, next, NULL).codes)
        return (struct rp_cuda_codes){0};
    low->codes_for = next;
    return (struct rp_cuda_codes){.data = low->codes,
                                  .scales = low->code_scales,
                                  .stride = codes_stride(op->weight->cols),
                                  .dtype = op->weight->dtype};
}

/* The product at `at` takes codes: makes them, unless the operator before it did. */
static int ready_codes(struct lowering *low, uint32_t at) {
    const struct rp_op *op = op_at(low, at);
    if (low->codes_for == at)
        return RP_OK;
    struct rp_quantize_cuda args = {.rows = rows_of(low, op->rows),
                                    .in = values_of(low, &op->in[0]),
                                    .cols = op->weight->cols,
                                    .codes = {.data = low->codes,
                                              .scales = low->code_scales,
                                              .stride = codes_stride(op->weight->cols),
                                              .dtype = op->weight->dtype},
                                    .behind_product = low->attention.behind_product};
    int status = ADD_LAUNCH(low, at, 1, "quantize", rp_quantize_cuda_run, args);
    if (status == RP_OK)
        low->graph->nodes[low->graph->node_count - 1].info.prepares = true;
    return status;
}

/* -- planning and emitting -------------------------------------------------------------------------------- */

/* Products are of their weights' type; those of 8 bits of bf16, or of the codes that it becomes. */
static int check_input(struct lowering *low, const struct rp_op *op) {
    struct rp_values in = values_of(low, &op->in[0]);
    enum rp_dtype wanted = is_8_bits(op) ? RP_DTYPE_BF16 : op->weight->dtype;
    if (in.dtype == wanted)
        return RP_OK;
    return rp_error_set(low->err, RP_STATUS_UNSUPPORTED, "%s: %s input for %s weights", op->name,
                        rp_dtype_name(in.dtype), rp_dtype_name(op->weight->dtype));
}

static int plan_product(struct lowering *low, uint32_t at, struct rp_matmul_cuda product,
                        struct rp_cuda_launch *launch, struct rp_cuda_partials *partials) {
    const struct rp_op *op = op_at(low, at);
    const struct rp_step_config *step = &low->bindings->step.config;
    low->attention.behind_product = true;
    product.norm = low->norm;
    product.workspace_bytes = rp_matmul_cuda_workspace_bytes(
        &low->device->limits, RP_MAX(step->token_capacity, step->logit_row_capacity),
        rp_lowering_widest_linear(low->program));
    product.workspace = scratch_of(low, RP_CUDA_SCRATCH_MATMUL, product.workspace_bytes);
    if (!product.workspace)
        return out_of_memory(low, "the products' workspace");
    int status = check_input(low, op);
    if (status == RP_OK)
        status = constant_of(low, op->vector, op->weight->rows, &product.bias);
    if (status != RP_OK)
        return status;
    if (low->device->cublaslt && !is_8_bits(op) && !product.gated &&
        product.rows.max_rows >= CUBLASLT_ROWS) {
        memset(partials, 0, sizeof *partials);
        status =
            rp_cublaslt_plan(low->device->cublaslt, &product, &low->graph->memory, launch, NULL);
        if (status != RP_STATUS_UNSUPPORTED)
            return status;
    }
    return rp_matmul_cuda_plan(&product, &low->graph->memory, launch, partials, low->err);
}

/* True when what follows reads the product's output once and can sum it up while reading. */
static bool reader_sums(const struct lowering *low, uint32_t at) {
    const struct rp_op *op = op_at(low, at);
    uint32_t next = at + 1;
    if (!low->fuse || next >= low->end ||
        low->program->tensors[op->out.tensor].dtype != RP_DTYPE_F32)
        return false;
    switch (op[1].kind) {
    case RP_OP_ACTIVATION:
        return rp_lowering_same_view(&op->out, &op[1].in[0]) &&
               !rp_lowering_is_read(low->program, at + 2, op->out.tensor);
    case RP_OP_ADD:
        return rp_lowering_is_linear_add(low->program, at, low->end) &&
               rp_lowering_add_norm(low->program, next, low->end);
    case RP_OP_NORM:
    case RP_OP_ROPE:
        /* attention reads q from the columns that qkv_post writes back */
        return op[1].out.tensor == op->out.tensor && rp_lower_match_qkv_post(low, next) != 0;
    default:
        return false;
    }
}

uint32_t rp_lower_match_gated(const struct lowering *low, uint32_t at) {
    return take_of(low, at, NULL).gated ? 2 : 0;
}

static int emit_gated(struct lowering *low, uint32_t at, uint32_t count, bool codes) {
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials;
    int status = codes ? ready_codes(low, at) : RP_OK;
    if (status == RP_OK)
        status = plan_product(low, at, describe_gated(low, at, codes), &launch, &partials);
    if (status == RP_OK)
        append(low, at, count, &launch);
    return status;
}

int rp_lower_gated(struct lowering *low, uint32_t at, uint32_t count) {
    return emit_gated(low, at, count, take_of(low, at, NULL).codes);
}

uint32_t rp_lower_match_linear(const struct lowering *low, uint32_t at) {
    return low->fuse && rp_lowering_is_linear_add(low->program, at, low->end) ? 2 : 1;
}

static int emit_linear(struct lowering *low, uint32_t at, uint32_t count, bool codes) {
    const struct rp_op *op = op_at(low, at);
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials = {0};
    int status = codes ? ready_codes(low, at) : RP_OK;
    if (status != RP_OK)
        return status;
    if (reader_sums(low, at)) {
        struct rp_matmul_cuda product = describe_product(low, at, &op->out, codes);
        product.partials_wanted = true;
        status = plan_product(low, at, product, &launch, &partials);
        if (status != RP_OK)
            return status;
        if (partials.count) {
            append(low, at, 1, &launch);
            low->pending = partials;
            low->pending_tensor = op->out.tensor;
            return 1;
        }
    }
    status = plan_product(low, at, describe_linear(low, at, count, codes), &launch, &partials);
    if (status == RP_OK)
        append(low, at, count, &launch);
    return status;
}

int rp_lower_linear(struct lowering *low, uint32_t at, uint32_t count) {
    return emit_linear(low, at, count, take_of(low, at, NULL).codes);
}

uint32_t rp_lower_match_normed(const struct lowering *low, uint32_t at) {
    if (!rp_lowering_is_norm_linear(low->program, at, low->end) ||
        rp_lower_match_linear(low, at + 1) != 1)
        return 0;
    struct rp_matmul_cuda product = describe_product(low, at + 1, &op_at(low, at + 1)->out, false);
    product.norm = describe_norm(low, at);
    if (!rp_matmul_cuda_norms(&product))
        return 0;
    return take_of(low, at + 1, &product.norm).gated ? 3 : 2;
}

int rp_lower_normed(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *norm = op_at(low, at);
    struct rp_matmul_norm fused = describe_norm(low, at);
    int status = constant_of(low, norm->vector, fused.cols, &fused.weight);
    if (status != RP_OK)
        return status;
    low->norm = fused;
    status = count == 3 ? emit_gated(low, at + 1, 2, false) : emit_linear(low, at + 1, 1, false);
    low->norm = (struct rp_matmul_norm){0};
    struct rp_cuda_node *node = &low->graph->nodes[low->graph->node_count - 1];
    rp_lowering_name(&node->info, low->program, at, count, node->launch.kernel);
    return status < 0 ? status : RP_OK;
}
