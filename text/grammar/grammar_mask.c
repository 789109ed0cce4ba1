/* grammar_mask.c - walks the trie of tokens from a state.
 *
 * The mask of a state is the union of the masks of its alternatives. Those that begin with a G_LIT
 * are walked together, state by state. One that begins with a G_LEX is walked by the states of its
 * regular expression alone, which contexts share; where the expression can end, the walk of the
 * subtree goes on with the state behind it. G_CHARS likewise, by counting characters. */
#include "text/grammar/grammar_mask.h"

#include <string.h>

#define CLEAN_NODES_MAX 48 /* of the search for clean characters */

struct walk {
    struct rp_grammar *g;
    const struct rp_token_trie *trie;
    uint32_t *bits;
    uint64_t used, fuel;
};

static bool spend(struct walk *w, uint64_t amount) {
    w->used += amount;
    return w->used <= w->fuel && w->g->status == RP_OK;
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
        uint32_t next = g_step(g, stack[depth].state, trie_byte(n));
        if (next == NODE_NONE) {
            if ((visits & 1023) == 0 && !spend(w, 1024))
                return;
            i += trie_size(n);
            continue;
        }
        w->used += node_at(g, next)->b / 8;
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
    w->used += w->trie->words / 16;
}

/* ---- Regular expressions ---------------------------------------------------------------------- */

/* Adds what follows `rx` after each clean character to set[0 .. *count); false: some character is
 * not taken, or there are too many. */
static bool clean_steps(struct rp_grammar *g, uint32_t rx, uint32_t *set, size_t *count) {
    uint32_t part[64];
    uint8_t left[64];
    size_t parts = 0;
    for (uint32_t byte = 0x20; byte < 0xF5; byte++) {
        if (byte == '"' || byte == '\\' || (byte >= 0x80 && byte < 0xC2))
            continue;
        uint32_t next = rx_delta(g, rx, (uint8_t)byte);
        if (next == NODE_NONE)
            return false;
        uint32_t *to = byte < 0x80 ? set : part;
        size_t *size = byte < 0x80 ? count : &parts;
        uint8_t need = byte < 0x80 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
        /* the second byte of these has a smaller range: checked one by one below */
        bool odd = byte == 0xE0 || byte == 0xED || byte == 0xF0 || byte == 0xF4;
        uint32_t low = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
        uint32_t high = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
        for (uint32_t second = odd ? low : 0; second <= (odd ? high : 0); second++) {
            uint32_t value = odd ? rx_delta(g, next, (uint8_t)second) : next;
            uint8_t rest = (uint8_t)(need - odd);
            bool known = value == NODE_NONE;
            if (known)
                return false;
            for (size_t i = 0; i < *size && !known; i++)
                known = to[i] == value && (to == set || left[i] == rest);
            if (known)
                continue;
            if (*size == (to == set ? (size_t)CLEAN_NODES_MAX : 64))
                return false;
            if (to == part)
                left[*size] = rest;
            to[(*size)++] = value;
        }
    }
    for (size_t k = 0; k < parts; k++)
        for (uint32_t byte = 0x80; byte < 0xC0; byte++) {
            uint32_t next = rx_delta(g, part[k], (uint8_t)byte);
            uint32_t *to = left[k] == 1 ? set : part;
            size_t *size = left[k] == 1 ? count : &parts;
            bool known = next == NODE_NONE;
            if (known)
                return false;
            for (size_t i = 0; i < *size && !known; i++)
                known = to[i] == next && (to == set || left[i] == left[k] - 1);
            if (known)
                continue;
            if (*size == (to == set ? (size_t)CLEAN_NODES_MAX : 64))
                return false;
            if (to == part)
                left[*size] = (uint8_t)(left[k] - 1);
            to[(*size)++] = next;
        }
    return true;
}

/* Every text of clean characters fits into `rx`, however long. */
static bool is_clean(struct rp_grammar *g, uint32_t rx) {
    if (node_at(g, rx)->clean != 0)
        return node_at(g, rx)->clean == 2;
    uint32_t set[CLEAN_NODES_MAX] = {rx};
    size_t count = 1;
    bool clean = rx_delta(g, rx, 'a') && rx_delta(g, rx, 'Z') && rx_delta(g, rx, '~') &&
                 rx_delta(g, rx, ' ') && rx_delta(g, rx, 0xE4);
    for (size_t i = 0; i < count && clean; i++)
        clean = clean_steps(g, set[i], set, &count);
    if (g->status == RP_OK)
        g->nodes.at[rx].clean = clean ? 2 : 1;
    return clean;
}

static void walk_lex(struct walk *w, const struct trie_part *part, uint32_t rx, uint32_t tail) {
    struct {
        uint32_t end, rx;
    } stack[TRIE_DEPTH_MAX + 1];
    struct rp_grammar *g = w->g;
    const struct trie_node *nodes = part->nodes;
    uint32_t depth = 0, after = 0, visits = 0; /* after: the state behind; 0: not made yet */
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

/* A clean expression lets every clean token pass; clean tokens have no exit to miss only if what
 * follows cannot begin with a clean character. */
static void mask_lex(struct walk *w, uint32_t rx, uint32_t tail) {
    struct rp_grammar *g = w->g;
    if (is_clean(g, rx)) {
        merge(w, w->trie->slices[CLEAN_MAX]);
        walk_lex(w, &w->trie->rest, rx, tail);
        return;
    }
    walk_lex(w, &w->trie->all, rx, tail);
}

/* ---- Strings ------------------------------------------------------------------------------------ */

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
        /* without a character the exit belongs to the alternative behind */
        if (trie->exits[i].chars > 0 && trie->exits[i].chars >= chars.lo)
            leave(w, trie->rest.nodes, trie->exits[i].node, after);
    spend(w, trie->exit_count);
}

uint64_t grammar_mask(struct rp_grammar *g, const struct rp_token_trie *trie, uint32_t state,
                      uint32_t *bits, uint64_t fuel) {
    struct walk w = {.g = g, .trie = trie, .bits = bits, .fuel = fuel};
    struct node n = *node_at(g, state);
    size_t literals = g->found.count; /* those that begin with a G_LIT */
    for (uint32_t i = 0; n.kind == G_STATE && i < n.b && spend(&w, 1); i++) {
        uint32_t id = g->lists.at[n.a + i];
        struct node head = *node_at(g, id);
        uint32_t tail = head.kind == G_CAT ? head.b : NODE_EPS;
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
        uint32_t part = count == n.b ? state
                                     : grammar_intern_list(g, G_STATE, 0, g->found.at + literals,
                                                           count);
        walk_states(&w, trie->all.nodes, 1, trie->all.count, part);
    }
    if (g_accepting(g, state))
        for (uint32_t i = 0; i < trie->end_count; i++)
            bits[trie->end_ids[i] / 32] |= 1u << trie->end_ids[i] % 32;
    return w.used;
}
