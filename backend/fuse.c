#include "backend/fuse.h"

#include "backend/fuse_internal.h"
#include "base/memory.h"
#include "quant/matrix.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct pass {
    const struct rp_fuse_input *input;
    const struct rp_program *program;
    const struct rp_fusion *fusions;
    struct rp_fused *out;
    uint32_t *owner;     /* of each operator from begin on, index into out->ops or RP_FUSED_NONE */
    uint32_t *last_read; /* of each tensor */
};

bool rp_fuse_because(struct rp_fuse_why *why, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    why->is_rule = true;
    return false;
}

/* The operators of the row are not there: said only where no rule forbade a fusion. */
static bool is_absent(struct rp_fuse_why *why, const struct rp_op *reader) {
    if (reader)
        snprintf(why->text, sizeof why->text, "its output goes to %s (%s)", reader->name,
                 rp_op_kind_name(reader->kind));
    else
        snprintf(why->text, sizeof why->text, "nothing reads its output as it is");
    why->is_rule = false;
    return false;
}

static bool is_read(const struct pass *pass, uint32_t from, const struct rp_view *view) {
    return pass->last_read[view->tensor] >= from && rp_is_read(pass->program, from, view);
}

static bool is_free(const struct pass *pass, uint32_t op) {
    return op >= pass->input->begin && op < pass->input->end &&
           pass->owner[op - pass->input->begin] == RP_FUSED_NONE;
}

/* -- chains: from a definition to its reader -------------------------------------------------- */

/* The view that step `step` of the row reads, as its only reader unless it is stored, too. */
static bool check_reader(const struct pass *pass, const struct rp_fusion *fusion, uint32_t step,
                         uint32_t from, uint32_t reader, struct rp_fuse_why *why) {
    const struct rp_op *op = &pass->program->ops[from], *next = &pass->program->ops[reader];
    uint32_t operand = fusion->steps[step].operand;
    bool stored = step == fusion->step_count - 1 && fusion->flags & RP_FUSION_STORES;
    if (!is_free(pass, reader))
        return rp_fuse_because(why, "%s is fused to another operator", next->name);
    if (next->branch != op->branch)
        return rp_fuse_because(why, "%s is not of the same branch", next->name);
    if (next->kind != RP_OP_GATHER_ROWS && next->rows != op->rows)
        return rp_fuse_because(why, "%s works on other rows: %s", next->name,
                               pass->program->domains[next->rows].name);
    for (uint32_t i = 0; i < next->in_count; i++)
        if (i == operand ? !rp_same_view(&next->in[i], &op->out)
                         : rp_views_overlap(&next->in[i], &op->out))
            return rp_fuse_because(why, "%s reads other columns of it", next->name);
    if (operand >= next->in_count)
        return rp_fuse_because(why, "%s has no such operand", next->name);
    if (!stored && is_read(pass, reader + 1, &op->out))
        return rp_fuse_because(
            why, "%s reads it, too",
            pass->program->ops[rp_first_reader(pass->program, reader + 1, &op->out)].name);
    return true;
}

static bool is_residual(const struct pass *pass, const struct rp_op *add, struct rp_fuse_why *why) {
    const struct rp_tensor *tensors = pass->program->tensors;
    if (rp_same_view(&add->in[0], &add->out) && tensors[add->out.tensor].dtype == RP_DTYPE_F32 &&
        tensors[add->in[1].tensor].dtype == RP_DTYPE_F32)
        return true;
    return rp_fuse_because(why, "%s does not add f32 in place", add->name);
}

static bool match_chain(const struct pass *pass, struct rp_fused_op *fused,
                        struct rp_fuse_why *why) {
    const struct rp_fusion *fusion = &pass->fusions[fused->fusion];
    while (fused->op_count < fusion->step_count) {
        uint32_t step = fused->op_count, from = fused->ops[step - 1];
        const struct rp_op *op = &pass->program->ops[from];
        uint32_t reader = rp_first_reader(pass->program, from + 1, &op->out);
        if (reader == RP_FUSED_NONE)
            return is_absent(why, NULL);
        if (pass->program->ops[reader].kind != fusion->steps[step].kind)
            return is_absent(why, &pass->program->ops[reader]);
        if (!check_reader(pass, fusion, step, from, reader, why))
            return false;
        fused->ops[fused->op_count++] = reader;
    }
    uint32_t add = rp_fused_find(pass->program, fused, RP_OP_ADD);
    return !(fusion->flags & RP_FUSION_RESIDUAL) ||
           is_residual(pass, &pass->program->ops[add], why);
}

