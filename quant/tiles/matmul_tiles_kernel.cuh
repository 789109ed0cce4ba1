/* matmul_tiles_kernel.cuh - GEMMs of up to a few hundred rows of bf16 by weights in tiles
 * (quant/tiles.h), on tensor cores.
 *
 * A block has up to 16 panels of 16 outputs (gated: half of them gates, then their ups) over one
 * segment of K, and reads no other tokens. A multiplying warp has one panel. Up to eight tokens
 * each warp multiplies for itself, more in groups of four warps (wgmma); both have the same
 * bits (tests/gpu/test_numerics_probe). Two more warps copy weights and tokens into a ring of
 * stages of 128 columns; weights depend on no earlier kernel, so theirs are under way before the
 * kernel waits. The sums of several segments go to memory, where the reader or the kernel after
 * this one adds them up in rising order. */
#ifndef RP_QUANT_MATMUL_TILES_KERNEL_CUH
#define RP_QUANT_MATMUL_TILES_KERNEL_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/matmul_pipeline.cuh"
#include "quant/tiles/matmul_tiles_cuda.h"
#include "quant/tiles/matmul_tiles_find.cuh"
#include "quant/tiles/matmul_tiles_multiply.cuh"

namespace {

/* What a block has in shared memory, by stage. */
struct block_memory {
    uint32_t tokens, weights;     /* boxes; tiles of each panel */
    uint32_t landed, full, empty; /* barriers: weights have come, tokens have come, all is read */
};

__device__ __forceinline__ block_memory layout_of(const rp_matmul_tiles_args &args, uint32_t base) {
    block_memory at;
    at.tokens = base;
    at.weights = base + args.stages * 2 * args.tokens * TOKEN_ROW;
    at.landed = at.weights + args.stages * args.weight_bytes;
    at.full = at.landed + 8 * args.stages;
    at.empty = at.full + 8 * args.stages;
    return at;
}

/* --- copies ----------------------------------------------------------------------------------- */

/* One thread: columns of tiles [begin, begin + count). The first ones do not wait for the number of
 * live rows: where there is none, they must have come before the block ends. */
__device__ __forceinline__ void copy_all_tokens(const rp_matmul_tiles_args &args,
                                                const block_memory &at, uint32_t first,
                                                uint32_t begin, uint32_t count) {
    const uint32_t box = args.tokens * TOKEN_ROW, early = min(args.stages, count);
    const uint32_t live = *args.live;
    ring_at ring = {0, 1};
    auto copy = [&](uint32_t i) {
        uint32_t full = at.full + 8 * ring.stage, to = at.tokens + ring.stage * 2 * box;
        rp_barrier_expect(full, 2 * box);
        for (uint32_t half = 0; half < 2; half++)
            rp_copy_box(to + half * box, &args.in_map, (begin + i) * RP_TILE_COLS + half * 64,
                        first, full, RP_L2_EVICT_LAST);
        ring.next(args.stages);
    };
    for (uint32_t i = 0; i < early; i++)
        copy(i);
    if (first >= live) {
        for (uint32_t i = 0; i < early; i++)
            rp_barrier_wait(at.full + 8 * i, 0);
        return;
    }
    for (uint32_t i = early; i < count; i++) {
        rp_barrier_wait(at.empty + 8 * ring.stage, ring.phase);
        copy(i);
    }
}

/* Panel `index` of a block, of the gates or the ups, and where its tile is in a stage. */
struct panel_of_block {
    uint32_t panel, at;
    bool is_up;
};
template <typename Format>
__device__ __forceinline__ panel_of_block panel_of(const rp_matmul_tiles_args &args, uint32_t group,
                                                   uint32_t index) {
    const uint32_t half = args.block_panels / 2, in = args.gated && index >= half ? half : 0;
    return {group * (args.gated ? half : args.block_panels) + index - in,
            (index - in) * Format::BYTES + (in ? args.ups_begin : 0), in != 0};
}

/* One stage, by one thread: the tiles of all panels at once, gates and ups each. Those past the
 * last panel are zeros, or ups. */
template <typename Format>
__device__ __forceinline__ void copy_stage(const rp_matmul_tiles_args &args, uint32_t to,
                                           uint32_t group, uint32_t tile, uint32_t barrier) {
    const uint32_t panels = args.gated ? args.block_panels / 2 : args.block_panels;
    rp_barrier_expect(barrier, args.block_panels * Format::BYTES);
    rp_copy_box_3d(to, &args.weight_map, 0, tile * args.pieces, group * panels, barrier,
                   RP_L2_EVICT_FIRST);
    if (args.gated)
        rp_copy_box_3d(to + args.ups_begin, &args.weight_map, 0, tile * args.pieces,
                       args.panels + group * panels, barrier, RP_L2_EVICT_FIRST);
}

/* One warp. */
template <typename Format>
__device__ __forceinline__ void copy_all_weights(const rp_matmul_tiles_args &args,
                                                 const block_memory &at, uint32_t group,
                                                 uint32_t first, uint32_t begin, uint32_t count) {
    const uint32_t lane = threadIdx.x % 32, early = min(args.stages, count);
    bool is_live = true;
    ring_at ring = {0, 1};
    for (uint32_t i = 0; i < count; i++, ring.next(args.stages)) {
        if (i == early) {
            rp_pdl_wait();
            is_live = first < *args.live;
            if (!is_live)
                break;
        }
        const uint32_t to = at.weights + ring.stage * args.weight_bytes;
        const uint32_t landed = at.landed + 8 * ring.stage;
        rp_barrier_wait(at.empty + 8 * ring.stage, ring.phase);
        if (lane == 0)
            copy_stage<Format>(args, to, group, begin + i, landed);
    }
    /* No copy may be under way when the block ends, and where no row is live no warp waits for
     * them. */
    for (uint32_t i = 0; i < early && (count == early || !is_live); i++)
        rp_barrier_wait(at.landed + 8 * i, 0);
}

/* --- stores ----------------------------------------------------------------------------------- */

/* One output: total + bias (+ out). */
__device__ __forceinline__ void store_output(const rp_matmul_tiles_args &args, uint32_t token,
                                             uint32_t row, float total) {
    size_t at = token * args.out_stride + row;
    float value = args.bias ? total + args.bias[row] : total;
    if (args.out_bf16)
        ((__nv_bfloat16 *)args.out)[at] = __float2bfloat16_rn(value);
    else
        ((float *)args.out)[at] = args.accumulate ? ((float *)args.out)[at] + value : value;
}

/* The sums of a panel: outputs, or those of a segment, for the reader. value(t, i): of eight
 * tokens' `t` and their i of four (multiply_step). */
template <int NT, typename Value>
__device__ __forceinline__ void store_panel(const rp_matmul_tiles_args &args, uint32_t panel,
                                            uint32_t segment, uint32_t first, uint32_t live,
                                            Value value) {
    const uint32_t lane = threadIdx.x % 32;
    float *partials =
        args.partials ? args.partials + segment * args.split_stride : (float *)nullptr;
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t token = first + t * 8 + lane % 4 * 2 + i % 2;
            uint32_t row = panel * RP_TILE_ROWS + lane / 4 + i / 2 * 8;
            if (token >= live || row >= args.rows)
                continue;
            if (partials)
                partials[token * args.partial_stride + row] = value(t, i);
            else
                store_output(args, token, row, value(t, i));
        }
}

