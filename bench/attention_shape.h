/* attention_shape.h - an attention shape, the work that its mask leaves, and its JSON.
 * Thread: any. */
#ifndef RP_BENCH_ATTENTION_SHAPE_H
#define RP_BENCH_ATTENTION_SHAPE_H

#include "base/json_writer.h"
#include "base/limits.h"

struct rp_mask; /* attention/mask/mask.h */

struct rp_attention_shape {
    bool prompt;     /* prefill; else decode */
    uint32_t batch;  /* number of sequences */
    uint32_t length; /* tokens per sequence, including the query's */
    uint32_t heads, kv_heads, head_dim;
    uint32_t page_tokens; /* 0: the device's default */
    float scale;          /* scale applied to q.k before masking; 0: head_dim^-1/2 */
    uint32_t window;      /* as in struct rp_op; unused with a mask */
    float soft_cap;
    /* mask of one layer, with its default parameters; NULL: causal with window and cap. Borrowed */
    const struct rp_mask *mask;
};

struct rp_attention_seen {
    double pairs; /* unmasked (query, query head, key) triples, all sequences */
    double keys;  /* (KV head, key) pairs that some query attends to, all sequences */
};

struct rp_attention_seen rp_attention_count_seen(const struct rp_attention_shape *shape);

/* The mask's parameters, padded with zeros. */
void rp_attention_shape_params(const struct rp_attention_shape *shape,
                               int32_t out[RP_MASK_PARAMS_MAX]);

#define RP_ATTENTION_MASK_TEXT_MAX 96

/* The shape's mask as a program (attention/mask/mask.h); a window or cap is written as one into
 * `buffer`. */
const char *rp_attention_shape_mask(const struct rp_attention_shape *shape,
                                    char buffer[RP_ATTENTION_MASK_TEXT_MAX]);

/* Writes its fields into an open object: kind, batch, length, heads, ..., mask. */
void rp_attention_shape_json(const struct rp_attention_shape *shape, struct rp_json *json);

#endif
