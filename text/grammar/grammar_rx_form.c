/* grammar_rx_form.c - a normal form of the members of RX_OR and RX_AND, so that most questions
 * whether an expression can still match are answered by its form.
 *
 * Every member of a list has taken the same bytes, and how bytes divide into characters depends on
 * the bytes alone. So all members are between characters, or all are in the same character. */
#include "text/grammar/grammar_internal.h"

#include <stdlib.h>

/* The rest of one character that has begun: no text of it is the beginning of another one. */
static bool is_rest(const struct rp_grammar *g, uint32_t id) {
    const struct node *n = node_at(g, id);
    if (n->kind == RX_REP && n->lo == n->hi)
        n = node_at(g, n->a);
    return (n->kind >= RX_PART && n->kind <= RX_LOW) ||
           (n->kind == RX_RANGE && n->lo == 0x80 && n->hi == 0xBF);
}

/* The rest of a character that a text of the member begins with, or NODE_NONE; *out_tail: what
 * follows it. */
static uint32_t rest_of(const struct rp_grammar *g, uint32_t id, uint32_t *out_tail) {
    const struct node *n = node_at(g, id);
    *out_tail = n->kind == RX_CAT ? n->b : NODE_EPS;
    uint32_t head = n->kind == RX_CAT ? n->a : id;
    return is_rest(g, head) ? head : NODE_NONE;
}

static uint32_t complement_of(const struct rp_grammar *g, uint32_t id) {
    const struct node *n = node_at(g, id);
    return n->kind == RX_NOT ? n->a : NODE_NONE;
}

bool rx_in_char(const struct rp_grammar *g, uint32_t id) {
    uint32_t tail;
    for (int depth = 0; depth < 8; depth++) {
        const struct node *n = node_at(g, id);
        if (rest_of(g, id, &tail) != NODE_NONE)
            return true;
        if (n->kind == RX_NOT)
            id = n->a;
        else if (n->kind == RX_AND || n->kind == RX_OR)
            id = g->lists.at[n->a];
        else
            return false;
    }
    return false;
}

static int compare_ids(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* h x | h y = h (x | y) */
static size_t join_alternatives(struct rp_grammar *g, size_t base, size_t count) {
    size_t heads = 0, used = 0;
    uint32_t tail, other;
    for (size_t i = 0; i < count; i++)
        heads += rest_of(g, g->found.at[base + i], &tail) != NODE_NONE;
    if (heads < 2 || !grammar_burn(g, count / 16))
        return count;
    /* nodes of one head need not be neighbours: each looks for the first of its head */
    for (size_t i = 0; i < count && g->status == RP_OK; i++) {
        uint32_t id = g->found.at[base + i], head = rest_of(g, id, &tail);
        size_t k = head == NODE_NONE ? used : 0;
        while (k < used && rest_of(g, g->found.at[base + k], &other) != head)
            k++;
        if (k < used)
            g->found.at[base + k] = rx_cat(g, head, rx_or2(g, other, tail));
        else
            g->found.at[base + used++] = id;
        if (!grammar_burn(g, k / 16))
            break;
    }
    return used;
}

/* h x & h y & !(h z) = h (x & y & !z): false when the members begin with different rests. */
static bool join_conditions(struct rp_grammar *g, size_t base, size_t count, uint32_t *out) {
    uint32_t head = NODE_NONE, tail;
    for (size_t i = 0; i < count; i++) {
        uint32_t id = g->found.at[base + i], inner = complement_of(g, id);
        uint32_t rest = rest_of(g, inner != NODE_NONE ? inner : id, &tail);
        if (rest == NODE_NONE || (head != NODE_NONE && rest != head))
            return false;
        head = rest;
    }
    bool positive = false;
    for (size_t i = 0; i < count; i++)
        positive |= node_at(g, g->found.at[base + i])->kind != RX_NOT;
    if (!positive)
        return false;
    uint32_t all = NODE_ALL;
    for (size_t i = 0; i < count && g->status == RP_OK; i++) {
        uint32_t id = g->found.at[base + i], inner = complement_of(g, id);
        rest_of(g, inner != NODE_NONE ? inner : id, &tail);
        all = rx_and2(g, all, inner != NODE_NONE ? rx_not(g, tail) : tail);
    }
    *out = rx_cat(g, head, all);
    return true;
}

static bool has_member(const struct rp_grammar *g, const struct node *list, uint32_t id) {
    return list->kind == RX_OR &&
           bsearch(&id, g->lists.at + list->a, list->b, sizeof id, compare_ids);
}

/* Some member is excluded by another one. Any text excludes every string. */
static bool contradicts(struct rp_grammar *g, size_t base, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t inner = complement_of(g, g->found.at[base + i]);
        struct node n = *node_at(g, inner);
        if (inner != NODE_NONE && !grammar_burn(g, count / 16))
            return true;
        bool none = inner == g->json_any || has_member(g, &n, g->json_any);
        for (size_t k = 0; k < count && inner != NODE_NONE; k++) {
            uint32_t id = g->found.at[base + k];
            if (id == inner || (none && node_at(g, id)->flags & NODE_STRING) ||
                has_member(g, &n, id))
                return true;
        }
    }
    return false;
}

