/* Filters on lists and mappings. A generator in Python is evaluated at once here and can be
 * iterated once. */
#include "text/template/template_internal.h"

#include <stdio.h>
#include <string.h>

#define BIND(function, required, ...)                                                              \
    static const char *const names[] = {__VA_ARGS__};                                              \
    struct rp_value a[RP_ARRAY_COUNT(names)];                                                      \
    if (!rp_render_bind(r, function, call, names, RP_ARRAY_COUNT(names), required, a))             \
        return rp_value_none();

static bool flag(struct rp_value v) { return rp_targ_given(v) && rp_value_truth(v); }

static struct rp_value make(struct rp_trender *r, enum rp_value_type type) {
    return rp_tseq_make(&r->mem, type, 0);
}

static struct rp_value fold_case(struct rp_trender *r, struct rp_value v, bool case_sensitive) {
    return v.type == RP_VALUE_STRING && !case_sensitive ? rp_tstr_case(r, v, RP_TCASE_LOWER) : v;
}

static struct rp_value path_part(struct rp_value part) {
    int64_t number = 0;
    for (size_t i = 0; i < part.len; i++) {
        if (part.u.s[i] < '0' || part.u.s[i] > '9' || number > 1 << 28)
            return part;
        number = number * 10 + (part.u.s[i] - '0');
    }
    return part.len ? rp_value_int(number) : part;
}

struct rp_value rp_value_attribute_path(struct rp_trender *r, struct rp_value v,
                                        struct rp_value path, struct rp_value fallback) {
    if (path.type == RP_VALUE_NONE || !rp_targ_given(path))
        return v;
    if (path.type != RP_VALUE_STRING)
        v = rp_value_getitem(r, v, path);
    for (size_t at = 0; path.type == RP_VALUE_STRING && at <= path.len && !r->failed;) {
        const char *dot = at < path.len ? memchr(path.u.s + at, '.', path.len - at) : NULL;
        size_t end = dot ? (size_t)(dot - path.u.s) : path.len;
        v = rp_value_getitem(r, v, path_part(rp_value_sub(path, at, end - at)));
        if (!r->failed && v.type == RP_VALUE_UNDEFINED && rp_targ_given(fallback) &&
            fallback.type != RP_VALUE_NONE)
            v = fallback;
        at = end + 1;
    }
    if (!r->failed && path.type != RP_VALUE_STRING && v.type == RP_VALUE_UNDEFINED &&
        rp_targ_given(fallback) && fallback.type != RP_VALUE_NONE)
        v = fallback;
    return v;
}

/* Merge sort: stable, and n log n comparisons whatever the input. */
static void merge(struct rp_trender *r, struct rp_value *items, struct rp_value *keys,
                  struct rp_value *spare, size_t n, bool reverse) {
    if (n < 2 || !rp_render_charge(r, n))
        return;
    size_t half = n / 2, i = 0, j = half, k = 0;
    merge(r, items, keys, spare, half, reverse);
    merge(r, items + half, keys + half, spare, n - half, reverse);
    while (i < half && j < n && !r->failed) {
        int order = rp_value_order(r, keys[j], keys[i], "<");
        bool second = reverse ? order > 0 : order < 0;
        size_t from = second ? j++ : i++;
        spare[2 * k] = items[from];
        spare[2 * k++ + 1] = keys[from];
    }
    for (; i < half; i++, k++) {
        spare[2 * k] = items[i];
        spare[2 * k + 1] = keys[i];
    }
    for (size_t m = 0; m < k && !r->failed; m++) {
        items[m] = spare[2 * m];
        keys[m] = spare[2 * m + 1];
    }
}

bool rp_value_sort(struct rp_trender *r, struct rp_value *items, struct rp_value *keys,
                   size_t count, bool reverse) {
    struct rp_value *spare = rp_tmem_calloc(&r->mem, 2 * count + 1, sizeof *spare);
    if (spare)
        merge(r, items, keys, spare, count, reverse);
    return spare && !r->failed;
}

