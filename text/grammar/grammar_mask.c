/* grammar_mask.c - walks the trie of tokens from a state.
 *
 * The mask of a state is the union of the masks of its alternatives. Those that begin with a G_LIT
 * are walked together, state by state. One that begins with a G_LEX is walked by the states of its
 * regular expression alone, which contexts share; where the expression can end, the walk of the
 * subtree goes on with the state behind it. G_CHARS likewise, by counting characters. A G_FREE
 * takes the mask of all text, and only tokens that touch one of its strings are tested. */
#include "text/grammar/grammar_mask.h"

#include <string.h>

#define CLEAN_NODES_MAX 48 /* of the search for clean characters */
#define CLEAN_PARTS_MAX 96
#define CLASS_NODES_MAX 128

/* Fuel in units of one node looked at, of a trie or an expression: about 5 ns. Each node of the
 * trie that a walk visits is one. In a walk through a G_LEX every expression that it reaches pays
 * once for its nodes, as they are read when its row is filled (twice: for the derivative and the
 * new node). A state of layer 2 comes from a memo more often than from its nodes: it pays a part
 * when it is entered, and a smaller one for each byte that is tried. */
#define EXPRESSION_FUEL  2
#define ENTER_STATE_PART 8
#define TRY_STATE_PART   64
#define WORDS_PER_FUEL   16 /* of a mask that is merged */

struct walk {
    struct rp_grammar *g;
    const struct rp_token_trie *trie;
    uint32_t *bits;
    uint64_t used, fuel;
};

static bool spend(struct walk *w, uint64_t amount) {
    w->used += amount;
    return w->used + w->g->spent <= w->fuel && w->g->status == RP_OK;
}

/* Tokens of nodes[begin .. end) whose bytes, from the node's parent on, the state takes. */
static void walk_states(struct walk *w, const struct trie_node *nodes, uint32_t begin, uint32_t end,
                        uint32_t state) {
    struct {
        uint32_t end, state;
    } stack[TRIE_DEPTH_MAX + 1];
    struct rp_grammar *g = w->g;
    uint32_t depth = 0, visits = 0;
    stack[0].end = end;
    stack[0].state = state;
    for (uint32_t i = begin; i < end;) {
        while (i >= stack[depth].end)
            depth--;
        struct trie_node n = nodes[i];
        visits++;
        w->used += node_at(g, stack[depth].state)->steps / TRY_STATE_PART;
        uint32_t next = g_step(g, stack[depth].state, trie_byte(n));
        if (next == NODE_NONE) {
            if ((visits & 1023) == 0 && !spend(w, 1024))
                return;
            i += trie_size(n);
            continue;
        }
        w->used += node_at(g, next)->steps / ENTER_STATE_PART;
        if (n.token != TRIE_NO_TOKEN)
            mask_set(w->trie, w->bits, n.token);
        if (trie_size(n) > 1) {
            depth++;
            stack[depth].end = i + trie_size(n);
            stack[depth].state = next;
        }
        i++;
        if ((visits & 1023) == 0 && !spend(w, 1024))
            return;
    }
    spend(w, visits & 1023);
}

/* The node is taken and leads to `state`. */
static void leave(struct walk *w, const struct trie_node *nodes, uint32_t node, uint32_t state) {
    if (nodes[node].token != TRIE_NO_TOKEN)
        mask_set(w->trie, w->bits, nodes[node].token);
    if (trie_size(nodes[node]) > 1)
        walk_states(w, nodes, node + 1, node + trie_size(nodes[node]), state);
}

static void merge(struct walk *w, const uint32_t *mask) {
    for (uint32_t i = 0; i < w->trie->words; i++)
        w->bits[i] |= mask[i];
    w->used += w->trie->words / WORDS_PER_FUEL;
}

/* ---- Regular expressions ------------------------------------------------------------ */

struct clean_search {
    struct rp_grammar *g;
    uint32_t set[CLEAN_NODES_MAX]; /* expressions between characters */
    size_t count;
    /* inside a character: `left` more bytes, of which the next is low..high */
    struct clean_part {
        uint32_t rx;
        uint8_t left, low, high;
    } parts[CLEAN_PARTS_MAX];
    size_t part_count;
};

