/* mask_fold.c - simplifies a program: constants folded, `layer` substituted, chains of && and ||
 * balanced (so that a long chain is not a deep tree) and without duplicate terms. The order of
 * arithmetic operations is kept. */
#include "attention/mask/mask_internal.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

#define WORK_MAX 8192

struct fold {
    const struct rp_mask_node *from; /* draft node */
    int64_t layer;
    bool full;
    uint32_t count;
    struct rp_mask_node nodes[WORK_MAX]; /* result, with gaps */
};

/* Terms of one chain. */
struct chain {
    uint32_t count;
    uint16_t term[RP_MASK_NODES_MAX];
};

static uint16_t put(struct fold *f, const struct rp_mask_node *node) {
    if (f->count == WORK_MAX) {
        f->full = true;
        return 0;
    }
    f->nodes[f->count] = *node;
    return (uint16_t)f->count++;
}

static uint16_t put_int(struct fold *f, const struct rp_mask_node *like, int64_t i) {
    struct rp_mask_node node = {.op = like->type == RP_MASK_BOOL ? RP_MASK_OP_BOOL : RP_MASK_OP_INT,
                                .type = like->type,
                                .column = like->column,
                                .value.i = (int32_t)i};
    return put(f, &node);
}

static uint16_t put_float(struct fold *f, const struct rp_mask_node *like, float value) {
    struct rp_mask_node node = {
        .op = RP_MASK_OP_FLOAT, .type = RP_MASK_FLOAT, .column = like->column, .value.f = value};
    return put(f, &node);
}

static bool is_constant(const struct rp_mask_node *node) {
    return node->op == RP_MASK_OP_INT || node->op == RP_MASK_OP_BOOL ||
           node->op == RP_MASK_OP_FLOAT;
}

static bool is_int(const struct rp_mask_node *node, int32_t value) {
    return node->op == RP_MASK_OP_INT && node->value.i == value;
}

static bool same_tree(const struct fold *f, uint16_t x, uint16_t y) {
    const struct rp_mask_node *a = &f->nodes[x], *b = &f->nodes[y];
    if (x == y)
        return true;
    if (a->op != b->op || a->type != b->type || a->value.i != b->value.i)
        return false;
    for (uint32_t i = 0; i < rp_mask_ops[a->op].arity; i++)
        if (!same_tree(f, a->child[i], b->child[i]))
            return false;
    return true;
}

/* --- Chains of && and || --------------------------------------------------------------- */

static void add_term(struct fold *f, enum rp_mask_op op, uint16_t index, struct chain *chain) {
    const struct rp_mask_node *node = &f->nodes[index];
    if (node->op == op) {
        add_term(f, op, node->child[0], chain);
        add_term(f, op, node->child[1], chain);
        return;
    }
    for (uint32_t i = 0; i < chain->count; i++)
        if (same_tree(f, chain->term[i], index))
            return;
    if (chain->count == RP_MASK_NODES_MAX)
        f->full = true;
    else
        chain->term[chain->count++] = index;
}

static uint16_t balance(struct fold *f, const struct rp_mask_node *like, const uint16_t *terms,
                        uint32_t count) {
    if (count == 1)
        return terms[0];
    struct rp_mask_node node = {.op = like->op, .type = RP_MASK_BOOL, .column = like->column};
    uint32_t left = (count + 1) / 2;
    node.child[0] = balance(f, like, terms, left);
    node.child[1] = balance(f, like, terms + left, count - left);
    return put(f, &node);
}

static uint16_t fold_tree(struct fold *f, uint16_t index);

/* Reads the draft, so that a chain is built once, however it is nested. */
static void gather(struct fold *f, enum rp_mask_op op, uint16_t index, struct chain *chain) {
    const struct rp_mask_node *node = &f->from[index];
    if (node->op == op) {
        gather(f, op, node->child[0], chain);
        gather(f, op, node->child[1], chain);
    } else {
        uint16_t term = fold_tree(f, index);
        if (!f->full)
            add_term(f, op, term, chain);
    }
}

/* a && (b && c), or ||: one list without constants. */
static uint16_t fold_chain(struct fold *f, uint16_t index) {
    const struct rp_mask_node *node = &f->from[index];
    struct chain chain = {.count = 0};
    uint32_t kept = 0;
    int32_t neutral = node->op == RP_MASK_OP_AND;
    gather(f, (enum rp_mask_op)node->op, index, &chain);
    if (f->full)
        return 0;
    uint16_t first = chain.term[0];
    for (uint32_t i = 0; i < chain.count; i++) {
        const struct rp_mask_node *term = &f->nodes[chain.term[i]];
        if (term->op == RP_MASK_OP_BOOL && term->value.i != neutral)
            return chain.term[i];
        if (term->op != RP_MASK_OP_BOOL)
            chain.term[kept++] = chain.term[i];
    }
    return kept == 0 ? first : balance(f, node, chain.term, kept);
}

