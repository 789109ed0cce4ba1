/* grammar_mask_lex.c - the tokens of alternatives that begin with a G_LEX. */
#include "text/grammar/grammar_mask.h"

#define LOOPS_FUEL 32             /* for each node of an expression: every byte is tried */
#define LOOPS_SIZE 32             /* smaller subtrees are walked */
#define LIST_FUEL  16             /* tokens that are set for a unit */
#define CHARS_MAX  TRIE_DEPTH_MAX /* of a token */

/* The kinds of characters that leave the expression as it is. */
static uint32_t loops_of(struct walk *w, uint32_t rx) {
    struct node *n = &w->g->nodes.at[rx];
    if (n->looped != w->g->call)
        w->used += (uint64_t)n->steps * LOOPS_FUEL;
    n->looped = w->g->call;
    return rx_loops(w->g, rx);
}

/* All tokens at and below a node. */
static void set_subtree(struct walk *w, const struct trie_part *part, uint32_t node) {
    uint32_t end = part->first[node + trie_size(part->nodes[node])];
    for (uint32_t i = part->first[node]; i < end; i++)
        mask_set(w->trie, w->bits, part->order[i]);
    w->used += (end - part->first[node]) / LIST_FUEL;
}

/* The tokens of these kinds that are in `slice`; NULL: all of them. */
static void set_kinds(struct walk *w, uint32_t kinds, const uint32_t *slice) {
    const struct rp_token_trie *trie = w->trie;
    for (uint32_t i = 0; i < trie->words; i++) {
        const uint32_t *of = trie->token_kinds + 32 * (size_t)i;
        uint32_t word = 0;
        for (uint32_t k = 0; k < 32; k++)
            word |= (uint32_t) !(of[k] & ~kinds) << k;
        w->bits[i] |= slice ? word & slice[i] : word;
    }
    w->used += trie->token_count / LIST_FUEL;
}

struct lex_place {
    const uint32_t *row; /* of rx; NULL: it has none yet */
    uint32_t end, rx, loops;
    bool may_leave, pure; /* pure: only bytes of `loops` came before, and their tokens are set */
};

static struct lex_place lex_place(const struct rp_grammar *g, uint32_t rx, uint32_t end,
                                  bool leaves) {
    const struct node *n = node_at(g, rx);
    return (struct lex_place){.row = n->row ? g->rows.at[n->row - 1] : NULL,
                              .end = end,
                              .rx = rx,
                              .may_leave = leaves && n->flags & NODE_NULLABLE};
}

struct lex_walk {
    struct walk *w;
    const struct trie_part *part;
    uint32_t tail, after; /* after: the state of the tail; 0: not made yet */
    uint32_t loops;       /* of the first expression */
    bool pure;
};

/* nodes[begin .. end) is one node below the root and all below it. */
static void walk_lex_root(struct lex_walk *l, uint32_t begin, uint32_t end, uint32_t rx) {
    struct lex_place stack[TRIE_DEPTH_MAX + 1], *at = stack;
    struct walk *w = l->w;
    struct rp_grammar *g = w->g;
    bool leaves = l->tail != NODE_EPS;
    uint32_t visits = 0;
    const struct trie_node *nodes = l->part->nodes;
    const uint32_t *kinds = l->part->kinds;
    *at = lex_place(g, rx, end, false);
    at->loops = l->loops;
    at->pure = l->pure;
    for (uint32_t i = begin; i < end;) {
        while (i >= at->end)
            at--;
        struct trie_node n = nodes[i];
        if ((++visits & 1023) == 0 && !mask_spend(w, 1024))
            return;
        if (kinds && !(kinds[i] & ~at->loops)) {
            if (!at->pure)
                set_subtree(w, l->part, i);
            i += trie_size(n);
            continue;
        }
        if (at->may_leave) {
            if (!l->after)
                l->after = g_state(g, l->tail);
            uint32_t state = g_step(g, l->after, trie_byte(n));
            if (state != NODE_NONE)
                mask_leave(w, nodes, i, state);
        }
        uint32_t next = at->row ? at->row[trie_byte(n)] : ROW_UNKNOWN;
        if (next >= ROW_SEARCH) {
            next = rx_delta(g, at->rx, trie_byte(n));
            uint32_t row = node_at(g, at->rx)->row;
            at->row = row ? g->rows.at[row - 1] : NULL;
        }
        if (next == NODE_NONE) {
            i += trie_size(n);
            continue;
        }
        if (next != at->rx)
            clean_pay(w, next);
        if (n.token != TRIE_NO_TOKEN)
            mask_set(w->trie, w->bits, n.token);
        if (trie_size(n) > 1) {
            at[1] = next == at->rx ? *at : lex_place(g, next, end, leaves);
            if (kinds && next != at->rx && trie_size(n) >= LOOPS_SIZE)
                at[1].loops = loops_of(w, next);
            at[1].pure &= (w->trie->byte_kinds[trie_byte(n)] & at->loops) != 0;
            at++;
            at->end = i + trie_size(n);
            at->may_leave = leaves && node_nullable(g, next);
        }
        i++;
    }
    mask_spend(w, visits & 1023);
}

