/* grammar_rx.c - layer 1: regular expressions by derivatives.
 * The constructors keep nodes in a normal form (lists sorted and flat, no NODE_NONE below), so that
 * an expression without RX_AND and RX_NOT has finitely many derivatives and none of them is empty
 * unless it is NODE_NONE. With them (NODE_MIXED) emptiness is decided by a search. */
#include "text/grammar/grammar_internal.h"

#include "base/memory.h"

#include <string.h>

#define DEPTH_MAX 1000 /* of a derivative's recursion */

uint32_t rx_range(struct rp_grammar *g, uint32_t low, uint32_t high) {
    return grammar_intern(g, (struct node){.kind = RX_RANGE,
                                           .flags = NODE_LIVE | NODE_LIVE_KNOWN | NODE_FINITE,
                                           .lo = low,
                                           .hi = high});
}

static uint8_t mixed(const struct rp_grammar *g, uint32_t id) {
    return node_at(g, id)->flags & NODE_MIXED;
}

static uint32_t cat_deep(struct rp_grammar *g, uint32_t a, uint32_t b, int depth) {
    if (a == NODE_NONE || b == NODE_NONE)
        return NODE_NONE;
    if (a == NODE_EPS)
        return b;
    if (b == NODE_EPS || (a == NODE_ALL && b == NODE_ALL))
        return a;
    struct node x = *node_at(g, a);
    if (x.kind == RX_CAT && depth < 64)
        return cat_deep(g, x.a, cat_deep(g, x.b, b, depth + 1), depth + 1);
    uint8_t flags = (x.flags & node_at(g, b)->flags & (NODE_NULLABLE | NODE_FINITE));
    flags |= mixed(g, a) | mixed(g, b);
    return grammar_intern(g, (struct node){.kind = RX_CAT, .flags = flags, .a = a, .b = b});
}

uint32_t rx_cat(struct rp_grammar *g, uint32_t a, uint32_t b) { return cat_deep(g, a, b, 0); }

/* Puts value, or its members when it is such a list, onto g->found. */
static bool push_flat(struct rp_grammar *g, enum node_kind kind, uint32_t value) {
    struct node n = *node_at(g, value);
    if (n.kind != kind)
        return VEC_PUSH(g, &g->found, value);
    if (!VEC_ROOM(g, &g->found, n.b))
        return false;
    memcpy(g->found.at + g->found.count, g->lists.at + n.a, n.b * sizeof(uint32_t));
    g->found.count += n.b;
    return true;
}

/* An RX_OR or RX_AND of found[base ..), which is popped. */
static uint32_t make_list(struct rp_grammar *g, enum node_kind kind, size_t base) {
    uint32_t unit = kind == RX_OR ? NODE_NONE : NODE_ALL;
    uint32_t zero = kind == RX_OR ? NODE_ALL : NODE_NONE;
    bool any_null = false, all_null = true, any_mixed = kind == RX_AND, eps = false, end = false;
    bool finite = kind == RX_OR;
    size_t used = base;
    for (size_t i = base; i < g->found.count; i++) {
        uint32_t id = g->found.at[i];
        end |= id == zero;
        if (id == unit)
            continue;
        if (id == NODE_EPS) {
            eps = true;
            continue;
        }
        any_null |= node_nullable(g, id);
        all_null &= node_nullable(g, id);
        any_mixed |= mixed(g, id) != 0;
        finite &= (node_at(g, id)->flags & NODE_FINITE) != 0;
        g->found.at[used++] = id;
    }
    size_t count = used - base;
    g->found.count = base;
    if (end || g->status != RP_OK)
        return g->status == RP_OK ? zero : NODE_NONE;
    if (eps && kind == RX_AND)
        return all_null ? NODE_EPS : NODE_NONE;
    if (eps && !any_null) {
        g->found.at[base + count++] = NODE_EPS; /* its slot is free: it was passed over above */
        any_null = true;
    }
    if (count > 1) {
        uint32_t whole;
        g->found.count = base + count;
        bool done = false;
        if (kind == RX_OR)
            count = rx_normal_or(g, base, count);
        else
            done = rx_normal_and(g, base, &count, &whole);
        g->found.count = base;
        if (done)
            return whole;
    }
    if (count == 0)
        return unit;
    bool same = true;
    for (size_t i = 1; i < count; i++)
        same &= g->found.at[base + i] == g->found.at[base];
    if (same)
        return g->found.at[base];
    bool null = kind == RX_OR ? any_null : all_null;
    return grammar_intern_list(g, kind,
                               (uint8_t)((null ? NODE_NULLABLE : 0) | (any_mixed ? NODE_MIXED : 0) |
                                         (finite ? NODE_FINITE : 0)),
                               g->found.at + base, count);
}

