/* fusions_cuda.c - which operators one CUDA kernel runs: the table of fusions and its
 * conditions. */
#include "backend/cuda/lower_internal_cuda.h"

static const struct lowering *lowering_of(const struct rp_fuse_input *input) {
    return input->backend;
}

/* -- GEMMs ------------------------------------------------------------------------------------ */

/* The forms of a candidate with an activation that a kernel runs. */
static bool gates(const struct lowering *low, const struct rp_fused_op *fused, bool quantized) {
    struct rp_matmul_cuda matmul = rp_lower_describe_matmul(low, fused, quantized);
    return !rp_lower_uses_library(low, &matmul) && rp_matmul_cuda_gates(&matmul);
}

/* With plain input rows, which the kernel quantizes where the weights are W8A8. */
static bool gates_plain(const struct lowering *low, const struct rp_fused_op *fused) {
    struct rp_matmul_cuda matmul = rp_lower_describe_matmul(low, fused, false);
    const struct rp_op *linear = op_at(low, rp_fused_find(low->program, fused, RP_OP_LINEAR));
    return gates(low, fused, false) &&
           (!rp_lower_is_w8a8(linear) || matmul.norm.cols || rp_matmul_cuda_quantizes(&matmul));
}

static bool has_bias(const struct rp_op *linear) { return linear->vector || linear->u.linear.bias; }

static const char *refuse_gated(const struct rp_fuse_input *input,
                                const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    const struct rp_op *linear = member_of(low, fused, 0);
    if (has_bias(linear))
        return "the gated kernels add no bias";
    return gates_plain(low, fused) || (rp_lower_is_w8a8(linear) && gates(low, fused, true))
               ? NULL
               : "no gated kernel for this matrix, type and number of rows";
}

static const char *refuse_normed(const struct rp_fuse_input *input,
                                 const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    const struct rp_op *norm = member_of(low, fused, 0);
    struct rp_fused_op without = *fused;
    without.op_count = 2;
    if (norm->u.norm.group != norm->in[0].cols ||
        low->program->tensors[norm->in[0].tensor].dtype != RP_DTYPE_F32 ||
        low->program->tensors[norm->out.tensor].dtype != RP_DTYPE_BF16)
        return "it is not a norm of whole f32 rows to bf16";
    struct rp_matmul_cuda matmul = rp_lower_describe_matmul(low, &without, false);
    if (!rp_matmul_cuda_norms(&matmul))
        return "no GEMM kernel norms its rows for this matrix, type and number of rows";
    if (fused->op_count == 3 && (has_bias(member_of(low, fused, 1)) || !gates_plain(low, fused)))
        return "no gated kernel for this matrix, type and number of rows";
    return NULL;
}

static const char *refuse_linear_add(const struct rp_fuse_input *input,
                                     const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    return low->program->tensors[member_of(low, fused, 0)->out.tensor].dtype == RP_DTYPE_F32
               ? NULL
               : "its output is not f32";
}

static bool needs_quantized(const struct rp_fuse_input *input, const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    const struct rp_op *first = member_of(low, fused, 0);
    if (first->kind == RP_OP_EXPERT_GATE_UP)
        return rp_lower_experts_are_w8a8(first);
    if (!rp_lower_is_w8a8(first)) /* W8A8 kernels that norm also quantize */
        return false;
    if (last_of(low, fused)->kind == RP_OP_ACTIVATION)
        return !gates_plain(low, fused);
    struct rp_matmul_cuda matmul = rp_lower_describe_matmul(low, fused, false);
    return !rp_matmul_cuda_quantizes(&matmul);
}

/* Whether K is split is only decided by the plan: makes one in temporary memory. */
static bool leaves_partials(const struct rp_fuse_input *input, const struct rp_fused_op *fused) {
    struct rp_arena memory = {0};
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials = {0};
    struct rp_fused_op asked = *fused;
    asked.partials_to = 0;
    int status = rp_lower_plan_matmul(lowering_of(input), &asked, needs_quantized(input, fused),
                                      NULL, &memory, &launch, &partials);
    rp_arena_deinit(&memory);
    return status == RP_OK && partials.count != 0;
}

/* -- small operators -------------------------------------------------------------------------- */