static void walk_lex(struct walk *w, const struct trie_part *part, uint32_t rx, uint32_t tail) {
    struct lex_walk l = {w, part, tail, 0, part->kinds ? loops_of(w, rx) : 0, false};
    l.pure = (l.loops & KIND_LOWER) == KIND_LOWER;
    if (l.pure)
        set_kinds(w, l.loops, NULL);
    for (uint32_t i = 0; i < part->root_count && mask_spend(w, 1); i++)
        if (rx_delta(w->g, rx, part->root_bytes[i]) != NODE_NONE)
            walk_lex_root(&l, part->roots[i], part->roots[i + 1], rx);
}

/* A character that leaves the expression as it is, as in most sets of characters. */
static bool step_quickly(const struct rp_grammar *g, struct rx_counted *at, uint8_t byte) {
    const struct node *n = node_at(g, at->rx);
    if (at->inner != NODE_NONE || at->lo > 0 || byte < 0x20 || byte >= 0x80 || byte == '\\' ||
        n->row == 0 || g->rows.at[n->row - 1][byte] != at->rx || at->hi < 2)
        return false;
    uint32_t hi = at->hi - (at->hi != REP_INF);
    if (n->chars.min >= hi)
        return false;
    at->hi = hi;
    return true;
}

struct counted_place {
    struct rx_counted at;
    uint32_t end, loops;
    bool pure; /* as of lex_place */
};

/* So many more characters of rx_loops() may come in every case. */
static uint32_t loops_chars(const struct rp_grammar *g, const struct rx_counted *at) {
    const struct rx_lengths *l = &node_at(g, at->rx)->chars;
    uint32_t need = at->lo == 0 ? l->min : l->from;
    if (at->inner != NODE_NONE || (at->lo > 0 && l->to != REP_INF))
        return 0;
    if (at->hi == REP_INF)
        return REP_INF;
    return at->hi - 1 > need ? at->hi - 1 - need : 0;
}

/* Sets the tokens of kinds that leave the first expression as it is. The result is the most
 * characters of those that are set. */
static uint32_t start_counted(struct walk *w, const struct trie_part *part,
                              struct counted_place *at) {
    if (part->kinds)
        at->loops = loops_of(w, at->at.rx);
    uint32_t chars = loops_chars(w->g, &at->at);
    at->pure = (at->loops & KIND_LOWER) == KIND_LOWER && chars > 0;
    if (!at->pure)
        return 0;
    if (chars >= CHARS_MAX) {
        set_kinds(w, at->loops, NULL);
        return REP_INF;
    }
    at->loops &= ~(KIND_WIDE | KIND_GAPS); /* slices have whole characters only */
    chars = RP_MIN(chars, (uint32_t)CLEAN_MAX);
    set_kinds(w, at->loops, w->trie->slices[chars]);
    return chars;
}

