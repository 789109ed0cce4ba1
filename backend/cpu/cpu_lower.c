/* Lowering for the CPU: the table of fusions (backend/fuse.h), the walk over fused operators, and
 * launches of GEMMs, of attention and of the ends of a step.
 *
 * Turning fusion off changes speed and never results: a fused kernel does the same arithmetic in
 * the same order. */
#include "attention/attention.h"
#include "backend/cpu/cpu_exchange.h"
#include "backend/cpu/cpu_lower_internal.h"
#include "quant/matmul_experts.h"

/* -- GEMMs ------------------------------------------------------------------------------------ */

struct linear_launch {
    struct rp_step_view step;
    enum rp_rows rows;
    rp_matmul_fn run;
    struct rp_matmul_args args;
};

static void run_linear(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct linear_launch *launch = args_void;
    launch->run(&launch->args, rp_live_rows(&launch->step, launch->rows), worker);
}

/* linear alone, or with the add or the activation that reads its output. */
static int emit_linear(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                       struct rp_cpu_launch *launch) {
    const struct rp_op *op = op_of(low, fused, 0);
    const struct rp_op *last = op_of(low, fused, fused->op_count - 1);
    struct rp_values in = values_of(low, &op->in[0]), out = values_of(low, &last->out);
    struct linear_launch *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    int status = rp_lowering_check_input(low->program, op, low->err);
    if (status != RP_OK)
        return status;
    args->step = low->bindings->step;
    args->rows = rows_of(low, op);
    args->run = rp_matmul_select(low->graph->device->isa, op->weight);
    args->args = (struct rp_matmul_args){.weight = op->weight,
                                         .bias = op->vector,
                                         .in = in.data,
                                         .out = out.data,
                                         .in_stride = in.stride,
                                         .out_stride = out.stride,
                                         .out_dtype = out.dtype,
                                         .accumulate = last->kind == RP_OP_ADD,
                                         .gated = last->kind == RP_OP_ACTIVATION,
                                         .scratch = low->scratch,
                                         .scratch_bytes = low->scratch_bytes};
    if (args->args.gated)
        args->args.fn = last->u.activation.fn;
    launch->run = run_linear;
    launch->args = args;
    return RP_OK;
}

/* -- attention and the ends of the step ------------------------------------------------------- */

struct attention_launch {
    rp_attention_fn run;
    struct rp_attention_args args;
};

static void run_attention(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct attention_launch *launch = args_void;
    launch->run(&launch->args, worker);
}

static int emit_attention(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                          struct rp_cpu_launch *launch) {
    struct attention_launch *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    args->args = rp_lowering_attention(low->program, low->bindings, op_of(low, fused, 0));
    args->run = rp_attention_select(low->graph->device->isa, &args->args.kv);
    launch->run = run_attention;
    launch->args = args;
    return RP_OK;
}

static int emit_step_begin(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                           struct rp_cpu_launch *launch) {
    (void)fused;
    struct rp_step_begin_args *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    args->step = low->bindings->step;
    launch->run = rp_step_begin_cpu;
    launch->args = args;
    return RP_OK;
}

/* Candidates of sampling: one array per worker, made at the first capture and kept. */
static int reserve_sample_scratch(struct rp_cpu_lowering *low, uint32_t vocab) {
    struct rp_device *device = low->graph->device;
    if (device->sample_vocab >= vocab)
        return RP_OK;
    RP_ASSERT(device->sample_vocab == 0); /* earlier graphs hold its address */
    device->sample_scratch = rp_alloc_aligned((size_t)rp_cpu_team_size(device->team) * vocab *
                                                  sizeof *device->sample_scratch,
                                              RP_CACHE_LINE);
    device->sample_copies = rp_alloc_aligned(
        RP_ALIGN_UP((size_t)rp_cpu_team_size(device->team) * vocab * sizeof *device->sample_copies,
                    RP_CACHE_LINE),
        RP_CACHE_LINE);
    if (!device->sample_scratch || !device->sample_copies) {
        rp_free_aligned(device->sample_scratch);
        rp_free_aligned(device->sample_copies);
        device->sample_scratch = NULL;
        device->sample_copies = NULL;
        return out_of_memory(low);
    }
    device->sample_vocab = vocab;
    return RP_OK;
}

static int emit_sample(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                       struct rp_cpu_launch *launch) {
    const struct rp_op *op = op_of(low, fused, 0);
    struct rp_values logits = values_of(low, &op->in[0]);
    struct rp_sample_args *args = new_args(low, sizeof *args);
    int status = reserve_sample_scratch(low, op->u.sample.vocab);
    if (!args || status != RP_OK)
        return out_of_memory(low);
    *args = (struct rp_sample_args){.step = low->bindings->step,
                                    .logits = logits.data,
                                    .stride = logits.stride,
                                    .vocab = op->u.sample.vocab,
                                    .scratch = low->graph->device->sample_scratch,
                                    .copies = low->graph->device->sample_copies,
                                    .node = low->bindings->stamp_base + low->graph->launch_count};
    launch->run = rp_sample_cpu;
    launch->args = args;
    return RP_OK;
}

