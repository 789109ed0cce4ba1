#include "base/hash.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

/* Smallest power of two that leaves a table of `count` entries at most half full; 0 on overflow. */
static uint32_t table_size(size_t count) {
    uint64_t size = 16;
    while (size < (uint64_t)count * 2)
        size *= 2;
    return size > (uint64_t)1 << 31 ? 0 : (uint32_t)size;
}

bool rp_tok_map_init(struct rp_tok_map *map, struct rp_arena *arena, uint32_t count,
                     bool by_piece) {
    uint32_t size = table_size(count);
    map->slots = size ? rp_arena_calloc(arena, size, sizeof *map->slots) : NULL;
    if (!map->slots)
        return false;
    for (uint32_t i = 0; i < size; i++)
        map->slots[i].id = -1;
    map->mask = size - 1;
    map->by_piece = by_piece;
    return true;
}

static struct rp_tok_slice map_key(const struct rp_tok_map *map, const struct rp_tokenizer *tok,
                                   int32_t id) {
    return map->by_piece ? tok->entries[id].piece : tok->entries[id].content;
}

/* The slot that holds the text, or the empty one where it belongs. */
static struct rp_tok_map_slot *map_slot(const struct rp_tok_map *map,
                                        const struct rp_tokenizer *tok, const char *text,
                                        size_t len, uint32_t hash) {
    for (uint32_t i = hash & map->mask;; i = (i + 1) & map->mask) {
        struct rp_tok_map_slot *slot = &map->slots[i];
        if (slot->id < 0)
            return slot;
        if (slot->hash != hash)
            continue;
        struct rp_tok_slice key = map_key(map, tok, slot->id);
        if (key.len == len && memcmp(rp_tok_ptr(tok, key), text, len) == 0)
            return slot;
    }
}

int32_t rp_tok_map_put(struct rp_tok_map *map, const struct rp_tokenizer *tok, int32_t id) {
    struct rp_tok_slice key = map_key(map, tok, id);
    const char *text = rp_tok_ptr(tok, key);
    uint32_t hash = (uint32_t)rp_hash64(text, key.len, 0);
    struct rp_tok_map_slot *slot = map_slot(map, tok, text, key.len, hash);
    if (slot->id >= 0)
        return slot->id;
    slot->hash = hash;
    slot->id = id;
    return -1;
}

int32_t rp_tok_map_find(const struct rp_tok_map *map, const struct rp_tokenizer *tok,
                        const char *text, size_t len) {
    return map_slot(map, tok, text, len, (uint32_t)rp_hash64(text, len, 0))->id;
}

bool rp_tok_merges_init(struct rp_tok_merges *merges, struct rp_arena *arena, uint32_t count) {
    uint32_t size = table_size(count);
    merges->slots = size ? rp_arena_calloc(arena, size, sizeof *merges->slots) : NULL;
    if (!merges->slots)
        return false;
    for (uint32_t i = 0; i < size; i++)
        merges->slots[i].key = UINT64_MAX;
    merges->mask = size - 1;
    merges->shift = 64 - (uint32_t)__builtin_ctz(size);
    return true;
}

void rp_tok_merges_put(struct rp_tok_merges *merges, int32_t left, int32_t right, uint32_t rank,
                       int32_t new_id) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t i = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> merges->shift);
    while (merges->slots[i].key != UINT64_MAX && merges->slots[i].key != key)
        i = (i + 1) & merges->mask;
    merges->slots[i] = (struct rp_tok_merge){.key = key, .rank = rank, .new_id = new_id};
}

static uint32_t edge_hash(uint64_t key) { return (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 32); }

bool rp_tok_trie_init(struct rp_tok_trie *trie, struct rp_arena *arena, size_t text_bytes) {
    uint32_t size = table_size(text_bytes);
    if (!size)
        return false;
    trie->edges = rp_arena_calloc(arena, size, sizeof *trie->edges);
    trie->values = rp_arena_calloc(arena, text_bytes + 1, sizeof *trie->values);
    if (!trie->edges || !trie->values)
        return false;
    for (uint32_t i = 0; i < size; i++)
        trie->edges[i].key = UINT64_MAX;
    trie->mask = size - 1;
    trie->node_count = 1;
    trie->values[0] = -1;
    return true;
}

/* Strings are mostly "<|...|>": one look for "|" is faster than many for "<". */
static void find_common(struct rp_tok_trie *trie, const char *text, size_t len) {
    static const char rare[] = "|<>[]{}@#~^`$&";
    uint32_t same = 0, most = (uint32_t)RP_MIN(len, sizeof trie->common);
    if (trie->node_count == 1) {
        memcpy(trie->common, text, most);
        trie->common_len = most;
    }
    while (same < RP_MIN(most, trie->common_len) && trie->common[same] == text[same])
        same++;
    trie->common_len = same;
    trie->anchor_at = same ? same - 1 : 0;
    for (size_t i = sizeof rare - 1; i-- > 0;) {
        const char *hit = memchr(trie->common, rare[i], same);
        if (hit)
            trie->anchor_at = (uint32_t)(hit - trie->common);
    }
    trie->anchor = (unsigned char)trie->common[trie->anchor_at];
}

void rp_tok_trie_put(struct rp_tok_trie *trie, const char *text, size_t len, int32_t value) {
    uint32_t node = 0;
    find_common(trie, text, len);
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t child = rp_tok_trie_step(trie, node, byte);
        if (!child) {
            uint64_t key = (uint64_t)node << 8 | byte;
            uint32_t at = edge_hash(key) & trie->mask;
            while (trie->edges[at].key != UINT64_MAX)
                at = (at + 1) & trie->mask;
            child = trie->node_count++;
            trie->values[child] = -1;
            trie->edges[at] = (struct rp_tok_trie_edge){.key = key, .child = child};
        }
        node = child;
    }
    trie->first[(unsigned char)text[0]] = true;
    if (len < 4)
        memset(trie->heads, 0xFF, sizeof trie->heads);
    else
        trie->heads[rp_tok_trie_head(text) / 64] |= (uint64_t)1 << (rp_tok_trie_head(text) % 64);
    trie->values[node] = value;
}

uint32_t rp_tok_trie_step(const struct rp_tok_trie *trie, uint32_t node, unsigned char byte) {
    uint64_t key = (uint64_t)node << 8 | byte;
    for (uint32_t i = edge_hash(key) & trie->mask;; i = (i + 1) & trie->mask) {
        if (trie->edges[i].key == key)
            return trie->edges[i].child;
        if (trie->edges[i].key == UINT64_MAX)
            return 0;
    }
}

/* GPT-2's bytes_to_unicode: printable Latin-1 stands for itself, the other 68 bytes are numbered
 * from U+0100 in order. */
static bool stands_for_itself(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t rp_tok_byte_to_char(unsigned char byte) {
    uint32_t code = 0x100;
    if (stands_for_itself(byte))
        return byte;
    for (uint32_t b = 0; b < byte; b++)
        code += !stands_for_itself(b);
    return code;
}

int rp_tok_char_to_byte(uint32_t code) {
    if (code < 0x100)
        return stands_for_itself(code) ? (int)code : -1;
    if (code < 0x121) /* 00-20 */
        return (int)(code - 0x100);
    if (code < 0x143) /* 7F-A0 */
        return (int)(code - 0x121 + 0x7F);
    return code == 0x143 ? 0xAD : -1;
}