/* The same for a G_LEX that counts characters beside the expression. */
static void walk_counted(struct walk *w, const struct trie_part *part, const struct node *head,
                         uint32_t tail) {
    struct counted_place stack[TRIE_DEPTH_MAX + 1], *at = stack, next;
    struct rp_grammar *g = w->g;
    uint32_t after = g_state(g, tail), visits = 0;
    *at = (struct counted_place){.at = {head->a, head->b, head->lo, head->hi}, .end = part->count};
    uint32_t known = start_counted(w, part, at);
    bool all = at->at.lo == 0 && known < CLEAN_MAX; /* longer tokens of these kinds do not fit */
    for (uint32_t i = 1; i < part->count;) {
        while (i >= at->end)
            at--;
        struct trie_node n = part->nodes[i];
        if ((++visits & 1023) == 0 && !mask_spend(w, 1024))
            return;
        if (part->kinds && !(part->kinds[i] & ~at->loops) &&
            ((at->pure && all) || part->chars[i] <= loops_chars(g, &at->at))) {
            if (!at->pure || (!all && part->chars[i] + (stack->at.hi - at->at.hi) > known))
                set_subtree(w, part, i);
            i += trie_size(n);
            continue;
        }
        if (at > stack && at->at.inner == NODE_NONE && at->at.lo == 0 &&
            node_nullable(g, at->at.rx)) {
            uint32_t state = g_step(g, after, trie_byte(n));
            if (state != NODE_NONE)
                mask_leave(w, part->nodes, i, state);
        }
        next = *at;
        if (!step_quickly(g, &next.at, trie_byte(n)) &&
            !rx_step_counted(g, &next.at, trie_byte(n))) {
            i += trie_size(n);
            continue;
        }
        clean_pay(w, next.at.rx);
        if (n.token != TRIE_NO_TOKEN)
            mask_set(w->trie, w->bits, n.token);
        if (trie_size(n) > 1) {
            next.end = i + trie_size(n);
            next.pure &=
                next.at.rx == at->at.rx && (w->trie->byte_kinds[trie_byte(n)] & at->loops) != 0;
            if (next.at.rx != at->at.rx)
                next.loops =
                    part->kinds && trie_size(n) >= LOOPS_SIZE ? loops_of(w, next.at.rx) : 0;
            *++at = next;
        }
        i++;
    }
    mask_spend(w, visits & 1023);
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
    mask_merge(w, trie->inside);
    for (uint32_t i = 0; i < trie->exit_count && after != NODE_NONE; i++) {
        const struct trie_exit *exit = &trie->exits[i];
        const char *bytes = trie->tokens[exit->token].bytes;
        uint32_t at = rx;
        for (uint32_t k = 0; k < exit->len && at != any && at != NODE_NONE; k++)
            at = rx_delta(g, at, (uint8_t)bytes[k]);
        if (exit->chars > 0 && node_nullable(g, at))
            mask_leave(w, trie->rest.nodes, exit->node, after);
    }
    mask_spend(w, trie->exit_count);
}

/* Some set member takes the whole token. */
static bool any_takes(struct walk *w, const struct clean_set *set, const struct rp_trie_token *t) {
    w->used += t->len;
    for (uint32_t m = 0; m < set->count; m++) {
        uint32_t at = set->rx[m];
        for (uint32_t k = 0; k < t->len && at != NODE_NONE; k++)
            at = rx_delta(w->g, at, (uint8_t)t->bytes[k]);
        if (at != NODE_NONE)
            return true;
    }
    return false;
}

/* Merges the clean tokens of at most `chars` characters that fit into the set, which
 * clean_fits_but() has accepted, and returns the part of the trie that remains to be walked. */
static const struct trie_part *merge_but(struct walk *w, const struct clean_set *set,
                                         uint32_t chars) {
    const struct rp_token_trie *trie = w->trie;
    const struct trie_class *solid = &trie->classes[TRIE_SOLID];
    struct rp_grammar *g = w->g;
    const uint32_t *slice = trie->slices[RP_MIN(chars, (uint32_t)CLEAN_MAX)];
    bool no_space = set->excluded[' '];
    size_t base = g->found.count; /* tokens that do not fit */
    for (uint32_t byte = 0; byte < 256; byte++) {
        if (!set->excluded[byte] || byte == ' ')
            continue;
        for (uint32_t i = trie->having_at[byte]; i < trie->having_at[byte + 1]; i++) {
            uint32_t id = trie->having[i], bit = 1u << id % 32;
            bool there = slice[id / 32] & bit && (!no_space || solid->mask[id / 32] & bit);
            if (there && !(w->bits[id / 32] & bit) && !any_takes(w, set, &trie->tokens[id]))
                (void)VEC_PUSH(g, &g->found, id);
        }
        if (!mask_spend(w, 0))
            break;
    }
    for (uint32_t i = 0; i < trie->words; i++)
        w->bits[i] |= no_space ? slice[i] & solid->mask[i] : slice[i];
    for (size_t i = base; i < g->found.count; i++)
        w->bits[g->found.at[i] / 32] &= ~(1u << g->found.at[i] % 32);
    g->found.count = base;
    mask_spend(w, trie->words / WORDS_PER_FUEL);
    return no_space ? &solid->rest : &trie->rest;
}

/* What follows begins with the quote of a string, or nothing follows: no clean token goes on in it
 * from inside the expression. */
static bool closes(const struct rp_grammar *g, uint32_t tail) {
    const struct node *n = node_at(g, tail);
    if (n->kind == G_CAT)
        n = node_at(g, n->a);
    return tail == NODE_EPS || (n->kind == G_LIT && g->text.at[n->a] == '"');
}

/* It comes back to itself after letters, at once or after the first one: the walk over the trie is
 * short. */
