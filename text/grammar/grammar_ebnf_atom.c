/* grammar_ebnf_atom.c - strings, classes, patterns and tokens of GBNF and Lark. */
#include "text/grammar/grammar_ebnf.h"

#include "base/utf8.h"

#include <string.h>

#define CLASS_MAX   1024 /* ranges */
#define LITERAL_MAX 64   /* bytes of a string in layer 1: there each is a node */

bool ebnf_number(struct ebnf *p, uint32_t *out) {
    size_t begin = p->at;
    uint64_t value = 0;
    for (; p->at < p->len && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++)
        value = RP_MIN(value * 10 + (uint64_t)(p->text[p->at] - '0'), 1u << 30);
    *out = (uint32_t)value;
    return p->at > begin;
}

static int hex(struct ebnf *p, int digits, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        char c = p->at < p->len ? p->text[p->at] : 0, low = c | 0x20;
        if (!((c >= '0' && c <= '9') || (low >= 'a' && low <= 'f')))
            return ebnf_refuse(p, RP_STATUS_FORMAT, "a hexadecimal digit was expected", "", 0);
        *out = *out << 4 | (uint32_t)(c <= '9' ? c - '0' : low - 'a' + 10);
    }
    return RP_OK;
}

/* One character of a string or class, escaped or not. */
static int character(struct ebnf *p, uint32_t *out) {
    if (!ebnf_take(p, "\\")) {
        int n = rp_utf8_decode(p->text + p->at, p->len - p->at, out);
        if (n <= 0)
            return ebnf_refuse(p, RP_STATUS_FORMAT, "not UTF-8, or cut off", "", 0);
        p->at += (size_t)n;
        return RP_OK;
    }
    char c = p->at < p->len ? p->text[p->at++] : 0;
    static const char letters[] = "nrtfvb0ae", codes[] = "\n\r\t\f\v\b\0\a\x1b";
    const char *found = c ? memchr(letters, c, sizeof letters - 1) : NULL;
    int rc = RP_OK;
    if (found)
        *out = (uint8_t)codes[found - letters];
    else if (c == 'x' || c == 'u' || c == 'U')
        rc = hex(p, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    else if (c > ' ' && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !(c >= '1' && c <= '9'))
        *out = (uint8_t)c;
    else
        rc = ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "an unknown escape", "", 0);
    if (rc == RP_OK && (*out > 0x10FFFF || (*out >= 0xD800 && *out < 0xE000)))
        rc = ebnf_refuse(p, RP_STATUS_FORMAT, "an escape is not a character", "", 0);
    return rc;
}

static uint32_t both_cases(struct rp_grammar *g, uint32_t code) {
    uint32_t low = code | 0x20;
    bool letter = low >= 'a' && low <= 'z';
    struct charset_range ranges[] = {{code, code}, {code ^ 0x20, code ^ 0x20}};
    return charset_make(g, ranges, letter ? 2 : 1);
}

static int range(struct ebnf *p, const char *text, size_t len, struct ebnf_value *out) {
    uint32_t first, last;
    int n = rp_utf8_decode(text, len, &first);
    p->at += 2;
    ebnf_space(p);
    if (!ebnf_take(p, "\"") || n != (int)len)
        return ebnf_refuse(p, RP_STATUS_FORMAT, "a range is \"a\"..\"z\"", "", 0);
    int rc = character(p, &last);
    if (rc == RP_OK && (!ebnf_take(p, "\"") || last < first))
        rc = ebnf_refuse(p, RP_STATUS_FORMAT, "a range is \"a\"..\"z\"", "", 0);
    if (rc == RP_OK)
        *out = ebnf_regular(rx_chars(p->g, charset_range(p->g, first, last), p->mode));
    return rc;
}

int ebnf_string(struct ebnf *p, struct ebnf_value *out) {
    struct rp_grammar *g = p->g;
    size_t end = p->at + 1, used = 0;
    while (end < p->len && p->text[end] != '"' && p->text[end] != '\n')
        end += p->text[end] == '\\' ? 2 : 1;
    if (end >= p->len || p->text[end] != '"')
        return ebnf_refuse(p, RP_STATUS_FORMAT, "a string has no end", "", 0);
    char *bytes = rp_arena_alloc(&p->arena, end - p->at + 8);
    if (!bytes)
        return grammar_fail(g, RP_STATUS_FULL);
    for (p->at++; p->at < end;) {
        uint32_t code;
        int rc = character(p, &code);
        if (rc != RP_OK)
            return rc;
        used += (size_t)rp_utf8_encode(code, bytes + used);
    }
    p->at++;
    if (p->lark && ebnf_peek(p, "i") && !(p->at + 1 < p->len && p->text[p->at + 1] == ':')) {
        uint32_t rx = NODE_EPS, code;
        p->at++;
        for (size_t i = 0; i < used;) {
            i += (size_t)rp_utf8_decode(bytes + i, used - i, &code);
            if (code >= 0x80)
                return ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "flag i of a string beyond ASCII", "",
                                   0);
            rx = rx_cat(g, rx, rx_chars(g, both_cases(g, code), p->mode));
        }
        *out = ebnf_regular(rx);
        return RP_OK;
    }
    if (p->lark && ebnf_peek(p, ".."))
        return range(p, bytes, used, out);
    if (p->mode != RX_PLAIN) {
        *out = ebnf_regular(rx_text(g, bytes, used, p->mode));
        return RP_OK;
    }
    uint32_t lit = g_lit(g, bytes, used);
    *out = used > LITERAL_MAX ? ebnf_other(lit)
                              : (struct ebnf_value){true, rx_bytes(g, bytes, used), lit};
    return RP_OK;
}

