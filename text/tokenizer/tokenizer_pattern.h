/* tokenizer_pattern.h - the state of rewriting one pattern: tokenizer_pattern.c has groups, letters
 * and output, tokenizer_class.c escapes and classes. Private to these two. */
#ifndef RP_TEXT_TOKENIZER_PATTERN_H
#define RP_TEXT_TOKENIZER_PATTERN_H

#include "base/buffer.h"
#include "text/unicode/unicode.h"

#define RP_TOK_GROUPS_MAX 200

struct rp_tok_run {
    uint32_t first, last;
};

struct rp_tok_rewriter {
    const char *in;
    size_t len, i;
    /* shared: large classes are defined once, in `classes`, and called */
    struct rp_buffer out, runs, classes;
    bool shared, too_long;
    /* One shorthand or name at a time. */
    struct rp_unicode_set *scratch;
    const char *refused;
    char detail[72];
    /* invalid: Oniguruma refuses the pattern as well */
    bool no_memory, invalid, caseless;
    /* The open groups: what they restore, and how many (?i) they also close. */
    struct {
        bool caseless;
        uint8_t isolated;
    } groups[RP_TOK_GROUPS_MAX + 1];
    size_t depth;
    unsigned class_count;
    /* The last characters under (?i) with nothing but parentheses between them. */
    uint32_t letters[3];
    size_t letter_count;
};

enum rp_tok_atom { RP_TOK_ATOM_CODE, RP_TOK_ATOM_SET, RP_TOK_ATOM_DONE };

/* The byte `ahead` of the next one, or -1 after the end. */
static inline int rp_tok_peek(const struct rp_tok_rewriter *r, size_t ahead) {
    return r->i + ahead < r->len ? (unsigned char)r->in[r->i + ahead] : -1;
}

/* The first refusal stays: what is not supported, and what Oniguruma refuses as well. */
enum rp_tok_atom rp_tok_refuse(struct rp_tok_rewriter *r, const char *what);
enum rp_tok_atom rp_tok_refuse_invalid(struct rp_tok_rewriter *r, const char *what);

/* After the \: a character, a set in the scratch, or ATOM_DONE for one that is neither, which is
 * left to be read. */
enum rp_tok_atom rp_tok_read_escape(struct rp_tok_rewriter *r, bool in_class, uint32_t *code);
/* Adds the class at the [ to the set; depth 0 for one outside others. */
void rp_tok_read_class(struct rp_tok_rewriter *r, struct rp_unicode_set *set, int depth);
/* Adds the characters of \w outside a class to the set. */
void rp_tok_add_word(struct rp_unicode_set *set);

#endif
