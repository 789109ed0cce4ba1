/* grammar_mask.h - the tokens that a state allows. Internal to text/grammar. */
#ifndef RP_TEXT_GRAMMAR_MASK_H
#define RP_TEXT_GRAMMAR_MASK_H

#include "text/grammar/grammar_internal.h"
#include "text/grammar/grammar_trie.h"

/* Sets the bits of the allowed tokens (zeroed before) and returns the fuel that it took, which
 * depends on grammar, state and tokens alone; above `fuel` the work ended early. */
uint64_t grammar_mask(struct rp_grammar *g, const struct rp_token_trie *trie, uint32_t state,
                      uint32_t *bits, uint64_t fuel);

/* ---- grammar_mask.c */
#define WORDS_PER_FUEL 16 /* of a mask that is merged */
struct walk {
    struct rp_grammar *g;
    const struct rp_token_trie *trie;
    uint32_t *bits;
    uint64_t used, fuel;
};
static inline bool mask_spend(struct walk *w, uint64_t amount) {
    w->used += amount;
    return w->used + w->g->spent <= w->fuel && w->g->status == RP_OK;
}
/* Tokens of nodes[begin .. end) whose bytes, from the node's parent on, the state takes. */
void mask_walk_states(struct walk *w, const struct trie_node *nodes, uint32_t begin, uint32_t end,
                      uint32_t state);
/* The node is taken and leads to `state`. */
void mask_leave(struct walk *w, const struct trie_node *nodes, uint32_t node, uint32_t state);
void mask_merge(struct walk *w, const uint32_t *mask);

/* ---- grammar_mask_lex.c */
#define LEXES_MAX 8 /* alternatives that are looked at together */
struct lexes {
    uint32_t count, ids[LEXES_MAX]; /* alternatives that begin with a G_LEX */
};
/* `covered`: another alternative takes every clean token. */
void mask_lexes(struct walk *w, const struct lexes *lexes, bool covered);

/* ---- grammar_clean.c: what expressions do with the clean characters of grammar_trie.h */
struct clean_set {
    uint32_t count, rx[LEXES_MAX]; /* each character must fit into one of them */
    bool excluded[256];            /* found: ASCII, or first bytes of others, that need not fit */
    uint32_t tokens;               /* that have such bytes, at most */
    uint32_t min;                  /* characters that must follow, at most */
    uint32_t from;                 /* from so many on, any number can follow; REP_INF: unknown */
    uint32_t chars;                /* found: longer texts of the class do not fit */
};
/* Every text of at most CLEAN_MAX clean characters fits into `rx`. */
bool clean_fits(struct rp_grammar *g, uint32_t rx);
/* The same but for the characters with set->excluded, which are few. */
bool clean_fits_but(struct walk *w, struct clean_set *set);
/* Every text of at most CLEAN_MAX characters of the class fits into rx[0]; or every text of at most
 * set->chars characters, and no longer one. */
bool clean_fits_class(struct walk *w, struct clean_set *set, int name);
/* After one of these: least to left characters remain to be written, and each text of at most
 * min(left, CLEAN_MAX) characters can be followed by what makes it such a number. */
static inline bool clean_ends(const struct clean_set *set, uint32_t least, uint32_t left) {
    uint32_t need = least == 0 ? set->min : set->from;
    if (need == REP_INF)
        return least == 0 && left == REP_INF;
    return left == REP_INF || need == 0 ||
           (need != REP_INF && left >= CLEAN_MAX && left - CLEAN_MAX >= need);
}
/* The work of an expression is paid once in a mask, done before or not. */
void clean_pay(struct walk *w, uint32_t rx);

#endif
