/* mask_range.c - interval arithmetic for one operation, used by proofs and classification.
 *
 * The interval of a result contains every value that it can have when its operands are within
 * theirs. Operations are monotone: narrower operands never give a wider result, so what is proved
 * for all positions holds in every tile. */
#include "attention/mask/mask_internal.h"

static int64_t add(int64_t a, int64_t b) {
    int64_t out;
    if (!__builtin_add_overflow(a, b, &out))
        return out;
    return a > 0 ? INT64_MAX : INT64_MIN;
}

static int64_t negative(int64_t a) { return a == INT64_MIN ? INT64_MAX : -a; }

static int64_t multiply(int64_t a, int64_t b) {
    int64_t out;
    if (!__builtin_mul_overflow(a, b, &out))
        return out;
    return (a > 0) == (b > 0) ? INT64_MAX : INT64_MIN;
}

static const struct rp_mask_range anything = {INT64_MIN, INT64_MAX};

/* The hull of f at the four corners; both operations are monotone between them. */
static struct rp_mask_range corners(const struct rp_mask_range *a, const struct rp_mask_range *b,
                                    int64_t (*f)(int64_t, int64_t)) {
    int64_t all[4] = {f(a->lo, b->lo), f(a->lo, b->hi), f(a->hi, b->lo), f(a->hi, b->hi)};
    struct rp_mask_range out = {all[0], all[0]};
    for (int i = 1; i < (RP_MASK_MUTATED(TWO_CORNERS) ? 2 : 4); i++) {
        out.lo = RP_MIN(out.lo, all[i]);
        out.hi = RP_MAX(out.hi, all[i]);
    }
    return out;
}

static int64_t quotient(int64_t a, int64_t b) { return b == -1 ? negative(a) : a / b; }

static struct rp_mask_range divide(const struct rp_mask_range *a, const struct rp_mask_range *b) {
    if (b->lo <= 0 && b->hi >= 0)
        return anything;
    return corners(a, b, quotient);
}

/* The sign is the dividend's, as in C; |result| < |divisor| and <= |dividend|. */
static struct rp_mask_range remainder_of(const struct rp_mask_range *a,
                                         const struct rp_mask_range *b) {
    if (b->lo <= 0 && b->hi >= 0)
        return anything;
    int64_t most = RP_MAX(negative(b->lo), b->hi) - 1;
    bool same_quotient = b->lo == b->hi && quotient(a->lo, b->lo) == quotient(a->hi, b->lo);
    if (same_quotient || (b->lo == b->hi && RP_MASK_MUTATED(MOD_WITHOUT_WRAP))) {
        int64_t d = b->lo == -1 ? 1 : b->lo;
        return (struct rp_mask_range){a->lo % d, a->hi % d};
    }
    return (struct rp_mask_range){a->lo >= 0 ? 0 : RP_MAX(a->lo, -most),
                                  a->hi <= 0 ? 0 : RP_MIN(a->hi, most)};
}

static struct rp_mask_range absolute(const struct rp_mask_range *a) {
    if (RP_MASK_MUTATED(ABS_OF_ENDS) && a->lo < 0 && a->hi > 0)
        return (struct rp_mask_range){RP_MIN(-a->lo, a->hi), RP_MAX(-a->lo, a->hi)};
    int64_t low = a->lo >= 0 ? a->lo : a->hi <= 0 ? negative(a->hi) : 0;
    return (struct rp_mask_range){low, RP_MAX(a->hi, negative(a->lo))};
}

static struct rp_mask_range truth(bool always, bool never) {
    return (struct rp_mask_range){always, !never};
}

static struct rp_mask_range less(const struct rp_mask_range *a, const struct rp_mask_range *b) {
    if (RP_MASK_MUTATED(LESS_IS_LESS_EQUAL))
        return truth(a->hi <= b->lo, a->lo > b->hi);
    return truth(a->hi < b->lo, a->lo >= b->hi);
}