/* The values of "a,b" as a list, one of which compares after the other. */
static struct rp_value multi_key(struct rp_trender *r, struct rp_value item,
                                 struct rp_value attribute, bool case_sensitive) {
    struct rp_value out = make(r, RP_VALUE_LIST), none = {.type = RP_VALUE_UNDEFINED};
    for (size_t at = 0; rp_value_is_seq(out) && !r->failed && at <= attribute.len;) {
        const char *comma =
            at < attribute.len ? memchr(attribute.u.s + at, ',', attribute.len - at) : NULL;
        size_t end = comma ? (size_t)(comma - attribute.u.s) : attribute.len;
        struct rp_value v =
            rp_value_attribute_path(r, item, rp_value_sub(attribute, at, end - at), none);
        rp_tseq_add(&r->mem, out.u.seq, fold_case(r, v, case_sensitive));
        at = end + 1;
    }
    return out;
}

/* A list of the items in order of the attribute; key_out gets the keys. */
static struct rp_value sorted(struct rp_trender *r, struct rp_value value,
                              struct rp_value attribute, struct rp_value fallback,
                              bool case_sensitive, bool reverse, struct rp_value **keys_out) {
    const struct rp_tseq *from = rp_value_iterate(r, value);
    struct rp_value out = make(r, RP_VALUE_LIST);
    struct rp_value *keys = from ? rp_tmem_calloc(&r->mem, from->count + 1, sizeof *keys) : NULL;
    if (!keys || !rp_value_is_seq(out))
        return rp_value_none();
    for (size_t i = 0; i < from->count && rp_render_charge(r, 1); i++) {
        struct rp_value item = from->items[i];
        if (attribute.type == RP_VALUE_STRING && memchr(attribute.u.s, ',', attribute.len))
            keys[i] = multi_key(r, item, attribute, case_sensitive);
        else
            keys[i] =
                fold_case(r, rp_value_attribute_path(r, item, attribute, fallback), case_sensitive);
        rp_tseq_add(&r->mem, out.u.seq, item);
    }
    if (r->failed || r->mem.failed ||
        !rp_value_sort(r, out.u.seq->items, keys, out.u.seq->count, reverse))
        return rp_value_none();
    if (keys_out)
        *keys_out = keys;
    return out;
}

static struct rp_value filter_sort(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_sort", 1, "value", "reverse", "case_sensitive", "attribute")
    struct rp_value none = {.type = RP_VALUE_UNDEFINED};
    if (rp_targ_given(a[1]) && !rp_value_is_integer(a[1]))
        return rp_render_fail(r, "TypeError", "'%s' object cannot be interpreted as an integer",
                              rp_value_type_name(a[1]));
    return sorted(r, a[0], a[3], none, flag(a[2]), flag(a[1]), NULL);
}

static struct rp_value filter_dictsort(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_dictsort", 1, "value", "case_sensitive", "by", "reverse")
    struct rp_value none = {.type = RP_VALUE_UNDEFINED};
    struct rp_tcall no_args = {.count = 0};
    if (rp_targ_given(a[2]) && !rp_value_is(a[2], "key") && !rp_value_is(a[2], "value"))
        return rp_render_fail(r, "FilterArgumentError",
                              "You can only sort by either \"key\" or \"value\"");
    if (a[0].type == RP_VALUE_UNDEFINED)
        return rp_value_fail_undefined(r, a[0]);
    if (a[0].type != RP_VALUE_DICT)
        return rp_render_fail(r, "AttributeError", "'%s' object has no attribute 'items'",
                              rp_value_type_name(a[0]));
    struct rp_value method = {.type = RP_VALUE_METHOD, .sub = RP_TM_ITEMS, .u.self = &a[0]};
    struct rp_value items = rp_tmethod_call(r, method, &no_args);
    return sorted(r, items, rp_value_int(rp_value_is(a[2], "value")), none, flag(a[1]), flag(a[3]),
                  NULL);
}

