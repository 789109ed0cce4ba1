/* lower(): a program becomes a list of kernels, by one table of patterns.
 *
 * Patterns are tried in order at each operator; the first that matches says how many operators it takes
 * and adds one or more launches. Fused patterns stand first; behind every kind is an unfused kernel.
 *
 * Products are in lower_products_cuda.c. Unsummed ones: where the operators behind a product can add up its K segments
 * while they read them (add + norm, everything between qkv and attention, activation), the product may leave them
 * unsummed (struct rp_cuda_partials); what it left is kept in `pending` until its reader is lowered. */
#include "backend/cuda/lower_internal_cuda.h"
#include "base/hash.h"

/* Launches that a program of n operators can need: attention takes several; step_begin has the plans beside. */
#define LAUNCHES_PER_OP RP_ATTENTION_LAUNCHES_MAX

struct pattern {
    enum rp_op_kind kind; /* of the first operator */
    bool fused;
    uint32_t (*match)(const struct lowering *low, uint32_t at); /* operators taken; 0: no match */
    int (*emit)(struct lowering *low, uint32_t at, uint32_t count);
};

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

static const struct pattern patterns[] = {
    /* first kind, fused, match, emit */
    {RP_OP_ADD, true, rp_lower_match_add_norm, rp_lower_add_norm},
    {RP_OP_NORM, true, rp_lower_match_qkv_post, emit_qkv_post},
    {RP_OP_ROPE, true, rp_lower_match_qkv_post, emit_qkv_post},
    {RP_OP_NORM, true, rp_lower_match_normed, rp_lower_normed},
    {RP_OP_GATHER_ROWS, true, rp_lower_match_gather_norm, rp_lower_gather_norm},
    {RP_OP_LINEAR, true, rp_lower_match_gated, rp_lower_gated},
    {RP_OP_LINEAR, false, rp_lower_match_linear, rp_lower_linear},
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
                           .codes_for = RP_LOWER_NO_CODES,
                           .err = err};
    graph->nodes = rp_arena_calloc(&graph->memory,
                                   (size_t)(end - begin) * LAUNCHES_PER_OP + RP_ATTENTION_PLANS_MAX,
                                   sizeof *graph->nodes);
    if (!graph->nodes)
        return out_of_memory(&low, "the list of launches");
    int status = describe_attention(&low);
    if (status == RP_OK)
        status = rp_lower_codes_open(&low);
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
