/* Lowering for CUDA: a program becomes a list of kernels. The fusion pass (backend/fuse.h) decides
 * everything; here is what is no matmul and no small operator, and the walk over fused
 * operators. */
#include "backend/cuda/lower_internal_cuda.h"
#include "base/hash.h"
#include "kvcache/kv_geometry.h"

/* Launches per operator at most: attention has several; the plans of step_begin are counted
 * apart. */
#define LAUNCHES_PER_OP RP_ATTENTION_LAUNCHES_MAX

/* How kernels lay out their scratch follows from the program and the sizes of steps and pages. */
static uint64_t scratch_layout(const struct rp_program *program,
                               const struct rp_bindings *bindings) {
    const struct rp_kv_layout *kv = bindings->kv; /* NULL for a program that has no pages */
    const uint64_t parts[] = {rp_program_fingerprint(program), kv ? kv->page_stride : 0,
                              kv ? kv->page_tokens : 0, kv ? (uint64_t)kv->dtype : 0,
                              bindings->geometry ? bindings->geometry->groups.count : 1};
    return rp_hash64(&bindings->step.config, sizeof bindings->step.config,
                     rp_hash64(parts, sizeof parts, 0));
}

/* -- the ends of the step --------------------------------------------------------------------- */

/* That of the operator's sizes, or NULL. */
static struct rp_attention_cuda_config *attention_of(struct lowering *low, const struct rp_op *op) {
    for (uint32_t i = 0; i < low->attention_count; i++) {
        struct rp_attention_cuda_config *config = &low->attention[i];
        if (config->heads == op->u.attention.heads &&
            config->kv_heads == op->u.attention.kv_heads &&
            config->head_dim == op->u.attention.head_dim &&
            config->value_dim == op->u.attention.value_dim)
            return config;
    }
    return NULL;
}

static int add_sizes(struct lowering *low, const struct rp_op *op,
                     struct rp_attention_cuda_config **out) {
    const struct rp_kv_geometry *geometry = low->bindings->geometry;
    if (low->attention_count == RP_LOWER_ATTENTION_MAX)
        return rp_error_set(low->err, RP_STATUS_UNSUPPORTED,
                            "%s: more than %d different sizes of heads in one model", op->name,
                            RP_LOWER_ATTENTION_MAX);
    *out = &low->attention[low->attention_count++];
    **out = (struct rp_attention_cuda_config){
        .limits = low->device->limits,
        .step = low->bindings->step,
        .kv = rp_lowering_pages(low->bindings, op->layer).kv,
        .bucket = low->bucket,
        .heads = op->u.attention.heads,
        .kv_heads = op->u.attention.kv_heads,
        .head_dim = op->u.attention.head_dim,
        .value_dim = op->u.attention.value_dim,
        .tables = geometry ? geometry->groups.count : 1,
    };
    return RP_OK;
}

/* Sizes and mask classes of the program's attention operators, and a workspace for each of those
 * sizes. */
static int describe_attention(struct lowering *low) {
    size_t bytes = 0;
    int status = RP_OK;
    for (uint32_t i = 0; i < low->program->op_count; i++) {
        const struct rp_op *op = op_at(low, i);
        if (op->kind != RP_OP_ATTENTION)
            continue;
        struct rp_attention_cuda_config *config = attention_of(low, op);
        if (!config)
            status = add_sizes(low, op, &config);
        if (status == RP_OK)
            status = rp_cuda_mask_class(low->device, config, op, low->err);
        if (status != RP_OK)
            return status;
    }
    for (uint32_t i = 0; i < low->attention_count; i++) {
        struct rp_attention_cuda_config *config = &low->attention[i];
        config->workspace_bytes = RP_ALIGN_UP(rp_attention_cuda_workspace_bytes(config), 256);
        bytes += config->workspace_bytes;
    }
    if (bytes == 0)
        return RP_OK;
    unsigned char *workspace = scratch_of(low, RP_CUDA_SCRATCH_ATTENTION, bytes);
    if (!workspace)
        return out_of_memory(low, "attention's workspace");
    for (uint32_t i = 0; i < low->attention_count; i++) {
        low->attention[i].workspace = workspace;
        workspace += low->attention[i].workspace_bytes;
    }
    return RP_OK;
}

