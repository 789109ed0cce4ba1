/* matmul_wide_kernel.cuh - GEMMs of prompts on Hopper's tensor cores: bf16, FP8 and INT8 (W8A8).
 *
 * Tokens are the instruction's left operand here, weights its right one (which of them stands where
 * changes no bit): a tile is 128 tokens x 128 to 256 outputs. A block is two multiplying warpgroups
 * of 64 tokens each and a copying warp, around a ring of stages of 64 columns of K in shared
 * memory. One block a multiprocessor takes tiles until none is left.
 *
 * A warpgroup has two sets of sums: those of the segment in progress, and the totals of the tile.
 * With 256 outputs these are too many for the registers: a quarter of the totals is in shared
 * memory. Totals leave through boxes in shared memory, slice by slice (store_mode): in tiles of 128
 * outputs during the next tile's first instructions, in larger ones before the next tile begins.
 * Where K is one segment, the sums are the totals, so that a gated tile of 256 outputs fits.
 *
 * Larger tiles are computed by clusters of two blocks, which have the same outputs of neighboring
 * token tiles: each copies half of the weights into both. Prompts are at the GPU's power limit, and
 * a third of the bytes from L2 is what this saves. A stage is free when the warps of both blocks
 * have read it; their arrivals at the other block's barrier must not be a release at the cluster's
 * scope, which would be a memory barrier of the whole GPU for each stage.
 *
 * 8 bits: a stage is 128 columns of K, as many bytes, in as many cycles of the tensor cores: the
 * ring is the same, a segment ends twice as soon, and adding it up takes about three times the
 * instructions. Three more warps bring the scales of each tile into shared memory. */
#ifndef RP_QUANT_MATMUL_WIDE_KERNEL_CUH
#define RP_QUANT_MATMUL_WIDE_KERNEL_CUH

#include "quant/wide/matmul_wide_store.cuh"

/* A kernel and what its launch wants to know. */
struct rp_matmul_wide_kernel {
    void (*kernel)(rp_matmul_wide_args);
    uint32_t shared_bytes;
};
/* 8-bit GEMMs; NULL kernel: not compiled. */
extern "C" struct rp_matmul_wide_kernel
rp_matmul_wide_8_find(const struct rp_matmul_wide_args *args);

