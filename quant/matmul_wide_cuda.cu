/* matmul_wide_cuda.cu - bf16 products of prompts on Hopper's tensor cores.
 *
 * Tokens are the instruction's left operand here, weights its right one: a tile is 128 tokens x up to 256
 * outputs, two warpgroups of 64 tokens each, and a third that copies. */
#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_wgmma.cuh"
#include "quant/matmul_wide_cuda.h"

namespace {

#define BLOCK 64 /* columns of K in a stage */

template <int COLS_, int HELD_, int STAGES_, int CLUSTER_> struct shape {
    static constexpr int COLS = COLS_, STAGES = STAGES_, CLUSTER = CLUSTER_;
    static constexpr int SUMS = COLS / 2;
    static constexpr int HELD = HELD_ < SUMS ? HELD_ : SUMS;  /* totals in registers */
    static constexpr int LAID = SUMS - HELD;                  /* totals in shared memory */
    static constexpr uint32_t TOKEN_BYTES = RP_WIDE_TOKENS * 128, WEIGHT_BYTES = COLS * 128;
    static constexpr uint32_t STAGE_BYTES = TOKEN_BYTES + WEIGHT_BYTES;
    /* of a warpgroup: laid totals, then boxes of 64 rows x 128 bytes on their way out */
    static constexpr uint32_t BOXES = LAID > 32 ? LAID / 16 : 2, AREA_BYTES = BOXES * 8192;
    static constexpr uint32_t SHARED_BYTES = 1024 + STAGES * STAGE_BYTES + 2 * AREA_BYTES + 16 * STAGES;
};

struct walk {
    uint32_t at, end, step, token_units;
};
struct tile_at {
    uint32_t token, col; /* tiles */
};

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

template <int CLUSTER>
__device__ __forceinline__ walk walk_begin(const rp_matmul_wide_args &args, uint32_t live) {
    uint32_t pair = CLUSTER == 2 && args.tile.share == RP_WIDE_SHARE_WEIGHTS ? 2 : 1;
    walk w;
    w.token_units = min(args.token_units, RP_CEIL_DIV(live, RP_WIDE_TOKENS * pair));
    w.at = blockIdx.x / CLUSTER;
    w.step = gridDim.x / CLUSTER;
    w.end = w.token_units * args.col_units;
    return w;
}

template <int CLUSTER>
__device__ __forceinline__ bool walk_next(const rp_matmul_wide_args &args, walk &w, uint32_t rank,
                                          tile_at &out) {
    if (w.at >= w.end)
        return false;
    uint32_t group = w.at / (args.col_units * args.group_units);
    uint32_t width = min(args.group_units, w.token_units - group * args.group_units);
    uint32_t inside = w.at - group * args.col_units * args.group_units;
    out.col = inside / width;
    out.token = group * args.group_units + inside % width;
    if (CLUSTER == 2) {
        if (args.tile.share == RP_WIDE_SHARE_WEIGHTS)
            out.token = 2 * out.token + rank;
        else
            out.col = 2 * out.col + rank;
    }
    w.at += w.step;
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

template <bool SHARED>
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y,
                                         uint32_t barrier, uint64_t policy) {
    if (!SHARED)
        rp_copy_box(to, map, x, y, barrier, policy);
    else
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
                     "l"(map), "r"(x), "r"(y), "r"(barrier), "h"((uint16_t)3), "l"(policy)
                     : "memory");
}
template <bool SHARED>
__device__ __forceinline__ void copy_box_4d(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y,
                                            uint32_t barrier, uint64_t policy) {
    if (!SHARED)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%2, %5, %5, %3}], [%4], %6;" ::"r"(to),
                     "l"(map), "r"(x), "r"(y), "r"(barrier), "r"(0), "l"(policy)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %5, %5, %3}], [%4], %6, %7;" ::"r"(to),
                     "l"(map), "r"(x), "r"(y), "r"(barrier), "r"(0), "h"((uint16_t)3), "l"(policy)
                     : "memory");
}

template <typename Shape, bool GATED, bool SHARED>
__device__ __forceinline__ void copy_weights(const rp_matmul_wide_args &args, uint32_t to, uint32_t x, uint32_t row,
                                             uint32_t barrier) {
    if (GATED)
        copy_box_4d<SHARED>(to, &args.weight_map, x, row / 16, barrier, RP_L2_EVICT_NORMAL);
    else
        copy_box<SHARED>(to, &args.weight_map, x, row, barrier, RP_L2_EVICT_NORMAL);
}

