/* matmul_experts_tiles_kernel.cuh - GEMMs of experts whose weights are tiles of 4 bits
 * (quant/tiles.h), by rows of bf16.
 *
 * Work, rows and stores are those of matmul_experts_kernel.cuh. A stage has 128 columns of K: a
 * tile of each panel of 16 weight rows, then two boxes of rows. A warp decodes 16 weight rows in
 * registers, where the instruction's left operand is: few rows are multiplied by mma.sync, each
 * warp for itself, many by wgmma. Both have the bits of the bf16 kernel with the weights of
 * rp_tiles_weight (tests/gpu/test_numerics_probe).
 *
 * Gated: a warp has 8 gates and their 8 ups, one half of a tile of gates and the same of one of
 * ups; two warps share them. The stage's tiles are those of gates, then those of ups. */
#ifndef RP_QUANT_MATMUL_EXPERTS_TILES_KERNEL_CUH
#define RP_QUANT_MATMUL_EXPERTS_TILES_KERNEL_CUH

#include "quant/experts/matmul_experts_kernel.cuh"
#include "quant/tiles/matmul_tiles_decode.cuh"
#include "quant/tiles/matmul_tiles_mma.cuh"

namespace {

constexpr int TILE_BOXES = 2; /* of 64 columns of rows, in a stage */

/* --- copies ---------------------------------------------------------------------------------- */

/* One warp; a lane copies the tiles of one panel. */
template <typename Format, bool GATED>
__device__ __forceinline__ void copy_tiles(const rp_matmul_experts_args &args, ring r) {
    const uint32_t lane = threadIdx.x % 32, panels = args.cols / RP_TILE_ROWS;
    const uint32_t group = GATED ? panels / 2 : panels; /* of gates, of ups, or of all */
    const uint32_t all = args.each / RP_TILE_ROWS, of_group = GATED ? all / 2 : all;
    const uint32_t own = lane % group, ups = lane >= group ? of_group : 0;
    rp_pdl_wait();
    unit u;
    for (walk w(args); w.next(args, u);) {
        uint32_t panel = u.col / (GATED ? 2 * RP_TILE_ROWS : RP_TILE_ROWS) + own;
        bool there = lane < panels && panel < of_group;
        uint32_t bytes = __popc(__ballot_sync(0xFFFFFFFFu, there)) * Format::BYTES;
        const unsigned char *from =
            args.weights + ((size_t)u.expert * all + ups + panel) * args.blocks * Format::BYTES;
        for (uint32_t k = 0; k < args.blocks; k++, from += Format::BYTES) {
            rp_barrier_wait(r.empty_barrier(), r.phase ^ 1);
            if (lane == 0)
                rp_barrier_expect(r.full_barrier(), bytes);
            __syncwarp();
            if (there)
                copy_bulk(r.weights(args) + lane * Format::BYTES, from, Format::BYTES,
                          r.full_barrier(), args.weight_policy);
            r.next(args);
        }
    }
}

/* One warp; each thread's arrival at the stage's barrier waits for its copies, not the thread. */
__device__ __forceinline__ void copy_few_rows(const rp_matmul_experts_args &args, ring r,
                                              uint32_t *rows) {
    const uint32_t lane = threadIdx.x % 32;
    rp_pdl_wait();
    rp_pdl_trigger(); /* not before: matmul_cuda.h */
    unit u;
    for (walk w(args); w.next(args, u);) {
        list_rows<true>(args, u, lane, rows);
        for (uint32_t k = 0; k < args.blocks; k++) {
            rp_barrier_wait(r.empty_barrier(), r.phase ^ 1);
            copy_stage<true, TILE_BOXES>(args, r.rows(args), u.count, k, lane, rows);
            asm volatile(
                "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(r.full_barrier())
                : "memory");
            r.next(args);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* --- weights --------------------------------------------------------------------------------- */

/* Where a warp's weight rows are: rows 0 to 7 of its operand in half[0] of a tile, 8 to 15 in
 * half[1]; byte offsets from a stage's tiles on. */
struct warp_weights {
    uint32_t tile[2], half[2];
};

/* Register 2 * upper (+ 1, of half 1) of a step: two codes of E2M1 where bf16 has sign, exponent
 * and mantissa. Multiplication shifts in another pipe than the rest has. */
__device__ __forceinline__ uint32_t codes_of_half(uint32_t word, int upper, uint32_t half) {
    uint32_t placed = (upper ? word >> (2 + 4 * half) : word * (64u >> 4 * half)) & 0x03C003C0u;
    return (placed & 0x02000200u) * 63 + placed;
}

template <typename Format, bool GATED>
__device__ __forceinline__ warp_weights weights_of_warp(const rp_matmul_experts_args &args,
                                                        uint32_t warp) {
    if (!GATED)
        return {{warp * Format::BYTES, warp * Format::BYTES}, {0, 1}};
    uint32_t gates = warp / 2, ups = args.cols / (2 * RP_TILE_ROWS) + gates;
    return {{gates * Format::BYTES, ups * Format::BYTES}, {warp % 2, warp % 2}};
}

/* Operands of steps 2 * pair and the next. */
template <typename Format>
__device__ __forceinline__ void decode_pair(const unsigned char *stage, const warp_weights &w,
                                            int pair, uint32_t offset, tile_scales &scales,
                                            uint32_t (&a)[2][4]) {
    static_assert(Format::BITS == 4 && Format::KIND == RP_TILE_FP4, "codes_of_half");
    const uint32_t lane = threadIdx.x % 32;
    tile_codes<Format::BITS> words[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        load_codes<Format::BITS>(stage + w.tile[i] + Format::SCALE_BYTES, pair, lane, words[i]);
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        int col = (2 * pair + odd) * 16;
        if (col % Format::GROUP == 0)
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_scale<Format>(stage + w.tile[i], col / Format::GROUP, lane / 4 + 8 * w.half[i],
                                   offset, scales.a[i], scales.c[i]);
#pragma unroll
        for (int q = 0; q < 4; q++)
            a[odd][q] = weights_of<Format>(
                codes_of_half(words[q % 2].words[odd], q / 2, w.half[q % 2]), scales, q);
    }
}

/* --- multiplication -------------------------------------------------------------------------- */

/* What a warp needs to multiply a stage; tiles: the tiles of stage 0. */
struct operands {
    const unsigned char *tiles;
    warp_weights weights;
    uint32_t offset; /* tile_offset */
};

/* All of K, few rows. */
template <typename Format, int WIDTH>
__device__ __forceinline__ void multiply_few(const rp_matmul_experts_args &args, ring &r,
                                             const operands &o, float (&sums)[WIDTH / 2]) {
    constexpr int TILES = WIDTH / 8;
    constexpr int UNROLL = WIDTH > 32 ? 1 : 4; /* more would not fit into the registers */
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t own = lane % 8 * BOX_BYTES + (lane / 8 ^ lane % 8) * CHUNK;
    float d[TILES][4] = {};
#pragma unroll 1
    for (uint32_t k = 0; k < args.blocks; k++) {
        tile_scales scales;
        rp_barrier_wait(r.full_barrier(), r.phase);
#pragma unroll UNROLL
        for (int pair = 0; pair < 4; pair++) {
            uint32_t a[2][4], b[4];
            /* the swizzle moves 16 bytes: two steps are four of them */
            uint32_t from =
                (r.rows(args) + pair / 2 * (args.token_bytes / TILE_BOXES) + own) ^ pair % 2 * 64;
            decode_pair<Format>(o.tiles + r.stage * args.stage_bytes, o.weights, pair, o.offset,
                                scales, a);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                load_tokens(from + t * 8 * BOX_BYTES, b);
                multiply_step(d[t], a[0], b[0], b[1]);
                multiply_step(d[t], a[1], b[2], b[3]);
            }
        }
        __syncwarp();
        free_stage(r.empty_barrier());
        r.next(args);
    }
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        sums[i] = d[i / 4][i % 4];
}

/* All of K, many rows. Two instructions multiply while the operands of the next two are decoded. */
template <typename Format, int WIDTH>
__device__ __forceinline__ void multiply_many(const rp_matmul_experts_args &args, ring &r,
                                              const operands &o, float (&sums)[WIDTH / 2]) {
    uint32_t before = 0, held[2][2][4];
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        sums[i] = 0.0f;
#pragma unroll 1
    for (uint32_t k = 0; k < args.blocks; k++) {
        tile_scales scales;
        rp_barrier_wait(r.full_barrier(), r.phase);
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            uint64_t b =
                rp_wgmma_operand(r.rows(args) + pair / 2 * (args.token_bytes / TILE_BOXES)) +
                pair % 2 * 4;
            decode_pair<Format>(o.tiles + r.stage * args.stage_bytes, o.weights, pair, o.offset,
                                scales, held[pair % 2]);
            rp_wgmma_fence();
            rp_wgmma_held<WIDTH>::run(sums, held[pair % 2][0], b, (k | pair) != 0);
            rp_wgmma_held<WIDTH>::run(sums, held[pair % 2][1], b + 2, 1);
            rp_wgmma_commit();
            rp_wgmma_wait<1>();
            if (pair == 0 && k > 0)
                free_stage(before);
        }
        before = r.empty_barrier();
        r.next(args);
    }
    rp_wgmma_wait<0>();
    free_stage(before);
}

template <typename Format, int WIDTH, bool FEW, bool GATED>
__device__ __forceinline__ void run_tile_unit(const rp_matmul_experts_args &args, ring &r,
                                              const operands &o, const unit &u,
                                              uint32_t warpgroup) {
    float sums[WIDTH / 2];
    if constexpr (FEW)
        multiply_few<Format, WIDTH>(args, r, o, sums);
    else
        multiply_many<Format, WIDTH>(args, r, o, sums);
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        sums[i] *= TILE_UNIT;
    store<WIDTH, GATED, RP_WGMMA_BF16>(args, u, warpgroup, sums);
}

template <typename Format, bool FEW, bool GATED>
__device__ __forceinline__ void run_tile_units(const rp_matmul_experts_args &args, ring r,
                                               const unsigned char *data, rp_stamp &stamp) {
    const uint32_t warpgroup = rp_own_warpgroup();
    const uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0); /* uniform */
    const operands o = {data, weights_of_warp<Format, GATED>(args, warp), tile_offset(args.format)};
    stamp.wait();
    stamp.look();
    /* With many rows a warpgroup's warps work together. */
    if ((FEW ? warp * 16 : warpgroup * 64) >= args.cols)
        return;
    unit u;
    for (walk w(args); w.next(args, u);) {
#define RUN(width) run_tile_unit<Format, width, FEW, GATED>(args, r, o, u, warpgroup)
        if constexpr (FEW) {
            if (u.count <= 8)
                RUN(8);
            else if (u.count <= 16)
                RUN(16);
            else if (u.count <= 32)
                RUN(32);
            else
                RUN(64);
        } else {
            if (u.count <= 64)
                RUN(64);
            else if (u.count <= 128)
                RUN(128);
            else
                RUN(192);
        }
#undef RUN
    }
}

template <typename Format, bool FEW, bool GATED>
__global__ void __launch_bounds__(threads<FEW>, FEW ? 2 : 1)
    matmul_experts_tiles(const __grid_constant__ rp_matmul_experts_args args) {
#if RP_CUDA_HOPPER
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ uint32_t rows[most_rows<FEW>];
    rp_stamp stamp(args.stamp);
    ring r;
    r.data = (rp_shared_address(shared) + 1023) & ~1023u;
    r.full = rp_shared_address(shared) + args.shared_bytes - 16 * args.stages;
    r.empty = r.full + 8 * args.stages;
    r.stage = r.phase = 0;
    if (threadIdx.x == MULTIPLYING) {
        for (uint32_t i = 0; i < args.stages; i++) {
            rp_barrier_init(r.full + 8 * i, 1 + row_threads<FEW> / (FEW ? 1 : 32));
            rp_barrier_init(r.empty + 8 * i, FEW              ? args.cols / 16
                                             : args.cols > 64 ? 8
                                                              : 4); /* warps */
        }
        rp_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < MULTIPLYING)
        run_tile_units<Format, FEW, GATED>(args, r, shared + (r.data - rp_shared_address(shared)),
                                           stamp);
    else if (threadIdx.x < MULTIPLYING + 32)
        copy_tiles<Format, GATED>(args, r);
    else if constexpr (FEW)
        copy_few_rows(args, r, rows);
    else
        copy_rows<false, TILE_BOXES>(args, r, threadIdx.x - MULTIPLYING - 32, rows);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

template <typename Format>
rp_matmul_experts_kernel tiles_kernel_of(const rp_matmul_experts_args &args) {
    return args.many    ? args.gated ? matmul_experts_tiles<Format, false, true>
                                     : matmul_experts_tiles<Format, false, false>
              : args.gated ? matmul_experts_tiles<Format, true, true>
                        : matmul_experts_tiles<Format, true, false>;
}

} // namespace

#endif
