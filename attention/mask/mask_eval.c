/* mask_eval.c - evaluates a program on one pair, and node by node on a block of keys. Both iterate
 * over the nodes of a root with a stack of values; nothing can fail, so both branches of ?: and
 * both sides of && are computed. */
#include "attention/mask/mask_internal.h"

#include <math.h>

union value {
    int32_t i;
    float f;
};

static void check_pair(const struct rp_mask *mask, const struct rp_mask_pair *pair,
                       uint32_t count) {
    RP_ASSERT(pair->q >= 0 && (uint32_t)pair->q < mask->extent);
    RP_ASSERT(pair->kv >= 0 && count <= mask->extent && (uint32_t)pair->kv <= mask->extent - count);
    RP_ASSERT(pair->h >= 0 && (uint32_t)pair->h < mask->limits.heads);
}

static union value of_int(int64_t i) { return (union value){.i = (int32_t)i}; }
static union value of_float(float f) { return (union value){.f = f}; }

static union value leaf(const struct rp_mask_node *node, const struct rp_mask_pair *pair,
                        const int32_t *params, float score) {
    switch (node->op) {
    case RP_MASK_OP_Q:
        return of_int(pair->q);
    case RP_MASK_OP_KV:
        return of_int(pair->kv);
    case RP_MASK_OP_H:
        return of_int(pair->h);
    case RP_MASK_OP_LAYER:
        return of_int(pair->layer);
    case RP_MASK_OP_PARAM:
        return of_int(params[node->value.i]);
    case RP_MASK_OP_SCORE:
        return of_float(score);
    case RP_MASK_OP_FLOAT:
        return of_float(node->value.f);
    default:
        return of_int(node->value.i);
    }
}

static union value unary(const struct rp_mask *mask, const struct rp_mask_node *node,
                         union value a) {
    bool real = node->type == RP_MASK_FLOAT;
    switch (node->op) {
    case RP_MASK_OP_TO_FLOAT:
        return of_float((float)a.i);
    case RP_MASK_OP_NEG:
        return real ? of_float(-a.f) : of_int(-a.i);
    case RP_MASK_OP_NOT:
        return of_int(!a.i);
    case RP_MASK_OP_ABS:
        return real ? of_float(fabsf(a.f)) : of_int(a.i < 0 ? -a.i : a.i);
    case RP_MASK_OP_TANH:
        return of_float(tanhf(a.f));
    case RP_MASK_OP_EXP:
        return of_float(expf(a.f));
    default:
        return of_float(mask->slopes[a.i]);
    }
}

static union value binary_int(enum rp_mask_op op, int32_t a, int32_t b) {
    switch (op) {
    case RP_MASK_OP_MIN:
        return of_int(a < b ? a : b);
    case RP_MASK_OP_MAX:
        return of_int(a > b ? a : b);
    case RP_MASK_OP_MUL:
        return of_int(a * b);
    case RP_MASK_OP_DIV:
        return of_int(a / b);
    case RP_MASK_OP_MOD:
        return of_int(a % b);
    case RP_MASK_OP_ADD:
        return of_int(a + b);
    case RP_MASK_OP_SUB:
        return of_int(a - b);
    case RP_MASK_OP_LT:
        return of_int(a < b);
    case RP_MASK_OP_LE:
        return of_int(a <= b);
    case RP_MASK_OP_GT:
        return of_int(a > b);
    case RP_MASK_OP_GE:
        return of_int(a >= b);
    case RP_MASK_OP_EQ:
        return of_int(a == b);
    case RP_MASK_OP_NE:
        return of_int(a != b);
    case RP_MASK_OP_AND:
        return of_int(a & b);
    default:
        return of_int(a | b);
    }
}

static union value binary_float(enum rp_mask_op op, float a, float b) {
    switch (op) {
    case RP_MASK_OP_MIN:
        return of_float(a < b ? a : b);
    case RP_MASK_OP_MAX:
        return of_float(a > b ? a : b);
    case RP_MASK_OP_MUL:
        return of_float(a * b);
    case RP_MASK_OP_DIV:
        return of_float(a / b);
    case RP_MASK_OP_ADD:
        return of_float(a + b);
    case RP_MASK_OP_SUB:
        return of_float(a - b);
    case RP_MASK_OP_LT:
        return of_int(a < b);
    case RP_MASK_OP_LE:
        return of_int(a <= b);
    case RP_MASK_OP_GT:
        return of_int(a > b);
    case RP_MASK_OP_GE:
        return of_int(a >= b);
    case RP_MASK_OP_EQ:
        return of_int(a == b);
    default:
        return of_int(a != b);
    }
}