namespace {

/* The tiles of one block in its order. */
struct walk {
    uint32_t at, end, token_tiles;
};
struct tile_at {
    uint32_t token, col;
};

template <typename Shape>
__device__ __forceinline__ walk walk_begin(const rp_matmul_wide_args &args, uint32_t live) {
    walk w;
    w.token_tiles = min(args.token_tiles, RP_CEIL_DIV(live, RP_WIDE_TOKENS));
    w.token_tiles = RP_CEIL_DIV(w.token_tiles, (uint32_t)Shape::CLUSTER);
    w.at = blockIdx.x / Shape::CLUSTER;
    w.end = w.token_tiles * args.col_tiles;
    return w;
}

/* The next tile; false at the end. Blocks at work together share weights, and the tokens of
 * GROUP_TILES tiles. */
template <typename Shape>
__device__ __forceinline__ bool walk_next(const rp_matmul_wide_args &args, walk &w, tile_at &out) {
    constexpr uint32_t GROUP = GROUP_TILES / Shape::CLUSTER;
    if (w.at >= w.end)
        return false;
    uint32_t group = w.at / (args.col_tiles * GROUP);
    uint32_t width = min(GROUP, w.token_tiles - group * GROUP);
    uint32_t inside = w.at - group * args.col_tiles * GROUP;
    out.col = inside / width;
    out.token = (group * GROUP + inside % width) * Shape::CLUSTER + blockIdx.x % Shape::CLUSTER;
    w.at += gridDim.x / Shape::CLUSTER;
    return true;
}

struct ring {
    uint32_t data, full, empty;
    uint32_t stage, phase;
};
template <typename Shape> __device__ __forceinline__ void ring_next(ring &r) {
    if (++r.stage == Shape::STAGES) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

/* Rows [row, row + COLS) of the weights; where gated, 8 gates and their 8 ups in turns. */
template <typename Shape, bool GATED>
__device__ __forceinline__ void copy_weights(const rp_matmul_wide_args &args, uint32_t to,
                                             uint32_t x, uint32_t row, uint32_t barrier) {
    if constexpr (Shape::CLUSTER > 1) {
        uint32_t rank = blockIdx.x % Shape::CLUSTER;
        uint16_t all = (1u << Shape::CLUSTER) - 1;
        to += rank * (Shape::WEIGHT_BYTES / Shape::CLUSTER);
        row += rank * (Shape::COLS / Shape::CLUSTER);
        if (GATED)
            asm volatile(
                "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %5, %5, %3}], [%4], %7, %6;" ::
                    "r"(to),
                "l"(&args.weight_map), "r"(x), "r"(row / 16), "r"(barrier), "r"(0),
                "l"(RP_L2_EVICT_NORMAL), "h"(all)
                : "memory");
        else
            asm volatile(
                "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %6, %5;" ::"r"(to),
                "l"(&args.weight_map), "r"(x), "r"(row), "r"(barrier), "l"(RP_L2_EVICT_NORMAL),
                "h"(all)
                : "memory");
    } else if (GATED)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%2, %5, %5, %3}], [%4], %6;" ::"r"(to),
                     "l"(&args.weight_map), "r"(x), "r"(row / 16), "r"(barrier), "r"(0),
                     "l"(RP_L2_EVICT_NORMAL)
                     : "memory");
    else
        rp_copy_box(to, &args.weight_map, x, row, barrier, RP_L2_EVICT_NORMAL);
}

/* Weights that a block requests before its forerunners are done: of its first tile, if all rows are
 * alive. */
template <typename Shape> struct early { uint32_t col, stages; };
template <typename Shape>
__device__ __forceinline__ early<Shape> guess_first(const rp_matmul_wide_args &args) {
    walk w = walk_begin<Shape>(args, args.token_tiles * RP_WIDE_TOKENS);
    tile_at t = {0, 0};
    walk_next<Shape>(args, w, t);
    return {t.col, min((uint32_t)Shape::STAGES, args.blocks)};
}

/* One thread. */
template <typename Shape, bool GATED>
__device__ __forceinline__ void copy_all(const rp_matmul_wide_args &args, ring r) {
    early<Shape> guess = guess_first<Shape>(args);
    for (uint32_t i = 0; i < guess.stages; i++) {
        uint32_t full = r.full + 8 * i;
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(full),
                     "r"(Shape::WEIGHT_BYTES)
                     : "memory");
        copy_weights<Shape, GATED>(args, r.data + i * Shape::STAGE_BYTES + Shape::TOKEN_BYTES,
                                   i * BLOCK, guess.col * Shape::COLS, full);
    }
    rp_pdl_wait();
    rp_pdl_trigger(); /* not before: matmul_cuda.h */
    walk w = walk_begin<Shape>(args, *args.live);
    tile_at t;
    bool any = walk_next<Shape>(args, w, t);
    uint32_t block = 0;
    for (uint32_t i = 0; i < guess.stages; i++) {
        uint32_t full = r.full + 8 * r.stage;
        if (any && t.col == guess.col) {
            rp_barrier_expect(full, Shape::TOKEN_BYTES);
            rp_copy_box(r.data + r.stage * Shape::STAGE_BYTES, &args.in_map, block * BLOCK,
                        t.token * RP_WIDE_TOKENS, full, RP_L2_EVICT_LAST);
            block++;
        } else {
            rp_barrier_arrive(full); /* it will not be read */
        }
        ring_next<Shape>(r);
    }
    for (; any; any = walk_next<Shape>(args, w, t), block = 0) {
        uint32_t row = t.col * Shape::COLS, token = t.token * RP_WIDE_TOKENS;
        for (; block < args.blocks; block++) {
            uint32_t full = r.full + 8 * r.stage, data = r.data + r.stage * Shape::STAGE_BYTES;
            rp_barrier_wait(r.empty + 8 * r.stage, r.phase ^ 1);
            rp_barrier_expect(full, Shape::STAGE_BYTES);
            rp_copy_box(data, &args.in_map, block * BLOCK, token, full, RP_L2_EVICT_LAST);
            copy_weights<Shape, GATED>(args, data + Shape::TOKEN_BYTES, block * BLOCK, row, full);
            ring_next<Shape>(r);
        }
    }
    /* A block must not end before the other block's last arrival at its barriers: an access to the
     * shared memory of a block that has ended faults. All copies to both are complete by then. */
    for (int i = 0; i < Shape::STAGES && Shape::CLUSTER > 1; i++) {
        rp_barrier_wait(r.empty + 8 * r.stage, r.phase ^ 1);
        ring_next<Shape>(r);
    }
}

