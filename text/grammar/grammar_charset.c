/* grammar_charset.c - sets of characters as sorted ranges of scalar values. */
#include "text/grammar/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

static int compare_ranges(const void *a, const void *b) {
    const struct charset_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Appends the range without its surrogates to the ranges that are being made; joins neighbors. */
static bool add(struct rp_grammar *g, size_t begin, uint32_t first, uint32_t last) {
    if (first < 0xD800 && last >= 0xD800)
        return add(g, begin, first, 0xD7FF) && (last <= 0xDFFF || add(g, begin, 0xE000, last));
    if (first >= 0xD800 && first <= 0xDFFF)
        return last <= 0xDFFF || add(g, begin, 0xE000, last);
    if (g->ranges.count > begin) {
        struct charset_range *before = &g->ranges.at[g->ranges.count - 1];
        if (first <= before->last + 1) {
            before->last = RP_MAX(before->last, last);
            return true;
        }
    }
    return VEC_PUSH(g, &g->ranges, ((struct charset_range){first, last}));
}

/* The set of ranges[begin ..), or an equal older one. */
static uint32_t intern_set(struct rp_grammar *g, size_t begin) {
    size_t count = g->ranges.count - begin;
    if (!grammar_burn(g, 1 + count / 8))
        return CHARSET_EMPTY;
    for (uint32_t i = 0; i < g->sets.count; i++)
        if (g->sets.at[i].count == count &&
            memcmp(g->ranges.at + g->sets.at[i].first, g->ranges.at + begin,
                   count * sizeof *g->ranges.at) == 0) {
            g->ranges.count = begin;
            return i;
        }
    struct charset set = {(uint32_t)begin, (uint32_t)count};
    return VEC_PUSH(g, &g->sets, set) ? (uint32_t)(g->sets.count - 1) : CHARSET_EMPTY;
}

uint32_t charset_make(struct rp_grammar *g, struct charset_range *ranges, size_t count) {
    size_t begin = g->ranges.count;
    if (!VEC_ROOM(g, &g->ranges, 1))
        return CHARSET_EMPTY;
    if (count > 1)
        qsort(ranges, count, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < count; i++)
        if (!add(g, begin, ranges[i].first, RP_MIN(ranges[i].last, 0x10FFFFu)))
            return CHARSET_EMPTY;
    return intern_set(g, begin);
}

uint32_t charset_range(struct rp_grammar *g, uint32_t first, uint32_t last) {
    struct charset_range range = {first, last};
    return charset_make(g, &range, 1);
}

uint32_t charset_intersect(struct rp_grammar *g, uint32_t a, uint32_t b) {
    size_t begin = g->ranges.count;
    struct charset x = g->sets.at[a], y = g->sets.at[b];
    for (uint32_t i = 0, k = 0; i < x.count && k < y.count;) {
        struct charset_range p = g->ranges.at[x.first + i], q = g->ranges.at[y.first + k];
        uint32_t first = RP_MAX(p.first, q.first), last = RP_MIN(p.last, q.last);
        if (first <= last && !add(g, begin, first, last))
            return CHARSET_EMPTY;
        if (p.last < q.last)
            i++;
        else
            k++;
    }
    return intern_set(g, begin);
}

uint32_t charset_negate(struct rp_grammar *g, uint32_t a) {
    size_t begin = g->ranges.count;
    struct charset x = g->sets.at[a];
    uint32_t next = 0;
    for (uint32_t i = 0; i < x.count; i++) {
        struct charset_range p = g->ranges.at[x.first + i];
        if (p.first > next && !add(g, begin, next, p.first - 1))
            return CHARSET_EMPTY;
        next = p.last + 1;
    }
    if (next <= 0x10FFFF && !add(g, begin, next, 0x10FFFF))
        return CHARSET_EMPTY;
    return intern_set(g, begin);
}

bool charset_touches(const struct rp_grammar *g, uint32_t set, uint32_t first, uint32_t last,
                     bool *out_all) {
    const struct charset *s = &g->sets.at[set];
    const struct charset_range *ranges = g->ranges.at + s->first;
    uint32_t low = 0, high = s->count; /* the first range that ends at or after `first` */
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (ranges[middle].last < first)
            low = middle + 1;
        else
            high = middle;
    }
    *out_all = low < s->count && ranges[low].first <= first && ranges[low].last >= last;
    return low < s->count && ranges[low].first <= last;
}

bool charset_has(const struct rp_grammar *g, uint32_t set, uint32_t code) {
    bool all;
    return charset_touches(g, set, code, code, &all);
}