static bool loops_soon(struct walk *w, uint32_t rx) {
    if (loops_of(w, rx) & KIND_LOWER)
        return true;
    uint32_t next = rx_delta(w->g, rx, 'e');
    return next != NODE_NONE && loops_of(w, next) & KIND_LOWER;
}

/* Merges the precomputed tokens of which each takes the expression to what can still end; the part
 * of the trie that remains to be walked. `left`: characters that may follow. */
static const struct trie_part *merge_known(struct walk *w, struct clean_set *set, uint32_t tail,
                                           uint32_t least, uint32_t left) {
    const struct rp_token_trie *trie = w->trie;
    if (set->count == 1 && loops_soon(w, set->rx[0]))
        return &trie->all;
    if (closes(w->g, tail) && clean_fits_but(w, set) && clean_ends(set, least, left))
        return merge_but(w, set, left);
    for (int name = TRIE_SOLID; name-- > 0;) {
        if (!clean_fits_class(w, set, name) || !clean_ends(set, least, left))
            continue;
        if (set->chars < CLEAN_MAX && !(left == REP_INF && closes(w->g, tail)))
            continue; /* longer ones may go on in the tail */
        const uint32_t *slice = trie->slices[RP_MIN(left, set->chars)];
        for (uint32_t i = 0; i < trie->words; i++)
            w->bits[i] |= trie->classes[name].mask[i] & slice[i];
        mask_spend(w, trie->words / WORDS_PER_FUEL);
        return &trie->classes[name].rest;
    }
    return &trie->all;
}

static void mask_counted(struct walk *w, const struct node *head, uint32_t tail, bool covered) {
    struct clean_set set = {.count = 1, .rx = {head->a}};
    uint32_t left = head->hi == REP_INF ? REP_INF : head->hi - 1;
    const struct trie_part *part = &w->trie->all;
    if (covered)
        part = &w->trie->rest;
    else if (head->b == NODE_NONE)
        part = merge_known(w, &set, tail, head->lo, left);
    walk_counted(w, part, head, tail);
}

static void mask_other(struct walk *w, uint32_t rx, uint32_t tail) {
    struct clean_set set = {.count = 1, .rx = {rx}};
    walk_lex(w, merge_known(w, &set, tail, 0, REP_INF), rx, tail);
}

/* Those that do not take all clean tokens by themselves may do so together, as the keys that match
 * a pattern and those that do not. */
static void mask_together(struct walk *w, const uint32_t *rx, const uint32_t *tails,
                          uint32_t count) {
    struct clean_set set = {.count = count};
    bool closed = true;
    for (uint32_t i = 0; i < count; i++) {
        set.rx[i] = rx[i];
        closed &= closes(w->g, tails[i]);
    }
    if (count > 1 && closed && clean_fits_but(w, &set)) {
        const struct trie_part *part = merge_but(w, &set, CLEAN_MAX);
        for (uint32_t i = 0; i < count; i++)
            walk_lex(w, part, rx[i], tails[i]);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        mask_other(w, rx[i], tails[i]);
}

/* An expression that takes every clean token has no way out within one. */
void mask_lexes(struct walk *w, const struct lexes *lexes, bool covered) {
    struct rp_grammar *g = w->g;
    uint32_t rx[LEXES_MAX], tails[LEXES_MAX], count = 0;
    struct node heads[LEXES_MAX];
    bool clean[LEXES_MAX];
    for (uint32_t i = 0; i < lexes->count; i++) {
        heads[i] = *node_at(g, lexes->ids[i]);
        tails[i] = heads[i].kind == G_CAT ? heads[i].b : NODE_EPS;
        if (heads[i].kind == G_CAT)
            heads[i] = *node_at(g, heads[i].a);
        clean[i] = heads[i].hi == 0 && (is_open(g, heads[i].a) || clean_fits(g, heads[i].a));
        if (clean[i] && !covered && !is_open(g, heads[i].a))
            mask_merge(w, w->trie->slices[CLEAN_MAX]);
        covered |= clean[i];
    }
    for (uint32_t i = 0; i < lexes->count; i++) {
        if (heads[i].hi > 0) {
            mask_counted(w, &heads[i], tails[i], covered);
        } else if (is_open(g, heads[i].a)) {
            mask_open(w, heads[i].a, tails[i]);
        } else if (covered) {
            walk_lex(w, &w->trie->rest, heads[i].a, tails[i]);
        } else {
            rx[count] = heads[i].a;
            tails[count++] = tails[i];
        }
    }
    mask_together(w, rx, tails, count);
}
