/* attention_shape.h - a shape of attention, how much of it the mask lets be seen, and how it is
 * written down.
 * Thread: any. */
#ifndef RP_BENCH_ATTENTION_SHAPE_H
#define RP_BENCH_ATTENTION_SHAPE_H

#include "base/json_writer.h"
#include "base/limits.h"

struct rp_mask; /* attention/mask/mask.h */

struct rp_attention_shape {
    bool prompt;     /* else decode */
    uint32_t batch;  /* sequences */
    uint32_t length; /* of each, its query's token included */
    uint32_t heads, kv_heads, head_dim;
    uint32_t page_tokens; /* 0: the device's */
    float scale;          /* of q . k; 0: head_dim^-1/2 */
    uint32_t window;      /* as in struct rp_op; not read with a mask */
    float soft_cap;
    /* of one layer, with its parameters' own values; NULL: causal, window and cap. Borrowed */
    const struct rp_mask *mask;
};

struct rp_attention_seen {
    double pairs; /* (query, query head, key) that meet, of all sequences */
    double keys;  /* (KV head, key) that some query sees, of all sequences */
};

struct rp_attention_seen rp_attention_count_seen(const struct rp_attention_shape *shape);

/* The mask's parameters, zeros behind them. */
void rp_attention_shape_params(const struct rp_attention_shape *shape,
                               int32_t out[RP_MASK_PARAMS_MAX]);

#define RP_ATTENTION_MASK_TEXT_MAX 96

/* The shape's mask as a program (attention/mask/mask.h): of one that is no program, made in
 * `buffer`. */
const char *rp_attention_shape_mask(const struct rp_attention_shape *shape,
                                    char buffer[RP_ATTENTION_MASK_TEXT_MAX]);

/* Its fields, into an open object: kind, batch, length, heads, ..., mask. */
void rp_attention_shape_json(const struct rp_attention_shape *shape, struct rp_json *json);

#endif
