#include "backend/lowering.h"

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

void rp_lowering_name(struct rp_launch_info *info, const struct rp_program *program, uint32_t at,
                      uint32_t count, const char *kernel) {
    size_t len = 0;
    info->kernel = kernel;
    info->op_begin = at;
    info->op_count = count;
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
