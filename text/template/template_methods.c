/* The methods of str, dict and list that a template may call. Those that change their object are
 * refused when they are called, as the immutable sandbox does. */
#include "text/template/template_internal.h"
#include "text/unicode/unicode.h"

#include <string.h>

static const char *const method_names[] = {
#define X(method, name) [RP_TM_##method] = name,
    RP_TM_MAP(X)
#undef X
};

const char *rp_tmethod_name(int method) { return method_names[method]; }

static bool is_one_of(struct rp_value name, const char *const *names) {
    for (size_t i = 0; names[i]; i++)
        if (rp_value_is(name, names[i]))
            return true;
    return false;
}

static int find_name(struct rp_value name, int first, int last) {
    for (int i = first; i <= last; i++)
        if (rp_value_is(name, method_names[i]))
            return i;
    return RP_TM_NONE;
}

/* What Python's types have besides; a template that reads one must not get an item instead. */
static const char *const str_others[] = {"encode",      "expandtabs", "format_map", "isidentifier",
                                         "isprintable", "maketrans",  "translate",  NULL};
static const char *const dict_changes[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
static const char *const list_changes[] = {"append", "clear",  "pop",    "reverse", "insert",
                                           "sort",   "extend", "remove", NULL};
static const char *const number_others[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag",
    "numerator",        "real",      "to_bytes",   NULL};

static int find_dict_method(struct rp_value name, bool *safe) {
    if (is_one_of(name, dict_changes)) {
        *safe = false;
        return RP_TM_UNSUPPORTED;
    }
    if (rp_value_is(name, "fromkeys"))
        return RP_TM_UNSUPPORTED;
    return find_name(name, RP_TM_GET, RP_TM_COPY);
}

static int find_list_method(struct rp_value name, bool is_list, bool *safe) {
    if (is_list && is_one_of(name, list_changes)) {
        *safe = false;
        return RP_TM_UNSUPPORTED;
    }
    if (is_list && rp_value_is(name, "copy"))
        return RP_TM_COPY;
    return rp_value_is(name, "count") ? RP_TM_COUNT : rp_value_is(name, "index") ? RP_TM_INDEX : 0;
}

/* Names that every Python object has; reading one is unsafe. */
static bool is_dunder(struct rp_value name) {
    static const char *const common[] = {
        "__class__",        "__doc__",     "__init__",      "__eq__",
        "__str__",          "__repr__",    "__dir__",       "__hash__",
        "__new__",          "__ne__",      "__getattr__",   "__setattr__",
        "__format__",       "__reduce__",  "__sizeof__",    "__subclasshook__",
        "__getattribute__", "__lt__",      "__gt__",        "__le__",
        "__ge__",           "__delattr__", "__reduce_ex__", "__init_subclass__",
        "__getstate__",     NULL};
    return name.len > 4 && name.u.s[0] == '_' && is_one_of(name, common);
}

int rp_tmethod_find(struct rp_value object, struct rp_value name, bool *safe) {
    *safe = true;
    if (name.type != RP_VALUE_STRING)
        return RP_TM_NONE;
    if (is_dunder(name)) {
        *safe = false;
        return RP_TM_UNSUPPORTED;
    }
    switch (object.type) {
    case RP_VALUE_STRING:
        if (is_one_of(name, str_others))
            return RP_TM_UNSUPPORTED;
        return find_name(name, RP_TM_CAPITALIZE, RP_TM_ZFILL);
    case RP_VALUE_DICT:
        return find_dict_method(name, safe);
    case RP_VALUE_LIST:
    case RP_VALUE_TUPLE:
    case RP_VALUE_RANGE:
        return find_list_method(name, object.type == RP_VALUE_LIST, safe);
    case RP_VALUE_BOOL:
    case RP_VALUE_INT:
    case RP_VALUE_FLOAT:
        return is_one_of(name, number_others) ? RP_TM_UNSUPPORTED : RP_TM_NONE;
    case RP_VALUE_CYCLER:
        return find_name(name, RP_TM_NEXT, RP_TM_RESET);
    default:
        return RP_TM_NONE;
    }
}

/* ---- Arguments ------------------------------------------------------------------------ */

static bool no_keywords(struct rp_trender *r, int method, const struct rp_tcall *call, size_t least,
                        size_t most) {
    if (call->keyword_count)
        (void)rp_render_fail(r, "TypeError", "%s() takes no keyword arguments",
                             method_names[method]);
    else if (call->count < least || call->count > most)
        (void)rp_render_fail(r, "TypeError", "%s() takes %zu to %zu arguments (%zu given)",
                             method_names[method], least, most, call->count);
    return !r->failed;
}

static bool is_string(struct rp_trender *r, struct rp_value v) {
    if (v.type != RP_VALUE_STRING)
        (void)rp_render_fail(r, "TypeError", "must be str, not %s", rp_value_type_name(v));
    return !r->failed;
}

static int64_t integer_or(struct rp_trender *r, const struct rp_tcall *call, size_t at,
                          int64_t otherwise) {
    if (at >= call->count || call->args[at].type == RP_VALUE_NONE)
        return otherwise;
    if (rp_value_is_integer(call->args[at]))
        return rp_value_integer(call->args[at]);
    (void)rp_render_fail(r, "TypeError", "'%s' object cannot be interpreted as an integer",
                         rp_value_type_name(call->args[at]));
    return otherwise;
}

/* s[start:end] for find, count, startswith; *offset is where it begins, in code points. */
static struct rp_value window(struct rp_trender *r, struct rp_value s, const struct rp_tcall *call,
                              int64_t *offset) {
    *offset = 0;
    if (call->count < 2)
        return s;
    int64_t n = (int64_t)rp_tstr_count(s);
    int64_t begin = integer_or(r, call, 1, 0), end = integer_or(r, call, 2, n);
    begin = RP_MAX(begin < 0 ? begin + n : begin, 0);
    end = RP_MIN(RP_MAX(end < 0 ? end + n : end, 0), n);
    *offset = begin;
    if (begin > end)
        return rp_value_none();
    return rp_value_slice(r, s, rp_value_int(begin), rp_value_int(end), rp_value_none());
}

/* ---- str ------------------------------------------------------------------------------ */

static bool affix(struct rp_value s, struct rp_value part, bool at_end) {
    return part.len <= s.len &&
           memcmp(s.u.s + (at_end ? s.len - part.len : 0), part.u.s, part.len) == 0;
}

static struct rp_value has_affix(struct rp_trender *r, struct rp_value s, int method,
                                 const struct rp_tcall *call) {
    int64_t offset;
    bool at_end = method == RP_TM_ENDSWITH;
    if (!no_keywords(r, method, call, 1, 3))
        return rp_value_none();
    struct rp_value part = call->args[0], text = window(r, s, call, &offset);
    if (r->failed)
        return rp_value_none();
    if (part.type == RP_VALUE_STRING)
        return rp_value_bool(text.type == RP_VALUE_STRING && affix(text, part, at_end));
    if (part.type != RP_VALUE_TUPLE)
        return rp_render_fail(r, "TypeError", "%s first arg must be str or a tuple of str, not %s",
                              method_names[method], rp_value_type_name(part));
    for (size_t i = 0; i < part.u.seq->count; i++) {
        if (!is_string(r, part.u.seq->items[i]))
            return rp_value_none();
        if (text.type == RP_VALUE_STRING && affix(text, part.u.seq->items[i], at_end))
            return rp_value_bool(true);
    }
    return rp_value_bool(false);
}

static struct rp_value find_text(struct rp_trender *r, struct rp_value s, int method,
                                 const struct rp_tcall *call) {
    int64_t offset;
    if (!no_keywords(r, method, call, 1, 3) || !is_string(r, call->args[0]) ||
        !rp_render_charge_bytes(r, s.len))
        return rp_value_none();
    struct rp_value text = window(r, s, call, &offset);
    if (r->failed)
        return rp_value_none();
    bool last = method == RP_TM_RFIND || method == RP_TM_RINDEX;
    size_t at = SIZE_MAX;
    if (text.type == RP_VALUE_STRING)
        at = last ? rp_tstr_find_last(r, text, call->args[0], text.len)
                  : rp_tstr_find(text, call->args[0], 0);
    if (at != SIZE_MAX)
        return rp_value_int(offset + (int64_t)rp_tstr_count(rp_value_sub(text, 0, at)));
    if (method == RP_TM_INDEX || method == RP_TM_RINDEX)
        return rp_render_fail(r, "ValueError", "substring not found");
    return rp_value_int(-1);
}

static struct rp_value count_text(struct rp_trender *r, struct rp_value s,
                                  const struct rp_tcall *call) {
    int64_t offset, count = 0;
    if (!no_keywords(r, RP_TM_COUNT, call, 1, 3) || !is_string(r, call->args[0]) ||
        !rp_render_charge_bytes(r, s.len))
        return rp_value_none();
    struct rp_value text = window(r, s, call, &offset), needle = call->args[0];
    if (text.type != RP_VALUE_STRING)
        return rp_value_int(0);
    if (needle.len == 0)
        return rp_value_int((int64_t)rp_tstr_count(text) + 1);
    for (size_t at = 0; (at = rp_tstr_find(text, needle, at)) != SIZE_MAX; at += needle.len)
        count++;
    return rp_value_int(count);
}

static struct rp_value partition(struct rp_trender *r, struct rp_value s, bool last,
                                 const struct rp_tcall *call) {
    struct rp_value out = rp_tseq_make(&r->mem, RP_VALUE_TUPLE, 3);
    if (out.type != RP_VALUE_TUPLE || !no_keywords(r, RP_TM_PARTITION, call, 1, 1) ||
        !is_string(r, call->args[0]))
        return rp_value_none();
    struct rp_value separator = call->args[0];
    if (separator.len == 0)
        return rp_render_fail(r, "ValueError", "empty separator");
    size_t at = last ? rp_tstr_find_last(r, s, separator, s.len) : rp_tstr_find(s, separator, 0);
    bool found = at != SIZE_MAX;
    size_t end = found ? at + separator.len : 0;
    struct rp_value parts[3] = {rp_value_sub(s, 0, 0), rp_value_sub(s, 0, 0),
                                rp_value_sub(s, 0, 0)};
    if (found) {
        parts[0] = rp_value_sub(s, 0, at);
        parts[1] = rp_value_sub(s, at, separator.len);
        parts[2] = rp_value_sub(s, end, s.len - end);
    } else {
        parts[last ? 2 : 0] = s;
    }
    for (int i = 0; i < 3; i++)
        rp_tseq_add(&r->mem, out.u.seq, parts[i]);
    return out;
}

static bool is_class(uint32_t code, int method) {
    unsigned flags = rp_unicode_record(code)->flags;
    bool alpha = rp_unicode_is_letter(code);
    bool decimal = rp_unicode_category(code) == RP_UNICODE_ND;
    bool digit = flags & RP_UNICODE_DIGIT, numeric = flags & RP_UNICODE_NUMERIC;
    switch (method) {
    case RP_TM_ISALPHA:
        return alpha;
    case RP_TM_ISALNUM:
        return rp_unicode_is_alnum(code);
    case RP_TM_ISDECIMAL:
        return decimal;
    case RP_TM_ISDIGIT:
        return digit;
    case RP_TM_ISNUMERIC:
        return numeric;
    case RP_TM_ISSPACE:
        return rp_tchar_is_space(code);
    default:
        return code < 0x80;
    }
}

static struct rp_value is_all(struct rp_trender *r, struct rp_value s, int method) {
    bool all = s.len > 0 || method == RP_TM_ISASCII;
    if (!rp_render_charge_bytes(r, s.len))
        return rp_value_none();
    for (size_t at = 0, size; at < s.len && all; at += size)
        all = is_class(rp_tstr_char(s, at, &size), method);
    return rp_value_bool(all);
}

/* islower, isupper, istitle */
static struct rp_value is_cased_as(struct rp_trender *r, struct rp_value s, int method) {
    bool any = false, in_word = false;
    if (!rp_render_charge_bytes(r, s.len))
        return rp_value_none();
    for (size_t at = 0, size; at < s.len; at += size) {
        const struct rp_unicode_record *c = rp_unicode_record(rp_tstr_char(s, at, &size));
        bool title = c->category == RP_UNICODE_LT;
        bool upper = c->flags & RP_UNICODE_UPPERCASE || title;
        bool lower = c->flags & RP_UNICODE_LOWERCASE;
        if ((method == RP_TM_ISLOWER && upper) || (method == RP_TM_ISUPPER && (lower || title)) ||
            (method == RP_TM_ISTITLE && ((upper && in_word) || (lower && !in_word))))
            return rp_value_bool(false);
        any = any || upper || lower;
        in_word = upper || lower;
    }
    return rp_value_bool(any);
}

static struct rp_value split(struct rp_trender *r, struct rp_value s, int method,
                             const struct rp_tcall *call) {
    static const char *const names[] = {"sep", "maxsplit"};
    struct rp_value a[2];
    if (!rp_render_bind(r, method_names[method], call, names, 2, 0, a))
        return rp_value_none();
    if (rp_targ_given(a[1]) && !rp_value_is_integer(a[1]))
        return rp_render_fail(r, "TypeError", "'%s' object cannot be interpreted as an integer",
                              rp_value_type_name(a[1]));
    return rp_tstr_split(r, s, rp_targ_given(a[0]) ? a[0] : rp_value_none(),
                         rp_targ_given(a[1]) ? rp_value_integer(a[1]) : -1, method == RP_TM_RSPLIT);
}

static struct rp_value strip(struct rp_trender *r, struct rp_value s, int method,
                             const struct rp_tcall *call) {
    int sides = method == RP_TM_LSTRIP ? 1 : method == RP_TM_RSTRIP ? 2 : 3;
    if (!no_keywords(r, method, call, 0, 1))
        return rp_value_none();
    struct rp_value chars = call->count ? call->args[0] : rp_value_none();
    if (chars.type != RP_VALUE_NONE && chars.type != RP_VALUE_STRING)
        return rp_render_fail(r, "TypeError", "%s arg must be None or str", method_names[method]);
    return rp_tstr_strip(r, s, chars, sides);
}

static struct rp_value replace(struct rp_trender *r, struct rp_value s,
                               const struct rp_tcall *call) {
    if (call->keyword_count || call->count < 2)
        return rp_render_fail(r, "TypeError", "replace expected at least 2 arguments, got %zu",
                              call->count);
    if (!no_keywords(r, RP_TM_REPLACE, call, 2, 3) || !is_string(r, call->args[0]) ||
        !is_string(r, call->args[1]))
        return rp_value_none();
    int64_t count = integer_or(r, call, 2, -1);
    return r->failed ? rp_value_none() : rp_tstr_replace(r, s, call->args[0], call->args[1], count);
}

static struct rp_value pad(struct rp_trender *r, struct rp_value s, int method,
                           const struct rp_tcall *call) {
    if (!no_keywords(r, method, call, 1, method == RP_TM_ZFILL ? 1 : 2))
        return rp_value_none();
    int64_t width = integer_or(r, call, 0, 0);
    struct rp_value fill =
        call->count > 1 ? call->args[1] : rp_value_cstr(method == RP_TM_ZFILL ? "0" : " ");
    if (r->failed || !is_string(r, fill))
        return rp_value_none();
    if (rp_tstr_count(fill) != 1)
        return rp_render_fail(r, "TypeError",
                              "The fill character must be exactly one character long");
    if (method != RP_TM_ZFILL || s.len == 0 || (s.u.s[0] != '-' && s.u.s[0] != '+'))
        return rp_tstr_pad(r, s, width, fill,
                           method == RP_TM_CENTER  ? 3
                           : method == RP_TM_LJUST ? 2
                                                   : 1);
    struct rp_tbuf buf; /* zeros go after the sign */
    rp_tbuf_init(&buf, &r->mem);
    rp_tbuf_sub(&buf, s, 0, 1);
    rp_tbuf_string(&buf, rp_tstr_pad(r, rp_value_sub(s, 1, s.len - 1u), width - 1, fill, 1));
    return rp_tbuf_finish(&buf);
}

static struct rp_value remove_affix(struct rp_trender *r, struct rp_value s, int method,
                                    const struct rp_tcall *call) {
    bool at_end = method == RP_TM_REMOVESUFFIX;
    if (!no_keywords(r, method, call, 1, 1) || !is_string(r, call->args[0]))
        return rp_value_none();
    if (!affix(s, call->args[0], at_end))
        return s;
    size_t n = call->args[0].len;
    return rp_value_sub(s, at_end ? 0 : n, s.len - n);
}

static struct rp_value change_case(struct rp_trender *r, struct rp_value s, int method) {
    return rp_tstr_case(r, s,
                        method == RP_TM_UPPER        ? RP_TCASE_UPPER
                        : method == RP_TM_TITLE      ? RP_TCASE_TITLE
                        : method == RP_TM_CAPITALIZE ? RP_TCASE_CAPITALIZE
                        : method == RP_TM_SWAPCASE   ? RP_TCASE_SWAP
                                                     : RP_TCASE_LOWER);
}

static struct rp_value call_string(struct rp_trender *r, struct rp_value s, int method,
                                   const struct rp_tcall *call) {
    switch (method) {
    case RP_TM_STARTSWITH:
    case RP_TM_ENDSWITH:
        return has_affix(r, s, method, call);
    case RP_TM_FIND:
    case RP_TM_RFIND:
    case RP_TM_INDEX:
    case RP_TM_RINDEX:
        return find_text(r, s, method, call);
    case RP_TM_COUNT:
        return count_text(r, s, call);
    case RP_TM_SPLIT:
    case RP_TM_RSPLIT:
        return split(r, s, method, call);
    case RP_TM_STRIP:
    case RP_TM_LSTRIP:
    case RP_TM_RSTRIP:
        return strip(r, s, method, call);
    case RP_TM_REPLACE:
        return replace(r, s, call);
    case RP_TM_FORMAT:
        return rp_tstr_format(r, s, call);
    case RP_TM_CENTER:
    case RP_TM_LJUST:
    case RP_TM_RJUST:
    case RP_TM_ZFILL:
        return pad(r, s, method, call);
    case RP_TM_REMOVEPREFIX:
    case RP_TM_REMOVESUFFIX:
        return remove_affix(r, s, method, call);
    case RP_TM_PARTITION:
    case RP_TM_RPARTITION:
        return partition(r, s, method == RP_TM_RPARTITION, call);
    default:
        break;
    }
    if (method == RP_TM_JOIN)
        return no_keywords(r, method, call, 1, 1) ? rp_tstr_join(r, s, call->args[0], false)
                                                  : rp_value_none();
    if (method == RP_TM_SPLITLINES) {
        static const char *const names[] = {"keepends"};
        struct rp_value a[1];
        if (!rp_render_bind(r, "splitlines", call, names, 1, 0, a))
            return rp_value_none();
        return rp_tstr_lines(r, s, rp_targ_given(a[0]) && rp_value_truth(a[0]));
    }
    if (!no_keywords(r, method, call, 0, 0))
        return rp_value_none();
    if (method == RP_TM_ISLOWER || method == RP_TM_ISUPPER || method == RP_TM_ISTITLE)
        return is_cased_as(r, s, method);
    if (method >= RP_TM_ISALNUM && method <= RP_TM_ISSPACE)
        return is_all(r, s, method);
    return change_case(r, s, method);
}

/* ---- dict, list, loop ----------------------------------------------------------------- */

static struct rp_value call_dict(struct rp_trender *r, struct rp_value dict, int method,
                                 const struct rp_tcall *call) {
    const struct rp_tdict *d = dict.u.dict;
    uint32_t hash;
    if (!no_keywords(r, method, call, method == RP_TM_GET, method == RP_TM_GET ? 2 : 0))
        return rp_value_none();
    if (method == RP_TM_COPY)
        return dict;
    if (method == RP_TM_GET) {
        if (!rp_value_hash(call->args[0], &hash))
            return rp_render_fail(r, "TypeError", "unhashable type: '%s'",
                                  rp_value_type_name(call->args[0]));
        const struct rp_value *value = rp_tdict_get(d, call->args[0]);
        return value ? *value : call->count > 1 ? call->args[1] : rp_value_none();
    }
    struct rp_value out = rp_tseq_make(&r->mem,
                                       method == RP_TM_ITEMS  ? RP_VALUE_DICT_ITEMS
                                       : method == RP_TM_KEYS ? RP_VALUE_DICT_KEYS
                                                              : RP_VALUE_DICT_VALUES,
                                       d->count);
    if (!rp_value_is_seq(out) || !rp_render_charge(r, d->count))
        return rp_value_none();
    for (size_t i = 0; i < d->count; i++) {
        struct rp_value item = method == RP_TM_KEYS ? d->entries[i].key : d->entries[i].value;
        if (method == RP_TM_ITEMS) {
            item = rp_tseq_make(&r->mem, RP_VALUE_TUPLE, 2);
            if (!rp_value_is_seq(item))
                return rp_value_none();
            rp_tseq_add(&r->mem, item.u.seq, d->entries[i].key);
            rp_tseq_add(&r->mem, item.u.seq, d->entries[i].value);
        }
        item.input = method == RP_TM_ITEMS ? dict.input : item.input;
        rp_tseq_add(&r->mem, out.u.seq, item);
    }
    out.input = dict.input;
    return out;
}

static struct rp_value call_list(struct rp_trender *r, struct rp_value list, int method,
                                 const struct rp_tcall *call) {
    int64_t count = 0;
    if (method == RP_TM_COPY)
        return list;
    if (!no_keywords(r, method, call, 1, 1))
        return rp_value_none();
    for (size_t i = 0; i < list.u.seq->count && rp_render_charge(r, 1); i++) {
        if (!rp_value_equal(r, list.u.seq->items[i], call->args[0]))
            continue;
        if (method == RP_TM_INDEX)
            return rp_value_int((int64_t)i);
        count++;
    }
    if (method == RP_TM_COUNT)
        return rp_value_int(count);
    struct rp_value text = rp_value_repr_string(r, call->args[0]);
    return rp_render_fail(r, "ValueError",
                          list.type == RP_VALUE_TUPLE ? "tuple.index(x): x not in tuple%.*s"
                                                      : "%.*s is not in list",
                          list.type == RP_VALUE_TUPLE ? 0 : (int)RP_MIN(text.len, 200u),
                          text.type == RP_VALUE_STRING ? text.u.s : "");
}

static struct rp_value call_loop(struct rp_trender *r, struct rp_tloop *loop, int method,
                                 const struct rp_tcall *call) {
    if (call->keyword_count)
        return rp_render_fail(r, "TypeError", "%s() takes no keyword arguments",
                              method_names[method]);
    if (method == RP_TM_CYCLE) {
        if (call->count == 0)
            return rp_render_fail(r, "TypeError", "no items for cycling given");
        return call->args[(uint64_t)loop->index0 % call->count];
    }
    struct rp_value now = rp_tseq_make(&r->mem, RP_VALUE_TUPLE, call->count);
    if (!rp_value_is_seq(now))
        return now;
    for (size_t i = 0; i < call->count; i++)
        rp_tseq_add(&r->mem, now.u.seq, call->args[i]);
    bool changed = !loop->has_changed || !rp_value_equal(r, loop->changed, now);
    loop->has_changed = true;
    loop->changed = now;
    return rp_value_bool(changed);
}

struct rp_value rp_tmethod_call(struct rp_trender *r, struct rp_value method,
                                const struct rp_tcall *call) {
    struct rp_value self = *method.u.self;
    if (method.sub == RP_TM_UNSUPPORTED)
        return rp_render_fail(r, "TypeError", "this method of '%s' is not supported",
                              rp_value_type_name(self));
    switch (self.type) {
    case RP_VALUE_STRING:
        return call_string(r, self, method.sub, call);
    case RP_VALUE_DICT:
        return call_dict(r, self, method.sub, call);
    case RP_VALUE_LOOP:
        return call_loop(r, self.u.loop, method.sub, call);
    case RP_VALUE_CYCLER: {
        struct rp_tseq *seq = self.u.seq;
        if (!no_keywords(r, method.sub, call, 0, 0))
            return rp_value_none();
        if (method.sub == RP_TM_RESET) {
            seq->taken = 0;
            return rp_value_none();
        }
        return seq->items[seq->taken++ % seq->count];
    }
    default:
        return call_list(r, self, method.sub, call);
    }
}
