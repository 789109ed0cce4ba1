/* lower(): a program becomes a list of launches, by one table of patterns.
 *
 * Patterns are tried in order at each operator; the first that matches says how many operators it
 * takes. Fused patterns stand first; behind every kind is an unfused kernel, so that turning fusion off
 * changes speed and never results: a fused kernel does the same arithmetic in the same order. */
#include "attention/attention.h"
#include "backend/cpu/cpu_internal.h"
#include "backend/lowering.h"
#include "device/ops_simd.h"
#include "quant/matmul.h"

#include <string.h>

struct lowering {
    struct rp_graph *graph;
    const struct rp_program *program;
    const struct rp_bindings *bindings;
    const struct rp_bucket *bucket;
    uint32_t end;
    struct rp_error *err;
    /* Of products on 8-bit weights, one per worker, of the graph's largest. */
    void *scratch;
    size_t scratch_bytes;
};

/* One row of the table. match: how many operators from `at` it takes, 0 for none. */
struct pattern {
    enum rp_op_kind kind; /* of the first operator */
    bool fused;
    const char *kernel;
    uint32_t (*match)(const struct lowering *low, uint32_t at);
    int (*emit)(struct lowering *low, uint32_t at, uint32_t count, struct rp_cpu_launch *launch);
};

static struct rp_values values_of(const struct lowering *low, const struct rp_view *view) {
    return rp_lowering_values(low->program, low->bindings, view);
}

static void *new_args(struct lowering *low, size_t bytes) {
    return rp_arena_alloc(&low->graph->memory, bytes);
}

static int out_of_memory(struct lowering *low) {
    return rp_error_set(low->err, RP_STATUS_NO_MEMORY, "lowering: out of memory");
}

/* -- operators that work row by row ------------------------------------------------------------- */

#define ROW_PARTS_MAX 6

struct rows_args {
    struct rp_step_view step;
    enum rp_rows rows;
    uint32_t part_count;
    struct {
        rp_row_op run;
        const void *args;
    } parts[ROW_PARTS_MAX];
};

/* Rows that a worker takes at a time, in prompts. */
#define PART_ROWS 16u

static void run_rows(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct rows_args *args = args_void;
    struct rp_cpu_parts parts;
    size_t begin, end;
    rp_cpu_parts_begin(&parts, worker, rp_live_rows(&args->step, args->rows), 1, PART_ROWS);
    while (rp_cpu_parts_next(&parts, &begin, &end))
        for (uint32_t i = 0; i < args->part_count; i++)
            args->parts[i].run(args->parts[i].args, (uint32_t)begin, (uint32_t)end);
}

/* kv_write in the shape of a row operator: the share of a worker is its rows. */
struct kv_rows_args {
    struct rp_kv_write_args write;
};

static void kv_write_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct kv_rows_args *args = args_void;
    rp_kv_write_range(&args->write, begin, end);
}

/* Makes the row operator of one op; the kinds are those that is_row_op names. */
static int make_row_part(struct lowering *low, const struct rp_op *op, rp_row_op *out_run,
                         const void **out_args) {
    struct rp_values in0 = values_of(low, &op->in[0]), in1 = values_of(low, &op->in[1]);
    struct rp_values out = values_of(low, &op->out);
    const struct rp_step_view *step = &low->bindings->step;
    const struct rp_fast_ops *fast = rp_fast_ops_select(low->graph->device->isa);
    union {
        struct rp_embed_args embed;
        struct rp_norm_args norm;
        struct rp_rope_args rope;
        struct kv_rows_args kv;
        struct rp_activation_args activation;
        struct rp_add_args add;
        struct rp_gather_args gather;
    } *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    *out_args = args;
    switch (op->kind) {
    case RP_OP_EMBED:
        *out_run = rp_embed_rows;
        args->embed = (struct rp_embed_args){*step,
                                             op->weight,
                                             rp_matrix_row_f32,
                                             op->weight->rows,
                                             op->weight->cols,
                                             op->u.embed.scale,
                                             out};
        break;
    case RP_OP_NORM:
        *out_run = fast->norm;
        args->norm = (struct rp_norm_args){in0,
                                           out,
                                           op->vector,
                                           op->in[0].cols,
                                           op->u.norm.group,
                                           op->u.norm.eps,
                                           op->u.norm.weight_offset};
        break;
    case RP_OP_ROPE:
        *out_run = fast->rope;
        args->rope = (struct rp_rope_args){*step,
                                           out,
                                           op->table,
                                           op->u.rope.heads,
                                           op->u.rope.head_dim,
                                           op->u.rope.rotary_dim,
                                           op->u.rope.position_count};
        break;
    case RP_OP_KV_WRITE:
        *out_run = kv_write_rows;
        args->kv.write = (struct rp_kv_write_args){
            *step, *low->bindings->kv, in0.data, in1.data, in0.stride, in1.stride, op->layer};
        break;
    case RP_OP_ACTIVATION:
        *out_run = fast->activation;
        args->activation = (struct rp_activation_args){in0, out, op->out.cols, op->u.activation.fn};
        break;
    case RP_OP_ADD:
        *out_run = fast->add;
        args->add = (struct rp_add_args){in0, in1, out, op->out.cols};
        break;
    default:
        *out_run = rp_gather_rows;
        args->gather = (struct rp_gather_args){*step, in0, out, op->out.cols};
        break;
    }
    return RP_OK;
}

