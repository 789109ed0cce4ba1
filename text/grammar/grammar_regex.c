/* grammar_regex.c - patterns (ECMAScript's, flag u) to layer 1.
 * Anchors are resolved while parsing: a part of a pattern is four expressions, for the texts that
 * it matches anywhere, only at the start, only at the end, and only as the whole text. */
#include "text/grammar/grammar_internal.h"

#include "base/memory.h"
#include "base/utf8.h"
#include "text/unicode/unicode.h"

#include <string.h>

#define NESTING_MAX 64
#define REPEAT_MAX  65535
#define CLASS_MAX   256 /* ranges of one class, besides properties */

struct part {
    uint32_t rx[2][2]; /* [anchored at the start][anchored at the end] */
};

struct parser {
    struct rp_grammar *g;
    const char *text;
    size_t len, at;
    enum rx_mode mode;
    unsigned depth, flags;
    struct rp_error *err;
};

struct class_ranges {
    struct charset_range at[CLASS_MAX];
    size_t count;
    uint32_t negated; /* characters of \P{..}, \D, ..: a set beside the ranges */
};

static int refuse(struct parser *p, int status, const char *what) {
    return rp_error_set(p->err, status, "pattern, byte %zu: %s", p->at, what);
}

static bool peek(const struct parser *p, char c) { return p->at < p->len && p->text[p->at] == c; }
static bool take(struct parser *p, const char *text) {
    size_t len = strlen(text);
    if (p->len - p->at < len || memcmp(p->text + p->at, text, len) != 0)
        return false;
    p->at += len;
    return true;
}

static struct part part_of(uint32_t rx) {
    return (struct part){{{rx, NODE_NONE}, {NODE_NONE, NODE_NONE}}};
}

static bool has_anchor(const struct part *x) {
    return x->rx[0][1] != NODE_NONE || x->rx[1][0] != NODE_NONE || x->rx[1][1] != NODE_NONE;
}

static struct part alternative(struct rp_grammar *g, struct part x, struct part y) {
    for (int b = 0; b < 2; b++)
        for (int e = 0; e < 2; e++)
            x.rx[b][e] = rx_or2(g, x.rx[b][e], y.rx[b][e]);
    return x;
}

/* x then y. What is anchored at the end matches only if the empty text follows, and likewise. */
static struct part sequence(struct rp_grammar *g, struct part x, struct part y) {
    struct part out = part_of(NODE_NONE);
    if (!has_anchor(&x) && !has_anchor(&y)) {
        out.rx[0][0] = rx_cat(g, x.rx[0][0], y.rx[0][0]);
        return out;
    }
    for (int b = 0; b < 2; b++)
        for (int e = 0; e < 2; e++)
            out.rx[b][e] = rx_cat(g, x.rx[b][0], y.rx[0][e]);
    for (int b = 0; b < 2; b++) {
        bool y_empty = node_nullable(g, y.rx[b][0]) || node_nullable(g, y.rx[b][1]);
        bool x_empty = node_nullable(g, x.rx[0][b]) || node_nullable(g, x.rx[1][b]);
        /* an empty y that is anchored at the start too needs an empty x: the whole text is empty */
        for (int k = 0; k < 2 && y_empty; k++)
            out.rx[k][1] =
                rx_or2(g, out.rx[k][1],
                       b == 0 ? x.rx[k][1] : (node_nullable(g, x.rx[k][1]) ? NODE_EPS : NODE_NONE));
        for (int k = 0; k < 2 && x_empty; k++)
            out.rx[1][k] =
                rx_or2(g, out.rx[1][k],
                       b == 0 ? y.rx[1][k] : (node_nullable(g, y.rx[1][k]) ? NODE_EPS : NODE_NONE));
    }
    return out;
}

static int add_range(struct parser *p, struct class_ranges *c, uint32_t first, uint32_t last) {
    if (c->count == CLASS_MAX)
        return refuse(p, RP_STATUS_FULL, "the class has too many ranges");
    c->at[c->count++] = (struct charset_range){first, last};
    return RP_OK;
}

static int hex(struct parser *p, int digits, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        char c = p->at < p->len ? p->text[p->at] : 0;
        int value = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (value < 0)
            return refuse(p, RP_STATUS_FORMAT, "a hexadecimal digit was expected");
        *out = *out << 4 | (uint32_t)value;
    }
    return RP_OK;
}

