/* mask_prove.c - proofs over all positions, heads, layers and parameters: nothing overflows, no
 * divisor is 0, and whether a query may see a key after it. */
#include "attention/mask/mask_internal.h"

#include <inttypes.h>

uint32_t rp_mask_extent(const struct rp_mask_limits *limits) {
    uint32_t step = RP_MASK_LENGTH_STEP;
    return RP_MIN(RP_CEIL_DIV(limits->length, step) * step, RP_MASK_LENGTH_MAX);
}

/* --- Overflow and divisors ------------------------------------------------------------- */

static struct rp_mask_range leaf_range(const struct rp_mask_node *node,
                                       const struct rp_mask_limits *limits,
                                       const struct rp_mask_param *params) {
    switch (node->op) {
    case RP_MASK_OP_Q:
    case RP_MASK_OP_KV:
        return (struct rp_mask_range){0, (int64_t)rp_mask_extent(limits) - 1};
    case RP_MASK_OP_H:
        return (struct rp_mask_range){0, (int64_t)limits->heads - 1};
    case RP_MASK_OP_LAYER:
        return (struct rp_mask_range){0, (int64_t)limits->layers - 1};
    case RP_MASK_OP_PARAM:
        return (struct rp_mask_range){params[node->value.i].min, params[node->value.i].max};
    default:
        return rp_mask_range_of(node, NULL, NULL, NULL);
    }
}

static bool has_zero(const struct rp_mask_range *range) { return range->lo <= 0 && range->hi >= 0; }

static bool refuse_divisor(const struct rp_mask_draft *draft, const struct rp_mask_node *node,
                           uint16_t divisor, const struct rp_mask_range *range,
                           struct rp_error *err) {
    const struct rp_mask_node *d = &draft->nodes[divisor];
    int status;
    if (range->lo == range->hi)
        status = rp_error_set(err, RP_STATUS_INVALID, "column %u: the divisor of %s is 0",
                              node->column, rp_mask_ops[node->op].text);
    else
        status =
            rp_error_set(err, RP_STATUS_INVALID,
                         "column %u: the divisor of %s may be 0: it lies in %" PRId64 "..%" PRId64,
                         node->column, rp_mask_ops[node->op].text, range->lo, range->hi);
    if (d->op == RP_MASK_OP_TO_FLOAT)
        d = &draft->nodes[d->child[0]];
    if (d->op == RP_MASK_OP_PARAM)
        rp_error_hint(err, "declare the parameter above 0, as in `param %s = %d in 1..%d`",
                      draft->params[d->value.i].name, RP_MAX(draft->params[d->value.i].value, 1),
                      RP_MAX(draft->params[d->value.i].max, 1));
    else
        rp_error_hint(err, "max(..., 1) keeps it above 0");
    return status == RP_OK;
}

static bool refuse_overflow(const struct rp_mask_node *node, const struct rp_mask_range *range,
                            struct rp_error *err) {
    int status = rp_error_set(
        err, RP_STATUS_INVALID,
        "column %u: the result of %s may not fit into 32 bits: it lies in %" PRId64 "..%" PRId64,
        node->column, rp_mask_ops[node->op].text, range->lo, range->hi);
    rp_error_hint(err, "give parameters a range, as in `param w = 256 in 1..8192`, divide before "
                       "multiplying, or use min()");
    return status == RP_OK;
}

static bool refuse_slope(const struct rp_mask_draft *draft, const struct rp_mask_node *node,
                         struct rp_error *err) {
    int status;
    if (draft->limits.heads > RP_MASK_SLOPE_HEADS)
        status = rp_error_set(err, RP_STATUS_INVALID, "column %u: slope() knows %d heads, not %u",
                              node->column, RP_MASK_SLOPE_HEADS, draft->limits.heads);
    else
        status = rp_error_set(err, RP_STATUS_INVALID,
                              "column %u: the argument of slope() may not be a head, 0 to %u",
                              node->column, draft->limits.heads - 1);
    rp_error_hint(err, "write slope(h)");
    return status == RP_OK;
}

/* A soft cap divides by its argument; 0 or less would invert scores. */
static bool check_float_divisor(const struct rp_mask_draft *draft, const struct rp_mask_node *node,
                                const struct rp_mask_range *ranges, struct rp_error *err) {
    uint16_t divisor = node->child[1];
    const struct rp_mask_node *d = &draft->nodes[divisor];
    struct rp_mask_range zero = {0, 0};
    if (d->op == RP_MASK_OP_FLOAT && d->value.f == 0.0f)
        return refuse_divisor(draft, node, divisor, &zero, err);
    if (d->op == RP_MASK_OP_TO_FLOAT && has_zero(&ranges[d->child[0]]))
        return refuse_divisor(draft, node, divisor, &ranges[d->child[0]], err);
    return true;
}

