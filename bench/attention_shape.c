#include "bench/attention_shape.h"

#include "attention/mask/mask.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

void rp_attention_shape_params(const struct rp_attention_shape *shape,
                               int32_t out[RP_MASK_PARAMS_MAX]) {
    uint32_t count = shape->mask ? rp_mask_param_count(shape->mask) : 0;
    for (uint32_t i = 0; i < RP_MASK_PARAMS_MAX; i++)
        out[i] = i < count ? rp_mask_param(shape->mask, i)->value : 0;
}

/* ---- unmasked pairs and keys ---------------------------------------------------------------- */

#define TILE 64u

/* Counts for one query head, or for all of them when the mask does not depend on the head. */
struct counting {
    const struct rp_attention_shape *shape;
    const int32_t *params;
    int32_t head;
    double pairs;
    bool *keys; /* (length): attended to by some query */
};

static void count_tile(struct counting *counting, const struct rp_mask_tile *tile) {
    const struct rp_mask *mask = counting->shape->mask;
    enum rp_mask_class class = rp_mask_classify(mask, tile, counting->params);
    uint32_t count = (uint32_t)(tile->kv_end - tile->kv_begin);
    bool seen[TILE];
    if (class == RP_MASK_SKIP)
        return;
    for (int32_t q = tile->q_begin; q < tile->q_end; q++) {
        struct rp_mask_pair pair = {.q = q, .kv = tile->kv_begin, .h = counting->head};
        if (class == RP_MASK_FULL)
            memset(seen, 1, sizeof seen);
        else
            rp_mask_sees_keys(mask, &pair, counting->params, count, seen);
        for (uint32_t i = 0; i < count; i++) {
            counting->pairs += seen[i];
            counting->keys[tile->kv_begin + (int32_t)i] |= seen[i];
        }
    }
}

static void count_head(struct counting *counting) {
    const struct rp_attention_shape *shape = counting->shape;
    int32_t length = (int32_t)shape->length, first = shape->prompt ? 0 : length - 1;
    for (int32_t q = first; q < length; q += TILE)
        for (int32_t kv = 0; kv < length; kv += TILE) {
            struct rp_mask_tile tile = {.q_begin = q,
                                        .q_end = RP_MIN(q + (int32_t)TILE, length),
                                        .kv_begin = kv,
                                        .kv_end = RP_MIN(kv + (int32_t)TILE, length),
                                        .h_begin = counting->head,
                                        .h_end = counting->head + 1};
            count_tile(counting, &tile);
        }
}

static bool count_program(const struct rp_attention_shape *shape, struct rp_attention_seen *out) {
    int32_t params[RP_MASK_PARAMS_MAX];
    bool reads_head = rp_mask_reads_head(shape->mask);
    uint32_t group = shape->heads / shape->kv_heads, kv_heads = reads_head ? shape->kv_heads : 1;
    bool *keys = rp_alloc(shape->length);
    double pairs = 0, seen = 0;
    if (!keys)
        return false;
    rp_attention_shape_params(shape, params);
    for (uint32_t kv_head = 0; kv_head < kv_heads; kv_head++) {
        memset(keys, 0, shape->length);
        for (uint32_t g = 0; g < (reads_head ? group : 1); g++) {
            struct counting counting = {shape, params, (int32_t)(kv_head * group + g), 0, keys};
            count_head(&counting);
            pairs += counting.pairs;
        }
        for (uint32_t i = 0; i < shape->length; i++)
            seen += keys[i];
    }
    out->pairs = pairs * (reads_head ? 1 : shape->heads) * shape->batch;
    out->keys = seen * (reads_head ? 1 : shape->kv_heads) * shape->batch;
    rp_free(keys);
    return true;
}

struct rp_attention_seen rp_attention_count_seen(const struct rp_attention_shape *shape) {
    struct rp_attention_seen seen = {0, 0};
    if (shape->mask) {
        (void)count_program(shape, &seen); /* out of memory: the counts stay unknown */
        return seen;
    }
    double length = shape->length;
    double window = shape->window ? RP_MIN(shape->window, shape->length) : length;
    double pairs = window, keys = window;
    if (shape->prompt) {
        keys = length;
        pairs = window * (window + 1) / 2 + (length - window) * window;
    }
    seen.pairs = pairs * shape->batch * shape->heads;
    seen.keys = keys * shape->batch * shape->kv_heads;
    return seen;
}

/* ---- output --------------------------------------------------------------------------------- */

const char *rp_attention_shape_mask(const struct rp_attention_shape *shape,
                                    char buffer[RP_ATTENTION_MASK_TEXT_MAX]) {
    char window[32] = "", cap[48] = "";
    if (shape->mask)
        return rp_mask_text(shape->mask);
    if (shape->window)
        snprintf(window, sizeof window, " && sliding_window(%u)", shape->window);
    if (shape->soft_cap > 0)
        snprintf(cap, sizeof cap, "; soft_cap(%g)", (double)shape->soft_cap);
    snprintf(buffer, RP_ATTENTION_MASK_TEXT_MAX, "causal%s%s", window, cap);
    return buffer;
}

void rp_attention_shape_json(const struct rp_attention_shape *shape, struct rp_json *json) {
    char mask[RP_ATTENTION_MASK_TEXT_MAX];
    rp_json_string(json, "kind", shape->prompt ? "prefill" : "decode");
    rp_json_uint(json, "batch", shape->batch);
    rp_json_uint(json, "length", shape->length);
    rp_json_uint(json, "heads", shape->heads);
    rp_json_uint(json, "kv_heads", shape->kv_heads);
    rp_json_uint(json, "head_dim", shape->head_dim);
    rp_json_uint(json, "page_tokens", shape->page_tokens);
    rp_json_double(json, "scale", (double)shape->scale);
    rp_json_string(json, "mask", rp_attention_shape_mask(shape, mask));
}