/* \u was read: \uXXXX, a pair of them, or \u{X}. */
static int unicode_escape(struct parser *p, uint32_t *out) {
    if (take(p, "{")) {
        size_t digits = 0;
        while (p->at + digits < p->len && p->text[p->at + digits] != '}')
            digits++;
        if (digits == 0 || digits > 6)
            return refuse(p, RP_STATUS_FORMAT, "\\u{...} has one to six digits");
        int rc = hex(p, (int)digits, out);
        if (rc == RP_OK && (!take(p, "}") || *out > 0x10FFFF))
            rc = refuse(p, RP_STATUS_FORMAT, "\\u{...} is not a character");
        return rc;
    }
    int rc = hex(p, 4, out);
    uint32_t low;
    if (rc == RP_OK && *out >= 0xD800 && *out <= 0xDBFF && take(p, "\\u")) {
        rc = hex(p, 4, &low);
        if (rc == RP_OK && (low < 0xDC00 || low > 0xDFFF))
            return refuse(p, RP_STATUS_FORMAT, "a surrogate without its other half");
        *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
    }
    return rc;
}

/* \p{name} or \P{name}; the backslash and p were read. */
static int property(struct parser *p, bool inverted, uint32_t *out_set) {
    if (!take(p, "{"))
        return refuse(p, RP_STATUS_FORMAT, "\\p is followed by {name}");
    size_t begin = p->at;
    while (p->at < p->len && p->text[p->at] != '}')
        p->at++;
    size_t end = p->at;
    if (!take(p, "}"))
        return refuse(p, RP_STATUS_FORMAT, "\\p{ has no }");
    for (size_t i = begin; i < end; i++) /* Script=Latin, General_Category=Lu, gc=Lu, sc=Latin */
        if (p->text[i] == '=')
            begin = i + 1;
    struct rp_unicode_set *set = rp_calloc(1, sizeof *set);
    if (!set)
        return grammar_fail(p->g, RP_STATUS_NO_MEMORY);
    bool known = rp_unicode_set_add_name(set, p->text + begin, end - begin);
    size_t base = p->g->ranges.count, count = 0;
    struct charset_range ranges[2048];
    uint32_t first = 0, last;
    while (known && count < RP_ARRAY_COUNT(ranges) && rp_unicode_set_next(set, &first, &last)) {
        ranges[count++] = (struct charset_range){first, last};
        first = last + 1;
    }
    rp_free(set);
    (void)base;
    if (!known)
        return refuse(p, RP_STATUS_UNSUPPORTED, "an unknown property in \\p{...}");
    *out_set = charset_make(p->g, ranges, count);
    if (inverted)
        *out_set = charset_negate(p->g, *out_set);
    return RP_OK;
}

