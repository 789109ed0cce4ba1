/* tokenizer.h - text to token ids, as a Hugging Face tokenizer.json says (model type BPE).
 * The ids are those of the `tokenizers` package, with these differences, all on purpose:
 *  - special tokens are recognized only in spans that allow it, so that a user cannot write one;
 *  - bytes that are not UTF-8 become U+FFFD, one per byte (the package takes no such text);
 *  - truncation and padding stored in the file are ignored, as model libraries do.
 * Thread: a tokenizer is immutable after load and shared; a scratch belongs to one thread at a
 * time. Memory: everything at load, except the scratch, which grows with the longest text it has
 * seen. Errors: load refuses what it does not implement, by name: "tokenizer.json: model.type ...".
 */
#ifndef RP_TEXT_TOKENIZER_H
#define RP_TEXT_TOKENIZER_H

#include "base/base.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ids at or above this are refused; the largest published vocabularies have 2^18. */
#define RP_TOKEN_ID_LIMIT (1 << 24)

struct rp_tokenizer;
struct rp_tokenizer_scratch;

/* One stretch of the text. The spans are tokenized as the one text they form together; a special
 * token (an added token with "special": true) is recognized only where every byte of it lies in
 * spans that allow it. Added tokens that are not special are recognized everywhere. */
struct rp_text_span {
    const char *text;
    size_t len;
    bool allow_special;
};

/* Zero-initialized is valid and empty; rp_token_ids_deinit frees. */
struct rp_token_ids {
    int32_t *ids;
    size_t count, capacity;
};

/* The bytes of a token after the decoder's rules for single tokens (byte-level map, "▁" to space,
 * "<0x0A>" to the byte). Points into the tokenizer. Not always whole characters. */
struct rp_token_bytes {
    const char *bytes;
    uint32_t len;
    bool special;
    bool known; /* false: no token has this id */
};

enum {
    RP_ENCODE_ADD_SPECIAL =
        1, /* put the post-processor's tokens (BOS etc.) around the whole text */
};

/* `path`: a model directory, a tokenizer.json or a GGUF file. tokenizer_config.json beside it, when
 * there is one, names the BOS and EOS tokens. RP_OK, NOT_FOUND, IO, FORMAT, UNSUPPORTED, RANGE or
 * NO_MEMORY. */
int rp_tokenizer_open(const char *path, struct rp_tokenizer **out,
                      struct rp_error *err) RP_MUST_USE;
/* NULL is allowed. */
void rp_tokenizer_close(struct rp_tokenizer *tok);

/* NULL when memory is out. Must not outlive the tokenizer. */
struct rp_tokenizer_scratch *
rp_tokenizer_scratch_create(const struct rp_tokenizer *tok) RP_MUST_USE;
void rp_tokenizer_scratch_destroy(struct rp_tokenizer_scratch *scratch);

/* Appends the ids of the text to *out. RP_OK; NO_MEMORY; RANGE when there would be more than
 * `limit` ids (0: no limit) or the text has 2^30 bytes or more; FORMAT when the pattern of an
 * unusual tokenizer gives up on this text. After a failure *out is as it was. */
int rp_tokenizer_encode(const struct rp_tokenizer *tok, const struct rp_text_span *spans,
                        size_t span_count, unsigned flags, size_t limit,
                        struct rp_tokenizer_scratch *scratch, struct rp_token_ids *out) RP_MUST_USE;
/* Appends one id; false: no memory. */
bool rp_token_ids_add(struct rp_token_ids *ids, int32_t id) RP_MUST_USE;
void rp_token_ids_deinit(struct rp_token_ids *ids);

/* Bytes of memory held: by the tables, and by a scratch as it has grown so far. */
size_t rp_tokenizer_memory(const struct rp_tokenizer *tok);
size_t rp_tokenizer_scratch_memory(const struct rp_tokenizer_scratch *scratch);

/* Highest id + 1, added tokens included. */
uint32_t rp_tokenizer_vocab_size(const struct rp_tokenizer *tok);
/* The id of a token by its content as the file spells it, or -1. */
int32_t rp_tokenizer_find(const struct rp_tokenizer *tok, const char *text, size_t len);
struct rp_token_bytes rp_tokenizer_token(const struct rp_tokenizer *tok, int32_t id);
/* The content as the file spells it ("Ġhello"); *out_len 0 and "" for an unknown id. */
const char *rp_tokenizer_content(const struct rp_tokenizer *tok, int32_t id, size_t *out_len);
/* From tokenizer_config.json; -1 when absent. */
int32_t rp_tokenizer_bos(const struct rp_tokenizer *tok);
int32_t rp_tokenizer_eos(const struct rp_tokenizer *tok);

#ifdef __cplusplus
}
#endif
#endif
