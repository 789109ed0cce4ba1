#include "text/unicode/unicode_tables.h"

#include <ctype.h>
#include <string.h>

const struct rp_unicode_record *rp_unicode_record(uint32_t code) {
    code = RP_MIN(code, UINT32_C(0x10FFFF)); /* unassigned */
    uint32_t block = RP_MIN(code >> 8, (uint32_t)RP_UNICODE_BLOCKS);
    uint32_t low = rp_unicode_first[block];
    uint32_t high =
        block < RP_UNICODE_BLOCKS ? rp_unicode_first[block + 1] + 1u : rp_unicode_range_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (rp_unicode_ranges[middle] >> 11 <= code)
            low = middle;
        else
            high = middle;
    }
    return &rp_unicode_records[rp_unicode_ranges[low] & 0x7FF];
}

/* ---- Case ------------------------------------------------------------------------------- */

static uint32_t shifted(const struct rp_unicode_shifts *shifts, uint32_t code) {
    uint32_t low = 0, high = shifts->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (shifts->runs[middle].first <= code)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return code;
    const struct rp_unicode_shift *run = &shifts->runs[low - 1];
    uint32_t steps = code - run->first;
    if (steps % run->stride != 0 || steps / run->stride >= run->count)
        return code;
    return (uint32_t)((int32_t)code + run->delta);
}

uint32_t rp_unicode_to_upper(uint32_t code) { return shifted(&rp_unicode_upper, code); }
uint32_t rp_unicode_to_lower(uint32_t code) { return shifted(&rp_unicode_lower, code); }
uint32_t rp_unicode_to_title(uint32_t code) { return shifted(&rp_unicode_title, code); }

const char *rp_unicode_special_case(uint32_t code, bool title) {
    for (uint32_t i = 0; code >= 0x80 && i < rp_unicode_special_count; i++)
        if (rp_unicode_specials[i].code == code)
            return title ? rp_unicode_specials[i].title : rp_unicode_specials[i].upper;
    return NULL;
}

/* ---- Sets ------------------------------------------------------------------------------- */

void rp_unicode_set_add(struct rp_unicode_set *set, uint32_t first, uint32_t last) {
    for (uint32_t code = first; code <= last;) {
        uint32_t in_word = RP_MIN(63 - code % 64, last - code) + 1;
        uint64_t bits = in_word == 64 ? UINT64_MAX : (UINT64_C(1) << in_word) - 1;
        set->words[code / 64] |= bits << (code % 64);
        code += in_word;
    }
}

void rp_unicode_set_invert(struct rp_unicode_set *set) {
    for (size_t i = 0; i < RP_UNICODE_SET_WORDS; i++)
        set->words[i] = i >= 0xD800 / 64 && i < 0xE000 / 64 ? 0 : ~set->words[i];
}

static void add_records(struct rp_unicode_set *set, unsigned flags, uint32_t categories,
                        uint32_t script) {
    for (uint32_t i = 0; i < rp_unicode_range_count; i++) {
        const struct rp_unicode_record *r = &rp_unicode_records[rp_unicode_ranges[i] & 0x7FF];
        if (!(r->flags & flags) && !(categories >> r->category & 1) &&
            !(script && r->script == script))
            continue;
        uint32_t end =
            i + 1 < rp_unicode_range_count ? rp_unicode_ranges[i + 1] >> 11 : UINT32_C(0x110000);
        rp_unicode_set_add(set, rp_unicode_ranges[i] >> 11, end - 1);
    }
}

void rp_unicode_set_add_kind(struct rp_unicode_set *set, unsigned flags, uint32_t categories) {
    add_records(set, flags, categories, 0);
}

bool rp_unicode_set_add_name(struct rp_unicode_set *set, const char *name, size_t len) {
    char key[64];
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (name[i] == ' ' || name[i] == '_' || name[i] == '-')
            continue;
        if (n + 1 == sizeof key)
            return false;
        key[n++] = (char)tolower((unsigned char)name[i]);
    }
    key[n] = '\0';
    for (uint32_t i = 0; i < rp_unicode_name_count; i++)
        if (strlen(rp_unicode_names[i].name) == n &&
            memcmp(rp_unicode_names[i].name, key, n) == 0) {
            add_records(set, 0, rp_unicode_names[i].categories, rp_unicode_names[i].script);
            return true;
        }
    return false;
}

void rp_unicode_set_add_folded(struct rp_unicode_set *set) {
    /* First the smallest of each class of equals that has a member here, then the whole class. */
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < rp_unicode_fold.count; i++) {
            const struct rp_unicode_shift *run = &rp_unicode_fold.runs[i];
            for (uint32_t k = 0; k < run->count; k++) {
                uint32_t code = run->first + k * run->stride;
                uint32_t smallest = (uint32_t)((int32_t)code + run->delta);
                if (rp_unicode_set_has(set, pass ? smallest : code))
                    rp_unicode_set_add(set, pass ? code : smallest, pass ? code : smallest);
            }
        }
}

uint32_t rp_unicode_set_multi_fold(const struct rp_unicode_set *set) {
    for (uint32_t i = 0; i < rp_unicode_multi_fold_count; i++)
        if (rp_unicode_set_has(set, rp_unicode_multi_folds[i].code))
            return rp_unicode_multi_folds[i].code;
    return 0;
}