/* One thread. */
template <typename Shape, bool GATED, bool SHARE_WEIGHTS, bool SHARE_TOKENS>
__device__ __forceinline__ void copy_all(const rp_matmul_wide_args &args, ring r, uint32_t rank) {
    constexpr uint32_t WEIGHT_ROWS = SHARE_WEIGHTS ? Shape::COLS / 2 : Shape::COLS;
    constexpr uint32_t TOKEN_ROWS = SHARE_TOKENS ? RP_WIDE_TOKENS / 2 : RP_WIDE_TOKENS;
    rp_pdl_wait();
    walk w = walk_begin<Shape::CLUSTER>(args, *args.live);
    tile_at t;
    while (walk_next<Shape::CLUSTER>(args, w, rank, t)) {
        uint32_t row = t.col * Shape::COLS, token = t.token * RP_WIDE_TOKENS;
        uint32_t token_to = 0, weight_to = Shape::TOKEN_BYTES;
        if (SHARE_WEIGHTS) {
            row += rank * WEIGHT_ROWS;
            weight_to += rank * WEIGHT_ROWS * 128;
        }
        if (SHARE_TOKENS) {
            token += rank * TOKEN_ROWS;
            token_to += rank * TOKEN_ROWS * 128;
        }
        for (uint32_t block = 0; block < args.blocks; block++) {
            uint32_t full = r.full + 8 * r.stage, data = r.data + r.stage * Shape::STAGE_BYTES;
            rp_barrier_wait(r.empty + 8 * r.stage, r.phase ^ 1);
            rp_barrier_expect(full, Shape::STAGE_BYTES);
            copy_box<SHARE_TOKENS>(data + token_to, &args.in_map, block * BLOCK, token, full,
                                   RP_L2_EVICT_LAST);
            copy_weights<Shape, GATED, SHARE_WEIGHTS>(args, data + weight_to, block * BLOCK, row, full);
            ring_next<Shape>(r);
        }
    }
}

template <typename Shape> __device__ __forceinline__ void free_stage(uint32_t barrier, uint32_t peer) {
    uint32_t lane = threadIdx.x % 32;
    if (Shape::CLUSTER == 1) {
        if (lane == 0)
            rp_barrier_arrive(barrier);
    } else if (lane < 2) {
        uint32_t remote;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(barrier), "r"(lane));
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
    }
    (void)peer;
}

template <typename Shape>
__device__ __forceinline__ void multiply_segment(ring &r, uint32_t warpgroup, uint32_t blocks,
                                                 float (&sums)[Shape::SUMS]) {
    uint32_t before = 0;
    for (uint32_t k = 0; k < blocks; k++) {
        uint32_t data = r.data + r.stage * Shape::STAGE_BYTES;
        uint64_t a = rp_wgmma_operand(data + warpgroup * 64 * 128);
        uint64_t b = rp_wgmma_operand(data + Shape::TOKEN_BYTES);
        rp_barrier_wait(r.full + 8 * r.stage, r.phase);
        rp_wgmma_fence();
#pragma unroll
        for (int i = 0; i < BLOCK / 16; i++)
            rp_wgmma<Shape::COLS>::run(sums, a + 2 * i, b + 2 * i, (k | i) != 0);
        rp_wgmma_commit();
        rp_wgmma_wait<1>();
        if (k > 0)
            free_stage<Shape>(before, 0);
        before = r.empty + 8 * r.stage;
        ring_next<Shape>(r);
    }
    rp_wgmma_wait<0>();
    free_stage<Shape>(before, 0);
}

/* Where a warpgroup keeps totals, and later boxes on their way out. */
struct place {
    uint32_t thread, warpgroup;
    uint32_t area; /* shared */
    bool leader;
};

