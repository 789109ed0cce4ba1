/* Byte-pair encoding of one piece: the pair of lowest rank is merged first, of equal pairs the
 * leftmost. Short pieces search an array for it, which is fastest for words; long ones keep a heap,
 * so that n symbols cost O(n log n). */
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

/* Up to here the quadratic search is faster than the heap: most of it stays in two cache lines. */
#define SHORT_MAX 32
/* Longer pieces take their memory from the scratch. */
#define SHORT_UNITS 127
/* How much of a run of one byte is searched: no unit is longer. */
#define RUN_MIN RP_TOK_UNIT_LEN_MAX

int32_t *rp_tok_emit_reserve(struct rp_tokenizer_scratch *scratch, size_t count) {
    struct rp_token_ids *out = scratch->out;
    if (scratch->status != RP_OK)
        return NULL;
    if (scratch->out_max && count > scratch->out_max - out->count) {
        scratch->status = RP_STATUS_RANGE;
        return NULL;
    }
    if (RP_UNLIKELY(count > out->capacity - out->count || !out->ids)) {
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

static bool grow(struct rp_tokenizer_scratch *s, void **array, size_t count, size_t size) {
    void *grown = count > SIZE_MAX / size ? NULL : rp_realloc(*array, count * size);
    if (grown)
        *array = grown;
    else
        s->status = RP_STATUS_NO_MEMORY;
    return grown != NULL;
}

bool rp_tok_reserve_symbols(struct rp_tokenizer_scratch *s, size_t count) {
    if (count <= s->symbol_capacity)
        return true;
    size_t capacity = RP_MAX(count, s->symbol_capacity * 2);
    if (!grow(s, (void **)&s->symbols, capacity, sizeof *s->symbols))
        return false;
    s->symbol_capacity = capacity;
    return true;
}

bool rp_tok_reserve_links(struct rp_tokenizer_scratch *s, size_t count) {
    if (count <= s->link_capacity)
        return true;
    size_t capacity = RP_MAX(count, s->link_capacity * 2);
    if (!grow(s, (void **)&s->prev, capacity, sizeof *s->prev) ||
        !grow(s, (void **)&s->next, capacity, sizeof *s->next))
        return false;
    s->link_capacity = capacity;
    return true;
}

/* All zero on entry and on return. */
static uint64_t *reserve_dead(struct rp_tokenizer_scratch *s, size_t words) {
    if (words > s->dead_capacity) {
        if (!grow(s, (void **)&s->dead, words, sizeof *s->dead))
            return NULL;
        memset(s->dead, 0, words * sizeof *s->dead);
        s->dead_capacity = words;
    }
    return s->dead;
}

/* An unknown token is held until the next known one, because equal neighbors may be fused. */
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

size_t rp_tok_symbols(const struct rp_tokenizer *tok, int32_t *symbols, const char *text,
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

size_t rp_tok_symbol_count(const struct rp_tokenizer *tok, const char *text, size_t len) {
    size_t count = 0;
    for (size_t i = 0; i < len; i++)
        count += tok->byte_level || ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

size_t rp_tok_merge_few(const struct rp_tokenizer *tok, int32_t *ids, size_t count) {
    const struct rp_tok_merges *merges = &tok->merges;
    uint32_t ranks[RP_TOK_MERGE_FEW];
    int32_t merged[RP_TOK_MERGE_FEW];
    RP_ASSERT_CMP(count, <=, RP_TOK_MERGE_FEW);
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

void rp_tok_heap_push(struct rp_tokenizer_scratch *s, struct rp_tok_heap_entry entry) {
    struct rp_tok_heap_entry *heap = s->heap;
    size_t i = s->heap_count++;
    for (size_t parent; i > 0 && entry.key < heap[parent = (i - 1) / 2].key; i = parent) {
        heap[i] = heap[parent];
        s->work++;
    }
    heap[i] = entry;
}

struct rp_tok_heap_entry rp_tok_heap_pop(struct rp_tokenizer_scratch *s) {
    struct rp_tok_heap_entry top = s->heap[0];
    s->heap[0] = s->heap[--s->heap_count];
    heap_sift_down(s, 0);
    return top;
}

bool rp_tok_reserve_heap(struct rp_tokenizer_scratch *s, size_t count) {
    if (count <= s->heap_capacity)
        return true;
    if (!grow(s, (void **)&s->heap, count, sizeof *s->heap))
        return false;
    s->heap_capacity = count;
    return true;
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
    if (!rp_tok_reserve_heap(s, count * 2))
        return false;
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
    if (!rp_tok_reserve_links(s, count) || !heap_fill(s, count))
        return 0;
    while (s->heap_count) {
        struct rp_tok_heap_entry top = rp_tok_heap_pop(s), fresh;
        uint32_t pos = (uint32_t)top.key, next = s->next[pos];
        /* Symbols only ever grow, so equal ids on both sides mean that nothing has changed here. */
        if (s->symbols[pos] != top.left || next >= count || s->symbols[next] != top.right)
            continue;
        s->symbols[pos] = rp_tok_merges_find(&s->tok->merges, top.left, top.right)->new_id;
        s->symbols[next] = -1;
        s->next[pos] = s->next[next];
        if (s->next[pos] < count) {
            s->prev[s->next[pos]] = pos;
            if (pair_entry(s, pos, &fresh))
                rp_tok_heap_push(s, fresh);
        }
        if (s->prev[pos] != UINT32_MAX && pair_entry(s, s->prev[pos], &fresh))
            rp_tok_heap_push(s, fresh);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i < count; i = s->next[i])
        s->symbols[kept++] = s->symbols[i];
    return kept;
}

static void emit_all(struct rp_tokenizer_scratch *s, const int32_t *ids, size_t count) {
    int32_t *end = rp_tok_emit_reserve(s, count);
    if (end) {
        memcpy(end, ids, count * sizeof *end);
        s->out->count += count;
    }
}

/* A text of one byte over and over: its encoding begins with the same unit again and again, if that
 * may stand beside itself, for then all neighbors fit. Emits those but the last few and returns the
 * bytes that they take. In the search every length of such a run is a candidate everywhere. */
static size_t encode_run(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    int32_t ids[RUN_MIN];
    uint64_t dead[RUN_MIN / 64 + 1] = {0};
    size_t end = 0;
    if (memcmp(text, text + 1, len - 1) != 0)
        return 0;
    size_t count = rp_tok_units_encode(s, text, RUN_MIN, dead, ids, &end);
    if (end != RUN_MIN || count < 2 || ids[0] != ids[1])
        return 0;
    size_t unit = s->tok->units.all[ids[0]].len;
    size_t times = (len - RUN_MIN) / unit; /* what is left has RUN_MIN bytes or a few more */
    size_t rest = len - times * unit;
    /* The rest begins with the unit, or the run is searched as any text. */
    int32_t more[2 * RUN_MIN];
    uint64_t bits[2 * RUN_MIN / 64 + 1] = {0};
    count = rp_tok_units_encode(s, text, rest, bits, more, &end);
    if (end != rest || count == 0 || more[0] != ids[0])
        return 0;
    int32_t *to = rp_tok_emit_reserve(s, times);
    for (size_t i = 0; to && i < times; i++)
        to[i] = ids[0];
    s->out->count += to ? times : 0;
    return to ? times * unit : 0;
}

/* Encodes by units; a character without a token is encoded separately, as its bytes. */
static void encode_units(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    int32_t few[SHORT_UNITS], *ids = few;
    uint64_t bits[SHORT_UNITS / 64 + 1] = {0}, *dead = bits;
    if (len >= 4 * RUN_MIN) {
        size_t run = encode_run(s, text, len);
        text += run;
        len -= run;
    }
    while (len && s->status == RP_OK) {
        if (len > SHORT_UNITS) {
            dead = reserve_dead(s, len / 64 + 1);
            if (!dead || !rp_tok_reserve_symbols(s, len))
                return;
            ids = s->symbols;
        }
        size_t end = 0, count = rp_tok_units_encode(s, text, len, dead, ids, &end);
        emit_all(s, ids, count);
        if (dead == bits)
            bits[0] = bits[1] = 0;
        else
            memset(dead, 0, (end / 64 + 1) * sizeof *dead);
        text += end;
        len -= end;
        if (len == 0)
            return;
        int size = rp_utf8_decode(text, len, NULL);
        for (int i = 0; i < RP_MAX(size, 1); i++)
            rp_tok_emit(s, s->tok->byte_ids[(unsigned char)text[i]]);
        text += RP_MAX(size, 1);
        len -= (size_t)RP_MAX(size, 1);
        dead = bits;
        ids = few;
    }
}

void rp_tok_bpe_merge(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    int32_t few[SHORT_MAX], *symbols = few;
    size_t count;
    if (s->tok->units.all) {
        encode_units(s, text, len);
        return;
    }
    if (len <= SHORT_MAX) {
        count = rp_tok_merge_few(s->tok, few, rp_tok_symbols(s->tok, few, text, len));
    } else {
        if (!rp_tok_reserve_symbols(s, len))
            return;
        symbols = s->symbols;
        count = rp_tok_symbols(s->tok, symbols, text, len);
        count =
            count <= SHORT_MAX ? rp_tok_merge_few(s->tok, symbols, count) : merge_long(s, count);
    }
    if (s->status == RP_OK)
        emit_all(s, symbols, count);
}
