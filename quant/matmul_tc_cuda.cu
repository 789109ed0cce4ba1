/* matmul_tc_cuda.cu - bf16 products on Hopper's tensor cores, one kernel for every number of rows.
 *
 * Weights are the instruction's left operand (64 rows per warpgroup), tokens its right one, so the same
 * chain of instructions makes an output whatever the tile. A block is one copying warp and one or two
 * multiplying warpgroups around a ring of stages in shared memory:
 *
 *   copying warp   weight boxes and token boxes -> stage; waits until the stage is empty
 *   warpgroups     wait until the stage is full; 4 instructions per 64 columns of K; free the stage
 *
 * The first stages' weights are requested before the kernel waits for its predecessor: weights never
 * depend on it. With a footprint of half an SM, a product's weights so arrive while the one before and
 * the small kernels between still run.
 *
 * Work is a list of (tile, K segment), tile-major. In ORDER_RUNS each block takes an equal, contiguous run of
 * it. A tile that is split belongs to the block with its segment 0; the blocks after it do their part of
 * the tile first and leave each segment in shares[block], so the owner, which comes to the tile last,
 * finds them there and adds them in order. */
#include "device/cuda_kernel.cuh"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_wgmma.cuh"

#include <stdio.h>
#include <stdlib.h>

#define STAGES_MAX  32
#define GROUP_TILES 16 /* token tiles that ORDER_WAVES keeps together */

