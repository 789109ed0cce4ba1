/* matmul_tiles_kernel.cuh - GEMMs of up to a few hundred rows of bf16 by weights in tiles
 * (quant/tiles.h), on tensor cores.
 *
 * A multiplying warp has two panels, 32 outputs (gated: 16 gates and their ups), over one segment
 * of K: chains of mma.sync m16n8k16, whose bits are those of wgmma
 * (tests/gpu/test_numerics_probe). A block has one segment, so it reads no other tokens. Two more
 * warps copy weights and tokens into a ring of stages of 128 columns; weights depend on no earlier
 * kernel, so theirs are under way before the kernel waits. The sums of several segments go to
 * memory, where the reader or the kernel after this one adds them up in rising order. */
#ifndef RP_QUANT_MATMUL_TILES_KERNEL_CUH
#define RP_QUANT_MATMUL_TILES_KERNEL_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/matmul_pipeline.cuh"
#include "quant/tiles/matmul_tiles_cuda.h"
#include "quant/tiles/matmul_tiles_decode.cuh"
#include "quant/tiles/matmul_tiles_find.cuh"
#include "quant/tiles/matmul_tiles_mma.cuh"

namespace {

constexpr uint32_t TOKEN_ROW = 128; /* bytes of a row in a box of tokens */
constexpr int PANELS = 2;           /* of a warp */

/* What a block has in shared memory, by stage. */
struct block_memory {
    uint32_t tokens, weights;     /* boxes; tiles of each warp */
    uint32_t landed, full, empty; /* barriers: weights have come, tokens have come, all is read */
    uint32_t weight_bytes;        /* of a stage */
};

__device__ __forceinline__ block_memory layout_of(const rp_matmul_tiles_args &args, uint32_t base,
                                                  uint32_t tile_bytes) {
    block_memory at;
    at.weight_bytes = args.warps * 2 * tile_bytes;
    at.tokens = base;
    at.weights = base + args.stages * 2 * args.tokens * TOKEN_ROW;
    at.landed = at.weights + args.stages * at.weight_bytes;
    at.full = at.landed + 8 * args.stages;
    at.empty = at.full + 8 * args.stages;
    return at;
}

/* A place in the ring. */
struct ring_at {
    uint32_t stage, phase;
    __device__ __forceinline__ void next(uint32_t stages) {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* One thread: columns of tiles [begin, begin + count). */
__device__ __forceinline__ void copy_all_tokens(const rp_matmul_tiles_args &args,
                                                const block_memory &at, uint32_t first,
                                                uint32_t begin, uint32_t count) {
    uint32_t box = args.tokens * TOKEN_ROW;
    ring_at ring = {0, 1};
    for (uint32_t i = 0; i < count; i++, ring.next(args.stages)) {
        uint32_t full = at.full + 8 * ring.stage, to = at.tokens + ring.stage * 2 * box;
        rp_barrier_wait(at.empty + 8 * ring.stage, ring.phase);
        rp_barrier_expect(full, 2 * box);
        for (uint32_t half = 0; half < 2; half++)
            rp_copy_box(to + half * box, &args.in_map, (begin + i) * RP_TILE_COLS + half * 64,
                        first, full, RP_L2_EVICT_LAST);
    }
}

/* A warp of which each lane copies the tiles of one multiplying warp. */
template <typename Format>
__device__ __forceinline__ void copy_all_weights(const rp_matmul_tiles_args &args,
                                                 const block_memory &at, uint32_t group,
                                                 uint32_t first, uint32_t begin, uint32_t count) {
    const uint32_t lane = threadIdx.x % 32, early = min(args.stages, count);
    const uint32_t unit = group * args.warps + lane, panel = args.gated ? unit : 2 * unit;
    const uint32_t other = args.gated ? unit : panel + 1;
    const bool has_one = lane < args.warps && panel < args.panels;
    const bool has_two = lane < args.warps && other < args.panels;
    const uint32_t tiles =
        __popc(__ballot_sync(0xFFFFFFFFu, has_one)) + __popc(__ballot_sync(0xFFFFFFFFu, has_two));
    const unsigned char *one = args.data + ((size_t)panel * args.tiles + begin) * Format::BYTES;
    const unsigned char *two =
        (args.gated ? args.ups : args.data) + ((size_t)other * args.tiles + begin) * Format::BYTES;
    uint32_t to = at.weights + lane * 2 * Format::BYTES;
    bool is_live = true;
    ring_at ring = {0, 1};
    for (uint32_t i = 0; i < count; i++, ring.next(args.stages)) {
        if (i == early) {
            rp_pdl_wait();
            is_live = first < *args.live;
            if (!is_live)
                break;
        }
        uint32_t landed = at.landed + 8 * ring.stage, place = to + ring.stage * at.weight_bytes;
        rp_barrier_wait(at.empty + 8 * ring.stage, ring.phase);
        if (lane == 0)
            rp_barrier_expect(landed, tiles * Format::BYTES);
        __syncwarp();
        if (has_one)
            copy_bulk(place, one, Format::BYTES, landed, RP_L2_EVICT_FIRST);
        if (has_two)
            copy_bulk(place + Format::BYTES, two, Format::BYTES, landed, RP_L2_EVICT_FIRST);
        one += Format::BYTES;
        two += Format::BYTES;
    }
    /* No copy may be under way when the block ends, and where no row is live no warp waits for
     * them. */
    for (uint32_t i = 0; i < early && (count == early || !is_live); i++)
        rp_barrier_wait(at.landed + 8 * i, 0);
}

/* Columns [0, 128) of a tile of each panel by all tokens. tokens: the address of this lane's row
 * in them. */
template <typename Format, int NT>
__device__ __forceinline__ void multiply_tiles(const unsigned char *tile, uint32_t tokens,
                                               uint32_t lane, uint32_t offset,
                                               float (&sums)[PANELS][NT][4]) {
    tile_scales scales[PANELS];
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        uint32_t a[PANELS][2][4], b[2][4];
        uint32_t from = (tokens + pair / 2 * NT * 8 * TOKEN_ROW) ^ pair % 2 * 64;
        /* the swizzle moves 16 bytes: two steps are four of them */
        load_tokens(from, b[0]);
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            tile_codes<Format> words;
            load_codes<Format>(tile + p * Format::BYTES + Format::SCALE_BYTES, pair, lane, words);
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                int col = (2 * pair + odd) * 16;
                if (col % Format::GROUP == 0)
                    load_scales<Format>(tile + p * Format::BYTES, col / Format::GROUP, lane / 4,
                                        offset, scales[p]);
                decode_step<Format>(words, pair, odd, scales[p], a[p][odd]);
            }
        }
#pragma unroll
        for (int t = 0; t < NT; t++) {
            if (t + 1 < NT)
                load_tokens(from + (t + 1) * 8 * TOKEN_ROW, b[(t + 1) % 2]);
#pragma unroll
            for (int odd = 0; odd < 2; odd++)
#pragma unroll
                for (int p = 0; p < PANELS; p++)
                    multiply_step(sums[p][t], a[p][odd], b[t % 2][2 * odd], b[t % 2][2 * odd + 1]);
        }
    }
}

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

