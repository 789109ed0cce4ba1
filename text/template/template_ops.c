/* Python's operators on values: truth, equality, order, arithmetic, membership, subscripts. */
#include "text/template/template_internal.h"

#include <math.h>
#include <string.h>

bool rp_value_truth(struct rp_value v) {
    switch (v.type) {
    case RP_VALUE_UNDEFINED:
    case RP_VALUE_NONE:
        return false;
    case RP_VALUE_BOOL:
        return v.u.b;
    case RP_VALUE_INT:
        return v.u.i != 0;
    case RP_VALUE_FLOAT:
        return v.u.f != 0;
    case RP_VALUE_STRING:
        return v.len > 0;
    case RP_VALUE_DICT:
        return v.u.dict->count > 0;
    case RP_VALUE_GENERATOR:
        return true;
    default:
        return !rp_value_is_seq(v) || v.u.seq->count > 0;
    }
}

static bool equal_seqs(struct rp_trender *r, const struct rp_tseq *a, const struct rp_tseq *b) {
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (!rp_value_equal(r, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool equal_dicts(struct rp_trender *r, const struct rp_tdict *a, const struct rp_tdict *b) {
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        const struct rp_value *other = rp_tdict_get(b, a->entries[i].key);
        if (!other || !rp_value_equal(r, a->entries[i].value, *other))
            return false;
    }
    return true;
}

static bool equal_deep(struct rp_trender *r, struct rp_value a, struct rp_value b) {
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case RP_VALUE_UNDEFINED:
    case RP_VALUE_NONE:
        return true;
    case RP_VALUE_LIST:
    case RP_VALUE_TUPLE:
    case RP_VALUE_RANGE:
    case RP_VALUE_DICT_ITEMS:
    case RP_VALUE_DICT_KEYS:
        return a.u.seq == b.u.seq || equal_seqs(r, a.u.seq, b.u.seq);
    case RP_VALUE_DICT:
        return a.u.dict == b.u.dict || equal_dicts(r, a.u.dict, b.u.dict);
    case RP_VALUE_FUNCTION:
        return a.sub == b.sub;
    case RP_VALUE_METHOD:
        return a.sub == b.sub && rp_value_equal(r, *a.u.self, *b.u.self);
    default:
        return a.u.seq == b.u.seq; /* identity */
    }
}

bool rp_value_equal(struct rp_trender *r, struct rp_value a, struct rp_value b) {
    if (a.type == RP_VALUE_STRING && b.type == RP_VALUE_STRING)
        return a.len == b.len && rp_render_charge_bytes(r, a.len) &&
               memcmp(a.u.s, b.u.s, a.len) == 0;
    if (rp_value_is_integer(a) && rp_value_is_integer(b))
        return rp_value_integer(a) == rp_value_integer(b);
    if (rp_value_is_number(a) && rp_value_is_number(b))
        return rp_value_number(a) == rp_value_number(b);
    if (!rp_render_enter(r))
        return false;
    bool equal = equal_deep(r, a, b);
    rp_render_leave(r);
    return equal && !r->failed;
}

static int order_bytes(struct rp_value a, struct rp_value b) {
    int order = memcmp(a.u.s, b.u.s, RP_MIN(a.len, b.len)); /* UTF-8 sorts as its code points */
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int order_seqs(struct rp_trender *r, struct rp_value a, struct rp_value b, const char *op) {
    const struct rp_tseq *x = a.u.seq, *y = b.u.seq;
    int order = 0;
    if (!rp_render_enter(r))
        return 0;
    size_t i = 0;
    while (i < x->count && i < y->count && !r->failed &&
           rp_value_equal(r, x->items[i], y->items[i]))
        i++;
    if (i < x->count && i < y->count)
        order = rp_value_order(r, x->items[i], y->items[i], op);
    else
        order = (x->count > y->count) - (x->count < y->count);
    rp_render_leave(r);
    return order;
}

int rp_value_order(struct rp_trender *r, struct rp_value a, struct rp_value b, const char *op) {
    if (a.type == RP_VALUE_STRING && b.type == RP_VALUE_STRING) {
        (void)rp_render_charge_bytes(r, RP_MIN(a.len, b.len));
        return order_bytes(a, b);
    }
    if (rp_value_is_integer(a) && rp_value_is_integer(b))
        return (rp_value_integer(a) > rp_value_integer(b)) -
               (rp_value_integer(a) < rp_value_integer(b));
    if (rp_value_is_number(a) && rp_value_is_number(b))
        return (rp_value_number(a) > rp_value_number(b)) -
               (rp_value_number(a) < rp_value_number(b));
    if (a.type == b.type && (a.type == RP_VALUE_LIST || a.type == RP_VALUE_TUPLE))
        return order_seqs(r, a, b, op);
    if (a.type == RP_VALUE_UNDEFINED || b.type == RP_VALUE_UNDEFINED)
        (void)rp_value_fail_undefined(r, a.type == RP_VALUE_UNDEFINED ? a : b);
    else
        (void)rp_render_fail(r, "TypeError",
                             "'%s' not supported between instances of '%s' and '%s'", op,
                             rp_value_type_name(a), rp_value_type_name(b));
    return 0;
}

struct rp_value rp_value_compare(struct rp_trender *r, enum rp_top op, struct rp_value a,
                                 struct rp_value b) {
    switch (op) {
    case RP_TOP_EQ:
        return rp_value_bool(rp_value_equal(r, a, b));
    case RP_TOP_NE:
        return rp_value_bool(!rp_value_equal(r, a, b));
    case RP_TOP_IN:
        return rp_value_bool(rp_value_contains(r, b, a));
    case RP_TOP_NOT_IN:
        return rp_value_bool(!rp_value_contains(r, b, a));
    default:
        break;
    }
    if ((a.type == RP_VALUE_FLOAT && isnan(a.u.f)) || (b.type == RP_VALUE_FLOAT && isnan(b.u.f)))
        if (rp_value_is_number(a) && rp_value_is_number(b))
            return rp_value_bool(false);
    static const char *const names[] = {
        [RP_TOP_LT] = "<", [RP_TOP_LE] = "<=", [RP_TOP_GT] = ">", [RP_TOP_GE] = ">="};
    int order = rp_value_order(r, a, b, names[op]);
    return rp_value_bool(op == RP_TOP_LT   ? order < 0
                         : op == RP_TOP_LE ? order <= 0
                         : op == RP_TOP_GT ? order > 0
                                           : order >= 0);
}

bool rp_value_contains(struct rp_trender *r, struct rp_value container, struct rp_value item) {
    uint32_t hash;
    if (container.type == RP_VALUE_STRING) {
        if (item.type == RP_VALUE_UNDEFINED || item.type != RP_VALUE_STRING) {
            (void)rp_render_fail(r, "TypeError",
                                 "'in <string>' requires string as left operand, not %s",
                                 rp_value_type_name(item));
            return false;
        }
        (void)rp_render_charge_bytes(r, container.len);
        return rp_tstr_find(container, item, 0) != SIZE_MAX;
    }
    if (container.type == RP_VALUE_DICT) {
        if (rp_value_hash(item, &hash))
            return rp_tdict_get(container.u.dict, item) != NULL;
        (void)rp_render_fail(r, "TypeError", "unhashable type: '%s'", rp_value_type_name(item));
        return false;
    }
    if (!rp_value_is_seq(container) && container.type != RP_VALUE_UNDEFINED) {
        (void)rp_render_fail(r, "TypeError", "argument of type '%s' is not iterable",
                             rp_value_type_name(container));
        return false;
    }
    const struct rp_tseq *items = rp_value_iterate(r, container);
    for (size_t i = 0; items && i < items->count && rp_render_charge(r, 1); i++)
        if (rp_value_equal(r, items->items[i], item))
            return true;
    return false;
}

/* ---- Arithmetic ----------------------------------------------------------------------- */

static struct rp_value overflow(struct rp_trender *r) {
    return rp_render_fail(r, "OverflowError", "integers of more than 64 bits are not supported");
}

static struct rp_value floor_divide(struct rp_trender *r, int64_t a, int64_t b, bool modulo) {
    if (b == 0)
        return rp_render_fail(r, "ZeroDivisionError", "integer %s by zero",
                              modulo ? "modulo" : "division or modulo");
    if (b == -1)
        return modulo ? rp_value_int(0) : a == INT64_MIN ? overflow(r) : rp_value_int(-a);
    int64_t quotient = a / b, rest = a % b;
    if (rest && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    return rp_value_int(modulo ? rest : quotient);
}

static struct rp_value int_power(struct rp_trender *r, int64_t base, int64_t exponent) {
    if (exponent < 0)
        return base == 0 ? rp_render_fail(r, "ZeroDivisionError",
                                          "0.0 cannot be raised to a negative power")
                         : rp_value_float(pow((double)base, (double)exponent));
    int64_t result = 1;
    bool lost = false;
    while (exponent > 0 && !lost) {
        if (exponent & 1)
            lost = __builtin_mul_overflow(result, base, &result);
        exponent >>= 1;
        if (exponent)
            lost = __builtin_mul_overflow(base, base, &base) || lost;
    }
    return lost ? overflow(r) : rp_value_int(result);
}

static struct rp_value integers(struct rp_trender *r, enum rp_top op, int64_t a, int64_t b) {
    int64_t result = 0;
    switch (op) {
    case RP_TOP_ADD:
        return __builtin_add_overflow(a, b, &result) ? overflow(r) : rp_value_int(result);
    case RP_TOP_SUB:
        return __builtin_sub_overflow(a, b, &result) ? overflow(r) : rp_value_int(result);
    case RP_TOP_MUL:
        return __builtin_mul_overflow(a, b, &result) ? overflow(r) : rp_value_int(result);
    case RP_TOP_DIV:
        return b == 0 ? rp_render_fail(r, "ZeroDivisionError", "division by zero")
                      : rp_value_float((double)a / (double)b);
    case RP_TOP_POW:
        return int_power(r, a, b);
    default:
        return floor_divide(r, a, b, op == RP_TOP_MOD);
    }
}

static struct rp_value floats(struct rp_trender *r, enum rp_top op, double a, double b) {
    double rest;
    switch (op) {
    case RP_TOP_ADD:
        return rp_value_float(a + b);
    case RP_TOP_SUB:
        return rp_value_float(a - b);
    case RP_TOP_MUL:
        return rp_value_float(a * b);
    case RP_TOP_POW:
        if (a == 0 && b < 0)
            return rp_render_fail(r, "ZeroDivisionError",
                                  "0.0 cannot be raised to a negative power");
        return rp_value_float(pow(a, b));
    case RP_TOP_DIV:
        return b == 0 ? rp_render_fail(r, "ZeroDivisionError", "float division by zero")
                      : rp_value_float(a / b);
    default:
        if (b == 0)
            return rp_render_fail(r, "ZeroDivisionError",
                                  op == RP_TOP_MOD ? "float modulo"
                                                   : "float floor division by zero");
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        return rp_value_float(op == RP_TOP_MOD ? rest : floor((a - rest) / b + 0.5));
    }
}

static struct rp_value add_seqs(struct rp_trender *r, struct rp_value a, struct rp_value b) {
    struct rp_value sum =
        rp_tseq_make(&r->mem, (enum rp_value_type)a.type, a.u.seq->count + b.u.seq->count);
    if (sum.type != a.type || !rp_render_charge(r, a.u.seq->count + b.u.seq->count))
        return rp_value_none();
    for (size_t i = 0; i < a.u.seq->count; i++)
        rp_tseq_add(&r->mem, sum.u.seq, a.u.seq->items[i]);
    for (size_t i = 0; i < b.u.seq->count; i++)
        rp_tseq_add(&r->mem, sum.u.seq, b.u.seq->items[i]);
    sum.input = a.input && b.input;
    return sum;
}

static struct rp_value repeat_seq(struct rp_trender *r, struct rp_value a, int64_t times) {
    struct rp_value out = rp_tseq_make(&r->mem, (enum rp_value_type)a.type, 0);
    for (int64_t i = 0;
         out.type == a.type && a.u.seq->count && i < times && rp_render_charge(r, a.u.seq->count);
         i++)
        for (size_t k = 0; k < a.u.seq->count; k++)
            rp_tseq_add(&r->mem, out.u.seq, a.u.seq->items[k]);
    return out;
}

static struct rp_value add_strings(struct rp_trender *r, struct rp_value a, struct rp_value b) {
    struct rp_tbuf buf;
    if (a.markup != b.markup) { /* unsafe text is escaped when combined with safe text */
        a = a.markup ? a : rp_tstr_escape(r, a);
        b = b.markup ? b : rp_tstr_escape(r, b);
    }
    rp_tbuf_init(&buf, &r->mem);
    if (!rp_render_charge_bytes(r, (size_t)a.len + b.len))
        return rp_value_none();
    rp_tbuf_string(&buf, a);
    rp_tbuf_string(&buf, b);
    struct rp_value sum = rp_tbuf_finish(&buf);
    sum.markup = a.markup;
    return sum;
}

static struct rp_value no_operator(struct rp_trender *r, enum rp_top op, struct rp_value a,
                                   struct rp_value b) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
    if (op == RP_TOP_ADD && a.type == RP_VALUE_STRING)
        return rp_render_fail(r, "TypeError", "can only concatenate str (not \"%s\") to str",
                              rp_value_type_name(b));
    if (op == RP_TOP_ADD && (a.type == RP_VALUE_LIST || a.type == RP_VALUE_TUPLE))
        return rp_render_fail(r, "TypeError", "can only concatenate %s (not \"%s\") to %s",
                              rp_value_type_name(a), rp_value_type_name(b), rp_value_type_name(a));
    bool a_repeats = a.type >= RP_VALUE_STRING && a.type <= RP_VALUE_TUPLE;
    bool b_repeats = b.type >= RP_VALUE_STRING && b.type <= RP_VALUE_TUPLE;
    if (op == RP_TOP_MUL && (a_repeats || b_repeats))
        return rp_render_fail(r, "TypeError", "can't multiply sequence by non-int of type '%s'",
                              rp_value_type_name(a_repeats ? b : a));
    return rp_render_fail(r, "TypeError", "unsupported operand type(s) for %s: '%s' and '%s'",
                          names[op], rp_value_type_name(a), rp_value_type_name(b));
}

static struct rp_value repeat(struct rp_trender *r, struct rp_value a, struct rp_value b) {
    if (rp_value_is_integer(a)) {
        struct rp_value swap = a;
        a = b;
        b = swap;
    }
    return a.type == RP_VALUE_STRING ? rp_tstr_repeat(r, a, rp_value_integer(b))
                                     : repeat_seq(r, a, rp_value_integer(b));
}

struct rp_value rp_value_binary(struct rp_trender *r, enum rp_top op, struct rp_value a,
                                struct rp_value b) {
    struct rp_value result;
    if (a.type == RP_VALUE_STRING && b.type == RP_VALUE_STRING && op == RP_TOP_ADD)
        return add_strings(r, a, b);
    if (a.type == RP_VALUE_STRING && op == RP_TOP_MOD)
        return rp_tstr_percent(r, a, b);
    if (a.type == RP_VALUE_UNDEFINED || b.type == RP_VALUE_UNDEFINED)
        return rp_value_fail_undefined(r, a.type == RP_VALUE_UNDEFINED ? a : b);
    if (rp_value_is_number(a) && rp_value_is_number(b)) {
        result = rp_value_is_integer(a) && rp_value_is_integer(b)
                     ? integers(r, op, rp_value_integer(a), rp_value_integer(b))
                     : floats(r, op, rp_value_number(a), rp_value_number(b));
        result.input = a.input || b.input;
        return result;
    }
    bool a_repeats = a.type >= RP_VALUE_STRING && a.type <= RP_VALUE_TUPLE;
    bool b_repeats = b.type >= RP_VALUE_STRING && b.type <= RP_VALUE_TUPLE;
    if (op == RP_TOP_MUL &&
        ((a_repeats && rp_value_is_integer(b)) || (b_repeats && rp_value_is_integer(a))))
        return repeat(r, a, b);
    if (op == RP_TOP_ADD && a.type == b.type &&
        (a.type == RP_VALUE_LIST || a.type == RP_VALUE_TUPLE))
        return add_seqs(r, a, b);
    return no_operator(r, op, a, b);
}