/* The planners of the attention operators of one size. */
static int plan_attention(struct lowering *low, const struct rp_fused_op *fused,
                          struct rp_attention_cuda_config *config) {
    struct rp_cuda_launch plans[RP_ATTENTION_PLANS_MAX];
    uint32_t plan_count = 0;
    config->stamp = stamp_of(low);
    int status = rp_attention_cuda_plan(config, &low->graph->memory, plans, &plan_count, low->err);
    for (uint32_t i = 0; status == RP_OK && i < plan_count; i++)
        status = append(low, fused, &plans[i]);
    return status;
}

int rp_lower_step_begin(struct lowering *low, const struct rp_fused_op *fused) {
    struct rp_step_begin_cuda args = {.step = low->bindings->step,
                                      .plain_edges = !low->device->limits.dependent_launch,
                                      .stamp = stamp_of(low)};
    int status = ADD_LAUNCH(low, fused, "step_begin", rp_step_begin_cuda_run, args);
    for (uint32_t i = 0; status == RP_OK && i < low->attention_count; i++)
        status = plan_attention(low, fused, &low->attention[i]);
    return status;
}

int rp_lower_sample(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
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
    return ADD_LAUNCH(low, fused, "sample", rp_sample_cuda_run, args);
}

/* -- between the qkv GEMM and attention - ----------------------------------------------------- */

int rp_lower_qkv_post(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0), *write = last_of(low, fused);
    const struct rp_op *rope = member_of(low, fused, fused->op_count - 2);
    bool norms = fused->op_count == 4;
    uint32_t head_dim = write->u.kv_write.head_dim;
    struct rp_layer_pages pages = rp_lowering_pages(low->bindings, write->layer);
    struct rp_view all = rope->out; /* and v, behind it */
    struct rp_qkv_post_cuda args = {
        .rows = rows_of(low, rope),
        .kv = pages.kv,
        .qkv = values_of(low, &all),
        .partials = partials_of(low, fused),
        .heads = (rope->out.cols - write->in[0].cols) / head_dim,
        .kv_heads = write->u.kv_write.kv_heads,
        .head_dim = head_dim,
        .rotary_dim = rope->u.rope.rotary_dim,
        .position_count = rope->u.rope.position_count,
        .layer = pages.layer,
        .table = pages.table,
        .eps = norms ? op->u.norm.eps : 0,
        .weight_offset = norms ? op->u.norm.weight_offset : 0,
        .behind_product = fused->after_matmul,
    };
    int status = constant_of(low, rope->table, (size_t)args.position_count * args.rotary_dim,
                             &args.rope_table);
    if (status == RP_OK && norms)
        status = constant_of(low, op->vector, head_dim, &args.q_norm);
    if (status == RP_OK && norms)
        status = constant_of(low, member_of(low, fused, 1)->vector, head_dim, &args.k_norm);
    if (status != RP_OK)
        return status;
    return ADD_LAUNCH(low, fused, "qkv_post", rp_qkv_post_cuda_run, args);
}

/* Sorts the members by what they do; NULL: each has one place. */
static const char *sort_latent_post(const struct lowering *low, const struct rp_fused_op *fused,
                                    struct rp_latent_post_ops *out) {
    for (uint32_t i = 0; i < fused->op_count; i++) {
        const struct rp_op *op = member_of(low, fused, i);
        const struct rp_op **place = op->kind == RP_OP_NORM       ? &out->norm
                                     : op->kind == RP_OP_KV_WRITE ? &out->write
                                     : op->kind == RP_OP_SCALE    ? &out->rounded
                                     : op->u.rope.heads == 1 && op->out.cols == RP_LATENT_POST_ROPE
                                         ? &out->k_rope
                                         : &out->q_rope;
        if (*place)
            return "several operators of one kind";
        *place = op;
    }
    return NULL;
}