/* The outputs of a unit. */
template <int NT>
__device__ __forceinline__ void store_unit(const rp_matmul_tiles_args &args, uint32_t unit,
                                           uint32_t lane, uint32_t first, uint32_t live,
                                           const float (&sums)[PANELS][NT][4]) {
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t token = first + t * 8 + lane % 4 * 2 + i % 2;
            uint32_t in = lane / 4 + i / 2 * 8;
            if (token >= live)
                continue;
            if (args.gated) {
                uint32_t row = unit * RP_TILE_ROWS + in;
                if (row < args.rows)
                    store_output(args, token, row,
                                 rp_activate(args.fn, sums[0][t][i]) * sums[1][t][i]);
                continue;
            }
#pragma unroll
            for (int p = 0; p < PANELS; p++) {
                uint32_t row = (2 * unit + p) * RP_TILE_ROWS + in;
                if (row < args.rows)
                    store_output(args, token, row, sums[p][t][i]);
            }
        }
}

/* The sums of a segment, for the reader. */
template <int NT>
__device__ __forceinline__ void store_partials(const rp_matmul_tiles_args &args, uint32_t unit,
                                               uint32_t segment, uint32_t lane, uint32_t first,
                                               uint32_t live, const float (&sums)[PANELS][NT][4]) {
    float *to = args.partials + segment * args.split_stride;
#pragma unroll
    for (int i = 0; i < PANELS * NT * 4; i++) {
        uint32_t token = first + i / 4 % NT * 8 + lane % 4 * 2 + i % 2;
        uint32_t row = (2 * unit + i / 4 / NT) * RP_TILE_ROWS + lane / 4 + i % 4 / 2 * 8;
        if (token < live && row < args.rows)
            to[token * args.partial_stride + row] = sums[i / 4 / NT][i / 4 % NT][i % 4];
    }
}