/* -- rows: operators on the same rows, connected by what they write --------------------------- */

static bool has_kind(const struct rp_fusion *fusion, enum rp_op_kind kind) {
    uint32_t steps = fusion->form == RP_FUSION_ROWS ? fusion->step_count : 1;
    for (uint32_t i = 0; i < steps; i++)
        if (fusion->steps[i].kind == kind)
            return true;
    return false;
}

/* Whether the operator reads or writes a tensor that a member writes. */
static bool is_connected(const struct pass *pass, const struct rp_fused_op *fused,
                         const struct rp_op *op) {
    for (uint32_t m = 0; m < fused->op_count; m++) {
        int32_t tensor = pass->program->ops[fused->ops[m]].out.tensor;
        bool touches = tensor != RP_NO_TENSOR && op->out.tensor == tensor;
        for (uint32_t i = 0; i < op->in_count && !touches; i++)
            touches = tensor != RP_NO_TENSOR && op->in[i].tensor == tensor;
        if (touches)
            return true;
    }
    return false;
}

/* A kernel sends what it exchanges with the other ranks before its rows are computed: no member may
 * write it. At most two exchanges, for which there is memory (rp_program_exchange_bytes). */
static bool may_exchange(const struct pass *pass, const struct rp_fused_op *fused,
                         const struct rp_op *op) {
    uint32_t exchanges = 0;
    if (!rp_op_exchanges(op->kind))
        return true;
    for (uint32_t m = 0; m < fused->op_count; m++) {
        const struct rp_op *member = &pass->program->ops[fused->ops[m]];
        exchanges += rp_op_exchanges(member->kind);
        if (rp_views_overlap(&member->out, &op->in[0]))
            return false;
    }
    return exchanges < 2;
}

static bool match_rows(const struct pass *pass, struct rp_fused_op *fused,
                       struct rp_fuse_why *why) {
    const struct rp_fusion *fusion = &pass->fusions[fused->fusion];
    const uint32_t rows = pass->program->ops[fused->ops[0]].rows;
    const enum rp_branch branch = pass->program->ops[fused->ops[0]].branch;
    const struct rp_op *stop = NULL;
    struct rp_fuse_why unused;
    for (uint32_t at = fused->ops[0] + 1;
         at < pass->input->end && fused->op_count < RP_LAUNCH_OPS_MAX && !stop; at++) {
        const struct rp_op *op = &pass->program->ops[at];
        if (is_free(pass, at) && op->rows == rows && op->branch == branch &&
            has_kind(fusion, op->kind) && is_connected(pass, fused, op) &&
            may_exchange(pass, fused, op)) {
            fused->ops[fused->op_count++] = at;
            if (rp_fuse_in_order(pass->input, fused, &unused) &&
                rp_fuse_in_place(pass->input, fused, &unused))
                continue;
            fused->op_count--;
        }
        /* No later operator can be reached past one that cannot be passed. */
        for (uint32_t m = 0; m < fused->op_count && !stop; m++)
            if (rp_fuse_in_the_way(pass->input, fused, m, at))
                stop = op;
    }
    return fused->op_count >= 2 || is_absent(why, stop);
}

/* -- one row of the table at one operator ----------------------------------------------------- */

static struct rp_fused_op candidate_of(uint32_t fusion, uint32_t op, uint32_t partials_from) {
    return (struct rp_fused_op){.fusion = fusion,
                                .op_count = 1,
                                .ops = {op},
                                .partials_to = RP_FUSED_NONE,
                                .partials_from = partials_from,
                                .quantized_to = RP_FUSED_NONE,
                                .quantized_from = RP_FUSED_NONE};
}