static bool clean_add(struct clean_search *s, uint32_t rx, uint8_t left, uint8_t low,
                      uint8_t high) {
    if (rx == NODE_NONE)
        return false;
    if (left == 0) {
        for (size_t i = 0; i < s->count; i++)
            if (s->set[i] == rx)
                return true;
        if (s->count == CLEAN_NODES_MAX)
            return false;
        s->set[s->count++] = rx;
        return true;
    }
    for (size_t i = 0; i < s->part_count; i++)
        if (s->parts[i].rx == rx && s->parts[i].left == left && s->parts[i].low == low &&
            s->parts[i].high == high)
            return true;
    if (s->part_count == CLEAN_PARTS_MAX)
        return false;
    s->parts[s->part_count++] = (struct clean_part){rx, left, low, high};
    return true;
}

/* Adds what follows `rx` after each clean character; false: some character is not taken, or there
 * are too many expressions. */
static bool clean_steps(struct clean_search *s, uint32_t rx) {
    struct rp_grammar *g = s->g;
    bool ok = true;
    s->part_count = 0;
    for (uint32_t byte = 0x20; byte < 0x80 && ok; byte++)
        ok = byte == '"' || byte == '\\' || clean_add(s, rx_delta(g, rx, (uint8_t)byte), 0, 0, 0);
    for (uint32_t byte = 0xC2; byte < 0xF5 && ok; byte++) {
        uint8_t left = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
        uint8_t low = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : byte == 0xE2 ? 0x81 : 0x80;
        uint8_t high = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
        uint32_t next = rx_delta(g, rx, (uint8_t)byte);
        ok = clean_add(s, next, left, low, high);
        if (byte == 0xE2 && ok) { /* without U+2028 and U+2029 */
            uint32_t second = rx_delta(g, next, 0x80);
            ok = clean_add(s, second, 1, 0x80, 0xA7) && clean_add(s, second, 1, 0xAA, 0xBF);
        }
    }
    for (size_t i = 0; i < s->part_count && ok; i++) {
        struct clean_part p = s->parts[i];
        for (uint32_t byte = p.low; byte <= p.high && ok; byte++)
            ok = clean_add(s, rx_delta(g, p.rx, (uint8_t)byte), p.left - 1, 0x80, 0xBF);
    }
    return ok;
}

/* Every text of clean characters fits into `rx`, however long. */
static bool is_clean(struct rp_grammar *g, uint32_t rx) {
    if ((node_at(g, rx)->clean & 3) != 0)
        return (node_at(g, rx)->clean & 3) == 2;
    uint64_t charges = g->charges;
    struct clean_search s = {.g = g, .set = {rx}, .count = 1};
    bool clean = rx_delta(g, rx, 'a') && rx_delta(g, rx, 'Z') && rx_delta(g, rx, '~') &&
                 rx_delta(g, rx, ' ') && rx_delta(g, rx, 0xE4);
    for (size_t i = 0; i < s.count && clean; i++)
        clean = clean_steps(&s, s.set[i]);
    if (g->status == RP_OK && g->charges == charges) /* else its searches count again */
        g->nodes.at[rx].clean |= clean ? 2 : 1;
    return clean;
}

struct class_search {
    uint32_t rx[CLASS_NODES_MAX], count;
    uint8_t chars[CLASS_NODES_MAX]; /* the least number of characters that leads there */
};

/* What follows rx[at] after each character of the class; false: one is not taken. */
static bool class_steps(struct rp_grammar *g, struct class_search *s, uint32_t at, int name) {
    uint32_t before = NODE_NONE;
    for (uint32_t byte = ' '; byte < 0x80; byte++) {
        if (!trie_class_has(name, (uint8_t)byte))
            continue;
        uint32_t next = rx_delta(g, s->rx[at], (uint8_t)byte), i = 0;
        if (next == NODE_NONE)
            return false;
        if (next == before)
            continue;
        before = next;
        while (i < s->count && s->rx[i] != next)
            i++;
        if (i < s->count)
            continue;
        if (i == CLASS_NODES_MAX)
            return false;
        s->rx[i] = next;
        s->chars[i] = s->chars[at] + 1;
        s->count++;
    }
    return true;
}

