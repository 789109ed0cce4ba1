/* grammar_node.c - layer 2: rules, sequences, counted repeats, and states.
 *
 * g_state() expands what may come next until each alternative begins with a G_LIT, G_LEX or
 * G_CHARS; g_step() takes a byte from each and expands again. The tails are shared chains, so a
 * step makes a few nodes whatever the depth. */
#include "text/grammar/grammar_internal.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define ALTERNATIVES_MAX 20000 /* of one state; more: left recursion or too complex */

static uint8_t dead(const struct rp_grammar *g, uint32_t id) {
    return node_at(g, id)->flags & NODE_DEAD;
}

uint32_t g_lit(struct rp_grammar *g, const char *bytes, size_t len) {
    if (len == 0)
        return NODE_EPS;
    if (!VEC_ROOM(g, &g->text, len) || !grammar_burn(g, len / 16))
        return NODE_NONE;
    size_t begin = g->text.count;
    memcpy(g->text.at + begin, bytes, len);
    g->text.count += len;
    uint32_t id =
        grammar_intern(g, (struct node){.kind = G_LIT, .a = (uint32_t)begin, .b = (uint32_t)len});
    if (node_at(g, id)->a != begin)
        g->text.count = begin; /* the same text was there */
    return id;
}

uint32_t g_lex(struct rp_grammar *g, uint32_t rx) {
    if (rx <= NODE_EPS)
        return rx;
    if (!rx_live(g, rx))
        return NODE_NONE;
    struct node n = *node_at(g, rx);
    if (n.kind == RX_REP && n.a == g->json_char) /* a free string */
        return g_chars(g, n.lo, n.hi);
    if (rx == g->json_char)
        return g_chars(g, 1, 1);
    return grammar_intern(
        g, (struct node){.kind = G_LEX, .flags = node_at(g, rx)->flags & NODE_NULLABLE, .a = rx});
}

static uint32_t lex_counted(struct rp_grammar *g, struct rx_counted at) {
    const struct node *n = node_at(g, at.rx);
    if (at.lo <= n->chars.min)
        at.lo = 0;
    if (at.inner == NODE_NONE) {
        if (n->kind == RX_REP && n->a == g->json_char)
            return g_chars(g, RP_MAX(at.lo, n->lo),
                           at.hi == REP_INF ? n->hi : RP_MIN(n->hi, at.hi - 1));
        if (at.lo == 0 && (at.hi == REP_INF || n->chars.max < at.hi))
            return g_lex(g, at.rx);
    }
    uint8_t flags = at.inner == NODE_NONE && at.lo == 0 ? n->flags & NODE_NULLABLE : 0;
    return grammar_intern(
        g, (struct node){
               .kind = G_LEX, .flags = flags, .a = at.rx, .b = at.inner, .lo = at.lo, .hi = at.hi});
}

uint32_t g_lex_counted(struct rp_grammar *g, uint32_t rx, uint32_t low, uint32_t high) {
    struct node n = *node_at(g, rx);
    if (rx == NODE_NONE || low > high)
        return NODE_NONE;
    if ((n.flags & (NODE_STRING | NODE_MIXED)) != NODE_STRING)
        return g_lex(g, low == 0 && high == REP_INF
                            ? rx
                            : rx_and2(g, rx, rx_rep(g, g->json_char, low, high)));
    if (n.kind == RX_REP && node_at(g, n.a)->flags & NODE_STRING &&
        node_at(g, n.a)->chars.min == 1 && node_at(g, n.a)->chars.max == 1) {
        low = RP_MAX(low, n.lo); /* one expression for all its numbers of characters */
        high = RP_MIN(high, n.hi);
        rx = rx_rep(g, n.a, 0, REP_INF);
    }
    enum rx_answer answer = rx_fits(&node_at(g, rx)->chars, low, high);
    if (answer == RX_UNSURE)
        answer = rx_live(g, rx_and2(g, rx, rx_rep(g, g->json_char, low, high))) ? RX_LIVE : RX_DEAD;
    if (answer == RX_DEAD)
        return NODE_NONE;
    return lex_counted(
        g, (struct rx_counted){rx, NODE_NONE, low, high >= REP_INF - 1 ? REP_INF : high + 1});
}

