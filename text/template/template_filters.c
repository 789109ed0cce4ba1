/* Filters on one value; those on lists are in template_filters_list.c. */
#include "text/template/template_internal.h"
#include "text/unicode/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Binds the arguments to `names`, the value first; returns from the filter on a fault. */
#define BIND(function, required, ...)                                                              \
    static const char *const names[] = {__VA_ARGS__};                                              \
    struct rp_value a[RP_ARRAY_COUNT(names)];                                                      \
    if (!rp_render_bind(r, function, call, names, RP_ARRAY_COUNT(names), required, a))             \
        return rp_value_none();

static bool flag(struct rp_value v) { return rp_targ_given(v) && rp_value_truth(v); }

static struct rp_value text_of(struct rp_trender *r, struct rp_value v) {
    return rp_value_text(r, v);
}

static struct rp_value filter_upper(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_upper", 1, "s")
    return rp_tstr_case(r, text_of(r, a[0]), RP_TCASE_UPPER);
}

static struct rp_value filter_lower(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_lower", 1, "s")
    return rp_tstr_case(r, text_of(r, a[0]), RP_TCASE_LOWER);
}

static struct rp_value filter_capitalize(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_capitalize", 1, "s")
    return rp_tstr_case(r, text_of(r, a[0]), RP_TCASE_CAPITALIZE);
}

/* Words begin after one of "-({[<" or white space. */
static struct rp_value filter_title(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_title", 1, "s")
    struct rp_value s = text_of(r, a[0]);
    struct rp_tbuf buf;
    size_t begin = 0;
    if (r->failed)
        return s;
    rp_tbuf_init(&buf, &r->mem);
    for (size_t at = 0, size = 0; at <= s.len && rp_render_charge(r, 1); at += size) {
        uint32_t code = at < s.len ? rp_tstr_char(s, at, &size) : ' ';
        size = at < s.len ? size : 1;
        if (!rp_tchar_is_space(code) && !(code < 0x80 && strchr("-({[<", (int)code)))
            continue;
        if (at > begin) {
            size_t first;
            (void)rp_tstr_char(s, begin, &first);
            rp_tbuf_string(&buf, rp_tstr_case(r, rp_value_sub(s, begin, first), RP_TCASE_UPPER));
            rp_tbuf_string(&buf, rp_tstr_case(r, rp_value_sub(s, begin + first, at - begin - first),
                                              RP_TCASE_LOWER));
        }
        if (at < s.len)
            rp_tbuf_sub(&buf, s, at, size);
        begin = at + size;
    }
    return rp_tbuf_finish(&buf);
}

static struct rp_value filter_trim(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_trim", 1, "value", "chars")
    struct rp_value s = text_of(r, a[0]);
    if (r->failed)
        return s;
    if (rp_targ_given(a[1]) && a[1].type != RP_VALUE_NONE && a[1].type != RP_VALUE_STRING)
        return rp_render_fail(r, "TypeError", "strip arg must be None or str");
    return rp_tstr_strip(r, s, a[1].type == RP_VALUE_STRING ? a[1] : rp_value_none(), 3);
}

static struct rp_value filter_string(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("soft_str", 1, "s")
    return text_of(r, a[0]);
}

static struct rp_value filter_safe(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_mark_safe", 1, "value")
    struct rp_value s = text_of(r, a[0]);
    s.markup = s.type == RP_VALUE_STRING;
    return s;
}

static struct rp_value filter_escape(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("escape", 1, "s")
    if (a[0].type == RP_VALUE_STRING && a[0].markup)
        return a[0];
    struct rp_value s = text_of(r, a[0]);
    return r->failed ? s : rp_tstr_escape(r, s);
}

static struct rp_value filter_forceescape(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_forceescape", 1, "value")
    struct rp_value s = text_of(r, a[0]);
    return r->failed ? s : rp_tstr_escape(r, s);
}

static struct rp_value filter_default(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_default", 1, "value", "default_value", "boolean")
    if (a[0].type != RP_VALUE_UNDEFINED && !(flag(a[2]) && !rp_value_truth(a[0])))
        return a[0];
    return rp_targ_given(a[1]) ? a[1] : rp_value_cstr("");
}

static struct rp_value filter_length(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("len", 1, "obj")
    int64_t n = rp_value_length(r, a[0]);
    return r->failed ? rp_value_none() : rp_value_int(n);
}

