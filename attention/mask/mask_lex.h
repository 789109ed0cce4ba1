/* mask_lex.h - tokenizes a mask program: shared by mask_lex.c and mask_parse.c. */
#ifndef RP_ATTENTION_MASK_LEX_H
#define RP_ATTENTION_MASK_LEX_H

#include "base/status.h"

enum rp_mask_word_kind {
    RP_MASK_WORD_END,
    RP_MASK_WORD_INT,
    RP_MASK_WORD_FLOAT,
    /* operators and brackets */
    RP_MASK_WORD_NAME,
    RP_MASK_WORD_SIGN,
};

struct rp_mask_word {
    enum rp_mask_word_kind kind;
    const char *begin; /* not zero-terminated */
    uint32_t length, column;
    int32_t i;
    float f;
};

struct rp_mask_lexer {
    const char *text;
    uint32_t bytes, at;
    struct rp_error *err;
};

/* The next word; false after it set *err: an unexpected byte, or a number that does not fit. */
bool rp_mask_next_word(struct rp_mask_lexer *lexer, struct rp_mask_word *word);
bool rp_mask_word_is(const struct rp_mask_word *word, const char *text);

#endif