static bool matches(const struct pass *pass, struct rp_fused_op *fused, struct rp_fuse_why *why) {
    const struct rp_fusion *fusion = &pass->fusions[fused->fusion];
    bool rows = fusion->form == RP_FUSION_ROWS;
    if (!(rows ? match_rows(pass, fused, why) : match_chain(pass, fused, why)) ||
        !rp_fuse_in_order(pass->input, fused, why) || !rp_fuse_in_place(pass->input, fused, why))
        return false;
    const char *refusal = fusion->refuses ? fusion->refuses(pass->input, fused) : NULL;
    return refusal ? rp_fuse_because(why, "%s", refusal) : true;
}

static uint32_t last_of(const struct rp_fused_op *fused) { return fused->ops[fused->op_count - 1]; }

static bool has_matmul(const struct pass *pass, const struct rp_fused_op *fused) {
    return rp_fused_find(pass->program, fused, RP_OP_LINEAR) != RP_FUSED_NONE;
}

/* Partial sums lie in the workspace that all matmuls share. */
static bool matmul_runs_between(const struct pass *pass, uint32_t from, uint32_t to) {
    for (uint32_t at = from + 1; at < to; at++)
        if (pass->program->ops[at].kind == RP_OP_LINEAR)
            return true;
    for (uint32_t i = 0; i < pass->out->count; i++) {
        const struct rp_fused_op *other = &pass->out->ops[i];
        if (last_of(other) > from && last_of(other) < to && has_matmul(pass, other))
            return true;
    }
    return false;
}

/* The fused operator at `reader` that adds up the partial sums of `producer`. */
static bool sums_up(const struct pass *pass, const struct rp_fused_op *producer, uint32_t reader,
                    struct rp_fused_op *fused, struct rp_fuse_why *why) {
    const struct rp_program *program = pass->program;
    const struct rp_fusion *fusion = &pass->fusions[fused->fusion];
    const struct rp_view *out = &program->ops[last_of(producer)].out;
    const struct rp_op *op = &program->ops[reader];
    if (!(fusion->flags & RP_FUSION_PARTIALS_IN) || !has_kind(fusion, op->kind) ||
        op->rows != program->ops[last_of(producer)].rows || !matches(pass, fused, why))
        return false;
    if (fusion->form == RP_FUSION_ROWS)
        return out->cols == program->tensors[out->tensor].cols;
    for (uint32_t i = 0; i < op->in_count; i++)
        if (i == fusion->sums ? !rp_same_view(&op->in[i], out) : rp_views_overlap(&op->in[i], out))
            return rp_fuse_because(why, "%s reads other columns of it", op->name);
    return rp_same_view(&op->out, out) || !is_read(pass, reader + 1, out) ||
           rp_fuse_because(why, "it has other readers");
}

/* Fills `reader` when the candidate stores partial sums that it adds up. */
static bool match_partials(const struct pass *pass, const struct rp_fused_op *producer,
                           struct rp_fused_op *reader, struct rp_fuse_why *why) {
    const struct rp_program *program = pass->program;
    const struct rp_view *out = &program->ops[last_of(producer)].out;
    uint32_t at = rp_first_reader(program, last_of(producer) + 1, out);
    bool (*leaves)(const struct rp_fuse_input *, const struct rp_fused_op *) =
        pass->input->table->leaves_partials;
    if (!leaves || at == RP_FUSED_NONE || !is_free(pass, at) ||
        program->tensors[out->tensor].dtype != RP_DTYPE_F32)
        return is_absent(why, NULL);
    for (uint32_t row = 0; row < pass->input->table->count; row++) {
        /* Any index will do to say that there are partial sums; it is set when the order is
         * known. */
        *reader = candidate_of(row, at, 0);
        if (!sums_up(pass, producer, at, reader, why))
            continue;
        if (matmul_runs_between(pass, last_of(producer), last_of(reader)))
            return rp_fuse_because(why, "a matmul runs before its partial sums are read");
        return leaves(pass->input, producer) || is_absent(why, &program->ops[at]);
    }
    return why->is_rule ? false : is_absent(why, &program->ops[at]);
}

/* -- the pass --------------------------------------------------------------------------------- */

static void claim(struct pass *pass, const struct rp_fused_op *fused) {
    for (uint32_t i = 0; i < fused->op_count; i++)
        pass->owner[fused->ops[i] - pass->input->begin] = pass->out->count;
    pass->out->ops[pass->out->count++] = *fused;
}

