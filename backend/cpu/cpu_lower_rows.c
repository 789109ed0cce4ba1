/* Launches of the small operators: those that work row by row, chains of them in one launch, and
 * those whose workers share the columns of a row. */
#include "attention/attention.h"
#include "backend/cpu/cpu_exchange.h"
#include "backend/cpu/cpu_lower_internal.h"
#include "device/ops_simd.h"
#include "quant/matmul.h"

/* -- operators that work row by row ----------------------------------------------------------- */

struct rows_args {
    struct rp_step_view step;
    enum rp_rows rows;
    uint32_t part_count;
    struct {
        rp_row_op run;
        const void *args;
    } parts[RP_LAUNCH_OPS_MAX];
};

/* Rows of a work item, in prompts. */
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

/* kv_write as a row operator. */
static void kv_write_rows(const void *args, uint32_t begin, uint32_t end) {
    rp_kv_write_range(args, begin, end);
}

static struct rp_kv_write_args kv_write_args(const struct rp_cpu_lowering *low,
                                             const struct rp_op *op, const struct rp_values *k,
                                             const struct rp_values *v) {
    struct rp_layer_pages pages = rp_lowering_pages(low->bindings, op->layer);
    return (struct rp_kv_write_args){.step = low->bindings->step,
                                     .kv = pages.kv,
                                     .k = k->data,
                                     .v = v->data,
                                     .k_stride = k->stride,
                                     .v_stride = v->stride,
                                     .layer = pages.layer,
                                     .table = pages.table};
}

/* In place, and there is no group: the sum is there. */
static void nothing_rows(const void *args, uint32_t begin, uint32_t end) {
    (void)args;
    (void)begin;
    (void)end;
}

/* An exchange: its part of the launch before, and the rows after. */
static int make_exchange(struct rp_cpu_lowering *low, const struct rp_op *op, rp_row_op *out_run,
                         const void **out_args) {
    struct rp_device *device = low->graph->device;
    struct rp_cpu_exchange_args *exchange = low->exchange;
    if (!device->exchange && op->kind == RP_OP_ALLREDUCE) {
        *out_run = nothing_rows;
        return RP_OK;
    }
    if (!exchange)
        return rp_error_set(low->err, RP_STATUS_UNSUPPORTED,
                            "%s: the device belongs to no group of ranks", op->name);
    struct rp_cpu_exchange_op *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    *args = rp_cpu_exchange_op(device, op, values_of(low, &op->in[0]), values_of(low, &op->out),
                               low->exchange_at);
    low->exchange_at += rp_op_exchange_bytes(low->program, op, low->bucket);
    RP_ASSERT_CMP(exchange->count, <, RP_CPU_EXCHANGE_OPS);
    exchange->ops[exchange->count++] = args;
    *out_run = rp_cpu_exchange_rows;
    *out_args = args;
    return RP_OK;
}

/* The row operator of one op, of a kind whose row in the table emits with rp_cpu_emit_rows. */
static int make_row_part(struct rp_cpu_lowering *low, const struct rp_op *op, rp_row_op *out_run,
                         const void **out_args) {
    static const struct rp_view none = {RP_NO_TENSOR, 0, 0};
    struct rp_values in0 = values_of(low, op->in_count > 0 ? &op->in[0] : &none);
    struct rp_values in1 = values_of(low, op->in_count > 1 ? &op->in[1] : &none);
    struct rp_values out = values_of(low, &op->out);
    const struct rp_step_view *step = &low->bindings->step;
    const struct rp_fast_ops *fast = rp_fast_ops_select(low->graph->device->isa);
    union {
        struct rp_embed_args embed;
        struct rp_norm_args norm;
        struct rp_layer_norm_args layer_norm;
        struct rp_rope_args rope;
        struct rp_kv_write_args kv;
        struct rp_add_args add;
        struct rp_scale_args scale;
        struct rp_gather_args gather;
        struct rp_route_args route;
        struct rp_glu_args glu;
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
                                             out,
                                             op->u.embed.first_id,
                                             low->program->ranks > 1};
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
    case RP_OP_LAYER_NORM:
        *out_run = fast->layer_norm;
        args->layer_norm = (struct rp_layer_norm_args){in0,
                                                       out,
                                                       op->vector,
                                                       op->bias,
                                                       op->in[0].cols,
                                                       op->u.layer_norm.group,
                                                       op->u.layer_norm.eps};
        break;
    case RP_OP_SCALE:
        *out_run = fast->scale;
        args->scale = (struct rp_scale_args){*step,
                                             in0,
                                             out,
                                             op->table,
                                             op->out.cols,
                                             op->u.scale.position_count,
                                             op->u.scale.factor};
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
        args->kv = kv_write_args(low, op, &in0, &in1);
        break;
    case RP_OP_ADD:
        *out_run = fast->add;
        args->add = (struct rp_add_args){in0, in1, out, op->out.cols};
        break;
    case RP_OP_ALLREDUCE:
    case RP_OP_ALLGATHER:
    case RP_OP_GROUP_NORM:
        return make_exchange(low, op, out_run, out_args);
    case RP_OP_GATHER_ROWS:
        *out_run = rp_gather_rows;
        args->gather = (struct rp_gather_args){*step, in0, out, op->out.cols};
        break;
    case RP_OP_ROUTE:
        *out_run = rp_route_rows;
        args->route = rp_lowering_route(low->program, low->bindings, op);
        break;
    case RP_OP_GLU:
        *out_run = rp_glu_rows;
        args->glu =
            (struct rp_glu_args){in0, in1, out, op->out.cols, op->u.activation.fn, fast->gate};
        break;
    default:
        return rp_error_set(low->err, RP_STATUS_UNSUPPORTED,
                            "lowering: %s (%s) has no case in make_row_part", op->name,
                            rp_op_kind_name(op->kind));
    }
    return RP_OK;
}