__device__ __forceinline__ void store_scale(uint32_t at, float scale) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(scale) : "memory");
}

/* Scales of a tile in shared memory guarded by two barriers: of its 128 tokens, then of the rows of
 * its box of weights. */
struct scale_area {
    uint32_t full, phase;
    __device__ __forceinline__ uint32_t empty() const { return full + 8; }
    __device__ __forceinline__ uint32_t tokens() const { return full + 16; }
    __device__ __forceinline__ uint32_t rows() const { return full + 16 + RP_WIDE_TOKENS * 4; }
};
template <typename Shape> __device__ __forceinline__ scale_area scales_behind(const ring &r) {
    return {r.empty + 8 * Shape::STAGES, 0};
}

/* Three warps. Not unrolled: they have few registers. */
template <typename Shape, bool GATED>
__device__ __forceinline__ void scale_all(const rp_matmul_wide_args &args, scale_area scales) {
    rp_pdl_wait();
    uint32_t live = *args.live;
    walk w = walk_begin<Shape>(args, live);
    for (tile_at t; walk_next<Shape>(args, w, t); scales.phase ^= 1) {
        uint32_t token = t.token * RP_WIDE_TOKENS, col = t.col * Shape::COLS / (GATED ? 2 : 1);
        rp_barrier_wait(scales.empty(), scales.phase ^ 1);
#pragma unroll 1
        for (uint32_t i = threadIdx.x - SCALING; i < RP_WIDE_TOKENS; i += THREADS - SCALING)
            store_scale(scales.tokens() + i * 4,
                        token + i < live ? __ldcg(args.in_scales + token + i) : 0.0f);
#pragma unroll 1
        for (uint32_t i = threadIdx.x - SCALING; i < Shape::COLS; i += THREADS - SCALING) {
            uint32_t row = col + (GATED ? i / 16 * 8 + i % 8 : i);
            uint32_t first = GATED && i % 16 >= 8 ? args.out_cols : 0; /* of the ups */
            store_scale(scales.rows() + i * 4,
                        row < args.out_cols ? __ldg(args.weight_scales + first + row) : 0.0f);
        }
        rp_barrier_arrive(scales.full); /* each thread */
    }
}

template <typename Shape> __device__ __forceinline__ void free_stage(uint32_t barrier) {
    if constexpr (Shape::CLUSTER > 1) {
        if (threadIdx.x % 32 < Shape::CLUSTER)
            asm volatile("{ .reg .b32 at; mapa.shared::cluster.u32 at, %0, %1;"
                         "mbarrier.arrive.shared::cluster.b64 _, [at]; }" ::"r"(barrier),
                         "r"(threadIdx.x % 32)
                         : "memory");
    } else if (threadIdx.x % 32 == 0) {
        rp_barrier_arrive(barrier);
    }
}