__device__ __forceinline__ void area_free(const place &p) {
    if (p.leader)
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    rp_warpgroup_sync(p.warpgroup);
}
/* -0 where there is nothing yet: -0 + x is x for every x. */
__device__ __forceinline__ float4 load_shared(uint32_t at, uint32_t any) {
    float4 v;
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0;"
                 "mov.b32 %0, 0x80000000; mov.b32 %1, 0x80000000; mov.b32 %2, 0x80000000; mov.b32 %3, 0x80000000;"
                 "@p ld.shared.v4.f32 {%0, %1, %2, %3}, [%4]; }"
                 : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w)
                 : "r"(at), "r"(any)
                 : "memory");
    return v;
}
__device__ __forceinline__ void store_shared(uint32_t at, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* total += sums */
template <typename Shape>
__device__ __forceinline__ void keep(const place &p, uint32_t segment, const float (&sums)[Shape::SUMS],
                                     float (&held)[Shape::HELD]) {
    uint32_t at = p.area + p.thread * 16;
    if (Shape::LAID > 0 && segment == 0)
        area_free(p);
#pragma unroll
    for (int i = 0; i < Shape::HELD; i++)
        held[i] += sums[i];
#pragma unroll
    for (int i = 0; i < Shape::LAID; i += 4) {
        float4 v = load_shared(at + i * 512, segment);
        v.x += sums[Shape::HELD + i];
        v.y += sums[Shape::HELD + i + 1];
        v.z += sums[Shape::HELD + i + 2];
        v.w += sums[Shape::HELD + i + 3];
        store_shared(at + i * 512, v);
    }
}

template <typename Shape>
__device__ __forceinline__ void collect(const place &p, const float (&held)[Shape::HELD],
                                        float (&total)[Shape::SUMS]) {
    uint32_t at = p.area + p.thread * 16;
#pragma unroll
    for (int i = 0; i < Shape::HELD; i++)
        total[i] = held[i];
#pragma unroll
    for (int i = 0; i < Shape::LAID; i += 4) {
        float4 v = load_shared(at + i * 512, 1);
        total[Shape::HELD + i] = v.x;
        total[Shape::HELD + i + 1] = v.y;
        total[Shape::HELD + i + 2] = v.z;
        total[Shape::HELD + i + 3] = v.w;
    }
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&v;
}

/* bias[OFFSET] where OFFSET < left, else 0; volatile, so that one box's loads do not move before another's. */
template <int OFFSET> __device__ __forceinline__ float load_bias(const float *bias, uint32_t left) {
    float v;
    asm volatile("{ .reg .pred p; setp.gt.u32 p, %2, %3; mov.b32 %0, 0; @p ld.global.nc.f32 %0, [%1 + %4]; }"
                 : "=&f"(v)
                 : "l"(bias), "r"(left), "n"(OFFSET), "n"(OFFSET * 4));
    return v;
}

template <int SUMS, int J = 0>
__device__ __forceinline__ void add_bias(const float *bias, uint32_t left, float (&v)[SUMS]) {
    if constexpr (J < SUMS / 4) {
        float low = load_bias<J * 8>(bias, left), high = load_bias<J * 8 + 1>(bias, left);
        v[J * 4] += low;
        v[J * 4 + 1] += high;
        v[J * 4 + 2] += low;
        v[J * 4 + 3] += high;
        add_bias<SUMS, J + 1>(bias, left, v);
    }
}

__device__ __forceinline__ void bulk_store(const rp_matmul_wide_args &args, uint32_t from, uint32_t x, uint32_t y) {
    if (args.reduce)
        asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                         &args.out_map),
                     "r"(x), "r"(y), "r"(from)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&args.out_map),
                     "r"(x), "r"(y), "r"(from)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Where a box of 64 rows of BYTES has these 16 bytes: swizzled as its tensor map says. */
template <uint32_t BYTES> __device__ __forceinline__ uint32_t box_at(uint32_t row, uint32_t chunk) {
    constexpr uint32_t TURN = BYTES / 16 - 1;
    return row * BYTES + ((chunk ^ (row / (128 / BYTES) & TURN)) * 16);
}

/* One box of 64 rows. */
template <int SUMS> __device__ __forceinline__ void stage_bf16(uint32_t to, uint32_t thread, const float (&v)[SUMS]) {
    uint32_t row = thread / 32 * 16 + thread % 16, chunk = thread % 32 / 16;
#pragma unroll
    for (int i = 0; i < SUMS; i += 8)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         to + box_at<SUMS * 4>(row, i / 4 + chunk)),
                     "r"(pack(v[i], v[i + 1])), "r"(pack(v[i + 2], v[i + 3])), "r"(pack(v[i + 4], v[i + 5])),
                     "r"(pack(v[i + 6], v[i + 7]))
                     : "memory");
}
__device__ __forceinline__ void stage_f32(uint32_t to, uint32_t thread, const float (&v)[16]) {
    uint32_t row = thread / 32 * 16 + thread % 32 / 4, turn = row % 8;
    uint32_t base = to + row * 128 + thread % 2 * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t at = base + ((j * 2 + thread % 4 / 2) ^ turn) * 16;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v[j * 4]), "f"(v[j * 4 + 1]) : "memory");
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 1024), "f"(v[j * 4 + 2]), "f"(v[j * 4 + 3])
                     : "memory");
    }
}

