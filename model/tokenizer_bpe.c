/* Byte-pair encoding of one piece: the pair of lowest rank is merged first, of equal pairs the
 * leftmost. Short pieces search an array for it, which is fastest for words; long ones keep a heap,
 * so that n symbols cost O(n log n). */
#include "base/utf8.h"
#include "model/tokenizer_internal.h"

#include <string.h>

/* Up to here the quadratic search is faster than the heap: most of it stays in two cache lines. */
#define SHORT_MAX 32

int32_t *rp_tok_emit_reserve(struct rp_tokenizer_scratch *scratch, size_t count) {
    struct rp_token_ids *out = scratch->out;
    if (scratch->status != RP_OK)
        return NULL;
    if (scratch->out_max && count > scratch->out_max - out->count) {
        scratch->status = RP_STATUS_RANGE;
        return NULL;
    }
    if (RP_UNLIKELY(count > out->capacity - out->count)) {
        size_t capacity = RP_MAX(RP_MAX(out->capacity * 2, out->count + count), (size_t)64);
        int32_t *ids =
            capacity > SIZE_MAX / sizeof *ids ? NULL : rp_realloc(out->ids, capacity * sizeof *ids);
        if (!ids) {
            scratch->status = RP_STATUS_NO_MEMORY;
            return NULL;
        }
        out->ids = ids;
        out->capacity = capacity;
    }
    return out->ids + out->count;
}

static bool reserve_symbols(struct rp_tokenizer_scratch *s, size_t count) {
    if (count <= s->symbol_capacity)
        return true;
    size_t capacity = RP_MAX(count, s->symbol_capacity * 2);
    int32_t *symbols = rp_realloc(s->symbols, capacity * sizeof *symbols);
    if (symbols)
        s->symbols = symbols;
    uint32_t *prev = rp_realloc(s->prev, capacity * sizeof *prev);
    if (prev)
        s->prev = prev;
    uint32_t *next = rp_realloc(s->next, capacity * sizeof *next);
    if (next)
        s->next = next;
    if (!symbols || !prev || !next) {
        s->status = RP_STATUS_NO_MEMORY;
        return false;
    }
    s->symbol_capacity = capacity;
    return true;
}

/* An unknown token waits until the next known one, because equal neighbours may be fused. */
struct collector {
    int32_t *symbols;
    size_t count;
    bool unk_waits;
};

static void collect_unknown(const struct rp_tokenizer *tok, struct collector *c, const char *text,
                            size_t len) {
    if (tok->byte_fallback && !tok->byte_level) {
        bool all = true;
        for (size_t i = 0; i < len; i++)
            all = all && tok->byte_ids[(unsigned char)text[i]] >= 0;
        if (all) {
            for (size_t i = 0; i < len; i++)
                c->symbols[c->count++] = tok->byte_ids[(unsigned char)text[i]];
            return; /* the package does not emit a waiting unknown token here either */
        }
    }
    if (tok->unk_id < 0)
        return; /* such a character vanishes */
    if (c->unk_waits && !tok->fuse_unk)
        c->symbols[c->count++] = tok->unk_id;
    c->unk_waits = true;
}

static inline void collect(const struct rp_tokenizer *tok, struct collector *c, int32_t id,
                           const char *text, size_t len) {
    if (RP_UNLIKELY(id < 0)) {
        collect_unknown(tok, c, text, len);
        return;
    }
    if (RP_UNLIKELY(c->unk_waits)) {
        c->symbols[c->count++] = tok->unk_id;
        c->unk_waits = false;
    }
    c->symbols[c->count++] = id;
}

/* The symbols that merging starts from: bytes or characters. Never more than bytes of text. */
static size_t collect_symbols(const struct rp_tokenizer *tok, int32_t *symbols, const char *text,
                              size_t len) {
    struct collector c = {.symbols = symbols};
    if (tok->byte_level) {
        for (size_t i = 0; i < len; i++)
            collect(tok, &c, tok->byte_ids[(unsigned char)text[i]], text + i, 1);
    } else {
        for (size_t i = 0; i < len;) {
            uint32_t code = 0;
            int n = rp_utf8_decode(text + i, len - i, &code);
            if (n <= 0)
                n = 1; /* pieces are cut between characters: not reached */
            int32_t id = code < 0x10000
                             ? tok->char_ids[code]
                             : rp_tok_map_find(&tok->piece_map, tok, text + i, (size_t)n);
            collect(tok, &c, id, text + i, (size_t)n);
            i += (size_t)n;
        }
    }
    if (c.unk_waits)
        symbols[c.count++] = tok->unk_id;
    return c.count;
}