static struct rp_value filter_replace(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_replace", 3, "s", "old", "new", "count")
    struct rp_value s = text_of(r, a[0]), from = text_of(r, a[1]), to = text_of(r, a[2]);
    if (r->failed)
        return rp_value_none();
    s.markup = false;
    if (!rp_targ_given(a[3]) || a[3].type == RP_VALUE_NONE)
        return rp_tstr_replace(r, s, from, to, -1);
    if (!rp_value_is_integer(a[3]))
        return rp_render_fail(r, "TypeError", "'%s' object cannot be interpreted as an integer",
                              rp_value_type_name(a[3]));
    return rp_tstr_replace(r, s, from, to, rp_value_integer(a[3]));
}

static struct rp_value filter_format(struct rp_trender *r, const struct rp_tcall *call) {
    struct rp_value s = text_of(r, call->args[0]);
    if (r->failed)
        return s;
    if (call->count > 1 && call->keyword_count)
        return rp_render_fail(r, "FilterArgumentError",
                              "can't handle positional and keyword arguments at the same time");
    if (call->keyword_count) {
        struct rp_value dict = rp_tdict_make(&r->mem, RP_VALUE_DICT);
        for (size_t i = 0; dict.type == RP_VALUE_DICT && i < call->keyword_count; i++)
            rp_tdict_put(&r->mem, dict.u.dict, call->names[i], call->values[i]);
        return rp_tstr_percent(r, s, dict);
    }
    struct rp_value tuple = rp_tseq_make(&r->mem, RP_VALUE_TUPLE, call->count);
    for (size_t i = 1; rp_value_is_seq(tuple) && i < call->count; i++)
        rp_tseq_add(&r->mem, tuple.u.seq, call->args[i]);
    return rp_tstr_percent(r, s, tuple);
}

static struct rp_value filter_center(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_center", 1, "value", "width")
    struct rp_value s = text_of(r, a[0]);
    if (r->failed)
        return s;
    return rp_tstr_pad(r, s, rp_value_is_integer(a[1]) ? rp_value_integer(a[1]) : 80,
                       rp_value_cstr(" "), 3);
}

static struct rp_value filter_indent(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_indent", 1, "s", "width", "first", "blank")
    struct rp_value s = a[0], newline = rp_value_cstr("\n"), indention;
    struct rp_tbuf buf;
    if (s.type == RP_VALUE_UNDEFINED)
        return rp_value_fail_undefined(r, s);
    if (s.type != RP_VALUE_STRING)
        return rp_value_binary(r, RP_TOP_ADD, s, newline); /* says what it cannot add */
    indention = a[1].type == RP_VALUE_STRING
                    ? a[1]
                    : rp_tstr_repeat(r, rp_value_cstr(" "),
                                     rp_value_is_integer(a[1]) ? rp_value_integer(a[1]) : 4);
    struct rp_value lines = rp_tstr_lines(r, rp_value_binary(r, RP_TOP_ADD, s, newline), false);
    if (r->failed || !rp_value_is_seq(lines))
        return rp_value_none();
    rp_tbuf_init(&buf, &r->mem);
    for (size_t i = 0; i < lines.u.seq->count; i++) {
        struct rp_value line = lines.u.seq->items[i];
        if (!rp_render_charge_bytes(r, indention.len + 16u))
            return rp_value_none();
        if (i)
            rp_tbuf_string(&buf, newline);
        if (i ? flag(a[3]) || line.len > 0 : flag(a[2]))
            rp_tbuf_string(&buf, indention);
        rp_tbuf_string(&buf, line);
    }
    struct rp_value out = rp_tbuf_finish(&buf);
    out.markup = s.markup;
    return out;
}

static struct rp_value filter_truncate(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_truncate", 1, "s", "length", "killwords", "end", "leeway")
    int64_t length = rp_value_is_integer(a[1]) ? rp_value_integer(a[1]) : 255;
    int64_t leeway = rp_value_is_integer(a[4]) ? rp_value_integer(a[4]) : 5;
    struct rp_value s = a[0], end = a[3].type == RP_VALUE_STRING ? a[3] : rp_value_cstr("...");
    int64_t n = rp_value_length(r, s), tail = (int64_t)rp_tstr_count(end);
    if (r->failed || s.type != RP_VALUE_STRING)
        return s;
    if (length < tail || leeway < 0)
        return rp_render_fail(r, "AssertionError", "expected length >= %lld, got %lld",
                              (long long)tail, (long long)length);
    if (n <= length + leeway)
        return s;
    struct rp_value head = rp_value_sub(s, 0, rp_tstr_offset(s, (size_t)(length - tail)));
    if (!flag(a[2])) {
        struct rp_value parts = rp_tstr_split(r, head, rp_value_cstr(" "), 1, true);
        head = rp_value_is_seq(parts) ? parts.u.seq->items[0] : head;
    }
    return rp_value_binary(r, RP_TOP_ADD, head, end);
}