static bool check_node(const struct rp_mask_draft *draft, const struct rp_mask_node *node,
                       const struct rp_mask_range *ranges, const struct rp_mask_range *own,
                       struct rp_error *err) {
    const struct rp_mask_range *a = &ranges[node->child[0]], *b = &ranges[node->child[1]];
    if (node->op == RP_MASK_OP_DIV && node->type == RP_MASK_FLOAT)
        return check_float_divisor(draft, node, ranges, err);
    if ((node->op == RP_MASK_OP_DIV || node->op == RP_MASK_OP_MOD) && has_zero(b))
        return refuse_divisor(draft, node, node->child[1], b, err);
    if (node->op == RP_MASK_OP_SLOPE &&
        (a->lo < 0 || a->hi >= draft->limits.heads || draft->limits.heads > RP_MASK_SLOPE_HEADS))
        return refuse_slope(draft, node, err);
    if (node->type == RP_MASK_INT && (own->lo < -RP_MASK_INT_MAX || own->hi > RP_MASK_INT_MAX))
        return refuse_overflow(node, own, err);
    return true;
}

bool rp_mask_prove(const struct rp_mask_draft *draft, struct rp_error *err) {
    struct rp_mask_range ranges[RP_MASK_NODES_MAX];
    static const struct rp_mask_range condition = {0, 1};
    for (uint32_t i = 0; i < draft->node_count; i++) {
        const struct rp_mask_node *node = &draft->nodes[i];
        const struct rp_mask_range *a = &ranges[node->child[0]], *b = &ranges[node->child[1]];
        if (rp_mask_ops[node->op].arity == 0)
            ranges[i] = leaf_range(node, &draft->limits, draft->params);
        else if (node->type == RP_MASK_BOOL && draft->nodes[node->child[0]].type == RP_MASK_FLOAT)
            ranges[i] = condition; /* floats are not tracked */
        else
            ranges[i] = rp_mask_range_of(node, a, b, &ranges[node->child[2]]);
        if (!check_node(draft, node, ranges, &ranges[i], err))
            return false;
    }
    return true;
}

/* --- Linear forms ---------------------------------------------------------------------- */

static const struct rp_mask_form nothing_known = {0, 0, INT64_MIN, INT64_MAX};

static bool is_known(const struct rp_mask_form *form) { return form->lo != INT64_MIN; }

/* x + factor * y; unknown when that overflows. */
static struct rp_mask_form combine(const struct rp_mask_form *x, int64_t factor,
                                   const struct rp_mask_form *y) {
    struct rp_mask_form out;
    int64_t part[4];
    bool flips = factor < 0;
    if (!is_known(x) || !is_known(y) || __builtin_mul_overflow(y->a, factor, &part[0]) ||
        __builtin_mul_overflow(y->b, factor, &part[1]) ||
        __builtin_mul_overflow(flips ? y->hi : y->lo, factor, &part[2]) ||
        __builtin_mul_overflow(flips ? y->lo : y->hi, factor, &part[3]) ||
        __builtin_add_overflow(x->a, part[0], &out.a) ||
        __builtin_add_overflow(x->b, part[1], &out.b) ||
        __builtin_add_overflow(x->lo, part[2], &out.lo) ||
        __builtin_add_overflow(x->hi, part[3], &out.hi))
        return nothing_known;
    return out;
}

/* Over the pairs with the key after the query, 0 <= q < kv < extent: the least and the largest
 * value of a linear form are at the corners of that triangle. */
static struct rp_mask_range bounds(const struct rp_mask_form *form, int64_t extent) {
    const int64_t corner[3][2] = {{0, 1}, {0, extent - 1}, {extent - 2, extent - 1}};
    struct rp_mask_range out = {INT64_MAX, INT64_MIN};
    for (int i = 0; i < 3; i++) {
        int64_t q, kv, sum, lo, hi;
        if (!is_known(form) || __builtin_mul_overflow(form->a, corner[i][0], &q) ||
            __builtin_mul_overflow(form->b, corner[i][1], &kv) ||
            __builtin_add_overflow(q, kv, &sum) || __builtin_add_overflow(sum, form->lo, &lo) ||
            __builtin_add_overflow(sum, form->hi, &hi))
            return (struct rp_mask_range){INT64_MIN, INT64_MAX};
        out.lo = RP_MIN(out.lo, lo);
        out.hi = RP_MAX(out.hi, hi);
    }
    return out;
}

static bool is_comparison(const struct rp_mask_node *node, const struct rp_mask_node *nodes) {
    return node->op >= RP_MASK_OP_LT && node->op <= RP_MASK_OP_NE &&
           nodes[node->child[0]].type == RP_MASK_INT;
}

