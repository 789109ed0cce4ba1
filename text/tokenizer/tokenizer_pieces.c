/* One piece: looked up among those seen before, or in the vocabulary, or encoded. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

static inline uint64_t load8(const char *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline uint64_t load4(const char *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* Every byte of the text in two words, by loads that overlap: with the length it is one to one. */
static inline void cache_key(const char *text, size_t len, uint64_t key[2]) {
    key[1] = 0;
    if (len >= 8) {
        key[0] = load8(text);
        key[1] = load8(text + len - 8);
    } else if (len >= 4) {
        key[0] = load4(text) | load4(text + len - 4) << 32;
    } else {
        key[0] = (uint64_t)(unsigned char)text[0] | (uint64_t)(unsigned char)text[len / 2] << 8 |
                 (uint64_t)(unsigned char)text[len - 1] << 16;
    }
}

static inline void emit_entry(struct rp_tokenizer_scratch *s, const struct rp_tok_cache_entry *e) {
    struct rp_token_ids *out = s->out;
    /* A copy of a fixed size is no call. */
    if (RP_LIKELY(out->capacity - out->count >= RP_TOK_CACHE_IDS_MAX && !s->out_max)) {
        memcpy(out->ids + out->count, e->ids, sizeof e->ids);
        out->count += e->count;
        return;
    }
    int32_t *end = rp_tok_emit_reserve(s, e->count);
    if (end) {
        memcpy(end, e->ids, e->count * sizeof *end);
        out->count += e->count;
    }
}

static void encode_new(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    const struct rp_tokenizer *tok = s->tok;
    if (tok->ignore_merges && len <= tok->piece_max) {
        int32_t id = rp_tok_map_find(&tok->piece_map, tok, text, len);
        if (id >= 0) {
            rp_tok_emit(s, id);
            return;
        }
    }
    switch (tok->model) {
    case RP_TOK_BPE:
        rp_tok_bpe_merge(s, text, len);
        break;
    case RP_TOK_SCORE:
        rp_tok_score_encode(s, text, len);
        break;
    case RP_TOK_UNIGRAM:
        rp_tok_unigram_encode(s, text, len);
        break;
    case RP_TOK_WORDPIECE:
        rp_tok_wordpiece_encode(s, text, len);
        break;
    }
}

static __attribute__((noinline)) void encode_and_keep(struct rp_tokenizer_scratch *s,
                                                      const char *text, size_t len,
                                                      const uint64_t key[2],
                                                      struct rp_tok_cache_entry *set) {
    size_t before = s->out->count;
    encode_new(s, text, len);
    size_t count = s->out->count - before;
    if (s->status != RP_OK || count > RP_TOK_CACHE_IDS_MAX)
        return;
    set[1] = set[0];
    set[0] = (struct rp_tok_cache_entry){
        .key = {key[0], key[1]}, .len = (uint8_t)len, .count = (uint8_t)count};
    if (count)
        memcpy(set[0].ids, s->out->ids + before, count * sizeof *set[0].ids);
}

/* A piece or a part of one that no merge leaves. */
static inline void encode_cached(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    uint64_t key[2];
    if (RP_UNLIKELY(len > RP_TOK_CACHE_KEY_MAX || len == 0)) {
        if (len)
            encode_new(s, text, len);
        return;
    }
    cache_key(text, len, key);
    uint64_t hash = (key[0] ^ len) * 0x9E3779B97F4A7C15u;
    hash =
        (hash ^ hash >> 32 ^ key[1]) * 0xD6E8FEB86659FD93u; /* from xxHash-like mixers; any odd */
    struct rp_tok_cache_entry *set = &s->cache[(hash >> 40) % RP_TOK_CACHE_SETS * 2];
    if (set[0].len == len && set[0].key[0] == key[0] && set[0].key[1] == key[1])
        emit_entry(s, &set[0]);
    else if (set[1].len == len && set[1].key[0] == key[0] && set[1].key[1] == key[1])
        emit_entry(s, &set[1]);
    else
        encode_and_keep(s, text, len, key, set);
}

/* A text without pre-tokenizer is one piece. Where merges cannot reach across it is cut, which
 * changes no id, and its parts are mostly words, which the cache knows. */
static void encode_parts(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    const struct rp_tokenizer *tok = s->tok;
    size_t begin = 0;
    unsigned char left = (unsigned char)text[0];
    for (size_t at = 1; at < len; at++) {
        unsigned char byte = (unsigned char)text[at];
        bool cut = tok->cuts[left][byte >> 3] >> (byte & 7) & 1;
        if (byte == 0xE2 && !cut)
            cut = len - at >= 3 && memcmp(text + at, RP_TOK_MARKER, 3) == 0 &&
                  !tok->joins_marker[left];
        left = byte;
        if (!cut)
            continue;
        if (s->status != RP_OK)
            return;
        encode_cached(s, text + begin, at - begin);
        begin = at;
    }
    if (s->status == RP_OK)
        encode_cached(s, text + begin, len - begin);
}

void rp_tok_bpe_encode(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    if (s->tok->cut_at_marker)
        encode_parts(s, text, len);
    else
        encode_cached(s, text, len);
}
