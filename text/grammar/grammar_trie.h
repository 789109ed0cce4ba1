/* grammar_trie.h - the tokens of a model as a trie, and what is known of them ahead.
 *
 * Nodes lie in depth-first order, so a walk goes forward and skips a subtree by its size. Two walks
 * would be long without help: inside a free JSON string nearly every token is allowed. Tokens of
 * clean characters (no quote, backslash, control, partial character, U+2028 or U+2029) are in
 * precomputed masks by their length, and only the others, some 5 % of the nodes, are walked
 * (`rest`).
 * Thread: immutable after make. */
#ifndef RP_TEXT_GRAMMAR_TRIE_H
#define RP_TEXT_GRAMMAR_TRIE_H

#include "text/grammar/grammar.h"

#define TRIE_HAVING_MAX 16384 /* tokens of a byte's list */
#define TRIE_NO_TOKEN   UINT32_MAX
#define TRIE_TWIN       0x80000000u
#define TRIE_DEPTH_MAX  512 /* longer tokens are never allowed */
#define CLEAN_MAX       32  /* characters of the longest tokens in slices */

struct trie_node {
    uint32_t token; /* that ends here, with TRIE_TWIN if others have its bytes; or TRIE_NO_TOKEN */
    uint32_t size_byte; /* nodes of the subtree << 8 | byte */
};
static inline uint8_t trie_byte(struct trie_node n) { return (uint8_t)n.size_byte; }
static inline uint32_t trie_size(struct trie_node n) { return n.size_byte >> 8; }

struct trie_part {
    struct trie_node *nodes; /* nodes[0] is the root */
    uint32_t count;
    uint32_t root_count, roots[257]; /* the nodes below the root, and where the last one ends */
    uint8_t root_bytes[256];
    /* Only of `all`, else NULL. By node, from its byte on: kinds of characters (grammar_kind.c),
     * most characters, and the first of its tokens in `order`. */
    uint32_t *kinds, *first, *order;
    uint16_t *chars;
};

/* A quote that ends a string that began before the token. */
struct trie_exit {
    uint32_t node, chars; /* of `rest`; characters before it */
    uint32_t token, len;  /* some token below it, and its bytes before the quote */
};

/* Tokens of at most CLEAN_MAX characters, all in a class; the others as a trie. The classes are of
 * ASCII, but TRIE_SOLID: clean characters but the space. */
enum trie_class_name {
    TRIE_ALNUM,
    TRIE_ALNUM_SPACE,
    TRIE_WORD,
    TRIE_WORD_SPACE,
    TRIE_SOLID,
    TRIE_CLASSES
};
struct trie_class {
    uint32_t *mask;
    struct trie_part rest;
};
static inline bool trie_class_has(int name, uint8_t byte) {
    uint8_t low = byte | 0x20;
    if ((low >= 'a' && low <= 'z' && byte < 0x80) || (byte >= '0' && byte <= '9'))
        return true;
    return (byte == '_' && (name == TRIE_WORD || name == TRIE_WORD_SPACE)) ||
           (byte == ' ' && (name == TRIE_ALNUM_SPACE || name == TRIE_WORD_SPACE));
}

/* A special token: four bytes in the trie (SPECIAL_MARK), found by its text. */
struct trie_special {
    const char *bytes;
    uint32_t len, token;
};

struct rp_token_trie {
    struct trie_part all, rest;
    struct trie_class classes[TRIE_CLASSES];
    uint32_t *token_kinds, byte_kinds[256];
    uint32_t token_count, width, words; /* words of a mask */
    uint32_t *twins;                    /* another token of the same bytes, or TRIE_NO_TOKEN */
    uint32_t *slices[CLEAN_MAX + 1];    /* clean tokens of at most i characters */
    uint32_t *inside;                   /* tokens that are wholly inside a free string */
    struct trie_exit *exits;
    uint32_t exit_count;
    uint32_t chars_max;  /* of any token */
    uint32_t *text_mask; /* tokens that are UTF-8 from a character's begin on, whole or cut off */
    uint32_t *having;    /* the tokens of text_mask with byte b: having[having_at[b] ..] */
    uint32_t having_at[257];
    bool having_too_many[256];     /* such a byte has no list */
    struct trie_special *specials; /* sorted by their text */
    uint32_t special_count;
    uint32_t *end_ids;
    uint32_t end_count;
    struct rp_trie_token *tokens; /* bytes point into text */
    char *text;
    char *special_text;
    size_t bytes;
};

/* ---- grammar_kind.c */
/* Kinds of characters, a bit for each: those that an expression takes without change are compared
 * with those of all tokens below a node. KIND_OTHER: other bytes, and what is no UTF-8. */
#define KIND_LOWER 3u
#define KIND_WIDE  (1u << 11) /* whole characters beyond ASCII; the last one may be cut off */
#define KIND_GAPS  (1u << 31) /* the same, of blocks in which \s has members */
#define KIND_OTHER (1u << 12)
int trie_make_kinds(struct rp_token_trie *trie);

/* ---- grammar_special.c */
/* The special tokens of `tokens`, of which the trie keeps the texts. */
int trie_make_specials(struct rp_token_trie *trie, const struct rp_trie_token *tokens);
/* text_mask and having. */
int trie_make_text(struct rp_token_trie *trie);
/* The longest special token that `text` begins with, or NULL. trie may be NULL. */
const struct trie_special *trie_special_at(const struct rp_token_trie *trie, const char *text,
                                           size_t len);
#define SPECIAL_BYTES 4
/* The bytes of a special token in the trie. */
void trie_special_code(uint32_t token, char out[SPECIAL_BYTES]);

/* Tokens of a node. */
static inline void mask_set(const struct rp_token_trie *trie, uint32_t *bits, uint32_t token) {
    uint32_t id = token & ~TRIE_TWIN;
    bits[id / 32] |= 1u << id % 32;
    while (token & TRIE_TWIN && (id = trie->twins[id]) != TRIE_NO_TOKEN)
        bits[id / 32] |= 1u << id % 32;
}
static inline void mask_clear(const struct rp_token_trie *trie, uint32_t *bits, uint32_t token) {
    uint32_t id = token & ~TRIE_TWIN;
    bits[id / 32] &= ~(1u << id % 32);
    while (token & TRIE_TWIN && (id = trie->twins[id]) != TRIE_NO_TOKEN)
        bits[id / 32] &= ~(1u << id % 32);
}

#endif
