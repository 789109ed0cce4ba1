/* detokenizer.h - token ids to text, one token at a time, byte-exact. What the pushes and the
 * finish append, put together, is what the `tokenizers` package decodes from all ids at once, for
 * every sequence that decodes to valid text. A push never appends part of a character and holds
 * back at most three bytes; a real U+FFFD passes at once. Deliberate differences:
 *  - with "<0x..>" tokens, a run of bytes that is not valid as a whole still gives its valid
 *    characters, and U+FFFD for each other byte (the package replaces the whole run, which a stream
 *    cannot do: it has already sent the beginning);
 *  - special tokens are skipped by id, and an added token reads as the file spells it (version 0.23
 * of the package passes some through the normalizer, and then does not skip them). Thread: the
 * struct belongs to one thread at a time. Memory: none of its own. */
#ifndef RP_TEXT_DETOKENIZER_H
#define RP_TEXT_DETOKENIZER_H

#include "base/base.h"
#include "base/buffer.h"
#include "text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Plain data: may be copied to fork a stream. All fields are private. */
struct rp_detokenizer {
    const struct rp_tokenizer *tok;
    uint32_t strip_left;      /* leading characters that the decoder's Strip may still remove */
    unsigned char pending[4]; /* the beginning of a character that is not complete yet */
    uint8_t pending_len;
    bool skip_special;
    bool started; /* a token has been decoded */
};

void rp_detokenizer_init(struct rp_detokenizer *detok, const struct rp_tokenizer *tok,
                         bool skip_special_tokens);
/* Sets the ids that precede the stream, so that it continues their text and keeps a leading space.
 * Must be called before the first push. RP_OK or NO_MEMORY. */
int rp_detokenizer_follow(struct rp_detokenizer *detok, const int32_t *ids,
                          size_t count) RP_MUST_USE;
/* Appends the characters completed by the token. An unknown id appends nothing. RP_OK, or NO_MEMORY
 * when `out` has failed. */
int rp_detokenizer_push(struct rp_detokenizer *detok, int32_t id,
                        struct rp_buffer *out) RP_MUST_USE;
/* The end of the stream: an incomplete character becomes U+FFFD. */
int rp_detokenizer_finish(struct rp_detokenizer *detok, struct rp_buffer *out) RP_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
