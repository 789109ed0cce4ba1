/* The global functions: those of jinja2's sandbox and those that transformers adds. */
#include "text/template/template_internal.h"

#include <string.h>

enum {
    FUNCTION_RANGE,
    FUNCTION_DICT,
    FUNCTION_NAMESPACE,
    FUNCTION_CYCLER,
    FUNCTION_JOINER,
    FUNCTION_RAISE,
    FUNCTION_STRFTIME,
};

static const char *const functions[] = {
    [FUNCTION_RANGE] = "range",          [FUNCTION_DICT] = "dict",
    [FUNCTION_NAMESPACE] = "namespace",  [FUNCTION_CYCLER] = "cycler",
    [FUNCTION_JOINER] = "joiner",        [FUNCTION_RAISE] = "raise_exception",
    [FUNCTION_STRFTIME] = "strftime_now"};

/* Limit of the sandbox: longer ranges are refused. */
#define RANGE_MAX 100000

bool rp_tfunction_find(struct rp_value name, struct rp_value *out) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(functions); i++)
        if (rp_value_is(name, functions[i])) {
            *out = (struct rp_value){.type = RP_VALUE_FUNCTION, .sub = (uint8_t)i};
            return true;
        }
    return false;
}

static struct rp_value make_range(struct rp_trender *r, const struct rp_tcall *call) {
    int64_t part[3] = {0, 0, 1}, count = 0;
    if (call->keyword_count)
        return rp_render_fail(r, "TypeError", "range() takes no keyword arguments");
    if (call->count < 1 || call->count > 3)
        return rp_render_fail(r, "TypeError",
                              call->count ? "range expected at most 3 arguments, got %zu"
                                          : "range expected at least 1 argument, got %zu",
                              call->count);
    for (size_t i = 0; i < call->count; i++) {
        struct rp_value v = call->args[i];
        if (!rp_value_is_integer(v))
            return rp_render_fail(r, "TypeError", "'%s' object cannot be interpreted as an integer",
                                  rp_value_type_name(v));
        part[call->count == 1 ? 1 : i] = rp_value_integer(v);
    }
    if (part[2] == 0)
        return rp_render_fail(r, "ValueError", "range() arg 3 must not be zero");
    double length = ((double)part[1] - (double)part[0]) / (double)part[2];
    if (length > RANGE_MAX + 1.0)
        count = RANGE_MAX + 1;
    else if (length > 0) /* the difference may need 64 bits without a sign */
        count =
            (int64_t)(part[2] > 0
                          ? ((uint64_t)part[1] - (uint64_t)part[0] - 1) / (uint64_t)part[2]
                          : ((uint64_t)part[0] - (uint64_t)part[1] - 1) / (0 - (uint64_t)part[2])) +
            1;
    if (count > RANGE_MAX)
        return rp_render_fail(
            r, "OverflowError",
            "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", RANGE_MAX);
    struct rp_value out = rp_tseq_make(&r->mem, RP_VALUE_RANGE, (size_t)count);
    if (!rp_value_is_seq(out) || !rp_render_charge(r, (size_t)count / 8))
        return rp_value_none();
    for (int64_t i = 0; i < count; i++)
        rp_tseq_add(&r->mem, out.u.seq, rp_value_int(part[0] + i * part[2]));
    return out;
}

static void put_pair(struct rp_trender *r, struct rp_tdict *dict, struct rp_value pair) {
    uint32_t hash;
    const struct rp_tseq *items = rp_value_iterate(r, pair);
    if (!items)
        return;
    if (items->count != 2)
        (void)rp_render_fail(r, "ValueError",
                             "dictionary update sequence element has length %zu; 2 is required",
                             items->count);
    else if (!rp_value_hash(items->items[0], &hash))
        (void)rp_render_fail(r, "TypeError", "unhashable type: '%s'",
                             rp_value_type_name(items->items[0]));
    else
        rp_tdict_put(&r->mem, dict, items->items[0], items->items[1]);
}

