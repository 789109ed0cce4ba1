/* tokenizer_build.h - a tokenizer from tables in memory instead of a tokenizer.json: what a
 * SentencePiece tokenizer.model or the metadata of a GGUF file hold.
 * The tables are read during the call and may be freed afterwards. They are not trusted: lengths,
 * ids and references are checked, and errors name `source` and the entry. */
#ifndef RP_TEXT_TOKENIZER_BUILD_H
#define RP_TEXT_TOKENIZER_BUILD_H

#include "base/base.h"
#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum rp_tokenizer_model {
    /* Byte-level BPE by merges; tokens are spelled with ByteLevel's characters ("Ġhello"). GGUF:
     * tokenizer.ggml.model "gpt2". */
    RP_TOKENIZER_BYTE_BPE,
    /* SentencePiece BPE: the neighbors whose joint token has the highest score are merged first.
     * GGUF: "llama". */
    RP_TOKENIZER_SCORE_BPE,
    /* SentencePiece Unigram: the segmentation with the highest sum of scores. GGUF: "t5". */
    RP_TOKENIZER_UNIGRAM,
    /* BERT's WordPiece, lower case without accents. Tokens are spelled as in vocab.txt ("##ing")
     * or, with marked_words, as GGUF's "bert" does ("▁word" begins a word, "ing" continues one). */
    RP_TOKENIZER_WORDPIECE,
};

/* The numbers of SentencePiece and of tokenizer.ggml.token_type. */
enum rp_tokenizer_token_type {
    RP_TOKENIZER_NORMAL = 1,
    RP_TOKENIZER_UNKNOWN = 2,
    RP_TOKENIZER_CONTROL = 3, /* special: recognized only where a span allows it */
    RP_TOKENIZER_USER_DEFINED = 4,
    RP_TOKENIZER_UNUSED = 5,
    RP_TOKENIZER_BYTE = 6,
};

/* UTF-8, no terminator needed. */
struct rp_tokenizer_text {
    const char *text;
    size_t len;
};

struct rp_tokenizer_tables {
    const char *source; /* the file, for messages */
    enum rp_tokenizer_model model;
    uint32_t count;                         /* tokens; an id is an index */
    const struct rp_tokenizer_text *tokens; /* all different, but for unused ones */
    const uint8_t *types;                   /* rp_tokenizer_token_type; NULL: all normal */
    const float *scores;                    /* SCORE_BPE, UNIGRAM */
    const struct rp_tokenizer_text *merges; /* BYTE_BPE: "left right", the first merges first */
    uint32_t merge_count;
    /* BYTE_BPE: how a text is cut before merging, by the names of tokenizer.ggml.pre; unknown ones
     * are refused (UNSUPPORTED). NULL: "gpt-2". */
    const char *pre;
    int32_t bos_id, eos_id, unk_id; /* -1: none */
    bool add_bos, add_eos;          /* put around a text by RP_ENCODE_ADD_SPECIAL */
    bool add_space_prefix;          /* SentencePiece: a text begins with a space */
    bool space_prefix_first_only;   /* ... but not what follows a special token */
    bool remove_extra_whitespaces;  /* SentencePiece: at both ends, and runs */
    bool marked_words;              /* WORDPIECE: GGUF's spelling */
    const void *charsmap;           /* SentencePiece's precompiled_charsmap; NULL: none */
    size_t charsmap_len;
};

/* RP_OK, FORMAT, UNSUPPORTED, RANGE or NO_MEMORY. */
int rp_tokenizer_build(const struct rp_tokenizer_tables *tables, struct rp_tokenizer **out,
                       struct rp_error *err) RP_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
