/* grammar_schema_array.c - arrays of a conjunction. */
#include "text/grammar/grammar_schema.h"

#include <string.h>

#define COUNTS_MAX 3    /* of contains, and elements that must be there */
#define CELLS_MAX  4096 /* numbers of elements times states of the counts */

static const json_t *prefix_of(const json_t *s) {
    const json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
    return prefix ? prefix : json_is_array(items) ? items : NULL;
}

static const json_t *rest_of(const json_t *s) {
    const json_t *items = json_object_get(s, "items");
    return json_is_array(items) ? json_object_get(s, "additionalItems") : items;
}

/* Elements from `first` on that satisfy a schema: so many. A state counts up to `top`. */
struct count {
    const json_t *yes, *no; /* no: of those that are not counted; NULL: any */
    uint32_t first, min, top;
};

struct array {
    struct schema_compiler *c;
    const struct conj *conj;
    struct count counts[COUNTS_MAX];
    unsigned count_count;
    uint32_t states; /* of all counts together */
    uint32_t min, max, prefix;
    uint32_t close;
};

/* The rule of element k. Counts in `yes` count it, the others in `no` do not. */
static int element(struct array *a, size_t k, unsigned yes, unsigned no, uint32_t *out) {
    struct schema_compiler *c = a->c;
    struct item_list items = {.nothing = false};
    int rc = RP_OK;
    for (size_t i = 0; rc == RP_OK && i < a->conj->count; i++) {
        const json_t *s = a->conj->items[i].schema;
        const json_t *one = json_array_get(prefix_of(s), k);
        if (!one)
            one = rest_of(s);
        if (one)
            rc = schema_add(c, &items, one, 0);
    }
    for (unsigned i = 0; rc == RP_OK && i < a->count_count; i++) {
        if (yes >> i & 1)
            rc = schema_add(c, &items, a->counts[i].yes, 0);
        else if (no >> i & 1 && a->counts[i].no)
            rc = schema_add(c, &items, a->counts[i].no, 0);
    }
    int made = schema_rule(c, &items, out);
    return rc != RP_OK ? rc : made;
}

static int add_count(struct array *a, const json_t *schema, const json_t *yes, uint32_t first,
                     uint32_t min, uint32_t max) {
    if (min == 0 && max == REP_INF)
        return RP_OK;
    uint32_t top = max == REP_INF ? min : max;
    if (a->count_count == COUNTS_MAX || top > CELLS_MAX || a->states * (top + 1) > CELLS_MAX)
        return schema_refuse(a->c, RP_STATUS_UNSUPPORTED, schema, "contains",
                             "too many elements are counted");
    struct count *n = &a->counts[a->count_count++];
    *n = (struct count){yes, NULL, first, min, top};
    a->states *= top + 1;
    if (max == REP_INF)
        return RP_OK;
    n->no = schema_keep(a->c, json_pack("{s:O}", "not", yes), schema);
    return n->no ? RP_OK : a->c->g->status;
}

static int collect_counts(struct array *a) {
    int rc = RP_OK;
    for (size_t i = 0; rc == RP_OK && i < a->conj->count; i++) {
        struct conj one = {&a->conj->items[i], 1, false};
        const json_t *s = one.items->schema, *contains = json_object_get(s, "contains");
        const json_t *some = json_object_get(s, "\1someItem");
        uint32_t min, max;
        if (contains)
            rc = schema_sizes(a->c, &one, "minContains", "maxContains", &min, &max);
        if (rc == RP_OK && contains)
            rc = add_count(a, s, contains, 0, json_object_get(s, "minContains") ? min : 1, max);
        if (rc == RP_OK && some)
            rc =
                add_count(a, s, json_object_get(some, "value"),
                          (uint32_t)json_integer_value(json_object_get(some, "first")), 1, REP_INF);
    }
    return rc;
}

/* The state after an element that the counts in `yes` count; the state itself when it changes
 * nothing. False: one of them has all that it may have. */
static bool counted(const struct array *a, uint32_t state, unsigned yes, uint32_t *out) {
    uint32_t unit = 1, at = state;
    *out = state;
    for (unsigned i = 0; i < a->count_count; i++) {
        uint32_t width = a->counts[i].top + 1, n = at % width;
        if (yes >> i & 1 && n == a->counts[i].top)
            return false;
        *out += yes >> i & 1 ? unit : 0;
        unit *= width;
        at /= width;
    }
    return true;
}

static bool enough(const struct array *a, uint32_t state) {
    for (unsigned i = 0; i < a->count_count; i++) {
        uint32_t width = a->counts[i].top + 1;
        if (state % width < a->counts[i].min)
            return false;
        state /= width;
    }
    return true;
}

/* Element k and what follows it, next[] by state; in *out_same the elements that leave the state
 * as it is. */
static int one_element(struct array *a, uint32_t k, uint32_t state, const uint32_t *next,
                       uint32_t *out, uint32_t *out_same) {
    struct rp_grammar *g = a->c->g;
    unsigned open = 0;
    int rc = RP_OK;
    *out = *out_same = NODE_NONE;
    for (unsigned i = 0; i < a->count_count; i++)
        open |= k >= a->counts[i].first ? 1u << i : 0;
    for (unsigned yes = 0; rc == RP_OK && yes < 1u << a->count_count; yes++) {
        uint32_t to, rule;
        if (yes & ~open || !counted(a, state, yes, &to))
            continue;
        rc = element(a, k, yes, open & ~yes, &rule);
        if (to == state && out_same != out)
            *out_same = rule;
        else
            *out = g_or2(g, *out, g_cat(g, rule, next[to]));
    }
    return rc == RP_OK ? g->status : rc;
}