static union value run(const struct rp_mask *mask, uint32_t root, const struct rp_mask_pair *pair,
                       const int32_t *params, float score) {
    union value stack[RP_MASK_STACK_MAX];
    uint32_t top = 0;
    for (uint32_t i = rp_mask_root_begin(mask, root); i <= mask->roots[root]; i++) {
        const struct rp_mask_node *node = &mask->nodes[i];
        uint32_t arity = rp_mask_ops[node->op].arity;
        const union value *arg = stack + (top -= arity);
        enum rp_mask_op op = (enum rp_mask_op)node->op;
        if (arity == 0)
            stack[top++] = leaf(node, pair, params, score);
        else if (arity == 1)
            stack[top++] = unary(mask, node, arg[0]);
        else if (arity == 3)
            stack[top++] = arg[0].i ? arg[1] : arg[2];
        else if (mask->nodes[node->child[0]].type == RP_MASK_FLOAT)
            stack[top++] = binary_float(op, arg[0].f, arg[1].f);
        else
            stack[top++] = binary_int(op, arg[0].i, arg[1].i);
    }
    return stack[0];
}

bool rp_mask_sees(const struct rp_mask *mask, const struct rp_mask_pair *pair,
                  const int32_t *params) {
    check_pair(mask, pair, 1);
    return run(mask, 0, pair, params, 0.0f).i != 0;
}

float rp_mask_score(const struct rp_mask *mask, const struct rp_mask_pair *pair,
                    const int32_t *params, float score) {
    check_pair(mask, pair, 1);
    for (uint32_t i = 1; i <= mask->rule_count; i++)
        score = run(mask, i, pair, params, score).f;
    return score;
}

/* --- A block of keys ------------------------------------------------------------------- */

/* One value for each key of the block. */
union lane {
    int32_t i[RP_MASK_KEYS_MAX];
    float f[RP_MASK_KEYS_MAX];
};

/* Always computes the whole block, so that the compiler unrolls it; lanes after `count` are
 * ignored. Divisors there are those of the block, or proved nonzero as well. */
#define EACH(statement)                                                                            \
    for (uint32_t k = 0; k < RP_MASK_KEYS_MAX; k++)                                                \
        statement;                                                                                 \
    break

struct block {
    const struct rp_mask *mask;
    const struct rp_mask_pair *pair;
    const int32_t *params;
    const float *scores;
    uint32_t count;
};

static void leaf_block(const struct block *b, const struct rp_mask_node *node, union lane *out) {
    float none = 0.0f;
    switch (node->op) {
    case RP_MASK_OP_KV: {
        /* Lanes after the block repeat its last key, so that no position outside the request is
         * evaluated. */
        int32_t first = b->pair->kv, last = (int32_t)b->count - 1;
        EACH(out->i[k] = first + ((int32_t)k < last ? (int32_t)k : last));
    }
    case RP_MASK_OP_SCORE:
        EACH(out->f[k] = k < b->count ? b->scores[k] : none);
    default: {
        union value value = leaf(node, b->pair, b->params, none);
        EACH(out->i[k] = value.i);
    }
    }
}

static void unary_block(const struct block *b, const struct rp_mask_node *node, union lane *x) {
    bool real = node->type == RP_MASK_FLOAT;
    switch (node->op) {
    case RP_MASK_OP_TO_FLOAT:
        EACH(x->f[k] = (float)x->i[k]);
    case RP_MASK_OP_NOT:
        EACH(x->i[k] = !x->i[k]);
    case RP_MASK_OP_NEG:
        if (real) {
            EACH(x->f[k] = -x->f[k]);
        } else {
            EACH(x->i[k] = -x->i[k]);
        }
    case RP_MASK_OP_ABS:
        if (real) {
            EACH(x->f[k] = fabsf(x->f[k]));
        } else {
            EACH(x->i[k] = x->i[k] < 0 ? -x->i[k] : x->i[k]);
        }
    default:
        for (uint32_t k = 0; k < b->count; k++)
            x->f[k] = node->op == RP_MASK_OP_TANH  ? tanhf(x->f[k])
                      : node->op == RP_MASK_OP_EXP ? expf(x->f[k])
                                                   : b->mask->slopes[x->i[k]];
    }
}

