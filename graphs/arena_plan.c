#include "graphs/arena_plan.h"

#include "base/checked.h"
#include "base/memory.h"

static void touch(struct rp_lifetime *lives, const struct rp_view *view, uint32_t op) {
    if (view->tensor == RP_NO_TENSOR)
        return;
    struct rp_lifetime *life = &lives[view->tensor];
    life->first = RP_MIN(life->first, op);
    life->last = RP_MAX(life->last, op);
}

/* How many operators later a kernel may still read what this one reads: that of the sum of experts,
 * of the addition to the residual and of the norm is one. */
static uint32_t reach_of(const struct rp_op *op) { return op->kind == RP_OP_EXPERT_SUM ? 2 : 1; }

/* First and last operator of the run with branches that has operator i; i itself: there is none. */
static struct rp_lifetime run_of(const struct rp_program *program, uint32_t i) {
    struct rp_lifetime run = {i, i};
    if (program->ops[i].branch == RP_BRANCH_NONE)
        return run;
    while (run.first > 0 && program->ops[run.first - 1].branch != RP_BRANCH_NONE)
        run.first--;
    while (run.last + 1 < program->op_count && program->ops[run.last + 1].branch != RP_BRANCH_NONE)
        run.last++;
    return run;
}

void rp_program_lifetimes(const struct rp_program *program, const struct rp_bucket *bucket,
                          struct rp_lifetime *out) {
    for (uint32_t i = 0; i < program->tensor_count; i++)
        out[i] = (struct rp_lifetime){UINT32_MAX, 0};
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct rp_op *op = &program->ops[i];
        struct rp_lifetime run = {i, i};
        if (bucket->tokens <= op->branch_tokens)
            run = run_of(program, i);
        for (uint32_t at = 0; at < op->in_count; at++) {
            touch(out, &op->in[at], run.first);
            touch(out, &op->in[at],
                  RP_MAX(run.last, RP_MIN(i + reach_of(op), program->op_count - 1)));
        }
        touch(out, &op->out, run.first);
        touch(out, &op->out, run.last);
    }
}

bool rp_tensor_bytes(const struct rp_program *program, const struct rp_tensor *tensor,
                     const struct rp_bucket *bucket, size_t *out) {
    size_t bytes;
    if (rp_mul_overflow(rp_program_rows(program, bucket, tensor->rows), tensor->cols, &bytes) ||
        rp_mul_overflow(bytes, rp_dtype_bytes(tensor->dtype), &bytes))
        return false;
    *out = bytes;
    return true;
}

struct placement {
    size_t bytes, offset;
    uint32_t tensor;
    struct rp_lifetime life;
};

/* Largest first; equal sizes in order of tensor, so that the plan is the same everywhere. */
static void sort_by_size(struct placement *items, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        struct placement item = items[i];
        uint32_t at = i;
        for (; at > 0 && items[at - 1].bytes < item.bytes; at--)
            items[at] = items[at - 1];
        items[at] = item;
    }
}

static bool lives_overlap(struct rp_lifetime a, struct rp_lifetime b) {
    return a.first <= b.last && b.first <= a.last;
}

/* Lowest offset at which item overlaps none of the placed ones that live at the same time. */
static size_t find_offset(const struct placement *placed, uint32_t count,
                          const struct placement *item) {
    size_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < count; i++) {
            const struct placement *other = &placed[i];
            if (lives_overlap(other->life, item->life) && offset < other->offset + other->bytes &&
                other->offset < offset + item->bytes) {
                offset = other->offset + other->bytes;
                moved = true;
            }
        }
    }
    return offset;
}

int rp_arena_plan(const struct rp_program *program, const struct rp_bucket *bucket, bool guarded,
                  size_t *out_offsets, size_t *out_bytes) {
    int status = RP_OK;
    uint32_t count = 0;
    size_t total = 0, sum = 0;
    struct rp_lifetime *lives = rp_calloc(program->tensor_count, sizeof *lives);
    struct placement *items = rp_calloc(program->tensor_count, sizeof *items);
    if (!lives || !items) {
        status = RP_STATUS_NO_MEMORY;
        goto done;
    }
    rp_program_lifetimes(program, bucket, lives);
    for (uint32_t i = 0; i < program->tensor_count; i++) {
        struct placement item = {.tensor = i, .life = lives[i]};
        out_offsets[i] = 0;
        if (lives[i].first > lives[i].last)
            continue;
        if (!rp_tensor_bytes(program, &program->tensors[i], bucket, &item.bytes) ||
            rp_add_overflow(item.bytes, guarded ? RP_CANARY_BYTES : 0, &item.bytes) ||
            rp_align_overflow(item.bytes, RP_ARENA_ALIGN, &item.bytes) ||
            rp_add_overflow(sum, item.bytes, &sum)) {
            status = RP_STATUS_OVERFLOW;
            goto done;
        }
        if (guarded)
            item.life =
                (struct rp_lifetime){0, program->op_count}; /* lives always: shares nothing */
        items[count++] = item;
    }
    sort_by_size(items, count);
    for (uint32_t i = 0; i < count; i++) {
        items[i].offset = find_offset(items, i, &items[i]);
        out_offsets[items[i].tensor] = items[i].offset;
        total = RP_MAX(total, items[i].offset + items[i].bytes);
    }
    *out_bytes = total;
done:
    rp_free(lives);
    rp_free(items);
    return status;
}