uint32_t g_chars(struct rp_grammar *g, uint32_t low, uint32_t high) {
    if (low > high)
        return NODE_NONE;
    if (high == 0)
        return NODE_EPS;
    return grammar_intern(
        g, (struct node){
               .kind = G_CHARS, .flags = low == 0 ? NODE_NULLABLE : 0, .lo = low, .hi = high});
}

static uint32_t raw_cat(struct rp_grammar *g, uint32_t a, uint32_t b) {
    if (a == NODE_NONE || b == NODE_NONE)
        return NODE_NONE;
    if (a == NODE_EPS)
        return b;
    if (b == NODE_EPS)
        return a;
    uint8_t flags = (node_at(g, a)->flags & node_at(g, b)->flags & NODE_NULLABLE);
    flags |= dead(g, a) | dead(g, b);
    return grammar_intern(g, (struct node){.kind = G_CAT, .flags = flags, .a = a, .b = b});
}

/* (x y) b becomes x (y b), once: what is in y is turned when it is reached. */
uint32_t g_cat(struct rp_grammar *g, uint32_t a, uint32_t b) {
    struct node n = *node_at(g, a);
    return n.kind == G_CAT ? raw_cat(g, n.a, raw_cat(g, n.b, b)) : raw_cat(g, a, b);
}

uint32_t g_or(struct rp_grammar *g, uint32_t *values, size_t count) {
    size_t used = 0;
    uint8_t null = 0;
    bool all_dead = true;
    for (size_t i = 0; i < count; i++) {
        if (values[i] == NODE_NONE)
            continue;
        null |= node_at(g, values[i])->flags & NODE_NULLABLE;
        all_dead &= dead(g, values[i]) != 0;
        values[used++] = values[i];
    }
    if (used <= 1)
        return used ? values[0] : NODE_NONE;
    return grammar_intern_list(g, G_OR, null | (all_dead ? NODE_DEAD : 0), values, used);
}

uint32_t g_or2(struct rp_grammar *g, uint32_t a, uint32_t b) {
    return a == b ? a : g_or(g, (uint32_t[]){a, b}, 2);
}

uint32_t g_rep(struct rp_grammar *g, uint32_t a, uint32_t low, uint32_t high) {
    if (low > high)
        return NODE_NONE;
    if (high == 0 || a == NODE_EPS || (a == NODE_NONE && low == 0))
        return NODE_EPS;
    if (a == NODE_NONE || (low == 1 && high == 1))
        return a;
    struct node n = *node_at(g, a);
    if (n.flags & NODE_NULLABLE)
        low = 0;
    uint8_t flags = low == 0 ? NODE_NULLABLE : n.flags & NODE_DEAD;
    return grammar_intern(
        g, (struct node){.kind = G_REP, .flags = flags, .a = a, .lo = low, .hi = high});
}

uint32_t g_rule(struct rp_grammar *g) {
    if (!VEC_PUSH(g, &g->rules, NODE_NONE))
        return NODE_NONE;
    return grammar_intern(g, (struct node){.kind = G_REF, .a = (uint32_t)g->rules.count - 1});
}

void g_rule_set(struct rp_grammar *g, uint32_t ref, uint32_t body) {
    if (ref != NODE_NONE)
        g->rules.at[node_at(g, ref)->a] = body;
}

/* The flag of a node from those below it. */
static uint8_t settled(const struct rp_grammar *g, const struct node *n, uint8_t flag) {
    const struct node *nodes = g->nodes.at;
    uint8_t both = n->kind == G_CAT ? (nodes[n->a].flags & nodes[n->b].flags & flag) : 0;
    switch (n->kind) {
    case G_CAT:
        return flag == NODE_DEAD ? (nodes[n->a].flags | nodes[n->b].flags) & flag : both;
    case G_REF:
        return nodes[g->rules.at[n->a]].flags & flag;
    case G_REP:
        if (n->lo == 0)
            return flag == NODE_DEAD ? 0 : flag;
        return nodes[n->a].flags & flag;
    case G_OR: {
        bool any = false, all = true;
        for (uint32_t i = 0; i < n->b; i++) {
            bool has = nodes[g->lists.at[n->a + i]].flags & flag;
            any |= has;
            all &= has;
        }
        return (flag == NODE_DEAD ? all : any) ? flag : 0;
    }
    default:
        return n->flags & flag;
    }
}

