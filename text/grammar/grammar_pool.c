/* grammar_pool.c - the pool of hash-consed nodes, and its memory. */
#include "text/grammar/grammar_internal.h"

#include "base/hash.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_FIRST 256
#define MEMO_FIRST  256
#define LITERAL_MAX 64

struct any_vec {
    void *at;
    size_t count, capacity;
};

int grammar_fail(struct rp_grammar *g, int status) {
    if (g->status == RP_OK)
        g->status = status;
    return status;
}

bool grammar_burn(struct rp_grammar *g, uint64_t amount) {
    if (g->fuel < amount) {
        g->fuel = 0;
        grammar_fail(g, RP_STATUS_FULL);
        return false;
    }
    g->fuel -= amount;
    return true;
}

bool grammar_grow(struct rp_grammar *g, void *vec, size_t element, size_t more) {
    struct any_vec *v = vec;
    size_t capacity = v->capacity ? v->capacity : 32;
    while (capacity < v->count + more)
        capacity *= 2;
    size_t added = (capacity - v->capacity) * element;
    if (g->memory_bytes + added > g->memory_limit) {
        grammar_fail(g, RP_STATUS_FULL);
        return false;
    }
    void *at = rp_realloc(v->at, capacity * element);
    if (!at) {
        grammar_fail(g, RP_STATUS_NO_MEMORY);
        return false;
    }
    v->at = at;
    v->capacity = capacity;
    g->memory_bytes += added;
    return true;
}

static uint64_t node_hash(const struct node *n) {
    uint64_t h = (uint64_t)n->kind * 0x9E3779B97F4A7C15u;
    h = (h ^ n->a) * 0xFF51AFD7ED558CCDu;
    h = (h ^ h >> 29 ^ n->b) * 0xC4CEB9FE1A85EC53u;
    h = (h ^ h >> 31 ^ n->lo) * 0xFF51AFD7ED558CCDu;
    h = (h ^ h >> 29 ^ n->hi) * 0xC4CEB9FE1A85EC53u;
    return h ^ h >> 32;
}

static bool is_list(uint8_t kind) {
    return kind == RX_OR || kind == RX_AND || kind == G_OR || kind == G_STATE;
}

/* A text that is short enough to be compared each time that one is made. */
static bool is_text(const struct node *n) { return n->kind == G_LIT && n->b <= LITERAL_MAX; }

/* Lists hash and compare by their values, short texts by their bytes. `a` of a list that is looked
 * for is a pointer's offset: its values lie at the end of g->lists, not yet counted. */
static uint64_t any_hash(const struct rp_grammar *g, const struct node *n) {
    if (is_list(n->kind))
        return rp_hash64(g->lists.at + n->a, n->b * sizeof(uint32_t), n->kind);
    if (is_text(n))
        return rp_hash64(g->text.at + n->a, n->b, n->kind);
    return node_hash(n);
}

static bool same_node(const struct rp_grammar *g, const struct node *a, const struct node *b) {
    if (a->kind != b->kind || a->b != b->b)
        return false;
    if (is_list(a->kind))
        return memcmp(g->lists.at + a->a, g->lists.at + b->a, a->b * sizeof(uint32_t)) == 0;
    if (is_text(a))
        return memcmp(g->text.at + a->a, g->text.at + b->a, a->b) == 0;
    return a->a == b->a && a->lo == b->lo && a->hi == b->hi;
}

static bool table_double(struct rp_grammar *g) {
    size_t size = g->table.count * 2;
    if (g->memory_bytes + size * sizeof(uint32_t) > g->memory_limit) {
        grammar_fail(g, RP_STATUS_FULL);
        return false;
    }
    uint32_t *at = rp_calloc(size, sizeof *at);
    if (!at) {
        grammar_fail(g, RP_STATUS_NO_MEMORY);
        return false;
    }
    for (uint32_t id = 0; id < g->nodes.count; id++) {
        size_t i = any_hash(g, &g->nodes.at[id]) & (size - 1);
        while (at[i] != 0)
            i = (i + 1) & (size - 1);
        at[i] = id + 1;
    }
    g->memory_bytes += g->table.count * sizeof *at;
    rp_free(g->table.at);
    g->table.at = at;
    g->table.count = size;
    return true;
}

