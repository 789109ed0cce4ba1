#include "backend/lowering.h"

#include "kvcache/kv_geometry.h"
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

uint32_t rp_lowering_widest_linear(const struct rp_program *program) {
    uint32_t widest = 0;
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == RP_OP_LINEAR)
            widest = RP_MAX(widest, program->ops[i].weight->rows);
    return widest;
}

int rp_lowering_check_input(const struct rp_program *program, const struct rp_op *linear,
                            struct rp_error *err) {
    enum rp_dtype dtype = program->tensors[linear->in[0].tensor].dtype;
    enum rp_dtype weight = linear->weight->dtype;
    if (dtype == rp_matrix_input_dtype(linear->weight))
        return RP_OK;
    return rp_error_set(err, RP_STATUS_UNSUPPORTED, "%s: %s input for %s weights", linear->name,
                        rp_dtype_name(dtype), rp_dtype_name(weight));
}

struct rp_layer_pages rp_lowering_pages(const struct rp_bindings *bindings, uint32_t layer) {
    const struct rp_kv_geometry *geometry = bindings->geometry;
    struct rp_layer_pages out = {.kv = *bindings->kv, .layer = layer};
    if (!geometry)
        return out;
    const struct rp_kv_place *place = &geometry->places[layer];
    RP_ASSERT_CMP(layer, <, geometry->layer_count);
    RP_ASSERT_CMP(place->group, <, geometry->groups.count);
    out.kv = geometry->layouts[place->group];
    out.kv.base = bindings->kv->base;
    out.layer = place->at;
    out.table = place->group * (bindings->step.config.pages_per_slot / geometry->groups.count);
    return out;
}

struct rp_attention_args rp_lowering_attention(const struct rp_program *program,
                                               const struct rp_bindings *bindings,
                                               const struct rp_op *op) {
    struct rp_values q = rp_lowering_values(program, bindings, &op->in[0]);
    struct rp_values out = rp_lowering_values(program, bindings, &op->out);
    struct rp_layer_pages pages = rp_lowering_pages(bindings, op->layer - op->u.attention.kv_back);
    return (struct rp_attention_args){.step = bindings->step,
                                      .kv = pages.kv,
                                      .q = q.data,
                                      .out = out.data,
                                      .q_stride = q.stride,
                                      .out_stride = out.stride,
                                      .out_dtype = out.dtype,
                                      .heads = op->u.attention.heads,
                                      .kv_heads = op->u.attention.kv_heads,
                                      .head_dim = op->u.attention.head_dim,
                                      .value_dim = op->u.attention.value_dim,
                                      .layer = pages.layer,
                                      .table = pages.table,
                                      .window = op->u.attention.window,
                                      .scale = op->u.attention.scale,
                                      .soft_cap = op->u.attention.soft_cap,
                                      .mask = op->u.attention.mask,
                                      .sinks = op->vector,
                                      .first_head = op->u.attention.first_head};
}

struct rp_route_args rp_lowering_route(const struct rp_program *program,
                                       const struct rp_bindings *bindings, const struct rp_op *op) {
    return (struct rp_route_args){.logits = rp_lowering_values(program, bindings, &op->in[0]),
                                  .out = rp_lowering_values(program, bindings, &op->out),
                                  .bias = op->vector,
                                  .experts = op->u.route.experts,
                                  .score = op->u.route.score,
                                  .renormalize = op->u.route.renormalize,
                                  .groups = op->u.route.groups,
                                  .groups_used = op->u.route.groups_used,
                                  .group_best = op->u.route.group_best,
                                  .factor = op->u.route.factor,
                                  .scales = op->bias};
}

bool rp_lowering_describe(struct rp_launch_info *info, const struct rp_program *program,
                          const struct rp_fused_op *fused, const char *kernel, bool explain,
                          struct rp_arena *memory) {
    size_t len = 0;
    *info = (struct rp_launch_info){.kernel = kernel, .op_count = fused->op_count};
    memcpy(info->ops, fused->ops, fused->op_count * sizeof *info->ops);
    for (uint32_t i = 0; i < fused->op_count; i++) {
        const char *name = program->ops[fused->ops[i]].name;
        size_t name_len = strlen(name);
        if (len + name_len + 2 > sizeof info->name)
            break;
        if (i)
            info->name[len++] = '+';
        memcpy(info->name + len, name, name_len + 1);
        len += name_len;
    }
    if (explain && fused->why_not[0])
        info->why_not = rp_arena_strndup(memory, fused->why_not, strlen(fused->why_not));
    return !explain || !fused->why_not[0] || info->why_not;
}
