/* Template text to tokens, with jinja2's rules for white space: trim_blocks, lstrip_blocks, the
 * signs
 * - and +, one newline at the end dropped. */
#include "base/utf8.h"
#include "text/template/template_internal.h"
#include "text/unicode/unicode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
    struct rp_tcompile *c;
    const char *text;
    size_t len, at;
    int32_t line;
    bool line_starting, stopped;
    char *closers; /* the brackets that are open, as what closes them */
    size_t closer_count, closer_capacity;
};

static void put(struct lexer *l, enum rp_ttoken_type type, int32_t line, struct rp_value value) {
    struct rp_tcompile *c = l->c;
    struct rp_ttoken *tokens = rp_tmem_grow(c->mem, c->tokens, c->token_count, &c->token_capacity,
                                            c->token_count + 1, sizeof *tokens);
    if (!tokens) {
        l->stopped = true;
        return;
    }
    c->tokens = tokens;
    tokens[c->token_count++] = (struct rp_ttoken){(uint8_t)type, line, value};
    l->stopped = l->stopped || type == RP_TT_ERROR;
}

static void complain(struct lexer *l, const char *message) {
    put(l, RP_TT_ERROR, l->line, rp_value_cstr(message));
}

static size_t space_at(const struct lexer *l, size_t at) {
    uint32_t code;
    int n = at < l->len ? rp_utf8_decode(l->text + at, l->len - at, &code) : 0;
    return n > 0 && rp_tchar_is_space(code) ? (size_t)n : 0;
}

static size_t skip_spaces(const struct lexer *l, size_t at) {
    size_t n;
    while ((n = space_at(l, at)) > 0)
        at += n;
    return at;
}

static bool starts(const struct lexer *l, size_t at, const char *what) {
    size_t n = strlen(what);
    return at <= l->len && l->len - at >= n && memcmp(l->text + at, what, n) == 0;
}

static int32_t newlines(const char *text, size_t len) {
    int32_t count = 0;
    for (size_t i = 0; i < len; i++)
        count += text[i] == '\n';
    return count;
}

/* Moves to `end`, counting lines. */
static void advance(struct lexer *l, size_t end) {
    l->line += newlines(l->text + l->at, end - l->at);
    l->line_starting = end > l->at && l->text[end - 1] == '\n';
    l->at = end;
}

static size_t rstripped(const char *text, size_t len) {
    while (len > 0) {
        size_t at = len - 1;
        uint32_t code = 0;
        while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80)
            at--;
        if (rp_utf8_decode(text + at, len - at, &code) <= 0 || !rp_tchar_is_space(code))
            break;
        len = at;
    }
    return len;
}

/* Text before a tag: stripped as the tag's sign says. */
static void put_data(struct lexer *l, size_t begin, size_t end, char sign, bool variable) {
    size_t stop = end;
    if (sign == '-') {
        stop = begin + rstripped(l->text + begin, end - begin);
    } else if (sign != '+' && !variable) {
        size_t line = end;
        while (line > begin && l->text[line - 1] != '\n')
            line--;
        if ((line > begin || l->line_starting) && line < end && skip_spaces(l, line) >= end)
            stop = line;
    }
    if (stop > begin)
        put(l, RP_TT_DATA, l->line, rp_value_str(l->text + begin, stop - begin, false));
}

/* The end of a tag at `at`: "-%}" and spaces, "+%}", "%}" and a newline; 0 when there is none. */
static size_t tag_end(const struct lexer *l, size_t at, const char *close, bool trim, bool plus) {
    if (at < l->len && l->text[at] == '-' && starts(l, at + 1, close))
        return skip_spaces(l, at + 3);
    if (plus && at < l->len && l->text[at] == '+' && starts(l, at + 1, close))
        return at + 3;
    if (!starts(l, at, close))
        return 0;
    return at + 2 + (trim && at + 2 < l->len && l->text[at + 2] == '\n');
}

static char sign_at(const struct lexer *l, size_t at) {
    char c = at < l->len ? l->text[at] : 0;
    return c == '-' || c == '+' ? c : 0;
}

/* "{%- raw -%}" at `at`: where its text begins, or 0. */
static size_t raw_begin(const struct lexer *l, size_t at) {
    size_t i = skip_spaces(l, at + 2 + (sign_at(l, at + 2) != 0));
    if (!starts(l, i, "raw"))
        return 0;
    i = skip_spaces(l, i + 3);
    if (starts(l, i, "-%}"))
        return skip_spaces(l, i + 3);
    return starts(l, i, "%}") ? i + 2 : 0;
}