static struct rp_value filter_groupby(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_groupby", 2, "value", "attribute", "default", "case_sensitive")
    struct rp_value *keys = NULL, out = make(r, RP_VALUE_LIST), group = rp_value_none();
    struct rp_value items = sorted(r, a[0], a[1], a[2], flag(a[3]), false, &keys);
    if (!keys || !rp_value_is_seq(out))
        return rp_value_none();
    for (size_t i = 0; i < items.u.seq->count && !r->failed; i++) {
        if (i == 0 || !rp_value_equal(r, keys[i], keys[i - 1])) {
            struct rp_value tuple = make(r, RP_VALUE_TUPLE);
            group = make(r, RP_VALUE_LIST);
            if (!rp_value_is_seq(tuple) || !rp_value_is_seq(group))
                return rp_value_none();
            rp_tseq_add(&r->mem, tuple.u.seq,
                        rp_value_attribute_path(r, items.u.seq->items[i], a[1], a[2]));
            rp_tseq_add(&r->mem, tuple.u.seq, group);
            rp_tseq_add(&r->mem, out.u.seq, tuple);
        }
        rp_tseq_add(&r->mem, group.u.seq, items.u.seq->items[i]);
    }
    return out;
}

static struct rp_value filter_unique(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_unique", 1, "value", "case_sensitive", "attribute")
    struct rp_value none = {.type = RP_VALUE_UNDEFINED}, out = make(r, RP_VALUE_GENERATOR);
    struct rp_value seen = rp_tdict_make(&r->mem, RP_VALUE_DICT);
    const struct rp_tseq *from = rp_value_iterate(r, a[0]);
    uint32_t hash;
    if (!from || !rp_value_is_seq(out) || seen.type != RP_VALUE_DICT)
        return rp_value_none();
    for (size_t i = 0; i < from->count && rp_render_charge(r, 1); i++) {
        struct rp_value key =
            fold_case(r, rp_value_attribute_path(r, from->items[i], a[2], none), flag(a[1]));
        if (r->failed)
            return rp_value_none();
        if (!rp_value_hash(key, &hash))
            return rp_render_fail(r, "TypeError", "unhashable type: '%s'", rp_value_type_name(key));
        if (!rp_tdict_get(seen.u.dict, key))
            rp_tseq_add(&r->mem, out.u.seq, from->items[i]);
        rp_tdict_put(&r->mem, seen.u.dict, key, rp_value_none());
    }
    return out;
}

static struct rp_value extreme(struct rp_trender *r, const struct rp_tcall *call, bool largest) {
    BIND("do_min", 1, "value", "case_sensitive", "attribute")
    struct rp_value none = {.type = RP_VALUE_UNDEFINED}, best = none, best_key = none;
    const struct rp_tseq *from = rp_value_iterate(r, a[0]);
    if (!from)
        return rp_value_none();
    if (from->count == 0)
        return rp_value_undefined(r, "No aggregated item, sequence was empty.");
    for (size_t i = 0; i < from->count && rp_render_charge(r, 1); i++) {
        struct rp_value key =
            fold_case(r, rp_value_attribute_path(r, from->items[i], a[2], none), flag(a[1]));
        int order = i && !r->failed ? rp_value_order(r, key, best_key, largest ? ">" : "<") : 0;
        if (i == 0 || (largest ? order > 0 : order < 0)) {
            best = from->items[i];
            best_key = key;
        }
    }
    return r->failed ? rp_value_none() : best;
}

static struct rp_value filter_min(struct rp_trender *r, const struct rp_tcall *call) {
    return extreme(r, call, false);
}

static struct rp_value filter_max(struct rp_trender *r, const struct rp_tcall *call) {
    return extreme(r, call, true);
}

static struct rp_value filter_sum(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_sum", 1, "iterable", "attribute", "start")
    struct rp_value none = {.type = RP_VALUE_UNDEFINED};
    struct rp_value total = rp_targ_given(a[2]) ? a[2] : rp_value_int(0);
    const struct rp_tseq *from = rp_value_iterate(r, a[0]);
    if (from && total.type == RP_VALUE_STRING)
        return rp_render_fail(r, "TypeError", "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; from && i < from->count && rp_render_charge(r, 1); i++) {
        struct rp_value item = rp_value_attribute_path(r, from->items[i], a[1], none);
        if (!r->failed)
            total = rp_value_binary(r, RP_TOP_ADD, total, item);
    }
    return r->failed ? rp_value_none() : total;
}