/* Every text of at most CLEAN_MAX characters of the class fits into `rx`. */
static bool fits_class(struct rp_grammar *g, uint32_t rx, int name) {
    unsigned shift = 2 + 2 * (unsigned)name, known = node_at(g, rx)->clean >> shift & 3;
    if (known != 0)
        return known == 2;
    uint64_t charges = g->charges;
    struct class_search s = {.rx = {rx}, .count = 1};
    bool fits = rx_delta(g, rx, 'q') && rx_delta(g, rx, 'Q') && rx_delta(g, rx, '7') &&
                rx_delta(g, rx, '_') && (name == TRIE_WORD || rx_delta(g, rx, ' '));
    for (uint32_t i = 0; i < s.count && fits && s.chars[i] < CLEAN_MAX; i++)
        fits = class_steps(g, &s, i, name);
    if (g->status == RP_OK && g->charges == charges)
        g->nodes.at[rx].clean |= (uint16_t)((fits ? 2 : 1) << shift);
    return fits;
}

/* Its derivatives are paid once in a mask, made before or not. */
static void pass(struct walk *w, uint32_t rx) {
    struct node *n = &w->g->nodes.at[rx];
    if (n->passed != w->g->call)
        w->used += (uint64_t)n->steps * EXPRESSION_FUEL;
    n->passed = w->g->call;
}

static void walk_lex(struct walk *w, const struct trie_part *part, uint32_t rx, uint32_t tail) {
    struct {
        uint32_t end, rx;
    } stack[TRIE_DEPTH_MAX + 1];
    struct rp_grammar *g = w->g;
    const struct trie_node *nodes = part->nodes;
    uint32_t depth = 0, after = 0, visits = 0; /* after: the state after it; 0: not made yet */
    stack[0].end = part->count;
    stack[0].rx = rx;
    for (uint32_t i = 1; i < part->count;) {
        while (i >= stack[depth].end)
            depth--;
        struct trie_node n = nodes[i];
        uint32_t from = stack[depth].rx;
        if ((++visits & 1023) == 0 && !spend(w, 1024))
            return;
        if (depth > 0 && node_nullable(g, from) && tail != NODE_EPS) {
            if (!after)
                after = g_state(g, tail);
            uint32_t state = g_step(g, after, trie_byte(n));
            if (state != NODE_NONE)
                leave(w, nodes, i, state);
        }
        uint32_t next = rx_delta(g, from, trie_byte(n));
        if (next == NODE_NONE) {
            i += trie_size(n);
            continue;
        }
        pass(w, next);
        if (n.token != TRIE_NO_TOKEN)
            mask_set(w->trie, w->bits, n.token);
        if (trie_size(n) > 1) {
            depth++;
            stack[depth].end = i + trie_size(n);
            stack[depth].rx = next;
        }
        i++;
    }
    spend(w, visits & 1023);
}

/* A free string without finitely many texts, as free keys are: every text can still go on. */
static bool is_open(const struct rp_grammar *g, uint32_t rx) {
    struct node n = *node_at(g, rx);
    bool string = false;
    for (uint32_t i = 0; n.kind == RX_AND && i < n.b; i++) {
        struct node m = *node_at(g, g->lists.at[n.a + i]);
        bool free = m.kind == RX_REP && m.a == g->json_char && m.lo == 0 && m.hi == REP_INF;
        string |= free;
        if (!free && !(m.kind == RX_NOT && node_at(g, m.a)->flags & NODE_FINITE))
            return false;
    }
    return string;
}

static void mask_open(struct walk *w, uint32_t rx, uint32_t tail) {
    struct rp_grammar *g = w->g;
    const struct rp_token_trie *trie = w->trie;
    uint32_t any = g->json_any, after = g_step(g, g_state(g, tail), '"');
    merge(w, trie->inside);
    for (uint32_t i = 0; i < trie->exit_count && after != NODE_NONE; i++) {
        const struct trie_exit *exit = &trie->exits[i];
        const char *bytes = trie->tokens[exit->token].bytes;
        uint32_t at = rx;
        for (uint32_t k = 0; k < exit->len && at != any && at != NODE_NONE; k++)
            at = rx_delta(g, at, (uint8_t)bytes[k]);
        if (exit->chars > 0 && node_nullable(g, at))
            leave(w, trie->rest.nodes, exit->node, after);
    }
    spend(w, trie->exit_count);
}

/* A clean expression lets every clean token pass; clean tokens have no exit to miss only if what
 * follows cannot begin with a clean character. */