uint32_t rx_or(struct rp_grammar *g, uint32_t *values, size_t count) {
    size_t base = g->found.count;
    for (size_t i = 0; i < count; i++)
        if (!push_flat(g, RX_OR, values[i]))
            break;
    return make_list(g, RX_OR, base);
}

uint32_t rx_or2(struct rp_grammar *g, uint32_t a, uint32_t b) {
    if (a == b || b == NODE_NONE)
        return a;
    return a == NODE_NONE ? b : rx_or(g, (uint32_t[]){a, b}, 2);
}

uint32_t rx_and2(struct rp_grammar *g, uint32_t a, uint32_t b) {
    size_t base = g->found.count;
    if (!push_flat(g, RX_AND, a) || !push_flat(g, RX_AND, b))
        g->found.count = base;
    return make_list(g, RX_AND, base);
}

uint32_t rx_not(struct rp_grammar *g, uint32_t a) {
    if (a == NODE_NONE)
        return NODE_ALL;
    if (a == NODE_ALL)
        return NODE_NONE;
    struct node n = *node_at(g, a);
    if (n.kind == RX_NOT)
        return n.a;
    uint8_t flags = NODE_MIXED | (n.flags & NODE_NULLABLE ? 0 : NODE_NULLABLE);
    return grammar_intern(g, (struct node){.kind = RX_NOT, .flags = flags, .a = a});
}

uint32_t rx_rep(struct rp_grammar *g, uint32_t a, uint32_t low, uint32_t high) {
    if (high == 0 || a == NODE_EPS || (a == NODE_NONE && low == 0))
        return NODE_EPS;
    if (a == NODE_NONE || a == NODE_ALL || (low == 1 && high == 1))
        return a;
    struct node n = *node_at(g, a);
    if (n.flags & NODE_NULLABLE)
        low = 0;
    if (n.kind == RX_REP && n.lo == 0 && n.hi == REP_INF)
        return a;
    uint8_t flags = (n.flags & NODE_MIXED) | (low == 0 ? NODE_NULLABLE : 0);
    flags |= high != REP_INF ? n.flags & NODE_FINITE : 0;
    return grammar_intern(
        g, (struct node){.kind = RX_REP, .flags = flags, .a = a, .lo = low, .hi = high});
}

uint32_t rx_bytes(struct rp_grammar *g, const char *bytes, size_t len) {
    uint32_t rx = NODE_EPS;
    for (size_t i = len; i-- > 0;)
        rx = rx_cat(g, rx_range(g, (uint8_t)bytes[i], (uint8_t)bytes[i]), rx);
    return rx;
}

uint32_t rx_mod(struct rp_grammar *g, uint32_t divisor, uint32_t remainder, uint32_t decimals,
                uint32_t place) {
    uint64_t rest = remainder;
    uint64_t power = 1;
    for (uint32_t i = 0; i < decimals; i++) {
        rest = rest * 10 % divisor;
        power *= 10;
    }
    bool ends = rest == 0 && place != 1;
    if (place > 0 && rest > 0 && divisor - rest >= power)
        return NODE_NONE; /* no decimals complete it */
    return grammar_intern(g, (struct node){.kind = RX_MOD,
                                           .flags = ends ? NODE_NULLABLE : 0,
                                           .a = divisor,
                                           .b = remainder,
                                           .lo = decimals,
                                           .hi = place});
}

