/* lower(): a program becomes a list of kernels, by one table of patterns.
 *
 * Patterns are tried in order at each operator; the first that matches says how many operators it takes
 * and adds one or more launches. Fused patterns stand first; behind every kind is an unfused kernel.
 *
 * Unsummed products: where the operators behind a product can add up its K segments while they read them
 * (add + norm, everything between qkv and attention, activation), the product may leave them unsummed
 * (struct rp_cuda_partials); what it left is kept in `pending` until its reader is lowered. */
#include "backend/lower_internal_cuda.h"
#include "base/hash.h"

/* Launches that a program of n operators can need: attention takes several; step_begin has the plans beside. */
#define LAUNCHES_PER_OP RP_ATTENTION_LAUNCHES_MAX

/* --numerics fast: from so many rows on cuBLASLt is faster than our products (bench/results). */
#define CUBLASLT_ROWS 513

struct pattern {
    enum rp_op_kind kind; /* of the first operator */
    bool fused;
    uint32_t (*match)(const struct lowering *low, uint32_t at); /* operators taken; 0: no match */
    int (*emit)(struct lowering *low, uint32_t at, uint32_t count);
};

static unsigned char *scratch_of(const struct lowering *low, enum rp_cuda_scratch_kind kind,
                                 size_t bytes) {
    return rp_cuda_scratch(low->device, kind, bytes, low->layout);
}

/* Where kernels have what in their scratch follows from the program and the sizes of steps and pages. */
static uint64_t scratch_layout(const struct rp_program *program,
                               const struct rp_bindings *bindings) {
    const struct rp_kv_layout *kv = bindings->kv; /* NULL for a program that has no pages */
    const uint64_t parts[] = {rp_program_fingerprint(program), kv ? kv->page_stride : 0,
                              kv ? kv->page_tokens : 0, kv ? (uint64_t)kv->dtype : 0};
    return rp_hash64(&bindings->step.config, sizeof bindings->step.config,
                     rp_hash64(parts, sizeof parts, 0));
}

/* -- the ends of the step --------------------------------------------------------------------------- */

/* Mask classes of the program's attention operators, and their sizes. */
static int describe_attention(struct lowering *low) {
    struct rp_attention_cuda_config *config = &low->attention;
    config->limits = low->device->limits;
    config->step = low->bindings->step;
    config->bucket = low->bucket;
    if (low->bindings->kv)
        config->kv = *low->bindings->kv; /* a program without attention may have no pages */
    for (uint32_t i = 0; i < low->program->op_count; i++) {
        const struct rp_op *op = op_at(low, i);
        if (op->kind != RP_OP_ATTENTION)
            continue;
        config->heads = op->u.attention.heads;
        config->kv_heads = op->u.attention.kv_heads;
        config->head_dim = op->u.attention.head_dim;
        int status = rp_cuda_mask_class(low->device, config, op, low->err);
        if (status != RP_OK)
            return status;
    }
    if (config->window_count == 0)
        return RP_OK;
    config->workspace_bytes = rp_attention_cuda_workspace_bytes(config);
    config->workspace = scratch_of(low, RP_CUDA_SCRATCH_ATTENTION, config->workspace_bytes);
    return config->workspace ? RP_OK : out_of_memory(low, "attention's workspace");
}

static int emit_step_begin(struct lowering *low, uint32_t at, uint32_t count) {
    struct rp_step_begin_cuda args = {.step = low->bindings->step,
                                      .plain_edges = !low->device->limits.dependent_launch,
                                      .stamp = stamp_of(low)};
    int status = ADD_LAUNCH(low, at, count, "step_begin", rp_step_begin_cuda_run, args);
    if (status != RP_OK || low->attention.window_count == 0)
        return status;
    struct rp_cuda_launch plans[RP_ATTENTION_PLANS_MAX];
    uint32_t plan_count = 0;
    low->attention.stamp = stamp_of(low);
    status =
        rp_attention_cuda_plan(&low->attention, &low->graph->memory, plans, &plan_count, low->err);
    for (uint32_t i = 0; status == RP_OK && i < plan_count; i++)
        append(low, at, count, &plans[i]);
    return status;
}