static struct rp_value filter_wordcount(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_wordcount", 1, "s")
    struct rp_value s = text_of(r, a[0]);
    int64_t words = 0;
    bool inside = false;
    for (size_t at = 0, size; !r->failed && at < s.len; at += size) {
        uint32_t code = rp_tstr_char(s, at, &size);
        bool word = code == '_' || rp_unicode_is_alnum(code);
        words += word && !inside;
        inside = word;
    }
    return rp_value_int(words);
}

static bool is_unreserved(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("_.-~", c));
}

static void quote_url(struct rp_tbuf *buf, struct rp_value s, bool query) {
    for (size_t at = 0; at < s.len; at++) {
        unsigned char c = (unsigned char)s.u.s[at];
        char text[4];
        if (is_unreserved(c) || (c == '/' && !query)) {
            rp_tbuf_sub(buf, s, at, 1);
        } else if (c == ' ' && query) {
            rp_tbuf_bytes(buf, "+", 1, rp_value_mark(s, at));
        } else {
            snprintf(text, sizeof text, "%%%02X", c);
            rp_tbuf_bytes(buf, text, 3, rp_value_mark(s, at));
        }
    }
}

static struct rp_value filter_urlencode(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_urlencode", 1, "value")
    struct rp_tbuf buf;
    rp_tbuf_init(&buf, &r->mem);
    if (a[0].type != RP_VALUE_DICT) {
        struct rp_value s = text_of(r, a[0]);
        if (!r->failed && rp_render_charge_bytes(r, s.len))
            quote_url(&buf, s, false);
        return rp_tbuf_finish(&buf);
    }
    for (size_t i = 0; i < a[0].u.dict->count && !r->failed; i++) {
        struct rp_value key = text_of(r, a[0].u.dict->entries[i].key);
        struct rp_value value = text_of(r, a[0].u.dict->entries[i].value);
        if (r->failed || !rp_render_charge_bytes(r, (size_t)key.len + value.len + 16))
            break;
        if (i)
            rp_tbuf_bytes(&buf, "&", 1, false);
        quote_url(&buf, key, true);
        rp_tbuf_bytes(&buf, "=", 1, false);
        quote_url(&buf, value, true);
    }
    return rp_tbuf_finish(&buf);
}

/* ---- Numbers -------------------------------------------------------------------------- */

static struct rp_value filter_abs(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("abs", 1, "x")
    if (a[0].type == RP_VALUE_FLOAT)
        return rp_value_float(fabs(a[0].u.f));
    if (a[0].type == RP_VALUE_UNDEFINED || !rp_value_is_integer(a[0]))
        return rp_render_fail(r, "TypeError", "bad operand type for abs(): '%s'",
                              rp_value_type_name(a[0]));
    int64_t i = rp_value_integer(a[0]);
    return i < 0 ? rp_value_binary(r, RP_TOP_SUB, rp_value_int(0), rp_value_int(i))
                 : rp_value_int(i);
}

/* Python's float("..."): white space around, no hexadecimal. */
static bool parse_float(struct rp_trender *r, struct rp_value s, double *out) {
    char text[64], *end;
    s = rp_tstr_strip(r, s, rp_value_none(), 3);
    if (s.len == 0 || s.len >= sizeof text || memchr(s.u.s, 'x', s.len) ||
        memchr(s.u.s, 'X', s.len) || memchr(s.u.s, '(', s.len))
        return false;
    memcpy(text, s.u.s, s.len);
    text[s.len] = 0;
    *out = strtod(text, &end);
    return *end == 0;
}

static bool parse_int(struct rp_trender *r, struct rp_value s, int64_t base, int64_t *out) {
    char text[80], *end;
    size_t n = 0;
    s = rp_tstr_strip(r, s, rp_value_none(), 3);
    for (size_t i = 0; i < s.len; i++) {
        char c = s.u.s[i];
        bool between = i > 0 && i + 1 < s.len && s.u.s[i - 1] != '_' && s.u.s[i + 1] != '_';
        if (c == '_' && between)
            continue;
        if (n + 1 >= sizeof text || (unsigned char)c <= ' ')
            return false;
        text[n++] = c;
    }
    text[n] = 0;
    const char *digits = text;
    size_t sign = text[0] == '-' || text[0] == '+';
    char prefix = n > sign + 2 && text[sign] == '0' ? (char)(text[sign + 1] | 0x20) : 0;
    if (base == 10 && prefix && strchr("box", prefix))
        return false;
    if ((base == 2 && prefix == 'b') || (base == 8 && prefix == 'o')) {
        memmove(text + sign, text + sign + 2, n - sign - 1);
        n -= 2;
    }
    if (n <= sign || base < 2 || base > 36)
        return false;
    *out = strtoll(digits, &end, (int)base);
    return *end == 0;
}

