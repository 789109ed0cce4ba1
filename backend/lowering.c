#include "backend/lowering.h"

#include "quant/matrix.h"

#include <string.h>

struct rp_values rp_lowering_values(const struct rp_program *program,
                                    const struct rp_bindings *bindings,
                                    const struct rp_view *view) {
    struct rp_values values = {0};
    if (view->tensor == RP_NO_TENSOR)
        return values;
    const struct rp_tensor *tensor = &program->tensors[view->tensor];
    values.data = bindings->arena + bindings->tensor_offsets[view->tensor] +
                  (size_t)view->col * rp_dtype_bytes(tensor->dtype);
    values.stride = tensor->cols;
    values.dtype = tensor->dtype;
    return values;
}

bool rp_lowering_same_view(const struct rp_view *a, const struct rp_view *b) {
    return a->tensor == b->tensor && a->col == b->col && a->cols == b->cols;
}

bool rp_lowering_is_read(const struct rp_program *program, uint32_t at, int32_t tensor) {
    for (uint32_t i = at; i < program->op_count; i++) {
        const struct rp_op *op = &program->ops[i];
        if (op->in[0].tensor == tensor || op->in[1].tensor == tensor)
            return true;
        if (op->out.tensor == tensor)
            return false;
    }
    return false;
}

bool rp_lowering_is_linear_add(const struct rp_program *program, uint32_t at, uint32_t end) {
    const struct rp_op *linear = &program->ops[at], *add = linear + 1;
    return at + 1 < end && linear->kind == RP_OP_LINEAR && add->kind == RP_OP_ADD &&
           add->rows == linear->rows && rp_lowering_same_view(&add->in[1], &linear->out) &&
           rp_lowering_same_view(&add->in[0], &add->out) &&
           program->tensors[linear->out.tensor].dtype == RP_DTYPE_F32 &&
           program->tensors[add->out.tensor].dtype == RP_DTYPE_F32 &&
           !rp_lowering_is_read(program, at + 2, linear->out.tensor);
}

uint32_t rp_lowering_widest_linear(const struct rp_program *program) {
    uint32_t widest = 0;
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == RP_OP_LINEAR)
            widest = RP_MAX(widest, program->ops[i].weight->rows);
    return widest;
}

bool rp_lowering_feeds_activation(const struct rp_program *program, uint32_t at) {
    const struct rp_op *op = &program->ops[at], *next = op + 1;
    return at + 1 < program->op_count && next->kind == RP_OP_ACTIVATION &&
           rp_lowering_same_view(&op->out, &next->in[0]);
}

bool rp_lowering_overlap(const struct rp_values *a, const struct rp_values *b, size_t rows) {
    uintptr_t a_begin = (uintptr_t)a->data, b_begin = (uintptr_t)b->data;
    return a_begin < b_begin + rows * b->stride * rp_dtype_bytes(b->dtype) &&
           b_begin < a_begin + rows * a->stride * rp_dtype_bytes(a->dtype);
}

bool rp_lowering_is_gather_norm(const struct rp_program *program, uint32_t at, uint32_t end) {
    const struct rp_op *gather = &program->ops[at], *norm = gather + 1;
    return at + 1 < end && norm->kind == RP_OP_NORM &&
           rp_lowering_same_view(&gather->out, &norm->in[0]) &&
           norm->out.tensor != gather->out.tensor &&
           !rp_lowering_is_read(program, at + 2, gather->out.tensor);
}

uint32_t rp_lowering_add_norm(const struct rp_program *program, uint32_t at, uint32_t end) {
    const struct rp_op *add = &program->ops[at], *next = add + 1;
    if (at + 1 >= end || add->kind != RP_OP_ADD || !rp_lowering_same_view(&add->in[0], &add->out) ||
        program->tensors[add->out.tensor].dtype != RP_DTYPE_F32 ||
        program->tensors[add->in[1].tensor].dtype != RP_DTYPE_F32 ||
        !rp_lowering_same_view(&next->in[0], &add->out))
        return 0;
    bool gathers = next->kind == RP_OP_GATHER_ROWS &&
                   rp_lowering_is_gather_norm(program, at + 1, end) &&
                   !rp_lowering_is_read(program, at + 2, add->out.tensor);
    const struct rp_op *norm = gathers ? next + 1 : next;
    bool rows = gathers || norm->rows == add->rows;
    return norm->kind == RP_OP_NORM && rows && norm->u.norm.group == norm->in[0].cols &&
                   norm->out.tensor != add->out.tensor
               ? 2 + gathers
               : 0;
}

bool rp_lowering_is_norm_linear(const struct rp_program *program, uint32_t at, uint32_t end) {
    const struct rp_op *norm = &program->ops[at], *linear = norm + 1;
    return at + 1 < end && norm->kind == RP_OP_NORM && linear->kind == RP_OP_LINEAR &&
           linear->rows == norm->rows && rp_lowering_same_view(&norm->out, &linear->in[0]) &&
           norm->u.norm.group == norm->in[0].cols &&
           program->tensors[norm->in[0].tensor].dtype == RP_DTYPE_F32 &&
           program->tensors[norm->out.tensor].dtype == RP_DTYPE_BF16 &&
           !rp_lowering_is_read(program, at + 2, norm->out.tensor) &&
           rp_lowering_is_read(program, at + 2, norm->in[0].tensor);
}

uint32_t rp_lowering_qkv_post(const struct rp_program *program, uint32_t at, uint32_t end) {
    const struct rp_op *op = &program->ops[at];
    uint32_t norms = op->kind == RP_OP_NORM ? 2 : 0, count = norms + 2;
    if (at + count > end)
        return 0;
    const struct rp_op *rope = op + norms, *write = rope + 1;
    if (rope->kind != RP_OP_ROPE || write->kind != RP_OP_KV_WRITE || rope->rows != write->rows ||
        write->in[0].tensor != rope->out.tensor || write->in[1].tensor != rope->out.tensor ||
        program->tensors[rope->out.tensor].dtype != RP_DTYPE_F32)
        return 0;
    uint32_t head_dim = write->u.kv_write.head_dim, kv_cols = write->in[0].cols;
    uint32_t q_cols = rope->out.cols - kv_cols;
    bool laid_out = rope->u.rope.head_dim == head_dim && rope->out.col == 0 &&
                    rope->out.cols > kv_cols && write->in[0].col == q_cols &&
                    write->in[1].col == q_cols + kv_cols;
    if (!laid_out)
        return 0;
    for (uint32_t i = 0; i < norms; i++) {
        const struct rp_op *norm = op + i;
        if (norm->kind != RP_OP_NORM || norm->u.norm.group != head_dim ||
            !rp_lowering_same_view(&norm->in[0], &norm->out) ||
            norm->out.tensor != rope->out.tensor || norm->out.col != (i ? q_cols : 0) ||
            norm->out.cols != (i ? kv_cols : q_cols) || norm->u.norm.eps != op->u.norm.eps)
            return 0;
    }
    return count;
}

void rp_lowering_name(struct rp_launch_info *info, const struct rp_program *program, uint32_t at,
                      uint32_t count, const char *kernel) {
    size_t len = 0;
    info->kernel = kernel;
    info->op_begin = at;
    info->op_count = count;
    info->prepares = false;
    info->name[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        const char *name = program->ops[at + i].name;
        size_t name_len = strlen(name);
        if (len + name_len + 2 > sizeof info->name)
            break;
        if (i)
            info->name[len++] = '+';
        memcpy(info->name + len, name, name_len + 1);
        len += name_len;
    }
}
