/* grammar_rx_search.c - whether an expression can still match, where its form does not tell. */
#include "text/grammar/grammar_internal.h"

#include <string.h>

#define SEARCH_MAX  20000  /* nodes of one search */
#define NEAREST_MAX 64     /* candidates among which the nearest is taken */
#define FOLLOW_FUEL 250000 /* of all nodes on the way of follow() */
#define DEPTH_MAX   64     /* of an expression whose first bytes are told apart */

/* At least so many characters must follow. */
static uint32_t distance(const struct rp_grammar *g, uint32_t id) {
    const struct node *n = node_at(g, id);
    uint32_t most = n->chars.min;
    while (n->kind == RX_CAT) {
        n = node_at(g, n->b);
        most = RP_MAX(most, n->chars.min);
    }
    for (uint32_t i = 0; n->kind == RX_AND && i < n->b; i++)
        most = RP_MAX(most, node_at(g, g->lists.at[n->a + i])->chars.min);
    return most;
}

/* Takes a node with the least distance off g->work, which begins at `base`. */
static uint32_t nearest(struct rp_grammar *g, size_t base) {
    size_t best = g->work.count - 1, last = best;
    uint32_t least = distance(g, g->work.at[best]);
    for (size_t i = last; i-- > base && least > 0 && last - i < NEAREST_MAX;) {
        uint32_t d = distance(g, g->work.at[i]);
        best = d < least ? i : best;
        least = RP_MIN(d, least);
    }
    uint32_t id = g->work.at[best];
    g->work.at[best] = g->work.at[--g->work.count];
    return id;
}

static void mark_chars(const struct rp_grammar *g, const struct node *n, bool *starts) {
    struct charset s = g->sets.at[n->a];
    for (uint32_t i = 0; i < s.count && g->ranges.at[s.first + i].first < 0x80; i++) {
        struct charset_range r = g->ranges.at[s.first + i];
        starts[r.first] = true;
        starts[RP_MIN(r.last + 1, 0x80u)] = true;
    }
    starts['\\'] = starts['\\' + 1] = true; /* an escape */
    memset(starts + 0xC2, 1, 0xF5 - 0xC2 + 1);
}

void rx_mark_starts(struct rp_grammar *g, uint32_t id, bool *starts, int depth) {
    struct node n = *node_at(g, id);
    g->derivatives++;
    if (depth > DEPTH_MAX) {
        memset(starts, 1, 256);
        return;
    }
    switch (n.kind) {
    case RX_RANGE:
        starts[n.lo] = true;
        if (n.hi < 255)
            starts[n.hi + 1] = true;
        break;
    case RX_CHARS:
        mark_chars(g, &n, starts);
        break;
    case RX_PART:
        memset(starts + 0x80, 1, 0x41);
        break;
    case RX_ESC:
    case RX_HEX:
    case RX_LOW:
    case RX_MOD:
        memset(starts, 1, 0x80 + 1);
        break;
    case RX_CAT:
        rx_mark_starts(g, n.a, starts, depth + 1);
        if (node_nullable(g, n.a))
            rx_mark_starts(g, n.b, starts, depth + 1);
        break;
    case RX_OR:
    case RX_AND:
        for (uint32_t i = 0; i < n.b; i++)
            rx_mark_starts(g, g->lists.at[n.a + i], starts, depth + 1);
        break;
    case RX_NOT:
    case RX_REP:
        rx_mark_starts(g, n.a, starts, depth + 1);
        break;
    default:
        break;
    }
}

/* Puts the derivatives of `at` onto g->work: by ASCII but the backslash, or by the other bytes.
 * True: one of them can match. */
static bool expand(struct rp_grammar *g, uint32_t at, bool simple, uint32_t pass) {
    bool starts[256] = {[0] = true, ['\\'] = true, [']'] = true, [0x80] = true};
    rx_mark_starts(g, at, starts, 0);
    for (uint32_t byte = 0; byte < 256 && g->status == RP_OK; byte++) {
        if (!starts[byte] || (byte < 0x80 && byte != '\\') != simple)
            continue;
        uint32_t d = rx_derive(g, at, (uint8_t)byte, 0);
        if (d == NODE_NONE || g->nodes.at[d].mark == pass)
            continue;
        g->nodes.at[d].mark = pass;
        enum rx_answer answer = rx_quick_live(g, d);
        if (answer == RX_LIVE)
            return true;
        if (answer == RX_UNSURE && !VEC_PUSH(g, &g->work, d))
            return false;
    }
    return false;
}