static uint32_t mod_derivative(struct rp_grammar *g, const struct node *n, uint8_t byte) {
    if (byte == '.' && n->hi == 0 && n->lo > 0)
        return rx_mod(g, n->a, n->b, n->lo, 1);
    if (byte < '0' || byte > '9' || (n->hi > 0 && n->lo == 0))
        return NODE_NONE;
    uint32_t rest = (uint32_t)(((uint64_t)n->b * 10 + byte - '0') % n->a);
    return n->hi == 0 ? rx_mod(g, n->a, rest, n->lo, 0) : rx_mod(g, n->a, rest, n->lo - 1, 2);
}

static uint32_t derive_list(struct rp_grammar *g, struct node n, uint8_t byte, int depth) {
    size_t base = g->found.count;
    for (uint32_t i = 0; i < n.b; i++) {
        uint32_t d = rx_derive(g, g->lists.at[n.a + i], byte, depth + 1);
        if (n.kind == RX_AND && d == NODE_NONE) {
            g->found.count = base;
            return NODE_NONE;
        }
        if (!push_flat(g, (enum node_kind)n.kind, d))
            break;
    }
    return make_list(g, (enum node_kind)n.kind, base);
}

uint32_t rx_derive(struct rp_grammar *g, uint32_t id, uint8_t byte, int depth) {
    if (depth > DEPTH_MAX) {
        grammar_fail(g, RP_STATUS_FULL);
        return NODE_NONE;
    }
    struct node n = *node_at(g, id);
    g->derivatives++;
    switch (n.kind) {
    case RX_ALL:
        return NODE_ALL;
    case RX_RANGE:
        return byte >= n.lo && byte <= n.hi ? NODE_EPS : NODE_NONE;
    case RX_CHARS:
    case RX_PART:
    case RX_ESC:
    case RX_HEX:
    case RX_LOW:
        return rx_char_derivative(g, &n, byte);
    case RX_MOD:
        return mod_derivative(g, &n, byte);
    case RX_CAT: {
        uint32_t d = rx_cat(g, rx_derive(g, n.a, byte, depth + 1), n.b);
        return node_nullable(g, n.a) ? rx_or2(g, d, rx_derive(g, n.b, byte, depth + 1)) : d;
    }
    case RX_OR:
    case RX_AND:
        return grammar_burn(g, n.b / 4) ? derive_list(g, n, byte, depth) : NODE_NONE;
    case RX_NOT:
        return rx_not(g, rx_derive(g, n.a, byte, depth + 1));
    case RX_REP: {
        uint32_t d = rx_derive(g, n.a, byte, depth + 1);
        if (d == NODE_NONE)
            return NODE_NONE;
        uint32_t rest = rx_rep(g, n.a, n.lo > 0 ? n.lo - 1 : 0, n.hi == REP_INF ? n.hi : n.hi - 1);
        return rx_cat(g, d, rest);
    }
    default:
        return NODE_NONE;
    }
}

bool rx_live(struct rp_grammar *g, uint32_t id) {
    struct node n = *node_at(g, id);
    if (n.flags & NODE_LIVE_KNOWN)
        return n.flags & NODE_LIVE;
    enum rx_answer answer = rx_quick_live(g, id);
    bool live = answer == RX_LIVE || (answer == RX_UNSURE && rx_search(g, id));
    if (g->status == RP_OK)
        g->nodes.at[id].flags |= (uint8_t)(NODE_LIVE_KNOWN | (live ? NODE_LIVE : 0));
    return live;
}

uint32_t rx_charge(struct rp_grammar *g, uint32_t id) {
    struct node *n = &g->nodes.at[id];
    g->charges++;
    for (uint32_t at = id; at != NODE_NONE && g->nodes.at[at].charged != g->call;) {
        g->nodes.at[at].charged = g->call;
        g->spent += g->nodes.at[at].cost;
        at = g->nodes.at[at].closer;
    }
    if (g->spent > g->spent_limit)
        grammar_fail(g, RP_STATUS_FULL);
    return n->flags & NODE_LIVE && g->status == RP_OK ? id : NODE_NONE;
}

