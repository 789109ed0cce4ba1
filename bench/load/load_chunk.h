/* load_chunk.h - what one chunk of a streamed completion says, read without building a tree.
 *
 * A chunk is read for every token of every stream, so it is walked once and only the few fields
 * below are looked at; what is passed over must balance but is not checked further. Thread: any.
 * Allocates nothing. */
#ifndef RP_BENCH_LOAD_CHUNK_H
#define RP_BENCH_LOAD_CHUNK_H

#include "base/base.h"

/* The hash of a text that comes in pieces, whatever the pieces: XXH3 of blocks of
 * RP_LOAD_TEXT_BLOCK bytes, each seeded with the hash of those before. */
#define RP_LOAD_TEXT_BLOCK 512u
struct rp_load_text_hash {
    uint64_t hash;
    uint32_t fill;
    char block[RP_LOAD_TEXT_BLOCK];
};
void rp_load_text_hash_init(struct rp_load_text_hash *text);
void rp_load_text_hash_add(struct rp_load_text_hash *text, const char *bytes, size_t len);
uint64_t rp_load_text_hash_get(const struct rp_load_text_hash *text);

struct rp_load_chunk {
    bool has_content; /* a choice's text, delta.content or delta.reasoning_content is not empty */
    /* A choice's text is empty, and no role comes with it: a token that makes no character yet or
     * is not shown, or no token at all. */
    bool has_empty;
    bool finished; /* a choice has a finish_reason ... */
    bool stopped;  /* ... which is "stop" */
    bool has_usage;
    uint32_t prompt_tokens, completion_tokens;
    uint32_t cached_tokens; /* UINT32_MAX: not told */
    bool has_error;
    char error[96]; /* the beginning of its message */
};

/* The text is added to `text`, unescaped. False: this is not a JSON object, or one of a shape that
 * no chunk has. */
bool rp_load_chunk_read(const char *json, size_t len, struct rp_load_chunk *out,
                        struct rp_load_text_hash *text);

/* The message in an error's body: of {"error":{"message"}}, {"error":""}, {"message"} or
 * {"detail"}; else the first bytes as they are. Control characters become blanks. */
void rp_load_error_message(const char *body, size_t len, char out[96]);

#endif
