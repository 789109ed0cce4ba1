/* mask_classify.c - classifies a tile of pairs: by intervals, and where these cannot decide, by
 * evaluating the pairs. */
#include "attention/mask/mask_internal.h"

static struct rp_mask_range leaf_range(const struct rp_mask_node *node,
                                       const struct rp_mask_tile *tile, const int32_t *params) {
    switch (node->op) {
    case RP_MASK_OP_Q:
        return (struct rp_mask_range){tile->q_begin, tile->q_end - (int64_t)1};
    case RP_MASK_OP_KV:
        return (struct rp_mask_range){
            tile->kv_begin, RP_MAX(tile->kv_begin, tile->kv_end - (int64_t)1 -
                                                       RP_MASK_MUTATED(LAST_KEY_FORGOTTEN))};
    case RP_MASK_OP_H:
        return (struct rp_mask_range){tile->h_begin, tile->h_end - (int64_t)1};
    case RP_MASK_OP_LAYER:
        return (struct rp_mask_range){tile->layer, tile->layer};
    case RP_MASK_OP_PARAM:
        return (struct rp_mask_range){params[node->value.i], params[node->value.i]};
    default:
        return rp_mask_range_of(node, NULL, NULL, NULL);
    }
}

enum rp_mask_class rp_mask_classify_ranges(const struct rp_mask *mask,
                                           const struct rp_mask_tile *tile, const int32_t *params) {
    struct rp_mask_range stack[RP_MASK_STACK_MAX];
    uint32_t top = 0;
    for (uint32_t i = 0; i <= mask->roots[0]; i++) {
        const struct rp_mask_node *node = &mask->nodes[i];
        uint32_t arity = rp_mask_ops[node->op].arity;
        struct rp_mask_range *arg = stack + (top -= arity);
        stack[top++] = arity == 0 ? leaf_range(node, tile, params)
                                  : rp_mask_range_of(node, arg, arg + 1, arg + 2);
    }
    return stack[0].lo ? RP_MASK_FULL : stack[0].hi ? RP_MASK_PARTIAL : RP_MASK_SKIP;
}

/* Evaluates the pairs of one head, or of all heads when the conditions read h, until two differ. It
 * costs no more than the masking of a partial tile, which it may save. */
static enum rp_mask_class search(const struct rp_mask *mask, const struct rp_mask_tile *tile,
                                 const int32_t *params) {
    int32_t h_end = mask->reads_head ? tile->h_end : tile->h_begin + 1;
    bool any = false, all = true, seen[RP_MASK_KEYS_MAX];
    struct rp_mask_pair pair = {0, 0, 0, tile->layer};
    for (pair.q = tile->q_begin; pair.q < tile->q_end; pair.q++)
        for (pair.h = tile->h_begin; pair.h < h_end; pair.h++)
            for (pair.kv = tile->kv_begin; pair.kv < tile->kv_end; pair.kv += RP_MASK_KEYS_MAX) {
                uint32_t count = (uint32_t)RP_MIN(tile->kv_end - pair.kv, RP_MASK_KEYS_MAX);
                rp_mask_sees_keys(mask, &pair, params, count, seen);
                for (uint32_t k = 0; k < count; k++) {
                    any |= seen[k];
                    all &= seen[k];
                }
                if (any && !all)
                    return RP_MASK_PARTIAL;
            }
    return any ? RP_MASK_FULL : RP_MASK_SKIP;
}

static bool may_search(const struct rp_mask *mask, const struct rp_mask_tile *tile) {
    if (tile->q_begin < 0 || tile->kv_begin < 0 || tile->h_begin < 0)
        return false;
    if ((uint32_t)tile->q_end > mask->extent || (uint32_t)tile->kv_end > mask->extent ||
        (uint32_t)tile->h_end > mask->limits.heads)
        return false;
    uint64_t heads = mask->reads_head ? (uint64_t)(tile->h_end - tile->h_begin) : 1;
    uint64_t rows = (uint64_t)(tile->q_end - tile->q_begin);
    uint64_t keys = (uint64_t)(tile->kv_end - tile->kv_begin);
    return rows <= RP_MASK_SEARCH_MAX && keys <= RP_MASK_SEARCH_MAX &&
           heads <= RP_MASK_SEARCH_MAX && rows * keys * heads <= RP_MASK_SEARCH_MAX;
}

enum rp_mask_class rp_mask_classify(const struct rp_mask *mask, const struct rp_mask_tile *tile,
                                    const int32_t *params) {
    RP_ASSERT(tile->q_begin < tile->q_end && tile->kv_begin < tile->kv_end &&
              tile->h_begin < tile->h_end);
    enum rp_mask_class class = rp_mask_classify_ranges(mask, tile, params);
    if (class != RP_MASK_PARTIAL || !may_search(mask, tile))
        return class;
    return search(mask, tile, params);
}