int rp_cpu_emit_rows(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                     struct rp_cpu_launch *launch) {
    struct rows_args *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    args->step = low->bindings->step;
    args->rows = rows_of(low, op_of(low, fused, 0));
    args->part_count = fused->op_count;
    for (uint32_t i = 0; i < fused->op_count; i++) {
        int status =
            make_row_part(low, op_of(low, fused, i), &args->parts[i].run, &args->parts[i].args);
        if (status != RP_OK)
            return status;
    }
    launch->run = run_rows;
    launch->args = args;
    return RP_OK;
}

/* -- activation and soft_cap: workers share the columns of a row, too ------------------------- */

struct cols_launch {
    struct rp_step_view step;
    enum rp_rows rows;
    uint32_t cols;
    const struct rp_fast_ops *ops;
    bool caps; /* soft_cap, else activation */
    struct rp_activation_args activation;
    struct rp_soft_cap_args soft_cap;
};

void rp_cpu_share_cols(const struct rp_cpu_worker *worker, uint32_t rows, size_t cols,
                       rp_cols_op run, const void *args) {
    size_t begin, end;
    /* Shares are runs of (row, column) in units of a cache line of bf16. */
    rp_cpu_share(worker, rows * cols, 32, &begin, &end);
    while (begin < end) {
        size_t row = begin / cols, first = begin % cols, last = RP_MIN(cols, first + (end - begin));
        run(args, (uint32_t)row, (uint32_t)first, (uint32_t)last);
        begin += last - first;
    }
}

static void cols_of_row(const void *args, uint32_t row, uint32_t first, uint32_t last) {
    const struct cols_launch *launch = args;
    if (launch->caps)
        launch->ops->soft_cap_cols(&launch->soft_cap, row, first, last);
    else
        launch->ops->activation_cols(&launch->activation, row, first, last);
}

static void run_cols(const void *args, const struct rp_cpu_worker *worker) {
    const struct cols_launch *launch = args;
    rp_cpu_share_cols(worker, rp_live_rows(&launch->step, launch->rows), launch->cols, cols_of_row,
                      launch);
}

int rp_cpu_emit_cols(struct rp_cpu_lowering *low, const struct rp_fused_op *fused,
                     struct rp_cpu_launch *launch) {
    const struct rp_op *op = op_of(low, fused, 0);
    struct rp_values in = values_of(low, &op->in[0]), out = values_of(low, &op->out);
    struct cols_launch *args = new_args(low, sizeof *args);
    if (!args)
        return out_of_memory(low);
    args->step = low->bindings->step;
    args->rows = rows_of(low, op);
    args->cols = op->out.cols;
    args->ops = rp_fast_ops_select(low->graph->device->isa);
    args->caps = op->kind == RP_OP_SOFT_CAP;
    if (args->caps)
        args->soft_cap = (struct rp_soft_cap_args){in, out, op->out.cols, op->u.soft_cap.cap};
    else
        args->activation = (struct rp_activation_args){in, out, op->out.cols, op->u.activation.fn};
    launch->run = run_cols;
    launch->args = args;
    return RP_OK;
}