template <typename Format, int NT>
__global__ void __launch_bounds__(32 * (RP_MATMUL_TILES_WARPS + 2), 1)
    matmul_tiles(const __grid_constant__ rp_matmul_tiles_args args) {
#if RP_CUDA_HOPPER
    extern __shared__ __align__(1024) unsigned char shared[];
    rp_stamp stamp(args.stamp);
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0); /* uniform */
    const uint32_t first = blockIdx.y * 8 * NT;
    const uint32_t segment = blockIdx.x % args.segments, group = blockIdx.x / args.segments;
    const uint32_t start = rp_shared_address(shared), base = (start + 1023) & ~1023u;
    const block_memory at = layout_of(args, base, Format::BYTES);
    const uint32_t begin = segment * args.segment_tiles;
    const uint32_t count = min(args.segment_tiles, args.tiles - begin);
    if (threadIdx.x == 0) {
        rp_map_prefetch(&args.in_map);
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
        return;
    }
    if (warp > args.warps) {
        rp_pdl_wait();
        rp_pdl_trigger();
        if (lane == 0 && first < *args.live)
            copy_all_tokens(args, at, first, begin, count);
        return;
    }
    stamp.wait();
    const uint32_t live = *args.live;
    stamp.look();
    if (first >= live)
        return;
    const uint32_t unit = group * args.warps + warp;
    const uint32_t offset = tile_offset(args.format);
    const uint32_t own = lane % 8 * TOKEN_ROW + (lane / 8 ^ lane % 8) * 16;
    const unsigned char *tiles = shared + (at.weights - start) + warp * 2 * Format::BYTES;
    float sums[PANELS][NT][4] = {};
    ring_at ring = {0, 0};
    for (uint32_t i = 0; i < count; i++, ring.next(args.stages)) {
        rp_barrier_wait(at.landed + 8 * ring.stage, ring.phase);
        rp_barrier_wait(at.full + 8 * ring.stage, ring.phase);
        multiply_tiles<Format, NT>(tiles + ring.stage * at.weight_bytes,
                                   at.tokens + ring.stage * 2 * NT * 8 * TOKEN_ROW + own, lane,
                                   offset, sums);
        __syncwarp();
        if (lane == 0)
            rp_barrier_arrive(at.empty + 8 * ring.stage);
    }
#pragma unroll
    for (int i = 0; i < PANELS * NT * 4; i++)
        sums[i / 4 / NT][i / 4 % NT][i % 4] *= TILE_UNIT;
    if (args.partials)
        store_partials<NT>(args, unit, segment, lane, first, live, sums);
    else
        store_unit<NT>(args, unit, lane, first, live, sums);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

/* The kernel for so many tokens. */
template <typename Format> rp_matmul_tiles_kernel rp_matmul_tiles_kernel_of(uint32_t tokens) {
    rp_matmul_tiles_kernel found = {};
    switch (tokens) {
    case 8:
        found.kernel = matmul_tiles<Format, 1>;
        break;
    case 16:
        found.kernel = matmul_tiles<Format, 2>;
        break;
    case 32:
        found.kernel = matmul_tiles<Format, 4>;
        break;
    case 64:
        found.kernel = matmul_tiles<Format, 8>;
        break;
    default:
        break;
    }
    return found;
}

#define RP_TILE_FIND(bits_, group_, kind_)                                                         \
    if (args.format.bits == (bits_) && args.format.group == (group_) &&                            \
        args.format.kind == (kind_))                                                               \
        return rp_matmul_tiles_kernel_of<tile_format<bits_, group_, kind_>>(args.tokens);

} // namespace

#endif
