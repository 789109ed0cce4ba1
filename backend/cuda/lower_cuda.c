/* Lowering for CUDA: a program becomes a list of kernels. The fusion pass (backend/fuse.h) decides
 * everything; here is what is no matmul and no small operator, and the walk over fused
 * operators. */
#include "backend/cuda/lower_internal_cuda.h"
#include "base/hash.h"

/* Launches per operator at most: attention has several; the plans of step_begin are counted
 * apart. */
#define LAUNCHES_PER_OP RP_ATTENTION_LAUNCHES_MAX

/* How kernels lay out their scratch follows from the program and the sizes of steps and pages. */
static uint64_t scratch_layout(const struct rp_program *program,
                               const struct rp_bindings *bindings) {
    const struct rp_kv_layout *kv = bindings->kv; /* NULL for a program that has no pages */
    const uint64_t parts[] = {rp_program_fingerprint(program), kv ? kv->page_stride : 0,
                              kv ? kv->page_tokens : 0, kv ? (uint64_t)kv->dtype : 0};
    return rp_hash64(&bindings->step.config, sizeof bindings->step.config,
                     rp_hash64(parts, sizeof parts, 0));
}

/* -- the ends of the step --------------------------------------------------------------------- */

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

int rp_lower_step_begin(struct lowering *low, const struct rp_fused_op *fused) {
    struct rp_step_begin_cuda args = {.step = low->bindings->step,
                                      .plain_edges = !low->device->limits.dependent_launch,
                                      .stamp = stamp_of(low)};
    int status = ADD_LAUNCH(low, fused, "step_begin", rp_step_begin_cuda_run, args);
    if (status != RP_OK || low->attention.window_count == 0)
        return status;
    struct rp_cuda_launch plans[RP_ATTENTION_PLANS_MAX];
    uint32_t plan_count = 0;
    low->attention.stamp = stamp_of(low);
    status =
        rp_attention_cuda_plan(&low->attention, &low->graph->memory, plans, &plan_count, low->err);
    for (uint32_t i = 0; status == RP_OK && i < plan_count; i++)
        status = append(low, fused, &plans[i]);
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
    struct rp_view all = {rope->out.tensor, 0, low->program->tensors[rope->out.tensor].cols};
    struct rp_qkv_post_cuda args = {
        .rows = rows_of(low, rope),
        .kv = *low->bindings->kv,
        .qkv = values_of(low, &all),
        .partials = partials_of(low, fused),
        .heads = (rope->out.cols - write->in[0].cols) / head_dim,
        .kv_heads = write->u.kv_write.kv_heads,
        .head_dim = head_dim,
        .rotary_dim = rope->u.rope.rotary_dim,
        .position_count = rope->u.rope.position_count,
        .layer = write->layer,
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

int rp_lower_kv_write(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_values k = values_of(low, &op->in[0]), v = values_of(low, &op->in[1]);
    struct rp_kv_write_cuda args = {rows_of(low, op),
                                    {.step = low->bindings->step,
                                     .kv = *low->bindings->kv,
                                     .k = k.data,
                                     .v = v.data,
                                     .k_stride = k.stride,
                                     .v_stride = v.stride,
                                     .layer = op->layer}};
    return ADD_LAUNCH(low, fused, "kv_write", rp_kv_write_cuda_run, args);
}

int rp_lower_attention(struct lowering *low, const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    struct rp_attention_args args = rp_lowering_attention(low->program, low->bindings, op);
    struct rp_cuda_launch launches[RP_ATTENTION_LAUNCHES_MAX];
    uint32_t launch_count = 0;
    if (op->u.attention.sinks)
        return rp_error_set(low->err, RP_STATUS_UNSUPPORTED,
                            "%s: the CUDA kernels have no attention sinks", op->name);
    low->attention.behind_product = fused->after_matmul;
    low->attention.stamp = stamp_of(low);
    int status = rp_attention_cuda_lower(&low->attention, &args, &low->graph->memory, launches,
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
                           .explain = options->explain,
                           .err = err};
    graph->nodes = rp_arena_calloc(&graph->memory,
                                   (size_t)(end - begin) * LAUNCHES_PER_OP + RP_ATTENTION_PLANS_MAX,
                                   sizeof *graph->nodes);
    if (!graph->nodes)
        return out_of_memory(&low, "the list of launches");
    int status = describe_attention(&low);
    if (status == RP_OK)
        status = rp_lower_quantize_open(&low);
    if (status == RP_OK)
        status = lower(&low, begin, end, options->no_fusion);
    rp_fused_deinit(&low.fused);
    rp_free(low.partials);
    return status;
}
