/* Scanners for the split patterns that nearly all byte-level models use. Each finds the same pieces
 * as its pattern under PCRE2 (a randomized test holds them to it), several times faster. They need
 * no gaps: every text is covered by matches. */
#include "base/utf8.h"
#include "model/tokenizer_internal.h"

#include <string.h>
#include <utf8proc.h>

const char rp_tok_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
#define CL100K_HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define CL100K_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static uint8_t class_of(uint32_t code) {
    if (rp_tok_is_space(code))
        return RP_TOK_SPACE;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return RP_TOK_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return RP_TOK_NUMBER;
    default:
        return RP_TOK_OTHER;
    }
}

void rp_tok_classes_fill(uint8_t classes[0x10000]) {
    for (uint32_t code = 0; code < 0x10000; code++)
        classes[code] = class_of(code);
}

/* Class of the character at `pos` < len, and its length. The text is valid UTF-8. */
static inline uint8_t class_at(const uint8_t *classes, const char *text, size_t len, size_t pos,
                               size_t *n) {
    const unsigned char *s = (const unsigned char *)text + pos;
    if (RP_LIKELY(s[0] < 0x80)) {
        *n = 1;
        return classes[s[0]];
    }
    if (s[0] < 0xE0 && len - pos >= 2) {
        *n = 2;
        return classes[(s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu)];
    }
    if (s[0] < 0xF0 && len - pos >= 3) {
        *n = 3;
        return classes[(s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu)];
    }
    uint32_t code = 0;
    int size = rp_utf8_decode(text + pos, len - pos, &code);
    *n = size > 0 ? (size_t)size : 1;
    return class_of(code);
}

/* End of the run of `class` that continues at `pos`. */
static inline size_t run_end(const uint8_t *classes, const char *text, size_t len, size_t pos,
                             uint8_t class) {
    size_t n;
    while (pos < len && class_at(classes, text, len, pos, &n) == class)
        pos += n;
    return pos;
}

/* End of what \s+(?!\S)|\s+ matches: a run of spaces leaves its last one to the word behind it. */
static size_t space_end(const char *text, size_t len, size_t pos, size_t end) {
    if (end == len)
        return end;
    size_t last = end - 1;
    while (last > pos && ((unsigned char)text[last] & 0xC0) == 0x80)
        last--;
    return last > pos ? last : end;
}

/* Length of 's 't 're 've 'm 'll 'd at `pos`, or 0. */
static size_t contraction(const char *text, size_t len, size_t pos, bool ignore_case) {
    size_t left = len - pos;
    if (left < 2)
        return 0;
    unsigned char fold = ignore_case ? 0x20 : 0;
    char a = (char)((unsigned char)text[pos + 1] | fold);
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (left < 3)
        return 0;
    /* U+017F is an s to (?i). */
    if (ignore_case && text[pos + 1] == '\xC5' && text[pos + 2] == '\xBF')
        return 3;
    char b = (char)((unsigned char)text[pos + 2] | fold);
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

static size_t scan_gpt2(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    size_t n, p = pos;
    if (text[pos] == '\'') {
        n = contraction(text, len, pos, false);
        if (n)
            return pos + n;
    }
    if (text[pos] == ' ' && pos + 1 < len)
        p++;
    uint8_t class = class_at(classes, text, len, p, &n);
    if (class != RP_TOK_SPACE)
        return run_end(classes, text, len, p + n, class);
    return space_end(text, len, pos, run_end(classes, text, len, pos, RP_TOK_SPACE));
}

static inline bool is_newline(char c) { return c == '\r' || c == '\n'; }

static inline size_t scan_cl100k(const uint8_t *classes, const char *text, size_t len, size_t pos,
                                 int digits_max) {
    size_t n, next_n, p;
    if (text[pos] == '\'') {
        n = contraction(text, len, pos, true);
        if (n)
            return pos + n;
    }
    uint8_t class = class_at(classes, text, len, pos, &n);
    if (class == RP_TOK_LETTER)
        return run_end(classes, text, len, pos + n, RP_TOK_LETTER);
    if (class == RP_TOK_NUMBER) {
        p = pos + n;
        for (int digits = 1; digits < digits_max && p < len; digits++, p += n)
            if (class_at(classes, text, len, p, &n) != RP_TOK_NUMBER)
                break;
        return p;
    }
    p = pos + n;
    uint8_t next = p < len ? class_at(classes, text, len, p, &next_n) : RP_TOK_SPACE;
    if (next == RP_TOK_LETTER && !is_newline(text[pos]))
        return run_end(classes, text, len, p + next_n, RP_TOK_LETTER);
    if (class == RP_TOK_OTHER || (text[pos] == ' ' && next == RP_TOK_OTHER)) {
        p = run_end(classes, text, len, p, RP_TOK_OTHER);
        while (p < len && is_newline(text[p]))
            p++;
        return p;
    }
    size_t end = run_end(classes, text, len, pos, RP_TOK_SPACE);
    for (p = end; p > pos; p--)
        if (is_newline(text[p - 1]))
            return p;
    return space_end(text, len, pos, end);
}

static size_t scan_llama3(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    return scan_cl100k(classes, text, len, pos, 3);
}

static size_t scan_qwen2(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    return scan_cl100k(classes, text, len, pos, 1);
}

rp_tok_scan_fn rp_tok_scan_find(const char *pattern, size_t len) {
    static const struct {
        const char *pattern;
        rp_tok_scan_fn scan;
    } known[] = {
        {rp_tok_gpt2_pattern, scan_gpt2},
        {CL100K_HEAD "\\p{N}{1,3}" CL100K_TAIL, scan_llama3},
        {CL100K_HEAD "\\p{N}" CL100K_TAIL, scan_qwen2},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(known); i++)
        if (strlen(known[i].pattern) == len && memcmp(known[i].pattern, pattern, len) == 0)
            return known[i].scan;
    return NULL;
}
