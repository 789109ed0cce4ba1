#include "bench/attention_shape.h"

#include <stdio.h>

struct rp_attention_seen rp_attention_count_seen(const struct rp_attention_shape *shape) {
    double length = shape->length;
    double window = shape->window ? RP_MIN(shape->window, shape->length) : length;
    double pairs = window, keys = window;
    if (shape->prompt) {
        keys = length;
        pairs = window * (window + 1) / 2 + (length - window) * window;
    }
    return (struct rp_attention_seen){.pairs = pairs * shape->batch * shape->heads,
                                      .keys = keys * shape->batch * shape->kv_heads};
}

const char *rp_attention_shape_mask(const struct rp_attention_shape *shape,
                                    char buffer[RP_ATTENTION_MASK_TEXT_MAX]) {
    char window[32] = "", cap[48] = "";
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
