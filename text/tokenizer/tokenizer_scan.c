/* Scanners for the split patterns that nearly all byte-level models use. Each cuts where its
 * pattern does under PCRE2 (a randomized test holds them to it), several times faster. What a
 * pattern leaves between two matches is a piece too. */
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"
#include "text/unicode/unicode.h"

#include <string.h>

const char rp_tok_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Sets of classes. */
#define BIT(class)  (1u << (class))
#define UPPER       BIT(RP_TOK_UPPER)
#define LETTERS     (BIT(RP_TOK_UPPER) | BIT(RP_TOK_LOWER) | BIT(RP_TOK_LETTER))
#define MARK        BIT(RP_TOK_MARK)
#define NUMBER      BIT(RP_TOK_NUMBER)
#define SIGN        BIT(RP_TOK_SIGN)
#define SPACE       BIT(RP_TOK_SPACE)
#define OTHER       BIT(RP_TOK_OTHER)
#define NOT_LETTERS (OTHER | MARK | SIGN) /* [^\s\p{L}\p{N}] */

static uint8_t class_of(uint32_t code) {
    if (rp_tok_is_space(code))
        return RP_TOK_SPACE;
    switch (rp_unicode_category(code)) {
    case RP_UNICODE_LU:
    case RP_UNICODE_LT:
        return RP_TOK_UPPER;
    case RP_UNICODE_LL:
        return RP_TOK_LOWER;
    case RP_UNICODE_LM:
    case RP_UNICODE_LO:
        return RP_TOK_LETTER;
    case RP_UNICODE_MN:
    case RP_UNICODE_MC:
    case RP_UNICODE_ME:
        return RP_TOK_MARK;
    case RP_UNICODE_ND:
    case RP_UNICODE_NL:
    case RP_UNICODE_NO:
        return RP_TOK_NUMBER;
    case RP_UNICODE_PC:
    case RP_UNICODE_PD:
    case RP_UNICODE_PS:
    case RP_UNICODE_PE:
    case RP_UNICODE_PI:
    case RP_UNICODE_PF:
    case RP_UNICODE_PO:
    case RP_UNICODE_SM:
    case RP_UNICODE_SC:
    case RP_UNICODE_SK:
    case RP_UNICODE_SO:
        return RP_TOK_SIGN;
    default:
        return RP_TOK_OTHER;
    }
}

void rp_tok_classes_fill(uint8_t classes[0x10000], uint8_t moves[0x10000]) {
    for (uint32_t code = 0; code < 0x10000; code++) {
        classes[code] = class_of(code);
        moves[code] = (uint8_t)(rp_unicode_record(code)->flags / RP_UNICODE_MOVES);
    }
}

/* The class of the character at `pos` < len as a set of one, and its length. The text is valid
 * UTF-8. */
static inline unsigned class_at(const uint8_t *classes, const char *text, size_t len, size_t pos,
                                size_t *n) {
    const unsigned char *s = (const unsigned char *)text + pos;
    if (RP_LIKELY(s[0] < 0x80)) {
        *n = 1;
        return BIT(classes[s[0]]);
    }
    if (s[0] < 0xE0 && len - pos >= 2) {
        *n = 2;
        return BIT(classes[(s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu)]);
    }
    if (s[0] < 0xF0 && len - pos >= 3) {
        *n = 3;
        return BIT(classes[(s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu)]);
    }
    uint32_t code = 0;
    int size = rp_utf8_decode(text + pos, len - pos, &code);
    *n = size > 0 ? (size_t)size : 1;
    return BIT(class_of(code));
}

/* The same after the end of the text: no class. */
static inline unsigned class_or_end(const uint8_t *classes, const char *text, size_t len,
                                    size_t pos, size_t *n) {
    *n = 0;
    return pos < len ? class_at(classes, text, len, pos, n) : 0;
}

/* End of the run of characters in `set` that continues at `pos`. */
static inline size_t run_end(const uint8_t *classes, const char *text, size_t len, size_t pos,
                             unsigned set) {
    size_t n;
    while (pos < len && class_at(classes, text, len, pos, &n) & set)
        pos += n;
    return pos;
}

static inline bool is_newline(char c) { return c == '\r' || c == '\n'; }

/* \s*[\r\n]+|\s+(?!\S)|\s+ at white space: up to the last line end; or else all of it, but the last one goes to the
 * word after. */
