/* load_chunk.h - parses one chunk of a streamed completion without building a tree.
 *
 * A chunk is parsed for every token of every stream, so it is scanned once and only the fields
 * below are extracted; skipped parts must be balanced but are not checked further. Thread: any.
 * Allocates nothing. */
#ifndef RP_BENCH_LOAD_CHUNK_H
#define RP_BENCH_LOAD_CHUNK_H

#include "base/base.h"

/* Incremental text hash, independent of how the text is split: XXH3 of blocks of RP_LOAD_TEXT_BLOCK
 * bytes, each seeded with the hash of the preceding ones. */
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
    /* A choice has an empty text and no role: a token that completes no character or is not shown,
     * or no token at all. */
    bool has_empty;
    bool finished; /* a choice has a finish_reason ... */
    bool stopped;  /* ... which is "stop" */
    bool has_usage;
    uint32_t prompt_tokens, completion_tokens;
    uint32_t cached_tokens; /* UINT32_MAX: not reported */
    bool has_error;
    char error[96]; /* beginning of the error message */
};

/* Adds the unescaped text to `text`. False: not a JSON object, or not shaped like a chunk. */
bool rp_load_chunk_read(const char *json, size_t len, struct rp_load_chunk *out,
                        struct rp_load_text_hash *text);

/* The message in an error body: from {"error":{"message"}}, {"error":""}, {"message"} or
 * {"detail"}; else its first bytes. Control characters become spaces. */
void rp_load_error_message(const char *body, size_t len, char out[96]);

#endif