static struct rp_mask_range less_equal(const struct rp_mask_range *a,
                                       const struct rp_mask_range *b) {
    return truth(a->hi <= b->lo, a->lo > b->hi);
}

static struct rp_mask_range equal(const struct rp_mask_range *a, const struct rp_mask_range *b) {
    bool single = (a->lo == a->hi && b->lo == b->hi) || RP_MASK_MUTATED(EQUAL_ENDS);
    return truth(single && a->lo == b->lo && a->hi == b->hi, a->hi < b->lo || b->hi < a->lo);
}

static struct rp_mask_range opposite(struct rp_mask_range a) {
    return (struct rp_mask_range){1 - a.hi, 1 - a.lo};
}

static struct rp_mask_range both(const struct rp_mask_range *a, const struct rp_mask_range *b) {
    bool open = a->lo < a->hi && b->lo < b->hi;
    int64_t hi = RP_MASK_MUTATED(AND_OF_TWO_PARTIAL) && open ? 0 : RP_MIN(a->hi, b->hi);
    return (struct rp_mask_range){RP_MIN(a->lo, b->lo), hi};
}

static struct rp_mask_range either(const struct rp_mask_range *a, const struct rp_mask_range *b) {
    bool whole = RP_MASK_MUTATED(OR_OF_TWO_PARTIAL) && a->hi && b->hi;
    return (struct rp_mask_range){whole ? 1 : RP_MAX(a->lo, b->lo), RP_MAX(a->hi, b->hi)};
}

struct rp_mask_range rp_mask_range_of(const struct rp_mask_node *node,
                                      const struct rp_mask_range *a, const struct rp_mask_range *b,
                                      const struct rp_mask_range *c) {
    switch (node->op) {
    case RP_MASK_OP_INT:
    case RP_MASK_OP_BOOL:
        return (struct rp_mask_range){node->value.i, node->value.i};
    case RP_MASK_OP_NEG:
        return (struct rp_mask_range){negative(a->hi), negative(a->lo)};
    case RP_MASK_OP_NOT:
        return opposite(*a);
    case RP_MASK_OP_ABS:
        return absolute(a);
    case RP_MASK_OP_AND:
        return both(a, b);
    case RP_MASK_OP_MIN:
        return (struct rp_mask_range){RP_MIN(a->lo, b->lo), RP_MIN(a->hi, b->hi)};
    case RP_MASK_OP_MAX:
        return (struct rp_mask_range){RP_MAX(a->lo, b->lo), RP_MAX(a->hi, b->hi)};
    case RP_MASK_OP_OR:
        return either(a, b);
    case RP_MASK_OP_MUL:
        return corners(a, b, multiply);
    case RP_MASK_OP_DIV:
        return divide(a, b);
    case RP_MASK_OP_MOD:
        return remainder_of(a, b);
    case RP_MASK_OP_ADD:
        return (struct rp_mask_range){add(a->lo, b->lo), add(a->hi, b->hi)};
    case RP_MASK_OP_SUB:
        return (struct rp_mask_range){add(a->lo, negative(b->hi)), add(a->hi, negative(b->lo))};
    case RP_MASK_OP_LT:
        return less(a, b);
    case RP_MASK_OP_LE:
        return less_equal(a, b);
    case RP_MASK_OP_GT:
        return less(b, a);
    case RP_MASK_OP_GE:
        return less_equal(b, a);
    case RP_MASK_OP_EQ:
        return equal(a, b);
    case RP_MASK_OP_NE:
        return opposite(equal(a, b));
    case RP_MASK_OP_SELECT:
        if (a->lo == a->hi || RP_MASK_MUTATED(FIRST_BRANCH))
            return a->hi ? *b : *c;
        return (struct rp_mask_range){RP_MIN(b->lo, c->lo), RP_MAX(b->hi, c->hi)};
    default:
        return anything;
    }
}