/* -- the table of fusions --------------------------------------------------------------------- */

static const char *refuse_gated(const struct rp_fuse_input *input,
                                const struct rp_fused_op *fused) {
    const struct rp_op *linear = &input->program->ops[fused->ops[0]];
    if (input->program->tensors[linear->out.tensor].dtype != RP_DTYPE_F32)
        return "its output is not f32";
    return rp_matmul_gates(linear->weight) ? NULL : "the gate rows are not whole panels of 16";
}

static const char *refuse_add(const struct rp_fuse_input *input, const struct rp_fused_op *fused) {
    const struct rp_op *linear = &input->program->ops[fused->ops[0]];
    return input->program->tensors[linear->out.tensor].dtype == RP_DTYPE_F32
               ? NULL
               : "its output is not f32";
}

/* One line for each operator: its unfused row of the table, and the function that emits it. */
#define ONE_STEP_MAP(X)                                                                            \
    X(STEP_BEGIN, "step_begin", emit_step_begin)                                                   \
    X(EMBED, "embed", rp_cpu_emit_rows)                                                            \
    X(NORM, "norm", rp_cpu_emit_rows)                                                              \
    X(LINEAR, "linear", emit_linear)                                                               \
    X(ROPE, "rope", rp_cpu_emit_rows)                                                              \
    X(KV_WRITE, "kv_write", rp_cpu_emit_rows)                                                      \
    X(ATTENTION, "attention", emit_attention)                                                      \
    X(ACTIVATION, "activation", rp_cpu_emit_cols)                                                  \
    X(ADD, "add", rp_cpu_emit_rows)                                                                \
    X(GATHER_ROWS, "gather_rows", rp_cpu_emit_rows)                                                \
    X(ALLREDUCE, "allreduce", rp_cpu_emit_rows)                                                    \
    X(SOFT_CAP, "soft_cap", rp_cpu_emit_cols)                                                      \
    X(SCALE, "scale", rp_cpu_emit_rows)                                                            \
    X(LAYER_NORM, "layer_norm", rp_cpu_emit_rows)                                                  \
    X(GLU, "glu", rp_cpu_emit_rows)                                                                \
    X(ROUTE, "route", rp_cpu_emit_rows)                                                            \
    X(EXPERT_ORDER, "expert_order", rp_cpu_emit_expert_order)                                      \
    X(EXPERT_GATE_UP, "expert_gate_up", rp_cpu_emit_expert_gemm)                                   \
    X(EXPERT_DOWN, "expert_down", rp_cpu_emit_expert_gemm)                                         \
    X(EXPERT_SUM, "expert_sum", rp_cpu_emit_expert_sum)                                            \
    X(HEAD_LINEAR, "head_linear", rp_cpu_emit_head_linear)                                         \
    X(CONV, "conv", rp_cpu_emit_conv)                                                              \
    X(GATED_DELTA, "gated_delta", rp_cpu_emit_gated_delta)                                         \
    X(ALLGATHER, "allgather", rp_cpu_emit_rows)                                                    \
    X(GROUP_NORM, "group_norm", rp_cpu_emit_rows)                                                  \
    X(SAMPLE, "sample", emit_sample)

enum fusion {
    LINEAR_ADD,
    LINEAR_GATED,
    ROW_CHAIN,
#define X(op, text, emit) op,
    ONE_STEP_MAP(X)
#undef X
        FUSION_COUNT
};

static const struct rp_fusion fusions[FUSION_COUNT] = {
    [LINEAR_ADD] = {.name = "linear_add",
                    .flags = RP_FUSION_RESIDUAL,
                    .step_count = 2,
                    .steps = {{RP_OP_LINEAR, 0}, {RP_OP_ADD, 1}},
                    .refuses = refuse_add},
    [LINEAR_GATED] = {.name = "linear_gated",
                      .step_count = 2,
                      .steps = {{RP_OP_LINEAR, 0}, {RP_OP_ACTIVATION, 0}},
                      .refuses = refuse_gated},
    /* A worker's rows need no other worker's, so no barrier is needed between these. */
    [ROW_CHAIN] = {.name = "row_chain",
                   .form = RP_FUSION_ROWS,
                   .step_count = 8,
                   .steps = {{RP_OP_ALLREDUCE, 0},
                             {RP_OP_GROUP_NORM, 0},
                             {RP_OP_NORM, 0},
                             {RP_OP_LAYER_NORM, 0},
                             {RP_OP_ROPE, 0},
                             {RP_OP_KV_WRITE, 0},
                             {RP_OP_SCALE, 0},
                             {RP_OP_ADD, 0}}},
#define X(op, text, emit) [op] = {.name = text, .step_count = 1, .steps = {{RP_OP_##op, 0}}},
    ONE_STEP_MAP(X)
#undef X
};

typedef int (*emitter)(struct rp_cpu_lowering *, const struct rp_fused_op *,
                       struct rp_cpu_launch *);