/* All multiplying warps. */
__device__ __forceinline__ void sync_warps(const rp_matmul_tiles_args &args) {
    asm volatile("bar.sync 1, %0;" ::"r"(32 * args.warps) : "memory");
}

/* Gates and ups of one panel each in two warps: ups come through shared memory, where the ring
 * was. */
template <typename Format, int NT>
__device__ __forceinline__ void store_gated(const rp_matmul_tiles_args &args, float *exchange,
                                            uint32_t group, uint32_t warp, uint32_t first,
                                            uint32_t live, const float (&sums)[NT][4]) {
    const uint32_t half = args.block_panels / 2, lane = threadIdx.x % 32;
    const panel_of_block own = panel_of<Format>(args, group, warp);
    float *ups = exchange + (warp < half ? warp : warp - half) * NT * 128 + lane;
    sync_warps(args);
    if (own.is_up && warp < args.block_panels) {
#pragma unroll
        for (int i = 0; i < NT * 4; i++)
            ups[i * 32] = sums[i / 4][i % 4];
    }
    sync_warps(args);
    if (!own.is_up)
        store_panel<NT>(args, own.panel, 0, first, live, [&](int t, int i) {
            return rp_activate(args.fn, sums[t][i]) * ups[(t * 4 + i) * 32];
        });
}

/* --- the kernel ------------------------------------------------------------------------------- */

constexpr int THREADS = 32 * (RP_MATMUL_TILES_PANELS + 2);