static int emit_sample(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    struct rp_values logits = values_of(low, &op->in[0]);
    uint32_t vocab = op->u.sample.vocab;
    const struct rp_step_config *step = &low->bindings->step.config;
    size_t bytes = rp_sample_cuda_scratch_bytes(
        RP_MAX(step->row_capacity, step->logit_row_capacity), vocab, step->vocab != 0);
    struct rp_sample_cuda args = {.step = low->bindings->step,
                                  .logits = logits.data,
                                  .stride = logits.stride,
                                  .vocab = vocab,
                                  .max_rows = low->bucket.logit_rows,
                                  .max_seq_rows = low->bucket.rows,
                                  .scores_prompts = !low->bucket.decode && step->vocab != 0,
                                  .scratch = scratch_of(low, RP_CUDA_SCRATCH_SAMPLE, bytes),
                                  .plain_edges = !low->device->limits.dependent_launch,
                                  .stamp = stamp_of(low)};
    if (!args.scratch)
        return out_of_memory(low, "sampling");
    return ADD_LAUNCH(low, at, count, "sample", rp_sample_cuda_run, args);
}

/* -- between the qkv product and attention ------------------------------------------------------------ */

static uint32_t match_qkv_post(const struct lowering *low, uint32_t at) {
    return rp_lowering_qkv_post(low->program, at, low->end);
}

static int emit_qkv_post(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at), *write = op + count - 1, *rope = write - 1;
    bool norms = count == 4;
    uint32_t head_dim = write->u.kv_write.head_dim;
    struct rp_view all = {rope->out.tensor, 0, low->program->tensors[rope->out.tensor].cols};
    struct rp_qkv_post_cuda args = {
        .rows = rows_of(low, rope->rows),
        .kv = *low->bindings->kv,
        .qkv = values_of(low, &all),
        .partials = take_pending(low, all.tensor),
        .heads = (rope->out.cols - write->in[0].cols) / head_dim,
        .kv_heads = write->u.kv_write.kv_heads,
        .head_dim = head_dim,
        .rotary_dim = rope->u.rope.rotary_dim,
        .position_count = rope->u.rope.position_count,
        .layer = write->layer,
        .eps = norms ? op->u.norm.eps : 0,
        .weight_offset = norms ? op->u.norm.weight_offset : 0,
        .behind_product = low->attention.behind_product,
    };
    int status = constant_of(low, rope->table, (size_t)args.position_count * args.rotary_dim,
                             &args.rope_table);
    if (status == RP_OK && norms)
        status = constant_of(low, op->vector, head_dim, &args.q_norm);
    if (status == RP_OK && norms)
        status = constant_of(low, op[1].vector, head_dim, &args.k_norm);
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, at, count, "qkv_post", rp_qkv_post_cuda_run, args);
}

static int emit_kv_write(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    struct rp_values k = values_of(low, &op->in[0]), v = values_of(low, &op->in[1]);
    struct rp_kv_write_cuda args = {
        rows_of(low, op->rows),
        {low->bindings->step, *low->bindings->kv, k.data, v.data, k.stride, v.stride, op->layer}};
    return ADD_LAUNCH(low, at, count, "kv_write", rp_kv_write_cuda_run, args);
}

static int emit_attention(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    struct rp_values q = values_of(low, &op->in[0]), out = values_of(low, &op->out);
    struct rp_attention_args args = {.step = low->bindings->step,
                                     .kv = *low->bindings->kv,
                                     .q = q.data,
                                     .out = out.data,
                                     .q_stride = q.stride,
                                     .out_stride = out.stride,
                                     .out_dtype = out.dtype,
                                     .heads = op->u.attention.heads,
                                     .kv_heads = op->u.attention.kv_heads,
                                     .head_dim = op->u.attention.head_dim,
                                     .layer = op->layer,
                                     .window = op->u.attention.window,
                                     .scale = op->u.attention.scale,
                                     .soft_cap = op->u.attention.soft_cap,
                                     .mask = op->u.attention.mask};
    struct rp_cuda_launch launches[RP_ATTENTION_LAUNCHES_MAX];
    uint32_t launch_count = 0;
    low->attention.stamp = stamp_of(low);
    int status = rp_attention_cuda_lower(&low->attention, &args, &low->graph->memory, launches,
                                         &launch_count, low->err);
    for (uint32_t i = 0; status == RP_OK && i < launch_count; i++)
        append(low, at, count, &launches[i]);
    return status;
}

/* -- products ----------------------------------------------------------------------------------------- */