static struct rp_value filter_first(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_first", 1, "seq")
    if (a[0].type == RP_VALUE_STRING && a[0].len) {
        size_t size;
        (void)rp_tstr_char(a[0], 0, &size);
        return rp_value_sub(a[0], 0, size);
    }
    if (a[0].type == RP_VALUE_GENERATOR && a[0].u.seq->taken < a[0].u.seq->count)
        return a[0].u.seq->items[a[0].u.seq->taken++];
    const struct rp_tseq *from = rp_value_iterate(r, a[0]);
    if (!from)
        return rp_value_none();
    return from->count ? from->items[0]
                       : rp_value_undefined(r, "No first item, sequence was empty.");
}

static struct rp_value filter_last(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_last", 1, "seq")
    if (a[0].type == RP_VALUE_GENERATOR || rp_value_is_number(a[0]) || a[0].type == RP_VALUE_NONE)
        return rp_render_fail(r, "TypeError", "'%s' object is not reversible",
                              rp_value_type_name(a[0]));
    const struct rp_tseq *from = rp_value_iterate(r, a[0]);
    if (!from)
        return rp_value_none();
    return from->count ? from->items[from->count - 1]
                       : rp_value_undefined(r, "No last item, sequence was empty.");
}

static struct rp_value copy(struct rp_trender *r, struct rp_value value, enum rp_value_type type,
                            bool backwards) {
    const struct rp_tseq *from = rp_value_iterate(r, value);
    struct rp_value out = from ? rp_tseq_make(&r->mem, type, from->count) : rp_value_none();
    if (!rp_value_is_seq(out) || !rp_render_charge(r, from->count / 8))
        return rp_value_none();
    for (size_t i = 0; i < from->count; i++)
        rp_tseq_add(&r->mem, out.u.seq, from->items[backwards ? from->count - 1 - i : i]);
    out.input = value.input;
    return out;
}

static struct rp_value filter_list(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_list", 1, "value")
    return copy(r, a[0], RP_VALUE_LIST, false);
}

static struct rp_value filter_reverse(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_reverse", 1, "value")
    if (a[0].type == RP_VALUE_STRING)
        return rp_value_slice(r, a[0], rp_value_none(), rp_value_none(), rp_value_int(-1));
    if (!rp_value_is_seq(a[0]) && a[0].type != RP_VALUE_DICT && a[0].type != RP_VALUE_UNDEFINED)
        return rp_render_fail(r, "FilterArgumentError", "argument must be iterable");
    return copy(r, a[0], a[0].type == RP_VALUE_GENERATOR ? RP_VALUE_LIST : RP_VALUE_GENERATOR,
                true);
}

static struct rp_value filter_items(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_items", 1, "value")
    struct rp_tcall no_args = {.count = 0};
    if (a[0].type == RP_VALUE_UNDEFINED)
        return make(r, RP_VALUE_GENERATOR);
    if (a[0].type != RP_VALUE_DICT)
        return rp_render_fail(r, "TypeError", "Can only get item pairs from a mapping.");
    struct rp_value method = {.type = RP_VALUE_METHOD, .sub = RP_TM_ITEMS, .u.self = &a[0]};
    struct rp_value out = rp_tmethod_call(r, method, &no_args);
    out.type = rp_value_is_seq(out) ? RP_VALUE_GENERATOR : out.type;
    return out;
}

static struct rp_value filter_join(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_join", 1, "value", "d", "attribute")
    struct rp_value none = {.type = RP_VALUE_UNDEFINED};
    struct rp_value separator = rp_targ_given(a[1]) ? rp_value_text(r, a[1]) : rp_value_cstr("");
    struct rp_value items = a[0];
    if (r->failed)
        return rp_value_none();
    if (rp_targ_given(a[2]) && a[2].type != RP_VALUE_NONE) {
        const struct rp_tseq *from = rp_value_iterate(r, a[0]);
        items = make(r, RP_VALUE_LIST);
        if (!from || !rp_value_is_seq(items))
            return rp_value_none();
        for (size_t i = 0; i < from->count && !r->failed; i++)
            rp_tseq_add(&r->mem, items.u.seq,
                        rp_value_attribute_path(r, from->items[i], a[2], none));
    }
    return r->failed ? rp_value_none() : rp_tstr_join(r, separator, items, true);
}

