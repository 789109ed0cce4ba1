/* The units of a vocabulary as a double array (tokenizer_units.h), built once: nodes with several
 * children look for a base in the last few blocks of 256 slots, those with one take the next free
 * slot. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#define BLOCK     256u
#define FULL      16u                 /* free slots with which a block is as good as full */
#define OPEN_MAX  8u                  /* blocks after the last one in which a base is looked for */
#define NODES_MAX ((uint32_t)1 << 23) /* a base has 23 bits */

/* Units that share their first `depth` bytes, and the node where these end. */
struct range {
    uint32_t begin, end, depth, node;
    int32_t shorter;
};

struct builder {
    struct rp_tokenizer *tok;
    struct rp_tok_node *nodes;
    uint64_t *free_slots; /* bits */
    uint8_t *base_taken;  /* by slot */
    uint32_t count, capacity;
    uint32_t open;        /* blocks below are not searched */
    int32_t *ids, *spare; /* the units, sorted as far as needed */
    struct range *ranges;
    struct rp_buffer tails;
};

static bool add_block(struct builder *b) {
    if (b->count + BLOCK > NODES_MAX)
        return false;
    if (b->count + BLOCK > b->capacity) {
        uint32_t capacity = RP_MAX(b->capacity * 2, 64 * BLOCK);
        struct rp_tok_node *nodes = rp_realloc(b->nodes, capacity * sizeof *nodes);
        if (nodes)
            b->nodes = nodes;
        uint64_t *free_slots = rp_realloc(b->free_slots, capacity / 8);
        if (free_slots)
            b->free_slots = free_slots;
        uint8_t *taken = rp_realloc(b->base_taken, capacity);
        if (taken)
            b->base_taken = taken;
        if (!nodes || !free_slots || !taken)
            return false;
        b->capacity = capacity;
    }
    for (uint32_t i = b->count; i < b->count + BLOCK; i++)
        b->nodes[i] = (struct rp_tok_node){.link = RP_TOK_NODE_FREE, .unit = -1};
    memset(b->free_slots + b->count / 64, 0xFF, BLOCK / 8);
    memset(b->base_taken + b->count, 0, BLOCK);
    b->count += BLOCK;
    return true;
}

static bool is_free(const struct builder *b, uint32_t slot) {
    return b->free_slots[slot / 64] >> (slot % 64) & 1;
}

static void take(struct builder *b, uint32_t slot, uint32_t link) {
    b->free_slots[slot / 64] &= ~((uint64_t)1 << (slot % 64));
    b->nodes[slot].link = link;
}

static bool fits(const struct builder *b, uint32_t base, const uint8_t *bytes, uint32_t count) {
    if (b->base_taken[base])
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!is_free(b, base ^ bytes[i]))
            return false;
    return true;
}

static uint32_t count_free(const struct builder *b, uint32_t block) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < BLOCK / 64; i++)
        sum += (uint32_t)__builtin_popcountll(b->free_slots[block / 64 + i]);
    return sum;
}

/* A base whose slots for these bytes are free; 0: no room. */
static uint32_t find_base(struct builder *b, const uint8_t *bytes, uint32_t count) {
    while (b->open < b->count &&
           (b->count - b->open > OPEN_MAX * BLOCK || count_free(b, b->open) < FULL))
        b->open += BLOCK;
    for (uint32_t word = b->open / 64; word < b->count / 64; word++) {
        for (uint64_t bits = b->free_slots[word]; bits; bits &= bits - 1) {
            uint32_t base = (word * 64 + (uint32_t)__builtin_ctzll(bits)) ^ bytes[0];
            if (fits(b, base, bytes, count))
                return base;
        }
    }
    uint32_t slot = b->count;
    return add_block(b) ? slot ^ bytes[0] : 0;
}

static unsigned char byte_at(const struct builder *b, int32_t id, uint32_t depth) {
    return (unsigned char)rp_tok_ptr(b->tok, b->tok->entries[id].piece)[depth];
}

/* Sorts a range by its next byte; bytes with units into `bytes`, where each begins into starts (one
 * more). */
static uint32_t partition(struct builder *b, const struct range *range, uint8_t bytes[BLOCK],
                          uint32_t starts[BLOCK + 1]) {
    uint32_t counts[BLOCK] = {0}, at[BLOCK], used = 0, sum = range->begin;
    for (uint32_t i = range->begin; i < range->end; i++)
        counts[byte_at(b, b->ids[i], range->depth)]++;
    for (uint32_t byte = 0; byte < BLOCK; byte++) {
        at[byte] = sum;
        if (counts[byte]) {
            bytes[used] = (uint8_t)byte;
            starts[used++] = sum;
        }
        sum += counts[byte];
    }
    starts[used] = sum;
    for (uint32_t i = range->begin; i < range->end; i++)
        b->spare[at[byte_at(b, b->ids[i], range->depth)]++] = b->ids[i];
    memcpy(b->ids + range->begin, b->spare + range->begin,
           (range->end - range->begin) * sizeof *b->ids);
    return used;
}