static size_t merge_short(struct rp_tokenizer_scratch *s, int32_t *ids, size_t count) {
    const struct rp_tok_merges *merges = &s->tok->merges;
    uint32_t ranks[SHORT_MAX];
    int32_t merged[SHORT_MAX];
    for (size_t i = 0; i + 1 < count; i++) {
        const struct rp_tok_merge *m = rp_tok_merges_find(merges, ids[i], ids[i + 1]);
        ranks[i] = m ? m->rank : UINT32_MAX;
        merged[i] = m ? m->new_id : -1;
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == UINT32_MAX)
            break;
        ids[best] = merged[best];
        count--;
        for (size_t i = best + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            ranks[i - 1] = ranks[i];
            merged[i - 1] = merged[i];
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < count; i++) {
            const struct rp_tok_merge *m = rp_tok_merges_find(merges, ids[i], ids[i + 1]);
            ranks[i] = m ? m->rank : UINT32_MAX;
            merged[i] = m ? m->new_id : -1;
        }
        s->work++;
    }
    return count;
}

/* A binary heap by (rank, position). */
static void heap_sift_down(struct rp_tokenizer_scratch *s, size_t i) {
    struct rp_tok_heap_entry *heap = s->heap, top = heap[i];
    for (size_t child; (child = i * 2 + 1) < s->heap_count; i = child) {
        if (child + 1 < s->heap_count && heap[child + 1].key < heap[child].key)
            child++;
        s->work++;
        if (top.key <= heap[child].key)
            break;
        heap[i] = heap[child];
    }
    heap[i] = top;
}

static void heap_push(struct rp_tokenizer_scratch *s, struct rp_tok_heap_entry entry) {
    struct rp_tok_heap_entry *heap = s->heap;
    size_t i = s->heap_count++;
    for (size_t parent; i > 0 && entry.key < heap[parent = (i - 1) / 2].key; i = parent) {
        heap[i] = heap[parent];
        s->work++;
    }
    heap[i] = entry;
}

/* Whether the pair at `pos` can be merged; if so, its heap entry. */
static bool pair_entry(const struct rp_tokenizer_scratch *s, uint32_t pos,
                       struct rp_tok_heap_entry *entry) {
    int32_t left = s->symbols[pos], right = s->symbols[s->next[pos]];
    const struct rp_tok_merge *m = rp_tok_merges_find(&s->tok->merges, left, right);
    if (!m)
        return false;
    *entry = (struct rp_tok_heap_entry){(uint64_t)m->rank << 32 | pos, left, right};
    return true;
}

static bool heap_fill(struct rp_tokenizer_scratch *s, size_t count) {
    /* Each merge removes one entry and adds at most two, and there are fewer than `count` merges.
     */
    if (count * 2 > s->heap_capacity) {
        struct rp_tok_heap_entry *heap = rp_realloc(s->heap, count * 2 * sizeof *heap);
        if (!heap) {
            s->status = RP_STATUS_NO_MEMORY;
            return false;
        }
        s->heap = heap;
        s->heap_capacity = count * 2;
    }
    s->heap_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        s->prev[i] = i - 1; /* of the first: UINT32_MAX */
        s->next[i] = i + 1; /* of the last: `count` */
    }
    for (uint32_t i = 0; i + 1 < count; i++)
        s->heap_count += pair_entry(s, i, &s->heap[s->heap_count]);
    for (size_t i = s->heap_count / 2; i-- > 0;)
        heap_sift_down(s, i);
    return true;
}

