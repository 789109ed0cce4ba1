/* mask.c - construction of a program, and queries on it. */
#include "attention/mask/mask.h"

#include "attention/mask/mask_internal.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

const struct rp_mask_op_info rp_mask_ops[RP_MASK_OP_COUNT] = {
#define X(name, arity, text, precedence) {text, arity, precedence},
    RP_MASK_OP_MAP(X)
#undef X
};

uint16_t rp_mask_add_node(struct rp_mask_draft *draft, enum rp_mask_op op, enum rp_mask_type type,
                          uint32_t column, const uint16_t *child) {
    if (draft->node_count == RP_MASK_NODES_MAX)
        return RP_MASK_NONE;
    struct rp_mask_node *node = &draft->nodes[draft->node_count];
    *node =
        (struct rp_mask_node){.op = (uint8_t)op, .type = (uint8_t)type, .column = (uint16_t)column};
    for (uint32_t i = 0; i < rp_mask_ops[op].arity; i++)
        node->child[i] = child[i];
    return (uint16_t)draft->node_count++;
}

/* --- Construction ------------------------------------------------------------------------ */

/* The slopes of "Train Short, Test Long": for a power of two heads 2^(-8/n), its square, ...; other
 * counts use those of the next lower power, then every second one of the next higher. */
static void fill_slopes(float *slopes, uint32_t heads) {
    uint32_t power = 1;
    while (power * 2 <= heads)
        power *= 2;
    for (uint32_t h = 0; h < heads; h++) {
        double exponent =
            h < power ? -8.0 * (h + 1) / power : -8.0 * (2 * (h - power) + 1) / (2.0 * power);
        slopes[h] = (float)exp2(exponent);
    }
}

static void note_node(struct rp_mask *mask, const struct rp_mask_node *node, bool in_condition) {
    mask->reads_head |= in_condition && node->op == RP_MASK_OP_H;
    mask->reads_layer |= node->op == RP_MASK_OP_LAYER;
    mask->uses_slope |= node->op == RP_MASK_OP_SLOPE;
}

/* Everything but nodes, slopes and text, which lie after the struct. */
static void describe(const struct rp_mask_draft *draft, struct rp_mask *mask) {
    *mask = (struct rp_mask){.limits = draft->limits,
                             .extent = rp_mask_extent(&draft->limits),
                             .param_count = draft->param_count,
                             .rule_count = draft->rule_count,
                             .node_count = draft->node_count,
                             .nodes = draft->nodes};
    memcpy(mask->params, draft->params, sizeof mask->params);
    mask->roots[0] = draft->condition;
    memcpy(mask->roots + 1, draft->rules, sizeof draft->rules);
    for (uint32_t i = 0; i < mask->node_count; i++)
        note_node(mask, &mask->nodes[i], i <= draft->condition);
    mask->causal = rp_mask_prove_causal(mask);
}

static int refuse_text(const struct rp_buffer *text, struct rp_error *err) {
    if (text->failed && text->len < RP_MASK_TEXT_MAX / 2)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for a mask program");
    int status =
        rp_error_set(err, RP_STATUS_INVALID,
                     "column 1: the program written out has more than %d bytes", RP_MASK_TEXT_MAX);
    rp_error_hint(err, "named blocks count as what they stand for; shorter names help");
    return status;
}

int rp_mask_build(const struct rp_mask_draft *draft, struct rp_mask **out, struct rp_error *err) {
    struct rp_mask made;
    struct rp_buffer text;
    int status = RP_OK;
    describe(draft, &made);
    rp_buffer_init(&text, 2 * RP_MASK_TEXT_MAX);
    rp_mask_write_text(&made, &text);
    if (text.failed || text.len > RP_MASK_TEXT_MAX) {
        status = refuse_text(&text, err);
        rp_buffer_deinit(&text);
        return status;
    }
    size_t node_bytes = made.node_count * sizeof *made.nodes;
    size_t slope_bytes = made.uses_slope ? made.limits.heads * sizeof *made.slopes : 0;
    char *block = rp_alloc(sizeof made + node_bytes + slope_bytes + text.len + 1);
    if (block) {
        struct rp_mask_node *nodes = (void *)(block + sizeof made);
        float *slopes = (void *)(block + sizeof made + node_bytes);
        char *words = block + sizeof made + node_bytes + slope_bytes;
        memcpy(nodes, draft->nodes, node_bytes);
        if (slope_bytes)
            fill_slopes(slopes, made.limits.heads);
        memcpy(words, text.data, text.len);
        words[text.len] = '\0';
        made.nodes = nodes;
        made.slopes = slope_bytes ? slopes : NULL;
        made.text = words;
        memcpy(block, &made, sizeof made);
        *out = (void *)block;
    } else {
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for a mask program");
    }
    rp_buffer_deinit(&text);
    return status;
}

static int check_limits(const struct rp_mask_limits *limits, struct rp_error *err) {
    if (limits->length == 0 || limits->length > RP_MASK_LENGTH_MAX)
        return rp_error_set(err, RP_STATUS_INVALID, "mask: a length of %u is not in 1..%u",
                            limits->length, RP_MASK_LENGTH_MAX);
    if (limits->heads == 0 || limits->heads > 1u << 20 || limits->layers == 0 ||
        limits->layers > 1u << 20)
        return rp_error_set(err, RP_STATUS_INVALID, "mask: %u heads and %u layers, not 1..%u",
                            limits->heads, limits->layers, 1u << 20);
    return RP_OK;
}