static const char *check_latent_row(const struct lowering *low,
                                    const struct rp_latent_post_ops *ops) {
    const struct rp_op *norm = ops->norm, *rope = ops->k_rope, *write = ops->write;
    if (!norm || !rope || !write || write->in_count != 1 || norm > write || rope > write)
        return "it is not the norm, rope and kv_write of a latent";
    const struct rp_view *row = &write->in[0];
    const struct rp_view c = {row->tensor, row->col, RP_LATENT_POST_RANK};
    const struct rp_view k = {row->tensor, row->col + c.cols, RP_LATENT_POST_ROPE};
    if (row->cols != c.cols + k.cols || !rp_same_view(&norm->in[0], &c) ||
        !rp_same_view(&norm->out, &c) || norm->u.norm.group != c.cols ||
        !rp_same_view(&rope->out, &k) || rope->u.rope.rotary_dim != k.cols ||
        low->program->tensors[row->tensor].dtype != RP_DTYPE_F32)
        return "the kernel has no latents of this size";
    return NULL;
}

static const char *check_latent_query(const struct lowering *low,
                                      const struct rp_latent_post_ops *ops) {
    const struct rp_op *rope = ops->q_rope, *rounded = ops->rounded;
    const uint32_t dim = rope->u.rope.head_dim, heads = rope->u.rope.heads;
    const uint32_t skipped = dim - RP_LATENT_POST_ROPE; /* columns of a head before them */
    if (rope->u.rope.rotary_dim != RP_LATENT_POST_ROPE || dim % 4 != 0 ||
        dim < RP_LATENT_POST_ROPE || rope->out.col < skipped ||
        rope->out.cols != heads * dim - skipped ||
        low->program->tensors[rope->out.tensor].dtype != RP_DTYPE_F32)
        return "the kernel has no heads of this size";
    const struct rp_view q = {rope->out.tensor, rope->out.col - skipped, heads * dim};
    if (rounded &&
        (rope > rounded || !rp_same_view(&rounded->in[0], &q) || rounded->u.scale.factor != 1.0f ||
         rounded->u.scale.position_count != 0 || rounded->out.tensor == q.tensor))
        return "it does not round q";
    return NULL;
}

const char *rp_lower_latent_post_ops(const struct lowering *low, const struct rp_fused_op *fused,
                                     struct rp_latent_post_ops *out) {
    *out = (struct rp_latent_post_ops){NULL};
    const char *why = sort_latent_post(low, fused, out);
    if (!why && (out->norm || out->k_rope || out->write))
        why = check_latent_row(low, out);
    if (!why && !out->q_rope && (out->rounded || !out->write))
        why = "it is not the rope of q";
    if (!why && out->q_rope)
        why = check_latent_query(low, out);
    if (!why && out->q_rope && out->k_rope &&
        (out->q_rope->table != out->k_rope->table ||
         out->q_rope->u.rope.position_count != out->k_rope->u.rope.position_count))
        why = "q and k have different tables of angles";
    /* The kernel stores the row in its page alone. */
    if (!why && out->write &&
        rp_is_read(low->program, fused->ops[fused->op_count - 1] + 1, &out->write->in[0]))
        why = "the latent is read again";
    return why;
}

int rp_lower_latent_post(struct lowering *low, const struct rp_fused_op *fused) {
    struct rp_latent_post_ops ops;
    const char *why = rp_lower_latent_post_ops(low, fused, &ops);
    RP_ASSERT(!why);
    const struct rp_op *rope = ops.q_rope ? ops.q_rope : ops.k_rope;
    struct rp_latent_post_cuda args = {.rows = rows_of(low, rope),
                                       .position_count = rope->u.rope.position_count};
    int status = constant_of(low, rope->table, (size_t)args.position_count * RP_LATENT_POST_ROPE,
                             &args.rope_table);
    if (status == RP_OK && ops.write) {
        struct rp_layer_pages pages = rp_lowering_pages(low->bindings, ops.write->layer);
        args.kv = pages.kv;
        args.row = values_of(low, &ops.write->in[0]);
        args.eps = ops.norm->u.norm.eps;
        args.weight_offset = ops.norm->u.norm.weight_offset;
        args.layer = pages.layer;
        args.table = pages.table;
        status = constant_of(low, ops.norm->vector, RP_LATENT_POST_RANK, &args.norm);
    }
    if (ops.q_rope) {
        args.heads = rope->u.rope.heads;
        args.head_dim = rope->u.rope.head_dim;
        struct rp_view q = rope->out;
        q.cols = args.heads * args.head_dim;
        q.col -= args.head_dim - RP_LATENT_POST_ROPE;
        args.q = values_of(low, &q);
    }
    if (ops.rounded)
        args.rounded = values_of(low, &ops.rounded->out);
    return status == RP_OK ? ADD_LAUNCH(low, fused, "latent_post", rp_latent_post_cuda_run, args)
                           : status;
}