/* A broken rule says more than operators that are not there. */
static void keep_reason(struct rp_fuse_why *kept, const struct rp_fusion *fusion,
                        const struct rp_fuse_why *why) {
    if (kept->text[0] && (kept->is_rule || !why->is_rule))
        return;
    if (why->is_rule)
        snprintf(kept->text, sizeof kept->text, "%s: %.150s", fusion->name, why->text);
    else
        *kept = *why;
    kept->is_rule = why->is_rule;
}

/* The first row that matches at the operator, and the reader of its partial sums. */
static bool fuse_at(struct pass *pass, uint32_t at) {
    struct rp_fuse_why kept = {.text = ""};
    for (uint32_t row = 0; row < pass->input->table->count; row++) {
        const struct rp_fusion *fusion = &pass->fusions[row];
        bool single = fusion->form == RP_FUSION_CHAIN && fusion->step_count == 1;
        bool only = fusion->flags & RP_FUSION_PARTIALS_ONLY;
        struct rp_fused_op fused = candidate_of(row, at, RP_FUSED_NONE), reader;
        struct rp_fuse_why why = {.text = ""};
        if (!has_kind(fusion, pass->program->ops[at].kind) ||
            (pass->input->no_fusion && (!single || only)) ||
            (only && fusion->flags & RP_FUSION_PARTIALS_IN))
            continue;
        bool found = matches(pass, &fused, &why);
        bool leaves = found && !pass->input->no_fusion && fusion->flags & RP_FUSION_PARTIALS_OUT &&
                      match_partials(pass, &fused, &reader, &why);
        if (why.text[0])
            keep_reason(&kept, fusion, &why);
        if (!found || (only && !leaves))
            continue;
        if (kept.is_rule || fused.op_count == 1)
            memcpy(fused.why_not, kept.text, sizeof fused.why_not);
        if (leaves) {
            fused.partials_to = 0;
            reader.partials_from = last_of(&fused);
            claim(pass, &fused);
            claim(pass, &reader);
        } else {
            claim(pass, &fused);
        }
        return true;
    }
    return false;
}

/* In order of their last members; then links are indexes. */
static void put_in_order(struct pass *pass) {
    struct rp_fused_op *ops = pass->out->ops;
    for (uint32_t i = 1; i < pass->out->count; i++) {
        struct rp_fused_op moved = ops[i];
        uint32_t at = i;
        for (; at > 0 && last_of(&ops[at - 1]) > last_of(&moved); at--)
            ops[at] = ops[at - 1];
        ops[at] = moved;
    }
    bool matmul = false;
    for (uint32_t i = 0; i < pass->out->count; i++) {
        for (uint32_t m = 0; m < ops[i].op_count; m++)
            pass->owner[ops[i].ops[m] - pass->input->begin] = i;
        if (ops[i].partials_from != RP_FUSED_NONE) {
            ops[i].partials_from = pass->owner[ops[i].partials_from - pass->input->begin];
            ops[ops[i].partials_from].partials_to = i;
        }
        ops[i].after_matmul = matmul;
        matmul = matmul || has_matmul(pass, &ops[i]);
    }
}

/* -- quantized rows --------------------------------------------------------------------------- */

/* What the buffer of quantized rows holds: those that the matmul `reader` read first. */
struct quantized_rows {
    uint32_t reader; /* index into the program; RP_FUSED_NONE: the buffer is empty */
    uint32_t from;   /* the fused operator that stored them */
    uint32_t until;  /* the last one so far that reads them */
};

/* The last operator before the matmul that writes a column of its rows. */
static uint32_t definition_of(const struct pass *pass, uint32_t reader) {
    const struct rp_program *program = pass->program;
    for (uint32_t at = reader; at-- > pass->input->begin;)
        if (rp_views_overlap(&program->ops[at].out, &program->ops[reader].in[0]))
            return at;
    return RP_FUSED_NONE;
}

