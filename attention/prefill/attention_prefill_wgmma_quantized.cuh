/* attention_prefill_wgmma_quantized.cuh - prompt rows on Hopper over 8-bit pages: conversion of
 * quantized values to the bf16 that the matmuls read.
 *
 * A dedicated warpgroup copies quantized values into shared memory and writes them to the stages in
 * the layout in which bulk copies would have written bf16. Each thread converts the chunks that it
 * copied, so that its warps wait only for the matmuls; halves of a plane rotate through three
 * buffers, two of which are in flight while the third is converted:
 *
 *   copied ahead    K high, V low | V high  | K low of the next block | K high  | V low ...
 *   converted       K low         | K high  | V low                   | V high  | K low of the next block ...
 *
 * Scales stay outside (attention_quantized_cuda.cuh): those of keys that no row of the tile sees
 * are zero, so that their quantized values, which may be garbage, contribute nothing. Keys that do
 * not exist are zero-filled. */
#ifndef RP_ATTENTION_ATTENTION_PREFILL_WGMMA_QUANTIZED_CUH
#define RP_ATTENTION_ATTENTION_PREFILL_WGMMA_QUANTIZED_CUH

#include "attention/prefill/attention_prefill_wgmma_feed.cuh"

/* Where the scales of the block at this place of K's ring are: K's, then V's. */
template <int D, rp_dtype Page>
static __device__ __forceinline__ uint32_t scales_at(const addresses &from, const turn &ring) {
    return from.scales + (ring.parity * STAGES + ring.stage) * teams<D, Page>::scale_bytes;
}

/* Zeros, and no access to memory, unless `valid`. */
static __device__ __forceinline__ void copy_quantized(uint32_t to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void commit_quantized() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for the oldest half plane; two more stay in flight. */
static __device__ __forceinline__ void wait_for_quantized() {
    static_assert(HALVES == 3, "");
    asm volatile("cp.async.wait_group 2;" ::: "memory");
}

/* Iterates over the key blocks of all tiles of this thread block, back to back. */
template <int D, typename Mask> struct block_source {
    claimed_tile work;
    block_walk<D, Mask> walk;
    uint32_t count = 0; /* of tiles entered */
    bool may_claim;     /* arrival not signaled yet */

    /* Enters the next tile. False: not claimed yet (unless `waits`, which blocks), or there is
     * none: then it has no tokens. */
    __device__ __forceinline__ bool enter(const wgmma_args &args, control *shared, bool waits) {
        const uint32_t full = at(&shared->tile_full[count % TILES]);
        if (waits)
            barrier_wait(full, count / TILES & 1);
        else if (!__all_sync(0xFFFFFFFFu, barrier_test(full, count / TILES & 1)))
            return false;
        work = shared->tiles[count++ % TILES];
        if (work.tile.tokens == 0)
            return false;
        may_claim = true;
        walk.begin(args.call, work.tile);
        return walk.next(args.call);
    }
    /* Advances to the next block. */
    __device__ __forceinline__ bool next(const wgmma_args &args, control *shared) {
        return walk.next(args.call) || enter(args, shared, false);
    }
};

/* One converting thread's share of a block of keys: consecutive whole rows of quantized values. */
template <int D, typename Mask, rp_dtype Page> struct quantized_block {
    static constexpr uint32_t keys = shape<D>::keys, chunks = D / 16, rows = CONVERTING / chunks;
    static constexpr uint32_t copies = keys / rows, half = copies / 2; /* of a thread and plane */
    static constexpr uint32_t run = 32 / chunks; /* rows of a warp's copy, of one page */
    static constexpr uint32_t scales = 2 * keys / CONVERTING; /* of a thread */
    static_assert(half * HALVES * CONVERTING * 16 == teams<D, Page>::quantized_bytes,
                  "room for halves");
    const rp_attention_args &args;
    const unsigned char *base; /* K's plane, page 0, the KV head */
    /* place: shared memory address of the thread's first chunk of the half that is converted
     * next */
    uint32_t thread, place;
    uint32_t first; /* the first of the three */
    /* of the copy with the lane's number; bits of the warp's copies whose keys exist */
    uint32_t page, wanted;
    uint32_t key;
    float scale[scales];

    __device__ __forceinline__ quantized_block(const rp_attention_args &args, uint32_t quantized)
        : args(args) {
        thread = threadIdx.x % CONVERTING;
        first = place = quantized + thread * 16;
    }
    static __device__ __forceinline__ uint32_t after(uint32_t place, uint32_t first) {
        constexpr uint32_t bytes = half * CONVERTING * 16;
        return place == first + (HALVES - 1) * bytes ? first : place + bytes;
    }
    /* Finds the pages of the source's block, and loads its scales. */
    __device__ __forceinline__ void look_up(const block_source<D, Mask> &source, uint32_t group) {
        const rp_kv_layout &kv = args.kv;
        const prefill_tile &tile = source.work.tile;
        const uint32_t shift = 31 - __clz(kv.page_tokens);
        base = kv.base + (size_t)args.layer * 2 * kv.plane_stride +
               (size_t)source.work.kv_head * kv.head_stride;
        key = source.walk.key();
        uint32_t position = key + threadIdx.x % copies * rows + thread / 32 * run;
        const bool is_wanted = source.walk.is_needed(source.work, position, run, group);
        page = is_wanted ? tile.pages[position >> shift] : 0;
        wanted = __ballot_sync(0xFFFFFFFFu, is_wanted);
        position = key + thread % keys;
        bool is_seen = position >= tile.first_key && position < tile.key_end;
        if constexpr (Mask::is_program) {
            if (is_seen && source.walk.is_partial())
                is_seen =
                    Mask::any_sees(tile.position, tile.tokens, position,
                                   source.work.kv_head * group, group, source.walk.params.value);
        }
        const unsigned char *from = base + kv.scales_at + (position & (kv.page_tokens - 1)) * 4;
        if (is_seen)
            from += (size_t)tile.pages[position >> shift] * kv.page_stride;
#pragma unroll
        for (uint32_t i = 0; i < scales; i++) {
            const uint32_t plane = (thread + i * CONVERTING) / keys;
            scale[i] = is_seen ? __ldcg((const float *)(from + plane * kv.plane_stride)) : 0.0f;
        }
    }
    /* Prefetches half a plane of the block that was looked up last. */
    template <uint32_t Plane, uint32_t Half>
    __device__ __forceinline__ void prefetch(uint32_t to) const {
        const rp_kv_layout &kv = args.kv;
        const unsigned char *from = base + Plane * kv.plane_stride + thread % chunks * 16;
#pragma unroll
        for (uint32_t i = 0; i < half; i++) {
            const uint32_t index = Half * half + i;
            const uint32_t row = key + index * rows + thread / chunks;
            const size_t its_page = __shfl_sync(0xFFFFFFFFu, page, index);
            copy_quantized(to + i * CONVERTING * 16,
                           from + its_page * kv.page_stride + (row & (kv.page_tokens - 1)) * D,
                           wanted >> index & 1);
        }
    }
    /* Converts the oldest half to bf16 in a stage. Lanes of odd column parts begin with their
     * second eight columns: no bank conflicts. */
    template <uint32_t Half> __device__ __forceinline__ void convert(uint32_t to) const {
        const uint32_t chunk = thread % chunks, part = chunk / 4, turned = part & 1;
        to += part * shape<D>::part_bytes;
        wait_for_quantized();
#pragma unroll
        for (uint32_t i = 0; i < half; i++) {
            const uint32_t row = (Half * half + i) * rows + thread / chunks;
            uint4 x;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                         : "r"(place + i * CONVERTING * 16)
                         : "memory");
            const uint32_t words[4] = {turned ? x.z : x.x, turned ? x.w : x.y, turned ? x.x : x.z,
                                       turned ? x.y : x.w};
#pragma unroll
            for (uint32_t eight = 0; eight < 2; eight++) {
                uint32_t out[4];
#pragma unroll
                for (uint32_t w = 0; w < 2; w++) /* bytes 0, 2, 1, 3: makes pairs neighbors */
                    quantized_to_bf16<Page>(__byte_perm(words[eight * 2 + w], 0, 0x3120),
                                            out[w * 2], out[w * 2 + 1]);
                const uint32_t column = (chunk % 4 * 2 + (eight ^ turned)) ^ row % 8;
                asm volatile(
                    "st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + row * 128 + column * 16),
                    "r"(out[0]), "r"(out[1]), "r"(out[2]), "r"(out[3])
                    : "memory");
            }
        }
    }
    /* Issues the copy of the next half into the slot that was converted last. */
    template <uint32_t Plane, uint32_t Half> __device__ __forceinline__ void follow(bool has_next) {
        if (has_next)
            prefetch<Plane, Half>(place);
        commit_quantized();
        place = after(place, first);
    }
    /* Prefetches the first three halves, when none is in flight. */
    __device__ __forceinline__ void prefetch_first() {
        follow<0, 0>(true);
        follow<0, 1>(true);
        follow<1, 0>(true);
    }
    __device__ __forceinline__ void store_scales(uint32_t to) const {
#pragma unroll
        for (uint32_t i = 0; i < scales; i++)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + (thread + i * CONVERTING) * 4),
                         "f"(scale[i])
                         : "memory");
    }
};

