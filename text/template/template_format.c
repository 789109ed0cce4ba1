/* String formatting: the operator % and str.format as far as templates use them, and strftime. */
#include "text/template/template_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct spec {
    bool left, plus, space, zero, alternate, comma, center;
    struct rp_value fill;
    int64_t width, precision; /* precision -1: none */
    char type;
};

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static int64_t read_number(struct rp_value s, size_t *at) {
    int64_t n = 0;
    while (*at < s.len && is_digit(s.u.s[*at])) {
        n = RP_MIN(n * 10 + (s.u.s[*at] - '0'), (int64_t)1 << 30);
        (*at)++;
    }
    return n;
}

/* Digits in groups of three. */
static void group_digits(char *text, size_t size) {
    size_t n = strlen(text), begin = text[0] == '-', end = begin;
    while (end < n && is_digit(text[end]))
        end++;
    for (size_t at = end; at > begin + 3 && n + 1 < size;) {
        at -= 3;
        memmove(text + at + 1, text + at, n - at + 1);
        text[at] = ',';
        n++;
    }
}

static void format_integer(char *out, size_t size, const struct spec *spec, int64_t value) {
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    char digits[80];
    size_t n = 0;
    const char *prefix = "";
    if (spec->type == 'b') {
        for (int bit = 63; bit >= 0; bit--)
            if (n || (magnitude >> bit & 1) || bit == 0)
                digits[n++] = (char)('0' + (magnitude >> bit & 1));
        digits[n] = 0;
        prefix = "0b";
    } else {
        snprintf(digits, sizeof digits,
                 spec->type == 'x'   ? "%" PRIx64
                 : spec->type == 'X' ? "%" PRIX64
                 : spec->type == 'o' ? "%" PRIo64
                                     : "%" PRIu64,
                 magnitude);
        prefix = spec->type == 'x'   ? "0x"
                 : spec->type == 'X' ? "0X"
                 : spec->type == 'o' ? "0o"
                                     : "";
    }
    if (spec->comma)
        group_digits(digits, sizeof digits);
    snprintf(out, size, "%s%s%s",
             value < 0     ? "-"
             : spec->plus  ? "+"
             : spec->space ? " "
                           : "",
             spec->alternate ? prefix : "", digits);
}

static void format_float(char *out, size_t size, const struct spec *spec, double value) {
    char digits[512], layout[16];
    char type = spec->type == '%' ? 'f' : spec->type;
    int precision = (int)(spec->precision < 0 ? 6 : RP_MIN(spec->precision, 60));
    if (!(fabs(value) < 1e300) && type == 'f')
        type = 'e';
    snprintf(layout, sizeof layout, "%%%s.*%c", spec->alternate ? "#" : "", type);
    /* the layout is one of a few that were just made */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(digits, sizeof digits, layout, precision, spec->type == '%' ? value * 100 : value);
#pragma GCC diagnostic pop
    if (spec->comma)
        group_digits(digits, sizeof digits);
    snprintf(out, size, "%s%s%s",
             signbit(value) ? ""
             : spec->plus   ? "+"
             : spec->space  ? " "
                            : "",
             digits, spec->type == '%' ? "%" : "");
}

static struct rp_value put_padded(struct rp_trender *r, struct rp_value text,
                                  const struct spec *spec, bool number) {
    struct rp_value fill = spec->fill.type == RP_VALUE_STRING ? spec->fill : rp_value_cstr(" ");
    if (number && spec->zero && !spec->left) {
        size_t sign = text.len && strchr("+- ", text.u.s[0]) ? 1 : 0;
        struct rp_tbuf buf;
        rp_tbuf_init(&buf, &r->mem);
        rp_tbuf_sub(&buf, text, 0, sign);
        rp_tbuf_string(&buf, rp_tstr_pad(r, rp_value_sub(text, sign, text.len - sign),
                                         spec->width - (int64_t)sign, rp_value_cstr("0"), 1));
        return rp_tbuf_finish(&buf);
    }
    return rp_tstr_pad(r, text, spec->width, fill, spec->center ? 3 : spec->left ? 2 : 1);
}

