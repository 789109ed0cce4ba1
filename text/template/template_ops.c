/* Python's operators on values: truth, equality, order, arithmetic, membership, subscripts. */
#include "text/template/template_internal.h"

#include <math.h>
#include <string.h>

bool rp_tv_truth(struct rp_tv v) {
    switch (v.type) {
    case RP_TV_UNDEFINED:
    case RP_TV_NONE:
        return false;
    case RP_TV_BOOL:
        return v.u.b;
    case RP_TV_INT:
        return v.u.i != 0;
    case RP_TV_FLOAT:
        return v.u.f != 0;
    case RP_TV_STRING:
        return v.len > 0;
    case RP_TV_DICT:
        return v.u.dict->count > 0;
    case RP_TV_GENERATOR:
        return true;
    default:
        return !rp_tv_is_seq(v) || v.u.seq->count > 0;
    }
}

static bool equal_seqs(struct rp_trender *r, const struct rp_tseq *a, const struct rp_tseq *b) {
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (!rp_tv_equal(r, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool equal_dicts(struct rp_trender *r, const struct rp_tdict *a, const struct rp_tdict *b) {
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        const struct rp_tv *other = rp_tdict_get(b, a->entries[i].key);
        if (!other || !rp_tv_equal(r, a->entries[i].value, *other))
            return false;
    }
    return true;
}

static bool equal_deep(struct rp_trender *r, struct rp_tv a, struct rp_tv b) {
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case RP_TV_UNDEFINED:
    case RP_TV_NONE:
        return true;
    case RP_TV_LIST:
    case RP_TV_TUPLE:
    case RP_TV_RANGE:
    case RP_TV_DICT_ITEMS:
    case RP_TV_DICT_KEYS:
        return a.u.seq == b.u.seq || equal_seqs(r, a.u.seq, b.u.seq);
    case RP_TV_DICT:
        return a.u.dict == b.u.dict || equal_dicts(r, a.u.dict, b.u.dict);
    case RP_TV_FUNCTION:
        return a.sub == b.sub;
    case RP_TV_METHOD:
        return a.sub == b.sub && rp_tv_equal(r, *a.u.self, *b.u.self);
    default:
        return a.u.seq == b.u.seq; /* identity */
    }
}

bool rp_tv_equal(struct rp_trender *r, struct rp_tv a, struct rp_tv b) {
    if (a.type == RP_TV_STRING && b.type == RP_TV_STRING)
        return a.len == b.len && rp_render_charge_bytes(r, a.len) &&
               memcmp(a.u.s, b.u.s, a.len) == 0;
    if (rp_tv_is_integer(a) && rp_tv_is_integer(b))
        return rp_tv_integer(a) == rp_tv_integer(b);
    if (rp_tv_is_number(a) && rp_tv_is_number(b))
        return rp_tv_number(a) == rp_tv_number(b);
    if (!rp_render_enter(r))
        return false;
    bool equal = equal_deep(r, a, b);
    rp_render_leave(r);
    return equal && !r->failed;
}

static int order_bytes(struct rp_tv a, struct rp_tv b) {
    int order = memcmp(a.u.s, b.u.s, RP_MIN(a.len, b.len)); /* UTF-8 sorts as its code points */
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int order_seqs(struct rp_trender *r, struct rp_tv a, struct rp_tv b, const char *op) {
    const struct rp_tseq *x = a.u.seq, *y = b.u.seq;
    int order = 0;
    if (!rp_render_enter(r))
        return 0;
    size_t i = 0;
    while (i < x->count && i < y->count && !r->failed && rp_tv_equal(r, x->items[i], y->items[i]))
        i++;
    if (i < x->count && i < y->count)
        order = rp_tv_order(r, x->items[i], y->items[i], op);
    else
        order = (x->count > y->count) - (x->count < y->count);
    rp_render_leave(r);
    return order;
}

int rp_tv_order(struct rp_trender *r, struct rp_tv a, struct rp_tv b, const char *op) {
    if (a.type == RP_TV_STRING && b.type == RP_TV_STRING) {
        (void)rp_render_charge_bytes(r, RP_MIN(a.len, b.len));
        return order_bytes(a, b);
    }
    if (rp_tv_is_integer(a) && rp_tv_is_integer(b))
        return (rp_tv_integer(a) > rp_tv_integer(b)) - (rp_tv_integer(a) < rp_tv_integer(b));
    if (rp_tv_is_number(a) && rp_tv_is_number(b))
        return (rp_tv_number(a) > rp_tv_number(b)) - (rp_tv_number(a) < rp_tv_number(b));
    if (a.type == b.type && (a.type == RP_TV_LIST || a.type == RP_TV_TUPLE))
        return order_seqs(r, a, b, op);
    if (a.type == RP_TV_UNDEFINED || b.type == RP_TV_UNDEFINED)
        (void)rp_tv_fail_undefined(r, a.type == RP_TV_UNDEFINED ? a : b);
    else
        (void)rp_render_fail(r, "TypeError",
                             "'%s' not supported between instances of '%s' and '%s'", op,
                             rp_tv_type_name(a), rp_tv_type_name(b));
    return 0;
}

struct rp_tv rp_tv_compare(struct rp_trender *r, enum rp_top op, struct rp_tv a, struct rp_tv b) {
    switch (op) {
    case RP_TOP_EQ:
        return rp_tv_bool(rp_tv_equal(r, a, b));
    case RP_TOP_NE:
        return rp_tv_bool(!rp_tv_equal(r, a, b));
    case RP_TOP_IN:
        return rp_tv_bool(rp_tv_contains(r, b, a));
    case RP_TOP_NOT_IN:
        return rp_tv_bool(!rp_tv_contains(r, b, a));
    default:
        break;
    }
    if ((a.type == RP_TV_FLOAT && isnan(a.u.f)) || (b.type == RP_TV_FLOAT && isnan(b.u.f)))
        if (rp_tv_is_number(a) && rp_tv_is_number(b))
            return rp_tv_bool(false);
    static const char *const names[] = {
        [RP_TOP_LT] = "<", [RP_TOP_LE] = "<=", [RP_TOP_GT] = ">", [RP_TOP_GE] = ">="};
    int order = rp_tv_order(r, a, b, names[op]);
    return rp_tv_bool(op == RP_TOP_LT   ? order < 0
                      : op == RP_TOP_LE ? order <= 0
                      : op == RP_TOP_GT ? order > 0
                                        : order >= 0);
}

bool rp_tv_contains(struct rp_trender *r, struct rp_tv container, struct rp_tv item) {
    uint32_t hash;
    if (container.type == RP_TV_STRING) {
        if (item.type == RP_TV_UNDEFINED || item.type != RP_TV_STRING) {
            (void)rp_render_fail(r, "TypeError",
                                 "'in <string>' requires string as left operand, not %s",
                                 rp_tv_type_name(item));
            return false;
        }
        (void)rp_render_charge_bytes(r, container.len);
        return rp_tstr_find(container, item, 0) != SIZE_MAX;
    }
    if (container.type == RP_TV_DICT) {
        if (rp_tv_hash(item, &hash))
            return rp_tdict_get(container.u.dict, item) != NULL;
        (void)rp_render_fail(r, "TypeError", "unhashable type: '%s'", rp_tv_type_name(item));
        return false;
    }
    if (!rp_tv_is_seq(container) && container.type != RP_TV_UNDEFINED) {
        (void)rp_render_fail(r, "TypeError", "argument of type '%s' is not iterable",
                             rp_tv_type_name(container));
        return false;
    }
    const struct rp_tseq *items = rp_tv_iterate(r, container);
    for (size_t i = 0; items && i < items->count && rp_render_charge(r, 1); i++)
        if (rp_tv_equal(r, items->items[i], item))
            return true;
    return false;
}

/* ---- Arithmetic ----------------------------------------------------------------------- */

static struct rp_tv overflow(struct rp_trender *r) {
    return rp_render_fail(r, "OverflowError", "integers of more than 64 bits are not supported");
}

static struct rp_tv floor_divide(struct rp_trender *r, int64_t a, int64_t b, bool modulo) {
    if (b == 0)
        return rp_render_fail(r, "ZeroDivisionError", "integer %s by zero",
                              modulo ? "modulo" : "division or modulo");
    if (b == -1)
        return modulo ? rp_tv_int(0) : a == INT64_MIN ? overflow(r) : rp_tv_int(-a);
    int64_t quotient = a / b, rest = a % b;
    if (rest && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    return rp_tv_int(modulo ? rest : quotient);
}

static struct rp_tv int_power(struct rp_trender *r, int64_t base, int64_t exponent) {
    if (exponent < 0)
        return base == 0 ? rp_render_fail(r, "ZeroDivisionError",
                                          "0.0 cannot be raised to a negative power")
                         : rp_tv_float(pow((double)base, (double)exponent));
    int64_t result = 1;
    bool lost = false;
    while (exponent > 0 && !lost) {
        if (exponent & 1)
            lost = __builtin_mul_overflow(result, base, &result);
        exponent >>= 1;
        if (exponent)
            lost = __builtin_mul_overflow(base, base, &base) || lost;
    }
    return lost ? overflow(r) : rp_tv_int(result);
}

static struct rp_tv integers(struct rp_trender *r, enum rp_top op, int64_t a, int64_t b) {
    int64_t result = 0;
    switch (op) {
    case RP_TOP_ADD:
        return __builtin_add_overflow(a, b, &result) ? overflow(r) : rp_tv_int(result);
    case RP_TOP_SUB:
        return __builtin_sub_overflow(a, b, &result) ? overflow(r) : rp_tv_int(result);
    case RP_TOP_MUL:
        return __builtin_mul_overflow(a, b, &result) ? overflow(r) : rp_tv_int(result);
    case RP_TOP_DIV:
        return b == 0 ? rp_render_fail(r, "ZeroDivisionError", "division by zero")
                      : rp_tv_float((double)a / (double)b);
    case RP_TOP_POW:
        return int_power(r, a, b);
    default:
        return floor_divide(r, a, b, op == RP_TOP_MOD);
    }
}

static struct rp_tv floats(struct rp_trender *r, enum rp_top op, double a, double b) {
    double rest;
    switch (op) {
    case RP_TOP_ADD:
        return rp_tv_float(a + b);
    case RP_TOP_SUB:
        return rp_tv_float(a - b);
    case RP_TOP_MUL:
        return rp_tv_float(a * b);
    case RP_TOP_POW:
        if (a == 0 && b < 0)
            return rp_render_fail(r, "ZeroDivisionError",
                                  "0.0 cannot be raised to a negative power");
        return rp_tv_float(pow(a, b));
    case RP_TOP_DIV:
        return b == 0 ? rp_render_fail(r, "ZeroDivisionError", "float division by zero")
                      : rp_tv_float(a / b);
    default:
        if (b == 0)
            return rp_render_fail(r, "ZeroDivisionError",
                                  op == RP_TOP_MOD ? "float modulo"
                                                   : "float floor division by zero");
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        return rp_tv_float(op == RP_TOP_MOD ? rest : floor((a - rest) / b + 0.5));
    }
}

static struct rp_tv add_seqs(struct rp_trender *r, struct rp_tv a, struct rp_tv b) {
    struct rp_tv sum =
        rp_tseq_make(&r->mem, (enum rp_tv_type)a.type, a.u.seq->count + b.u.seq->count);
    if (sum.type != a.type || !rp_render_charge(r, a.u.seq->count + b.u.seq->count))
        return rp_tv_none();
    for (size_t i = 0; i < a.u.seq->count; i++)
        rp_tseq_add(&r->mem, sum.u.seq, a.u.seq->items[i]);
    for (size_t i = 0; i < b.u.seq->count; i++)
        rp_tseq_add(&r->mem, sum.u.seq, b.u.seq->items[i]);
    sum.input = a.input && b.input;
    return sum;
}

static struct rp_tv repeat_seq(struct rp_trender *r, struct rp_tv a, int64_t times) {
    struct rp_tv out = rp_tseq_make(&r->mem, (enum rp_tv_type)a.type, 0);
    for (int64_t i = 0;
         out.type == a.type && a.u.seq->count && i < times && rp_render_charge(r, a.u.seq->count);
         i++)
        for (size_t k = 0; k < a.u.seq->count; k++)
            rp_tseq_add(&r->mem, out.u.seq, a.u.seq->items[k]);
    return out;
}

static struct rp_tv add_strings(struct rp_trender *r, struct rp_tv a, struct rp_tv b) {
    struct rp_tbuf buf;
    if (a.markup != b.markup) { /* what is not safe is escaped when it meets what is */
        a = a.markup ? a : rp_tstr_escape(r, a);
        b = b.markup ? b : rp_tstr_escape(r, b);
    }
    rp_tbuf_init(&buf, &r->mem);
    if (!rp_render_charge_bytes(r, (size_t)a.len + b.len))
        return rp_tv_none();
    rp_tbuf_string(&buf, a);
    rp_tbuf_string(&buf, b);
    struct rp_tv sum = rp_tbuf_finish(&buf);
    sum.markup = a.markup;
    return sum;
}

static struct rp_tv no_operator(struct rp_trender *r, enum rp_top op, struct rp_tv a,
                                struct rp_tv b) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
    if (op == RP_TOP_ADD && a.type == RP_TV_STRING)
        return rp_render_fail(r, "TypeError", "can only concatenate str (not \"%s\") to str",
                              rp_tv_type_name(b));
    if (op == RP_TOP_ADD && (a.type == RP_TV_LIST || a.type == RP_TV_TUPLE))
        return rp_render_fail(r, "TypeError", "can only concatenate %s (not \"%s\") to %s",
                              rp_tv_type_name(a), rp_tv_type_name(b), rp_tv_type_name(a));
    bool a_repeats = a.type >= RP_TV_STRING && a.type <= RP_TV_TUPLE;
    bool b_repeats = b.type >= RP_TV_STRING && b.type <= RP_TV_TUPLE;
    if (op == RP_TOP_MUL && (a_repeats || b_repeats))
        return rp_render_fail(r, "TypeError", "can't multiply sequence by non-int of type '%s'",
                              rp_tv_type_name(a_repeats ? b : a));
    return rp_render_fail(r, "TypeError", "unsupported operand type(s) for %s: '%s' and '%s'",
                          names[op], rp_tv_type_name(a), rp_tv_type_name(b));
}

static struct rp_tv repeat(struct rp_trender *r, struct rp_tv a, struct rp_tv b) {
    if (rp_tv_is_integer(a)) {
        struct rp_tv swap = a;
        a = b;
        b = swap;
    }
    return a.type == RP_TV_STRING ? rp_tstr_repeat(r, a, rp_tv_integer(b))
                                  : repeat_seq(r, a, rp_tv_integer(b));
}

struct rp_tv rp_tv_binary(struct rp_trender *r, enum rp_top op, struct rp_tv a, struct rp_tv b) {
    struct rp_tv result;
    if (a.type == RP_TV_STRING && b.type == RP_TV_STRING && op == RP_TOP_ADD)
        return add_strings(r, a, b);
    if (a.type == RP_TV_STRING && op == RP_TOP_MOD)
        return rp_tstr_percent(r, a, b);
    if (a.type == RP_TV_UNDEFINED || b.type == RP_TV_UNDEFINED)
        return rp_tv_fail_undefined(r, a.type == RP_TV_UNDEFINED ? a : b);
    if (rp_tv_is_number(a) && rp_tv_is_number(b)) {
        result = rp_tv_is_integer(a) && rp_tv_is_integer(b)
                     ? integers(r, op, rp_tv_integer(a), rp_tv_integer(b))
                     : floats(r, op, rp_tv_number(a), rp_tv_number(b));
        result.input = a.input || b.input;
        return result;
    }
    bool a_repeats = a.type >= RP_TV_STRING && a.type <= RP_TV_TUPLE;
    bool b_repeats = b.type >= RP_TV_STRING && b.type <= RP_TV_TUPLE;
    if (op == RP_TOP_MUL &&
        ((a_repeats && rp_tv_is_integer(b)) || (b_repeats && rp_tv_is_integer(a))))
        return repeat(r, a, b);
    if (op == RP_TOP_ADD && a.type == b.type && (a.type == RP_TV_LIST || a.type == RP_TV_TUPLE))
        return add_seqs(r, a, b);
    return no_operator(r, op, a, b);
}