int rp_lower_kv_write(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_values k = values_of(low, &op->in[0]), v = {0};
    if (op->in_count == 2) /* pages of latents have no V */
        v = values_of(low, &op->in[1]);
    struct rp_layer_pages pages = rp_lowering_pages(low->bindings, op->layer);
    struct rp_kv_write_cuda args = {rows_of(low, op),
                                    {.step = low->bindings->step,
                                     .kv = pages.kv,
                                     .k = k.data,
                                     .v = v.data,
                                     .k_stride = k.stride,
                                     .v_stride = v.stride,
                                     .layer = pages.layer,
                                     .table = pages.table}};
    return ADD_LAUNCH(low, fused, "kv_write", rp_kv_write_cuda_run, args);
}

int rp_lower_attention(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_attention_args args = rp_lowering_attention(low->program, low->bindings, op);
    struct rp_cuda_launch launches[RP_ATTENTION_LAUNCHES_MAX];
    uint32_t launch_count = 0;
    struct rp_attention_cuda_config *config = attention_of(low, op);
    config->behind_product = fused->after_matmul;
    config->stamp = stamp_of(low);
    int status = constant_of(low, op->vector, args.heads, &args.sinks);
    if (status == RP_OK)
        status = rp_attention_cuda_lower(config, &args, &low->graph->memory, launches,
                                         &launch_count, low->err);
    for (uint32_t i = 0; status == RP_OK && i < launch_count; i++)
        status = append(low, fused, &launches[i]);
    return status;
}

static int lower(struct lowering *low, uint32_t begin, uint32_t end, bool no_fusion) {
    const struct rp_fuse_input input = {.program = low->program,
                                        .begin = begin,
                                        .end = end,
                                        .bucket = &low->bucket,
                                        .tensor_offsets = low->bindings->tensor_offsets,
                                        .table = &rp_cuda_fusions,
                                        .no_fusion = no_fusion,
                                        .backend = low};
    int status = rp_fuse(&input, &low->fused, low->err);
    if (status != RP_OK)
        return status;
    low->partials = rp_calloc(low->fused.count, sizeof *low->partials);
    if (!low->partials)
        return out_of_memory(low, "the list of launches");
    for (uint32_t i = 0; i < low->fused.count && status == RP_OK; i++)
        status = rp_lower_emit(low, &low->fused.ops[i]);
    return status;
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
                           .layout = scratch_layout(program, bindings),
                           .pushed_to = RP_FUSED_NONE,
                           .explain = options->explain,
                           .err = err};
    graph->nodes = rp_arena_calloc(&graph->memory,
                                   (size_t)(end - begin) * LAUNCHES_PER_OP +
                                       RP_LOWER_ATTENTION_MAX * RP_ATTENTION_PLANS_MAX,
                                   sizeof *graph->nodes);
    if (!graph->nodes)
        return out_of_memory(&low, "the list of launches");
    int status = describe_attention(&low);
    if (status == RP_OK)
        status = rp_lower_rows_open(&low);
    if (status == RP_OK)
        status = rp_lower_experts_open(&low);
    if (status == RP_OK)
        status = lower(&low, begin, end, options->no_fusion);
    rp_fused_deinit(&low.fused);
    rp_free(low.partials);
    return status;
}
