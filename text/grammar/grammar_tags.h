/* grammar_tags.h - structural tags to layer 2. Internal to text/grammar. */
#ifndef RP_TEXT_GRAMMAR_TAGS_H
#define RP_TEXT_GRAMMAR_TAGS_H

#include "base/memory.h"
#include "text/grammar/grammar_schema.h"
#include "text/grammar/grammar_trie.h"

/* Bytes as the grammar has them: special tokens are their four bytes. */
struct tag_text {
    const char *bytes;
    uint32_t len;
    const char *raw; /* as it was written; NULL: a token */
    uint32_t raw_len;
};

/* The strings of which one ends the tag around a format. */
struct tag_ends {
    struct tag_text *texts;
    size_t count;
    bool may_be_empty; /* one of them has no bytes, and is not in texts */
    uint32_t node;
};

/* begin, and what follows it. */
struct tag_branch {
    struct tag_text begin;
    uint32_t node;
};

struct tag_compiler {
    struct rp_grammar *g;
    const struct rp_token_trie *trie;
    struct rp_error *err;
    json_t *root;
    struct rp_arena arena;
};

/* ---- grammar_tags.c */
/* A format and, with `ends`, one of them. */
int tag_format(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends, uint32_t *out);
/* begin, content and end of a tag: *out is what follows begin. */
int tag_parts(struct tag_compiler *c, const json_t *f, struct tag_text *out_begin, uint32_t *out);
int tag_refuse(struct tag_compiler *c, int status, const json_t *f, const char *key,
               const char *what);
uint32_t tag_with_end(struct tag_compiler *c, uint32_t node, const struct tag_ends *ends);
/* The list `key` of f; NULL with RP_OK: it is absent, or null. */
int tag_list(struct tag_compiler *c, const json_t *f, const char *key, bool needed,
             const json_t **out);

/* ---- grammar_tags_text.c */
int tag_encode(struct tag_compiler *c, const char *text, size_t len, struct tag_text *out);
/* The bytes of a token that is given by its id, its text or {"type": "token", "token": ..}. */
int tag_token(struct tag_compiler *c, const json_t *f, const char *key, const json_t *value,
              struct tag_text *out);
/* A string of `key`, or a token object. */
int tag_string(struct tag_compiler *c, const json_t *f, const char *key, const json_t *value,
               struct tag_text *out);
/* Text that JSON Schema's keywords of strings describe, without the strings in `excludes`; with
 * `trim` it neither begins nor ends with white space. */
int tag_bounded_text(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                     uint32_t *out);
/* Any of the branches; those that begin alike share their first bytes. Reorders them. */
uint32_t tag_branches(struct tag_compiler *c, struct tag_branch *branches, size_t count);

/* ---- grammar_tags_free.c: formats with free text */
int tag_any_text(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                 uint32_t *out);
int tag_any_tokens(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                   uint32_t *out);
int tag_triggered(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                  uint32_t *out);
int tag_dispatch(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                 uint32_t *out);

#endif