/* The linear form of node i, from those of its children. */
static struct rp_mask_form form_of(const struct rp_mask *mask, uint32_t i,
                                   const struct rp_mask_form *forms) {
    const struct rp_mask_node *node = &mask->nodes[i];
    const struct rp_mask_form zero = {0, 0, 0, 0};
    const struct rp_mask_form *x = &forms[node->child[0]], *y = &forms[node->child[1]];
    struct rp_mask_range r[3];
    switch (node->op) {
    case RP_MASK_OP_Q:
        return (struct rp_mask_form){1, 0, 0, 0};
    case RP_MASK_OP_KV:
        return (struct rp_mask_form){0, 1, 0, 0};
    case RP_MASK_OP_ADD:
        return combine(x, 1, y);
    case RP_MASK_OP_SUB:
        return combine(x, -1, y);
    case RP_MASK_OP_NEG:
        return combine(&zero, -1, x);
    case RP_MASK_OP_MUL:
        if (mask->nodes[node->child[0]].op == RP_MASK_OP_INT)
            return combine(&zero, x->lo, y);
        if (mask->nodes[node->child[1]].op == RP_MASK_OP_INT)
            return combine(&zero, y->lo, x);
        break;
    default:
        break;
    }
    struct rp_mask_range out;
    if (rp_mask_ops[node->op].arity == 0) {
        out = leaf_range(node, &mask->limits, mask->params);
    } else if (is_comparison(node, mask->nodes)) {
        /* Compared as their difference, so that common terms cancel. */
        struct rp_mask_form difference = combine(x, -1, y);
        r[0] = bounds(&difference, mask->extent);
        r[1] = (struct rp_mask_range){0, 0};
        out = rp_mask_range_of(node, &r[0], &r[1], &r[1]);
    } else {
        for (uint32_t k = 0; k < rp_mask_ops[node->op].arity; k++)
            r[k] = bounds(&forms[node->child[k]], mask->extent);
        out = rp_mask_range_of(node, &r[0], &r[1], &r[2]);
    }
    return (struct rp_mask_form){0, 0, out.lo, out.hi};
}

bool rp_mask_prove_causal(const struct rp_mask *mask) {
    struct rp_mask_form forms[RP_MASK_NODES_MAX];
    for (uint32_t i = 0; i <= mask->roots[0]; i++)
        forms[i] = form_of(mask, i, forms);
    struct rp_mask_range root = bounds(&forms[mask->roots[0]], mask->extent);
    return root.hi == 0;
}

/* Adds one comparison that must hold; false when it does not compare fully known linear forms. */
static bool add_bound(const struct rp_mask *mask, uint16_t index, const struct rp_mask_form *forms,
                      struct rp_mask_bound bounds[RP_MASK_BOUNDS_MAX], uint32_t *count) {
    const struct rp_mask_node *node = &mask->nodes[index];
    if (!is_comparison(node, mask->nodes) || node->op == RP_MASK_OP_EQ ||
        node->op == RP_MASK_OP_NE || *count == RP_MASK_BOUNDS_MAX)
        return false;
    bool flips = node->op == RP_MASK_OP_GT || node->op == RP_MASK_OP_GE;
    bool strict = node->op == RP_MASK_OP_LT || node->op == RP_MASK_OP_GT;
    struct rp_mask_form form = combine(&forms[node->child[flips]], -1, &forms[node->child[!flips]]);
    if (!is_known(&form) || form.lo != form.hi || form.lo > RP_MASK_INT_MAX)
        return false;
    bounds[(*count)++] = (struct rp_mask_bound){form.a, form.b, form.lo + strict};
    return true;
}

bool rp_mask_linear_bounds(const struct rp_mask *mask,
                           struct rp_mask_bound bounds[RP_MASK_BOUNDS_MAX], uint32_t *out_count) {
    struct rp_mask_form forms[RP_MASK_NODES_MAX];
    uint16_t waiting[RP_MASK_STACK_MAX];
    uint32_t top = 0;
    for (uint32_t i = 0; i <= mask->roots[0]; i++)
        forms[i] = form_of(mask, i, forms);
    *out_count = 0;
    waiting[top++] = mask->roots[0];
    while (top > 0) {
        uint16_t index = waiting[--top];
        const struct rp_mask_node *node = &mask->nodes[index];
        if (node->op == RP_MASK_OP_AND) {
            waiting[top++] = node->child[1];
            waiting[top++] = node->child[0];
        } else if (!add_bound(mask, index, forms, bounds, out_count)) {
            return false;
        }
    }
    return true;
}