/* All threads of a cluster. */
template <typename Shape> __device__ __forceinline__ void meet_cluster() {
    if constexpr (Shape::CLUSTER > 1)
        asm volatile("barrier.cluster.arrive.relaxed;\n\t"
                     "barrier.cluster.wait;" ::
                         : "memory");
}

/* One block of K into sums; first: the chain begins. Frees the stage of the block before. */
template <typename Shape>
__device__ __forceinline__ void multiply_block(ring &r, uint32_t &before, uint32_t warpgroup,
                                               bool first,
                                               typename Shape::Sum (&sums)[Shape::SUMS]) {
    uint32_t data = r.data + r.stage * Shape::STAGE_BYTES;
    uint64_t a = rp_wgmma_operand(data + warpgroup * 64 * 128);
    uint64_t b = rp_wgmma_operand(data + Shape::TOKEN_BYTES);
    rp_barrier_wait(r.full + 8 * r.stage, r.phase);
    rp_wgmma_fence();
#pragma unroll
    for (int i = 0; i < BLOCK / 16; i++)
        rp_wgmma<Shape::COLS, Shape::TYPE>::run(sums, a + 2 * i, b + 2 * i, i > 0 || !first);
    rp_wgmma_commit();
    rp_wgmma_wait<1>();
    if (!first)
        free_stage<Shape>(before);
    before = r.empty + 8 * r.stage;
    ring_next<Shape>(r);
}

template <typename Shape> __device__ __forceinline__ void multiply_end(uint32_t before) {
    rp_wgmma_wait<0>();
    free_stage<Shape>(before);
}

/* total (+)= sums; total is the matrix's first segment where FIRST. */
template <typename Shape>
__device__ __forceinline__ void keep(const place &p, bool first, const float (&sums)[Shape::SUMS],
                                     float (&held)[Shape::HELD]) {
    uint32_t at = p.area + p.thread * 16;
    if (Shape::LAID > 0 && first)
        area_free(p);
    /* Loads under the additions: registers for them come free as sums are added up. */
    constexpr int AHEAD = Shape::LAID < Shape::HELD ? Shape::LAID : Shape::HELD;
    float4 laid[Shape::LAID / 4 + 1];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        held[i] = (first ? -0.0f : held[i]) + sums[i];
#pragma unroll
    for (int i = 0; i < Shape::LAID / 4; i++) {
        laid[i] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
        if (!first)
            laid[i] = load_shared(at + i * 2048);
    }
#pragma unroll
    for (int i = AHEAD; i < Shape::HELD; i++)
        held[i] = (first ? -0.0f : held[i]) + sums[i];
#pragma unroll
    for (int i = 0; i < Shape::LAID / 4; i++) {
        const float *from = &sums[Shape::HELD + i * 4];
        store_shared(at + i * 2048, make_float4(laid[i].x + from[0], laid[i].y + from[1],
                                                laid[i].z + from[2], laid[i].w + from[3]));
    }
}