static void mask_lex(struct walk *w, uint32_t rx, uint32_t tail) {
    struct rp_grammar *g = w->g;
    if (is_open(g, rx)) {
        mask_open(w, rx, tail);
        return;
    }
    if (is_clean(g, rx)) {
        merge(w, w->trie->slices[CLEAN_MAX]);
        walk_lex(w, &w->trie->rest, rx, tail);
        return;
    }
    for (int name = TRIE_CLASSES; name-- > 0;)
        if (fits_class(g, rx, name)) {
            merge(w, w->trie->classes[name].mask);
            walk_lex(w, &w->trie->classes[name].rest, rx, tail);
            return;
        }
    walk_lex(w, &w->trie->all, rx, tail);
}

/* ---- Strings ------------------------------------------------------------ */

static void walk_chars(struct walk *w, struct node chars, uint32_t tail) {
    struct {
        uint32_t end, rx, chars;
    } stack[TRIE_DEPTH_MAX + 1];
    struct rp_grammar *g = w->g;
    const struct trie_part *part = &w->trie->rest;
    uint32_t depth = 0, after = g_state(g, tail), visits = 0;
    stack[0].end = part->count;
    stack[0].rx = NODE_EPS; /* between characters */
    stack[0].chars = 0;
    for (uint32_t i = 1; i < part->count;) {
        while (i >= stack[depth].end)
            depth--;
        struct trie_node n = part->nodes[i];
        uint32_t rx = stack[depth].rx, count = stack[depth].chars;
        if ((++visits & 1023) == 0 && !spend(w, 1024))
            return;
        if (rx == NODE_EPS && depth > 0 && count >= chars.lo && after != NODE_NONE) {
            uint32_t state = g_step(g, after, trie_byte(n));
            if (state != NODE_NONE)
                leave(w, part->nodes, i, state);
        }
        uint32_t next = NODE_NONE;
        if (rx != NODE_EPS) {
            next = rx_delta(g, rx, trie_byte(n));
        } else if (count < chars.hi) {
            next = rx_delta(g, g->json_char, trie_byte(n));
            count++;
        }
        if (next == NODE_NONE) {
            i += trie_size(n);
            continue;
        }
        if (n.token != TRIE_NO_TOKEN)
            mask_set(w->trie, w->bits, n.token);
        if (trie_size(n) > 1) {
            depth++;
            stack[depth].end = i + trie_size(n);
            stack[depth].rx = next;
            stack[depth].chars = count;
        }
        i++;
    }
    spend(w, visits & 1023);
}

/* A string is always followed by its quote. */
static void mask_chars(struct walk *w, struct node chars, uint32_t tail) {
    const struct rp_token_trie *trie = w->trie;
    if (chars.hi < trie->chars_max) {
        merge(w, trie->slices[RP_MIN(chars.hi, (uint32_t)CLEAN_MAX)]);
        walk_chars(w, chars, tail);
        return;
    }
    merge(w, trie->inside);
    uint32_t after = g_step(w->g, g_state(w->g, tail), '"');
    for (uint32_t i = 0; i < trie->exit_count && after != NODE_NONE; i++)
        /* without a character the exit belongs to the following alternative */
        if (trie->exits[i].chars > 0 && trie->exits[i].chars >= chars.lo)
            leave(w, trie->rest.nodes, trie->exits[i].node, after);
    spend(w, trie->exit_count);
}

/* ---- Free text ------------------------------------------------------------ */

static bool has_lists(const struct walk *w, uint32_t root) {
    const struct free_state *states = w->g->free_states.at;
    for (uint32_t c = states[root].child; c != 0; c = states[c].next)
        if (states[c].byte != SPECIAL_MARK && w->trie->having_too_many[states[c].byte])
            return false;
    return true;
}

/* Tests the tokens with this byte one by one. */
static void test_tokens(struct walk *w, uint8_t byte, uint32_t state) {
    const struct rp_token_trie *trie = w->trie;
    uint32_t end = trie->having_at[byte + 1], used = 0;
    for (uint32_t i = trie->having_at[byte]; i < end && (i & 63 || spend(w, used)); i++) {
        const struct rp_trie_token *t = &trie->tokens[trie->having[i]];
        uint32_t at = state, token = trie->having[i];
        used = i & 63 ? used + t->len : 0;
        for (uint32_t k = 0; k < t->len && at != NODE_NONE; k++)
            at = g_step(w->g, at, (uint8_t)t->bytes[k]);
        if (at != NODE_NONE)
            w->bits[token / 32] |= 1u << token % 32;
        else
            w->bits[token / 32] &= ~(1u << token % 32);
    }
    spend(w, used);
}