static struct rp_value cut(struct rp_value text, int64_t precision) {
    if (precision < 0)
        return text;
    return rp_value_sub(text, 0, rp_tstr_offset(text, (size_t)precision));
}

static struct rp_value own_text(struct rp_trender *r, const char *text, bool input) {
    struct rp_tbuf buf;
    rp_tbuf_init(&buf, &r->mem);
    rp_tbuf_bytes(&buf, text, strlen(text), input);
    return rp_tbuf_finish(&buf);
}

/* ---- % -------------------------------------------------------------------------------- */

struct percent {
    struct rp_trender *r;
    struct rp_value format, args;
    size_t at, used;
    bool mapped;
};

static struct rp_value next_argument(struct percent *p) {
    if (p->args.type == RP_VALUE_TUPLE) {
        if (p->used < p->args.u.seq->count)
            return p->args.u.seq->items[p->used++];
    } else if (p->used++ == 0) {
        return p->args;
    }
    return rp_render_fail(p->r, "TypeError", "not enough arguments for format string");
}

static void parse_percent(struct percent *p, struct spec *spec) {
    static const char flags[] = "-+ 0#";
    const struct rp_value f = p->format;
    bool *const to[] = {&spec->left, &spec->plus, &spec->space, &spec->zero, &spec->alternate};
    *spec = (struct spec){.precision = -1};
    for (const char *flag; p->at < f.len && (flag = memchr(flags, f.u.s[p->at], 5)); p->at++)
        *to[flag - flags] = true;
    spec->width = read_number(f, &p->at);
    if (p->at < f.len && f.u.s[p->at] == '.') {
        p->at++;
        spec->precision = read_number(f, &p->at);
    }
    while (p->at < f.len && strchr("hlL", f.u.s[p->at]))
        p->at++;
    spec->type = p->at < f.len ? f.u.s[p->at++] : 0;
}

static struct rp_value percent_number(struct rp_trender *r, const struct spec *spec,
                                      struct rp_value value) {
    char text[600];
    bool whole = strchr("diuxXo", spec->type) != NULL;
    if (value.type == RP_VALUE_UNDEFINED && !strchr("xXo", spec->type))
        return rp_value_fail_undefined(r, value);
    if (!rp_value_is_number(value) || (strchr("xXo", spec->type) && value.type == RP_VALUE_FLOAT))
        return whole ? rp_render_fail(r, "TypeError",
                                      strchr("xXo", spec->type)
                                          ? "%%%c format: an integer is required, not %s"
                                          : "%%%c format: a real number is required, not %s",
                                      spec->type, rp_value_type_name(value))
                     : rp_render_fail(r, "TypeError", "must be real number, not %s",
                                      rp_value_type_name(value));
    if (!whole) {
        format_float(text, sizeof text, spec, rp_value_number(value));
    } else if (value.type == RP_VALUE_FLOAT) {
        if (!(fabs(value.u.f) < 9e18))
            return rp_render_fail(r, "OverflowError", "cannot convert float to integer");
        format_integer(text, sizeof text, spec, (int64_t)value.u.f);
    } else {
        format_integer(text, sizeof text, spec, rp_value_integer(value));
    }
    return put_padded(r, own_text(r, text, value.input), spec, true);
}

static struct rp_value percent_one(struct percent *p, const struct spec *spec,
                                   struct rp_value value) {
    struct rp_trender *r = p->r;
    if (spec->type == 's' || spec->type == 'r') {
        struct rp_value text =
            spec->type == 's' ? rp_value_text(r, value) : rp_value_repr_string(r, value);
        return r->failed ? text : put_padded(r, cut(text, spec->precision), spec, false);
    }
    if (spec->type == 'c') {
        if (value.type == RP_VALUE_STRING && rp_tstr_count(value) == 1)
            return put_padded(r, value, spec, false);
        return rp_render_fail(r, "TypeError", "%%c requires int or char");
    }
    if (spec->type && strchr("diuxXoeEfFgG", spec->type))
        return percent_number(r, spec, value);
    if (!spec->type)
        return rp_render_fail(r, "ValueError", "incomplete format");
    return rp_render_fail(r, "ValueError", "unsupported format character '%c' (0x%x) at index %zu",
                          spec->type, (unsigned char)spec->type, p->at - 1);
}