static void binary_int_block(enum rp_mask_op op, union lane *x, const union lane *y) {
    switch (op) {
    case RP_MASK_OP_MIN:
        EACH(x->i[k] = RP_MIN(x->i[k], y->i[k]));
    case RP_MASK_OP_MAX:
        EACH(x->i[k] = RP_MAX(x->i[k], y->i[k]));
    case RP_MASK_OP_MUL:
        EACH(x->i[k] = x->i[k] * y->i[k]);
    case RP_MASK_OP_DIV:
        EACH(x->i[k] = x->i[k] / y->i[k]);
    case RP_MASK_OP_MOD:
        EACH(x->i[k] = x->i[k] % y->i[k]);
    case RP_MASK_OP_ADD:
        EACH(x->i[k] = x->i[k] + y->i[k]);
    case RP_MASK_OP_SUB:
        EACH(x->i[k] = x->i[k] - y->i[k]);
    case RP_MASK_OP_LT:
        EACH(x->i[k] = x->i[k] < y->i[k]);
    case RP_MASK_OP_LE:
        EACH(x->i[k] = x->i[k] <= y->i[k]);
    case RP_MASK_OP_GT:
        EACH(x->i[k] = x->i[k] > y->i[k]);
    case RP_MASK_OP_GE:
        EACH(x->i[k] = x->i[k] >= y->i[k]);
    case RP_MASK_OP_EQ:
        EACH(x->i[k] = x->i[k] == y->i[k]);
    case RP_MASK_OP_NE:
        EACH(x->i[k] = x->i[k] != y->i[k]);
    case RP_MASK_OP_AND:
        EACH(x->i[k] = x->i[k] & y->i[k]);
    default:
        EACH(x->i[k] = x->i[k] | y->i[k]);
    }
}

static void binary_float_block(enum rp_mask_op op, union lane *x, const union lane *y) {
    switch (op) {
    case RP_MASK_OP_MIN:
        EACH(x->f[k] = x->f[k] < y->f[k] ? x->f[k] : y->f[k]);
    case RP_MASK_OP_MAX:
        EACH(x->f[k] = x->f[k] > y->f[k] ? x->f[k] : y->f[k]);
    case RP_MASK_OP_MUL:
        EACH(x->f[k] = x->f[k] * y->f[k]);
    case RP_MASK_OP_DIV:
        EACH(x->f[k] = x->f[k] / y->f[k]);
    case RP_MASK_OP_ADD:
        EACH(x->f[k] = x->f[k] + y->f[k]);
    case RP_MASK_OP_SUB:
        EACH(x->f[k] = x->f[k] - y->f[k]);
    default:
        EACH(x->i[k] = binary_float(op, x->f[k], y->f[k]).i);
    }
}

static void select_block(union lane *x, const union lane *yes, const union lane *no) {
    for (uint32_t k = 0; k < RP_MASK_KEYS_MAX; k++)
        x->i[k] = x->i[k] ? yes->i[k] : no->i[k];
}

/* The root's values are in stack[0]. */
static void run_block(const struct block *b, uint32_t root, union lane *stack) {
    const struct rp_mask *mask = b->mask;
    uint32_t top = 0;
    for (uint32_t i = rp_mask_root_begin(mask, root); i <= mask->roots[root]; i++) {
        const struct rp_mask_node *node = &mask->nodes[i];
        uint32_t arity = rp_mask_ops[node->op].arity;
        union lane *arg = stack + (top -= arity);
        enum rp_mask_op op = (enum rp_mask_op)node->op;
        if (arity == 0)
            leaf_block(b, node, arg);
        else if (arity == 1)
            unary_block(b, node, arg);
        else if (arity == 3)
            select_block(arg, arg + 1, arg + 2);
        else if (mask->nodes[node->child[0]].type == RP_MASK_FLOAT)
            binary_float_block(op, arg, arg + 1);
        else
            binary_int_block(op, arg, arg + 1);
        top++;
    }
}

void rp_mask_sees_keys(const struct rp_mask *mask, const struct rp_mask_pair *pair,
                       const int32_t *params, uint32_t count, bool *seen) {
    union lane stack[RP_MASK_STACK_MAX];
    struct block b = {mask, pair, params, NULL, count};
    RP_ASSERT(count > 0 && count <= RP_MASK_KEYS_MAX);
    check_pair(mask, pair, count);
    run_block(&b, 0, stack);
    for (uint32_t k = 0; k < count; k++)
        seen[k] = stack[0].i[k] != 0;
}

void rp_mask_score_keys(const struct rp_mask *mask, const struct rp_mask_pair *pair,
                        const int32_t *params, uint32_t count, float *scores) {
    union lane stack[RP_MASK_STACK_MAX];
    struct block b = {mask, pair, params, scores, count};
    RP_ASSERT(count > 0 && count <= RP_MASK_KEYS_MAX);
    check_pair(mask, pair, count);
    for (uint32_t i = 1; i <= mask->rule_count; i++) {
        run_block(&b, i, stack);
        for (uint32_t k = 0; k < count; k++)
            scores[k] = stack[0].f[k];
    }
}