static int emit_rows(struct lowering *low, uint32_t at, uint32_t count,
                     struct rp_cpu_launch *launch) {
    struct rows_args *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    args->step = low->bindings->step;
    args->rows = low->program->ops[at].rows;
    args->part_count = count;
    for (uint32_t i = 0; i < count; i++) {
        int status = make_row_part(low, &low->program->ops[at + i], &args->parts[i].run,
                                   &args->parts[i].args);
        if (status != RP_OK)
            return status;
    }
    launch->run = run_rows;
    launch->args = args;
    return RP_OK;
}

/* Norms, rope and kv_write of the same rows, one after the other: a worker's rows need nobody else's, so
 * the barriers between them go. */
static uint32_t match_row_chain(const struct lowering *low, uint32_t at) {
    uint32_t count = 0;
    while (count < ROW_PARTS_MAX && at + count < low->end) {
        const struct rp_op *op = &low->program->ops[at + count];
        if (op->rows != low->program->ops[at].rows ||
            (op->kind != RP_OP_NORM && op->kind != RP_OP_ROPE && op->kind != RP_OP_KV_WRITE &&
             op->kind != RP_OP_ADD))
            break;
        count++;
    }
    return count >= 2 ? count : 0;
}

/* -- activation: one row is shared by columns ----------------------------------------------------- */

struct activation_launch {
    struct rp_step_view step;
    enum rp_rows rows;
    const struct rp_fast_ops *ops;
    struct rp_activation_args args;
};

static void run_activation(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct activation_launch *launch = args_void;
    uint32_t rows = rp_live_rows(&launch->step, launch->rows);
    size_t cols = launch->args.cols, begin, end;
    /* Shares are runs of (row, column) in units of a cache line of bf16. */
    rp_cpu_share(worker, rows * cols, 32, &begin, &end);
    while (begin < end) {
        size_t row = begin / cols, first = begin % cols, last = RP_MIN(cols, first + (end - begin));
        launch->ops->activation_cols(&launch->args, (uint32_t)row, (uint32_t)first, (uint32_t)last);
        begin += last - first;
    }
}

static int emit_activation(struct lowering *low, uint32_t at, uint32_t count,
                           struct rp_cpu_launch *launch) {
    (void)count;
    const struct rp_op *op = &low->program->ops[at];
    struct activation_launch *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    args->step = low->bindings->step;
    args->rows = op->rows;
    args->ops = rp_fast_ops_select(low->graph->device->isa);
    args->args = (struct rp_activation_args){values_of(low, &op->in[0]), values_of(low, &op->out),
                                             op->out.cols, op->u.activation.fn};
    launch->run = run_activation;
    launch->args = args;
    return RP_OK;
}

/* -- soft_cap: shared by columns, too --------------------------------------------------------------- */

struct soft_cap_launch {
    struct rp_step_view step;
    enum rp_rows rows;
    const struct rp_fast_ops *ops;
    struct rp_soft_cap_args args;
};

static void run_soft_cap(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct soft_cap_launch *launch = args_void;
    uint32_t rows = rp_live_rows(&launch->step, launch->rows);
    size_t cols = launch->args.cols, begin, end;
    rp_cpu_share(worker, rows * cols, 32, &begin, &end);
    while (begin < end) {
        size_t row = begin / cols, first = begin % cols, last = RP_MIN(cols, first + (end - begin));
        launch->ops->soft_cap_cols(&launch->args, (uint32_t)row, (uint32_t)first, (uint32_t)last);
        begin += last - first;
    }
}

static int emit_soft_cap(struct lowering *low, uint32_t at, uint32_t count,
                         struct rp_cpu_launch *launch) {
    (void)count;
    const struct rp_op *op = &low->program->ops[at];
    struct soft_cap_launch *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    args->step = low->bindings->step;
    args->rows = op->rows;
    args->ops = rp_fast_ops_select(low->graph->device->isa);
    args->args = (struct rp_soft_cap_args){values_of(low, &op->in[0]), values_of(low, &op->out),
                                           op->out.cols, op->u.soft_cap.cap};
    launch->run = run_soft_cap;
    launch->args = args;
    return RP_OK;
}