static struct rp_value mapped_argument(struct percent *p) {
    const struct rp_value f = p->format;
    size_t begin = ++p->at;
    if (p->args.type != RP_VALUE_DICT)
        return rp_render_fail(p->r, "TypeError", "format requires a mapping");
    while (p->at < f.len && f.u.s[p->at] != ')')
        p->at++;
    if (p->at >= f.len)
        return rp_render_fail(p->r, "ValueError", "incomplete format key");
    struct rp_value key = rp_value_sub(f, begin, p->at - begin);
    const struct rp_value *value = rp_tdict_get(p->args.u.dict, key);
    p->at++;
    p->mapped = true;
    if (value)
        return *value;
    struct rp_value text = rp_value_repr_string(p->r, key);
    return rp_render_fail(p->r, "KeyError", "%.*s", (int)RP_MIN(text.len, 200u), text.u.s);
}

struct rp_value rp_tstr_percent(struct rp_trender *r, struct rp_value format,
                                struct rp_value args) {
    struct percent p = {.r = r, .format = format, .args = args};
    struct rp_tbuf buf;
    struct spec spec;
    rp_tbuf_init(&buf, &r->mem);
    while (p.at < format.len && rp_render_charge(r, 1)) {
        const char *percent = memchr(format.u.s + p.at, '%', format.len - p.at);
        size_t stop = percent ? (size_t)(percent - format.u.s) : format.len;
        rp_tbuf_sub(&buf, format, p.at, stop - p.at);
        p.at = stop + 1;
        if (!percent)
            break;
        if (p.at < format.len && format.u.s[p.at] == '%') {
            rp_tbuf_sub(&buf, format, p.at++, 1);
            continue;
        }
        bool mapped = p.at < format.len && format.u.s[p.at] == '(';
        struct rp_value value = mapped ? mapped_argument(&p) : rp_value_none();
        if (r->failed)
            break;
        parse_percent(&p, &spec);
        if (!mapped && spec.type)
            value = next_argument(&p);
        struct rp_value text = r->failed ? value : percent_one(&p, &spec, value);
        if (r->failed || !rp_render_charge_bytes(r, text.len))
            break;
        rp_tbuf_string(&buf, text);
    }
    bool left_over = args.type == RP_VALUE_TUPLE ? p.used < args.u.seq->count
                                                 : p.used == 0 && args.type != RP_VALUE_DICT;
    if (!r->failed && left_over && args.type != RP_VALUE_LIST)
        return rp_render_fail(r, "TypeError",
                              "not all arguments converted during string formatting");
    return r->failed ? rp_value_none() : rp_tbuf_finish(&buf);
}

/* ---- str.format ----------------------------------------------------------------------- */

static bool parse_spec(struct rp_trender *r, struct rp_value s, struct spec *spec) {
    size_t at = 0, first = 0;
    const char *text = s.u.s;
    *spec = (struct spec){.precision = -1};
    if (s.len)
        (void)rp_tstr_char(s, 0, &first);
    char align = 0;
    if (first && first < s.len && strchr("<>^=", text[first])) {
        spec->fill = rp_value_sub(s, 0, first);
        align = text[first];
        at = first + 1;
    } else if (s.len && strchr("<>^=", text[0])) {
        align = text[at++];
    }
    spec->left = align == '<';
    spec->center = align == '^';
    if (at < s.len && strchr("+- ", text[at])) {
        spec->plus = text[at] == '+';
        spec->space = text[at++] == ' ';
    }
    if (at < s.len && text[at] == '#')
        spec->alternate = text[at++] == '#';
    if (at < s.len && text[at] == '0' && !align)
        spec->zero = text[at++] == '0';
    spec->width = read_number(s, &at);
    if (at < s.len && text[at] == ',')
        spec->comma = text[at++] == ',';
    if (at < s.len && text[at] == '.') {
        at++;
        spec->precision = read_number(s, &at);
    }
    if (at < s.len)
        spec->type = text[at++];
    if (at < s.len || align == '=')
        (void)rp_render_fail(r, "ValueError", "Invalid format specifier");
    /* Text goes to the left and numbers to the right unless it says otherwise. */
    spec->alternate = spec->alternate || false;
    if (!align)
        spec->left = false;
    return !r->failed;
}