static struct rp_value filter_int(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_int", 1, "value", "default", "base")
    struct rp_value otherwise = rp_targ_given(a[1]) ? a[1] : rp_value_int(0);
    double number = 0;
    int64_t whole;
    if (a[0].type == RP_VALUE_UNDEFINED)
        return rp_value_fail_undefined(r, a[0]);
    if (rp_value_is_integer(a[0]))
        return rp_value_int(rp_value_integer(a[0]));
    if (a[0].type == RP_VALUE_STRING) {
        if (parse_int(r, a[0], rp_value_is_integer(a[2]) ? rp_value_integer(a[2]) : 10, &whole)) {
            struct rp_value v = rp_value_int(whole);
            v.input = a[0].input;
            return v;
        }
        if (!parse_float(r, a[0], &number))
            return otherwise;
    } else if (a[0].type == RP_VALUE_FLOAT) {
        number = a[0].u.f;
    } else {
        return otherwise;
    }
    return fabs(number) < 9e18 ? rp_value_int((int64_t)number) : otherwise;
}

static struct rp_value filter_float(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_float", 1, "value", "default")
    double number;
    if (a[0].type == RP_VALUE_UNDEFINED)
        return rp_value_fail_undefined(r, a[0]);
    if (rp_value_is_number(a[0]))
        return rp_value_float(rp_value_number(a[0]));
    if (a[0].type == RP_VALUE_STRING && parse_float(r, a[0], &number))
        return rp_value_float(number);
    return rp_targ_given(a[1]) ? a[1] : rp_value_float(0);
}

static struct rp_value filter_round(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_round", 1, "value", "precision", "method")
    int64_t precision = rp_value_is_integer(a[1]) ? rp_value_integer(a[1]) : 0;
    bool common = !rp_targ_given(a[2]) || rp_value_is(a[2], "common");
    char text[400], *end;
    if (!common && !rp_value_is(a[2], "ceil") && !rp_value_is(a[2], "floor"))
        return rp_render_fail(r, "FilterArgumentError", "method must be common, ceil or floor");
    if (a[0].type == RP_VALUE_UNDEFINED || !rp_value_is_number(a[0]))
        return rp_render_fail(r, "TypeError", "type %s doesn't define __round__ method",
                              rp_value_type_name(a[0]));
    if (precision < -300 || precision > 300)
        return rp_render_fail(r, "OverflowError", "rounded to too many digits");
    if (common && rp_value_is_integer(a[0]) && precision >= 0)
        return rp_value_int(rp_value_integer(a[0]));
    double value = rp_value_number(a[0]), scale = pow(10, (double)precision);
    if (!common)
        return rp_value_float(
            (rp_value_is(a[2], "ceil") ? ceil(value * scale) : floor(value * scale)) / scale);
    if (precision < 0 || !(fabs(value) < 1e30)) {
        value = fabs(value) < 1e300 ? rint(value * scale) / scale : value;
        return rp_value_is_integer(a[0]) ? rp_value_int((int64_t)value) : rp_value_float(value);
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, value); /* correctly rounded, as Python */
    return rp_value_float(strtod(text, &end));
}

static struct rp_value filter_tojson(struct rp_trender *r, const struct rp_tcall *call) {
    return rp_value_tojson(r, call);
}

static struct rp_value filter_attr(struct rp_trender *r, const struct rp_tcall *call) {
    BIND("do_attr", 2, "obj", "name")
    struct rp_value value = rp_value_getattr(r, a[0], a[1]);
    /* Only attributes: what a dict holds under this name is an item. */
    if (!r->failed && a[0].type == RP_VALUE_DICT && value.type != RP_VALUE_METHOD &&
        value.type != RP_VALUE_UNDEFINED)
        return rp_value_undefined_member(r, a[0], a[1]);
    return value;
}

static const struct rp_tfilter filters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"length", filter_length},
    {"lower", filter_lower},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", filter_upper},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
};

const struct rp_tfilter *rp_tfilter_find(struct rp_value name) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(filters); i++)
        if (rp_value_is(name, filters[i].name))
            return &filters[i];
    for (size_t i = 0; i < rp_tfilters_list_count; i++)
        if (rp_value_is(name, rp_tfilters_list[i].name))
            return &rp_tfilters_list[i];
    return NULL;
}