/* -- products --------------------------------------------------------------------------------------- */

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

static int emit_linear_into(struct lowering *low, const struct rp_op *op, const struct rp_view *out,
                            bool accumulate, struct rp_cpu_launch *launch) {
    struct rp_values in = values_of(low, &op->in[0]), result = values_of(low, out);
    struct linear_launch *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    bool codes = rp_dtype_bytes(op->weight->dtype) == 1;
    if (in.dtype != (codes ? RP_DTYPE_BF16 : op->weight->dtype))
        return rp_error_set(low->err, RP_STATUS_UNSUPPORTED, "%s: %s input for %s weights",
                            op->name, rp_dtype_name(in.dtype), rp_dtype_name(op->weight->dtype));
    args->step = low->bindings->step;
    args->rows = op->rows;
    args->run = rp_matmul_select(low->graph->device->isa, op->weight);
    args->args = (struct rp_matmul_args){.weight = op->weight,
                                         .bias = op->vector,
                                         .in = in.data,
                                         .out = result.data,
                                         .in_stride = in.stride,
                                         .out_stride = result.stride,
                                         .out_dtype = result.dtype,
                                         .accumulate = accumulate,
                                         .scratch = low->scratch,
                                         .scratch_bytes = low->scratch_bytes};
    launch->run = run_linear;
    launch->args = args;
    return RP_OK;
}

static int emit_linear(struct lowering *low, uint32_t at, uint32_t count,
                       struct rp_cpu_launch *launch) {
    (void)count;
    const struct rp_op *op = &low->program->ops[at];
    return emit_linear_into(low, op, &op->out, false, launch);
}

/* linear, then add of its output to a residual in place, when nobody else reads that output. */
static uint32_t match_linear_add(const struct lowering *low, uint32_t at) {
    return rp_lowering_is_linear_add(low->program, at, low->end) ? 2 : 0;
}

static int emit_linear_add(struct lowering *low, uint32_t at, uint32_t count,
                           struct rp_cpu_launch *launch) {
    (void)count;
    const struct rp_op *linear = &low->program->ops[at];
    return emit_linear_into(low, linear, &linear[1].out, true, launch);
}

/* gate_up and the activation behind it, when nobody else reads its output. */
static uint32_t match_gated(const struct lowering *low, uint32_t at) {
    const struct rp_program *program = low->program;
    const struct rp_op *linear = &program->ops[at], *activation = linear + 1;
    if (at + 1 >= low->end || !rp_lowering_feeds_activation(program, at) ||
        activation->rows != linear->rows ||
        program->tensors[linear->out.tensor].dtype != RP_DTYPE_F32 ||
        rp_lowering_is_read(program, at + 2, linear->out.tensor) ||
        !rp_matmul_gates(linear->weight))
        return 0;
    /* The product's input dies before the activation: in one kernel they must not share memory. */
    struct rp_values in = values_of(low, &linear->in[0]);
    struct rp_values out = values_of(low, &activation->out);
    size_t rows = linear->rows == RP_ROWS_TOKEN ? low->bucket->tokens : low->bucket->logit_rows;
    return rp_lowering_overlap(&in, &out, rows) ? 0 : 2;
}

static int emit_gated(struct lowering *low, uint32_t at, uint32_t count,
                      struct rp_cpu_launch *launch) {
    (void)count;
    const struct rp_op *linear = &low->program->ops[at], *activation = linear + 1;
    int status = emit_linear_into(low, linear, &activation->out, false, launch);
    if (status == RP_OK) {
        struct linear_launch *args = launch->args;
        args->args.gated = true;
        args->args.fn = activation->u.activation.fn;
    }
    return status;
}

/* -- attention and the ends of the step ------------------------------------------------------------- */

struct attention_launch {
    rp_attention_fn run;
    struct rp_attention_args args;
};

static void run_attention(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct attention_launch *launch = args_void;
    launch->run(&launch->args, worker);
}