static uint32_t *new_row(struct rp_grammar *g, uint32_t id) {
    size_t bytes = ROW_SIZE * sizeof(uint32_t);
    if (g->memory_bytes + bytes > g->memory_limit) {
        grammar_fail(g, RP_STATUS_FULL);
        return NULL;
    }
    if (!VEC_ROOM(g, &g->rows, 1))
        return NULL;
    uint32_t *row = rp_alloc(bytes);
    if (!row) {
        grammar_fail(g, RP_STATUS_NO_MEMORY);
        return NULL;
    }
    memset(row, 0xFF, bytes);
    g->memory_bytes += bytes;
    g->rows.at[g->rows.count++] = row;
    g->nodes.at[id].row = (uint32_t)g->rows.count;
    return row;
}

/* The same derivative for all bytes around `byte` that cannot be told apart. */
static void fill_cells(struct rp_grammar *g, uint32_t id, uint32_t byte, uint32_t to) {
    bool starts[256] = {[0] = true, [0x80] = true};
    rx_mark_starts(g, id, starts, 0);
    uint32_t *cells = g->rows.at[g->nodes.at[id].row - 1], first = byte, last = byte;
    while (!starts[first])
        first--;
    while (last < 255 && !starts[last + 1])
        last++;
    for (; first <= last; first++)
        cells[first] = to;
}

uint32_t rx_delta_slow(struct rp_grammar *g, uint32_t id, uint8_t byte) {
    if (node_at(g, id)->steps > STEPS_MAX) {
        grammar_fail(g, RP_STATUS_FULL);
        return NODE_NONE;
    }
    uint32_t d = rx_derive(g, id, byte, 0);
    bool live = d == NODE_NONE || rx_live(g, d), searched = node_at(g, d)->cost > 0;
    if (g->status != RP_OK || !grammar_burn(g, 1))
        return NODE_NONE;
    uint32_t row = g->nodes.at[id].row;
    uint32_t *cells = row ? g->rows.at[row - 1] : new_row(g, id);
    if (cells)
        fill_cells(g, id, byte, searched ? d | ROW_SEARCH : live ? d : NODE_NONE);
    if (searched)
        return rx_charge(g, d);
    return live ? d : NODE_NONE;
}

bool rx_matches(struct rp_grammar *g, uint32_t id, const char *text, size_t len) {
    for (size_t i = 0; i < len && id != NODE_NONE; i++)
        id = rx_delta(g, id, (uint8_t)text[i]);
    return node_nullable(g, id);
}

/* Where the lengths do not tell, a search does. */
static bool counted_live(struct rp_grammar *g, const struct rx_counted *at) {
    uint32_t high = at->hi == REP_INF ? REP_INF : at->hi - 1;
    enum rx_answer answer = rx_fits(&node_at(g, at->rx)->chars, at->lo, high);
    if (answer != RX_UNSURE)
        return answer == RX_LIVE;
    uint32_t count = rx_rep(g, g->json_char, at->lo, high);
    if (at->inner != NODE_NONE)
        count = rx_cat(g, at->inner, count);
    uint32_t both = rx_and2(g, at->rx, count);
    bool live = both != NODE_NONE && rx_live(g, both);
    return node_at(g, both)->cost > 0 ? rx_charge(g, both) != NODE_NONE : live;
}

bool rx_step_counted(struct rp_grammar *g, struct rx_counted *at, uint8_t byte) {
    bool begins = at->inner == NODE_NONE;
    if (begins && at->hi == 1)
        return false;
    at->rx = rx_delta(g, at->rx, byte);
    if (at->rx == NODE_NONE)
        return false;
    if (begins) {
        at->hi -= at->hi != REP_INF;
        at->lo -= at->lo > 0;
    }
    bool whole = begins && byte >= 0x20 && byte < 0x80 && byte != '\\';
    if (!whole) {
        at->inner = rx_delta(g, begins ? g->json_char : at->inner, byte);
        if (at->inner == NODE_NONE)
            return false;
        at->inner = at->inner == NODE_EPS ? NODE_NONE : at->inner;
    }
    return counted_live(g, at);
}
