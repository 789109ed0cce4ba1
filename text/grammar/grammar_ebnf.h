/* grammar_ebnf.h - GBNF and Lark to layer 2. Internal to text/grammar.
 *
 * Both are lists of named expressions. What is regular is built in layer 1 (a rule that calls no
 * rule recursively is inlined), the rest in layer 2. A rule's text is read when it is first used.
 * Matching is that of a context-free grammar on characters: a Lark terminal is not greedy. */
#ifndef RP_TEXT_GRAMMAR_EBNF_H
#define RP_TEXT_GRAMMAR_EBNF_H

#include "base/memory.h"
#include "text/grammar/grammar_internal.h"
#include "text/grammar/grammar_trie.h"

#define EBNF_SOURCE_BYTES ((size_t)64 << 10)
#define EBNF_REPEAT_MAX   65535

/* A part of an expression. */
struct ebnf_value {
    bool regular;
    uint32_t id;  /* regular: of layer 1, else of layer 2 */
    uint32_t lit; /* a regular string as a G_LIT, or NODE_NONE */
};

struct ebnf_rule {
    const char *name; /* in the text */
    size_t len, body; /* where its expression begins; SIZE_MAX: `pattern` */
    const char *pattern;
    enum { EBNF_UNSEEN, EBNF_BUSY, EBNF_DONE } state;
    uint32_t ref; /* G_REF, once it is needed; else NODE_NONE */
    struct ebnf_value value;
};

struct ebnf {
    struct rp_grammar *g;
    const struct rp_token_trie *trie;
    struct rp_error *err;
    struct rp_arena arena;
    const char *text;
    size_t len, at;
    bool lark, in_terminal;
    enum rx_mode mode; /* how characters are spelled: plain, or inside a JSON string */
    unsigned depth;    /* of groups and inlined rules */
    VEC(struct ebnf_rule) rules;
    VEC(size_t) ignored;      /* Lark: expressions of %ignore */
    struct ebnf_value ignore; /* what may follow a terminal of a rule */
};

/* ---- grammar_ebnf.c: expressions */
int ebnf_refuse(struct ebnf *p, int status, const char *what, const char *name, size_t len);
bool ebnf_peek(const struct ebnf *p, const char *text);
bool ebnf_take(struct ebnf *p, const char *text);
/* Skips white space and comments. */
void ebnf_space(struct ebnf *p);
/* The length of the name here, or 0. */
size_t ebnf_name(const struct ebnf *p);
/* Whether a definition begins here: *out_body is where its expression does. */
bool ebnf_defines(struct ebnf *p, size_t *out_name, size_t *out_len, size_t *out_body);
int ebnf_expression(struct ebnf *p, struct ebnf_value *out);
int ebnf_add_rule(struct ebnf *p, struct ebnf_rule rule);
/* Compiles all rules; *out is the node of the one called `start`. */
int ebnf_compile(struct ebnf *p, const char *start, uint32_t *out);
struct ebnf_value ebnf_cat(struct ebnf *p, struct ebnf_value a, struct ebnf_value b);
struct ebnf_value ebnf_repeat(struct ebnf *p, struct ebnf_value a, uint32_t low, uint32_t high);
struct ebnf_value ebnf_or(struct ebnf *p, struct ebnf_value *values, size_t count);
uint32_t ebnf_node(struct ebnf *p, struct ebnf_value v);
static inline struct ebnf_value ebnf_regular(uint32_t rx) {
    return (struct ebnf_value){true, rx, NODE_NONE};
}
static inline struct ebnf_value ebnf_other(uint32_t node) {
    return (struct ebnf_value){false, node, NODE_NONE};
}
bool ebnf_is_terminal(const char *name, size_t len);

/* ---- grammar_ebnf_atom.c: strings, classes, patterns, tokens. The text is at their first byte. */
int ebnf_string(struct ebnf *p, struct ebnf_value *out);
int ebnf_class(struct ebnf *p, struct ebnf_value *out);
int ebnf_pattern(struct ebnf *p, struct ebnf_value *out);
int ebnf_token(struct ebnf *p, struct ebnf_value *out);
/* !<token>* and !<token>+ */
int ebnf_not_token(struct ebnf *p, struct ebnf_value *out);
bool ebnf_number(struct ebnf *p, uint32_t *out);
/* Passes over one item, whatever it is. */
void ebnf_skip(struct ebnf *p);

/* ---- grammar_lark.c */
/* %json and %regex within an expression. */
int lark_inline(struct ebnf *p, struct ebnf_value *out);
/* GBNF or Lark inside another grammar. With RX_JSON its texts are those of JSON strings, without
 * the quotes; tokens and %json are refused then. */
int ebnf_parse(struct rp_grammar *g, const struct rp_token_trie *trie, const char *text, size_t len,
               bool lark, enum rx_mode mode, uint32_t *out, struct rp_error *err);

#endif