static size_t space_end(const uint8_t *classes, const char *text, size_t len, size_t pos,
                        bool to_newline) {
    size_t end = run_end(classes, text, len, pos, SPACE);
    for (size_t p = end; to_newline && p > pos; p--)
        if (is_newline(text[p - 1]))
            return p;
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
    if (left < 2 || text[pos] != '\'')
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

/* Up to `most` numbers from `pos`, where there is one. */
static size_t numbers_end(const uint8_t *classes, const char *text, size_t len, size_t pos,
                          int most) {
    size_t n;
    for (; most > 0 && pos < len && class_at(classes, text, len, pos, &n) & NUMBER; most--)
        pos += n;
    return pos;
}

/* [set]+[\r\n]* and with `slash` [set]+[\r\n/]*. */
static size_t signs_end(const uint8_t *classes, const char *text, size_t len, size_t pos,
                        unsigned set, bool slash) {
    pos = run_end(classes, text, len, pos, set);
    while (pos < len && (is_newline(text[pos]) || (slash && text[pos] == '/')))
        pos++;
    return pos;
}

static size_t scan_gpt2(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    static const unsigned sets[8] = {
        [RP_TOK_OTHER] = NOT_LETTERS, [RP_TOK_UPPER] = LETTERS,    [RP_TOK_LOWER] = LETTERS,
        [RP_TOK_LETTER] = LETTERS,    [RP_TOK_MARK] = NOT_LETTERS, [RP_TOK_NUMBER] = NUMBER,
        [RP_TOK_SIGN] = NOT_LETTERS,  [RP_TOK_SPACE] = 0};
    size_t n, p = pos;
    if (text[pos] == '\'') {
        n = contraction(text, len, pos, false);
        if (n)
            return pos + n;
    }
    if (text[pos] == ' ' && pos + 1 < len)
        p++;
    unsigned class = class_at(classes, text, len, p, &n);
    if (class != SPACE)
        return run_end(classes, text, len, p + n, sets[__builtin_ctz(class)]);
    return space_end(classes, text, len, pos, false);
}

/* `letters`: what words are of; `digits`: how many numbers a piece has. */
static inline size_t scan_cl100k(const uint8_t *classes, const char *text, size_t len, size_t pos,
                                 unsigned letters, int digits) {
    size_t n, next_n;
    if (text[pos] == '\'') {
        n = contraction(text, len, pos, true);
        if (n)
            return pos + n;
    }
    unsigned class = class_at(classes, text, len, pos, &n);
    if (class & letters)
        return run_end(classes, text, len, pos + n, letters);
    if (class & NUMBER)
        return numbers_end(classes, text, len, pos, digits);
    unsigned next = class_or_end(classes, text, len, pos + n, &next_n);
    if (next & letters && !is_newline(text[pos]))
        return run_end(classes, text, len, pos + n + next_n, letters);
    unsigned signs = NOT_LETTERS & ~letters;
    if (class & signs || (text[pos] == ' ' && next & signs))
        return signs_end(classes, text, len, pos + n, signs, false);
    return space_end(classes, text, len, pos, true);
}

static size_t scan_llama3(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    return scan_cl100k(classes, text, len, pos, LETTERS, 3);
}

static size_t scan_qwen2(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    return scan_cl100k(classes, text, len, pos, LETTERS, 1);
}

static size_t scan_qwen35(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    return scan_cl100k(classes, text, len, pos, LETTERS | MARK, 1);
}

/* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ from `pos`; 0 where it does not match.
 * *upper_end: where the first of the two runs ends. A character that both have ends the match when
 * nothing after it can. */
static inline size_t cased_end(const uint8_t *classes, const char *text, size_t len, size_t pos,
                               size_t *upper_end) {
    size_t n, both_end = 0;
    unsigned class;
    while ((class = class_or_end(classes, text, len, pos, &n)) &
           (UPPER | BIT(RP_TOK_LETTER) | MARK)) {
        pos += n;
        both_end = class & UPPER ? both_end : pos;
    }
    *upper_end = pos;
    if (class & BIT(RP_TOK_LOWER))
        return run_end(classes, text, len, pos + n, BIT(RP_TOK_LOWER) | BIT(RP_TOK_LETTER) | MARK);
    return both_end;
}

static inline size_t scan_cased(const uint8_t *classes, const char *text, size_t len, size_t pos,
                                bool contractions, int digits) {
    size_t n, next_n, end = 0, upper_end = 0;
    unsigned class = class_at(classes, text, len, pos, &n);
    size_t begin = class & LETTERS ? pos : pos + n;
    if (!(class & NUMBER) && !is_newline(text[pos])) {
        end = cased_end(classes, text, len, begin, &upper_end);
        if (!end && class & MARK) /* not a sign before a word, but the word */
            end = cased_end(classes, text, len, pos, &upper_end);
        if (!end && upper_end > begin)
            end = upper_end;
        if (end)
            return end + (contractions ? contraction(text, len, end, true) : 0);
    }
    if (class & NUMBER)
        return numbers_end(classes, text, len, pos, digits);
    if (class & NOT_LETTERS ||
        (text[pos] == ' ' && class_or_end(classes, text, len, pos + n, &next_n) & NOT_LETTERS))
        return signs_end(classes, text, len, pos + n, NOT_LETTERS, true);
    return space_end(classes, text, len, pos, true);
}

static size_t scan_o200k(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    return scan_cased(classes, text, len, pos, true, 3);
}

static size_t scan_tekken(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    return scan_cased(classes, text, len, pos, false, 1);
}

/* \p{N}{1,3} and what is between. */
static size_t scan_numbers(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    size_t end = numbers_end(classes, text, len, pos, 3);
    return end > pos ? end : run_end(classes, text, len, pos, ~NUMBER);
}

static inline bool is_han_or_kana(const char *text, size_t len, size_t pos) {
    const unsigned char *s = (const unsigned char *)text + pos;
    if (s[0] < 0xE3 || s[0] > 0xE9 || len - pos < 3)
        return false;
    uint32_t code = (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
}

/* [一-龥぀-ゟ゠-ヿ]+ and what is between. */
static size_t scan_han(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    (void)classes;
    bool inside = is_han_or_kana(text, len, pos);
    do {
        pos += inside ? 3 : 1;
        while (pos < len && ((unsigned char)text[pos] & 0xC0) == 0x80)
            pos++;
    } while (pos < len && is_han_or_kana(text, len, pos) == inside);
    return pos;
}

static inline bool is_ascii_letter(char c) { return (unsigned char)((c | 0x20) - 'a') < 26; }

/* The last of DeepSeek's three patterns; 0 where it does not match. */
static size_t deepseek_end(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    size_t n, next_n;
    unsigned class = class_at(classes, text, len, pos, &n);
    if (class & SIGN && n == 1 && pos + 1 < len && is_ascii_letter(text[pos + 1])) {
        for (pos += 2; pos < len && is_ascii_letter(text[pos]); pos++)
            ;
        return pos;
    }
    if (class & (LETTERS | MARK))
        return run_end(classes, text, len, pos + n, LETTERS | MARK);
    unsigned next = class_or_end(classes, text, len, pos + n, &next_n);
    if (!(class & SIGN) && !is_newline(text[pos]) && next & (LETTERS | MARK))
        return run_end(classes, text, len, pos + n + next_n, LETTERS | MARK);
    if (class & SIGN || (text[pos] == ' ' && next & SIGN))
        return signs_end(classes, text, len, pos + n, SIGN, false);
    return class & SPACE ? space_end(classes, text, len, pos, true) : 0;
}

static size_t scan_deepseek(const uint8_t *classes, const char *text, size_t len, size_t pos) {
    size_t n, end = deepseek_end(classes, text, len, pos);
    if (end)
        return end;
    do {
        (void)class_at(classes, text, len, pos, &n);
        pos += n;
    } while (pos < len && !deepseek_end(classes, text, len, pos));
    return pos;
}

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K(digits)                                                                             \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES
#define CASED(contractions, digits)                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"     \
    "+" contractions "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}" \
    "\\p{Lo}\\p{M}]*" contractions "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES

const struct rp_tok_scanner rp_tok_scanners[RP_TOK_SCANNERS] = {
    {"gpt2", rp_tok_gpt2_pattern, scan_gpt2},
    {"llama3", CL100K("\\p{N}{1,3}"), scan_llama3},
    {"qwen2", CL100K("\\p{N}"), scan_qwen2},
    {"qwen3.5",
     CONTRACTIONS
     "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES,
     scan_qwen35},
    {"o200k", CASED(CONTRACTIONS "?", "\\p{N}{1,3}"), scan_o200k},
    {"tekken", CASED("", "\\p{N}"), scan_tekken},
    {"numbers", "\\p{N}{1,3}", scan_numbers},
    {"han", "[一-龥\xE3\x81\x80-ゟ゠-ヿ]+", scan_han},
    {"deepseek",
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" SPACES,
     scan_deepseek},
};

/* Files write line ends in a class as an escape of the pattern or as themselves. */
static bool same_pattern(const char *known, const char *pattern, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (is_newline(pattern[i])) {
            if (known[0] != '\\' || known[1] != (pattern[i] == '\r' ? 'r' : 'n'))
                return false;
            known += 2;
        } else if (*known++ != pattern[i] || !pattern[i]) {
            return false;
        }
    }
    return !*known;
}

rp_tok_scan_fn rp_tok_scan_find(const char *pattern, size_t len) {
    for (size_t i = 0; i < RP_TOK_SCANNERS; i++)
        if (same_pattern(rp_tok_scanners[i].pattern, pattern, len))
            return rp_tok_scanners[i].scan;
    return NULL;
}