/* The least fixed points: rules begin as dead and as not nullable. */
void g_settle(struct rp_grammar *g, size_t first) {
    for (size_t i = first; i < g->nodes.count; i++)
        if (g->nodes.at[i].kind >= G_CAT && g->nodes.at[i].kind != G_STATE)
            g->nodes.at[i].flags = NODE_DEAD;
    for (bool changed = true; changed && grammar_burn(g, (g->nodes.count - first) / 32);) {
        changed = false;
        for (size_t i = first; i < g->nodes.count; i++) {
            struct node *n = &g->nodes.at[i];
            if (n->kind < G_CAT || n->kind == G_STATE)
                continue;
            uint8_t flags = settled(g, n, NODE_DEAD) | settled(g, n, NODE_NULLABLE);
            flags |= n->flags & (uint8_t) ~(NODE_DEAD | NODE_NULLABLE);
            changed |= flags != n->flags;
            n->flags = flags;
        }
    }
}

/* ---- States --------------------------------------------------------------------------------- */

struct expansion {
    uint32_t pass;
    size_t found, work; /* where its parts of g->found and g->work begin */
};

static void push(struct rp_grammar *g, uint32_t id) {
    if (id != NODE_NONE && !dead(g, id))
        (void)VEC_PUSH(g, &g->work, id);
}

/* What `id` followed by `tail` may begin with. */
static void expand_head(struct rp_grammar *g, uint32_t id, uint32_t head, uint32_t tail) {
    struct node n = *node_at(g, head);
    switch (n.kind) {
    case G_LIT:
        (void)VEC_PUSH(g, &g->found, id);
        break;
    case G_LEX:
    case G_CHARS:
    case G_FREE:
        (void)VEC_PUSH(g, &g->found, id);
        if (n.flags & NODE_NULLABLE)
            push(g, tail);
        break;
    case G_OR:
        for (uint32_t i = 0; i < n.b && g->status == RP_OK; i++)
            push(g, g_cat(g, g->lists.at[n.a + i], tail));
        break;
    case G_REF:
        push(g, g_cat(g, g->rules.at[n.a], tail));
        break;
    case G_REP: {
        uint32_t rest = g_rep(g, n.a, n.lo > 0 ? n.lo - 1 : 0, n.hi == REP_INF ? n.hi : n.hi - 1);
        push(g, g_cat(g, n.a, raw_cat(g, rest, tail)));
        if (n.lo == 0)
            push(g, tail);
        break;
    }
    case G_CAT:
        push(g, g_cat(g, head, tail));
        break;
    default:
        break;
    }
}

static uint32_t head_of(const struct rp_grammar *g, uint32_t id) {
    const struct node *n = node_at(g, id);
    return n->kind == G_CAT ? n->a : id;
}

