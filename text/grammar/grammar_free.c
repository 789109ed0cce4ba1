/* grammar_free.c - free text until one of several strings.
 *
 * The strings are an Aho-Corasick automaton, so a string is found at its first end wherever tokens
 * split it. A pattern with a node continues there; one without must not occur. A special token is
 * four bytes that are not UTF-8: free text takes its mark only on the way to a pattern, and from
 * there on (FREE_FORCED) every byte must belong to one. The same holds once the bounds of tokens or
 * characters are used up. */
#include "text/grammar/grammar_internal.h"

#include <string.h>

#define TOUCHED 8u

int utf8_step(uint32_t place, uint8_t byte) {
    /* 1 to 3: so many bytes more; 4 to 7: after E0, ED, F0, F4, whose second byte is bounded */
    static const uint8_t low[] = {0, 0x80, 0x80, 0x80, 0xA0, 0x80, 0x90, 0x80};
    static const uint8_t high[] = {0, 0xBF, 0xBF, 0xBF, 0xBF, 0x9F, 0xBF, 0x8F};
    static const int8_t next[] = {0, 0, 1, 2, 1, 1, 2, 2};
    if (place != 0)
        return byte >= low[place] && byte <= high[place] ? next[place] : -1;
    if (byte < 0x80)
        return 0;
    if (byte < 0xC2 || byte > 0xF4)
        return -1;
    if (byte < 0xE0)
        return 1;
    if (byte < 0xF0)
        return byte == 0xE0 ? 4 : byte == 0xED ? 5 : 2;
    return byte == 0xF0 ? 6 : byte == 0xF4 ? 7 : 3;
}

/* ---- The automaton ------------------------------------------------------------ */

static uint32_t child_of(const struct rp_grammar *g, uint32_t state, uint8_t byte) {
    uint32_t child = g->free_states.at[state].child;
    while (child != 0 && g->free_states.at[child].byte != byte)
        child = g->free_states.at[child].next;
    return child;
}

static uint32_t follow(struct rp_grammar *g, uint32_t root, uint32_t state, uint8_t byte) {
    for (;;) {
        uint32_t child = child_of(g, state, byte);
        if (child != 0 || state == root)
            return child ? child : root;
        state = g->free_states.at[state].fail;
        if (!grammar_burn(g, 1))
            return root;
    }
}

static void insert(struct rp_grammar *g, uint32_t root, uint32_t index) {
    struct free_pattern p = g->free_patterns.at[index];
    uint32_t state = root;
    for (uint32_t i = 0; i < p.len && grammar_burn(g, 1); i++) {
        uint8_t byte = (uint8_t)g->text.at[p.text + i];
        uint32_t child = child_of(g, state, byte);
        if (child == 0) {
            struct free_state made = {.byte = byte,
                                      .next = g->free_states.at[state].child,
                                      .depth = g->free_states.at[state].depth + 1};
            child = (uint32_t)g->free_states.count;
            if (!VEC_PUSH(g, &g->free_states, made))
                return;
            g->free_states.at[state].child = child;
        }
        state = child;
        g->free_states.at[state].leads |= p.node != NODE_NONE;
    }
    struct free_state *end = &g->free_states.at[state];
    if (p.node != NODE_NONE && end->out == 0)
        end->out = index + 1;
    else if (p.node == NODE_NONE)
        end->excluded = p.len;
}

/* Breadth first; children inherit what ends at a shorter suffix. */
static void link_suffixes(struct rp_grammar *g, uint32_t root) {
    size_t base = g->work.count;
    (void)VEC_PUSH(g, &g->work, root);
    for (size_t i = base; i < g->work.count && g->status == RP_OK; i++) {
        uint32_t at = g->work.at[i];
        for (uint32_t c = g->free_states.at[at].child; c != 0; c = g->free_states.at[c].next) {
            struct free_state *state = &g->free_states.at[c];
            state->fail =
                at == root ? root : follow(g, root, g->free_states.at[at].fail, state->byte);
            const struct free_state *fail = &g->free_states.at[state->fail];
            if (state->out == 0)
                state->out = fail->out;
            if (state->excluded == 0)
                state->excluded = fail->excluded;
            (void)VEC_PUSH(g, &g->work, c);
        }
    }
    g->work.count = base;
}

static bool same_text(const struct rp_grammar *g, const struct free_text *t,
                      const struct free_pattern *patterns, size_t count, bool may_end) {
    if (t->count != count || t->may_end != may_end)
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct free_pattern *p = &g->free_patterns.at[t->first + i];
        if (p->node != patterns[i].node || p->len != patterns[i].len ||
            memcmp(g->text.at + p->text, patterns[i].bytes, p->len) != 0)
            return false;
    }
    return true;
}

/* The number of the text with these patterns. */
static uint32_t find_text(struct rp_grammar *g, const struct free_pattern *patterns, size_t count,
                          bool may_end) {
    for (size_t i = 0; i < g->free_texts.count; i++)
        if (same_text(g, &g->free_texts.at[i], patterns, count, may_end))
            return (uint32_t)i;
    struct free_text text = {.root = (uint32_t)g->free_states.count,
                             .first = (uint32_t)g->free_patterns.count,
                             .count = (uint32_t)count,
                             .may_end = may_end};
    struct free_state root = {.depth = 0};
    if (text.root == 0 && VEC_PUSH(g, &g->free_states, root)) /* 0 is no state */
        text.root = 1;
    if (!grammar_burn(g, 1 + g->free_texts.count / 16) || !VEC_PUSH(g, &g->free_states, root) ||
        !VEC_PUSH(g, &g->free_texts, text))
        return 0;
    for (size_t i = 0; i < count; i++) {
        struct free_pattern p = patterns[i];
        if (!VEC_ROOM(g, &g->text, p.len))
            return 0;
        p.text = (uint32_t)g->text.count;
        memcpy(g->text.at + p.text, p.bytes, p.len);
        g->text.count += p.len;
        p.bytes = NULL;
        if (!VEC_PUSH(g, &g->free_patterns, p))
            return 0;
        insert(g, text.root, text.first + (uint32_t)i);
    }
    link_suffixes(g, text.root);
    return (uint32_t)g->free_texts.count - 1;
}