static size_t merge_long(struct rp_tokenizer_scratch *s, size_t count) {
    if (!heap_fill(s, count))
        return 0;
    while (s->heap_count) {
        struct rp_tok_heap_entry top = s->heap[0], fresh;
        uint32_t pos = (uint32_t)top.key, next = s->next[pos];
        s->heap[0] = s->heap[--s->heap_count];
        heap_sift_down(s, 0);
        /* Symbols only ever grow, so equal ids on both sides mean that nothing has changed here. */
        if (s->symbols[pos] != top.left || next >= count || s->symbols[next] != top.right)
            continue;
        s->symbols[pos] = rp_tok_merges_find(&s->tok->merges, top.left, top.right)->new_id;
        s->symbols[next] = -1;
        s->next[pos] = s->next[next];
        if (s->next[pos] < count) {
            s->prev[s->next[pos]] = pos;
            if (pair_entry(s, pos, &fresh))
                heap_push(s, fresh);
        }
        if (s->prev[pos] != UINT32_MAX && pair_entry(s, s->prev[pos], &fresh))
            heap_push(s, fresh);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i < count; i = s->next[i])
        s->symbols[kept++] = s->symbols[i];
    return kept;
}

static void encode_uncached(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    int32_t few[SHORT_MAX], *symbols = few;
    size_t count;
    if (len <= SHORT_MAX) {
        count = merge_short(s, few, collect_symbols(s->tok, few, text, len));
    } else {
        if (!reserve_symbols(s, len))
            return;
        symbols = s->symbols;
        count = collect_symbols(s->tok, symbols, text, len);
        count = count <= SHORT_MAX ? merge_short(s, symbols, count) : merge_long(s, count);
    }
    int32_t *end = rp_tok_emit_reserve(s, count);
    if (end) {
        memcpy(end, symbols, count * sizeof *end);
        s->out->count += count;
    }
}

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

/* A piece or a part of one that no merge leaves. */
static void encode_cached(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    uint64_t key[2];
    if (len > RP_TOK_CACHE_KEY_MAX || len == 0) {
        if (len)
            encode_uncached(s, text, len);
        return;
    }
    cache_key(text, len, key);
    uint64_t hash = (key[0] ^ len) * 0x9E3779B97F4A7C15u;
    hash =
        (hash ^ hash >> 32 ^ key[1]) * 0xD6E8FEB86659FD93u; /* from xxHash-like mixers; any odd */
    struct rp_tok_cache_entry *set = &s->cache[(hash >> 40) % RP_TOK_CACHE_SETS * 2];
    for (int way = 0; way < 2; way++) {
        const struct rp_tok_cache_entry *e = &set[way];
        if (e->len == len && e->key[0] == key[0] && e->key[1] == key[1]) {
            int32_t *end = rp_tok_emit_reserve(s, e->count);
            if (end) {
                memcpy(end, e->ids, e->count * sizeof *end);
                s->out->count += e->count;
            }
            return;
        }
    }
    size_t before = s->out->count;
    encode_uncached(s, text, len);
    size_t count = s->out->count - before;
    if (s->status == RP_OK && count <= RP_TOK_CACHE_IDS_MAX) {
        set[1] = set[0];
        set[0] = (struct rp_tok_cache_entry){
            .key = {key[0], key[1]}, .len = (uint8_t)len, .count = (uint8_t)count};
        if (count)
            memcpy(set[0].ids, s->out->ids + before, count * sizeof *set[0].ids);
    }
}

/* A text without pre-tokenizer is one piece. Where merges cannot reach across it is cut, which
 * changes no id, and its parts are mostly words, which the cache knows. */
static void encode_parts(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    const struct rp_tokenizer *tok = s->tok;
    size_t begin = 0;
    for (size_t at = 1; at < len && s->status == RP_OK; at++) {
        unsigned char byte = (unsigned char)text[at];
        bool cut = tok->cut_anywhere && (byte & 0xC0) != 0x80 && !rp_tok_may_join(tok, text, at);
        if (byte == 0xE2 && !cut)
            cut = len - at >= 3 && memcmp(text + at, RP_TOK_MARKER, 3) == 0 &&
                  !tok->joins_marker[(unsigned char)text[at - 1]];
        if (cut) {
            encode_cached(s, text + begin, at - begin);
            begin = at;
        }
    }
    if (s->status == RP_OK)
        encode_cached(s, text + begin, len - begin);
}

void rp_tok_bpe_encode(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    const struct rp_tokenizer *tok = s->tok;
    if (tok->cut_at_marker) {
        encode_parts(s, text, len);
        return;
    }
    if (tok->ignore_merges) {
        int32_t id = rp_tok_map_find(&tok->piece_map, tok, text, len);
        if (id >= 0) {
            rp_tok_emit(s, id);
            return;
        }
    }
    encode_cached(s, text, len);
}