static bool is_whole(const struct rp_op *norm) { return norm->u.norm.group == norm->in[0].cols; }

/* Whether the norm is that of norm_linear: of rows that one GEMM alone reads, in a kernel that can
 * norm them. */
static bool is_normed_by_reader(const struct rp_fuse_input *input, uint32_t norm) {
    const struct lowering *low = lowering_of(input);
    const struct rp_view *out = &op_at(low, norm)->out;
    uint32_t reader = rp_first_reader(low->program, norm + 1, out);
    const struct rp_fused_op normed = {.op_count = 2, .ops = {norm, reader}};
    return reader != RP_FUSED_NONE && reader < input->end &&
           op_at(low, reader)->kind == RP_OP_LINEAR &&
           rp_same_view(out, &op_at(low, reader)->in[0]) &&
           !rp_is_read(low->program, reader + 1, out) && !refuse_normed(input, &normed);
}

/* A norm that its GEMM's kernel can run is left to it, unless the term was normed itself (Gemma2):
 * there add + norm is what was measured. */
static const char *refuse_add_norm(const struct rp_fuse_input *input,
                                   const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    const struct rp_op *add = member_of(low, fused, 0), *norm = last_of(low, fused);
    uint32_t at = fused->ops[0], last = fused->ops[fused->op_count - 1];
    if (!is_whole(norm))
        return "it is not a norm of whole rows";
    if (fused->partials_from != RP_FUSED_NONE || fused->op_count != 2)
        return NULL;
    while (at-- > input->begin)
        if (rp_views_overlap(&op_at(low, at)->out, &add->in[1]))
            break;
    if (at < input->end && op_at(low, at)->kind == RP_OP_NORM)
        return NULL;
    return is_normed_by_reader(input, last) ? "the norm is fused to its GEMM" : NULL;
}

static bool takes_vectors(const struct lowering *low, const struct rp_view *view) {
    return view->col % 4 == 0 && low->program->tensors[view->tensor].cols % 4 == 0;
}

/* What the kernel keeps in registers is what the norm's kernel stores: f32. */
static const char *refuse_norm_glu(const struct rp_fuse_input *input,
                                   const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    const struct rp_op *norm = member_of(low, fused, 0), *glu = last_of(low, fused);
    return low->program->tensors[norm->out.tensor].dtype == RP_DTYPE_F32 &&
                   rp_glu_cuda_norms(glu->out.cols, norm->u.norm.group) &&
                   takes_vectors(low, &norm->in[0]) && takes_vectors(low, &glu->in[0]) &&
                   takes_vectors(low, &glu->out)
               ? NULL
               : "the kernel has no norm of such groups";
}

/* [norm of q, norm of k,] rope of both, kv_write: columns of one f32 tensor, q then k then v. The
 * kernel stores q alone: k and v are in the pages. What lies before q (an output gate) is read by
 * others, so that it must not be left in partial sums. */
static const char *refuse_qkv_post(const struct rp_fuse_input *input,
                                   const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    const struct rp_op *write = last_of(low, fused);
    const struct rp_op *rope = member_of(low, fused, fused->op_count - 2);
    uint32_t norms = fused->op_count - 2;
    if ((norms != 0 && norms != 2) || rope->kind != RP_OP_ROPE || write->kind != RP_OP_KV_WRITE)
        return "it is not rope and kv_write, with the norms of q and k or without norms";
    if (write->in_count != 2)
        return "pages of latents have no v";
    uint32_t head_dim = write->u.kv_write.head_dim, kv_cols = write->in[0].cols;
    uint32_t q_cols = rope->out.cols - kv_cols, q_col = rope->out.col, k_col = q_col + q_cols;
    if (q_col && fused->partials_from != RP_FUSED_NONE)
        return "the columns before q are read, too";
    if (head_dim > RP_QKV_POST_HEAD_DIM_MAX)
        return "the kernel has no heads of so many columns";
    const struct rp_view kv = {rope->out.tensor, k_col, 2 * kv_cols};
    if (write->in[0].tensor != rope->out.tensor || write->in[1].tensor != rope->out.tensor ||
        low->program->tensors[rope->out.tensor].dtype != RP_DTYPE_F32 ||
        rope->u.rope.head_dim != head_dim || rope->out.cols <= kv_cols ||
        write->in[0].col != k_col || write->in[1].col != k_col + kv_cols)
        return "q, k and v are not columns of one f32 tensor";
    for (uint32_t i = 0; i < norms; i++) {
        const struct rp_op *norm = member_of(low, fused, i);
        if (norm->kind != RP_OP_NORM || norm->u.norm.group != head_dim ||
            !rp_same_view(&norm->in[0], &norm->out) || norm->out.tensor != rope->out.tensor ||
            norm->out.col != (i ? k_col : q_col) || norm->out.cols != (i ? kv_cols : q_cols) ||
            norm->u.norm.eps != member_of(low, fused, 0)->u.norm.eps)
            return "the norms are not those of q and k";
    }
    return rp_is_read(low->program, fused->ops[fused->op_count - 1] + 1, &kv)
               ? "k or v is read again"
               : NULL;
}