/* For each state: what follows when k elements, at least one, are written. */
static int make_cells(struct array *a, uint32_t *cells, uint32_t *out_first) {
    struct schema_compiler *c = a->c;
    struct rp_grammar *g = c->g;
    uint32_t fixed = RP_MAX(RP_MAX(a->prefix, a->min), 1), *next = cells, *now = cells + a->states;
    uint32_t more, same;
    bool endless = a->max == REP_INF;
    int rc = RP_OK;
    if (!endless)
        fixed = a->max;
    for (uint32_t state = a->states; state-- > 0 && rc == RP_OK;) { /* counts only grow */
        uint32_t end = enough(a, state) ? a->close : NODE_NONE;
        next[state] = end;
        if (!endless)
            continue;
        rc = one_element(a, fixed, state, next, &more, &same);
        next[state] = g_cat(g, g_rep(g, g_cat(g, c->comma, same), 0, REP_INF),
                            g_or2(g, end, g_cat(g, c->comma, more)));
    }
    for (uint32_t k = fixed; k-- > 1 && rc == RP_OK;) {
        for (uint32_t state = 0; state < a->states && rc == RP_OK; state++) {
            rc = one_element(a, k, state, next, &more, &more);
            bool ends = k >= a->min && enough(a, state);
            now[state] = g_or2(g, g_cat(g, c->comma, more), ends ? a->close : NODE_NONE);
        }
        uint32_t *swap = next;
        next = now;
        now = swap;
    }
    *out_first = NODE_NONE;
    if (rc == RP_OK && a->max > 0)
        rc = one_element(a, 0, 0, next, out_first, out_first);
    return rc;
}

/* Arrays whose elements are counted by what they are. */
static int counted_array(struct array *a, uint32_t *out) {
    struct rp_grammar *g = a->c->g;
    for (unsigned i = 0; i < a->count_count; i++)
        a->prefix = RP_MAX(a->prefix, a->counts[i].first);
    uint32_t most = a->max == REP_INF ? RP_MAX(a->prefix, a->min) : a->max;
    if ((uint64_t)most * a->states > CELLS_MAX)
        return schema_refuse(a->c, RP_STATUS_FULL, a->conj->items[0].schema, "contains",
                             "too many elements for this bound");
    uint32_t *cells = rp_arena_calloc(&a->c->arena, 2 * (size_t)a->states, sizeof *cells);
    uint32_t first = NODE_NONE;
    int rc = cells ? make_cells(a, cells, &first) : grammar_fail(g, RP_STATUS_NO_MEMORY);
    bool empty = a->min == 0 && enough(a, 0);
    uint32_t full = g_cat(g, a->c->ws, first);
    *out = g_cat(g, g_lit(g, "[", 1), g_or2(g, full, empty ? a->close : NODE_NONE));
    return rc;
}

static int plain_array(struct array *a, uint32_t *out) {
    struct schema_compiler *c = a->c;
    struct rp_grammar *g = c->g;
    uint32_t min = a->min, max = a->max, rest;
    int rc = element(a, a->prefix, 0, 0, &rest);
    /* what follows element k - 1, from the last to the first */
    uint32_t first = RP_MIN(a->prefix, max), used = RP_MAX(first, 1u), tail = NODE_NONE;
    if (max >= used)
        tail = g_cat(g,
                     g_rep(g, g_cat(g, c->comma, rest), min > used ? min - used : 0,
                           max == REP_INF ? max : max - used),
                     a->close);
    for (uint32_t k = first; k-- > 1 && rc == RP_OK;) {
        uint32_t one;
        rc = element(a, k, 0, 0, &one);
        tail = g_cat(g, c->comma, g_cat(g, one, tail));
        if (min <= k)
            tail = g_or2(g, tail, a->close);
    }
    uint32_t head = NODE_NONE;
    if (rc == RP_OK && max > 0)
        rc = element(a, 0, 0, 0, &head);
    uint32_t full = g_cat(g, c->ws, g_cat(g, head, tail));
    *out = g_cat(g, g_lit(g, "[", 1), g_or2(g, full, min == 0 ? a->close : NODE_NONE));
    return rc;
}

int schema_array(struct schema_compiler *c, const struct conj *conj, uint32_t *out) {
    struct array a = {.c = c, .conj = conj, .states = 1};
    a.close = g_cat(c->g, c->ws, g_lit(c->g, "]", 1));
    int rc = schema_sizes(c, conj, "minItems", "maxItems", &a.min, &a.max);
    for (size_t i = 0; i < conj->count; i++)
        a.prefix = RP_MAX(a.prefix, (uint32_t)json_array_size(prefix_of(conj->items[i].schema)));
    if (rc == RP_OK)
        rc = collect_counts(&a);
    for (size_t i = 0; rc == RP_OK && i < conj->count && a.max > 1; i++)
        if (json_is_true(json_object_get(conj->items[i].schema, "uniqueItems")))
            return schema_refuse(c, RP_STATUS_UNSUPPORTED, conj->items[i].schema, "uniqueItems",
                                 "not supported");
    *out = NODE_NONE;
    if (rc != RP_OK || a.min > a.max)
        return rc;
    return a.count_count > 0 ? counted_array(&a, out) : plain_array(&a, out);
}