static struct rp_value format_value(struct rp_trender *r, struct rp_value value,
                                    struct rp_value s) {
    struct spec spec;
    char text[600];
    bool aligned =
        memchr(s.u.s, '<', s.len) || memchr(s.u.s, '>', s.len) || memchr(s.u.s, '^', s.len);
    if (!parse_spec(r, s, &spec))
        return rp_value_none();
    if (s.len == 0)
        return rp_value_text(r, value);
    bool number = rp_value_is_number(value) && !(value.type == RP_VALUE_BOOL && !spec.type);
    if (!number && (!spec.type || spec.type == 's')) {
        if (value.type != RP_VALUE_STRING && value.type != RP_VALUE_BOOL)
            return rp_render_fail(r, "TypeError",
                                  "unsupported format string passed to %s.__format__",
                                  rp_value_type_name(value));
        spec.left = spec.left || !aligned;
        return put_padded(r, cut(rp_value_text(r, value), spec.precision), &spec, false);
    }
    bool whole = rp_value_is_integer(value) && (!spec.type || strchr("dxXob", spec.type));
    if (whole) {
        format_integer(text, sizeof text, &spec, rp_value_integer(value));
    } else if (number && (!spec.type || strchr("eEfFgG%", spec.type))) {
        if (!spec.type && spec.precision < 0)
            (void)rp_tfloat_repr(rp_value_number(value), text);
        else {
            spec.type = spec.type ? spec.type : 'g';
            format_float(text, sizeof text, &spec, rp_value_number(value));
        }
    } else {
        return rp_render_fail(r, "ValueError", "Unknown format code '%c' for object of type '%s'",
                              spec.type, rp_value_type_name(value));
    }
    return put_padded(r, own_text(r, text, value.input), &spec, true);
}

/* "0.name[key]" of a replacement field. */
static struct rp_value format_field(struct rp_trender *r, struct rp_value field,
                                    const struct rp_tcall *call, size_t *automatic) {
    size_t at = 0;
    struct rp_value value = rp_value_none();
    while (at < field.len && field.u.s[at] != '.' && field.u.s[at] != '[')
        at++;
    struct rp_value name = rp_value_sub(field, 0, at);
    size_t digits = 0, index = 0;
    if (name.len == 0)
        index = (*automatic)++;
    else
        index = (size_t)read_number(name, &digits);
    if (digits == name.len) {
        if (index >= call->count)
            return rp_render_fail(r, "IndexError",
                                  "Replacement index %zu out of range for positional args tuple",
                                  index);
        value = call->args[index];
    } else {
        size_t k = 0;
        while (k < call->keyword_count && !rp_value_equal(r, call->names[k], name))
            k++;
        if (k == call->keyword_count)
            return rp_render_fail(r, "KeyError", "'%.*s'", (int)RP_MIN(name.len, 100u), name.u.s);
        value = call->values[k];
    }
    while (at < field.len && !r->failed) {
        bool dot = field.u.s[at] == '.';
        size_t begin = ++at;
        while (at < field.len &&
               (dot ? field.u.s[at] != '.' && field.u.s[at] != '[' : field.u.s[at] != ']'))
            at++;
        struct rp_value part = rp_value_sub(field, begin, at - begin);
        at += !dot;
        digits = 0;
        int64_t number = read_number(part, &digits);
        if (dot)
            value = rp_value_getattr(r, value, part);
        else
            value = rp_value_getitem(r, value,
                                     digits && digits == part.len ? rp_value_int(number) : part);
    }
    return value;
}

static size_t field_end(struct rp_value format, size_t at) {
    size_t depth = 1;
    while (at < format.len) {
        if (format.u.s[at] == '{')
            depth++;
        if (format.u.s[at] == '}' && --depth == 0)
            break;
        at++;
    }
    return at;
}