static int compare_pairs(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return x[0] != y[0] ? (x[0] > y[0]) - (x[0] < y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}

/* The alternative of what follows the common head of `count` pairs from work[at] on. */
static uint32_t join_tails(struct rp_grammar *g, size_t at, size_t count) {
    size_t base = g->work.count;
    for (size_t i = 0; i < count && g->status == RP_OK; i++) {
        struct node n = *node_at(g, g->work.at[at + 2 * i + 1]);
        uint32_t tail = n.kind == G_CAT ? n.b : NODE_EPS;
        n = *node_at(g, tail);
        if (n.kind != G_OR) {
            (void)VEC_PUSH(g, &g->work, tail);
            continue;
        }
        for (uint32_t m = 0; m < n.b && g->status == RP_OK; m++)
            (void)VEC_PUSH(g, &g->work, g->lists.at[n.a + m]);
    }
    uint32_t joined =
        g->status == RP_OK ? g_or(g, g->work.at + base, g->work.count - base) : NODE_NONE;
    g->work.count = base;
    return joined;
}

/* h x and h y become h (x | y), so that what both begin with is walked once. */
static void join_heads(struct rp_grammar *g, const struct expansion *e) {
    bool twice = false;
    uint32_t pass = ++g->pass;
    size_t count = g->found.count - e->found;
    for (size_t i = 0; i < count && count > 1; i++) {
        struct node *head = &g->nodes.at[head_of(g, g->found.at[e->found + i])];
        twice |= head->mark == pass && head->kind != G_FREE;
        head->mark = pass;
    }
    if (!twice || !grammar_burn(g, count / 8) || !VEC_ROOM(g, &g->work, 2 * count))
        return;
    uint32_t *pairs = g->work.at + g->work.count; /* head, alternative */
    for (size_t i = 0; i < count; i++) {
        pairs[2 * i] = head_of(g, g->found.at[e->found + i]);
        pairs[2 * i + 1] = g->found.at[e->found + i];
    }
    qsort(pairs, count, 2 * sizeof *pairs, compare_pairs);
    size_t base = g->work.count, used = e->found;
    g->work.count += 2 * count;
    for (size_t i = 0, k; i < count && g->status == RP_OK; i = k) {
        const uint32_t *at = g->work.at + base + 2 * i;
        uint32_t head = at[0], first = at[1];
        for (k = i + 1; k < count && at[2 * (k - i)] == head;)
            k++;
        if (k > i + 1 && node_at(g, head)->kind != G_FREE) {
            first = raw_cat(g, head, join_tails(g, base + 2 * i, k - i));
            g->found.at[used++] = first;
            continue;
        }
        for (; i < k; i++)
            g->found.at[used++] = g->work.at[base + 2 * i + 1];
    }
    g->work.count = base;
    g->found.count = used;
}

/* The state of everything on g->work above e->work. */
static uint32_t expand(struct rp_grammar *g, const struct expansion *e) {
    while (g->work.count > e->work && g->status == RP_OK) {
        uint32_t id = g->work.at[--g->work.count];
        if (g->nodes.at[id].mark == e->pass)
            continue;
        g->nodes.at[id].mark = e->pass;
        if (g->found.count - e->found > ALTERNATIVES_MAX || !grammar_burn(g, 1))
            grammar_fail(g, RP_STATUS_FULL);
        struct node n = *node_at(g, id);
        if (id == NODE_EPS)
            (void)VEC_PUSH(g, &g->found, id);
        else if (n.kind == G_CAT)
            expand_head(g, id, n.a, n.b);
        else
            expand_head(g, id, id, NODE_EPS);
    }
    g->work.count = e->work;
    join_heads(g, e);
    size_t count = g->found.count - e->found;
    g->found.count = e->found;
    if (count == 0 || g->status != RP_OK)
        return NODE_NONE;
    return grammar_intern_list(g, G_STATE, 0, g->found.at + e->found, count);
}

uint32_t g_state(struct rp_grammar *g, uint32_t node) {
    struct expansion e = {++g->pass, g->found.count, g->work.count};
    push(g, node);
    return expand(g, &e);
}

static uint32_t step_head(struct rp_grammar *g, struct node n, uint8_t byte) {
    if (n.kind == G_LIT) {
        if ((uint8_t)g->text.at[n.a] != byte)
            return NODE_NONE;
        if (n.b == 1)
            return NODE_EPS;
        return grammar_intern(g, (struct node){.kind = G_LIT, .a = n.a + 1, .b = n.b - 1});
    }
    if (n.kind == G_LEX && n.hi > 0) {
        struct rx_counted at = {n.a, n.b, n.lo, n.hi};
        return rx_step_counted(g, &at, byte) ? lex_counted(g, at) : NODE_NONE;
    }
    if (n.kind == G_LEX) {
        uint32_t d = rx_delta(g, n.a, byte);
        if (d <= NODE_EPS)
            return d;
        const struct node *to = node_at(g, d);
        if (to->kind == RX_REP && to->a == g->json_char) /* a free string from here on */
            return g_chars(g, to->lo, to->hi);
        uint8_t flags = node_at(g, d)->flags & NODE_NULLABLE;
        return grammar_intern(g, (struct node){.kind = G_LEX, .flags = flags, .a = d});
    }
    if (n.kind == G_FREE)
        return free_step(g, n, byte);
    uint32_t d = rx_delta(g, g->json_char, byte);
    if (d == NODE_NONE)
        return NODE_NONE;
    uint32_t rest = g_chars(g, n.lo > 0 ? n.lo - 1 : 0, n.hi == REP_INF ? n.hi : n.hi - 1);
    return raw_cat(g, g_lex(g, d), rest);
}

uint32_t g_alternative_step(struct rp_grammar *g, uint32_t alternative, uint8_t byte) {
    struct node n = *node_at(g, alternative);
    if (n.kind != G_CAT)
        return alternative == NODE_EPS ? NODE_NONE : step_head(g, n, byte);
    return g_cat(g, step_head(g, *node_at(g, n.a), byte), n.b);
}

static bool memo_double(struct rp_grammar *g) {
    size_t size = g->memo.count * 2, added = size * sizeof *g->memo.at;
    if (g->memory_bytes + added > g->memory_limit) {
        grammar_fail(g, RP_STATUS_FULL);
        return false;
    }
    struct memo_entry *at = rp_calloc(size, sizeof *at);
    if (!at) {
        grammar_fail(g, RP_STATUS_NO_MEMORY);
        return false;
    }
    for (size_t k = 0; k < g->memo.count; k++) {
        if (g->memo.at[k].key == 0)
            continue;
        uint64_t i = memo_slot(g->memo.at[k].key, size);
        while (at[i].key != 0)
            i = (i + 1) & (size - 1);
        at[i] = g->memo.at[k];
    }
    g->memory_bytes += added / 2;
    rp_free(g->memo.at);
    g->memo.at = at;
    g->memo.count = size;
    return true;
}

/* Whether the alternative takes the byte: nearly every (state, byte) of a walk ends here. */
static bool takes(struct rp_grammar *g, uint32_t alternative, uint8_t byte) {
    const struct node *n = node_at(g, alternative);
    if (n->kind == G_CAT)
        n = node_at(g, n->a);
    if (n->kind == G_LIT)
        return (uint8_t)g->text.at[n->a] == byte;
    if (n->kind == G_LEX && n->hi > 0) {
        struct rx_counted at = {n->a, n->b, n->lo, n->hi};
        return rx_step_counted(g, &at, byte);
    }
    if (n->kind == G_LEX)
        return rx_delta(g, n->a, byte) != NODE_NONE;
    if (n->kind == G_FREE)
        return true;
    return n->kind == G_CHARS && rx_delta(g, g->json_char, byte) != NODE_NONE;
}

uint32_t g_step_slow(struct rp_grammar *g, uint32_t state, uint8_t byte) {
    if (g->status != RP_OK)
        return NODE_NONE;
    struct node n = *node_at(g, state);
    struct expansion e = {++g->pass, g->found.count, g->work.count};
    size_t count = n.kind == G_STATE ? n.b : 0;
    uint64_t charges = g->charges;
    if (!grammar_burn(g, 1 + count / 8))
        return NODE_NONE;
    for (size_t i = 0; i < count && g->status == RP_OK; i++)
        if (takes(g, g->lists.at[n.a + i], byte))
            push(g, g_alternative_step(g, g->lists.at[n.a + i], byte));
    if (g->work.count == e.work)
        return NODE_NONE; /* not remembered: found again as fast */
    uint32_t to = expand(g, &e);
    if (g->charges != charges) /* not remembered: its searches count again */
        return g->status == RP_OK ? to : NODE_NONE;
    if (g->status != RP_OK || ((g->memo_used + 1) * 2 > g->memo.count && !memo_double(g)))
        return NODE_NONE;
    uint64_t key = ((uint64_t)state << 8 | byte) + 1;
    uint64_t i = memo_slot(key, g->memo.count);
    while (g->memo.at[i].key != 0)
        i = (i + 1) & (g->memo.count - 1);
    g->memo.at[i] = (struct memo_entry){key, to};
    g->memo_used++;
    return to;
}
