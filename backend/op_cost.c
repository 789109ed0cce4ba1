#include "backend/op_cost.h"

#include "kvcache/kv_layout.h"
#include "quant/matrix.h"

#include <math.h>

static uint64_t view_bytes(const struct rp_program *program, const struct rp_view *view,
                           const struct rp_bucket *bucket) {
    if (view->tensor == RP_NO_TENSOR)
        return 0;
    const struct rp_tensor *tensor = &program->tensors[view->tensor];
    return (uint64_t)rp_program_rows(program, bucket, tensor->rows) * view->cols *
           rp_dtype_bytes(tensor->dtype);
}

static uint64_t weight_bytes(const struct rp_matrix *matrix) {
    if (matrix->dtype == RP_DTYPE_BLOCKS)
        return rp_matrix_bytes(matrix);
    return (uint64_t)matrix->rows * matrix->cols * rp_dtype_bytes(matrix->dtype);
}

/* Bytes of the experts' matrices that `choices` touch, each choice taken as equally likely:
 * count * (1 - (1 - 1/count)^choices). */
static uint64_t touched_bytes(const struct rp_op *op, uint64_t choices) {
    double count = op->u.experts.experts.count;
    double touched = count * (1.0 - pow(1.0 - 1.0 / count, (double)choices));
    uint64_t all = weight_bytes(op->weight) + rp_matrix_scale_count(op->weight) * sizeof(float);
    /* k different experts of one row */
    touched = fmax(touched, (double)RP_MIN(choices, (uint64_t)op->u.experts.experts.used));
    return (uint64_t)((double)all / count * touched);
}

uint64_t rp_op_weight_bytes(const struct rp_program *program, const struct rp_op *op,
                            const struct rp_bucket *bucket) {
    if (op->kind == RP_OP_LINEAR || op->kind == RP_OP_HEAD_LINEAR)
        return weight_bytes(op->weight) + rp_matrix_scale_count(op->weight) * sizeof(float);
    if (op->kind == RP_OP_EXPERT_GATE_UP || op->kind == RP_OP_EXPERT_DOWN)
        return touched_bytes(op, rp_program_rows(program, bucket, op->rows));
    return 0;
}

struct rp_cost rp_op_cost(const struct rp_program *program, const struct rp_op *op,
                          const struct rp_bucket *bucket, enum rp_dtype kv_dtype,
                          uint32_t kv_tokens) {
    uint64_t rows = rp_program_rows(program, bucket, op->rows);
    struct rp_cost cost = {.bytes_written = view_bytes(program, &op->out, bucket)};
    for (uint32_t i = 0; i < op->in_count; i++)
        cost.bytes_read += view_bytes(program, &op->in[i], bucket);
    switch (op->kind) {
    case RP_OP_EMBED:
        cost.bytes_read += rows * weight_bytes(op->weight) / RP_MAX(op->weight->rows, 1u);
        break;
    case RP_OP_LINEAR:
        cost.bytes_read += rp_op_weight_bytes(program, op, bucket);
        if (op->vector)
            cost.bytes_read += (uint64_t)op->weight->rows * sizeof(float);
        cost.flops = 2 * rows * op->weight->rows * op->weight->cols;
        break;
    case RP_OP_NORM:
        cost.bytes_read += (uint64_t)op->u.norm.group * sizeof(float);
        cost.flops = 4 * rows * op->in[0].cols;
        break;
    case RP_OP_ROPE:
        cost.flops = 3 * rows * op->u.rope.heads * op->u.rope.rotary_dim;
        break;
    case RP_OP_KV_WRITE:
        cost.bytes_written +=
            rows * rp_kv_layer_token_bytes(kv_dtype, op->u.kv_write.kv_heads,
                                           op->u.kv_write.head_dim, op->in_count == 1);
        break;
    case RP_OP_ATTENTION: {
        /* One sequence per row in decode; a chunk shares its pages. */
        uint64_t sequences = bucket->decode ? rows : bucket->rows;
        uint32_t dim = op->u.attention.head_dim, latent = op->u.attention.value_dim;
        cost.bytes_read +=
            sequences * kv_tokens *
            rp_kv_layer_token_bytes(kv_dtype, op->u.attention.kv_heads, dim, latent != 0);
        cost.flops = 2 * rows * kv_tokens * op->u.attention.heads * (dim + (latent ? latent : dim));
        break;
    }
    case RP_OP_GLU:
    case RP_OP_ACTIVATION:
        cost.flops = 5 * rows * op->out.cols;
        break;
    case RP_OP_ADD:
        cost.flops = rows * op->out.cols;
        break;
    case RP_OP_SCALE:
        cost.flops = rows * op->out.cols;
        break;
    case RP_OP_LAYER_NORM:
        cost.bytes_read += (op->u.layer_norm.bias ? 2ull : 1ull) * op->in[0].cols * sizeof(float);
        cost.flops = 7 * rows * op->in[0].cols;
        break;
    case RP_OP_EXPERT_GATE_UP:
    case RP_OP_EXPERT_DOWN:
        cost.bytes_read += rp_op_weight_bytes(program, op, bucket);
        if (op->u.experts.bias)
            cost.bytes_read += (uint64_t)(op->weight->rows / op->u.experts.experts.count) *
                               RP_MIN(rows, (uint64_t)op->u.experts.experts.count) * sizeof(float);
        cost.flops = 2 * rows * (op->weight->rows / op->u.experts.experts.count) * op->weight->cols;
        break;
    case RP_OP_EXPERT_SUM:
        cost.flops = 2 * rows * op->u.expert_sum.experts.used * op->out.cols;
        break;
    case RP_OP_HEAD_LINEAR:
        cost.bytes_read += rp_op_weight_bytes(program, op, bucket);
        cost.flops = 2 * rows * op->weight->rows * op->weight->cols;
        break;
    case RP_OP_CONV: {
        uint64_t state = (uint64_t)(op->u.conv.width - 1) * op->out.cols * sizeof(float);
        cost.bytes_read += bucket->rows * state;
        cost.bytes_written += bucket->rows * state;
        cost.flops = 2 * rows * op->u.conv.width * op->out.cols;
        break;
    }
    case RP_OP_GATED_DELTA: {
        const struct rp_gated_delta *delta = &op->u.delta;
        uint64_t values = (uint64_t)delta->value_heads * delta->key_dim * delta->value_dim;
        cost.bytes_read += bucket->rows * values * sizeof(float);
        cost.bytes_written += bucket->rows * values * sizeof(float);
        cost.flops = 7 * rows * values;
        break;
    }
    case RP_OP_SOFT_CAP:
        cost.flops = 3 * rows * op->out.cols;
        break;
    default:
        break; /* moves data, or works on the step's state */
    }
    return cost;
}
