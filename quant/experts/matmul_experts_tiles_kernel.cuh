/* matmul_experts_tiles_kernel.cuh - GEMMs of experts whose weights are tiles of 4 bits
 * (quant/tiles.h), by rows of bf16.
 *
 * Work, rows and stores are those of matmul_experts_kernel.cuh. A stage has 128 columns of K: a
 * tile of each panel of 16 weight rows, then two boxes of rows. A warp decodes 16 weight rows in
 * registers, where the instruction's left operand is: up to eight rows are multiplied by mma.sync,
 * each warp for itself, more by wgmma, for which a warpgroup reads them once. Both have the bits of
 * the bf16 kernel with the weights of rp_tiles_weight (tests/gpu/test_numerics_probe).
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

/* One warp; each thread's arrival at the stage's barrier waits for its copies, not the thread.
 * wgmma needs a fence of its reader then. */
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

/* Where a lane's weights of a stage are, of its rows lane / 4 and lane / 4 + 8; bytes. Rows 0 to 7
 * of the warp's operand are in one half of a tile, 8 to 15 in another one. */
struct lane_weights {
    uint32_t codes[2], scales[2];
};

/* What a warp needs to multiply a stage; tiles: those of stage 0. */
struct operands {
    const unsigned char *tiles;
    lane_weights at;
};

template <typename Format, bool GATED>
__device__ __forceinline__ lane_weights weights_of_lane(const rp_matmul_experts_args &args,
                                                        uint32_t warp) {
    static_assert(Format::KIND == RP_TILE_FP4 && Format::GROUP == 32, "half_tile");
    const uint32_t lane = threadIdx.x % 32;
    lane_weights at;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t ups = GATED ? i * (args.cols / (2 * RP_TILE_ROWS)) : 0;
        uint32_t tile = (ups + (GATED ? warp / 2 : warp)) * Format::BYTES;
        uint32_t half = GATED ? warp % 2 : i;
        at.codes[i] = tile + Format::SCALE_BYTES + half * 256 + lane * 8;
        at.scales[i] = tile + (half * 8 + lane / 4) * Format::GROUPS * 2;
    }
    return at;
}

/* A lane's codes and scales of 64 columns, of its two rows. */
struct half_tile {
    uint2 words[2];
    uint32_t scales[2]; /* of 32 columns and the next */
};

__device__ __forceinline__ half_tile load_half(const unsigned char *stage, const lane_weights &at,
                                               int half) {
    half_tile h;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        h.words[i] = *(const uint2 *)(stage + at.codes[i] + half * 512);
        h.scales[i] = *(const uint32_t *)(stage + at.scales[i] + half * 4);
    }
    return h;
}

/* Operands of two steps, columns 32 * pair and on. */
__device__ __forceinline__ void decode_pair(const half_tile &h, int pair, uint32_t (&a)[2][4]) {
    uint32_t scales[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        scales[i] = bf16_mul(h.scales[i], BF16_102);
#pragma unroll
    for (int odd = 0; odd < 2; odd++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const uint2 &words = h.words[q % 2];
            a[odd][q] = bf16_mul_half(scales[q % 2], pair != 0,
                                      fp4_register(words.x, words.y, 4 * pair + 2 * odd + q / 2));
        }
}

/* --- multiplication -------------------------------------------------------------------------- */

/* 64 columns of weights and of eight rows, in registers. */
struct half_stage {
    uint32_t a[2][2][4], b[2][4];
};

/* rows: the address of this lane's row in the box of these columns. */
__device__ __forceinline__ void decode_half(const half_tile &h, uint32_t rows, half_stage &to) {
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        load_tokens(rows ^ pair * 64,
                    to.b[pair]); /* the swizzle moves 16 bytes, two steps are 64 */
        decode_pair(h, pair, to.a[pair]);
    }
}

__device__ __forceinline__ void multiply_half(float (&sums)[4], const half_stage &half) {
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        multiply_step(sums, half.a[pair][0], half.b[pair][0], half.b[pair][1]);
        multiply_step(sums, half.a[pair][1], half.b[pair][2], half.b[pair][3]);
    }
}

/* All of K by up to eight rows, each warp for itself. The second half of a stage is multiplied when
 * the next stage is there: while the chain of sums goes on, the next operands are decoded. The
 * first such product is of zeros. */
template <typename Format>
__device__ __forceinline__ void multiply_few(const rp_matmul_experts_args &args, ring &r,
                                             const operands &o, float (&sums)[4]) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t own = lane % 8 * BOX_BYTES + (lane / 8 ^ lane % 8) * CHUNK;
    half_stage late = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        sums[i] = 0.0f;