static const emitter emitters[FUSION_COUNT] = {
#define X(op, text, emit) [op] = emit,
    ONE_STEP_MAP(X)
#undef X
        [LINEAR_ADD] = emit_linear,
    [LINEAR_GATED] = emit_linear,
    [ROW_CHAIN] = rp_cpu_emit_rows,
};

const struct rp_fusion_table rp_cpu_fusions = {.fusions = fusions, .count = FUSION_COUNT};

/* One launch runs at a time, so all GEMMs share the scratch; it lives with the graph. */
static int plan_scratch(struct rp_cpu_lowering *low, uint32_t begin, uint32_t end) {
    for (uint32_t at = begin; at < end; at++) {
        const struct rp_op *op = &low->program->ops[at];
        size_t bytes = 0;
        if (op->kind == RP_OP_LINEAR)
            bytes = rp_matmul_scratch_bytes(op->weight,
                                            rp_program_rows(low->program, low->bucket, op->rows));
        if (op->kind == RP_OP_EXPERT_GATE_UP || op->kind == RP_OP_EXPERT_DOWN)
            bytes = rp_expert_matmul_scratch_bytes(op->weight, low->bucket->tokens);
        low->scratch_bytes = RP_MAX(low->scratch_bytes, bytes);
    }
    if (low->scratch_bytes == 0)
        return RP_OK;
    unsigned char *memory = new_args(
        low, low->scratch_bytes * rp_cpu_team_size(low->graph->device->team) + RP_CACHE_LINE);
    if (!memory)
        return out_of_memory(low);
    low->scratch = (void *)RP_ALIGN_UP((uintptr_t)memory, RP_CACHE_LINE);
    return RP_OK;
}

static bool exchanges(const struct rp_cpu_lowering *low, const struct rp_fused_op *fused) {
    for (uint32_t i = 0; i < fused->op_count; i++)
        if (rp_op_exchanges(op_of(low, fused, i)->kind))
            return low->graph->device->exchange != NULL;
    return false;
}

/* The launch before one that exchanges. What the ranks give is added to it as that one is made. */
static int begin_exchange(struct rp_cpu_lowering *low, const struct rp_fused_op *fused) {
    struct rp_graph *graph = low->graph;
    struct rp_cpu_launch *launch = &graph->launches[graph->launch_count];
    struct rp_cpu_exchange_args *args = new_args(low, sizeof *args);
    low->exchange = NULL;
    low->exchange_at = 0;
    if (!args)
        return out_of_memory(low);
    *args = (struct rp_cpu_exchange_args){.device = graph->device,
                                          .step = low->bindings->step,
                                          .rows = rows_of(low, op_of(low, fused, 0))};
    low->exchange = args;
    *launch = (struct rp_cpu_launch){rp_cpu_exchange_run, args, graph, {.op_count = 0}};
    if (!rp_lowering_describe(&launch->info, low->program, fused, "exchange_wait", false,
                              &graph->memory))
        return out_of_memory(low);
    launch->info.prepares = true;
    graph->launch_count++;
    return RP_OK;
}

static int lower(struct rp_cpu_lowering *low, const struct rp_fused *fused, bool explain) {
    struct rp_graph *graph = low->graph;
    uint32_t count = fused->count;
    for (uint32_t i = 0; i < fused->count; i++)
        count += exchanges(low, &fused->ops[i]);
    graph->launches = rp_arena_calloc(&graph->memory, count, sizeof *graph->launches);
    if (!graph->launches)
        return out_of_memory(low);
    for (uint32_t i = 0; i < fused->count; i++) {
        const struct rp_fused_op *op = &fused->ops[i];
        int status = exchanges(low, op) ? begin_exchange(low, op) : RP_OK;
        struct rp_cpu_launch *launch = &graph->launches[graph->launch_count];
        if (status == RP_OK)
            status = emitters[op->fusion](low, op, launch);
        if (status != RP_OK)
            return status;
        launch->graph = graph;
        if (!rp_lowering_describe(&launch->info, low->program, op, fusions[op->fusion].name,
                                  explain, &graph->memory))
            return out_of_memory(low);
        graph->launch_count++;
    }
    return RP_OK;
}

int rp_cpu_lower(struct rp_graph *graph, const struct rp_program *program, uint32_t begin,
                 uint32_t end, const struct rp_bucket *bucket, const struct rp_bindings *bindings,
                 const struct rp_lower_options *options, struct rp_error *err) {
    struct rp_cpu_lowering low = {
        .graph = graph, .program = program, .bindings = bindings, .bucket = bucket, .err = err};
    const struct rp_fuse_input input = {.program = program,
                                        .begin = begin,
                                        .end = end,
                                        .bucket = bucket,
                                        .tensor_offsets = bindings->tensor_offsets,
                                        .table = &rp_cpu_fusions,
                                        .no_fusion = options->no_fusion};
    struct rp_fused fused;
    int status = rp_fuse(&input, &fused, err);
    if (status == RP_OK)
        status = plan_scratch(&low, begin, end);
    if (status == RP_OK)
        status = lower(&low, &fused, options->explain);
    rp_fused_deinit(&fused);
    return status;
}