static const char *refuse_latent_post(const struct rp_fuse_input *input,
                                      const struct rp_fused_op *fused) {
    struct rp_latent_post_ops unused;
    return rp_lower_latent_post_ops(lowering_of(input), fused, &unused);
}

/* -- experts ---------------------------------------------------------------------------------- */

static const char *refuse_route_order(const struct rp_fuse_input *input,
                                      const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    if (fused->op_count != 2 || member_of(low, fused, 0)->kind != RP_OP_ROUTE)
        return "it is not a route and the order of its choices";
    return low->bucket.tokens <= RP_ROUTE_ORDER_ROWS ? NULL : "one block routes too many rows";
}

/* The router's kernel has the bits of GEMMs on tensor cores, and keeps the logits to itself. */
static const char *refuse_router(const struct rp_fuse_input *input,
                                 const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    const struct rp_op *gemm = member_of(low, fused, 0);
    if (fused->op_count != 3 || gemm->kind != RP_OP_LINEAR ||
        member_of(low, fused, 1)->kind != RP_OP_ROUTE ||
        last_of(low, fused)->kind != RP_OP_EXPERT_ORDER)
        return "it is not a router's GEMM, its route and the order of the choices";
    const struct rp_op *route = member_of(low, fused, 1);
    if (!rp_same_view(&gemm->out, &route->in[0]) ||
        rp_is_read(low->program, fused->ops[1] + 1, &gemm->out))
        return "the logits are read by others, too";
    struct rp_fused_op alone = *fused;
    alone.op_count = 1;
    struct rp_matmul_cuda matmul = rp_lower_describe_matmul(low, &alone, false);
    if (matmul.out.dtype != RP_DTYPE_F32 || !rp_matmul_cuda_chains(&matmul))
        return "its GEMM is not one of bf16 on tensor cores";
    struct rp_router_cuda router = rp_lower_describe_router(low, gemm, route);
    return rp_router_cuda_fits(&router) ? NULL : "too many rows, experts or columns for a cluster";
}

/* One block sums up a row, of which expert_sum gives parts to several: for few rows. */
static const char *refuse_expert_sum_norm(const struct rp_fuse_input *input,
                                          const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    const struct rp_op *sum = member_of(low, fused, 0), *norm = last_of(low, fused);
    if (!is_whole(norm))
        return "it is not a norm of whole rows";
    if (rp_program_rows(low->program, &low->bucket, sum->rows) > RP_EXPERT_SUM_NORM_ROWS)
        return "too many rows for a block each";
    return is_normed_by_reader(input, fused->ops[2]) ? "the norm is fused to its GEMM" : NULL;
}

/* -- between the ranks of a group ------------------------------------------------------------- */

static const char *refuse_allreduce(const struct rp_fuse_input *input,
                                    const struct rp_fused_op *fused) {
    (void)fused;
    return lowering_of(input)->device->exchange ? NULL : "the device belongs to no group of ranks";
}

/* Without a group there is no kernel that could add up partial sums. */
static const char *refuse_partials_alone(const struct rp_fuse_input *input,
                                         const struct rp_fused_op *fused) {
    return fused->partials_from == RP_FUSED_NONE ? NULL : refuse_allreduce(input, fused);
}