static struct rp_value format_one(struct rp_trender *r, struct rp_value inside,
                                  const struct rp_tcall *call, size_t *automatic) {
    const char *colon = memchr(inside.u.s, ':', inside.len);
    size_t end = colon ? (size_t)(colon - inside.u.s) : inside.len;
    struct rp_value spec =
        rp_value_sub(inside, colon ? end + 1 : end, colon ? inside.len - end - 1 : 0);
    const char *bang = memchr(inside.u.s, '!', end);
    size_t name_end = bang ? (size_t)(bang - inside.u.s) : end;
    struct rp_value value = format_field(r, rp_value_sub(inside, 0, name_end), call, automatic);
    if (r->failed)
        return value;
    if (bang && name_end + 2 == end && inside.u.s[name_end + 1] == 'r')
        value = rp_value_repr_string(r, value);
    else if (bang && name_end + 2 == end && inside.u.s[name_end + 1] == 's')
        value = rp_value_text(r, value);
    else if (bang)
        return rp_render_fail(r, "ValueError", "unknown conversion specifier");
    if (memchr(spec.u.s, '{', spec.len))
        return rp_render_fail(r, "ValueError", "nested fields are not supported");
    return r->failed ? value : format_value(r, value, spec);
}

struct rp_value rp_tstr_format(struct rp_trender *r, struct rp_value format,
                               const struct rp_tcall *call) {
    struct rp_tbuf buf;
    size_t at = 0, automatic = 0;
    rp_tbuf_init(&buf, &r->mem);
    while (at < format.len && rp_render_charge(r, 1)) {
        size_t stop = at;
        while (stop < format.len && format.u.s[stop] != '{' && format.u.s[stop] != '}')
            stop++;
        rp_tbuf_sub(&buf, format, at, stop - at);
        at = stop + 1;
        if (stop >= format.len)
            break;
        if (at < format.len && format.u.s[at] == format.u.s[stop]) {
            rp_tbuf_sub(&buf, format, at++, 1);
            continue;
        }
        size_t end = format.u.s[stop] == '{' ? field_end(format, at) : format.len;
        if (end >= format.len)
            return rp_render_fail(r, "ValueError",
                                  format.u.s[stop] == '}'
                                      ? "Single '}' encountered in format string"
                                  : at >= format.len ? "Single '{' encountered in format string"
                                                     : "expected '}' before end of string");
        struct rp_value text = format_one(r, rp_value_sub(format, at, end - at), call, &automatic);
        if (r->failed || !rp_render_charge_bytes(r, text.len))
            break;
        rp_tbuf_string(&buf, text);
        at = end + 1;
    }
    return r->failed ? rp_value_none() : rp_tbuf_finish(&buf);
}

/* ---- strftime ------------------------------------------------------------------------- */

struct rp_value rp_tstr_strftime(struct rp_trender *r, struct rp_value format) {
    time_t now = (time_t)r->limits.now_s;
    struct tm parts;
    char one[4], text[128];
    struct rp_tbuf buf;
    rp_tbuf_init(&buf, &r->mem);
    if (!localtime_r(&now, &parts))
        return rp_render_fail(r, "ValueError", "the time cannot be shown");
    for (size_t at = 0; at < format.len && rp_render_charge(r, 1); at++) {
        if (format.u.s[at] != '%' || at + 1 == format.len) {
            rp_tbuf_sub(&buf, format, at, 1);
            continue;
        }
        at++;
        size_t n = 0;
        one[0] = '%';
        one[1] = format.u.s[at];
        one[2] = one[3] = 0;
        if ((one[1] == '-' || one[1] == '_' || one[1] == '^') && at + 1 < format.len)
            one[2] = format.u.s[++at];
        if (one[1] == 'f') {
            rp_tbuf_bytes(&buf, "000000", 6, false);
        } else if (one[1] != 'z' && one[1] != 'Z') { /* a naive time has no zone */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            n = strftime(text, sizeof text, one, &parts);
#pragma GCC diagnostic pop
            rp_tbuf_bytes(&buf, text, n, rp_value_mark(format, at));
        }
    }
    return rp_tbuf_finish(&buf);
}
