/* unicode.h - what text/ knows about characters: the same on every system, from tables of Unicode
 * 16 (make_unicode_tables.py, which names the sources). Everything here is pure; code points past
 * U+10FFFF are unassigned. */
#ifndef RP_TEXT_UNICODE_H
#define RP_TEXT_UNICODE_H

#include "base/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* General categories, in the order of the tables. */
enum rp_unicode_category {
    RP_UNICODE_CN,
    RP_UNICODE_LU,
    RP_UNICODE_LL,
    RP_UNICODE_LT,
    RP_UNICODE_LM,
    RP_UNICODE_LO,
    RP_UNICODE_MN,
    RP_UNICODE_MC,
    RP_UNICODE_ME,
    RP_UNICODE_ND,
    RP_UNICODE_NL,
    RP_UNICODE_NO,
    RP_UNICODE_PC,
    RP_UNICODE_PD,
    RP_UNICODE_PS,
    RP_UNICODE_PE,
    RP_UNICODE_PI,
    RP_UNICODE_PF,
    RP_UNICODE_PO,
    RP_UNICODE_SM,
    RP_UNICODE_SC,
    RP_UNICODE_SK,
    RP_UNICODE_SO,
    RP_UNICODE_ZS,
    RP_UNICODE_ZL,
    RP_UNICODE_ZP,
    RP_UNICODE_CC,
    RP_UNICODE_CF,
    RP_UNICODE_CS,
    RP_UNICODE_CO,
};

enum rp_unicode_form { RP_UNICODE_NFC, RP_UNICODE_NFD, RP_UNICODE_NFKC, RP_UNICODE_NFKD };

enum rp_unicode_flags {
    RP_UNICODE_ALPHABETIC = 1,
    RP_UNICODE_UPPERCASE = 2,
    RP_UNICODE_LOWERCASE = 4,
    RP_UNICODE_CASED = 8,
    RP_UNICODE_CASE_IGNORABLE = 16,
    /* str.isdigit and str.isnumeric of Python */
    RP_UNICODE_DIGIT = 32,
    RP_UNICODE_NUMERIC = 64,
    /* The pre-tokenizers Digits and Punctuation of the package tokenizers, which are of other
     * versions than 16. */
    RP_UNICODE_SPLIT_NUMBER = 128,
    RP_UNICODE_SPLIT_PUNCT = 256,
    /* << form: the character changes in this form, or may join or pass the one before it. */
    RP_UNICODE_MOVES = 512,
    /* Dropped by the normalizers of that package: BertNormalizer's clean_text, its strip_accents
     * (after NFD), and StripAccents. */
    RP_UNICODE_BERT_DROPPED = 512 << 4,
    RP_UNICODE_BERT_ACCENT = 512 << 5,
    RP_UNICODE_ACCENT = 512 << 6,
};

struct rp_unicode_record {
    /* script is private to the tables. combining: the canonical combining class */
    uint8_t category, script, combining;
    uint16_t flags;
};
const struct rp_unicode_record *rp_unicode_record(uint32_t code);

static inline enum rp_unicode_category rp_unicode_category(uint32_t code) {
    return (enum rp_unicode_category)rp_unicode_record(code)->category;
}
/* str.isalpha and str.isalnum of Python. */
static inline bool rp_unicode_is_letter(uint32_t code) {
    enum rp_unicode_category c = rp_unicode_category(code);
    return c >= RP_UNICODE_LU && c <= RP_UNICODE_LO;
}
static inline bool rp_unicode_is_alnum(uint32_t code) {
    return rp_unicode_is_letter(code) || rp_unicode_record(code)->flags & RP_UNICODE_NUMERIC;
}

/* Simple case mappings: one character to one. */
uint32_t rp_unicode_to_upper(uint32_t code);
uint32_t rp_unicode_to_lower(uint32_t code);
uint32_t rp_unicode_to_title(uint32_t code);
/* The upper or title case of a character that becomes several, as UTF-8; or NULL. */
const char *rp_unicode_special_case(uint32_t code, bool title);

/* ---- Sets of characters, for patterns -------------------------------------------------- */

#define RP_UNICODE_SET_WORDS (0x110000 / 64)
struct rp_unicode_set {
    uint64_t words[RP_UNICODE_SET_WORDS];
};
static inline bool rp_unicode_set_has(const struct rp_unicode_set *set, uint32_t code) {
    return set->words[code / 64] >> (code % 64) & 1;
}
void rp_unicode_set_add(struct rp_unicode_set *set, uint32_t first, uint32_t last);
/* Without the surrogates, which no text has. */
void rp_unicode_set_invert(struct rp_unicode_set *set);
/* Adds the characters that have any of `flags` or whose category has its bit in `categories`. */
void rp_unicode_set_add_kind(struct rp_unicode_set *set, unsigned flags, uint32_t categories);
/* Adds the categories or the script of \p{name}; false when the name is not known. Case, spaces, _
 * and - do not matter. */
bool rp_unicode_set_add_name(struct rp_unicode_set *set, const char *name, size_t len);
/* Adds what (?i) equates with its characters, one to one. */
void rp_unicode_set_add_folded(struct rp_unicode_set *set);
/* One of its characters that (?i) equates with several characters, or 0. */
uint32_t rp_unicode_set_multi_fold(const struct rp_unicode_set *set);
/* The next run of members at or after *first, which becomes its first character; false: none. */
bool rp_unicode_set_next(const struct rp_unicode_set *set, uint32_t *first, uint32_t *last);
/* Whether (?i) equates the last of these characters, and those before, with one character. */
bool rp_unicode_ends_multi_fold(const uint32_t *points, size_t count);

/* ---- Normal forms ----------------------------------------------------------------------- */

/* The most characters that one becomes (U+FDFA). */
#define RP_UNICODE_DECOMPOSED_MAX 18

/* The full decomposition of one character, in order; their number. */
size_t rp_unicode_decompose(uint32_t code, bool compat, uint32_t out[RP_UNICODE_DECOMPOSED_MAX]);
/* Canonical order by combining classes, in linear time. `spare` is as long as `points`. */
void rp_unicode_order(uint32_t *points, uint32_t *spare, size_t count);
/* Composes ordered points in place; the new count. */
size_t rp_unicode_compose(uint32_t *points, size_t count);

#endif