/* batch and slice: lists of lists. */
static struct rp_value filter_batch(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_batch", 2, "value", "linecount", "fill_with")
    const struct rp_tseq *from = rp_value_iterate(r, a[0]);
    struct rp_value out = make(r, RP_VALUE_GENERATOR), line = rp_value_none();
    int64_t width = rp_value_is_integer(a[1]) ? rp_value_integer(a[1]) : 0;
    for (size_t i = 0; from && rp_value_is_seq(out) && i < from->count && rp_render_charge(r, 1);
         i++) {
        if (!rp_value_is_seq(line) || (int64_t)line.u.seq->count == width) {
            line = make(r, RP_VALUE_LIST);
            if (!rp_value_is_seq(line))
                break;
            rp_tseq_add(&r->mem, out.u.seq, line);
        }
        rp_tseq_add(&r->mem, line.u.seq, from->items[i]);
    }
    if (rp_value_is_seq(line) && rp_targ_given(a[2]) && a[2].type != RP_VALUE_NONE)
        while ((int64_t)line.u.seq->count < width && rp_render_charge(r, 1))
            rp_tseq_add(&r->mem, line.u.seq, a[2]);
    return out;
}

static struct rp_value filter_slice(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_slice", 2, "value", "slices", "fill_with")
    const struct rp_tseq *from = rp_value_iterate(r, a[0]);
    struct rp_value out = make(r, RP_VALUE_GENERATOR);
    int64_t slices = rp_value_is_integer(a[1]) ? rp_value_integer(a[1]) : 0;
    if (!from || !rp_value_is_seq(out))
        return rp_value_none();
    if (slices == 0)
        return rp_render_fail(r, "ZeroDivisionError", "integer division or modulo by zero");
    size_t at = 0, least = slices > 0 ? from->count / (size_t)slices : 0;
    for (int64_t i = 0; i < slices && rp_render_charge(r, 1); i++) {
        size_t count = least + ((size_t)i < from->count % (size_t)slices);
        struct rp_value part = make(r, RP_VALUE_LIST);
        if (!rp_value_is_seq(part))
            break;
        for (size_t k = 0; k < count; k++)
            rp_tseq_add(&r->mem, part.u.seq, from->items[at++]);
        if (rp_targ_given(a[2]) && a[2].type != RP_VALUE_NONE && count == least)
            rp_tseq_add(&r->mem, part.u.seq, a[2]);
        rp_tseq_add(&r->mem, out.u.seq, part);
    }
    return out;
}

/* ---- map, select, reject -------------------------------------------------------------- */

static const struct rp_value *keyword(const struct rp_tcall *call, const char *name) {
    for (size_t i = 0; i < call->keyword_count; i++)
        if (rp_value_is(call->names[i], name))
            return &call->values[i];
    return NULL;
}

static struct rp_value map_attribute(struct rp_trender *r, const struct rp_tcall *call,
                                     const struct rp_tseq *from, struct rp_value out) {
    const struct rp_value *attribute = keyword(call, "attribute"),
                          *given = keyword(call, "default");
    struct rp_value fallback = given ? *given : rp_value_none();
    for (size_t i = 0; i < call->keyword_count; i++)
        if (!rp_value_is(call->names[i], "attribute") && !rp_value_is(call->names[i], "default"))
            return rp_render_fail(r, "FilterArgumentError", "Unexpected keyword argument '%.*s'",
                                  (int)RP_MIN(call->names[i].len, 100u), call->names[i].u.s);
    for (size_t i = 0; i < from->count && rp_render_charge(r, 1); i++)
        rp_tseq_add(&r->mem, out.u.seq,
                    rp_value_attribute_path(r, from->items[i], *attribute, fallback));
    return r->failed ? rp_value_none() : out;
}

static struct rp_value no_name(struct rp_trender *r, const char *what, struct rp_value name) {
    if (name.type == RP_VALUE_UNDEFINED) {
        (void)rp_value_fail_undefined(r, name); /* for its words */
        char reason[sizeof r->fault->message];
        memcpy(reason, r->fault->message, sizeof reason);
        r->fault->kind = "TemplateRuntimeError";
        snprintf(r->fault->message, sizeof r->fault->message,
                 "No %s named Undefined. (%.200s; did you forget to quote the callable name?)",
                 what, reason);
        return rp_value_none();
    }
    struct rp_value text = rp_value_repr_string(r, name);
    return rp_render_fail(r, "TemplateRuntimeError", "No %s named %.*s.", what,
                          (int)RP_MIN(text.len, 200u),
                          text.type == RP_VALUE_STRING ? text.u.s : "");
}

