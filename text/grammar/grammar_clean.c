/* grammar_clean.c - which characters keep expressions alive, so that the precomputed masks of
 * tokens apply. A search goes over what follows each character, at most CLEAN_MAX characters deep,
 * as far as the tokens of these masks go. */
#include "text/grammar/grammar_mask.h"

#include <string.h>

#define EXPRESSION_FUEL 2
#define PLACES_MAX      128   /* of a search */
#define PLACE_FUEL      32    /* for each node of an expression: most bytes are tried */
#define SEARCH_FUEL     50000 /* a search that needs more costs more than it saves */
#define PARTS_MAX       32    /* places inside the characters of one first byte */
#define EXCLUDED_MAX    6000  /* tokens that are tested one by one */

void clean_pay(struct walk *w, uint32_t rx) {
    struct node *n = &w->g->nodes.at[rx];
    if (n->passed != w->g->call)
        w->used += (uint64_t)n->steps * EXPRESSION_FUEL;
    n->passed = w->g->call;
}

/* What is left of each expression of a set. */
struct place {
    uint32_t rx[LEXES_MAX];
    uint8_t depth; /* characters before it */
};
struct part {
    struct place at;
    uint8_t left, low, high; /* more bytes of the character, of which the next is low..high */
};
struct clean_search {
    struct rp_grammar *g;
    const struct rp_token_trie *trie; /* NULL: nothing may be excluded */
    struct clean_set *set;
    bool again;    /* a place was found again */
    uint64_t used; /* fuel */
    size_t count;
    struct place places[PLACES_MAX]; /* between characters */
};

/* False: no expression takes the byte. */
static bool step(struct clean_search *s, const struct place *from, uint8_t byte,
                 struct place *out) {
    bool alive = false;
    *out = (struct place){.depth = from->depth};
    for (uint32_t i = 0; i < s->set->count; i++) {
        if (from->rx[i] != NODE_NONE)
            out->rx[i] = rx_delta(s->g, from->rx[i], byte);
        alive |= out->rx[i] != NODE_NONE;
    }
    return alive;
}

static bool same(const struct clean_search *s, const struct place *a, const struct place *b) {
    uint32_t i = 0;
    while (i < s->set->count && a->rx[i] == b->rx[i])
        i++;
    return i == s->set->count;
}

static bool add_place(struct clean_search *s, const struct place *p, uint8_t depth) {
    uint32_t least = REP_INF, from = REP_INF;
    for (size_t i = s->count; i-- > 0;) /* most lead to the newest */
        if (same(s, &s->places[i], p)) {
            s->again |= s->places[i].depth != depth;
            return true;
        }
    if (s->count == PLACES_MAX)
        return false;
    for (uint32_t i = 0; i < s->set->count; i++) {
        const struct rx_lengths *l = &node_at(s->g, p->rx[i])->chars;
        if (p->rx[i] == NODE_NONE)
            continue;
        s->used += (uint64_t)node_at(s->g, p->rx[i])->steps * PLACE_FUEL;
        least = RP_MIN(least, l->min);
        from = l->to == REP_INF ? RP_MIN(from, l->from) : from;
    }
    s->set->min = RP_MAX(s->set->min, least);
    s->set->from = RP_MAX(s->set->from, from);
    s->places[s->count] = *p;
    s->places[s->count++].depth = depth;
    return s->used <= SEARCH_FUEL;
}

static bool exclude(struct clean_search *s, uint8_t byte) {
    if (!s->trie || (byte != ' ' && s->trie->having_too_many[byte]))
        return false;
    s->set->excluded[byte] = true;
    if (byte != ' ')
        s->set->tokens += s->trie->having_at[byte + 1] - s->trie->having_at[byte];
    return s->set->tokens <= EXCLUDED_MAX;
}

/* Whether all characters that go on with `part` fit; *out_full: there are too many places. */
static bool rest_fits(struct clean_search *s, struct part part, bool *out_full) {
    struct part parts[PARTS_MAX] = {part}, next;
    size_t count = 1;
    for (size_t i = 0; i < count; i++)
        for (uint32_t byte = parts[i].low; byte <= parts[i].high; byte++) {
            next = (struct part){.left = parts[i].left - 1, .low = 0x80, .high = 0xBF};
            if (!step(s, &parts[i].at, (uint8_t)byte, &next.at))
                return false;
            size_t k = 0;
            while (next.left > 0 && k < count &&
                   !(parts[k].left == next.left && parts[k].low == 0x80 && parts[k].high == 0xBF &&
                     same(s, &parts[k].at, &next.at)))
                k++;
            if (next.left > 0 && k == count && count < PARTS_MAX)
                parts[count++] = next;
            else if (next.left > 0 ? k == PARTS_MAX : !add_place(s, &next.at, next.at.depth + 1)) {
                *out_full = true;
                return false;
            }
        }
    return true;
}

/* Without U+2028 and U+2029, which are not clean. */
static bool e2_fits(struct clean_search *s, struct part part, bool *out_full) {
    struct part second = {.left = 1, .low = 0x80, .high = 0xA7};
    if (!step(s, &part.at, 0x80, &second.at) || !rest_fits(s, second, out_full))
        return false;
    second.low = 0xAA;
    second.high = 0xBF;
    part.low = 0x81;
    return rest_fits(s, second, out_full) && rest_fits(s, part, out_full);
}