/* dict() and namespace(): a mapping or pairs, then keywords. */
static struct rp_value make_dict(struct rp_trender *r, const struct rp_tcall *call,
                                 enum rp_value_type type) {
    struct rp_value out = rp_tdict_make(&r->mem, type);
    if (out.type != type)
        return rp_value_none();
    if (call->count > 1)
        return rp_render_fail(r, "TypeError", "dict expected at most 1 argument, got %zu",
                              call->count);
    if (call->count == 1 && call->args[0].type == RP_VALUE_DICT) {
        const struct rp_tdict *from = call->args[0].u.dict;
        for (size_t i = 0; i < from->count && rp_render_charge(r, 1); i++)
            rp_tdict_put(&r->mem, out.u.dict, from->entries[i].key, from->entries[i].value);
    } else if (call->count == 1) {
        const struct rp_tseq *pairs = rp_value_iterate(r, call->args[0]);
        for (size_t i = 0; pairs && i < pairs->count && rp_render_charge(r, 1); i++)
            put_pair(r, out.u.dict, pairs->items[i]);
    }
    for (size_t i = 0; i < call->keyword_count && !r->failed; i++)
        rp_tdict_put(&r->mem, out.u.dict, call->names[i], call->values[i]);
    return out;
}

static struct rp_value make_cycler(struct rp_trender *r, const struct rp_tcall *call) {
    struct rp_value out = rp_tseq_make(&r->mem, RP_VALUE_CYCLER, call->count);
    if (call->count == 0)
        return rp_render_fail(r, "RuntimeError", "at least one item has to be provided");
    for (size_t i = 0; out.type == RP_VALUE_CYCLER && i < call->count; i++)
        rp_tseq_add(&r->mem, out.u.seq, call->args[i]);
    return out;
}

static struct rp_value make_joiner(struct rp_trender *r, const struct rp_tcall *call) {
    static const char *const names[] = {"sep"};
    struct rp_value a[1], out = rp_tseq_make(&r->mem, RP_VALUE_JOINER, 1);
    if (out.type != RP_VALUE_JOINER || !rp_render_bind(r, "joiner", call, names, 1, 0, a))
        return rp_value_none();
    rp_tseq_add(&r->mem, out.u.seq, rp_targ_given(a[0]) ? a[0] : rp_value_cstr(", "));
    return out;
}

static struct rp_value raise_exception(struct rp_trender *r, const struct rp_tcall *call) {
    static const char *const names[] = {"message"};
    struct rp_value a[1];
    if (!rp_render_bind(r, "raise_exception", call, names, 1, 1, a))
        return rp_value_none();
    struct rp_value text = rp_value_text(r, a[0]);
    if (r->failed)
        return rp_value_none();
    return rp_render_fail(r, "TemplateError", "%.*s", (int)text.len, text.u.s);
}

struct rp_value rp_tfunction_call(struct rp_trender *r, int function, const struct rp_tcall *call) {
    static const char *const names[] = {"format"};
    struct rp_value a[1];
    switch (function) {
    case FUNCTION_RANGE:
        return make_range(r, call);
    case FUNCTION_DICT:
        return make_dict(r, call, RP_VALUE_DICT);
    case FUNCTION_NAMESPACE:
        return make_dict(r, call, RP_VALUE_NAMESPACE);
    case FUNCTION_CYCLER:
        return make_cycler(r, call);
    case FUNCTION_JOINER:
        return make_joiner(r, call);
    case FUNCTION_RAISE:
        return raise_exception(r, call);
    default:
        if (!rp_render_bind(r, "strftime_now", call, names, 1, 1, a))
            return rp_value_none();
        if (a[0].type != RP_VALUE_STRING)
            return rp_render_fail(r, "TypeError", "strftime() argument 1 must be str, not %s",
                                  rp_value_type_name(a[0]));
        return rp_tstr_strftime(r, a[0]);
    }
}
