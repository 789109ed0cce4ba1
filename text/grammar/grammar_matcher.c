/* grammar_matcher.c - a grammar and the tokens of a model: masks with their cache, and steps. */
#include "text/grammar/grammar_mask.h"

#include "base/memory.h"

#include <pthread.h>
#include <string.h>

#define CACHE_BYTES (4u << 20)
#define LIST_MAX    512 /* allowed tokens that are cached as a list instead of a bitset */
/* The nodes and derivatives that one call may make. A mask's own fuel ends it earlier. */
#define CALL_FUEL 50000000u

struct cached_mask {
    uint32_t state;
    uint32_t count; /* of ids in data; 0: data is a bitset */
    uint64_t fuel;
    size_t bytes;
    uint32_t *data;
};

struct rp_matcher {
    struct rp_grammar *grammar;
    const struct rp_token_trie *trie;
    pthread_mutex_t lock;      /* everything below, and the grammar */
    struct cached_mask *slots; /* direct: by the state's number */
    size_t slot_count, cache_bytes, cache_limit, hand;
};

int rp_matcher_make(struct rp_grammar *grammar, const struct rp_token_trie *trie,
                    size_t cache_bytes, struct rp_matcher **out) {
    struct rp_matcher *m = rp_calloc(1, sizeof *m);
    *out = NULL;
    if (m) {
        size_t limit = cache_bytes ? cache_bytes : CACHE_BYTES;
        m->slot_count = 64;
        while (m->slot_count * 2048 < limit && m->slot_count < 4096)
            m->slot_count *= 2;
        m->cache_limit = limit;
        m->slots = rp_calloc(m->slot_count, sizeof *m->slots);
    }
    if (!m || !m->slots || pthread_mutex_init(&m->lock, NULL) != 0) {
        if (m)
            rp_free(m->slots);
        rp_free(m);
        rp_grammar_free(grammar);
        return RP_STATUS_NO_MEMORY;
    }
    m->grammar = grammar;
    m->trie = trie;
    *out = m;
    return RP_OK;
}

void rp_matcher_free(struct rp_matcher *m) {
    if (!m)
        return;
    for (size_t i = 0; i < m->slot_count; i++)
        rp_free(m->slots[i].data);
    rp_free(m->slots);
    pthread_mutex_destroy(&m->lock);
    rp_grammar_free(m->grammar);
    rp_free(m);
}

size_t rp_matcher_memory(struct rp_matcher *m) {
    pthread_mutex_lock(&m->lock);
    size_t bytes = rp_grammar_memory(m->grammar) + m->cache_bytes;
    pthread_mutex_unlock(&m->lock);
    return bytes;
}

uint32_t rp_matcher_start(const struct rp_matcher *m) { return m->grammar->start; }

static void drop(struct rp_matcher *m, struct cached_mask *slot) {
    rp_free(slot->data);
    m->cache_bytes -= slot->bytes;
    *slot = (struct cached_mask){0};
}

static struct cached_mask *slot_of(struct rp_matcher *m, uint32_t state) {
    return &m->slots[(state * 0x9E3779B1u >> 7) & (m->slot_count - 1)];
}

/* Keeps a copy of the mask where there is room; without memory it is simply not kept. */
static void keep(struct rp_matcher *m, uint32_t state, const uint32_t *bits, uint64_t fuel) {
    const struct rp_token_trie *trie = m->trie;
    struct cached_mask *slot = slot_of(m, state);
    uint32_t count = 0;
    for (uint32_t i = 0; i < trie->words && count <= LIST_MAX; i++)
        if (bits[i] != 0)
            count += (uint32_t)__builtin_popcount(bits[i]);
    bool list = count > 0 && count <= LIST_MAX;
    size_t bytes = (list ? count : trie->words) * sizeof(uint32_t);
    drop(m, slot);
    for (size_t i = 0; i < m->slot_count && m->cache_bytes + bytes > m->cache_limit; i++)
        drop(m, &m->slots[m->hand++ & (m->slot_count - 1)]);
    uint32_t *data = m->cache_bytes + bytes <= m->cache_limit ? rp_alloc(bytes) : NULL;
    if (!data)
        return;
    uint32_t used = 0;
    for (uint32_t i = 0; i < trie->words && list; i++)
        for (uint32_t word = bits[i]; word; word &= word - 1)
            data[used++] = i * 32 + (uint32_t)__builtin_ctz(word);
    if (!list)
        memcpy(data, bits, bytes);
    *slot = (struct cached_mask){state, list ? count : 0, fuel, bytes, data};
    m->cache_bytes += bytes;
}