static bool are_held(const struct pass *pass, const struct quantized_rows *held, uint32_t reader) {
    if (held->reader == RP_FUSED_NONE)
        return false;
    const struct rp_op *op = &pass->program->ops[reader];
    const struct rp_op *first = &pass->program->ops[held->reader];
    enum rp_branch branch = pass->program->ops[last_of(&pass->out->ops[held->from])].branch;
    return (branch == RP_BRANCH_NONE || branch == op->branch) &&
           rp_same_view(&op->in[0], &first->in[0]) && op->weight->dtype == first->weight->dtype &&
           definition_of(pass, reader) == definition_of(pass, held->reader);
}

/* The operator that makes the rows which the matmul reads. */
static uint32_t find_producer(const struct pass *pass, uint32_t reader, struct rp_fuse_why *why) {
    const struct rp_program *program = pass->program;
    const struct rp_op *op = &program->ops[reader];
    uint32_t at = definition_of(pass, reader);
    /* Rows of experts are choices, but those that they read are tokens. */
    uint32_t rows = op->kind == RP_OP_LINEAR ? op->rows : program->tensors[op->in[0].tensor].rows;
    if (at == RP_FUSED_NONE)
        rp_fuse_because(why, "they come from another graph");
    else if (!rp_same_view(&program->ops[at].out, &op->in[0]) || program->ops[at].rows != rows)
        rp_fuse_because(why, "%s makes other rows", program->ops[at].name);
    else
        return at;
    return RP_FUSED_NONE;
}

/* The fused operator that can store the rows of the matmul quantized. */
static uint32_t find_quantizer(const struct pass *pass, uint32_t reader,
                               const struct quantized_rows *held, struct rp_fuse_why *why) {
    uint32_t at = find_producer(pass, reader, why);
    if (at == RP_FUSED_NONE)
        return RP_FUSED_NONE;
    const struct rp_op *producer = &pass->program->ops[at];
    uint32_t owner = pass->owner[at - pass->input->begin];
    const struct rp_fused_op *fused = &pass->out->ops[owner];
    bool whole = producer->kind != RP_OP_NORM || producer->u.norm.group == producer->in[0].cols;
    if (!(pass->fusions[fused->fusion].flags & RP_FUSION_QUANTIZES) || last_of(fused) != at)
        rp_fuse_because(why, "the kernel of %s does not quantize", producer->name);
    else if (!whole || pass->program->tensors[producer->out.tensor].dtype != RP_DTYPE_BF16)
        rp_fuse_because(why, "%s does not make whole rows of bf16", producer->name);
    else if (fused->quantized_to != RP_FUSED_NONE)
        rp_fuse_because(why, "other rows have replaced those of %s", producer->name);
    else if (held->reader != RP_FUSED_NONE && owner <= held->until)
        rp_fuse_because(why, "the buffer of quantized rows is in use when %s runs", producer->name);
    else
        return owner;
    return RP_FUSED_NONE;
}

/* Whether the operator reads operand `at` from its tensor, not from the quantized rows. */
static bool reads_tensor(const struct pass *pass, uint32_t op, uint32_t at) {
    if (at > 0 || op >= pass->input->end)
        return true;
    const struct rp_fused_op *owner = &pass->out->ops[pass->owner[op - pass->input->begin]];
    return owner->quantized_from == RP_FUSED_NONE || rp_fused_reader(pass->program, owner) != op;
}

/* Whether the output itself is read, not only its quantized rows. */
static bool is_output_read(const struct pass *pass, const struct rp_fused_op *fused) {
    const struct rp_program *program = pass->program;
    const struct rp_view *out = &program->ops[last_of(fused)].out;
    for (uint32_t at = last_of(fused) + 1; at < program->op_count; at++) {
        const struct rp_op *op = &program->ops[at];
        for (uint32_t i = 0; i < op->in_count; i++)
            if (rp_views_overlap(&op->in[i], out) && reads_tensor(pass, at, i))
                return true;
        if (op->out.tensor == out->tensor && op->out.col <= out->col &&
            op->out.col + op->out.cols >= out->col + out->cols)
            return false;
    }
    return false;
}