static const struct charset_range digits[] = {{'0', '9'}};
static const struct charset_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct charset_range spaces[] = {
    {9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

/* A class of one letter, or CHARSET_EMPTY. */
static uint32_t letter_class(struct rp_grammar *g, char c) {
    struct charset_range copy[RP_ARRAY_COUNT(spaces)];
    const struct charset_range *from = NULL;
    size_t count = 0;
    switch (c | 0x20) {
    case 'd':
        from = digits, count = RP_ARRAY_COUNT(digits);
        break;
    case 'w':
        from = words, count = RP_ARRAY_COUNT(words);
        break;
    case 's':
        from = spaces, count = RP_ARRAY_COUNT(spaces);
        break;
    default:
        return CHARSET_EMPTY;
    }
    memcpy(copy, from, count * sizeof *copy);
    uint32_t set = charset_make(g, copy, count);
    return c & 0x20 ? set : charset_negate(g, set);
}

/* After a backslash: one character (*out_set is CHARSET_EMPTY), or a class. */
static int escape_of(struct parser *p, bool in_class, uint32_t *out_code, uint32_t *out_set) {
    *out_set = CHARSET_EMPTY;
    if (p->at == p->len)
        return refuse(p, RP_STATUS_FORMAT, "a backslash at the end");
    char c = p->text[p->at++];
    static const char letters[] = "nrtfv0", codes[] = "\n\r\t\f\v\0";
    const char *found = memchr(letters, c, sizeof letters - 1);
    if (found) {
        if (c == '0' && p->at < p->len && p->text[p->at] >= '0' && p->text[p->at] <= '9')
            return refuse(p, RP_STATUS_UNSUPPORTED, "octal escapes are not supported");
        *out_code = (uint8_t)codes[found - letters];
        return RP_OK;
    }
    if (c == 'p' || c == 'P')
        return property(p, c == 'P', out_set);
    *out_set = letter_class(p->g, c);
    if (*out_set != CHARSET_EMPTY)
        return RP_OK;
    if (c == 'u')
        return unicode_escape(p, out_code);
    if (c == 'x')
        return hex(p, 2, out_code);
    if (c == 'c' && p->at < p->len && ((p->text[p->at] | 0x20) >= 'a') &&
        ((p->text[p->at] | 0x20) <= 'z')) {
        *out_code = (uint32_t)(p->text[p->at++] & 0x1F);
        return RP_OK;
    }
    if (c == 'b' && in_class) {
        *out_code = '\b';
        return RP_OK;
    }
    if (c == 'b' || c == 'B')
        return refuse(p, RP_STATUS_UNSUPPORTED, "word boundaries (\\b) are not supported");
    if (c == 'A' || c == 'z' || c == 'Z')
        return refuse(p, RP_STATUS_UNSUPPORTED, "\\A and \\z are not supported: use ^ and $");
    if ((c >= '1' && c <= '9') || c == 'k')
        return refuse(p, RP_STATUS_UNSUPPORTED, "back-references are not supported");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return refuse(p, RP_STATUS_UNSUPPORTED, "an unknown escape");
    p->at--;
    int n = rp_utf8_decode(p->text + p->at, p->len - p->at, out_code);
    if (n <= 0)
        return refuse(p, RP_STATUS_FORMAT, "not UTF-8");
    p->at += (size_t)n;
    return RP_OK;
}

static int class_atom(struct parser *p, uint32_t *out_code, uint32_t *out_set) {
    if (take(p, "\\"))
        return escape_of(p, true, out_code, out_set);
    *out_set = CHARSET_EMPTY;
    int n = rp_utf8_decode(p->text + p->at, p->len - p->at, out_code);
    if (n <= 0)
        return refuse(p, RP_STATUS_FORMAT, p->at == p->len ? "[ has no ]" : "not UTF-8");
    p->at += (size_t)n;
    return RP_OK;
}

static uint32_t unite(struct rp_grammar *g, uint32_t a, uint32_t b) {
    uint32_t not_a = charset_negate(g, a), not_b = charset_negate(g, b);
    return charset_negate(g, charset_intersect(g, not_a, not_b));
}

/* With flag i the ASCII letters of a set in both cases. */
static uint32_t folded(struct parser *p, uint32_t set) {
    uint32_t pairs = CHARSET_EMPTY;
    for (uint32_t c = 'a'; c <= 'z' && p->flags & REGEX_FOLD; c++)
        if (charset_has(p->g, set, c) || charset_has(p->g, set, c ^ 0x20)) {
            struct charset_range both[] = {{c, c}, {c ^ 0x20, c ^ 0x20}};
            pairs = unite(p->g, pairs, charset_make(p->g, both, 2));
        }
    return pairs == CHARSET_EMPTY ? set : unite(p->g, set, pairs);
}

/* [ was read. */
static int class_of(struct parser *p, uint32_t *out_rx) {
    struct class_ranges c = {.count = 0, .negated = CHARSET_EMPTY};
    bool inverted = take(p, "^");
    int rc = RP_OK;
    while (rc == RP_OK && !peek(p, ']')) {
        uint32_t first = 0, last, set = CHARSET_EMPTY, other;
        rc = class_atom(p, &first, &set);
        if (rc != RP_OK)
            break;
        if (set != CHARSET_EMPTY) {
            c.negated = unite(p->g, c.negated, set);
            continue;
        }
        last = first;
        if (peek(p, '-') && p->at + 1 < p->len && p->text[p->at + 1] != ']') {
            p->at++;
            rc = class_atom(p, &last, &other);
            if (rc == RP_OK && other != CHARSET_EMPTY) { /* [a-\d]: a minus sign */
                c.negated = unite(p->g, c.negated, other);
                rc = add_range(p, &c, '-', '-');
                last = first;
            }
            if (rc == RP_OK && last < first)
                rc = refuse(p, RP_STATUS_FORMAT, "a range of a class is out of order");
        }
        if (rc == RP_OK)
            rc = add_range(p, &c, first, last);
    }
    if (rc != RP_OK)
        return rc;
    p->at++;
    uint32_t set = folded(p, unite(p->g, charset_make(p->g, c.at, c.count), c.negated));
    *out_rx = rx_chars(p->g, inverted ? charset_negate(p->g, set) : set, p->mode);
    return RP_OK;
}

static int parse_alternatives(struct parser *p, struct part *out);

/* ( was read. */
static int group(struct parser *p, struct part *out) {
    if (take(p, "?")) {
        if (peek(p, '=') || peek(p, '!'))
            return refuse(p, RP_STATUS_UNSUPPORTED, "look-ahead is not supported");
        if (take(p, "<")) {
            if (peek(p, '=') || peek(p, '!'))
                return refuse(p, RP_STATUS_UNSUPPORTED, "look-behind is not supported");
            while (p->at < p->len && !peek(p, '>'))
                p->at++;
            if (!take(p, ">"))
                return refuse(p, RP_STATUS_FORMAT, "(?< has no >");
        } else if (!take(p, ":")) {
            return refuse(p, RP_STATUS_UNSUPPORTED, "flags in groups are not supported");
        }
    }
    if (++p->depth > NESTING_MAX)
        return refuse(p, RP_STATUS_FULL, "groups are nested too deeply");
    int rc = parse_alternatives(p, out);
    p->depth--;
    if (rc == RP_OK && !take(p, ")"))
        rc = refuse(p, RP_STATUS_FORMAT, "( has no )");
    return rc;
}

static int atom(struct parser *p, struct part *out) {
    struct rp_grammar *g = p->g;
    uint32_t code = 0, set = CHARSET_EMPTY, rx = NODE_NONE;
    *out = part_of(NODE_NONE);
    if (take(p, "("))
        return group(p, out);
    if (take(p, "^")) {
        out->rx[1][0] = NODE_EPS;
        return RP_OK;
    }
    if (take(p, "$")) {
        out->rx[0][1] = NODE_EPS;
        return RP_OK;
    }
    int rc = RP_OK;
    if (take(p, "[")) {
        rc = class_of(p, &rx);
    } else if (take(p, ".")) {
        struct charset_range ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
        size_t count = p->flags & REGEX_DOT_ALL ? 0 : p->flags & REGEX_LINE_DOT ? 1 : 3;
        rx = rx_chars(g, charset_negate(g, charset_make(g, ends, count)), p->mode);
    } else if (peek(p, '*') || peek(p, '+') || peek(p, '?')) {
        return refuse(p, RP_STATUS_FORMAT, "nothing to repeat");
    } else {
        if (take(p, "\\")) {
            rc = escape_of(p, false, &code, &set);
        } else {
            int n = rp_utf8_decode(p->text + p->at, p->len - p->at, &code);
            if (n <= 0)
                return refuse(p, RP_STATUS_FORMAT, "not UTF-8");
            p->at += (size_t)n;
        }
        if (rc == RP_OK)
            rx = rx_chars(g, folded(p, set != CHARSET_EMPTY ? set : charset_range(g, code, code)),
                          p->mode);
    }
    out->rx[0][0] = rx;
    return rc;
}

static bool number(struct parser *p, uint32_t *out) {
    size_t begin = p->at;
    uint64_t value = 0;
    for (; p->at < p->len && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++)
        value = RP_MIN(value * 10 + (uint64_t)(p->text[p->at] - '0'), 1000000u);
    *out = (uint32_t)value;
    return p->at > begin;
}

/* {n}, {n,}, {n,m}; false (and nothing read) when it is none of these: then { is a character. */
static bool braces(struct parser *p, uint32_t *low, uint32_t *high) {
    size_t begin = p->at;
    if (take(p, "{") && number(p, low)) {
        *high = *low;
        if (take(p, ",") && !number(p, high))
            *high = REP_INF;
        if (take(p, "}"))
            return true;
    }
    p->at = begin;
    return false;
}

static int quantified(struct parser *p, struct part *out) {
    int rc = atom(p, out);
    uint32_t low = 1, high = 1;
    if (rc != RP_OK)
        return rc;
    if (take(p, "*"))
        low = 0, high = REP_INF;
    else if (take(p, "+"))
        high = REP_INF;
    else if (take(p, "?"))
        low = 0;
    else if (!braces(p, &low, &high))
        return RP_OK;
    (void)take(p, "?"); /* lazy: the same texts */
    if (peek(p, '*') || peek(p, '+') || peek(p, '?'))
        return refuse(p, RP_STATUS_FORMAT, "nothing to repeat");
    if (low > high)
        return refuse(p, RP_STATUS_FORMAT, "a repeat is out of order");
    if (low > REPEAT_MAX || (high > REPEAT_MAX && high != REP_INF))
        return refuse(p, RP_STATUS_FULL, "a repeat is above 65535");
    if (has_anchor(out)) {
        if (low == 0 && high == 1) {
            out->rx[0][0] = rx_or2(p->g, out->rx[0][0], NODE_EPS);
            return RP_OK;
        }
        return refuse(p, RP_STATUS_UNSUPPORTED, "anchors in a repeated group are not supported");
    }
    *out = part_of(rx_rep(p->g, out->rx[0][0], low, high));
    return RP_OK;
}

static int parse_sequence(struct parser *p, struct part *out) {
    struct rp_grammar *g = p->g;
    size_t base = g->work.count; /* from right to left, so that chains are built once */
    int rc = RP_OK;
    while (rc == RP_OK && p->at < p->len && !peek(p, '|') && !peek(p, ')')) {
        struct part next;
        rc = quantified(p, &next);
        if (rc == RP_OK && g->status != RP_OK)
            rc = g->status;
        for (int i = 0; i < 4 && rc == RP_OK; i++)
            if (!VEC_PUSH(g, &g->work, next.rx[i / 2][i % 2]))
                rc = g->status;
    }
    *out = part_of(NODE_EPS);
    while (g->work.count > base) {
        struct part x;
        g->work.count -= 4;
        memcpy(x.rx, g->work.at + g->work.count, sizeof x.rx);
        *out = sequence(g, x, *out);
    }
    return rc;
}

static int parse_alternatives(struct parser *p, struct part *out) {
    int rc = parse_sequence(p, out);
    while (rc == RP_OK && take(p, "|")) {
        struct part next;
        rc = parse_sequence(p, &next);
        if (rc == RP_OK)
            *out = alternative(p->g, *out, next);
    }
    return rc;
}

static int parse(struct rp_grammar *g, const char *pattern, size_t len, enum rx_mode mode,
                 bool search, unsigned flags, uint32_t *out_rx, struct rp_error *err) {
    struct parser p = {
        .g = g, .text = pattern, .len = len, .mode = mode, .flags = flags, .err = err};
    struct part x;
    *out_rx = NODE_NONE;
    int rc = parse_alternatives(&p, &x);
    if (rc == RP_OK && p.at < len)
        rc = refuse(&p, RP_STATUS_FORMAT, ") has no (");
    if (rc != RP_OK)
        return rc;
    uint32_t any =
        rx_rep(g, rx_chars(g, CHARSET_ANY, mode == RX_PLAIN ? mode : RX_JSON_EVERY), 0, REP_INF);
    uint32_t rx = NODE_NONE;
    for (int b = 0; b < 2; b++)
        for (int e = 0; e < 2; e++) {
            uint32_t one = x.rx[b][e];
            if (search && !b)
                one = rx_cat(g, any, one);
            if (search && !e)
                one = rx_cat(g, one, any);
            rx = rx_or2(g, rx, one);
        }
    *out_rx = rx;
    if (g->status != RP_OK)
        return rp_error_set(err, g->status, "the pattern is too complex");
    return RP_OK;
}

int regex_parse(struct rp_grammar *g, const char *pattern, size_t len, enum rx_mode mode,
                bool search, uint32_t *out_rx, struct rp_error *err) {
    return parse(g, pattern, len, mode, search, 0, out_rx, err);
}

int regex_parse_flags(struct rp_grammar *g, const char *pattern, size_t len, enum rx_mode mode,
                      unsigned flags, uint32_t *out_rx, struct rp_error *err) {
    return parse(g, pattern, len, mode, false, flags, out_rx, err);
}
