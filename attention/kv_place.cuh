/* kv_place.cuh - where kernels store a token's K, V or latent. */
#ifndef RP_ATTENTION_KV_PLACE_CUH
#define RP_ATTENTION_KV_PLACE_CUH

#include "device/cuda_kernel.cuh"
#include "kvcache/kv_layout.h"

/* Destination of K or V of one live token and head, or NULL when the token is dead. */
struct kv_place {
    unsigned char *run;
    size_t at; /* elements into the run */
    uint32_t in_page;
};

/* Stores the scale of a token's quantized row; by one thread. */
static __device__ __forceinline__ void store_scale(const rp_kv_layout &kv, const kv_place &place,
                                                   float scale) {
    ((float *)(place.run + kv.scales_at))[place.in_page] = scale;
}

static __device__ __forceinline__ kv_place kv_find(const rp_step_view &step, const rp_kv_layout &kv,
                                                   uint32_t index, uint32_t position,
                                                   uint32_t layer, uint32_t table, uint32_t plane,
                                                   uint32_t head) {
    kv_place place = {NULL, 0, 0};
    if (index == RP_ROW_NONE)
        return place;
    const rp_live_row *row = &step.rows[index];
    const uint32_t *slot = step.slots + (size_t)row->slot * step.slot_words;
    uint32_t page = slot[RP_SLOT_PAGES + table + position / kv.page_tokens];
    if (row->flags == 0 && slot[RP_SLOT_FINISHED] != 0)
        return place;
    place.run = kv.base + (size_t)page * kv.page_stride +
                ((size_t)layer * 2 + plane) * kv.plane_stride + (size_t)head * kv.head_stride;
    place.in_page = position % kv.page_tokens;
    place.at = (size_t)place.in_page * kv.head_dim;
    return place;
}

#endif