template <int D, typename Mask, rp_dtype Page>
static __device__ __forceinline__ void feed_quantized(const wgmma_args &args, const addresses &to,
                                                      uint32_t group) {
    control *shared = to.shared;
    turn ring;
    block_source<D, Mask> source;
    quantized_block<D, Mask, Page> block(args.call.args, to.quantized);
    bool more = false;
    for (;;) {
        if (!more) {
            if (!source.enter(args, shared, true))
                return;
            block.look_up(source, group);
            block.prefetch_first();
        }
        const uint32_t stage = ring.stage * shape<D>::block_bytes;
        const uint32_t keys = to.kv[0] + stage, values = to.kv[1] + stage;
        if (source.may_claim && source.walk.left < args.lead) {
            source.may_claim = false;
            if (block.thread == 0)
                barrier_arrive(at(&shared->may_claim));
        }
        barrier_wait(at(&shared->empty[0][ring.stage]), ring.parity ^ 1);
        if (Mask::is_program && block.thread == 0)
            shared->blocks[ring.stage] = source.walk.entry;
        block.store_scales(scales_at<D, Page>(to, ring));
        block.template convert<0>(keys);
        block.template follow<1, 1>(true);
        block.template convert<1>(keys);
        fence_async_proxy();
        barrier_arrive(at(&shared->full[0][ring.stage]));
        more = source.next(args, shared);
        if (more)
            block.look_up(source, group);
        block.template follow<0, 0>(more);
        barrier_wait(at(&shared->empty[1][ring.stage]), ring.parity ^ 1);
        block.template convert<0>(values);
        block.template follow<0, 1>(more);
        block.template convert<1>(values);
        fence_async_proxy();
        barrier_arrive(at(&shared->full[1][ring.stage]));
        block.template follow<1, 0>(more);
        ring.next();
        if (!more && source.work.tile.tokens == 0)
            return;
    }
}

#endif