/* What a bulk copy cannot do: rows past the live ones, odd strides, adding to what is there. */
template <uint32_t BYTES, bool BF16>
__device__ __forceinline__ void store_box(const rp_matmul_wide_args &args, uint32_t from, uint32_t thread,
                                          uint32_t col, uint32_t token, uint32_t live) {
    constexpr uint32_t COLS = BYTES / (BF16 ? 2 : 4);
    uint32_t rows = min(live - token, 64u);
#pragma unroll 4
    for (uint32_t i = thread; i < 64 * COLS; i += 128) {
        uint32_t row = i / COLS, c = i % COLS, byte = c * (BF16 ? 2 : 4);
        uint32_t at = from + box_at<BYTES>(row, byte / 16) + byte % 16;
        if (row >= rows || col + c >= args.out_cols)
            continue;
        size_t to = (size_t)(token + row) * args.out_stride + col + c;
        if (BF16) {
            uint16_t v;
            asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
            ((uint16_t *)args.out)[to] = v;
        } else {
            float v;
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
            float *out = (float *)args.out + to;
            *out = args.accumulate ? *out + v : v;
        }
    }
}

/* token, col: of the warpgroup's first output. */
template <typename Shape, bool GATED, bool BF16>
__device__ __forceinline__ void store_tile(const rp_matmul_wide_args &args, const place &p, uint32_t token,
                                           uint32_t col, uint32_t live, const float (&sums)[Shape::SUMS]) {
    constexpr int SUMS = GATED ? Shape::SUMS / 2 : Shape::SUMS;
    constexpr uint32_t ROW_BYTES = SUMS * (BF16 ? 4 : 8);
    constexpr uint32_t BYTES = ROW_BYTES % 128 == 0 ? 128 : ROW_BYTES % 64 == 0 ? 64 : 32;
    constexpr int BOX_SUMS = BYTES / (BF16 ? 4 : 8), BOX_COLS = BOX_SUMS * 2;
    bool bulk = args.bulk_stores && token + 64 <= live;
#pragma unroll
    for (int box = 0; box < SUMS / BOX_SUMS; box++) {
        float v[BOX_SUMS];
#pragma unroll
        for (int i = 0; i < BOX_SUMS; i++) {
            int at = box * BOX_SUMS + i, gate = at / 4 * 8 + at % 4;
            v[i] = GATED ? rp_activate(args.fn, sums[gate]) * sums[gate + 4] : sums[at];
        }
        uint32_t to = p.area + box % Shape::BOXES * 8192;
        if (box == 0) {
            area_free(p);
        } else if (box >= (int)Shape::BOXES) {
            if (p.leader)
                asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Shape::BOXES - 1) : "memory");
            rp_warpgroup_sync(p.warpgroup);
        }
        if constexpr (BF16)
            stage_bf16(to, p.thread, v);
        else
            stage_f32(to, p.thread, v);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        rp_warpgroup_sync(p.warpgroup);
        if (!bulk)
            store_box<BYTES, BF16>(args, to, p.thread, col + box * BOX_COLS, token, live);
        else if (p.leader)
            bulk_store(args, to, col + box * BOX_COLS, token);
    }
}