/* What begins with this byte is tested again from `state`. */
static void test_subtree(struct walk *w, uint8_t byte, uint32_t state) {
    const struct trie_part *part = &w->trie->all;
    uint32_t i = 1;
    while (i < part->count && trie_byte(part->nodes[i]) != byte)
        i += trie_size(part->nodes[i]);
    if (i >= part->count)
        return;
    uint32_t end = i + trie_size(part->nodes[i]);
    for (uint32_t k = i; k < end; k++)
        mask_clear(w->trie, w->bits, part->nodes[k].token);
    spend(w, (end - i) / 8);
    walk_states(w, part->nodes, i, end, state);
}

/* Free text between characters. No bit is set yet. Every token of text is allowed but those with
 * the first byte of a pattern, which are tested; where a pattern has begun already, so are the
 * tokens whose first byte goes on with it. */
static void mask_free(struct walk *w, uint32_t id, struct node free, uint32_t tail) {
    struct rp_grammar *g = w->g;
    uint32_t root = g->free_texts.at[free.a].root;
    uint32_t start = g_state(g, g_cat(g, free_restart(g, free), tail));
    merge(w, w->trie->text_mask);
    for (uint32_t c = g->free_states.at[root].child; c != 0; c = g->free_states.at[c].next)
        if (g->free_states.at[c].byte == SPECIAL_MARK)
            test_subtree(w, SPECIAL_MARK, start);
        else
            test_tokens(w, g->free_states.at[c].byte, start);
    uint32_t at = free_state_of(&free), state = at == root ? start : g_state(g, id);
    for (; at != root && spend(w, 0); at = g->free_states.at[at].fail)
        for (uint32_t c = g->free_states.at[at].child; c != 0; c = g->free_states.at[c].next)
            test_subtree(w, g->free_states.at[c].byte, state);
}

static bool is_plain_free(const struct walk *w, struct node n) {
    return n.kind == G_FREE && free_utf8_of(&n) == 0 && !free_is_forced(&n) &&
           n.hi > w->trie->chars_max && has_lists(w, w->g->free_texts.at[n.a].root);
}

/* The first free text of the state, before any bit is set; its index, or the number of them. */
static uint32_t mask_first_free(struct walk *w, struct node state) {
    struct rp_grammar *g = w->g;
    for (uint32_t i = 0; i < state.b; i++) {
        uint32_t id = g->lists.at[state.a + i];
        struct node head = *node_at(g, id);
        uint32_t tail = head.kind == G_CAT ? head.b : NODE_EPS;
        if (head.kind == G_CAT)
            head = *node_at(g, head.a);
        if (is_plain_free(w, head)) {
            mask_free(w, id, head, tail);
            return i;
        }
    }
    return state.b;
}

uint64_t grammar_mask(struct rp_grammar *g, const struct rp_token_trie *trie, uint32_t state,
                      uint32_t *bits, uint64_t fuel) {
    struct walk w = {.g = g, .trie = trie, .bits = bits, .fuel = fuel};
    struct node n = *node_at(g, state);
    size_t literals = g->found.count; /* those that begin with a G_LIT */
    uint32_t done = n.kind == G_STATE ? mask_first_free(&w, n) : 0;
    for (uint32_t i = 0; n.kind == G_STATE && i < n.b && spend(&w, 1); i++) {
        uint32_t id = g->lists.at[n.a + i];
        struct node head = *node_at(g, id);
        uint32_t tail = head.kind == G_CAT ? head.b : NODE_EPS;
        if (i == done)
            continue;
        if (head.kind == G_CAT)
            head = *node_at(g, head.a);
        if (head.kind == G_LEX)
            mask_lex(&w, head.a, tail);
        else if (head.kind == G_CHARS)
            mask_chars(&w, head, tail);
        else if (id != NODE_EPS && !VEC_PUSH(g, &g->found, id))
            break;
    }
    size_t count = g->found.count - literals;
    g->found.count = literals;
    if (count > 0 && w.used <= fuel && g->status == RP_OK) {
        uint32_t part = count == n.b
                            ? state
                            : grammar_intern_list(g, G_STATE, 0, g->found.at + literals, count);
        walk_states(&w, trie->all.nodes, 1, trie->all.count, part);
    }
    if (g_accepting(g, state))
        for (uint32_t i = 0; i < trie->end_count; i++)
            bits[trie->end_ids[i] / 32] |= 1u << trie->end_ids[i] % 32;
    return w.used + g->spent;
}