/* The first derivative by plain ASCII, or of a character that has begun by any byte, that is nearer
 * to an end; NODE_NONE: there is none. Its cost is the node's. */
static uint32_t closer(struct rp_grammar *g, uint32_t id) {
    bool starts[256] = {[0] = true, ['\\'] = true, [']'] = true, [0x80] = true};
    uint64_t first = g->derivatives;
    uint32_t far = distance(g, id), found = NODE_NONE;
    bool inside = rx_in_char(g, id);
    rx_mark_starts(g, id, starts, 0);
    for (uint32_t byte = 0; byte < 256 && found == NODE_NONE && g->status == RP_OK; byte++) {
        if (!starts[byte] || (!inside && (byte >= 0x80 || byte == '\\')))
            continue;
        uint32_t d = rx_derive(g, id, (uint8_t)byte, 0);
        if (d != NODE_NONE && (inside || distance(g, d) < far) && rx_quick_live(g, d) != RX_DEAD)
            found = d;
    }
    g->nodes.at[id].cost = (uint32_t)RP_MIN(g->derivatives - first, (uint64_t)UINT32_MAX);
    return found;
}

/* Follows closer() to what can match by its form. The nodes on the way are then decided too; each
 * costs what it does itself and what those after it do. The answer depends on the node alone: a
 * node that a whole search decided has failed here, and known nodes add what they cost. */
static bool follow(struct rp_grammar *g, uint32_t id) {
    size_t base = g->work.count;
    uint64_t total = 0;
    bool live = false, ok = true;
    for (uint32_t at = id; ok && g->status == RP_OK;) {
        struct node n = *node_at(g, at);
        bool known = n.flags & NODE_FOLLOWED;
        enum rx_answer answer = known ? RX_LIVE : rx_quick_live(g, at);
        total += known ? n.total : 0;
        live = answer == RX_LIVE && total <= FOLLOW_FUEL;
        if (answer != RX_UNSURE || n.flags & NODE_LIVE_KNOWN || !VEC_PUSH(g, &g->work, at))
            break;
        uint32_t next = closer(g, at);
        g->nodes.at[at].closer = next;
        total += g->nodes.at[at].cost;
        ok = next != NODE_NONE && total <= FOLLOW_FUEL && grammar_burn(g, 64);
        at = next;
    }
    live = live && g->status == RP_OK;
    for (size_t i = base; i < g->work.count && live; i++) {
        struct node *n = &g->nodes.at[g->work.at[i]];
        n->flags |= NODE_FOLLOWED | NODE_LIVE_KNOWN | NODE_LIVE;
        n->total = (uint32_t)total;
        total -= n->cost;
    }
    g->work.count = base;
    return live;
}

/* Over derivatives until the form of one says that it can match. The ones that seem nearest to an
 * end come first, and spellings other than plain ASCII last: they wait on g->found. What other
 * searches have found is not used: the cost depends on the node alone. */
bool rx_search(struct rp_grammar *g, uint32_t id) {
    size_t base = g->work.count, later = g->found.count;
    if (follow(g, id))
        return true;
    uint64_t first = g->derivatives, cost = 0; /* a search goes the way of follow() again */
    uint32_t pass = ++g->pass, seen = 0;
    bool live = false, ok = g->status == RP_OK && VEC_PUSH(g, &g->work, id);
    g->nodes.at[id].closer = NODE_NONE;
    g->nodes.at[id].mark = pass;
    while (ok && !live && g->work.count + g->found.count > base + later) {
        bool simple = g->work.count > base;
        uint32_t at = simple ? nearest(g, base) : g->found.at[--g->found.count];
        ok = !simple || VEC_PUSH(g, &g->found, at);
        live = ok && expand(g, at, simple, pass);
        cost = g->derivatives - first;
        if (++seen > SEARCH_MAX || cost > g->spent_limit || !grammar_burn(g, 64))
            grammar_fail(g, RP_STATUS_FULL);
        ok = ok && g->status == RP_OK;
    }
    g->work.count = base;
    g->found.count = later;
    g->nodes.at[id].cost = (uint32_t)RP_MIN(cost, (uint64_t)UINT32_MAX);
    return live && ok;
}