namespace {

template <int NT, int WARPGROUPS, int SHARE, int BOXES_> struct shape {
    static constexpr int BOXES = BOXES_; /* of 64 columns in a stage */
    static constexpr int CLUSTER = SHARE == RP_MATMUL_SHARE_NONE ? 1 : 2;
    static constexpr int TOKENS = NT;
    static constexpr int ROWS = 64 * WARPGROUPS;
    static constexpr int ROW_PAIR = SHARE == RP_MATMUL_SHARE_TOKENS ? 2 : 1;    /* tiles of a */
    static constexpr int TOKEN_PAIR = SHARE == RP_MATMUL_SHARE_WEIGHTS ? 2 : 1; /* cluster */
    static constexpr uint32_t WEIGHT_BYTES = ROWS * 128, TOKEN_BYTES = TOKENS * 128;
    static constexpr uint32_t STAGE_BYTES = BOXES * (WEIGHT_BYTES + TOKEN_BYTES);
    /* So few instructions a stage that waiting for them at once costs nothing, and frees it earlier. */
    static constexpr bool EAGER = NT <= 64;
    /* Two sets of sums of 96 registers each want more than a third of the registers: the copying
     * warpgroup then gives up its own. */
    static constexpr bool WIDE = TOKENS > 128;
    static constexpr int THREADS = 128 * WARPGROUPS + (WIDE ? 128 : 32);
    /* 2 * 128 registers of sums do not fit: such a tile takes matrices of one segment. */
    static constexpr bool ONE_SEGMENT = TOKENS > 192;
};

/* Segments [begin, end) of one tile. */
struct run {
    uint32_t row_tile, token_tile, begin, end;
};

/* The tiles of one block in its order. */
struct walk {
    uint32_t at, end, step;        /* units in ORDER_RUNS, tiles in ORDER_WAVES */
    uint32_t row_cells, tok_cells; /* tiles of a cluster */
};

template <typename Shape>
__device__ __forceinline__ walk walk_begin(const rp_matmul_tc_args &args, uint32_t live) {
    uint32_t block = blockIdx.x / Shape::CLUSTER, count = gridDim.x / Shape::CLUSTER;
    walk w;
    uint32_t tiles = args.token_tiles;
    if (tiles > 1)
        tiles = min(tiles, RP_CEIL_DIV(live, (uint32_t)Shape::TOKENS));
    w.tok_cells = RP_CEIL_DIV(tiles, Shape::TOKEN_PAIR);
    w.row_cells = RP_CEIL_DIV(args.row_tiles, Shape::ROW_PAIR);
    uint32_t cells = w.row_cells * w.tok_cells;
    if (args.tile.order == RP_MATMUL_ORDER_RUNS) {
        uint32_t units = cells * args.segments, share = RP_CEIL_DIV(units, count);
        w.at = min(block * share, units);
        w.end = min(w.at + share, units);
        w.step = 0;
    } else {
        w.at = block;
        w.end = cells;
        w.step = count;
    }
    return w;
}

/* The next run of the block; false at the end. Neighbours in the list share weights. */
template <typename Shape>
__device__ __forceinline__ bool walk_next(const rp_matmul_tc_args &args, walk &w, run &out) {
    if (w.at >= w.end)
        return false;
    uint32_t cell = w.at, rank = Shape::CLUSTER > 1 ? rp_cluster_rank() : 0;
    out.begin = 0;
    out.end = args.segments;
    if (args.tile.order == RP_MATMUL_ORDER_RUNS) {
        cell = w.at / args.segments;
        out.begin = w.at % args.segments;
        out.end = min(args.segments, out.begin + (w.end - w.at));
        w.at += out.end - out.begin;
    } else {
        w.at += w.step;
    }
    uint32_t group = cell / (w.row_cells * GROUP_TILES);
    uint32_t width = min((uint32_t)GROUP_TILES, w.tok_cells - group * GROUP_TILES);
    uint32_t inside = cell - group * w.row_cells * GROUP_TILES;
    out.row_tile = inside / width * Shape::ROW_PAIR + (Shape::ROW_PAIR > 1 ? rank : 0);
    out.token_tile = (group * GROUP_TILES + inside % width) * Shape::TOKEN_PAIR +
                     (Shape::TOKEN_PAIR > 1 ? rank : 0);
    return true;
}

/* The walk in steps of one stage. */
template <typename Shape> struct steps {
    walk w;
    run r;
    uint32_t block, count; /* boxes of this stage: blocks [block, block + count) of K */
    uint32_t segment_end, end;
    bool valid;

    __device__ __forceinline__ void enter_segment(const rp_matmul_tc_args &args) {
        segment_end = min(block + args.segment_blocks, end);
        count = min((uint32_t)Shape::BOXES, segment_end - block);
    }
    __device__ __forceinline__ void enter(const rp_matmul_tc_args &args) {
        valid = walk_next<Shape>(args, w, r);
        block = r.begin * args.segment_blocks;
        end = min(r.end * args.segment_blocks, args.blocks);
        enter_segment(args);
    }
    __device__ __forceinline__ void next(const rp_matmul_tc_args &args) {
        block += count;
        if (block == end)
            enter(args);
        else if (block == segment_end)
            enter_segment(args);
        else
            count = min((uint32_t)Shape::BOXES, segment_end - block);
    }
};

/* Barriers and stages in shared memory. */
template <typename Shape> struct ring {
    uint32_t full, empty, data; /* 8 bytes each; stages 1024-aligned for the swizzle */
    uint32_t count;             /* of stages */
    uint32_t stage, phase;

    __device__ __forceinline__ uint32_t full_barrier() const { return full + 8 * stage; }
    __device__ __forceinline__ uint32_t empty_barrier() const { return empty + 8 * stage; }
    __device__ __forceinline__ uint32_t weights(uint32_t box) const {
        return data + stage * Shape::STAGE_BYTES + box * Shape::WEIGHT_BYTES;
    }
    __device__ __forceinline__ uint32_t tokens(uint32_t box) const {
        return weights(Shape::BOXES) + box * Shape::TOKEN_BYTES;
    }
    __device__ __forceinline__ void next() {
        if (++stage == count) {
            stage = 0;
            phase ^= 1;
        }
    }
};

template <typename Shape, int SHARE>
__device__ __forceinline__ void copy_weights(const rp_matmul_tc_args &args, const ring<Shape> &at,
                                             const steps<Shape> &s, uint64_t policy) {
    uint32_t y = s.r.row_tile * Shape::ROWS;
    rp_barrier_expect(at.full_barrier(), s.count * (Shape::WEIGHT_BYTES + Shape::TOKEN_BYTES));
    for (uint32_t box = 0; box < s.count; box++) {
        uint32_t x = (s.block + box) * RP_MATMUL_BLOCK, to = at.weights(box);
        if (SHARE == RP_MATMUL_SHARE_WEIGHTS) {
            uint32_t rank = rp_cluster_rank();
            rp_copy_box_to_both(to + rank * (Shape::WEIGHT_BYTES / 2), &args.weight_map, x,
                                y + rank * (Shape::ROWS / 2), at.full_barrier(), policy);
        } else {
            rp_copy_box(to, &args.weight_map, x, y, at.full_barrier(), policy);
        }
    }
}

template <typename Shape, int SHARE>
__device__ __forceinline__ void copy_tokens(const rp_matmul_tc_args &args, const ring<Shape> &at,
                                            const steps<Shape> &s) {
    uint32_t y = s.r.token_tile * Shape::TOKENS;
    for (uint32_t box = 0; box < s.count; box++) {
        uint32_t x = (s.block + box) * RP_MATMUL_BLOCK, to = at.tokens(box);
        if (SHARE == RP_MATMUL_SHARE_TOKENS) {
            uint32_t rank = rp_cluster_rank();
            rp_copy_box_to_both(to + rank * (Shape::TOKEN_BYTES / 2), &args.in_map, x,
                                y + rank * (Shape::TOKENS / 2), at.full_barrier(),
                                args.token_policy);
        } else {
            rp_copy_box(to, &args.in_map, x, y, at.full_barrier(), args.token_policy);
        }
    }
}

/* One thread. */
template <typename Shape, int SHARE>
__device__ __forceinline__ void copy_all(const rp_matmul_tc_args &args, ring<Shape> at) {
    uint64_t policy = args.weight_policy;
    uint32_t live = 0;
    /* How many token tiles are alive is known after the wait; one is always walked. */
    if (args.token_tiles > 1) {
        rp_pdl_wait();
        live = *args.live;
    }
    steps<Shape> s, t;
    s.w = walk_begin<Shape>(args, live);
    s.enter(args);
    t = s;
    ring<Shape> late = at;
    uint32_t early = 0;
    for (; s.valid && early < at.count; early++) {
        copy_weights<Shape, SHARE>(args, at, s, policy);
        s.next(args);
        at.next();
    }
    rp_pdl_wait();
    for (; early > 0; early--) {
        copy_tokens<Shape, SHARE>(args, late, t);
        t.next(args);
        late.next();
    }
    while (s.valid) {
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        copy_weights<Shape, SHARE>(args, at, s, policy);
        copy_tokens<Shape, SHARE>(args, at, s);
        s.next(args);
        at.next();
    }
}

/* Where the sums of one thread lie. */
struct place {
    uint32_t thread, warpgroup; /* thread of the warpgroup */
    uint32_t row, token;        /* of sum 0: in the matrix; in the tile */
    uint32_t base, columns;     /* first token of the tile; live ones in it */
};

template <int TOKENS>
__device__ __forceinline__ void store_partial(const rp_matmul_tc_args &args, const place &p,
                                              uint32_t segment, const float (&sums)[TOKENS / 2]) {
    float *to = args.partials + segment * args.split_stride;
#pragma unroll
    for (int i = 0; i < TOKENS / 2; i++) {
        uint32_t token = p.token + i / 4 * 8 + i % 2, row = p.row + i / 2 % 2 * 8;
        if (token < p.columns && row < args.n)
            to[(size_t)(p.base + token) * args.n + row] = sums[i];
    }
}

/* shares: (block)(segment)(warpgroup)(TOKENS / 8)(128 threads)(4) */
template <int TOKENS, int WARPGROUPS>
__device__ __forceinline__ float4 *share_at(const rp_matmul_tc_args &args, const place &p,
                                            uint32_t block, uint32_t segment) {
    float *to = args.shares + block * args.share_stride +
                (size_t)(segment * WARPGROUPS + p.warpgroup) * TOKENS * 64;
    return (float4 *)to + p.thread;
}

template <int TOKENS, int WARPGROUPS>
__device__ __forceinline__ void leave_share(const rp_matmul_tc_args &args, const place &p,
                                            uint32_t segment, const float (&sums)[TOKENS / 2]) {
    float4 *to = share_at<TOKENS, WARPGROUPS>(args, p, blockIdx.x, segment);
#pragma unroll
    for (int i = 0; i < TOKENS / 8; i++)
        if (i * 8 < p.columns)
            __stcg(to + i * 128,
                   make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
}

/* Adds segments [begin, segments) of this tile, which the following blocks have left. */
template <int TOKENS, int WARPGROUPS, int CLUSTER>
__device__ __forceinline__ void take_shares(const rp_matmul_tc_args &args, const place &p,
                                            uint32_t begin, uint32_t share,
                                            float (&total)[TOKENS / 2]) {
    for (uint32_t block = blockIdx.x + CLUSTER; begin < args.segments; block += CLUSTER) {
        uint32_t *flag = args.flags + block * WARPGROUPS + p.warpgroup;
        uint32_t end = min(args.segments, begin + share);
        while (rp_load_acquire(flag) == 0)
            ;
        rp_warpgroup_sync(p.warpgroup);
        if (p.thread == 0)
            *flag = 0;
        for (uint32_t segment = 0; begin < end; begin++, segment++) {
            const float4 *from = share_at<TOKENS, WARPGROUPS>(args, p, block, segment);
#pragma unroll
            for (int i = 0; i < TOKENS / 8; i++) {
                if (i * 8 < p.columns) {
                    float4 v = __ldcg(from + i * 128);
                    total[4 * i] += v.x;
                    total[4 * i + 1] += v.y;
                    total[4 * i + 2] += v.z;
                    total[4 * i + 3] += v.w;
                }
            }
        }
    }
}

/* total + bias (+ out). Eight lanes hold eight neighbouring outputs of a token: whole 32-byte sectors. */
template <int TOKENS>
__device__ __forceinline__ void store_f32(const rp_matmul_tc_args &args, const place &p,
                                          const float (&bias)[2],
                                          const float (&total)[TOKENS / 2]) {
    float *out = (float *)args.out + (size_t)(p.base + p.token) * args.out_stride + p.row;
#pragma unroll
    for (int i = 0; i < TOKENS / 2; i++) {
        if (p.token + i / 4 * 8 + i % 2 < p.columns && p.row + i / 2 % 2 * 8 < args.n) {
            float *at = out + (size_t)(i / 4 * 8 + i % 2) * args.out_stride + i / 2 % 2 * 8;
            float value = args.bias ? total[i] + bias[i / 2 % 2] : total[i];
            *at = args.accumulate ? *at + value : value;
        }
    }
}

template <int TOKENS>
__device__ __forceinline__ void store_bf16(const rp_matmul_tc_args &args, const place &p,
                                           const float (&bias)[2],
                                           const float (&total)[TOKENS / 2]) {
    __nv_bfloat16 *out =
        (__nv_bfloat16 *)args.out + (size_t)(p.base + p.token) * args.out_stride + p.row;
#pragma unroll
    for (int i = 0; i < TOKENS / 2; i++) {
        if (p.token + i / 4 * 8 + i % 2 < p.columns && p.row + i / 2 % 2 * 8 < args.n) {
            float value = args.bias ? total[i] + bias[i / 2 % 2] : total[i];
            out[(size_t)(i / 4 * 8 + i % 2) * args.out_stride + i / 2 % 2 * 8] =
                __float2bfloat16_rn(value);
        }
    }
}

template <typename Shape, int TOKENS>
__device__ __forceinline__ void free_stage(const ring<Shape> &at) {
    uint32_t lane = threadIdx.x % 32;
    if (Shape::CLUSTER > 1) {
        if (lane < Shape::CLUSTER)
            rp_barrier_arrive_at(at.empty_barrier(), lane);
    } else if (lane == 0) {
        rp_barrier_arrive(at.empty_barrier());
    }
}

/* One segment: a chain from zero over its columns in rising order. */
template <typename Shape, int TOKENS>
__device__ __forceinline__ void multiply_segment(ring<Shape> &at, uint32_t warpgroup,
                                                 uint32_t blocks, float (&sums)[TOKENS / 2]) {
    ring<Shape> before = at;
    for (uint32_t block = 0; block < blocks; block += Shape::BOXES) {
        rp_barrier_wait(at.full_barrier(), at.phase);
#pragma unroll
        for (int box = 0; box < Shape::BOXES; box++) {
            if (box > 0 && block + box >= blocks)
                break;
            rp_wgmma_fence();
            uint64_t a = rp_wgmma_operand(at.weights(box) + warpgroup * 64 * 128);
            uint64_t b = rp_wgmma_operand(at.tokens(box));
#pragma unroll
            for (int i = 0; i < RP_MATMUL_BLOCK / 16; i++)
                rp_wgmma<TOKENS>::run(sums, a + 2 * i, b + 2 * i, (block | box | i) != 0);
            rp_wgmma_commit();
        }
        if (Shape::EAGER) {
            rp_wgmma_wait<0>();
            free_stage<Shape, TOKENS>(at);
        } else {
            rp_wgmma_wait<1>();
            if (block > 0) {
                free_stage<Shape, TOKENS>(before);
                before.next();
            }
        }
        at.next();
    }
    if (!Shape::EAGER) {
        rp_wgmma_wait<0>();
        free_stage<Shape, TOKENS>(before);
    }
}

template <typename Shape, int TOKENS, int WARPGROUPS>
__device__ __forceinline__ void multiply_all(const rp_matmul_tc_args &args, ring<Shape> at) {
    place p;
    p.warpgroup = threadIdx.x / 128;
    p.thread = threadIdx.x % 128;
    rp_pdl_wait();
#ifdef RP_TRACE
    if (args.trace && threadIdx.x == 0)
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(args.trace[blockIdx.x * 4 + 1]));
#endif
    uint32_t live = *args.live;
    walk w = walk_begin<Shape>(args, live);
    uint32_t share = w.end - w.at; /* of a block, but for the last */
    if (args.tile.order == RP_MATMUL_ORDER_RUNS)
        share = RP_CEIL_DIV(w.row_cells * w.tok_cells * args.segments, gridDim.x / Shape::CLUSTER);
    run r;
    while (walk_next<Shape>(args, w, r)) {
        float total[TOKENS / 2];
        p.base = r.token_tile * TOKENS;
        p.columns = live > p.base ? min(live - p.base, (uint32_t)TOKENS) : 0;
        p.token = p.thread % 4 * 2;
        p.row =
            r.row_tile * Shape::ROWS + p.thread / 32 * 16 + p.thread % 32 / 4 + p.warpgroup * 64;
        for (uint32_t segment = r.begin; segment < r.end; segment++) {
            uint32_t first = segment * args.segment_blocks;
            uint32_t blocks = min(args.segment_blocks, args.blocks - first);
            if (Shape::ONE_SEGMENT) {
                multiply_segment<Shape, TOKENS>(at, p.warpgroup, blocks, total);
                continue;
            }
            float sums[TOKENS / 2];
            multiply_segment<Shape, TOKENS>(at, p.warpgroup, blocks, sums);
            if (args.partials)
                store_partial<TOKENS>(args, p, segment, sums);
            else if (r.begin > 0)
                leave_share<TOKENS, WARPGROUPS>(args, p, segment - r.begin, sums);
#pragma unroll
            for (int i = 0; i < TOKENS / 2; i++)
                total[i] = segment == r.begin ? sums[i] : total[i] + sums[i];
        }
        if (args.partials)
            continue;
        if (!Shape::ONE_SEGMENT && r.begin > 0) {
            __threadfence();
            rp_warpgroup_sync(p.warpgroup);
            if (p.thread == 0)
                rp_store_release(args.flags + blockIdx.x * WARPGROUPS + p.warpgroup, 1);
            continue;
        }
        if (!Shape::ONE_SEGMENT && r.end < args.segments)
            take_shares<TOKENS, WARPGROUPS, Shape::CLUSTER>(args, p, r.end, share, total);
        float bias[2] = {0, 0};
        if (args.bias && p.row < args.n)
            bias[0] = args.bias[p.row];
        if (args.bias && p.row + 8 < args.n)
            bias[1] = args.bias[p.row + 8];
        if (args.out_bf16)
            store_bf16<TOKENS>(args, p, bias, total);
        else
            store_f32<TOKENS>(args, p, bias, total);
    }
}

template <int TOKENS, int WARPGROUPS, int SHARE, int BOXES>
__global__ void __launch_bounds__((shape<TOKENS, WARPGROUPS, SHARE, BOXES>::THREADS), 1)
    matmul_tc(const __grid_constant__ rp_matmul_tc_args args) {
    using Shape = shape<TOKENS, WARPGROUPS, SHARE, BOXES>;
    extern __shared__ __align__(1024) unsigned char shared[];
    rp_pdl_trigger();
#ifdef RP_TRACE
    uint64_t *trace = args.trace ? args.trace + blockIdx.x * 4 : nullptr;
    if (trace && threadIdx.x == 0) {
        uint32_t sm;
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(trace[0]));
        trace[3] = sm;
    }
#endif
    ring<Shape> at;
    uint32_t base = rp_shared_address(shared);
    at.data = (base + 1023) & ~1023u;
    at.full = at.data + args.stages * Shape::STAGE_BYTES;
    at.empty = at.full + 8 * args.stages;
    at.count = args.stages;
    at.stage = at.phase = 0;
    if (threadIdx.x == 128 * WARPGROUPS) {
        rp_map_prefetch(&args.weight_map);
        rp_map_prefetch(&args.in_map);
        for (uint32_t i = 0; i < args.stages; i++) {
            rp_barrier_init(at.full + 8 * i, 1);
            rp_barrier_init(at.empty + 8 * i, 4 * WARPGROUPS * Shape::CLUSTER);
        }
        rp_barrier_init_fence();
    }
    if (Shape::CLUSTER > 1)
        rp_cluster_sync();
    else
        __syncthreads();
    if (threadIdx.x >= 128 * WARPGROUPS) {
        if (Shape::WIDE)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 128 * WARPGROUPS)
            copy_all<Shape, SHARE>(args, at);
        else
            rp_pdl_wait();
    } else {
        if (Shape::WIDE)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply_all<Shape, TOKENS, WARPGROUPS>(args, at);
    }