/* A multiplying warp's part. */
template <typename Format, int NT>
__device__ __forceinline__ void run_warp(const rp_matmul_tiles_args &args, const block_memory &at,
                                         const unsigned char *weights, float *exchange,
                                         uint32_t warp, uint32_t count, rp_stamp &stamp) {
    const uint32_t lane = threadIdx.x % 32, first = blockIdx.y * 8 * NT;
    const uint32_t segment = blockIdx.x % args.segments, group = blockIdx.x / args.segments;
    const uint32_t own = lane % 8 * TOKEN_ROW + (lane / 8 ^ lane % 8) * 16;
    constexpr bool TOGETHER = NT > 1;
    /* wgmma needs four warps: those past the block's panels multiply what is there. */
    const bool is_idle = warp >= args.block_panels;
    const panel_of_block panel = panel_of<Format>(args, group, is_idle ? 0 : warp);
    const uint32_t offset = tile_offset(args.format);
    const ring_view view = {
        weights + panel.at, at.tokens + (TOGETHER ? 0 : own), at.landed,   at.full, at.empty,
        args.weight_bytes,  2 * NT * 8 * TOKEN_ROW,           args.stages, count};
    held_tile<Format> held;
    rp_barrier_wait(at.landed, 0);
    hold_tile<Format>(view.tiles, lane, offset, held);
    stamp.wait();
    const uint32_t live = *args.live;
    stamp.look();
    if (first >= live)
        return;
    float sums[NT][4] = {};
    if constexpr (TOGETHER)
        multiply_together<Format, NT>(view, lane, offset, held,
                                      reinterpret_cast<float(&)[NT * 4]>(sums));
    else
        multiply_alone<Format>(view, lane, offset, held, sums[0]);
#pragma unroll
    for (int i = 0; i < NT * 4; i++)
        sums[i / 4][i % 4] *= TILE_UNIT;
    if (args.gated)
        store_gated<Format, NT>(args, exchange, group, warp, first, live, sums);
    else if (!is_idle)
        store_panel<NT>(args, panel.panel, segment, first, live,
                        [&](int t, int i) { return sums[t][i]; });
}

template <typename Format, int NT>
__global__ void __launch_bounds__(THREADS, 1)
    matmul_tiles(const __grid_constant__ rp_matmul_tiles_args args) {
#if RP_CUDA_HOPPER
    extern __shared__ __align__(1024) unsigned char shared[];
    rp_stamp stamp(args.stamp);
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0); /* uniform */
    const uint32_t first = blockIdx.y * 8 * NT;
    const uint32_t segment = blockIdx.x % args.segments, group = blockIdx.x / args.segments;
    const uint32_t start = rp_shared_address(shared), base = (start + 1023) & ~1023u;
    const block_memory at = layout_of(args, base);
    const uint32_t begin = segment * args.segment_tiles;
    const uint32_t count = min(args.segment_tiles, args.tiles - begin);
    if (threadIdx.x == 0) {
        rp_map_prefetch(&args.in_map);
        rp_map_prefetch(&args.weight_map);
        for (uint32_t i = 0; i < args.stages; i++) {
            rp_barrier_init(at.landed + 8 * i, 1);
            rp_barrier_init(at.full + 8 * i, 1);
            rp_barrier_init(at.empty + 8 * i, args.warps);
        }
        rp_barrier_init_fence();
    }
    __syncthreads();
    if (warp == args.warps) {
        copy_all_weights<Format>(args, at, group, first, begin, count);
    } else if (warp > args.warps) {
        rp_pdl_wait();
        rp_pdl_trigger();
        if (lane == 0)
            copy_all_tokens(args, at, first, begin, count);
    } else {
        run_warp<Format, NT>(args, at, shared + (at.weights - start),
                             (float *)(shared + (at.tokens - start)), warp, count, stamp);
    }
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

/* The kernel for so many tokens. */
template <typename Format>
rp_matmul_tiles_kernel rp_matmul_tiles_kernel_of(const rp_matmul_tiles_args &args) {
    rp_matmul_tiles_kernel found = {};
    found.kernel = args.tokens == 8    ? matmul_tiles<Format, 1>
                   : args.tokens == 16 ? matmul_tiles<Format, 2>
                   : args.tokens == 32 ? matmul_tiles<Format, 4>
                                       : matmul_tiles<Format, 8>;
    return found;
}

#define RP_TILE_FIND(bits_, group_, kind_)                                                         \
    if (args.format.bits == (bits_) && args.format.group == (group_) &&                            \
        args.format.kind == (kind_))                                                               \
        return rp_matmul_tiles_kernel_of<tile_format<bits_, group_, kind_>>(args);

} // namespace

#endif