uint32_t grammar_intern(struct rp_grammar *g, struct node node) {
    if (g->status != RP_OK)
        return NODE_NONE;
    size_t mask = g->table.count - 1;
    size_t i = any_hash(g, &node) & mask;
    for (; g->table.at[i] != 0; i = (i + 1) & mask)
        if (same_node(g, &g->nodes.at[g->table.at[i] - 1], &node))
            return g->table.at[i] - 1;
    grammar_measure(g, &node);
    if (!grammar_burn(g, 1) || !VEC_PUSH(g, &g->nodes, node))
        return NODE_NONE;
    uint32_t id = (uint32_t)(g->nodes.count - 1);
    if (is_list(node.kind))
        g->lists.count = node.a + node.b;
    g->table.at[i] = id + 1;
    if (g->nodes.count * 2 > g->table.count && !table_double(g))
        return NODE_NONE;
    return id;
}

static int compare_ids(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

uint32_t grammar_intern_list(struct rp_grammar *g, enum node_kind kind, uint8_t flags,
                             uint32_t *values, size_t count) {
    if (g->status != RP_OK || !VEC_ROOM(g, &g->lists, count))
        return NODE_NONE;
    if (!grammar_burn(g, count / 16))
        return NODE_NONE;
    uint32_t *list = g->lists.at + g->lists.count;
    if (count > 1)
        qsort(values, count, sizeof *values, compare_ids);
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        if (used == 0 || list[used - 1] != values[i])
            list[used++] = values[i];
    return grammar_intern(g, (struct node){.kind = (uint8_t)kind,
                                           .flags = flags,
                                           .a = (uint32_t)g->lists.count,
                                           .b = (uint32_t)used});
}

static bool first_nodes(struct rp_grammar *g) {
    g->table.at = rp_calloc(TABLE_FIRST, sizeof *g->table.at);
    g->memo.at = rp_calloc(MEMO_FIRST, sizeof *g->memo.at);
    if (!g->table.at || !g->memo.at)
        return false;
    /* callers add offsets to these arrays also while they are empty */
    if (!VEC_ROOM(g, &g->work, 1) || !VEC_ROOM(g, &g->found, 1) || !VEC_ROOM(g, &g->lists, 1) ||
        !VEC_ROOM(g, &g->text, 1))
        return false;
    g->table.count = TABLE_FIRST;
    g->memo.count = MEMO_FIRST;
    grammar_intern(
        g, (struct node){.kind = RX_NONE, .flags = NODE_DEAD | NODE_LIVE_KNOWN | NODE_FINITE});
    grammar_intern(
        g, (struct node){.kind = RX_EPS,
                         .flags = NODE_NULLABLE | NODE_LIVE_KNOWN | NODE_LIVE | NODE_FINITE});
    grammar_intern(
        g, (struct node){.kind = RX_ALL, .flags = NODE_NULLABLE | NODE_LIVE_KNOWN | NODE_LIVE});
    struct charset_range any = {0, 0x10FFFF};
    charset_make(g, NULL, 0);
    charset_make(g, &any, 1);
    g->json_char = rx_chars(g, CHARSET_ANY, RX_JSON_EVERY);
    g->json_any = rx_rep(g, g->json_char, 0, REP_INF);
    return g->status == RP_OK;
}

struct rp_grammar *grammar_create(const struct rp_grammar_limits *limits) {
    struct rp_grammar *g = rp_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->spent_limit = UINT64_MAX;
    g->memory_limit = limits && limits->memory_bytes ? limits->memory_bytes : (size_t)32 << 20;
    g->fuel = limits && limits->fuel ? limits->fuel : 2000000;
    /* Sublists of these may be empty, and no pointer into them null. */
    if (!VEC_ROOM(g, &g->lists, 1) || !VEC_ROOM(g, &g->text, 1) || !VEC_ROOM(g, &g->ranges, 1) ||
        !VEC_ROOM(g, &g->work, 1) || !VEC_ROOM(g, &g->found, 1) || !first_nodes(g)) {
        rp_grammar_free(g);
        return NULL;
    }
    return g;
}

void rp_grammar_free(struct rp_grammar *g) {
    if (!g)
        return;
    for (size_t i = 0; i < g->rows.count; i++)
        rp_free(g->rows.at[i]);
    rp_free(g->rows.at);
    rp_free(g->nodes.at);
    rp_free(g->table.at);
    rp_free(g->lists.at);
    rp_free(g->text.at);
    rp_free(g->ranges.at);
    rp_free(g->sets.at);
    rp_free(g->rules.at);
    rp_free(g->free_texts.at);
    rp_free(g->free_patterns.at);
    rp_free(g->free_states.at);
    rp_free(g->work.at);
    rp_free(g->found.at);
    rp_free(g->memo.at);
    rp_free(g);
}

size_t rp_grammar_memory(const struct rp_grammar *g) { return g->memory_bytes; }