#ifdef RP_TRACE
    if (trace && threadIdx.x == 0)
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(trace[2]));
#endif
    /* The other block may still write here, or arrive at our barriers. */
    __syncwarp();
    if (Shape::CLUSTER > 1)
        rp_cluster_sync();
}

struct kernel_entry {
    uint32_t tokens, warpgroups;
    rp_matmul_share share;
    uint32_t boxes;
    void (*kernel)(rp_matmul_tc_args);
    uint32_t threads;
};

#define ENTRY(tokens, warpgroups, share, boxes)                                                    \
    {                                                                                              \
        tokens, warpgroups, share, boxes, matmul_tc<tokens, warpgroups, share, boxes>,             \
            shape<tokens, warpgroups, share, boxes>::THREADS                                       \
    }
#define NONE    RP_MATMUL_SHARE_NONE
#define SHARE_T RP_MATMUL_SHARE_TOKENS
#define SHARE_W RP_MATMUL_SHARE_WEIGHTS
const kernel_entry kernels[] = {
    ENTRY(8, 1, NONE, 1),      ENTRY(16, 1, NONE, 1),     ENTRY(32, 1, NONE, 1),
    ENTRY(64, 1, NONE, 1),     ENTRY(8, 2, NONE, 1),      ENTRY(16, 2, NONE, 1),
    ENTRY(32, 2, NONE, 1),     ENTRY(64, 2, NONE, 1),     ENTRY(128, 2, NONE, 1),
    ENTRY(192, 2, NONE, 1),    ENTRY(256, 2, NONE, 1),    ENTRY(32, 1, SHARE_T, 1),
    ENTRY(64, 1, SHARE_T, 1),  ENTRY(32, 2, SHARE_T, 1),  ENTRY(64, 2, SHARE_T, 1),
    ENTRY(128, 2, SHARE_T, 1), ENTRY(192, 2, SHARE_T, 1), ENTRY(256, 2, SHARE_T, 1),
    ENTRY(128, 2, SHARE_W, 1), ENTRY(192, 2, SHARE_W, 1), ENTRY(8, 1, NONE, 2),
    ENTRY(16, 1, NONE, 2),     ENTRY(32, 1, NONE, 2),     ENTRY(64, 1, NONE, 2),
    ENTRY(8, 1, NONE, 4),      ENTRY(8, 2, NONE, 2),      ENTRY(128, 1, SHARE_T, 1),
    ENTRY(128, 1, NONE, 1),    ENTRY(256, 2, SHARE_W, 1), ENTRY(32, 2, NONE, 2),
};