int ebnf_class(struct ebnf *p, struct ebnf_value *out) {
    struct charset_range ranges[CLASS_MAX];
    size_t count = 0;
    p->at++;
    bool inverted = ebnf_take(p, "^");
    while (!ebnf_take(p, "]")) {
        uint32_t first, last;
        if (p->at >= p->len || ebnf_peek(p, "\n"))
            return ebnf_refuse(p, RP_STATUS_FORMAT, "[ has no ]", "", 0);
        int rc = character(p, &first);
        last = first;
        if (rc == RP_OK && ebnf_peek(p, "-") && p->at + 1 < p->len && p->text[p->at + 1] != ']') {
            p->at++;
            rc = character(p, &last);
        }
        if (rc == RP_OK && last < first)
            rc = ebnf_refuse(p, RP_STATUS_FORMAT, "a range of a class is out of order", "", 0);
        if (rc == RP_OK && count == CLASS_MAX)
            rc = ebnf_refuse(p, RP_STATUS_FULL, "a class has too many ranges", "", 0);
        if (rc != RP_OK)
            return rc;
        ranges[count++] = (struct charset_range){first, last};
    }
    uint32_t set = charset_make(p->g, ranges, count);
    *out = ebnf_regular(rx_chars(p->g, inverted ? charset_negate(p->g, set) : set, p->mode));
    return RP_OK;
}

int ebnf_pattern(struct ebnf *p, struct ebnf_value *out) {
    size_t begin = ++p->at;
    unsigned flags = REGEX_LINE_DOT;
    struct rp_error inner;
    uint32_t rx;
    while (p->at < p->len && p->text[p->at] != '/' && p->text[p->at] != '\n')
        p->at += p->text[p->at] == '\\' ? 2 : 1;
    size_t end = p->at;
    if (end >= p->len || p->text[end] != '/')
        return ebnf_refuse(p, RP_STATUS_FORMAT, "a pattern has no end", "", 0);
    for (p->at++; ebnf_name(p) > 0; p->at++) {
        char c = p->text[p->at];
        if (c != 'i' && c != 's' && c != 'u')
            return ebnf_refuse(p, RP_STATUS_UNSUPPORTED,
                               "unsupported flag of a pattern:", p->text + p->at, 1);
        flags |= c == 'i' ? REGEX_FOLD : c == 's' ? REGEX_DOT_ALL : 0;
    }
    int rc = regex_parse_flags(p->g, p->text + begin, end - begin, p->mode, flags, &rx, &inner);
    if (rc != RP_OK)
        return ebnf_refuse(p, rc, inner.text, "", 0);
    *out = ebnf_regular(rx);
    return RP_OK;
}

/* <text> or <[id]>: its bytes. */
static int token_bytes(struct ebnf *p, const char **out, uint32_t *out_len) {
    size_t begin = p->at++;
    uint32_t id;
    if (ebnf_take(p, "[")) {
        if (!ebnf_number(p, &id) || !ebnf_take(p, "]>"))
            return ebnf_refuse(p, RP_STATUS_FORMAT, "a token is <text> or <[id]>", "", 0);
        if (!p->trie || id >= p->trie->token_count || p->trie->tokens[id].len == 0)
            return ebnf_refuse(p, RP_STATUS_RANGE, "the model has no token with this id", "", 0);
    } else {
        while (p->at < p->len && p->text[p->at] != '>' && (unsigned char)p->text[p->at] >= ' ')
            p->at++;
        if (!ebnf_take(p, ">"))
            return ebnf_refuse(p, RP_STATUS_FORMAT, "a token is <text> or <[id]>", "", 0);
        const struct trie_special *special =
            trie_special_at(p->trie, p->text + begin, p->at - begin);
        if (!special || special->len != p->at - begin) { /* an ordinary token is its bytes */
            *out = p->text + begin;
            *out_len = (uint32_t)(p->at - begin);
            return RP_OK;
        }
        id = special->token;
    }
    *out = p->trie->tokens[id].bytes;
    *out_len = p->trie->tokens[id].len;
    return RP_OK;
}

int ebnf_token(struct ebnf *p, struct ebnf_value *out) {
    const char *bytes;
    uint32_t len;
    int rc = token_bytes(p, &bytes, &len);
    if (rc == RP_OK)
        *out = ebnf_other(g_lit(p->g, bytes, len));
    return rc;
}

int ebnf_not_token(struct ebnf *p, struct ebnf_value *out) {
    struct free_pattern pattern = {.node = NODE_NONE};
    p->at++;
    int rc = token_bytes(p, &pattern.bytes, &pattern.len);
    if (rc != RP_OK)
        return rc;
    if (!ebnf_take(p, "*"))
        return ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "!<token> is supported as !<token>* only", "",
                           0);
    size_t count = (uint8_t)pattern.bytes[0] != SPECIAL_MARK; /* never in free text */
    *out = ebnf_other(g_free(p->g, &pattern, count, true, REP_INF, REP_INF));
    return RP_OK;
}

void ebnf_skip(struct ebnf *p) {
    char quote = p->text[p->at++];
    if (quote == '[' && !p->lark)
        quote = ']';
    else if (quote != '"' && (quote != '/' || !p->lark))
        return;
    while (p->at < p->len && p->text[p->at] != quote && p->text[p->at] != '\n')
        p->at += p->text[p->at] == '\\' ? 2 : 1;
    p->at = RP_MIN(p->at + 1, p->len);
}