bool rp_unicode_set_next(const struct rp_unicode_set *set, uint32_t *first, uint32_t *last) {
    uint32_t code = *first;
    while (code < 0x110000 && !rp_unicode_set_has(set, code))
        code += code % 64 == 0 && !set->words[code / 64] ? 64 : 1;
    if (code >= 0x110000)
        return false;
    *first = code;
    while (code < 0x110000 && rp_unicode_set_has(set, code))
        code += code % 64 == 0 && set->words[code / 64] == UINT64_MAX ? 64 : 1;
    *last = code - 1;
    return true;
}

bool rp_unicode_ends_multi_fold(const uint32_t *points, size_t count) {
    for (uint32_t i = 0; i < rp_unicode_multi_fold_count; i++) {
        const uint32_t *folded = rp_unicode_multi_folds[i].points;
        size_t n = folded[2] ? 3 : 2, same = 0;
        while (n <= count && same < n &&
               shifted(&rp_unicode_fold, points[count - n + same]) ==
                   shifted(&rp_unicode_fold, folded[same]))
            same++;
        if (same == n)
            return true;
    }
    return false;
}

/* ---- Normal forms ----------------------------------------------------------------------- */

/* Hangul syllables by arithmetic: section 3.12 of the Unicode standard. */
enum {
    HANGUL_S = 0xAC00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11A7,
    HANGUL_L_COUNT = 19,
    HANGUL_V_COUNT = 21,
    HANGUL_T_COUNT = 28,
    HANGUL_S_COUNT = HANGUL_L_COUNT * HANGUL_V_COUNT * HANGUL_T_COUNT,
};

static size_t find_decomposition(const struct rp_unicode_decompositions *d, uint32_t code,
                                 uint32_t *out) {
    uint32_t low = 0, high = d->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (d->codes[middle] < code)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == d->count || d->codes[low] != code)
        return 0;
    size_t n = (size_t)(d->at[low + 1] - d->at[low]);
    memcpy(out, d->points + d->at[low], n * sizeof *out);
    return n;
}

size_t rp_unicode_decompose(uint32_t code, bool compat, uint32_t out[RP_UNICODE_DECOMPOSED_MAX]) {
    if (code >= HANGUL_S && code < HANGUL_S + HANGUL_S_COUNT) {
        uint32_t index = code - HANGUL_S, t = index % HANGUL_T_COUNT;
        out[0] = HANGUL_L + index / (HANGUL_V_COUNT * HANGUL_T_COUNT);
        out[1] = HANGUL_V + index / HANGUL_T_COUNT % HANGUL_V_COUNT;
        out[2] = HANGUL_T + t;
        return t ? 3 : 2;
    }
    size_t n = compat ? find_decomposition(&rp_unicode_compat, code, out) : 0;
    if (n == 0)
        n = find_decomposition(&rp_unicode_canonical, code, out);
    if (n == 0)
        out[n++] = code;
    return n;
}

static unsigned combining(uint32_t code) {
    return code < 0x300 ? 0 : rp_unicode_record(code)->combining;
}

/* A run of at most this many marks is ordered by insertion, a longer one by counting: insertion
 * alone is quadratic, and a text of nothing but marks is cheap to send. */
#define INSERTION_MAX 32

static void order_marks(uint32_t *points, uint32_t *spare, size_t count) {
    if (count <= INSERTION_MAX) {
        for (size_t i = 1; i < count; i++) {
            uint32_t point = points[i];
            size_t j = i;
            for (; j > 0 && combining(points[j - 1]) > combining(point); j--)
                points[j] = points[j - 1];
            points[j] = point;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < count; i++)
        start[combining(points[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        start[c + 1] += start[c];
    memcpy(spare, points, count * sizeof *points);
    for (size_t i = 0; i < count; i++)
        points[start[combining(spare[i])]++] = spare[i];
}

void rp_unicode_order(uint32_t *points, uint32_t *spare, size_t count) {
    for (size_t i = 0; i < count;) {
        size_t first = i;
        while (i < count && combining(points[i]))
            i++;
        if (i - first > 1)
            order_marks(points + first, spare, i - first);
        if (i == first)
            i++;
    }
}

/* The composite of two characters, or 0. */
static uint32_t composite(uint32_t first, uint32_t second) {
    if (first - HANGUL_L < HANGUL_L_COUNT && second - HANGUL_V < HANGUL_V_COUNT)
        return HANGUL_S +
               ((first - HANGUL_L) * HANGUL_V_COUNT + second - HANGUL_V) * HANGUL_T_COUNT;
    if (first - HANGUL_S < HANGUL_S_COUNT && (first - HANGUL_S) % HANGUL_T_COUNT == 0 &&
        second - HANGUL_T - 1 < HANGUL_T_COUNT - 1)
        return first + second - HANGUL_T;
    uint32_t low = 0, high = rp_unicode_pair_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct rp_unicode_pair *p = &rp_unicode_pairs[middle];
        if (p->first < first || (p->first == first && p->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    const struct rp_unicode_pair *p = &rp_unicode_pairs[low];
    return low < rp_unicode_pair_count && p->first == first && p->second == second ? p->composite
                                                                                   : 0;
}

size_t rp_unicode_compose(uint32_t *points, size_t count) {
    size_t out = 0, starter = SIZE_MAX;
    /* The class of the last mark that stayed between the starter and here; 0: none stayed. */
    unsigned last = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned class = combining(points[i]);
        bool blocked = starter + 1 != out && last >= class;
        uint32_t whole =
            starter != SIZE_MAX && !blocked ? composite(points[starter], points[i]) : 0;
        if (whole) {
            points[starter] = whole;
            continue;
        }
        if (class == 0)
            starter = out;
        last = class;
        points[out++] = points[i];
    }
    return out;
}