__device__ __forceinline__ float load_scale(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ float2 load_scales(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

/* keep of 8-bit sums, times their scales. Shared memory is read just before it is written: the
 * registers for more are not there. */
template <typename Shape>
__device__ __forceinline__ void keep_scaled(const place &p, const scale_area &scales, bool first,
                                            const typename Shape::Sum (&sums)[Shape::SUMS],
                                            float (&held)[Shape::HELD]) {
    uint32_t at = p.area + p.thread * 16;
    if (Shape::LAID > 0 && first)
        area_free(p);
    uint32_t token = p.warpgroup * 64 + p.thread / 32 * 16 + p.thread % 32 / 4;
    float low = load_scale(scales.tokens() + token * 4);
    float high = load_scale(scales.tokens() + token * 4 + 32);
    uint32_t cols = scales.rows() + p.thread % 4 * 8;
#pragma unroll
    for (int j = 0; j < Shape::SUMS / 4; j++) {
        float2 col = load_scales(cols + j * 32);
        float sum[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] =
                rp_scaled(sums[j * 4 + i], rp_scaled(i < 2 ? low : high, i % 2 ? col.y : col.x));
        if (j * 4 < Shape::HELD) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                held[j * 4 + i] = (first ? -0.0f : held[j * 4 + i]) + sum[i];
        } else {
            uint32_t laid = at + (j - Shape::HELD / 4) * 2048;
            float4 old = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
            if (!first)
                old = load_shared(laid);
            store_shared(
                laid, make_float4(old.x + sum[0], old.y + sum[1], old.z + sum[2], old.w + sum[3]));
        }
    }
}

template <typename Shape, bool GATED, bool BF16>
__device__ __forceinline__ void multiply_all(const rp_matmul_wide_args &args, ring r, uint32_t area,
                                             rp_stamp &stamp) {
    constexpr uint32_t SLICES = Shape::SUMS / 16;
    scale_area scales = scales_behind<Shape>(r);
    place p;
    p.warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
    p.thread = threadIdx.x % 128;
    p.area = area + p.warpgroup * Shape::AREA_BYTES;
    p.ring = r.data + p.warpgroup * Shape::SUMS / 16 * 8192;
    p.leader = p.thread == 0;
    rp_pdl_wait();
    uint32_t live = *args.live;
    stamp.look();
    walk w = walk_begin<Shape>(args, live);
    pending last;
    float held[Shape::HELD];
    uint32_t turn = SLICES; /* of the tile before: slices that are stored */
    tile_at t;
    bool any = walk_next<Shape>(args, w, t);
    early<Shape> guess = guess_first<Shape>(args);
    if (!any || t.col != guess.col) {
        for (uint32_t i = 0; i < guess.stages; i++) {
            rp_barrier_wait(r.full + 8 * r.stage, r.phase);
            free_stage<Shape>(r.empty + 8 * r.stage);
            ring_next<Shape>(r);
        }
    }
    /* Until the second warpgroup may begin. */
    uint32_t ahead = any ? min(Shape::AHEAD, args.blocks) : 0;
    if (Shape::AHEAD > 0 && ahead > 0 && p.warpgroup > 0) {
        asm volatile("bar.sync 4, 256;" ::: "memory");
        ahead = 0;
    }
    for (; any; any = walk_next<Shape>(args, w, t)) {
        /* Zeros, although nobody reads them: else the sums of the tile before would seem alive
         * until here. */
        typename Shape::Sum sums[Shape::SUMS];
#pragma unroll
        for (int i = 0; i < Shape::SUMS; i++)
            sums[i] = 0;
        for (uint32_t begin = 0; begin < args.blocks; begin += args.segment_blocks) {
            uint32_t blocks = min(args.segment_blocks, args.blocks - begin), before = 0;
#pragma unroll 1
            for (uint32_t k = 0; k < blocks; k++) {
                multiply_block<Shape>(r, before, p.warpgroup, k == 0, sums);
                if (Shape::AHEAD > 0 && ahead > 0 && --ahead == 0)
                    asm volatile("bar.arrive 4, 256;" ::: "memory");
                if (Shape::MODE == STORE_UNDER && turn < SLICES) {
                    do
                        store_turn<Shape, GATED, BF16, false>(turn, args, p, last, live, held);
                    while (++turn < SLICES && k + 1 == blocks);
                }
            }
            multiply_end<Shape>(before);
            if constexpr (Shape::SCALED) {
                rp_barrier_wait(scales.full, scales.phase);
                keep_scaled<Shape>(p, scales, begin == 0 || Shape::MODE == STORE_SUMS, sums, held);
            } else if constexpr (Shape::MODE != STORE_SUMS) {
                keep<Shape>(p, begin == 0, sums, held);
            }
        }
        if constexpr (Shape::SCALED) {
            rp_barrier_arrive(scales.empty()); /* each for itself: so racecheck follows it */
            scales.phase ^= 1;
        }
        last.token = t.token * RP_WIDE_TOKENS + p.warpgroup * 64;
        last.col = t.col * Shape::COLS / (GATED ? 2 : 1);
        last.bulk = args.bulk_stores && last.token + 64 <= live;
        bool stores = last.token < live && last.col < args.out_cols;
        if constexpr (Shape::MODE == STORE_UNDER) {
            turn = stores ? 0 : SLICES;
        } else if constexpr (Shape::MODE == STORE_SUMS && !Shape::SCALED) {
            if (stores)
                store_tile<Shape, GATED, BF16>(args, p, last, live, sums);
        } else if (stores) {
            store_tile<Shape, GATED, BF16>(args, p, last, live, held);
        }
    }
    if constexpr (Shape::MODE == STORE_UNDER) {
        /* Both are through: the stages are free, a box for each. */
        asm volatile("bar.sync 3, 256;" ::: "memory");
        for (; turn < SLICES; turn++)
            store_turn<Shape, GATED, BF16, true>(turn, args, p, last, live, held);
    }
    if (p.leader)
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <int COLS, int HELD, int STAGES, bool GATED, bool BF16, rp_wgmma_type TYPE,
          store_mode MODE>
__global__ void __launch_bounds__(THREADS, 1)
    matmul_wide(const __grid_constant__ rp_matmul_wide_args args) {
#if RP_CUDA_HOPPER
    using Shape = shape<COLS, HELD, STAGES, TYPE, MODE>;
    extern __shared__ __align__(1024) unsigned char shared[];
    rp_stamp stamp(args.stamp);
    ring r;
    r.data = (rp_shared_address(shared) + 1023) & ~1023u;
    uint32_t area = r.data + STAGES * Shape::STAGE_BYTES;
    r.full = area + 2 * Shape::AREA_BYTES;
    r.empty = r.full + 8 * STAGES;
    r.stage = r.phase = 0;
    if (threadIdx.x == COPYING) {
        rp_map_prefetch(&args.weight_map);
        rp_map_prefetch(&args.in_map);
        for (uint32_t i = 0; i < STAGES; i++) {
            rp_barrier_init(r.full + 8 * i, 1);
            rp_barrier_init(r.empty + 8 * i, Shape::CLUSTER * COPYING / 32); /* warps */
        }
        if (Shape::SCALED) {
            scale_area scales = scales_behind<Shape>(r);
            rp_barrier_init(scales.full, THREADS - SCALING);
            rp_barrier_init(scales.empty(), COPYING);
        }
        rp_barrier_init_fence();
    }
    __syncthreads();
    meet_cluster<Shape>();
    if (threadIdx.x >= COPYING) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == COPYING)
            copy_all<Shape, GATED>(args, r);
        else if (Shape::SCALED && threadIdx.x >= SCALING)
            scale_all<Shape, GATED>(args, scales_behind<Shape>(r));
        else
            rp_pdl_wait();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply_all<Shape, GATED, BF16>(args, r, area, stamp);
    }
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

template <int COLS, int HELD, int STAGES, bool GATED, bool BF16, rp_wgmma_type TYPE,
          store_mode MODE>
rp_matmul_wide_kernel rp_matmul_wide_kernel_of() {
    return {matmul_wide<COLS, HELD, STAGES, GATED, BF16, TYPE, MODE>,
            shape<COLS, HELD, STAGES, TYPE, MODE>::SHARED_BYTES};
}

struct rp_matmul_wide_entry {
    uint32_t cols;
    bool gated, bf16;
    rp_wgmma_type type;
    rp_matmul_wide_kernel kernel;
};

template <int COUNT>
rp_matmul_wide_kernel rp_matmul_wide_find(const rp_matmul_wide_entry (&entries)[COUNT],
                                          const rp_matmul_wide_args &args) {
    for (const rp_matmul_wide_entry &entry : entries)
        if (entry.cols == args.cols && entry.gated == args.gated && entry.bf16 == args.out_bf16 &&
            entry.type == rp_wgmma_type_of(args.dtype))
            return entry.kernel;
    return {};
}

} // namespace

#endif