template <typename Shape, bool GATED>
__device__ __forceinline__ void multiply_all(const rp_matmul_wide_args &args, ring r, uint32_t area, uint32_t rank) {
    place p;
    p.warpgroup = threadIdx.x / 128;
    p.thread = threadIdx.x % 128;
    p.area = area + p.warpgroup * Shape::AREA_BYTES;
    p.leader = p.thread == 0;
    rp_pdl_wait();
    uint32_t live = *args.live;
    walk w = walk_begin<Shape::CLUSTER>(args, live);
    tile_at t;
    while (walk_next<Shape::CLUSTER>(args, w, rank, t)) {
        /* Zeros, although nobody reads them: else the sums of the tile before would seem alive until here. */
        float part[Shape::SUMS], held[Shape::HELD];
#pragma unroll
        for (int i = 0; i < Shape::SUMS; i++)
            part[i] = 0;
#pragma unroll
        for (int i = 0; i < Shape::HELD; i++)
            held[i] = -0.0f;
        for (uint32_t segment = 0; segment < args.segments; segment++) {
            uint32_t blocks = min(args.segment_blocks, args.blocks - segment * args.segment_blocks);
            multiply_segment<Shape>(r, p.warpgroup, blocks, part);
            keep<Shape>(p, segment, part, held);
        }
        uint32_t token = t.token * RP_WIDE_TOKENS + p.warpgroup * 64;
        uint32_t col = t.col * Shape::COLS / (GATED ? 2 : 1);
        if (token >= live || col >= args.out_cols)
            continue;
        float sums[Shape::SUMS];
        collect<Shape>(p, held, sums);
        uint32_t thread_col = col + p.thread % 4 * 2;
        if (!GATED && args.bias)
            add_bias(args.bias + thread_col, args.out_cols - min(args.out_cols, thread_col), sums);
        if constexpr (GATED)
            store_tile<Shape, true, true>(args, p, token, col, live, sums);
        else if (args.out_bf16)
            store_tile<Shape, false, true>(args, p, token, col, live, sums);
        else
            store_tile<Shape, false, false>(args, p, token, col, live, sums);
    }
    if (p.leader)
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <int COLS, int HELD, int STAGES, int CLUSTER, bool GATED>
__global__ void __launch_bounds__(384, 1) matmul_wide(const __grid_constant__ rp_matmul_wide_args args) {
#if RP_CUDA_HOPPER
    using Shape = shape<COLS, HELD, STAGES, CLUSTER>;
    extern __shared__ __align__(1024) unsigned char shared[];
    rp_pdl_trigger();
    uint32_t rank = CLUSTER > 1 ? cluster_rank() : 0;
    ring r;
    r.data = (rp_shared_address(shared) + 1023) & ~1023u;
    uint32_t area = r.data + STAGES * Shape::STAGE_BYTES;
    r.full = area + 2 * Shape::AREA_BYTES;
    r.empty = r.full + 8 * STAGES;
    r.stage = r.phase = 0;
    if (threadIdx.x == 256) {
        rp_map_prefetch(&args.weight_map);
        rp_map_prefetch(&args.in_map);
        for (uint32_t i = 0; i < STAGES; i++) {
            rp_barrier_init(r.full + 8 * i, 1);
            rp_barrier_init(r.empty + 8 * i, 8 * CLUSTER); /* warps */
        }
        rp_barrier_init_fence();
    }
    __syncthreads();
    if (CLUSTER > 1)
        cluster_sync();
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 256) {
            if (CLUSTER == 1)
                copy_all<Shape, GATED, false, false>(args, r, rank);
            else if (args.tile.share == RP_WIDE_SHARE_WEIGHTS)
                copy_all<Shape, GATED, true, false>(args, r, rank);
            else
                copy_all<Shape, GATED, false, true>(args, r, rank);
        } else {
            rp_pdl_wait();
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply_all<Shape, GATED>(args, r, area, rank);
    }
    if (CLUSTER > 1) /* nobody leaves while the other writes here */
        asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

struct kernel_entry {
    uint32_t cols, variant, cluster;
    bool gated;
    void (*kernel)(rp_matmul_wide_args);
    uint32_t shared_bytes;
};

#define ONE(cols, variant, held, stages, cluster, gated)                                           \
    {                                                                                              \
        cols, variant, cluster, gated, matmul_wide<cols, held, stages, cluster, gated>,             \
            shape<cols, held, stages, cluster>::SHARED_BYTES                                       \
    }
#define FOUR(cols, variant, held, stages)                                                          \
    ONE(cols, variant, held, stages, 1, false), ONE(cols, variant, held, stages, 2, false),        \
        ONE(cols, variant, held, stages, 1, true), ONE(cols, variant, held, stages, 2, true)
const kernel_entry kernels[] = {
#ifdef ONLY
    ONE(256, 0, 96, 4, 2, false), ONE(256, 1, 64, 3, 2, false),
#else
    FOUR(128, 0, 64, 6), FOUR(192, 0, 96, 4), FOUR(224, 0, 80, 4), FOUR(256, 0, 96, 4), FOUR(256, 1, 64, 3),
#endif
};

const kernel_entry *find_kernel(const rp_matmul_wide_args &args) {
    uint32_t cluster = args.tile.share == RP_WIDE_SHARE_NONE ? 1 : 2;
    for (const kernel_entry &entry : kernels)
        if (entry.cols == args.tile.cols && entry.variant == args.tile.variant && entry.cluster == cluster &&
            entry.gated == args.gated)
            return &entry;
    return nullptr;
}

} // namespace

int rp_matmul_wide_cuda_prepare(struct rp_matmul_wide_args *args) {
    const kernel_entry *entry = find_kernel(*args);
    if (!entry)
        return RP_STATUS_NOT_FOUND;
    args->shared_bytes = entry->shared_bytes;
    cudaError_t error = cudaFuncSetAttribute(
        entry->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)entry->shared_bytes);
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_wide_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_wide_args *args = (const rp_matmul_wide_args *)args_void;
    const kernel_entry *entry = find_kernel(*args);
    return rp_cuda_start(entry->kernel, dim3(args->grid), dim3(384), args->shared_bytes, stream,
                         args->dependent, *args, entry->cluster);
}
