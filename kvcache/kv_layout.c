#include "kvcache/kv_layout.h"

#include "base/checked.h"

/* Runs begin on cache lines, so that heads never share one. */
#define STRIDE_ALIGN RP_CACHE_LINE

bool rp_kv_layout_init(struct rp_kv_layout *layout, uint32_t layers, uint32_t kv_heads,
                       uint32_t head_dim, uint32_t page_tokens, enum rp_dtype dtype) {
    size_t run, planes;
    RP_ASSERT(page_tokens != 0 && (page_tokens & (page_tokens - 1)) == 0);
    RP_ASSERT(dtype == RP_DTYPE_F32 || dtype == RP_DTYPE_BF16 || rp_dtype_bytes(dtype) == 1);
    *layout = (struct rp_kv_layout){.layers = layers,
                                    .kv_heads = kv_heads,
                                    .head_dim = head_dim,
                                    .page_tokens = page_tokens,
                                    .dtype = dtype};
    if (rp_mul_overflow(page_tokens, head_dim, &run) ||
        rp_mul_overflow(run, rp_dtype_bytes(dtype), &run))
        return false;
    if (rp_dtype_bytes(dtype) == 1) {
        if (rp_align_overflow(run, sizeof(float), &run) || run > UINT32_MAX)
            return false;
        layout->scales_at = (uint32_t)run;
        if (rp_add_overflow(run, page_tokens * sizeof(float), &run))
            return false;
    }
    return !rp_align_overflow(run, STRIDE_ALIGN, &layout->head_stride) &&
           !rp_mul_overflow(layout->head_stride, kv_heads, &layout->plane_stride) &&
           !rp_mul_overflow(layers, 2, &planes) &&
           !rp_mul_overflow(layout->plane_stride, planes, &layout->page_stride);
}

bool rp_kv_layout_init_latent(struct rp_kv_layout *layout, uint32_t layers, uint32_t width,
                              uint32_t page_tokens, enum rp_dtype dtype) {
    if (!rp_kv_layout_init(layout, layers, 1, width, page_tokens, dtype))
        return false;
    layout->latent = true;
    layout->plane_stride /= 2; /* a multiple of 32 bytes; runs begin at even ones */
    layout->page_stride /= 2;
    return true;
}
