/* attention_prefill_wgmma_quantized.cuh - prompt rows on Hopper over 8-bit pages: conversion of
 * quantized values to the bf16 that the matmuls read.
 *
 * The producer copies halves of a plane (64 keys) and the block's scales into shared memory, in
 * bulk; a dedicated warpgroup writes them to the stages in the layout in which bulk copies would
 * have written bf16:
 *
 *   pages -> staged: K low | K high | V low | ... -> converted, fence -> stages of K and V
 *
 * Scales stay outside (attention_quantized_cuda.cuh): those of keys that no row of the tile sees
 * are zero, so that their quantized values, which may be garbage, contribute nothing. Keys that are
 * not copied have the finite values of whatever the place contained. */
#ifndef RP_ATTENTION_ATTENTION_PREFILL_WGMMA_QUANTIZED_CUH
#define RP_ATTENTION_ATTENTION_PREFILL_WGMMA_QUANTIZED_CUH

#include "attention/prefill/attention_prefill_wgmma_feed.cuh"

/* Where the scales of the block at this place of K's ring are: K's, then V's. */
template <int D, rp_dtype Page>
static __device__ __forceinline__ uint32_t scales_at(const addresses &from, const turn &ring) {
    return from.scales + (ring.parity * STAGES + ring.stage) * teams<D, Page>::scale_bytes;
}

/* Byte offset of a key's scale in its plane: a lane's four of 16 keys (columns of two wgmma
 * fragments) are neighbors. */
static __device__ __forceinline__ uint32_t scale_place(uint32_t key) {
    return key / 16 * 64 + key % 8 / 2 * 16 + key / 8 % 2 * 8 + key % 2 * 4;
}

/* One converting thread's share of a block of keys: chunks of 16 columns. */
template <int D, typename Mask, rp_dtype Page> struct converter {
    static constexpr uint32_t keys = shape<D>::keys, chunks = D / 16, rows = CONVERTING / chunks;
    static constexpr uint32_t copies = keys / rows, half = copies / 2; /* of a thread and plane */
    static constexpr uint32_t scales = 2 * keys / CONVERTING;          /* of a thread */
    const addresses &places;
    uint32_t thread;
    uint32_t from, to[2]; /* of the thread's first chunk: in a half, and its columns in a stage */
    ring<HALVES> next;
    uint32_t blocks = 0; /* converted */
    float scale[scales];

    /* Eight lanes read whole banks, and write rows of both parities: no bank conflicts. */
    __device__ __forceinline__ explicit converter(const addresses &places) : places(places) {
        thread = threadIdx.x % CONVERTING;
        const uint32_t lane = thread % 32, part = chunks == 8 ? lane / 4 % 2 : 0;
        const uint32_t chunk = lane % 4 + part * 4;
        const uint32_t row = thread / 32 * (32 / chunks) +
                             (chunks == 8 ? (lane / 4 ^ lane / 8) % 2 + lane / 16 * 2 : lane / 4);
        from = places.staged + row * D + chunk * 16;
        for (uint32_t eight = 0; eight < 2; eight++)
            to[eight] =
                part * shape<D>::part_bytes + row * 128 + ((chunk % 4 * 2 + eight) ^ row % 8) * 16;
    }
    /* Converts the next half, which is the low or high half of a plane, into the stage. */
    template <uint32_t Half> __device__ __forceinline__ void convert_half(uint32_t stage) {
        const uint32_t source = from + next.stage * teams<D, Page>::half_bytes;
        uint32_t x[half][4];
        barrier_wait(at(&places.shared->staged_full[next.stage]), next.parity);
#pragma unroll
        for (uint32_t i = 0; i < half; i++)
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i][2]), "=r"(x[i][3])
                         : "r"(source + i * rows * D)
                         : "memory");
#pragma unroll
        for (uint32_t i = 0; i < half; i++)
#pragma unroll
            for (uint32_t eight = 0; eight < 2; eight++) {
                uint32_t out[4];
#pragma unroll
                for (uint32_t w = 0; w < 2; w++)
                    /* bytes 0, 2, 1, 3: makes pairs neighbors */
                    quantized_to_bf16<Page>(__byte_perm(x[i][eight * 2 + w], 0, 0x3120), out[w * 2],
                                            out[w * 2 + 1]);
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                                 stage + to[eight] + (Half * half + i) * rows * 128),
                             "r"(out[0]), "r"(out[1]), "r"(out[2]), "r"(out[3])
                             : "memory");
            }
        barrier_arrive(at(&places.shared->staged_empty[next.stage]));
        next.next();
    }
    /* Both halves of a plane; full: the stage's barrier. */
    __device__ __forceinline__ void convert(uint32_t stage, uint64_t *full) {
        convert_half<0>(stage);
        convert_half<1>(stage);
        fence_async_proxy();
        barrier_arrive(at(full));
    }
    /* Loads the scales of the next block, which arrive with its first half. */
    __device__ __forceinline__ void load_scales(const claimed_tile &work,
                                                const block_walk<D, Mask> &walk, uint32_t group) {
        const prefill_tile &tile = work.tile;
        const uint32_t position = walk.key() + thread % keys;
        bool is_seen = position >= tile.first_key && position < tile.key_end;
        if constexpr (Mask::is_program) {
            if (is_seen && walk.is_partial())
                is_seen = Mask::any_sees(tile.position, tile.tokens, position, work.kv_head * group,
                                         group, walk.params.value);
        }
        barrier_wait(at(&places.shared->staged_full[next.stage]), next.parity);
#pragma unroll
        for (uint32_t i = 0; i < scales; i++) {
            const uint32_t index = thread + i * CONVERTING;
            asm volatile(
                "ld.shared.f32 %0, [%1];"
                : "=f"(scale[i])
                : "r"(places.staged_scales + blocks % 2 * teams<D, Page>::scale_bytes + index * 4)
                : "memory");
            if (!is_seen)
                scale[i] = 0.0f;
        }
        blocks++;
    }
    __device__ __forceinline__ void store_scales(uint32_t to) const {
#pragma unroll
        for (uint32_t i = 0; i < scales; i++) {
            const uint32_t index = thread + i * CONVERTING;
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + index / keys * keys * 4 +
                                                         scale_place(index % keys)),
                         "f"(scale[i])
                         : "memory");
        }
    }
};

template <int D, typename Mask, rp_dtype Page>
static __device__ __forceinline__ void feed_quantized(const wgmma_args &args, const addresses &to,
                                                      uint32_t group) {
    control *shared = to.shared;
    turn ring;
    converter<D, Mask, Page> convert(to);
    for (uint32_t count = 0;; count++) {
        barrier_wait(at(&shared->tile_full[count % TILE_STAGES]), count / TILE_STAGES & 1);
        const claimed_tile work = shared->tiles[count % TILE_STAGES];
        if (work.tile.tokens == 0)
            return;
        block_walk<D, Mask> walk;
        walk.begin(args.call, work.tile);
        while (walk.next(args.call)) {
            const uint32_t stage = ring.stage * shape<D>::block_bytes;
            convert.load_scales(work, walk, group);
            barrier_wait(at(&shared->empty[0][ring.stage]), ring.parity ^ 1);
            if (Mask::is_program && convert.thread == 0)
                shared->blocks[ring.stage] = walk.entry;
            convert.store_scales(scales_at<D, Page>(to, ring));
            convert.convert(to.kv[0] + stage, &shared->full[0][ring.stage]);
            barrier_wait(at(&shared->empty[1][ring.stage]), ring.parity ^ 1);
            convert.convert(to.kv[1] + stage, &shared->full[1][ring.stage]);
            ring.next();
        }
    }
}

#endif
