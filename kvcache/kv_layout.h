/* kv_layout.h - where a token's K and V lie. The only header of this folder that kernels see.
 *
 *   address = base + page * page_stride + (layer * 2 + kv) * plane_stride + head * head_stride
 *             kv: 0 = K, 1 = V
 *
 *   page 0                                   page 1
 *   | L0 K: h0 h1 .. | L0 V: h0 h1 .. | L1 K | ... | L0 K | ...
 *           |
 *           a run: (page_tokens, head_dim) elements, contiguous, one (page, layer, kv, head)
 *
 *   8 bits:  | quantized values (page_tokens, head_dim) | scales (page_tokens) f32 |     value = q * scale
 *            a scale per token and head, since a page's tokens come one after the other (device/quantize_row.h)
 *
 * Latents (multi-head latent attention): a token has one row, which is K; V is a part of it and is
 * not stored. plane_stride is half of a layer's bytes, so that the formula holds with kv = 0.
 *
 * Layers lie inside the page, so the pool grows at its end and the number of pages is data, never a
 * constant of a captured graph. Page 0 is the padding page: padding rows read and write it, no
 * sequence owns it. Strides are bytes. */
#ifndef RP_KVCACHE_KV_LAYOUT_H
#define RP_KVCACHE_KV_LAYOUT_H

#include "device/program.h"

#define RP_KV_PADDING_PAGE 0u

struct rp_kv_layout {
    unsigned char *base;
    size_t page_stride;
    size_t plane_stride;
    size_t head_stride;
    uint32_t layers, kv_heads, head_dim;
    uint32_t page_tokens; /* a power of two: 16 on the CPU, 64 on CUDA */
    enum rp_dtype dtype;  /* F32, BF16, FP8_E4M3 or INT8 */
    uint32_t scales_at;   /* bytes from a run's begin to its scales; 0: it has none */
    bool latent;          /* one head, without V */
};

/* First byte of a run. */
static inline unsigned char *rp_kv_run(const struct rp_kv_layout *layout, uint32_t page,
                                       uint32_t layer, uint32_t kv, uint32_t head) {
    return layout->base + (size_t)page * layout->page_stride +
           ((size_t)layer * 2 + kv) * layout->plane_stride + (size_t)head * layout->head_stride;
}

/* The scale of a run's token, in 8-bit pages. */
static inline float rp_kv_scale(const struct rp_kv_layout *layout, const unsigned char *run,
                                uint32_t in_page) {
    return ((const float *)(const void *)(run + layout->scales_at))[in_page];
}
static inline void rp_kv_set_scale(const struct rp_kv_layout *layout, unsigned char *run,
                                   uint32_t in_page, float scale) {
    ((float *)(void *)(run + layout->scales_at))[in_page] = scale;
}

/* Bytes of one token's K or V of one head: what attention reads of it. */
static inline uint32_t rp_kv_token_bytes(enum rp_dtype dtype, uint32_t head_dim) {
    uint32_t element = rp_dtype_bytes(dtype);
    return head_dim * element + (element == 1 ? (uint32_t)sizeof(float) : 0);
}

/* Bytes of one token's K and V of one layer. */
static inline uint64_t rp_kv_layer_token_bytes(enum rp_dtype dtype, uint32_t kv_heads,
                                               uint32_t head_dim, bool latent) {
    return (latent ? 1ull : 2ull * kv_heads) * rp_kv_token_bytes(dtype, head_dim);
}

/* Fills the strides from the counts; every stride is a multiple of 64 bytes. False on overflow. */
bool rp_kv_layout_init(struct rp_kv_layout *layout, uint32_t layers, uint32_t kv_heads,
                       uint32_t head_dim, uint32_t page_tokens, enum rp_dtype dtype);
/* The same for latents of so many values. */
bool rp_kv_layout_init_latent(struct rp_kv_layout *layout, uint32_t layers, uint32_t width,
                              uint32_t page_tokens, enum rp_dtype dtype);

#endif