/* Decides who stores the rows of fused operator `i`, a matmul that needs them quantized. */
static void quantize_for(struct pass *pass, uint32_t i, struct quantized_rows *held) {
    struct rp_fused_op *ops = pass->out->ops;
    uint32_t reader = rp_fused_reader(pass->program, &ops[i]), from = RP_FUSED_NONE;
    struct rp_fuse_why why = {.text = "fusion is off"};
    ops[i].input_quantized = true;
    if (!pass->input->no_fusion && are_held(pass, held, reader)) {
        ops[i].quantized_from = held->from;
        held->until = i;
        return;
    }
    if (!pass->input->no_fusion)
        from = find_quantizer(pass, reader, held, &why);
    ops[i].quantized_from = from;
    if (from != RP_FUSED_NONE)
        ops[from].quantized_to = i;
    else
        snprintf(ops[i].why_not, sizeof ops[i].why_not,
                 "its rows are quantized by a launch of their own: %.120s", why.text);
    *held = (struct quantized_rows){reader, from == RP_FUSED_NONE ? i : from, i};
}

static void pass_quantized_rows(struct pass *pass) {
    struct rp_fused_op *ops = pass->out->ops;
    struct quantized_rows held = {.reader = RP_FUSED_NONE};
    bool (*needs)(const struct rp_fuse_input *, const struct rp_fused_op *) =
        pass->input->table->needs_quantized;
    for (uint32_t i = 0; i < pass->out->count && needs; i++)
        if (rp_fused_reader(pass->program, &ops[i]) != RP_FUSED_NONE && needs(pass->input, &ops[i]))
            quantize_for(pass, i, &held);
    for (uint32_t i = 0; i < pass->out->count; i++)
        ops[i].quantized_alone =
            ops[i].quantized_to != RP_FUSED_NONE && !is_output_read(pass, &ops[i]);
}

static int run(struct pass *pass, struct rp_error *err) {
    const struct rp_program *program = pass->program;
    const struct rp_fuse_input *input = pass->input;
    for (uint32_t i = 0; i < input->end - input->begin; i++)
        pass->owner[i] = RP_FUSED_NONE;
    for (uint32_t i = 0; i < program->op_count; i++)
        for (uint32_t at = 0; at < program->ops[i].in_count; at++)
            pass->last_read[program->ops[i].in[at].tensor] = i;
    for (uint32_t at = input->begin; at < input->end; at++)
        if (is_free(pass, at) && !fuse_at(pass, at))
            return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                "%s: this backend has no kernel for operator \"%s\"",
                                program->ops[at].name, rp_op_kind_name(program->ops[at].kind));
    put_in_order(pass);
    pass_quantized_rows(pass);
    return RP_OK;
}

int rp_fuse(const struct rp_fuse_input *input, struct rp_fused *out, struct rp_error *err) {
    uint32_t count = input->end - input->begin;
    struct pass pass = {
        .input = input, .program = input->program, .fusions = input->table->fusions, .out = out};
    *out = (struct rp_fused){.ops = rp_calloc(count, sizeof *out->ops)};
    pass.owner = rp_calloc(count, sizeof *pass.owner);
    pass.last_read = rp_calloc(input->program->tensor_count, sizeof *pass.last_read);
    int status = out->ops && pass.owner && pass.last_read
                     ? run(&pass, err)
                     : rp_error_set(err, RP_STATUS_NO_MEMORY, "fusion: out of memory");
    rp_free(pass.owner);
    rp_free(pass.last_read);
    if (status != RP_OK)
        rp_fused_deinit(out);
    return status;
}

void rp_fused_deinit(struct rp_fused *fused) {
    rp_free(fused->ops);
    *fused = (struct rp_fused){0};
}

uint32_t rp_fused_find(const struct rp_program *program, const struct rp_fused_op *fused,
                       enum rp_op_kind kind) {
    for (uint32_t i = 0; i < fused->op_count; i++)
        if (program->ops[fused->ops[i]].kind == kind)
            return fused->ops[i];
    return RP_FUSED_NONE;
}

uint32_t rp_fused_reader(const struct rp_program *program, const struct rp_fused_op *fused) {
    uint32_t linear = rp_fused_find(program, fused, RP_OP_LINEAR);
    return linear != RP_FUSED_NONE ? linear : rp_fused_find(program, fused, RP_OP_EXPERT_GATE_UP);
}
