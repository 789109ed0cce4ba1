/* grammar_mask.c - walks the trie of tokens from a state.
 *
 * The mask of a state is the union of the masks of its alternatives. Those that begin with a G_LIT
 * are walked together, state by state. One that begins with a G_LEX is walked by the states of its
 * regular expression alone, which contexts share; where the expression can end, the walk of the
 * subtree goes on with the state behind it. G_CHARS likewise, by counting characters. A G_FREE
 * takes the mask of all text, and only tokens that touch one of its strings are tested. */
#include "text/grammar/grammar_mask.h"

#include <string.h>

/* Fuel in units of one node looked at, of a trie or an expression: about 5 ns. Each node of the
 * trie that a walk visits is one. In a walk through a G_LEX every expression that it reaches pays
 * once for its nodes, as they are read when its row is filled (twice: for the derivative and the
 * new node). A state of layer 2 comes from a memo more often than from its nodes: it pays a part
 * when it is entered, and a smaller one for each byte that is tried. */
#define ENTER_STATE_PART 8
#define TRY_STATE_PART   64

/* Tokens of nodes[begin .. end) whose bytes, from the node's parent on, the state takes. */
void mask_walk_states(struct walk *w, const struct trie_node *nodes, uint32_t begin, uint32_t end,
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
            if ((visits & 1023) == 0 && !mask_spend(w, 1024))
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
        if ((visits & 1023) == 0 && !mask_spend(w, 1024))
            return;
    }
    mask_spend(w, visits & 1023);
}

/* Nearly all alternatives begin with a byte of their own. */
static void walk_from_root(struct walk *w, uint32_t state) {
    struct rp_grammar *g = w->g;
    const struct trie_part *part = &w->trie->all;
    struct node n = *node_at(g, state);
    bool first[256] = {false};
    for (uint32_t i = 0; i < n.b; i++) {
        const struct node *head = node_at(g, g->lists.at[n.a + i]);
        if (head->kind == G_CAT)
            head = node_at(g, head->a);
        if (head->kind == G_LIT)
            first[(uint8_t)g->text.at[head->a]] = true;
        else
            memset(first, true, sizeof first);
    }
    for (uint32_t i = 0; i < part->root_count && mask_spend(w, 1); i++)
        if (first[part->root_bytes[i]])
            mask_walk_states(w, part->nodes, part->roots[i], part->roots[i + 1], state);
}

/* The node is taken and leads to `state`. */
void mask_leave(struct walk *w, const struct trie_node *nodes, uint32_t node, uint32_t state) {
    if (nodes[node].token != TRIE_NO_TOKEN)
        mask_set(w->trie, w->bits, nodes[node].token);
    if (trie_size(nodes[node]) > 1)
        mask_walk_states(w, nodes, node + 1, node + trie_size(nodes[node]), state);
}

void mask_merge(struct walk *w, const uint32_t *mask) {
    for (uint32_t i = 0; i < w->trie->words; i++)
        w->bits[i] |= mask[i];
    w->used += w->trie->words / WORDS_PER_FUEL;
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
        if ((++visits & 1023) == 0 && !mask_spend(w, 1024))
            return;
        if (rx == NODE_EPS && depth > 0 && count >= chars.lo && after != NODE_NONE) {
            uint32_t state = g_step(g, after, trie_byte(n));
            if (state != NODE_NONE)
                mask_leave(w, part->nodes, i, state);
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
    mask_spend(w, visits & 1023);
}

/* A string is always followed by its quote. */
static void mask_chars(struct walk *w, struct node chars, uint32_t tail) {
    const struct rp_token_trie *trie = w->trie;
    if (chars.hi < trie->chars_max) {
        mask_merge(w, trie->slices[RP_MIN(chars.hi, (uint32_t)CLEAN_MAX)]);
        walk_chars(w, chars, tail);
        return;
    }
    mask_merge(w, trie->inside);
    uint32_t after = g_step(w->g, g_state(w->g, tail), '"');
    for (uint32_t i = 0; i < trie->exit_count && after != NODE_NONE; i++)
        /* without a character the exit belongs to the following alternative */
        if (trie->exits[i].chars > 0 && trie->exits[i].chars >= chars.lo)
            mask_leave(w, trie->rest.nodes, trie->exits[i].node, after);
    mask_spend(w, trie->exit_count);
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
    for (uint32_t i = trie->having_at[byte]; i < end && (i & 63 || mask_spend(w, used)); i++) {
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
    mask_spend(w, used);
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
        if (part->nodes[k].token != TRIE_NO_TOKEN)
            mask_clear(w->trie, w->bits, part->nodes[k].token);
    mask_spend(w, (end - i) / 8);
    mask_walk_states(w, part->nodes, i, end, state);
}

/* Free text between characters. No bit is set yet. Every token of text is allowed but those with
 * the first byte of a pattern, which are tested; where a pattern has begun already, so are the
 * tokens whose first byte goes on with it. */
static void mask_free(struct walk *w, uint32_t id, struct node free, uint32_t tail) {
    struct rp_grammar *g = w->g;
    uint32_t root = g->free_texts.at[free.a].root;
    uint32_t start = g_state(g, g_cat(g, free_restart(g, free), tail));
    mask_merge(w, w->trie->text_mask);
    for (uint32_t c = g->free_states.at[root].child; c != 0; c = g->free_states.at[c].next)
        if (g->free_states.at[c].byte == SPECIAL_MARK)
            test_subtree(w, SPECIAL_MARK, start);
        else
            test_tokens(w, g->free_states.at[c].byte, start);
    uint32_t at = free_state_of(&free), state = at == root ? start : g_state(g, id);
    for (; at != root && mask_spend(w, 0); at = g->free_states.at[at].fail)
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
    struct lexes lexes = {.count = 0};
    bool covered = false;
    for (uint32_t i = 0; n.kind == G_STATE && i < n.b && mask_spend(&w, 1); i++) {
        uint32_t id = g->lists.at[n.a + i];
        struct node head = *node_at(g, id);
        uint32_t tail = head.kind == G_CAT ? head.b : NODE_EPS;
        if (i == done)
            continue;
        if (head.kind == G_CAT)
            head = *node_at(g, head.a);
        if (head.kind == G_LEX) {
            if (lexes.count == LEXES_MAX) {
                mask_lexes(&w, &lexes, covered);
                lexes.count = 0;
            }
            lexes.ids[lexes.count++] = id;
        } else if (head.kind == G_CHARS) {
            covered |= head.hi >= trie->chars_max;
            mask_chars(&w, head, tail);
        } else if (id != NODE_EPS && !VEC_PUSH(g, &g->found, id)) {
            break;
        }
    }
    mask_lexes(&w, &lexes, covered);
    size_t count = g->found.count - literals;
    g->found.count = literals;
    if (count > 0 && w.used <= fuel && g->status == RP_OK) {
        uint32_t part = count == n.b
                            ? state
                            : grammar_intern_list(g, G_STATE, 0, g->found.at + literals, count);
        walk_from_root(&w, part);
    }
    if (g_accepting(g, state))
        for (uint32_t i = 0; i < trie->end_count; i++)
            bits[trie->end_ids[i] / 32] |= 1u << trie->end_ids[i] % 32;
    return w.used + g->spent;
}