/* The product of operator `at` into `out`, without what has to be allocated. */
static struct rp_matmul_cuda describe_product(const struct lowering *low, uint32_t at,
                                              const struct rp_view *out) {
    const struct rp_op *op = op_at(low, at);
    struct rp_values in = values_of(low, &op->in[0]);
    return (struct rp_matmul_cuda){.rows = rows_of(low, op->rows),
                                   .limits = low->device->limits,
                                   .weight = op->weight,
                                   .in = in.data,
                                   .in_stride = in.stride,
                                   .out = values_of(low, out),
                                   .gate_up = rp_lowering_feeds_activation(low->program, at)};
}

static int plan_product(struct lowering *low, uint32_t at, struct rp_matmul_cuda product,
                        struct rp_cuda_launch *launch, struct rp_cuda_partials *partials) {
    const struct rp_op *op = op_at(low, at);
    const struct rp_step_config *step = &low->bindings->step.config;
    struct rp_values in = values_of(low, &op->in[0]);
    low->attention.behind_product = true;
    product.norm = low->norm;
    if (rp_dtype_bytes(op->weight->dtype) == 1)
        return rp_error_set(low->err, RP_STATUS_UNSUPPORTED,
                            "%s: the CUDA backend has no product for %s weights; --device cpu has",
                            op->name, rp_dtype_name(op->weight->dtype));
    if (in.dtype != op->weight->dtype)
        return rp_error_set(low->err, RP_STATUS_UNSUPPORTED, "%s: %s input for %s weights",
                            op->name, rp_dtype_name(in.dtype), rp_dtype_name(op->weight->dtype));
    product.workspace_bytes = rp_matmul_cuda_workspace_bytes(
        &low->device->limits, RP_MAX(step->token_capacity, step->logit_row_capacity),
        rp_lowering_widest_linear(low->program));
    product.workspace = scratch_of(low, RP_CUDA_SCRATCH_MATMUL, product.workspace_bytes);
    if (!product.workspace)
        return out_of_memory(low, "the products' workspace");
    int status = constant_of(low, op->vector, op->weight->rows, &product.bias);
    if (status != RP_OK)
        return status;
    if (low->device->cublaslt && !product.gated && product.rows.max_rows >= CUBLASLT_ROWS) {
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
        return op[1].out.tensor == op->out.tensor && match_qkv_post(low, next) != 0;
    default:
        return false;
    }
}

/* gate_up and the activation behind it in one kernel, where a product's kernel does both. */
static struct rp_matmul_cuda describe_gated(const struct lowering *low, uint32_t at) {
    const struct rp_op *activation = op_at(low, at) + 1;
    struct rp_matmul_cuda product = describe_product(low, at, &activation->out);
    product.gated = true;
    product.fn = activation->u.activation.fn;
    return product;
}

static uint32_t match_gated(const struct lowering *low, uint32_t at) {
    const struct rp_op *op = op_at(low, at), *activation = op + 1;
    if (at + 1 >= low->end || !rp_lowering_feeds_activation(low->program, at) || op->vector ||
        activation->rows != op->rows || rp_lowering_is_read(low->program, at + 2, op->out.tensor))
        return 0;
    struct rp_matmul_cuda product = describe_gated(low, at);
    /* The product's input dies before the activation: in one kernel they must not share memory. */
    struct rp_values in = values_of(low, &op->in[0]);
    if ((low->device->cublaslt && product.rows.max_rows >= CUBLASLT_ROWS) ||
        rp_lowering_overlap(&in, &product.out, product.rows.max_rows))
        return 0;
    return rp_matmul_cuda_gates(&product) ? 2 : 0;
}

static int emit_gated(struct lowering *low, uint32_t at, uint32_t count) {
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials;
    int status = plan_product(low, at, describe_gated(low, at), &launch, &partials);
    if (status == RP_OK)
        append(low, at, count, &launch);
    return status;
}

static uint32_t match_linear(const struct lowering *low, uint32_t at) {
    return low->fuse && rp_lowering_is_linear_add(low->program, at, low->end) ? 2 : 1;
}