static void lex_raw(struct lexer *l) {
    for (size_t i = l->at; i < l->len; i++) {
        if (!starts(l, i, "{%"))
            continue;
        char sign = sign_at(l, i + 2);
        size_t word = skip_spaces(l, i + 2 + (sign != 0));
        if (!starts(l, word, "endraw"))
            continue;
        size_t end = tag_end(l, skip_spaces(l, word + 6), "%}", true, true);
        if (!end)
            continue;
        put_data(l, l->at, i, sign, false);
        advance(l, end);
        return;
    }
    if (l->at < l->len) /* at the very end jinja2 says nothing */
        complain(l, "Missing end of raw directive");
}

static void lex_comment(struct lexer *l) {
    for (size_t i = l->at; i < l->len; i++) {
        size_t end = tag_end(l, i, "#}", true, true);
        if (!end)
            continue;
        advance(l, end);
        return;
    }
    if (l->at < l->len)
        complain(l, "Missing end of comment tag");
}

static bool is_word(uint32_t code) {
    if (code < 0x80)
        return code == '_' || (code >= '0' && code <= '9') || (code >= 'a' && code <= 'z') ||
               (code >= 'A' && code <= 'Z');
    return rp_unicode_is_alnum(code);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Digits with single underscores between them; 0 when there is none. */
static size_t digits(const struct lexer *l, size_t at) {
    size_t i = at;
    while (i < l->len &&
           (is_digit(l->text[i]) || (l->text[i] == '_' && i > at && l->text[i - 1] != '_' &&
                                     i + 1 < l->len && is_digit(l->text[i + 1]))))
        i++;
    return i - at;
}

static size_t float_end(const struct lexer *l) {
    size_t i = l->at + digits(l, l->at), fraction = 0, exponent = 0, e;
    if (i == l->at || (l->at > 0 && l->text[l->at - 1] == '.'))
        return 0;
    if (i < l->len && l->text[i] == '.') {
        fraction = digits(l, i + 1);
        i += fraction ? fraction + 1 : 0;
    }
    if (i < l->len && (l->text[i] == 'e' || l->text[i] == 'E')) {
        e = i + 1 + (sign_at(l, i + 1) != 0);
        exponent = digits(l, e);
        i = exponent ? e + exponent : i;
    }
    return fraction || exponent ? i : 0;
}

static bool in_base(char c, int base) {
    if (base == 16 && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')))
        return true;
    return c >= '0' && c < '0' + RP_MIN(base, 10);
}

static size_t integer_end(const struct lexer *l, int *base) {
    static const char letters[] = "box";
    static const int bases[] = {2, 8, 16};
    size_t at = l->at, i = at;
    *base = 10;
    if (l->text[at] == '0' && at + 1 < l->len) {
        for (int k = 0; k < 3; k++) {
            if ((l->text[at + 1] | 0x20) != letters[k])
                continue;
            i = at + 2;
            while (i < l->len && (in_base(l->text[i], bases[k]) ||
                                  (l->text[i] == '_' && i + 1 < l->len && l->text[i - 1] != '_' &&
                                   in_base(l->text[i + 1], bases[k]))))
                i++;
            *base = bases[k];
            if (i > at + 2)
                return i;
            *base = 10;
        }
    }
    if (l->text[at] != '0')
        return at + digits(l, at);
    for (i = at; i < l->len && (l->text[i] == '0' ||
                                (l->text[i] == '_' && i + 1 < l->len && l->text[i + 1] == '0'));)
        i++;
    return i;
}

static bool lex_number(struct lexer *l) {
    char number[64];
    size_t n = 0, end = float_end(l);
    bool is_float = end != 0;
    int base = 10;
    if (!is_float)
        end = integer_end(l, &base);
    for (size_t i = l->at; i < end; i++) {
        if (l->text[i] != '_' && n < sizeof number - 1)
            number[n++] = l->text[i];
    }
    number[n] = 0;
    if (n == sizeof number - 1) {
        complain(l, "number is too long");
        return false;
    }
    errno = 0;
    if (is_float) {
        put(l, RP_TT_FLOAT, l->line, rp_value_float(strtod(number, NULL)));
    } else {
        long long value = strtoll(base == 10 ? number : number + 2, NULL, base);
        if (errno == ERANGE) {
            complain(l, "integers of more than 64 bits are not supported");
            return false;
        }
        put(l, RP_TT_INTEGER, l->line, rp_value_int(value));
    }
    l->at = end;
    return true;
}

static bool hex_escape(const char *text, size_t len, size_t count, uint32_t *code) {
    *code = 0;
    if (len < count)
        return false;
    for (size_t i = 0; i < count; i++) {
        char c = text[i];
        if (!in_base(c, 16))
            return false;
        *code = *code * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return true;
}

static void put_code(struct rp_tbuf *buf, uint32_t code) {
    char bytes[4];
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        code = 0xFFFD; /* Python keeps lone surrogates and fails when they are encoded */
    rp_tbuf_bytes(buf, bytes, (size_t)rp_utf8_encode(code, bytes), false);
}

/* Python's unicode-escape after a backslash: bytes used, 0 on an error. */
static size_t unescape_one(struct lexer *l, struct rp_tbuf *buf, const char *s, size_t len) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = memchr(from, s[0], sizeof from - 1);
    uint32_t code = 0;
    size_t n = 0;
    if (s[0] == '\n')
        return 1; /* a continued line */
    if (simple) {
        rp_tbuf_bytes(buf, to + (simple - from), 1, false);
        return 1;
    }
    if (s[0] >= '0' && s[0] <= '7') {
        for (; n < 3 && n < len && s[n] >= '0' && s[n] <= '7'; n++)
            code = code * 8 + (uint32_t)(s[n] - '0');
        put_code(buf, code);
        return n;
    }
    if (s[0] == 'x' || s[0] == 'u' || s[0] == 'U') {
        size_t count = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : 8;
        if (!hex_escape(s + 1, len - 1, count, &code)) {
            complain(l, s[0] == 'x'   ? "truncated \\xXX escape"
                        : s[0] == 'u' ? "truncated \\uXXXX escape"
                                      : "truncated \\UXXXXXXXX escape");
            return 0;
        }
        if (code > 0x10FFFF) {
            complain(l, "illegal Unicode character");
            return 0;
        }
        put_code(buf, code);
        return 1 + count;
    }
    if (s[0] == 'N') {
        complain(l, "malformed \\N character escape");
        return 0;
    }
    rp_tbuf_bytes(buf, "\\", 1, false); /* unknown: both stay */
    return SIZE_MAX;
}

static bool lex_string(struct lexer *l) {
    char quote = l->text[l->at];
    size_t end = l->at + 1;
    struct rp_tbuf buf;
    while (end < l->len && l->text[end] != quote)
        end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->len)
        return false;
    rp_tbuf_init(&buf, l->c->mem);
    for (size_t i = l->at + 1; i < end;) {
        const char *backslash = memchr(l->text + i, '\\', end - i);
        size_t stop = backslash ? (size_t)(backslash - l->text) : end;
        rp_tbuf_bytes(&buf, l->text + i, stop - i, false);
        if (stop == end)
            break;
        size_t used = unescape_one(l, &buf, l->text + stop + 1, end - stop - 1);
        if (used == 0)
            return true; /* complained */
        i = stop + 1 + (used == SIZE_MAX ? 0 : used);
        if (used == SIZE_MAX) { /* the character after is plain, be it of several bytes */
            rp_tbuf_bytes(&buf, l->text + i, 1, false);
            i++;
        }
    }
    put(l, RP_TT_STRING, l->line, rp_tbuf_finish(&buf));
    advance(l, end + 1);
    return true;
}

static bool lex_name(struct lexer *l) {
    size_t end = l->at;
    uint32_t code, first = 0;
    int n;
    while ((n = end < l->len ? rp_utf8_decode(l->text + end, l->len - end, &code) : 0) > 0 &&
           is_word(code)) {
        if (end == l->at)
            first = code;
        end += (size_t)n;
    }
    if (end == l->at)
        return false;
    if (first >= 0x80 && !rp_unicode_is_letter(first) &&
        rp_unicode_category(first) != RP_UNICODE_NL)
        complain(l, "Invalid character in identifier");
    put(l, RP_TT_NAME, l->line, rp_value_str(l->text + l->at, end - l->at, false));
    l->at = end;
    return true;
}

static bool balance(struct lexer *l, char c) {
    static const char open[] = "{([", close[] = "})]";
    const char *at = memchr(open, c, 3);
    char message[64];
    if (at) {
        char *grown = rp_tmem_grow(l->c->mem, l->closers, l->closer_count, &l->closer_capacity,
                                   l->closer_count + 1, 1);
        if (!grown)
            return false;
        l->closers = grown;
        l->closers[l->closer_count++] = close[at - open];
        return true;
    }
    if (!memchr(close, c, 3))
        return true;
    char expected = l->closer_count ? l->closers[--l->closer_count] : 0;
    if (expected == c)
        return true;
    int n = expected
                ? snprintf(message, sizeof message, "unexpected '%c', expected '%c'", c, expected)
                : snprintf(message, sizeof message, "unexpected '%c'", c);
    char *copy = rp_tmem_alloc(l->c->mem, (size_t)n + 1);
    if (copy) {
        memcpy(copy, message, (size_t)n + 1);
        complain(l, copy);
    }
    return false;
}

static bool lex_operator(struct lexer *l) {
    static const struct {
        const char *text;
        enum rp_ttoken_type type;
    } operators[] = {
        {"//", RP_TT_FLOORDIV}, {"**", RP_TT_POW},     {"==", RP_TT_EQ},    {"!=", RP_TT_NE},
        {">=", RP_TT_GTEQ},     {"<=", RP_TT_LTEQ},    {"+", RP_TT_ADD},    {"-", RP_TT_SUB},
        {"/", RP_TT_DIV},       {"*", RP_TT_MUL},      {"%", RP_TT_MOD},    {"~", RP_TT_TILDE},
        {"[", RP_TT_LBRACKET},  {"]", RP_TT_RBRACKET}, {"(", RP_TT_LPAREN}, {")", RP_TT_RPAREN},
        {"{", RP_TT_LBRACE},    {"}", RP_TT_RBRACE},   {">", RP_TT_GT},     {"<", RP_TT_LT},
        {"=", RP_TT_ASSIGN},    {".", RP_TT_DOT},      {":", RP_TT_COLON},  {"|", RP_TT_PIPE},
        {",", RP_TT_COMMA},     {";", RP_TT_SEMICOLON}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(operators); i++) {
        if (!starts(l, l->at, operators[i].text))
            continue;
        if (!balance(l, l->text[l->at]))
            return true;
        put(l, operators[i].type, l->line, rp_value_cstr(operators[i].text));
        l->at += strlen(operators[i].text);
        return true;
    }
    return false;
}

static void unexpected_char(struct lexer *l) {
    char message[64];
    const char *c = l->text + l->at;
    size_t index = rp_tstr_count(rp_value_str(l->text, l->at, false));
    int n = rp_utf8_decode(c, l->len - l->at, NULL);
    const char *quote = *c == '\'' ? "\"" : "'";
    int printed = snprintf(message, sizeof message, "unexpected char %s%s%.*s%s at %zu", quote,
                           *c == '\\' ? "\\" : "", RP_MAX(n, 1), c, quote, index);
    char *copy = rp_tmem_alloc(l->c->mem, (size_t)printed + 1);
    if (copy) {
        memcpy(copy, message, (size_t)printed + 1);
        complain(l, copy);
    }
}

/* Inside {% %} or {{ }}, up to and with its end. */
static void lex_tag(struct lexer *l, bool block) {
    while (!l->stopped && l->at < l->len) {
        size_t end = l->closer_count ? 0 : tag_end(l, l->at, block ? "%}" : "}}", block, block);
        if (end) {
            put(l, block ? RP_TT_BLOCK_END : RP_TT_VARIABLE_END, l->line, rp_value_none());
            advance(l, end);
            return;
        }
        end = skip_spaces(l, l->at);
        if (end > l->at) {
            advance(l, end);
            continue;
        }
        char c = l->text[l->at];
        bool done;
        if (is_digit(c))
            done = lex_number(l) || l->stopped;
        else if (c == '\'' || c == '"')
            done = lex_string(l);
        else
            done = lex_name(l) || lex_operator(l);
        if (!done && !l->stopped)
            unexpected_char(l);
    }
}

static void lex_root(struct lexer *l) {
    while (!l->stopped && l->at < l->len) {
        size_t at = l->at;
        while (at < l->len &&
               !(l->text[at] == '{' && at + 1 < l->len &&
                 (l->text[at + 1] == '%' || l->text[at + 1] == '{' || l->text[at + 1] == '#')))
            at++;
        if (at == l->len) {
            put(l, RP_TT_DATA, l->line, rp_value_str(l->text + l->at, at - l->at, false));
            l->at = at;
            return;
        }
        char kind = l->text[at + 1], sign = sign_at(l, at + 2);
        size_t raw = kind == '%' ? raw_begin(l, at) : 0;
        put_data(l, l->at, at, sign, kind == '{');
        advance(l, at);
        advance(l, raw ? raw : at + 2 + (sign != 0));
        if (raw) {
            lex_raw(l);
        } else if (kind == '#') {
            lex_comment(l);
        } else {
            put(l, kind == '%' ? RP_TT_BLOCK_BEGIN : RP_TT_VARIABLE_BEGIN, l->line,
                rp_value_none());
            lex_tag(l, kind == '%');
        }
    }
}

bool rp_template_lex(struct rp_tcompile *c, const char *source, size_t len) {
    struct lexer l = {.c = c, .line = 1, .line_starting = true};
    char *text = rp_tmem_alloc(c->mem, len + 1);
    size_t n = 0;
    if (!text)
        return false;
    for (size_t i = 0; i < len; i++) { /* \r\n and \r are newlines */
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n')
            continue;
        text[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n > 0 && text[n - 1] == '\n')
        n--;
    l.text = text;
    l.len = n;
    lex_root(&l);
    l.stopped = false;
    put(&l, RP_TT_EOF, c->token_count ? c->tokens[c->token_count - 1].line : 1, rp_value_none());
    return !c->mem->failed;
}