#pragma unroll 1
    for (uint32_t k = 0; k < args.blocks; k++) {
        half_stage early;
        rp_barrier_wait(r.full_barrier(), r.phase);
        const unsigned char *stage = o.tiles + r.stage * args.stage_bytes;
        const uint32_t rows = r.rows(args) + own;
        half_tile first = load_half(stage, o.at, 0), second = load_half(stage, o.at, 1);
        multiply_half(sums, late);
        decode_half(first, rows, early);
        multiply_half(sums, early);
        decode_half(second, rows + args.token_bytes / TILE_BOXES, late);
        rp_barrier_arrive(r.empty_barrier());
        r.next(args);
    }
    multiply_half(sums, late);
}

/* All of K, more rows. Two instructions multiply while the operands of the next two are decoded. An
 * instruction needs four warps: those past the weight rows of a tile multiply what is there. */
template <typename Format, int WIDTH, bool FEW>
__device__ __forceinline__ void multiply_many(const rp_matmul_experts_args &args, ring &r,
                                              const operands &o, float (&sums)[WIDTH / 2]) {
    uint32_t before = 0, held[2][2][4];
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        sums[i] = 0.0f;
#pragma unroll 1
    for (uint32_t k = 0; k < args.blocks; k++) {
        const unsigned char *stage = o.tiles + r.stage * args.stage_bytes;
        const uint32_t rows = rp_wgmma_operand_low(r.rows(args));
        half_tile half;
        rp_barrier_wait(r.full_barrier(), r.phase);
        if (FEW)
            rp_shared_fence_async(); /* copy_few_rows has none */
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            uint32_t b = rows + pair / 2 * (args.token_bytes / TILE_BOXES / 16) + pair % 2 * 4;
            if (pair % 2 == 0)
                half = load_half(stage, o.at, pair / 2);
            decode_pair(half, pair % 2, held[pair % 2]);
            rp_wgmma_fence();
            rp_wgmma_held<WIDTH>::run(sums, held[pair % 2][0], rp_wgmma_operand_of(b),
                                      (k | pair) != 0);
            rp_wgmma_held<WIDTH>::run(sums, held[pair % 2][1], rp_wgmma_operand_of(b + 2), 1);
            rp_wgmma_commit();
            rp_wgmma_wait<1>();
            if (pair == 0 && k > 0)
                rp_barrier_arrive(before);
        }
        before = r.empty_barrier();
        r.next(args);
    }
    rp_wgmma_wait<0>();
    rp_barrier_arrive(before);
}

/* Nothing, where each warp multiplies for itself and this one has no weight rows. */
__device__ __forceinline__ void multiply_none(const rp_matmul_experts_args &args, ring &r) {
    for (uint32_t k = 0; k < args.blocks; k++) {
        rp_barrier_wait(r.full_barrier(), r.phase);
        rp_barrier_arrive(r.empty_barrier());
        r.next(args);
    }
}

template <typename Format, int WIDTH, bool FEW, bool GATED>
__device__ __forceinline__ void run_tile_unit(const rp_matmul_experts_args &args, ring &r,
                                              const operands &o, const unit &u,
                                              uint32_t warpgroup) {
    float sums[WIDTH / 2];
    store_values values;
    if (FEW)
        values = load_store_values<GATED>(args, u, warpgroup);
    if constexpr (WIDTH == 8)
        multiply_few<Format>(args, r, o, sums);
    else
        multiply_many<Format, WIDTH, FEW>(args, r, o, sums);
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        sums[i] *= TILE_UNIT;
    if (!FEW)
        values = load_store_values<GATED>(args, u, warpgroup);
    store<WIDTH, GATED, RP_WGMMA_BF16>(args, u, warpgroup, values, sums);
}

template <typename Format, bool FEW, bool GATED>
__device__ __forceinline__ void run_tile_units(const rp_matmul_experts_args &args, ring r,
                                               const unsigned char *data, rp_stamp &stamp) {
    const uint32_t warpgroup = rp_own_warpgroup();
    const uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0); /* uniform */
    const operands o = {data, weights_of_lane<Format, GATED>(args, warp)};
    stamp.wait();
    stamp.look();
    if (warpgroup * 64 >= args.cols)
        return;
    unit u;
    for (walk w(args); w.next(args, u);) {
#define RUN(width) run_tile_unit<Format, width, FEW, GATED>(args, r, o, u, warpgroup)
        if constexpr (FEW) {
            if (u.count > 32)
                RUN(64);
            else if (u.count > 16)
                RUN(32);
            else if (u.count > 8)
                RUN(16);
            else if (warp * 16 < args.cols)
                RUN(8);
            else
                multiply_none(args, r);
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
            rp_barrier_init(r.full + 8 * i, 1 + row_threads<FEW>);
            /* Each thread of them: so racecheck follows it. */
            rp_barrier_init(r.empty + 8 * i, args.cols > 64 ? 256 : 128);
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