/* linear alone, or linear and the add of its result to the residual. */
static int emit_linear(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *op = op_at(low, at);
    struct rp_matmul_cuda product = describe_product(low, at, &op->out);
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials = {0};
    int status;
    if (reader_sums(low, at)) {
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
    product = describe_product(low, at, count == 2 ? &op[1].out : &op->out);
    product.accumulate = count == 2;
    status = plan_product(low, at, product, &launch, &partials);
    if (status == RP_OK)
        append(low, at, count, &launch);
    return status;
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

static uint32_t match_normed(const struct lowering *low, uint32_t at) {
    if (!rp_lowering_is_norm_linear(low->program, at, low->end) || match_linear(low, at + 1) != 1)
        return 0;
    struct rp_matmul_cuda product = describe_product(low, at + 1, &op_at(low, at + 1)->out);
    product.norm = describe_norm(low, at);
    if (!rp_matmul_cuda_norms(&product))
        return 0;
    return match_gated(low, at + 1) ? 3 : 2;
}

static int emit_normed(struct lowering *low, uint32_t at, uint32_t count) {
    const struct rp_op *norm = op_at(low, at);
    struct rp_matmul_norm fused = describe_norm(low, at);
    int status = constant_of(low, norm->vector, fused.cols, &fused.weight);
    if (status != RP_OK)
        return status;
    low->norm = fused;
    status = count == 3 ? emit_gated(low, at + 1, 2) : emit_linear(low, at + 1, 1);
    low->norm = (struct rp_matmul_norm){0};
    struct rp_cuda_node *node = &low->graph->nodes[low->graph->node_count - 1];
    rp_lowering_name(&node->info, low->program, at, count, node->launch.kernel);
    return status < 0 ? status : RP_OK;
}

static const struct pattern patterns[] = {
    /* first kind, fused, match, emit */
    {RP_OP_ADD, true, rp_lower_match_add_norm, rp_lower_add_norm},
    {RP_OP_NORM, true, match_qkv_post, emit_qkv_post},
    {RP_OP_ROPE, true, match_qkv_post, emit_qkv_post},
    {RP_OP_NORM, true, match_normed, emit_normed},
    {RP_OP_GATHER_ROWS, true, rp_lower_match_gather_norm, rp_lower_gather_norm},
    {RP_OP_LINEAR, true, match_gated, emit_gated},
    {RP_OP_LINEAR, false, match_linear, emit_linear},
    {RP_OP_STEP_BEGIN, false, NULL, emit_step_begin},
    {RP_OP_EMBED, false, NULL, rp_lower_embed},
    {RP_OP_NORM, false, NULL, rp_lower_norm},
    {RP_OP_ROPE, false, NULL, rp_lower_rope},
    {RP_OP_KV_WRITE, false, NULL, emit_kv_write},
    {RP_OP_ATTENTION, false, NULL, emit_attention},
    {RP_OP_ACTIVATION, false, NULL, rp_lower_activation},
    {RP_OP_ADD, false, NULL, rp_lower_add},
    {RP_OP_GATHER_ROWS, false, NULL, rp_lower_gather},
    {RP_OP_SOFT_CAP, false, NULL, rp_lower_soft_cap},
    {RP_OP_SAMPLE, false, NULL, emit_sample},
};

static const struct pattern *find_pattern(const struct lowering *low, uint32_t at,
                                          uint32_t *out_count) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(patterns); i++) {
        const struct pattern *pattern = &patterns[i];
        if (pattern->kind != op_at(low, at)->kind || (pattern->fused && !low->fuse))
            continue;
        *out_count = pattern->match ? pattern->match(low, at) : 1;
        if (*out_count)
            return pattern;
    }
    return NULL;
}

int rp_cuda_lower(struct rp_device *device, struct rp_graph *graph,
                  const struct rp_program *program, uint32_t begin, uint32_t end,
                  const struct rp_bucket *bucket, const struct rp_bindings *bindings,
                  const struct rp_lower_options *options, struct rp_error *err) {
    struct lowering low = {.device = device,
                           .graph = graph,
                           .program = program,
                           .bindings = bindings,
                           .bucket = *bucket,
                           .end = end,
                           .fuse = !options->no_fusion,
                           .layout = scratch_layout(program, bindings),
                           .err = err};
    graph->nodes = rp_arena_calloc(&graph->memory,
                                   (size_t)(end - begin) * LAUNCHES_PER_OP + RP_ATTENTION_PLANS_MAX,
                                   sizeof *graph->nodes);
    if (!graph->nodes)
        return out_of_memory(&low, "the list of launches");
    int status = describe_attention(&low);
    for (uint32_t at = begin; status >= 0 && at < end;) {
        uint32_t count;
        const struct pattern *pattern = find_pattern(&low, at, &count);
        if (!pattern)
            return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                "%s: the CUDA backend has no kernel for operator \"%s\"",
                                program->ops[at].name, rp_op_kind_name(program->ops[at].kind));
        status = pattern->emit(&low, at, count);
        at += status > 0 ? (uint32_t)status : count; /* > 0: took fewer than it matched */
    }
    RP_ASSERT(low.pending.count == 0 || status < 0);
    return status < 0 ? status : RP_OK;
}