static struct rp_value filter_map(struct rp_trender *r, const struct rp_tcall *call) {
    struct rp_value out = make(r, RP_VALUE_GENERATOR), item[16];
    if (!rp_value_is_seq(out) || !rp_value_truth(call->args[0]))
        return out;
    const struct rp_tseq *from = rp_value_iterate(r, call->args[0]);
    if (!from)
        return rp_value_none();
    if (call->count == 1 && keyword(call, "attribute"))
        return map_attribute(r, call, from, out);
    if (call->count == 1)
        return rp_render_fail(r, "FilterArgumentError", "map requires a filter argument");
    if (call->count - 1 > RP_ARRAY_COUNT(item))
        return rp_render_fail(r, "TypeError", "too many arguments");
    struct rp_tcall inner = *call;
    const struct rp_tfilter *filter =
        call->args[1].type == RP_VALUE_STRING ? rp_tfilter_find(call->args[1]) : NULL;
    inner.args = item;
    inner.count = call->count - 1;
    for (size_t i = 0; i < from->count && rp_render_enter(r); i++) {
        if (!filter)
            return no_name(r, "filter", call->args[1]);
        item[0] = from->items[i];
        memcpy(item + 1, call->args + 2, (call->count - 2) * sizeof *item);
        rp_tseq_add(&r->mem, out.u.seq, filter->run(r, &inner));
        rp_render_leave(r);
    }
    return r->failed ? rp_value_none() : out;
}

/* select and reject, by the value or (with_attribute) by an attribute of it. */
static struct rp_value choose(struct rp_trender *r, const struct rp_tcall *call, bool keep,
                              bool with_attribute) {
    size_t at = with_attribute ? 2 : 1;
    struct rp_value out = make(r, RP_VALUE_GENERATOR), item[8], none = {.type = RP_VALUE_UNDEFINED};
    if (!rp_value_is_seq(out) || !rp_value_truth(call->args[0]))
        return out;
    if (with_attribute && call->count < 2)
        return rp_render_fail(r, "FilterArgumentError", "Missing parameter for attribute name");
    const struct rp_tseq *from = rp_value_iterate(r, call->args[0]);
    if (!from)
        return rp_value_none();
    bool tested = call->count > at;
    const struct rp_ttest *test =
        tested && call->args[at].type == RP_VALUE_STRING ? rp_ttest_find(call->args[at]) : NULL;
    size_t more = tested ? call->count - at - 1 : 0;
    struct rp_tcall inner = {.args = item, .count = more + 1};
    if (more + 1 > RP_ARRAY_COUNT(item) || (test && more != test->args))
        return rp_render_fail(r, "TypeError", "the test takes other arguments");
    for (size_t i = 0; i < from->count && rp_render_charge(r, 1); i++) {
        item[0] = with_attribute ? rp_value_attribute_path(r, from->items[i], call->args[1], none)
                                 : from->items[i];
        if (r->failed)
            break;
        if (tested && !test)
            return no_name(r, "test", call->args[at]);
        if (more)
            memcpy(item + 1, call->args + at + 1, more * sizeof *item);
        if ((test ? test->run(r, &inner) : rp_value_truth(item[0])) == keep)
            rp_tseq_add(&r->mem, out.u.seq, from->items[i]);
    }
    return r->failed ? rp_value_none() : out;
}

static struct rp_value filter_select(struct rp_trender *r, const struct rp_tcall *call) {
    return choose(r, call, true, false);
}
static struct rp_value filter_reject(struct rp_trender *r, const struct rp_tcall *call) {
    return choose(r, call, false, false);
}
static struct rp_value filter_selectattr(struct rp_trender *r, const struct rp_tcall *call) {
    return choose(r, call, true, true);
}
static struct rp_value filter_rejectattr(struct rp_trender *r, const struct rp_tcall *call) {
    return choose(r, call, false, true);
}

const struct rp_tfilter rp_tfilters_list[] = {
    {"batch", filter_batch},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"groupby", filter_groupby},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"list", filter_list},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"reverse", filter_reverse},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
};
const size_t rp_tfilters_list_count = RP_ARRAY_COUNT(rp_tfilters_list);
