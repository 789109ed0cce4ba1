/* Definitions and uses of views, and whether operators may run in another order. */
#include "backend/fuse_internal.h"

bool rp_same_view(const struct rp_view *a, const struct rp_view *b) {
    return a->tensor == b->tensor && a->col == b->col && a->cols == b->cols;
}

bool rp_views_overlap(const struct rp_view *a, const struct rp_view *b) {
    return a->tensor != RP_NO_TENSOR && a->tensor == b->tensor && a->col < b->col + b->cols &&
           b->col < a->col + a->cols;
}

static bool reads(const struct rp_op *op, const struct rp_view *view) {
    for (uint32_t i = 0; i < op->in_count; i++)
        if (rp_views_overlap(&op->in[i], view))
            return true;
    return false;
}

uint32_t rp_first_reader(const struct rp_program *program, uint32_t from,
                         const struct rp_view *view) {
    for (uint32_t i = from; i < program->op_count; i++) {
        if (reads(&program->ops[i], view))
            return i;
        if (rp_views_overlap(&program->ops[i].out, view))
            return RP_FUSED_NONE;
    }
    return RP_FUSED_NONE;
}

bool rp_is_read(const struct rp_program *program, uint32_t from, const struct rp_view *view) {
    for (uint32_t i = from; i < program->op_count; i++) {
        const struct rp_view *out = &program->ops[i].out;
        if (reads(&program->ops[i], view))
            return true;
        if (out->tensor == view->tensor && out->col <= view->col &&
            out->col + out->cols >= view->col + view->cols)
            return false;
    }
    return false;
}

bool rp_feeds_activation(const struct rp_program *program, uint32_t linear) {
    const struct rp_view *out = &program->ops[linear].out;
    uint32_t reader = rp_first_reader(program, linear + 1, out);
    return reader != RP_FUSED_NONE && program->ops[reader].kind == RP_OP_ACTIVATION &&
           rp_same_view(out, &program->ops[reader].in[0]);
}

/* Bytes that two views have in common. Of different tensors: their places in the arena. */
static bool share_bytes(const struct rp_fuse_input *input, const struct rp_view *a,
                        const struct rp_view *b) {
    const struct rp_program *program = input->program;
    if (a->tensor == RP_NO_TENSOR || b->tensor == RP_NO_TENSOR)
        return false;
    if (a->tensor == b->tensor)
        return rp_views_overlap(a, b);
    if (!input->tensor_offsets)
        return false;
    size_t begin[2], end[2];
    for (int i = 0; i < 2; i++) {
        const struct rp_view *view = i ? b : a;
        const struct rp_tensor *tensor = &program->tensors[view->tensor];
        begin[i] = input->tensor_offsets[view->tensor];
        end[i] = begin[i] + (size_t)rp_program_rows(program, input->bucket, tensor->rows) *
                                tensor->cols * rp_dtype_bytes(tensor->dtype);
    }
    return begin[0] < end[1] && begin[1] < end[0];
}

static bool is_member(const struct rp_fused_op *fused, uint32_t op) {
    for (uint32_t i = 0; i < fused->op_count; i++)
        if (fused->ops[i] == op)
            return true;
    return false;
}

/* Operand `at` of a member, or NULL where the kernel does not read it from its tensor. */
static const struct rp_view *operand(const struct rp_fuse_input *input,
                                     const struct rp_fused_op *fused, uint32_t member,
                                     uint32_t at) {
    const struct rp_fusion *fusion = &input->table->fusions[fused->fusion];
    const struct rp_op *op = &input->program->ops[fused->ops[member]];
    bool summed = member == 0 && fused->partials_from != RP_FUSED_NONE && at == fusion->sums;
    bool produced =
        member > 0 && fusion->form == RP_FUSION_CHAIN && at == fusion->steps[member].operand;
    return summed || produced ? NULL : &op->in[at];
}

/* The layer whose pages it writes or reads. */
static uint32_t kv_layer(const struct rp_op *op) {
    return op->kind == RP_OP_ATTENTION ? op->layer - op->u.attention.kv_back : op->layer;
}

/* Operators whose order counts although no tensor says so. */
static bool are_ordered(const struct rp_op *a, const struct rp_op *b) {
    bool ends = a->kind == RP_OP_STEP_BEGIN || b->kind == RP_OP_STEP_BEGIN ||
                a->kind == RP_OP_SAMPLE || b->kind == RP_OP_SAMPLE;
    bool pages = (a->kind == RP_OP_KV_WRITE && b->kind == RP_OP_ATTENTION) ||
                 (a->kind == RP_OP_ATTENTION && b->kind == RP_OP_KV_WRITE);
    return ends || (pages && kv_layer(a) == kv_layer(b));
}

const char *rp_fuse_in_the_way(const struct rp_fuse_input *input, const struct rp_fused_op *fused,
                               uint32_t member, uint32_t at) {
    const struct rp_op *op = &input->program->ops[fused->ops[member]];
    const struct rp_op *between = &input->program->ops[at];
    if (are_ordered(op, between))
        return "has to run between them";
    if (share_bytes(input, &between->out, &op->out))
        return "writes between them what one of them writes";
    for (uint32_t i = 0; i < op->in_count; i++) {
        const struct rp_view *in = operand(input, fused, member, i);
        if (in && share_bytes(input, &between->out, in))
            return "writes between them what one of them reads";
    }
    for (uint32_t i = 0; i < between->in_count; i++)
        if (share_bytes(input, &between->in[i], &op->out))
            return "reads between them what one of them writes";
    return NULL;
}

bool rp_fuse_in_order(const struct rp_fuse_input *input, const struct rp_fused_op *fused,
                      struct rp_fuse_why *why) {
    uint32_t last = fused->ops[fused->op_count - 1];
    for (uint32_t m = 0; m + 1 < fused->op_count; m++)
        for (uint32_t at = fused->ops[m] + 1; at < last; at++) {
            const char *text =
                is_member(fused, at) ? NULL : rp_fuse_in_the_way(input, fused, m, at);
            if (text)
                return rp_fuse_because(why, "%s %s", input->program->ops[at].name, text);
        }
    return true;
}

/* Rows: the members run in order on each row, so that only other tensors' rows can be
 * overwritten. */
static bool is_overwritten(const struct rp_fuse_input *input, const struct rp_fused_op *fused,
                           const struct rp_view *out, const struct rp_view *in) {
    bool rows = input->table->fusions[fused->fusion].form == RP_FUSION_ROWS;
    return in && share_bytes(input, out, in) && !(rows && out->tensor == in->tensor);
}

bool rp_fuse_in_place(const struct rp_fuse_input *input, const struct rp_fused_op *fused,
                      struct rp_fuse_why *why) {
    const struct rp_program *program = input->program;
    uint32_t flags = input->table->fusions[fused->fusion].flags;
    bool stores = flags & RP_FUSION_STORES, serial = flags & RP_FUSION_SERIAL;
    for (uint32_t b = serial ? fused->op_count : 1; b < fused->op_count; b++) {
        const struct rp_op *later = &program->ops[fused->ops[b]];
        for (uint32_t a = 0; a < b; a++) {
            const struct rp_op *op = &program->ops[fused->ops[a]];
            bool overwritten =
                stores && a == fused->op_count - 2 && share_bytes(input, &later->out, &op->out);
            for (uint32_t i = 0; i < op->in_count && !overwritten; i++)
                overwritten =
                    is_overwritten(input, fused, &later->out, operand(input, fused, a, i));
            if (overwritten)
                return rp_fuse_because(why, "the output of %s shares memory with what %s uses",
                                       later->name, op->name);
        }
    }
    return true;
}