/* The only unit of a range, after the node; false where it does not fit. */
static bool add_tail(struct builder *b, const struct range *range) {
    int32_t id = b->ids[range->begin];
    size_t len = b->tok->units.all[id].len - range->depth;
    size_t at = b->tails.len;
    if (len > UINT8_MAX || at >= NODES_MAX)
        return false;
    uint8_t size = (uint8_t)len;
    rp_buffer_append(&b->tails, &size, 1);
    rp_buffer_append(&b->tails, rp_tok_ptr(b->tok, b->tok->entries[id].piece) + range->depth, len);
    b->tok->units.all[id].shorter = range->shorter;
    b->nodes[range->node].unit = -2 - id;
    b->nodes[range->node].link = (uint32_t)at << 9 | (b->nodes[range->node].link & 511);
    return true;
}

/* The children of a node; each with its units goes onto the stack. */
static bool add_children(struct builder *b, struct range range, uint32_t *stack) {
    uint8_t bytes[BLOCK];
    uint32_t starts[BLOCK + 1];
    struct rp_tok_unit *all = b->tok->units.all;
    for (uint32_t i = range.begin; i < range.end; i++) {
        int32_t id = b->ids[i];
        if (all[id].len != range.depth)
            continue;
        all[id].shorter = range.shorter;
        b->nodes[range.node].unit = range.shorter = id;
        b->ids[i] = b->ids[range.begin];
        range.begin++; /* pieces are unique: no other ends here */
        break;
    }
    if (range.begin == range.end)
        return true;
    if (range.end - range.begin == 1 && b->nodes[range.node].unit < 0 && add_tail(b, &range))
        return true;
    uint32_t used = range.end - range.begin == 1 ? 1 : partition(b, &range, bytes, starts);
    if (range.end - range.begin == 1) {
        bytes[0] = byte_at(b, b->ids[range.begin], range.depth);
        starts[0] = range.begin;
        starts[1] = range.end;
    }
    uint32_t base = find_base(b, bytes, used);
    if (!base)
        return false;
    b->base_taken[base] = 1;
    b->nodes[range.node].link = base << 9 | (b->nodes[range.node].link & 511);
    for (uint32_t i = 0; i < used; i++) {
        take(b, base ^ bytes[i], bytes[i]);
        b->ranges[(*stack)++] = (struct range){.begin = starts[i],
                                               .end = starts[i + 1],
                                               .depth = range.depth + 1,
                                               .node = base ^ bytes[i],
                                               .shorter = range.shorter};
    }
    return true;
}

static bool build(struct builder *b, uint32_t unit_count) {
    uint32_t stack = 0;
    if (!b->ids || !b->spare || !b->ranges || !add_block(b) || !add_block(b))
        return false;
    for (uint32_t id = 0, i = 0; id < b->tok->id_limit; id++)
        if (b->tok->units.all[id].len)
            b->ids[i++] = (int32_t)id;
    b->open = BLOCK;
    take(b, RP_TOK_NODE_ROOT, RP_TOK_NODE_FREE + 1); /* not a child of any node */
    b->ranges[stack++] = (struct range){.end = unit_count, .node = RP_TOK_NODE_ROOT, .shorter = -1};
    while (stack)
        if (!add_children(b, b->ranges[--stack], &stack))
            return false;
    return true;
}

int rp_tok_nodes_build(struct rp_tok_load *load) {
    struct rp_tokenizer *tok = load->tok;
    uint32_t units = 0;
    for (uint32_t id = 0; id < tok->id_limit; id++)
        units += tok->units.all[id].len > 0;
    struct builder b = {.tok = tok};
    b.ids = rp_calloc(units + 1u, sizeof *b.ids);
    b.spare = rp_calloc(units + 1u, sizeof *b.spare);
    b.ranges = rp_calloc(units + 1u, sizeof *b.ranges);
    rp_buffer_init(&b.tails, 0);
    rp_buffer_append(&b.tails, "", 1); /* so that there is one */
    bool built = build(&b, units) && !b.tails.failed;
    if (built) {
        tok->units.nodes = rp_arena_calloc(&tok->arena, b.count, sizeof *b.nodes);
        tok->units.tails = rp_arena_alloc(&tok->arena, b.tails.len);
        built = tok->units.nodes && tok->units.tails;
    }
    if (built) {
        memcpy(tok->units.nodes, b.nodes, b.count * sizeof *b.nodes);
        memcpy(tok->units.tails, b.tails.data, b.tails.len);
    }
    bool too_many = b.count + BLOCK > NODES_MAX;
    rp_free(b.nodes);
    rp_free(b.free_slots);
    rp_free(b.base_taken);
    rp_free(b.ids);
    rp_free(b.spare);
    rp_free(b.ranges);
    rp_buffer_deinit(&b.tails);
    if (!built && too_many) {
        tok->units.all = NULL; /* merges, then */
        return RP_OK;
    }
    return built ? RP_OK : rp_tok_no_memory(load);
}