static const char *refuse_allreduce_norm(const struct rp_fuse_input *input,
                                         const struct rp_fused_op *fused) {
    const struct lowering *low = lowering_of(input);
    const struct rp_op *add = member_of(low, fused, 1), *norm = last_of(low, fused);
    const char *alone = refuse_allreduce(input, fused);
    if (alone)
        return alone;
    return is_whole(norm) && norm->in[0].cols <= RP_EXCHANGE_NORM_COLS_MAX &&
                   norm->in[0].cols % 4 == 0 && takes_vectors(low, &add->out) &&
                   takes_vectors(low, &add->in[1]) && takes_vectors(low, &norm->out)
               ? NULL
               : "it is not a norm of whole rows of at most 8,192 columns, a multiple of 4";
}

/* -- the table -------------------------------------------------------------------------------- */

/* One line for each operator: its unfused row of the table, its flags, and the function that emits
 * it. */
#define ONE_STEP_MAP(X)                                                                            \
    X(STEP_BEGIN, "step_begin", 0, rp_lower_step_begin)                                            \
    X(EMBED, "embed", 0, rp_lower_embed)                                                           \
    X(NORM, "norm", RP_FUSION_QUANTIZES, rp_lower_norm)                                            \
    X(LINEAR, "linear", 0, rp_lower_matmul)                                                        \
    X(ROPE, "rope", 0, rp_lower_rope)                                                              \
    X(KV_WRITE, "kv_write", 0, rp_lower_kv_write)                                                  \
    X(ATTENTION, "attention", 0, rp_lower_attention)                                               \
    X(ACTIVATION, "activation", RP_FUSION_QUANTIZES | RP_FUSION_PARTIALS_IN, rp_lower_activation)  \
    X(GLU, "glu", RP_FUSION_QUANTIZES, rp_lower_glu)                                               \
    X(ADD, "add", 0, rp_lower_add)                                                                 \
    X(GATHER_ROWS, "gather_rows", 0, rp_lower_gather)                                              \
    X(ALLREDUCE, "allreduce", RP_FUSION_PARTIALS_IN, rp_lower_exchange)                            \
    X(ALLGATHER, "allgather", 0, rp_lower_exchange)                                                \
    X(GROUP_NORM, "group_norm", 0, rp_lower_exchange)                                              \
    X(SOFT_CAP, "soft_cap", 0, rp_lower_soft_cap)                                                  \
    X(SCALE, "scale", 0, rp_lower_scale)                                                           \
    X(LAYER_NORM, "layer_norm", 0, rp_lower_layer_norm)                                            \
    X(ROUTE, "route", RP_FUSION_PARTIALS_IN, rp_lower_route)                                       \
    X(EXPERT_ORDER, "expert_order", 0, rp_lower_expert_order)                                      \
    X(EXPERT_GATE_UP, "expert_gate_up", 0, rp_lower_expert_gemm)                                   \
    X(EXPERT_DOWN, "expert_down", 0, rp_lower_expert_gemm)                                         \
    X(EXPERT_SUM, "expert_sum", 0, rp_lower_expert_sum)                                            \
    X(HEAD_LINEAR, "head_linear", 0, rp_lower_head_linear)                                         \
    X(CONV, "conv", 0, rp_lower_conv)                                                              \
    X(GATED_DELTA, "gated_delta", 0, rp_lower_gated_delta)                                         \
    X(SAMPLE, "sample", 0, rp_lower_sample)

enum fusion {
    QKV_POST,
    ROUTER_ORDER,
    NORM_LINEAR_GATED,
    NORM_LINEAR,
    LINEAR_GATED,
    LINEAR_PARTIALS,
    LINEAR_ADD,
    ADD_GATHER_NORM,
    ADD_NORM,
    GATHER_NORM,
    NORM_GLU,
    ROUTE_ORDER,
    EXPERT_SUM_NORM,
    EXPERT_SUM_ADD,
    ALLREDUCE_NORM,
    ALLREDUCE_ADD,
    LATENT_POST,
#define X(op, text, bits, emit) op,
    ONE_STEP_MAP(X)
#undef X
        FUSION_COUNT
};