static int mask_locked(struct rp_matcher *m, uint32_t state, uint32_t *bits, uint64_t fuel) {
    size_t bytes = m->trie->words * sizeof(uint32_t);
    state = free_mask_state(m->grammar, state);
    const struct cached_mask *slot = slot_of(m, state);
    if (slot->data && slot->state == state) {
        if (slot->fuel > fuel)
            return RP_STATUS_FULL;
        if (slot->count == 0) {
            memcpy(bits, slot->data, bytes);
            return RP_OK;
        }
        memset(bits, 0, bytes);
        for (uint32_t i = 0; i < slot->count; i++)
            bits[slot->data[i] / 32] |= 1u << slot->data[i] % 32;
        return RP_OK;
    }
    memset(bits, 0, bytes);
    m->grammar->spent_limit = fuel;
    uint64_t used = grammar_mask(m->grammar, m->trie, state, bits, fuel);
    if (m->grammar->status != RP_OK)
        return m->grammar->status;
    if (used > fuel)
        return RP_STATUS_FULL;
    keep(m, state, bits, used);
    return RP_OK;
}

static void enter(struct rp_matcher *m) {
    pthread_mutex_lock(&m->lock);
    m->grammar->status = RP_OK;
    m->grammar->fuel = CALL_FUEL;
    m->grammar->spent = 0;
    m->grammar->spent_limit = RP_MASK_FUEL;
    m->grammar->call++;
}

int rp_matcher_mask(struct rp_matcher *m, uint32_t state, uint32_t *bits, uint64_t fuel) {
    enter(m);
    int rc = mask_locked(m, state, bits, fuel);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

static int advance_locked(struct rp_grammar *g, uint32_t state, const char *bytes, size_t len,
                          uint32_t *out_state) {
    for (size_t i = 0; i < len && state != NODE_NONE; i++) {
        g->spent += node_at(g, state)->steps / 8;
        if (g->spent > g->spent_limit)
            grammar_fail(g, RP_STATUS_FULL);
        state = g_step(g, state, (uint8_t)bytes[i]);
    }
    if (g->status != RP_OK)
        return g->status;
    if (state == NODE_NONE)
        return RP_STATUS_INVALID;
    *out_state = state;
    return RP_OK;
}

int rp_matcher_advance_bytes(struct rp_matcher *m, uint32_t state, const char *bytes, size_t len,
                             uint32_t *out_state) {
    enter(m);
    int rc = advance_locked(m->grammar, state, bytes, len, out_state);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int rp_matcher_advance(struct rp_matcher *m, uint32_t state, uint32_t token, uint32_t *out_state) {
    for (uint32_t i = 0; i < m->trie->end_count; i++)
        if (token == m->trie->end_ids[i] && rp_matcher_is_accepting(m, state)) {
            *out_state = state;
            return RP_OK;
        }
    if (token >= m->trie->token_count || m->trie->tokens[token].len == 0)
        return RP_STATUS_INVALID;
    const struct rp_trie_token *t = &m->trie->tokens[token];
    enter(m);
    int rc = advance_locked(m->grammar, state, t->bytes, t->len, &state);
    if (rc == RP_OK) {
        *out_state = free_token_end(m->grammar, state);
        rc = m->grammar->status;
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

bool rp_matcher_is_accepting(struct rp_matcher *m, uint32_t state) {
    enter(m);
    bool accepting = g_accepting(m->grammar, state);
    pthread_mutex_unlock(&m->lock);
    return accepting;
}

size_t rp_matcher_forced(struct rp_matcher *m, uint32_t state, char *out, size_t max) {
    size_t len = 0;
    enter(m);
    while (len < max && !g_accepting(m->grammar, state)) {
        uint32_t only = NODE_NONE, choices = 0;
        for (uint32_t byte = 0; byte < 256 && choices < 2; byte++) {
            uint32_t next = g_step(m->grammar, state, (uint8_t)byte);
            if (next == NODE_NONE)
                continue;
            choices++;
            only = next;
            out[len] = (char)byte;
        }
        if (choices != 1 || (uint8_t)out[len] == SPECIAL_MARK || m->grammar->status != RP_OK)
            break;
        state = only;
        len++;
    }
    pthread_mutex_unlock(&m->lock);
    return len;
}