/* --- One node -------------------------------------------------------------------------- */

static int64_t compute_int(enum rp_mask_op op, int64_t a, int64_t b) {
    switch (op) {
    case RP_MASK_OP_MIN:
        return RP_MIN(a, b);
    case RP_MASK_OP_MAX:
        return RP_MAX(a, b);
    case RP_MASK_OP_MUL:
        return a * b;
    case RP_MASK_OP_DIV:
        return a / b;
    case RP_MASK_OP_MOD:
        return a % b;
    case RP_MASK_OP_ADD:
        return a + b;
    case RP_MASK_OP_SUB:
        return a - b;
    case RP_MASK_OP_LT:
        return a < b;
    case RP_MASK_OP_LE:
        return a <= b;
    case RP_MASK_OP_GT:
        return a > b;
    case RP_MASK_OP_GE:
        return a >= b;
    case RP_MASK_OP_EQ:
        return a == b;
    default:
        return a != b;
    }
}

/* NAN when it is not folded: non-finite numbers cannot be written as text. */
static float compute_float(enum rp_mask_op op, float a, float b) {
    switch (op) {
    case RP_MASK_OP_MIN:
        return a < b ? a : b;
    case RP_MASK_OP_MAX:
        return a > b ? a : b;
    case RP_MASK_OP_MUL:
        return a * b;
    case RP_MASK_OP_DIV:
        return a / b;
    case RP_MASK_OP_ADD:
        return a + b;
    case RP_MASK_OP_SUB:
        return a - b;
    default:
        return NAN;
    }
}

/* Simplifies an integer operation with one constant operand; RP_MASK_NONE: itself. */
static uint16_t fold_identity(struct fold *f, const struct rp_mask_node *node, uint16_t a,
                              uint16_t b) {
    const struct rp_mask_node *x = &f->nodes[a], *y = &f->nodes[b];
    bool times = node->op == RP_MASK_OP_MUL, plus = node->op == RP_MASK_OP_ADD;
    bool divides = node->op == RP_MASK_OP_DIV, minus = node->op == RP_MASK_OP_SUB;
    if ((times && is_int(x, 1)) || (plus && is_int(x, 0)))
        return b;
    if (((times || divides) && is_int(y, 1)) || ((plus || minus) && is_int(y, 0)))
        return a;
    if ((times && (is_int(x, 0) || is_int(y, 0))) || (node->op == RP_MASK_OP_MOD && is_int(y, 1)))
        return put_int(f, node, 0);
    return RP_MASK_NONE;
}

static uint16_t fold_binary(struct fold *f, const struct rp_mask_node *node, uint16_t a,
                            uint16_t b) {
    const struct rp_mask_node *x = &f->nodes[a], *y = &f->nodes[b];
    enum rp_mask_op op = (enum rp_mask_op)node->op;
    bool real = x->type == RP_MASK_FLOAT;
    if (is_constant(x) && is_constant(y) && real) {
        float value = compute_float(op, x->value.f, y->value.f);
        if (isfinite(value))
            return put_float(f, node, value);
    } else if (is_constant(x) && is_constant(y)) {
        return put_int(f, node, compute_int(op, x->value.i, y->value.i));
    } else if (!real) {
        return fold_identity(f, node, a, b);
    }
    return RP_MASK_NONE;
}

static uint16_t fold_unary(struct fold *f, const struct rp_mask_node *node, uint16_t a) {
    const struct rp_mask_node *x = &f->nodes[a];
    bool real = x->type == RP_MASK_FLOAT, constant = is_constant(x);
    switch (node->op) {
    case RP_MASK_OP_TO_FLOAT:
        return constant ? put_float(f, node, (float)x->value.i) : RP_MASK_NONE;
    case RP_MASK_OP_NEG:
        if (constant)
            return real ? put_float(f, node, -x->value.f) : put_int(f, node, -x->value.i);
        return x->op == RP_MASK_OP_NEG ? x->child[0] : RP_MASK_NONE;
    case RP_MASK_OP_NOT:
        if (constant)
            return put_int(f, node, !x->value.i);
        return x->op == RP_MASK_OP_NOT ? x->child[0] : RP_MASK_NONE;
    case RP_MASK_OP_ABS:
        if (constant && real)
            return put_float(f, node, fabsf(x->value.f));
        return constant ? put_int(f, node, x->value.i < 0 ? -x->value.i : x->value.i)
                        : RP_MASK_NONE;
    default:
        return RP_MASK_NONE; /* tanh, exp, slope: left to the device */
    }
}