static const struct rp_fusion fusions[FUSION_COUNT] = {
    [QKV_POST] = {.name = "qkv_post",
                  .form = RP_FUSION_ROWS,
                  .flags = RP_FUSION_PARTIALS_IN,
                  .step_count = 3,
                  .steps = {{RP_OP_NORM, 0}, {RP_OP_ROPE, 0}, {RP_OP_KV_WRITE, 0}},
                  .refuses = refuse_qkv_post},
    [ROUTER_ORDER] = {.name = "router_order",
                      .form = RP_FUSION_ROWS,
                      .flags = RP_FUSION_SERIAL,
                      .step_count = 3,
                      .steps = {{RP_OP_LINEAR, 0}, {RP_OP_ROUTE, 0}, {RP_OP_EXPERT_ORDER, 0}},
                      .refuses = refuse_router},
    [NORM_LINEAR_GATED] = {.name = "norm_linear_gated",
                           .step_count = 3,
                           .steps = {{RP_OP_NORM, 0}, {RP_OP_LINEAR, 0}, {RP_OP_ACTIVATION, 0}},
                           .refuses = refuse_normed},
    [NORM_LINEAR] = {.name = "norm_linear",
                     .flags = RP_FUSION_PARTIALS_OUT,
                     .step_count = 2,
                     .steps = {{RP_OP_NORM, 0}, {RP_OP_LINEAR, 0}},
                     .refuses = refuse_normed},
    [LINEAR_GATED] = {.name = "linear_gated",
                      .step_count = 2,
                      .steps = {{RP_OP_LINEAR, 0}, {RP_OP_ACTIVATION, 0}},
                      .refuses = refuse_gated},
    [LINEAR_PARTIALS] = {.name = "linear_partials",
                         .flags = RP_FUSION_PARTIALS_OUT | RP_FUSION_PARTIALS_ONLY,
                         .step_count = 1,
                         .steps = {{RP_OP_LINEAR, 0}}},
    [LINEAR_ADD] = {.name = "linear_add",
                    .flags = RP_FUSION_RESIDUAL,
                    .step_count = 2,
                    .steps = {{RP_OP_LINEAR, 0}, {RP_OP_ADD, 1}},
                    .refuses = refuse_linear_add},
    [ADD_GATHER_NORM] = {.name = "add_gather_norm",
                         .flags = RP_FUSION_RESIDUAL | RP_FUSION_QUANTIZES | RP_FUSION_PARTIALS_IN |
                                  RP_FUSION_PARTIALS_ONLY,
                         .step_count = 3,
                         .sums = 1,
                         .steps = {{RP_OP_ADD, 0}, {RP_OP_GATHER_ROWS, 0}, {RP_OP_NORM, 0}},
                         .refuses = refuse_add_norm},
    [ADD_NORM] = {.name = "add_norm",
                  .flags = RP_FUSION_RESIDUAL | RP_FUSION_STORES | RP_FUSION_QUANTIZES |
                           RP_FUSION_PARTIALS_IN,
                  .step_count = 2,
                  .sums = 1,
                  .steps = {{RP_OP_ADD, 0}, {RP_OP_NORM, 0}},
                  .refuses = refuse_add_norm},
    [GATHER_NORM] = {.name = "gather_norm",
                     .flags = RP_FUSION_QUANTIZES,
                     .step_count = 2,
                     .steps = {{RP_OP_GATHER_ROWS, 0}, {RP_OP_NORM, 0}}},
    [NORM_GLU] = {.name = "norm_glu",
                  .flags = RP_FUSION_QUANTIZES,
                  .step_count = 2,
                  .steps = {{RP_OP_NORM, 0}, {RP_OP_GLU, 1}},
                  .refuses = refuse_norm_glu},
    [ROUTE_ORDER] = {.name = "route_order",
                     .form = RP_FUSION_ROWS,
                     .flags = RP_FUSION_SERIAL | RP_FUSION_PARTIALS_IN,
                     .step_count = 2,
                     .steps = {{RP_OP_ROUTE, 0}, {RP_OP_EXPERT_ORDER, 0}},
                     .refuses = refuse_route_order},
    [EXPERT_SUM_NORM] = {.name = "expert_sum_norm",
                         .flags = RP_FUSION_RESIDUAL | RP_FUSION_STORES | RP_FUSION_QUANTIZES,
                         .step_count = 3,
                         .steps = {{RP_OP_EXPERT_SUM, 0}, {RP_OP_ADD, 1}, {RP_OP_NORM, 0}},
                         .refuses = refuse_expert_sum_norm},
    [EXPERT_SUM_ADD] = {.name = "expert_sum_add",
                        .flags = RP_FUSION_RESIDUAL,
                        .step_count = 2,
                        .steps = {{RP_OP_EXPERT_SUM, 0}, {RP_OP_ADD, 1}}},
    [ALLREDUCE_NORM] = {.name = "allreduce_norm",
                        .flags = RP_FUSION_RESIDUAL | RP_FUSION_STORES | RP_FUSION_QUANTIZES |
                                 RP_FUSION_PARTIALS_IN,
                        .step_count = 3,
                        .steps = {{RP_OP_ALLREDUCE, 0}, {RP_OP_ADD, 1}, {RP_OP_NORM, 0}},
                        .refuses = refuse_allreduce_norm},
    [ALLREDUCE_ADD] = {.name = "allreduce_add",
                       .flags = RP_FUSION_RESIDUAL | RP_FUSION_PARTIALS_IN,
                       .step_count = 2,
                       .steps = {{RP_OP_ALLREDUCE, 0}, {RP_OP_ADD, 1}},
                       .refuses = refuse_allreduce},
    [LATENT_POST] = {.name = "latent_post",
                     .form = RP_FUSION_ROWS,
                     .step_count = 4,
                     .steps =
                         {{RP_OP_NORM, 0}, {RP_OP_ROPE, 0}, {RP_OP_KV_WRITE, 0}, {RP_OP_SCALE, 0}},
                     .refuses = refuse_latent_post},
#define X(op, text, bits, emit)                                                                    \
    [op] = {.name = text,                                                                          \
            .flags = (bits),                                                                       \
            .step_count = 1,                                                                       \
            .steps = {{RP_OP_##op, 0}},                                                            \
            .refuses = RP_OP_##op == RP_OP_ALLREDUCE ? refuse_partials_alone : NULL},
    ONE_STEP_MAP(X)
#undef X
};

static int (*const emitters[FUSION_COUNT])(struct lowering *, const struct rp_fused_op *) = {
    [QKV_POST] = rp_lower_qkv_post,
    [LATENT_POST] = rp_lower_latent_post,
    [ROUTER_ORDER] = rp_lower_router,
    [NORM_LINEAR_GATED] = rp_lower_matmul,
    [NORM_LINEAR] = rp_lower_matmul,
    [LINEAR_GATED] = rp_lower_matmul,
    [LINEAR_PARTIALS] = rp_lower_matmul,
    [LINEAR_ADD] = rp_lower_matmul,
    [ADD_GATHER_NORM] = rp_lower_add_norm,
    [ADD_NORM] = rp_lower_add_norm,
    [GATHER_NORM] = rp_lower_norm,
    [NORM_GLU] = rp_lower_glu,
    [ROUTE_ORDER] = rp_lower_route_order,
    [EXPERT_SUM_NORM] = rp_lower_expert_sum_norm,
    [EXPERT_SUM_ADD] = rp_lower_expert_sum,
    [ALLREDUCE_NORM] = rp_lower_allreduce_norm,
    [ALLREDUCE_ADD] = rp_lower_exchange,
#define X(op, text, bits, emit) [op] = emit,
    ONE_STEP_MAP(X)
#undef X
};

const struct rp_fusion_table rp_cuda_fusions = {.fusions = fusions,
                                                .count = FUSION_COUNT,
                                                .leaves_partials = leaves_partials,
                                                .needs_quantized = needs_quantized};

bool rp_cuda_runs(enum rp_op_kind kind) {
    for (uint32_t i = 0; i < FUSION_COUNT; i++)
        if (fusions[i].step_count == 1 && fusions[i].steps[0].kind == kind)
            return true;
    return false;
}

int rp_lower_emit(struct lowering *low, const struct rp_fused_op *fused) {
    return emitters[fused->fusion](low, fused);
}
