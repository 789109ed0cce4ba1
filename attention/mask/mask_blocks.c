/* mask_blocks.c - expands the named blocks to their definitions. */
#include "attention/mask/mask_internal.h"

const struct rp_mask_block rp_mask_blocks[] = {
    {"causal", "causal", 0, 0, false},
    {"sliding_window", "sliding_window(256)", 1, 1, false},
    {"sink", "sink(4)", 1, 1, false},
    {"prefix_lm", "prefix_lm(64)", 1, 1, false},
    {"chunked", "chunked(64)", 1, 1, false},
    {"document", "document(100, 250)", 1, RP_MASK_PARAMS_MAX, false},
    {"dilated", "dilated(4)", 1, 1, false},
    {"alibi", "alibi", 0, 0, true},
    {"soft_cap", "soft_cap(50)", 1, 1, true},
};
const uint32_t rp_mask_block_count = RP_ARRAY_COUNT(rp_mask_blocks);

/* The draft under construction, and the column for error messages. */
struct out {
    struct rp_mask_draft *draft;
    uint32_t column;
};

static uint16_t node(struct out *o, enum rp_mask_op op, enum rp_mask_type type, uint16_t a,
                     uint16_t b) {
    uint16_t child[3] = {a, b, 0};
    if (a == RP_MASK_NONE || b == RP_MASK_NONE)
        return RP_MASK_NONE;
    return rp_mask_add_node(o->draft, op, type, o->column, child);
}

static uint16_t leaf(struct out *o, enum rp_mask_op op, enum rp_mask_type type) {
    return node(o, op, type, 0, 0);
}

static uint16_t zero(struct out *o) { return leaf(o, RP_MASK_OP_INT, RP_MASK_INT); }

/* Copies the tree below `root`, since a node has one parent. */
static uint16_t copy(struct out *o, uint16_t root) {
    if (root == RP_MASK_NONE)
        return RP_MASK_NONE;
    struct rp_mask_node from = o->draft->nodes[root];
    uint16_t child[3] = {0, 0, 0};
    for (uint32_t i = 0; i < rp_mask_ops[from.op].arity; i++) {
        child[i] = copy(o, from.child[i]);
        if (child[i] == RP_MASK_NONE)
            return RP_MASK_NONE;
    }
    uint16_t made = rp_mask_add_node(o->draft, (enum rp_mask_op)from.op,
                                     (enum rp_mask_type)from.type, from.column, child);
    if (made != RP_MASK_NONE)
        o->draft->nodes[made].value = from.value;
    return made;
}

static uint16_t compare(struct out *o, enum rp_mask_op op, uint16_t a, uint16_t b) {
    return node(o, op, RP_MASK_BOOL, a, b);
}

static uint16_t causal(struct out *o) {
    uint16_t kv = leaf(o, RP_MASK_OP_KV, RP_MASK_INT);
    return compare(o, RP_MASK_OP_LE, kv, leaf(o, RP_MASK_OP_Q, RP_MASK_INT));
}

static uint16_t sink(struct out *o, uint16_t n) {
    return compare(o, RP_MASK_OP_LT, leaf(o, RP_MASK_OP_KV, RP_MASK_INT), n);
}

static uint16_t distance(struct out *o) {
    uint16_t q = leaf(o, RP_MASK_OP_Q, RP_MASK_INT);
    return node(o, RP_MASK_OP_SUB, RP_MASK_INT, q, leaf(o, RP_MASK_OP_KV, RP_MASK_INT));
}

static uint16_t chunked(struct out *o, uint16_t n) {
    uint16_t q = leaf(o, RP_MASK_OP_Q, RP_MASK_INT);
    uint16_t a = node(o, RP_MASK_OP_DIV, RP_MASK_INT, q, n);
    uint16_t kv = leaf(o, RP_MASK_OP_KV, RP_MASK_INT);
    uint16_t b = node(o, RP_MASK_OP_DIV, RP_MASK_INT, kv, copy(o, n));
    return compare(o, RP_MASK_OP_EQ, a, b);
}

/* q and kv on the same side of each start. */
static uint16_t document(struct out *o, const struct rp_mask_block_args *args) {
    uint16_t all = RP_MASK_NONE;
    for (uint32_t i = 0; i < args->count; i++) {
        uint16_t q = leaf(o, RP_MASK_OP_Q, RP_MASK_INT);
        uint16_t a = compare(o, RP_MASK_OP_GE, q, args->node[i]);
        uint16_t kv = leaf(o, RP_MASK_OP_KV, RP_MASK_INT);
        uint16_t b = compare(o, RP_MASK_OP_GE, kv, copy(o, args->node[i]));
        uint16_t same = compare(o, RP_MASK_OP_EQ, a, b);
        all = i == 0 ? same : node(o, RP_MASK_OP_AND, RP_MASK_BOOL, all, same);
    }
    return all;
}

static uint16_t alibi(struct out *o) {
    uint16_t score = leaf(o, RP_MASK_OP_SCORE, RP_MASK_FLOAT);
    uint16_t h = leaf(o, RP_MASK_OP_H, RP_MASK_INT);
    uint16_t slope = node(o, RP_MASK_OP_SLOPE, RP_MASK_FLOAT, h, 0);
    uint16_t far = node(o, RP_MASK_OP_TO_FLOAT, RP_MASK_FLOAT, distance(o), 0);
    return node(o, RP_MASK_OP_SUB, RP_MASK_FLOAT, score,
                node(o, RP_MASK_OP_MUL, RP_MASK_FLOAT, slope, far));
}

static uint16_t soft_cap(struct out *o, uint16_t x) {
    uint16_t score = leaf(o, RP_MASK_OP_SCORE, RP_MASK_FLOAT);
    uint16_t share = node(o, RP_MASK_OP_DIV, RP_MASK_FLOAT, score, x);
    uint16_t bent = node(o, RP_MASK_OP_TANH, RP_MASK_FLOAT, share, 0);
    return node(o, RP_MASK_OP_MUL, RP_MASK_FLOAT, copy(o, x), bent);
}

uint16_t rp_mask_expand(struct rp_mask_draft *draft, const struct rp_mask_block *block,
                        const struct rp_mask_block_args *args) {
    struct out o = {draft, args->column};
    uint16_t n = args->count > 0 ? args->node[0] : RP_MASK_NONE;
    uint16_t a;
    switch (block - rp_mask_blocks) {
    case 0:
        return causal(&o);
    case 1:
        return compare(&o, RP_MASK_OP_LT, distance(&o), n);
    case 2:
        return sink(&o, n);
    case 3:
        a = causal(&o);
        return node(&o, RP_MASK_OP_OR, RP_MASK_BOOL, a, sink(&o, n));
    case 4:
        return chunked(&o, n);
    case 5:
        return document(&o, args);
    case 6:
        a = node(&o, RP_MASK_OP_MOD, RP_MASK_INT, distance(&o), n);
        return compare(&o, RP_MASK_OP_EQ, a, zero(&o));
    case 7:
        return alibi(&o);
    default:
        return soft_cap(&o, n);
    }
}