/* ---- Nodes ------------------------------------------------------------ */

static uint32_t make(struct rp_grammar *g, uint32_t text, uint32_t state, uint32_t place,
                     uint32_t lo, uint32_t hi) {
    struct node n = {.kind = G_FREE, .a = text, .b = state << 4 | place, .lo = lo, .hi = hi};
    bool between = (place & 7) == 0 && (!free_is_forced(&n) || lo == FREE_FORCED);
    if (g->status == RP_OK && g->free_texts.at[text].may_end && between)
        n.flags = NODE_NULLABLE;
    return grammar_intern(g, n);
}

uint32_t g_free(struct rp_grammar *g, const struct free_pattern *patterns, size_t count,
                bool may_end, uint32_t tokens, uint32_t chars) {
    uint32_t text = find_text(g, patterns, count, may_end);
    if (g->status != RP_OK)
        return NODE_NONE;
    g->has_budget |= tokens != REP_INF;
    if (tokens == 0 || chars == 0)
        tokens = FREE_FORCED, chars = REP_INF;
    return make(g, text, g->free_texts.at[text].root, 0, tokens, chars);
}

uint32_t free_restart(struct rp_grammar *g, struct node n) {
    return make(g, n.a, g->free_texts.at[n.a].root, TOUCHED, n.lo, n.hi);
}

uint32_t free_step(struct rp_grammar *g, struct node n, uint8_t byte) {
    uint32_t root = g->free_texts.at[n.a].root, place = free_utf8_of(&n);
    bool forced = free_is_forced(&n);
    uint32_t bytes = forced ? (n.lo & ~FREE_FORCED) + 1 : 1;
    forced |= place == 0 && (byte == SPECIAL_MARK || n.hi == 0);
    uint32_t to = follow(g, root, free_state_of(&n), byte);
    struct free_state s = g->free_states.at[to];
    if (s.out != 0 && (!forced || g->free_patterns.at[s.out - 1].len >= bytes))
        return g->free_patterns.at[s.out - 1].node;
    if (s.excluded != 0 && (!forced || s.excluded >= bytes))
        return NODE_NONE;
    if (forced) {
        uint32_t at = to;
        while (g->free_states.at[at].depth >= bytes && !g->free_states.at[at].leads)
            at = g->free_states.at[at].fail;
        if (g->free_states.at[at].depth < bytes)
            return NODE_NONE;
        return make(g, n.a, to, TOUCHED, FREE_FORCED | bytes, REP_INF);
    }
    int next = utf8_step(place, byte);
    if (next < 0)
        return NODE_NONE;
    uint32_t left = place == 0 && n.hi != REP_INF ? n.hi - 1 : n.hi;
    return make(g, n.a, to, TOUCHED | (uint32_t)next, n.lo, left);
}

/* ---- Bounds of tokens ------------------------------------------------------------ */

/* The free text n after one more token. A character is never left unfinished. */
static uint32_t count_token(struct rp_grammar *g, struct node n) {
    uint32_t lo = n.lo - 1;
    if (lo == 0)
        lo = free_utf8_of(&n) == 0 ? FREE_FORCED : 1;
    return make(g, n.a, free_state_of(&n), n.b & 15, lo, lo == FREE_FORCED ? REP_INF : n.hi);
}

static uint32_t unbounded(struct rp_grammar *g, struct node n) {
    return make(g, n.a, free_state_of(&n), n.b & 15, REP_INF, n.hi);
}

/* The state with `change` made to each free text that counts tokens. */
static uint32_t change_state(struct rp_grammar *g, uint32_t state, bool only_touched,
                             uint32_t (*change)(struct rp_grammar *g, struct node n)) {
    struct node n = *node_at(g, state);
    size_t base = g->found.count;
    bool changed = false;
    if (!g->has_budget || n.kind != G_STATE)
        return state;
    for (uint32_t i = 0; i < n.b; i++) {
        uint32_t id = g->lists.at[n.a + i];
        struct node whole = *node_at(g, id), head = whole;
        if (whole.kind == G_CAT)
            head = *node_at(g, whole.a);
        if (head.kind == G_FREE && head.lo != REP_INF && !free_is_forced(&head) &&
            (!only_touched || head.b & TOUCHED)) {
            id = change(g, head);
            if (whole.kind == G_CAT)
                id = g_cat(g, id, whole.b);
            changed = true;
        }
        if (!VEC_PUSH(g, &g->found, id))
            break;
    }
    size_t count = g->found.count - base;
    g->found.count = base;
    if (!changed || g->status != RP_OK)
        return state;
    return grammar_intern_list(g, G_STATE, 0, g->found.at + base, count);
}

uint32_t free_token_end(struct rp_grammar *g, uint32_t state) {
    return change_state(g, state, true, count_token);
}

uint32_t free_mask_state(struct rp_grammar *g, uint32_t state) {
    return change_state(g, state, false, unbounded);
}
