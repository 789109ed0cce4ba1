/* Tests: the names allowed after `is`. */
#include "text/template/template_internal.h"

static struct rp_value value_of(const struct rp_tcall *call) { return call->args[0]; }

static bool test_defined(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type != RP_VALUE_UNDEFINED;
}

static bool test_undefined(struct rp_trender *r, const struct rp_tcall *call) {
    return !test_defined(r, call);
}

static bool test_none(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_NONE;
}

static bool test_boolean(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_BOOL;
}

static bool test_true(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_BOOL && value_of(call).u.b;
}

static bool test_false(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_BOOL && !value_of(call).u.b;
}

static bool test_integer(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_INT;
}

static bool test_float(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_FLOAT;
}

static bool test_number(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return rp_value_is_number(value_of(call));
}

static bool test_string(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_STRING;
}

static bool test_mapping(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_DICT;
}

/* Has a length and subscripts. */
static bool test_sequence(struct rp_trender *r, const struct rp_tcall *call) {
    struct rp_value v = value_of(call);
    (void)r;
    return v.type == RP_VALUE_STRING || v.type == RP_VALUE_LIST || v.type == RP_VALUE_TUPLE ||
           v.type == RP_VALUE_RANGE || v.type == RP_VALUE_DICT || v.type == RP_VALUE_UNDEFINED;
}

static bool test_iterable(struct rp_trender *r, const struct rp_tcall *call) {
    struct rp_value v = value_of(call);
    (void)r;
    return v.type == RP_VALUE_STRING || rp_value_is_seq(v) || v.type == RP_VALUE_DICT ||
           v.type == RP_VALUE_UNDEFINED || v.type == RP_VALUE_LOOP;
}

static bool test_callable(struct rp_trender *r, const struct rp_tcall *call) {
    struct rp_value v = value_of(call);
    (void)r;
    return v.type == RP_VALUE_MACRO || v.type == RP_VALUE_FUNCTION || v.type == RP_VALUE_METHOD ||
           v.type == RP_VALUE_LOOP || v.type == RP_VALUE_JOINER || v.type == RP_VALUE_UNDEFINED;
}

static struct rp_value case_test(struct rp_trender *r, const struct rp_tcall *call, int method) {
    struct rp_value text = rp_value_text(r, value_of(call));
    struct rp_tcall none = {.count = 0};
    struct rp_value bound = {.type = RP_VALUE_METHOD, .sub = (uint8_t)method, .u.self = &text};
    return r->failed ? rp_value_none() : rp_tmethod_call(r, bound, &none);
}

static bool test_lower(struct rp_trender *r, const struct rp_tcall *call) {
    return rp_value_truth(case_test(r, call, RP_TM_ISLOWER));
}

static bool test_upper(struct rp_trender *r, const struct rp_tcall *call) {
    return rp_value_truth(case_test(r, call, RP_TM_ISUPPER));
}

static bool rest_is(struct rp_trender *r, struct rp_value v, struct rp_value by, int64_t want) {
    struct rp_value rest = rp_value_binary(r, RP_TOP_MOD, v, by);
    return !r->failed && rp_value_equal(r, rest, rp_value_int(want));
}

static bool test_odd(struct rp_trender *r, const struct rp_tcall *call) {
    return rest_is(r, value_of(call), rp_value_int(2), 1);
}

static bool test_even(struct rp_trender *r, const struct rp_tcall *call) {
    return rest_is(r, value_of(call), rp_value_int(2), 0);
}

static bool test_divisibleby(struct rp_trender *r, const struct rp_tcall *call) {
    return rest_is(r, value_of(call), call->args[1], 0);
}

static bool compare(struct rp_trender *r, const struct rp_tcall *call, enum rp_top op) {
    return rp_value_truth(rp_value_compare(r, op, call->args[0], call->args[1]));
}

static bool test_eq(struct rp_trender *r, const struct rp_tcall *call) {
    return compare(r, call, RP_TOP_EQ);
}
static bool test_ne(struct rp_trender *r, const struct rp_tcall *call) {
    return compare(r, call, RP_TOP_NE);
}
static bool test_lt(struct rp_trender *r, const struct rp_tcall *call) {
    return compare(r, call, RP_TOP_LT);
}
static bool test_le(struct rp_trender *r, const struct rp_tcall *call) {
    return compare(r, call, RP_TOP_LE);
}
static bool test_gt(struct rp_trender *r, const struct rp_tcall *call) {
    return compare(r, call, RP_TOP_GT);
}
static bool test_ge(struct rp_trender *r, const struct rp_tcall *call) {
    return compare(r, call, RP_TOP_GE);
}
static bool test_in(struct rp_trender *r, const struct rp_tcall *call) {
    return compare(r, call, RP_TOP_IN);
}

/* Identity: small values are one object in Python when they are equal and of one type. */
static bool test_sameas(struct rp_trender *r, const struct rp_tcall *call) {
    struct rp_value a = call->args[0], b = call->args[1];
    if (a.type != b.type)
        return false;
    if (a.type <= RP_VALUE_STRING)
        return rp_value_equal(r, a, b);
    return a.u.seq == b.u.seq;
}

static bool test_escaped(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_STRING && value_of(call).markup;
}

static bool test_filter(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_STRING && rp_tfilter_find(value_of(call));
}

static bool test_test(struct rp_trender *r, const struct rp_tcall *call) {
    (void)r;
    return value_of(call).type == RP_VALUE_STRING && rp_ttest_find(value_of(call));
}

static const struct rp_ttest tests[] = {
    {"!=", test_ne, 1},
    {"<", test_lt, 1},
    {"<=", test_le, 1},
    {"==", test_eq, 1},
    {">", test_gt, 1},
    {">=", test_ge, 1},
    {"boolean", test_boolean, 0},
    {"callable", test_callable, 0},
    {"defined", test_defined, 0},
    {"divisibleby", test_divisibleby, 1},
    {"eq", test_eq, 1},
    {"equalto", test_eq, 1},
    {"escaped", test_escaped, 0},
    {"even", test_even, 0},
    {"false", test_false, 0},
    {"filter", test_filter, 0},
    {"float", test_float, 0},
    {"ge", test_ge, 1},
    {"greaterthan", test_gt, 1},
    {"gt", test_gt, 1},
    {"in", test_in, 1},
    {"integer", test_integer, 0},
    {"iterable", test_iterable, 0},
    {"le", test_le, 1},
    {"lessthan", test_lt, 1},
    {"lower", test_lower, 0},
    {"lt", test_lt, 1},
    {"mapping", test_mapping, 0},
    {"ne", test_ne, 1},
    {"none", test_none, 0},
    {"number", test_number, 0},
    {"odd", test_odd, 0},
    {"sameas", test_sameas, 1},
    {"sequence", test_sequence, 0},
    {"string", test_string, 0},
    {"test", test_test, 0},
    {"true", test_true, 0},
    {"undefined", test_undefined, 0},
    {"upper", test_upper, 0},
};

const struct rp_ttest *rp_ttest_find(struct rp_value name) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(tests); i++)
        if (rp_value_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}