static int emit_attention(struct lowering *low, uint32_t at, uint32_t count,
                          struct rp_cpu_launch *launch) {
    (void)count;
    const struct rp_op *op = &low->program->ops[at];
    struct rp_values q = values_of(low, &op->in[0]), out = values_of(low, &op->out);
    struct attention_launch *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    args->run = rp_attention_select(low->graph->device->isa, low->bindings->kv);
    args->args = (struct rp_attention_args){.step = low->bindings->step,
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
    launch->run = run_attention;
    launch->args = args;
    return RP_OK;
}

static int emit_step_begin(struct lowering *low, uint32_t at, uint32_t count,
                           struct rp_cpu_launch *launch) {
    (void)at;
    (void)count;
    struct rp_step_begin_args *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    args->step = low->bindings->step;
    launch->run = rp_step_begin_cpu;
    launch->args = args;
    return RP_OK;
}

/* The candidates of a choice: one array per worker, made at the first capture and kept. */
static int reserve_sample_scratch(struct lowering *low, uint32_t vocab) {
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

static int emit_sample(struct lowering *low, uint32_t at, uint32_t count,
                       struct rp_cpu_launch *launch) {
    (void)count;
    const struct rp_op *op = &low->program->ops[at];
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

static const struct pattern patterns[] = {
    /* first kind, fused, kernel, match, emit */
    {RP_OP_LINEAR, true, "linear_add", match_linear_add, emit_linear_add},
    {RP_OP_LINEAR, true, "linear_gated", match_gated, emit_gated},
    {RP_OP_NORM, true, "row_chain", match_row_chain, emit_rows},
    {RP_OP_ROPE, true, "row_chain", match_row_chain, emit_rows},
    {RP_OP_ADD, true, "row_chain", match_row_chain, emit_rows},
    {RP_OP_STEP_BEGIN, false, "step_begin", NULL, emit_step_begin},
    {RP_OP_EMBED, false, "embed", NULL, emit_rows},
    {RP_OP_NORM, false, "norm", NULL, emit_rows},
    {RP_OP_LINEAR, false, "linear", NULL, emit_linear},
    {RP_OP_ROPE, false, "rope", NULL, emit_rows},
    {RP_OP_KV_WRITE, false, "kv_write", NULL, emit_rows},
    {RP_OP_ATTENTION, false, "attention", NULL, emit_attention},
    {RP_OP_ACTIVATION, false, "activation", NULL, emit_activation},
    {RP_OP_ADD, false, "add", NULL, emit_rows},
    {RP_OP_GATHER_ROWS, false, "gather_rows", NULL, emit_rows},
    {RP_OP_SOFT_CAP, false, "soft_cap", NULL, emit_soft_cap},
    {RP_OP_SAMPLE, false, "sample", NULL, emit_sample},
};

static const struct pattern *find_pattern(const struct lowering *low, uint32_t at, bool no_fusion,
                                          uint32_t *out_count) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(patterns); i++) {
        const struct pattern *pattern = &patterns[i];
        if (pattern->kind != low->program->ops[at].kind || (pattern->fused && no_fusion))
            continue;
        *out_count = pattern->match ? pattern->match(low, at) : 1;
        if (*out_count)
            return pattern;
    }
    return NULL;
}

/* Launches follow each other, so all products share it; it lives with the graph. */
static int plan_scratch(struct lowering *low, uint32_t begin) {
    for (uint32_t at = begin; at < low->end; at++) {
        const struct rp_op *op = &low->program->ops[at];
        if (op->kind != RP_OP_LINEAR)
            continue;
        size_t bytes = rp_matmul_scratch_bytes(op->weight, rp_bucket_rows(low->bucket, op->rows));
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

int rp_cpu_lower(struct rp_graph *graph, const struct rp_program *program, uint32_t begin,
                 uint32_t end, const struct rp_bucket *bucket, const struct rp_bindings *bindings,
                 const struct rp_lower_options *options, struct rp_error *err) {
    struct lowering low = {.graph = graph,
                           .program = program,
                           .bindings = bindings,
                           .bucket = bucket,
                           .end = end,
                           .err = err};
    graph->launches = rp_arena_calloc(&graph->memory, end - begin, sizeof *graph->launches);
    if (!graph->launches || plan_scratch(&low, begin) != RP_OK)
        return out_of_memory(&low);
    for (uint32_t at = begin; at < end;) {
        uint32_t count;
        const struct rp_op *op = &program->ops[at];
        const struct pattern *pattern = find_pattern(&low, at, options->no_fusion, &count);
        if (!pattern)
            return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                "%s: the CPU backend has no kernel for operator \"%s\"", op->name,
                                rp_op_kind_name(op->kind));
        struct rp_cpu_launch *launch = &graph->launches[graph->launch_count];
        int status = pattern->emit(&low, at, count, launch);
        if (status != RP_OK)
            return status;
        launch->graph = graph;
        rp_lowering_name(&launch->info, program, at, count, pattern->kernel);
        graph->launch_count++;
        at += count;
    }
    return RP_OK;
}