/* Proved again after folding, which may have produced a zero divisor. */
static int finish(struct rp_mask_draft *draft, int64_t layer, struct rp_mask **out,
                  struct rp_error *err) {
    int status = rp_mask_fold(draft, layer, err);
    if (status == RP_OK && !rp_mask_prove(draft, err))
        status = RP_STATUS_INVALID;
    return status == RP_OK ? rp_mask_build(draft, out, err) : status;
}

int rp_mask_parse(const char *text, size_t bytes, const struct rp_mask_limits *limits,
                  struct rp_mask **out, struct rp_error *err) {
    *out = NULL;
    int status = check_limits(limits, err);
    if (status != RP_OK)
        return status;
    struct rp_mask_draft *draft = rp_calloc(1, sizeof *draft);
    if (!draft)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for a mask program");
    draft->limits = *limits;
    if (!rp_mask_read(text, bytes, draft, err) || !rp_mask_prove(draft, err))
        status = RP_STATUS_INVALID;
    if (status == RP_OK)
        status = finish(draft, -1, out, err);
    rp_free(draft);
    return status;
}

void rp_mask_free(struct rp_mask *mask) { rp_free(mask); }

int rp_mask_at_layer(const struct rp_mask *mask, uint32_t layer, struct rp_mask **out,
                     struct rp_error *err) {
    *out = NULL;
    RP_ASSERT_CMP(layer, <, mask->limits.layers);
    struct rp_mask_draft *draft = rp_calloc(1, sizeof *draft);
    if (!draft)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for a mask program");
    draft->limits = mask->limits;
    draft->param_count = mask->param_count;
    draft->rule_count = mask->rule_count;
    draft->node_count = mask->node_count;
    draft->condition = mask->roots[0];
    memcpy(draft->params, mask->params, sizeof draft->params);
    memcpy(draft->rules, mask->roots + 1, sizeof draft->rules);
    memcpy(draft->nodes, mask->nodes, mask->node_count * sizeof *mask->nodes);
    int status = finish(draft, layer, out, err);
    rp_free(draft);
    return status;
}

/* --- Queries ---------------------------------------------------------------------- */

const char *rp_mask_text(const struct rp_mask *mask) { return mask->text; }

uint32_t rp_mask_param_count(const struct rp_mask *mask) { return mask->param_count; }

const struct rp_mask_param *rp_mask_param(const struct rp_mask *mask, uint32_t index) {
    RP_ASSERT_CMP(index, <, mask->param_count);
    return &mask->params[index];
}

bool rp_mask_is_causal(const struct rp_mask *mask) { return mask->causal; }
bool rp_mask_has_score(const struct rp_mask *mask) { return mask->rule_count > 0; }
bool rp_mask_reads_head(const struct rp_mask *mask) { return mask->reads_head; }
bool rp_mask_reads_layer(const struct rp_mask *mask) { return mask->reads_layer; }

/* c * tanh(score / c) */
static bool is_soft_cap(const struct rp_mask *mask, float *cap) {
    const struct rp_mask_node *nodes = mask->nodes, *times = &nodes[mask->roots[1]];
    if (times->op != RP_MASK_OP_MUL)
        return false;
    const struct rp_mask_node *factor = &nodes[times->child[0]], *bent = &nodes[times->child[1]];
    if (factor->op != RP_MASK_OP_FLOAT || bent->op != RP_MASK_OP_TANH ||
        nodes[bent->child[0]].op != RP_MASK_OP_DIV)
        return false;
    const struct rp_mask_node *share = &nodes[bent->child[0]];
    const struct rp_mask_node *divisor = &nodes[share->child[1]];
    *cap = factor->value.f;
    return nodes[share->child[0]].op == RP_MASK_OP_SCORE && divisor->op == RP_MASK_OP_FLOAT &&
           divisor->value.f == *cap && *cap > 0.0f;
}

bool rp_mask_is_capped(const struct rp_mask *mask, float *cap) {
    return mask->rule_count == 1 && is_soft_cap(mask, cap);
}

bool rp_mask_is_plain(const struct rp_mask *mask, uint32_t *window, float *cap) {
    struct rp_mask_bound bounds[RP_MASK_BOUNDS_MAX];
    uint32_t count;
    bool causal = false;
    *window = 0;
    *cap = 0.0f;
    if (mask->rule_count > 1 || mask->reads_layer || !rp_mask_linear_bounds(mask, bounds, &count))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_mask_bound *b = &bounds[i];
        bool is_causal = b->a == -1 && b->b == 1 && b->c == 0; /* kv <= q */
        bool near = b->a == 1 && b->b == -1 && b->c <= 0;      /* q - kv < 1 - c */
        if (!is_causal && (!near || *window != 0 || b->c <= -RP_MASK_INT_MAX))
            return false;
        causal |= is_causal;
        if (near)
            *window = (uint32_t)(1 - b->c);
    }
    return causal && (mask->rule_count == 0 || is_soft_cap(mask, cap));
}