/* So many characters of any value. */
static bool is_count(const struct rp_grammar *g, uint32_t id) {
    const struct node *n = node_at(g, id);
    return id == g->json_char || (n->kind == RX_REP && n->a == g->json_char);
}

/* One number of characters instead of several, and none where another condition implies it. False:
 * no number fits. */
static bool join_counts(struct rp_grammar *g, size_t base, size_t *count) {
    struct rx_lengths least = {0, REP_INF, 0, 0}, all = least;
    size_t used = 0, counts = 0;
    bool some = false;
    for (size_t i = 0; i < *count; i++) {
        uint32_t id = g->found.at[base + i];
        const struct node *n = node_at(g, id);
        struct rx_lengths *l = is_count(g, id) ? &all : &least;
        if (n->flags & NODE_STRING) {
            l->min = RP_MAX(l->min, n->chars.min);
            l->max = RP_MIN(l->max, n->chars.max);
            some |= l == &least;
        }
        if (l == &all)
            counts++;
        else
            g->found.at[base + used++] = id;
    }
    if (all.min > all.max)
        return false;
    if (counts > 0 && !(some && all.min <= least.min && all.max >= least.max))
        g->found.at[base + used++] = rx_rep(g, g->json_char, all.min, all.max);
    *count = used;
    return true;
}

/* The member is x{k} t, or x t, where t begins with any characters: a text of x{k + 1} t is one of
 * x{k} t too. *out_x: x; the result is k, or 0 for other members. */
static uint32_t times_before_any(const struct rp_grammar *g, uint32_t id, uint32_t *out_x,
                                 uint32_t *out_tail) {
    const struct node *n = node_at(g, id);
    if (n->kind != RX_CAT || !(node_at(g, n->a)->flags & NODE_STRING))
        return 0;
    const struct node *head = node_at(g, n->a), *tail = node_at(g, n->b);
    if (n->b != g->json_any && !(tail->kind == RX_CAT && tail->a == g->json_any))
        return 0;
    bool repeated = head->kind == RX_REP && head->lo == head->hi;
    *out_x = repeated ? head->a : n->a;
    *out_tail = n->b;
    return repeated ? head->lo : 1;
}

static size_t drop_longer(struct rp_grammar *g, size_t base, size_t count) {
    uint32_t x, y, tail, other;
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t id = g->found.at[base + i], times = times_before_any(g, id, &x, &tail);
        size_t k = times ? 0 : used;
        while (k < used) {
            uint32_t known = times_before_any(g, g->found.at[base + k], &y, &other);
            if (known && x == y && tail == other) {
                if (times < known)
                    g->found.at[base + k] = id;
                break;
            }
            k++;
        }
        if (k == used)
            g->found.at[base + used++] = id;
        if (!grammar_burn(g, k / 16))
            break;
    }
    return used;
}

size_t rx_normal_or(struct rp_grammar *g, size_t base, size_t count) {
    bool any = false;
    for (size_t i = 0; i < count; i++)
        any |= g->found.at[base + i] == g->json_any;
    size_t used = 0;
    for (size_t i = 0; i < count && any; i++) {
        uint32_t id = g->found.at[base + i];
        if (id == g->json_any || !(node_at(g, id)->flags & NODE_STRING))
            g->found.at[base + used++] = id;
    }
    return any ? used : drop_longer(g, base, join_alternatives(g, base, count));
}

bool rx_normal_and(struct rp_grammar *g, size_t base, size_t *count, uint32_t *out) {
    *out = NODE_NONE;
    if (!join_counts(g, base, count))
        return true;
    return contradicts(g, base, *count) || join_conditions(g, base, *count, out);
}