/* What follows places[at] after each clean character. */
static bool steps(struct clean_search *s, size_t at) {
    struct place from = s->places[at], to;
    struct part part, before = {.left = 0};
    bool fits = false, full = false;
    for (uint32_t byte = 0x20; byte < 0x80; byte++) {
        if (byte == '"' || byte == '\\' || s->set->excluded[byte])
            continue;
        if (step(s, &from, (uint8_t)byte, &to) ? !add_place(s, &to, from.depth + 1)
                                               : !exclude(s, (uint8_t)byte))
            return false;
    }
    for (uint32_t byte = 0xC2; byte < 0xF5 && s->g->status == RP_OK; byte++) {
        if (s->set->excluded[byte])
            continue;
        part = (struct part){.left = byte < 0xE0   ? 1
                                     : byte < 0xF0 ? 2
                                                   : 3,
                             .low = byte == 0xE0   ? 0xA0
                                    : byte == 0xF0 ? 0x90
                                                   : 0x80,
                             .high = byte == 0xED   ? 0x9F
                                     : byte == 0xF4 ? 0x8F
                                                    : 0xBF};
        bool alive = step(s, &from, (uint8_t)byte, &part.at);
        bool known = byte != 0xE2 && part.left == before.left && part.low == before.low &&
                     part.high == before.high && same(s, &part.at, &before.at);
        if (!known)
            fits = alive && (byte == 0xE2 ? e2_fits(s, part, &full) : rest_fits(s, part, &full));
        before = byte == 0xE2 ? (struct part){.left = 0} : part;
        if (full || (!fits && !exclude(s, (uint8_t)byte)))
            return false;
    }
    return s->g->status == RP_OK;
}

static bool search(struct clean_search *s) {
    static const uint8_t frequent[] = {'a', 'e', 'E', 0xE4};
    struct place first = {.depth = 0}, to;
    memcpy(first.rx, s->set->rx, s->set->count * sizeof *first.rx);
    for (size_t i = 0; i < sizeof frequent; i++)
        if (!step(s, &first, frequent[i], &to))
            return false;
    bool fits = add_place(s, &first, 0);
    for (size_t i = 0; i < s->count && fits; i++)
        fits = s->places[i].depth == CLEAN_MAX || steps(s, i);
    return fits;
}

/* An alternative begins with any characters, as those of a pattern without ^ do. */
static bool begins_with_any(const struct rp_grammar *g, uint32_t rx) {
    struct node n = *node_at(g, rx);
    for (uint32_t i = 0; n.kind == RX_OR && i < n.b; i++)
        if (begins_with_any(g, g->lists.at[n.a + i]))
            return true;
    return rx == g->json_any ||
           (n.kind == RX_CAT && n.a == g->json_any && !(node_at(g, n.b)->flags & NODE_MIXED));
}

bool clean_fits(struct rp_grammar *g, uint32_t rx) {
    if (begins_with_any(g, rx))
        return true;
    if ((node_at(g, rx)->clean & 3) != 0)
        return (node_at(g, rx)->clean & 3) == 2;
    uint64_t charges = g->charges;
    struct clean_set set = {.count = 1, .rx = {rx}};
    struct clean_search s = {.g = g, .set = &set};
    bool clean = rx_delta(g, rx, '~') && rx_delta(g, rx, ' ') && search(&s);
    if (g->status == RP_OK && g->charges == charges) /* else its searches count again */
        g->nodes.at[rx].clean |= clean ? 2 : 1;
    return clean;
}

bool clean_fits_but(struct walk *w, struct clean_set *set) {
    struct clean_search s = {.g = w->g, .trie = w->trie, .set = set};
    memset(set->excluded, 0, sizeof set->excluded);
    set->tokens = set->min = set->from = 0;
    bool fits = search(&s);
    return mask_spend(w, s.used) && fits;
}

/* What follows places[at] after each character of the class. *out_ends: none of them fits. */
static bool class_steps(struct clean_search *s, size_t at, int name, bool *out_ends) {
    struct place from = s->places[at], to, before = {.depth = 0};
    bool some = false, all = true;
    for (uint32_t byte = ' '; byte < 0x80 && (all || !some); byte++) {
        if (!trie_class_has(name, (uint8_t)byte))
            continue;
        bool fits = step(s, &from, (uint8_t)byte, &to);
        some |= fits;
        all &= fits;
        if (fits && !same(s, &to, &before) && !add_place(s, &to, from.depth + 1))
            return false;
        before = to;
    }
    *out_ends = !some;
    return some == all;
}

bool clean_fits_class(struct walk *w, struct clean_set *set, int name) {
    struct clean_search s = {.g = w->g, .set = set};
    set->min = set->from = 0;
    set->chars = CLEAN_MAX;
    bool fits = add_place(&s, &(struct place){.rx = {set->rx[0]}}, 0), ends = false;
    for (size_t i = 0; i < s.count && fits && s.places[i].depth < CLEAN_MAX; i++) {
        bool before = ends; /* after a place that ends, all places end, and are as deep */
        fits = class_steps(&s, i, name, &ends) && ends >= before;
        if (ends) {
            fits = fits && s.places[i].depth > 0 && !s.again &&
                   (!before || s.places[i].depth == set->chars);
            set->chars = s.places[i].depth;
        }
        fits = fits && (ends || s.g->status == RP_OK);
    }
    return mask_spend(w, s.used) && fits;
}
