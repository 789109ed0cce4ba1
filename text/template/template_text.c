/* Values as text: Python's str() and repr(), and JSON as json.dumps writes it. */
#include "base/utf8.h"
#include "text/template/template_internal.h"
#include "text/unicode/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void put(struct rp_tbuf *out, const char *text, bool input) {
    rp_tbuf_bytes(out, text, strlen(text), input);
}

static bool is_printable(uint32_t code) {
    if (code < 0x7F)
        return code >= 0x20;
    enum rp_unicode_category category = rp_unicode_category(code);
    return category != RP_UNICODE_CC && category != RP_UNICODE_CF && category != RP_UNICODE_CS &&
           category != RP_UNICODE_CO && category != RP_UNICODE_CN && category != RP_UNICODE_ZL &&
           category != RP_UNICODE_ZP && category != RP_UNICODE_ZS;
}

static void repr_string(struct rp_trender *r, struct rp_tbuf *out, struct rp_value s) {
    bool input = s.len ? rp_value_mark(s, 0) : s.input;
    char quote = memchr(s.u.s, '\'', s.len) && !memchr(s.u.s, '"', s.len) ? '"' : '\'';
    char text[16];
    if (!rp_render_charge_bytes(r, s.len))
        return;
    if (s.markup)
        put(out, "Markup(", input);
    rp_tbuf_bytes(out, &quote, 1, input);
    for (size_t at = 0, size; at < s.len; at += size) {
        uint32_t code = rp_tstr_char(s, at, &size);
        const char *escaped = NULL;
        if (code == (uint32_t)quote || code == '\\') {
            snprintf(text, sizeof text, "\\%c", (char)code);
            escaped = text;
        } else if (code == '\n') {
            escaped = "\\n";
        } else if (code == '\r') {
            escaped = "\\r";
        } else if (code == '\t') {
            escaped = "\\t";
        } else if (!is_printable(code)) {
            snprintf(text, sizeof text,
                     code < 0x100     ? "\\x%02" PRIx32
                     : code < 0x10000 ? "\\u%04" PRIx32
                                      : "\\U%08" PRIx32,
                     code);
            escaped = text;
        }
        if (escaped)
            put(out, escaped, rp_value_mark(s, at));
        else
            rp_tbuf_sub(out, s, at, size);
    }
    rp_tbuf_bytes(out, &quote, 1, input);
    if (s.markup)
        put(out, ")", input);
}

static void repr_items(struct rp_trender *r, struct rp_tbuf *out, struct rp_value v,
                       const char *open, const char *close) {
    const struct rp_tseq *seq = v.u.seq;
    put(out, open, v.input);
    for (size_t i = 0; i < seq->count && !r->failed; i++) {
        if (i)
            put(out, ", ", v.input);
        rp_value_repr(r, out, seq->items[i]);
    }
    if (v.type == RP_VALUE_TUPLE && seq->count == 1)
        put(out, ",", v.input);
    put(out, close, v.input);
}

static void repr_dict(struct rp_trender *r, struct rp_tbuf *out, struct rp_value v) {
    const struct rp_tdict *dict = v.u.dict;
    put(out, v.type == RP_VALUE_NAMESPACE ? "<Namespace {" : "{", v.input);
    for (size_t i = 0; i < dict->count && !r->failed; i++) {
        if (i)
            put(out, ", ", v.input);
        rp_value_repr(r, out, dict->entries[i].key);
        put(out, ": ", v.input);
        rp_value_repr(r, out, dict->entries[i].value);
    }
    put(out, v.type == RP_VALUE_NAMESPACE ? "}>" : "}", v.input);
}

static void repr_range(struct rp_tbuf *out, struct rp_value v) {
    const struct rp_tseq *seq = v.u.seq; /* bounds that give the same numbers */
    char text[80];
    int64_t first = seq->count ? seq->items[0].u.i : 0;
    int64_t step = seq->count > 1 ? seq->items[1].u.i - first : 1;
    int64_t stop = first + (int64_t)seq->count * step;
    if (step == 1)
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", first, stop);
    else
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")", first, stop,
                 step);
    put(out, text, v.input);
}

static void repr_scalar(struct rp_trender *r, struct rp_tbuf *out, struct rp_value v) {
    char text[40];
    switch (v.type) {
    case RP_VALUE_UNDEFINED:
        put(out, "Undefined", v.input);
        break;
    case RP_VALUE_NONE:
        put(out, "None", v.input);
        break;
    case RP_VALUE_BOOL:
        put(out, v.u.b ? "True" : "False", v.input);
        break;
    case RP_VALUE_INT:
        snprintf(text, sizeof text, "%" PRId64, v.u.i);
        put(out, text, v.input);
        break;
    case RP_VALUE_FLOAT:
        (void)rp_tfloat_repr(v.u.f, text);
        put(out, text, v.input);
        break;
    case RP_VALUE_MACRO:
        put(out, "<Macro ", false);
        rp_value_repr(r, out, v.u.macro->name);
        put(out, ">", false);
        break;
    default: /* Python shows an address here */
        put(out, "<", false);
        put(out, rp_value_type_name(v), false);
        put(out, " object>", false);
    }
}