const kernel_entry *find_kernel(const rp_matmul_tile &tile) {
    for (const kernel_entry &entry : kernels)
        if (entry.tokens == tile.tokens && entry.warpgroups == tile.warpgroups &&
            entry.share == tile.share && entry.boxes == tile.boxes)
            return &entry;
    return nullptr;
}

} // namespace

int rp_matmul_tc_cuda_prepare(const struct rp_matmul_tc_args *args) {
    const kernel_entry *entry = find_kernel(args->tile);
    if (!entry)
        return RP_STATUS_NOT_FOUND;
    cudaError_t error = cudaFuncSetAttribute(
        entry->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)args->shared_bytes);
    /* An SM changes its split between L1 and shared memory only when it is empty: kernels that are to
     * overlap must want the same. */
    const char *carveout = getenv("RP_CARVEOUT");
    if (error == cudaSuccess && (!carveout || atoi(carveout) >= 0))
        error = cudaFuncSetAttribute(entry->kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     carveout ? atoi(carveout) : 100);
    if (error != cudaSuccess)
        fprintf(stderr, "prepare: %s\n", cudaGetErrorString(error));
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_tc_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_tc_args *args = (const rp_matmul_tc_args *)args_void;
    const kernel_entry *entry = find_kernel(args->tile);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = args->tile.share == RP_MATMUL_SHARE_NONE ? 1 : 2;
    attributes[0].val.clusterDim.y = 1;
    attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(args->grid);
    config.blockDim = dim3(entry->threads);
    config.dynamicSmemBytes = args->shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = args->dependent ? 2 : 1;
    return (int)cudaLaunchKernelEx(&config, entry->kernel, *args);
}