static uint16_t fold_tree(struct fold *f, uint16_t index) {
    struct rp_mask_node node = f->from[index];
    uint32_t arity = rp_mask_ops[node.op].arity;
    uint16_t child[3] = {0, 0, 0}, made = RP_MASK_NONE;
    if (node.op == RP_MASK_OP_AND || node.op == RP_MASK_OP_OR)
        return fold_chain(f, index);
    for (uint32_t i = 0; i < arity; i++)
        child[i] = fold_tree(f, node.child[i]);
    if (f->full)
        return 0;
    if (node.op == RP_MASK_OP_LAYER && f->layer >= 0)
        made = put_int(f, &node, f->layer);
    else if (arity == 1)
        made = fold_unary(f, &node, child[0]);
    else if (arity == 2)
        made = fold_binary(f, &node, child[0], child[1]);
    else if (arity == 3 && f->nodes[child[0]].op == RP_MASK_OP_BOOL)
        made = f->nodes[child[0]].value.i ? child[1] : child[2];
    else if (arity == 3 && same_tree(f, child[1], child[2]))
        made = child[1];
    if (made != RP_MASK_NONE)
        return made;
    memcpy(node.child, child, sizeof child);
    return put(f, &node);
}

/* --- The new draft --------------------------------------------------------------------- */

/* RP_MASK_NONE after *err was set. */
static uint16_t emit(const struct fold *f, uint16_t index, uint32_t depth,
                     struct rp_mask_draft *draft, struct rp_error *err) {
    struct rp_mask_node node = f->nodes[index];
    uint16_t child[3] = {0, 0, 0};
    int status = RP_OK;
    if (depth > RP_MASK_DEPTH_MAX) {
        status = rp_error_set(err, RP_STATUS_INVALID, "column %u: nested deeper than %d levels",
                              node.column, RP_MASK_DEPTH_MAX);
        rp_error_hint(err, "take it apart: clauses must all hold");
    }
    for (uint32_t i = 0; i < rp_mask_ops[node.op].arity && status == RP_OK; i++) {
        child[i] = emit(f, node.child[i], depth + 1, draft, err);
        if (child[i] == RP_MASK_NONE)
            return RP_MASK_NONE;
    }
    if (status != RP_OK)
        return RP_MASK_NONE;
    uint16_t made = rp_mask_add_node(draft, (enum rp_mask_op)node.op, (enum rp_mask_type)node.type,
                                     node.column, child);
    if (made == RP_MASK_NONE) {
        status =
            rp_error_set(err, RP_STATUS_INVALID, "column %u: the program has more than %u nodes",
                         node.column, RP_MASK_NODES_MAX);
        rp_error_hint(err, "named blocks count as what they stand for");
        return RP_MASK_NONE;
    }
    draft->nodes[made].value = node.value;
    return made;
}

static int replace(struct fold *f, struct rp_mask_draft *draft, struct rp_error *err) {
    uint16_t roots[1 + RP_MASK_RULES_MAX];
    roots[0] = fold_tree(f, draft->condition);
    for (uint32_t i = 0; i < draft->rule_count; i++)
        roots[1 + i] = fold_tree(f, draft->rules[i]);
    if (f->full)
        return rp_error_set(err, RP_STATUS_INVALID, "column 1: the program is too large");
    draft->node_count = 0;
    draft->condition = emit(f, roots[0], 1, draft, err);
    if (draft->condition == RP_MASK_NONE)
        return RP_STATUS_INVALID;
    for (uint32_t i = 0; i < draft->rule_count; i++) {
        draft->rules[i] = emit(f, roots[1 + i], 1, draft, err);
        if (draft->rules[i] == RP_MASK_NONE)
            return RP_STATUS_INVALID;
    }
    return RP_OK;
}

int rp_mask_fold(struct rp_mask_draft *draft, int64_t layer, struct rp_error *err) {
    struct rp_mask_node from[RP_MASK_NODES_MAX];
    struct fold *f = rp_calloc(1, sizeof *f);
    if (!f)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for a mask program");
    memcpy(from, draft->nodes, draft->node_count * sizeof *from);
    f->from = from;
    f->layer = layer;
    int status = replace(f, draft, err);
    rp_free(f);
    return status;
}