void rp_value_repr(struct rp_trender *r, struct rp_tbuf *out, struct rp_value v) {
    if (!rp_render_enter(r))
        return;
    switch (v.type) {
    case RP_VALUE_STRING:
        repr_string(r, out, v);
        break;
    case RP_VALUE_LIST:
        repr_items(r, out, v, "[", "]");
        break;
    case RP_VALUE_TUPLE:
        repr_items(r, out, v, "(", ")");
        break;
    case RP_VALUE_DICT_ITEMS:
        repr_items(r, out, v, "dict_items([", "])");
        break;
    case RP_VALUE_DICT_KEYS:
        repr_items(r, out, v, "dict_keys([", "])");
        break;
    case RP_VALUE_DICT_VALUES:
        repr_items(r, out, v, "dict_values([", "])");
        break;
    case RP_VALUE_RANGE:
        repr_range(out, v);
        break;
    case RP_VALUE_DICT:
    case RP_VALUE_NAMESPACE:
        repr_dict(r, out, v);
        break;
    default:
        repr_scalar(r, out, v);
    }
    rp_render_leave(r);
}

struct rp_value rp_value_repr_string(struct rp_trender *r, struct rp_value v) {
    struct rp_tbuf buf;
    rp_tbuf_init(&buf, &r->mem);
    rp_value_repr(r, &buf, v);
    return r->mem.failed ? rp_value_none() : rp_tbuf_finish(&buf);
}

struct rp_value rp_value_text(struct rp_trender *r, struct rp_value v) {
    if (v.type == RP_VALUE_STRING)
        return v;
    if (v.type == RP_VALUE_UNDEFINED)
        return rp_value_str("", 0, v.input);
    return rp_value_repr_string(r, v);
}

/* ---- JSON ----------------------------------------------------------------------------- */

struct json {
    struct rp_trender *r;
    struct rp_tbuf out;
    bool ascii, sort;
    struct rp_value indent; /* a string; none: one line */
    struct rp_value item_separator, key_separator;
    size_t level;
};

static void json_string(struct json *j, struct rp_value s) {
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    bool input = s.len ? rp_value_mark(s, 0) : s.input;
    size_t begin = 0;
    char text[16];
    if (!rp_render_charge_bytes(j->r, s.len))
        return;
    rp_tbuf_bytes(&j->out, "\"", 1, input);
    for (size_t at = 0, size; at < s.len; at += size) {
        unsigned char c = (unsigned char)s.u.s[at];
        size = 1;
        if (c >= 0x20 && c != '"' && c != '\\' && (!j->ascii || c < 0x7F))
            continue;
        rp_tbuf_sub(&j->out, s, begin, at - begin);
        const char *simple = memchr(from, c, sizeof from - 1);
        uint32_t code = rp_tstr_char(s, at, &size);
        if (simple)
            snprintf(text, sizeof text, "\\%c", to[simple - from]);
        else if (code < 0x10000)
            snprintf(text, sizeof text, "\\u%04" PRIx32, code);
        else
            snprintf(text, sizeof text, "\\u%04" PRIx32 "\\u%04" PRIx32,
                     0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF));
        put(&j->out, text, rp_value_mark(s, at));
        begin = at + size;
    }
    rp_tbuf_sub(&j->out, s, begin, s.len - begin);
    rp_tbuf_bytes(&j->out, "\"", 1, s.len ? rp_value_mark(s, s.len - 1) : input);
}

static void json_newline(struct json *j, bool input) {
    if (j->indent.type != RP_VALUE_STRING)
        return;
    rp_tbuf_bytes(&j->out, "\n", 1, input);
    for (size_t i = 0; i < j->level && rp_render_charge_bytes(j->r, j->indent.len); i++)
        rp_tbuf_bytes(&j->out, j->indent.u.s, j->indent.len, input || j->indent.input);
}

static void json_value(struct json *j, struct rp_value v);

static void json_separator(struct json *j, struct rp_value separator, bool input) {
    rp_tbuf_bytes(&j->out, separator.u.s, separator.len,
                  input || (separator.len && rp_value_mark(separator, 0)));
}

static void json_list(struct json *j, struct rp_value v) {
    put(&j->out, "[", v.input);
    j->level++;
    for (size_t i = 0; i < v.u.seq->count && !j->r->failed; i++) {
        if (i)
            json_separator(j, j->item_separator, v.input);
        json_newline(j, v.input);
        json_value(j, v.u.seq->items[i]);
    }
    j->level--;
    if (v.u.seq->count)
        json_newline(j, v.input);
    put(&j->out, "]", v.input);
}

static void json_float(struct rp_tbuf *out, struct rp_value v) {
    char text[40];
    (void)rp_tfloat_repr(v.u.f, text);
    put(out,
        isnan(v.u.f)   ? "NaN"
        : isinf(v.u.f) ? v.u.f < 0 ? "-Infinity" : "Infinity"
                       : text,
        v.input);
}

