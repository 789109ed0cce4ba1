/* unicode_tables.h - the data of unicode.c, written by make_unicode_tables.py. Private to
 * text/unicode/. */
#ifndef RP_TEXT_UNICODE_TABLES_H
#define RP_TEXT_UNICODE_TABLES_H

#include "text/unicode/unicode.h"

/* Blocks of 256 code points below U+20000 have an index into the ranges. */
#define RP_UNICODE_BLOCKS 512

/* Ranges of equal characters, sorted: first code point << 11 | index of its record. */
extern const struct rp_unicode_record rp_unicode_records[];
extern const uint32_t rp_unicode_ranges[];
extern const uint32_t rp_unicode_range_count;
/* The range that holds the first code point of each block, and that of U+20000. */
extern const uint16_t rp_unicode_first[RP_UNICODE_BLOCKS + 1];

/* Full decompositions: codes[i], sorted, is points[at[i] .. at[i + 1]). `compat` has those that
 * differ from the canonical ones. */
struct rp_unicode_decompositions {
    const uint32_t *codes;
    const uint16_t *at;
    const uint32_t *points;
    uint32_t count;
};
extern const struct rp_unicode_decompositions rp_unicode_canonical, rp_unicode_compat;

/* Sorted by first, second. Hangul syllables are computed. */
struct rp_unicode_pair {
    uint32_t first, second, composite;
};
extern const struct rp_unicode_pair rp_unicode_pairs[];
extern const uint32_t rp_unicode_pair_count;

/* `count` code points from `first` in steps of `stride`, each of which maps to itself + delta. */
struct rp_unicode_shift {
    uint32_t first;
    uint16_t count;
    uint8_t stride;
    int32_t delta;
};
struct rp_unicode_shifts {
    const struct rp_unicode_shift *runs;
    uint32_t count;
};
extern const struct rp_unicode_shifts rp_unicode_upper, rp_unicode_lower, rp_unicode_title;
/* To the smallest of the characters that (?i) equates. */
extern const struct rp_unicode_shifts rp_unicode_fold;

/* Characters whose upper or title case has several characters; UTF-8. */
struct rp_unicode_special {
    uint32_t code;
    const char *upper, *title;
};
extern const struct rp_unicode_special rp_unicode_specials[];
extern const uint32_t rp_unicode_special_count;

/* Characters that (?i) equates with several; points end at a 0. */
struct rp_unicode_multi_fold {
    uint32_t code, points[3];
};
extern const struct rp_unicode_multi_fold rp_unicode_multi_folds[];
extern const uint32_t rp_unicode_multi_fold_count;

/* Names of \p{...} in lower case without spaces, _ and -; sorted. Either a set of categories, one
 * bit for each, or a script. */
struct rp_unicode_name {
    const char *name;
    uint32_t categories, script;
};
extern const struct rp_unicode_name rp_unicode_names[];
extern const uint32_t rp_unicode_name_count;

#endif