static void json_key(struct json *j, struct rp_value key) {
    struct rp_tbuf text;
    if (key.type == RP_VALUE_STRING) {
        json_string(j, key);
        return;
    }
    rp_tbuf_init(&text, &j->r->mem);
    if (key.type == RP_VALUE_NONE)
        put(&text, "null", key.input);
    else if (key.type == RP_VALUE_BOOL)
        put(&text, key.u.b ? "true" : "false", key.input);
    else if (key.type == RP_VALUE_FLOAT)
        json_float(&text, key);
    else if (key.type == RP_VALUE_INT)
        rp_value_repr(j->r, &text, key);
    else
        (void)rp_render_fail(j->r, "TypeError",
                             "keys must be str, int, float, bool or None, not %s",
                             rp_value_type_name(key));
    json_string(j, rp_tbuf_finish(&text));
}

static void json_dict(struct json *j, struct rp_value v) {
    const struct rp_tdict *dict = v.u.dict;
    struct rp_value *keys = rp_tmem_calloc(&j->r->mem, dict->count + 1, sizeof *keys);
    struct rp_value *values = rp_tmem_calloc(&j->r->mem, dict->count + 1, sizeof *values);
    if (!keys || !values)
        return;
    for (size_t i = 0; i < dict->count; i++) {
        keys[i] = dict->entries[i].key;
        values[i] = dict->entries[i].value;
    }
    if (j->sort) {
        struct rp_value *order = rp_tmem_calloc(&j->r->mem, dict->count + 1, sizeof *order);
        for (size_t i = 0; order && i < dict->count; i++)
            order[i] = rp_value_int((int64_t)i);
        if (!order || !rp_value_sort(j->r, order, keys, dict->count, false))
            return;
        for (size_t i = 0; i < dict->count; i++)
            values[i] = dict->entries[order[i].u.i].value;
    }
    put(&j->out, "{", v.input);
    j->level++;
    for (size_t i = 0; i < dict->count && !j->r->failed; i++) {
        if (i)
            json_separator(j, j->item_separator, v.input);
        json_newline(j, v.input);
        json_key(j, keys[i]);
        json_separator(j, j->key_separator, v.input);
        json_value(j, values[i]);
    }
    j->level--;
    if (dict->count)
        json_newline(j, v.input);
    put(&j->out, "}", v.input);
}

static void json_value(struct json *j, struct rp_value v) {
    if (!rp_render_enter(j->r))
        return;
    switch (v.type) {
    case RP_VALUE_NONE:
        put(&j->out, "null", v.input);
        break;
    case RP_VALUE_BOOL:
        put(&j->out, v.u.b ? "true" : "false", v.input);
        break;
    case RP_VALUE_INT:
        rp_value_repr(j->r, &j->out, v);
        break;
    case RP_VALUE_FLOAT:
        json_float(&j->out, v);
        break;
    case RP_VALUE_STRING:
        json_string(j, v);
        break;
    case RP_VALUE_LIST:
    case RP_VALUE_TUPLE:
        json_list(j, v);
        break;
    case RP_VALUE_DICT:
        json_dict(j, v);
        break;
    default:
        (void)rp_render_fail(j->r, "TypeError", "Object of type %s is not JSON serializable",
                             rp_value_type_name(v));
    }
    rp_render_leave(j->r);
}

/* transformers' tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False) */
struct rp_value rp_value_tojson(struct rp_trender *r, const struct rp_tcall *call) {
    static const char *const names[] = {"x", "ensure_ascii", "indent", "separators", "sort_keys"};
    struct rp_value a[5];
    if (!rp_render_bind(r, "tojson", call, names, 5, 1, a))
        return rp_value_none();
    struct json j = {.r = r,
                     .ascii = rp_targ_given(a[1]) && rp_value_truth(a[1]),
                     .sort = rp_targ_given(a[4]) && rp_value_truth(a[4]),
                     .indent = rp_value_none()};
    if (rp_value_is_integer(a[2]))
        j.indent = rp_tstr_repeat(r, rp_value_cstr(" "), rp_value_integer(a[2]));
    else if (a[2].type == RP_VALUE_STRING)
        j.indent = a[2];
    j.item_separator = rp_value_cstr(j.indent.type == RP_VALUE_STRING ? "," : ", ");
    j.key_separator = rp_value_cstr(": ");
    if (rp_value_is_seq(a[3]) && a[3].u.seq->count == 2 &&
        a[3].u.seq->items[0].type == RP_VALUE_STRING &&
        a[3].u.seq->items[1].type == RP_VALUE_STRING) {
        j.item_separator = a[3].u.seq->items[0];
        j.key_separator = a[3].u.seq->items[1];
    } else if (rp_targ_given(a[3]) && a[3].type != RP_VALUE_NONE) {
        return rp_render_fail(r, "TypeError", "separators must be two strings");
    }
    rp_tbuf_init(&j.out, &r->mem);
    json_value(&j, a[0]);
    return r->failed ? rp_value_none() : rp_tbuf_finish(&j.out);
}
