/* matmul_tc_cuda.cu - bf16 products on Hopper's tensor cores, one kernel for every number of rows.
 *
 * Weights are the instruction's left operand, tokens its right one, so the same chain of instructions makes
 * an output whatever the tile. A block is two copying warps and one or two multiplying warpgroups around a
 * ring of stages in shared memory:
 *
 *   copying warps  boxes of weights, boxes of tokens -> stage, when the stage is empty
 *   warpgroups     wait until the stage is full; 4 instructions per 64 columns of K; free the stage
 *
 * The first stages' weights are requested before the kernel waits for its predecessor: weights never depend
 * on it. A block takes nearly all of an SM's shared memory, so that one at a time fits: when a block of the
 * product before ends, one of this product takes its place and fills its stages, while slower blocks and the
 * small kernels between are still at work. The memory never stands still. Weights and tokens
 * share stages: a ring of their own for tokens, shallower so that that of weights is deeper, was slower for any
 * number of rows (3 to 7 %): token boxes wait behind weight boxes in the copy engine.
 *
 * Work is a list of (tile, K segment), tile-major. In ORDER_RUNS each block takes an equal, contiguous run of
 * it. A tile that is split belongs to the block with its segment 0; the blocks after it do their part of
 * the tile first and leave each segment in shares[block], so the owner, which comes to the tile last,
 * finds them there and adds them in order. */
#include "device/cuda_kernel.cuh"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_wgmma.cuh"

#define GROUP_TILES 16 /* token tiles that ORDER_WAVES keeps together */

#ifdef RP_TRACE
#define TRACE(event)                                                                               \
    if (args.trace && threadIdx.x == 0) {                                                          \
        uint32_t sm;                                                                               \
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));                                            \
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(args.trace[blockIdx.x * 4 + event]));     \
        args.trace[blockIdx.x * 4 + 3] = sm;                                                       \
    }
#else
#define TRACE(event)
#endif

namespace {

template <int TOKENS_, int ROWS_, int BOXES_, bool EAGER_> struct shape {
    static constexpr int TOKENS = TOKENS_, ROWS = ROWS_;
    static constexpr int BOXES = BOXES_; /* of 64 columns in a stage */
    static constexpr int WARPGROUPS = ROWS > 64 ? 2 : 1;
    static constexpr int BLOCKS = ROWS / 64 / WARPGROUPS; /* of 64 rows, of one warpgroup */
    static constexpr int SUMS = TOKENS / 2;               /* registers of one block */
    static constexpr uint32_t WEIGHT_BYTES = ROWS * 128, TOKEN_BYTES = TOKENS * 128; /* a box */
    static constexpr uint32_t STAGE_BYTES = BOXES * (WEIGHT_BYTES + TOKEN_BYTES);
    /* A stage's instructions are awaited at once, which frees it earlier, instead of under those of the
     * next stage: better wherever memory is the limit. */
    static constexpr bool EAGER = EAGER_;
    /* No registers for the sum of several segments beside the one at work: such a tile takes matrices
     * of one segment, or leaves partials. */
    static constexpr bool ONE_SEGMENT = SUMS * BLOCKS > 96;
    /* More registers than a third of the SM's: the copying warpgroup gives up its own. */
    static constexpr bool WIDE = TOKENS > 128;
    static constexpr int THREADS = 128 * WARPGROUPS + (WIDE ? 128 : 64);
};

/* Segments [begin, end) of one tile. */
struct run {
    uint32_t row_tile, token_tile, begin, end;
};

/* The tiles of one block in its order. */
struct walk {
    uint32_t at, end, step; /* units in ORDER_RUNS, tiles in ORDER_WAVES */
    uint32_t token_tiles;   /* alive */
    uint32_t share;         /* units of a block in ORDER_RUNS */
};

template <typename Shape>
__device__ __forceinline__ walk walk_begin(const rp_matmul_tc_args &args, uint32_t live) {
    walk w;
    w.token_tiles = args.token_tiles;
    if (w.token_tiles > 1)
        w.token_tiles = min(w.token_tiles, RP_CEIL_DIV(live, (uint32_t)Shape::TOKENS));
    uint32_t tiles = args.row_tiles * w.token_tiles, units = tiles * args.segments;
    w.share = RP_CEIL_DIV(units, gridDim.x);
    if (args.tile.order == RP_MATMUL_ORDER_RUNS) {
        w.at = min(blockIdx.x * w.share, units);
        w.end = min(w.at + w.share, units);
        w.step = 0;
    } else {
        w.at = blockIdx.x;
        w.end = tiles;
        w.step = gridDim.x;
    }
    return w;
}

/* The next run of the block; false at the end. Neighbours in the list share weights. */
__device__ __forceinline__ bool walk_next(const rp_matmul_tc_args &args, walk &w, run &out) {
    if (w.at >= w.end)
        return false;
    uint32_t tile = w.at;
    out.begin = 0;
    out.end = args.segments;
    if (args.tile.order == RP_MATMUL_ORDER_RUNS) {
        tile = w.at / args.segments;
        out.begin = w.at % args.segments;
        out.end = min(args.segments, out.begin + (w.end - w.at));
        w.at += out.end - out.begin;
    } else {
        w.at += w.step;
    }
    uint32_t group = tile / (args.row_tiles * GROUP_TILES);
    uint32_t width = min((uint32_t)GROUP_TILES, w.token_tiles - group * GROUP_TILES);
    uint32_t inside = tile - group * args.row_tiles * GROUP_TILES;
    out.row_tile = inside / width;
    out.token_tile = group * GROUP_TILES + inside % width;
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
        valid = walk_next(args, w, r);
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

/* Barriers and stages in shared memory. Weights and tokens of a stage come from different threads and have
 * a barrier each. */
template <typename Shape> struct ring {
    /* 8 bytes each: weights have come, tokens have come, all is read */
    uint32_t landed, full, empty;
    uint32_t data;  /* stages 1024-aligned for the swizzle */
    uint32_t count; /* of stages */
    uint32_t stage, phase;

    __device__ __forceinline__ uint32_t landed_barrier() const { return landed + 8 * stage; }
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

/* How many token tiles are alive is known after the wait; one is always walked. */
__device__ __forceinline__ uint32_t wait_for_live(const rp_matmul_tc_args &args) {
    if (args.token_tiles == 1)
        return 0;
    rp_pdl_wait();
    return *args.live;
}

/* One thread. Stages in flight are counted, in the order in which they were asked for. */
template <typename Shape>
__device__ __forceinline__ void copy_weights(const rp_matmul_tc_args &args, ring<Shape> at) {
    /* Read once: out of L2 first. */
    uint64_t policy = args.token_tiles == 1 ? RP_L2_EVICT_FIRST : RP_L2_EVICT_NORMAL;
    steps<Shape> s;
    s.w = walk_begin<Shape>(args, wait_for_live(args));
    s.enter(args);
    ring<Shape> landing = at;
    uint32_t flying = 0, flight = args.flight_early;
    for (uint32_t i = 0; s.valid; i++) {
        if (i == at.count)
            flight = args.flight;
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        if (flying == flight) {
            rp_barrier_wait(landing.landed_barrier(), landing.phase);
            landing.next();
            flying--;
        }
        flying++;
        rp_barrier_expect(at.landed_barrier(), s.count * Shape::WEIGHT_BYTES);
        for (uint32_t box = 0; box < s.count; box++)
            rp_copy_box(at.weights(box), &args.weight_map, (s.block + box) * RP_MATMUL_BLOCK,
                        s.r.row_tile * Shape::ROWS, at.landed_barrier(), policy);
        s.next(args);
        at.next();
    }
}

/* One thread: waits for the kernels before, which may be the tokens' writers, and lets the next one start. */
template <typename Shape>
__device__ __forceinline__ void copy_tokens(const rp_matmul_tc_args &args, ring<Shape> at) {
    rp_pdl_wait();
    rp_pdl_trigger();
    steps<Shape> s;
    s.w = walk_begin<Shape>(args, wait_for_live(args));
    s.enter(args);
    while (s.valid) {
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        rp_barrier_expect(at.full_barrier(), s.count * Shape::TOKEN_BYTES);
        for (uint32_t box = 0; box < s.count; box++)
            rp_copy_box(at.tokens(box), &args.in_map, (s.block + box) * RP_MATMUL_BLOCK,
                        s.r.token_tile * Shape::TOKENS, at.full_barrier(), RP_L2_EVICT_LAST);
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

/* Calls each(sum, row, token of the tile, ...) for this thread's sums that are alive. */
#define EACH_SUM(Shape, p, args, block, i, row, token)                                             \
    _Pragma("unroll") for (int block = 0; block < Shape::BLOCKS; block++)                          \
        _Pragma("unroll") for (int i = 0; i < Shape::SUMS;                                         \
                               i++) if (uint32_t row = (p).row + block * 64 + i / 2 % 2 * 8,       \
                                        token = (p).token + i / 4 * 8 + i % 2;                     \
                                        row < (args).n && token < (p).columns)

template <typename Shape> using sums_of = float[Shape::BLOCKS][Shape::SUMS];

template <typename Shape>
__device__ __forceinline__ void store_partial(const rp_matmul_tc_args &args, const place &p,
                                              uint32_t segment, const sums_of<Shape> &sums) {
    float *to = args.partials + segment * args.split_stride + (size_t)p.base * args.n;
    EACH_SUM(Shape, p, args, block, i, row, token)
    to[(size_t)token * args.n + row] = sums[block][i];
}

/* shares: (block of threads)(segment)(warpgroup)(BLOCKS)(SUMS / 4)(128 threads)(4) */
template <typename Shape>
__device__ __forceinline__ float4 *share_at(const rp_matmul_tc_args &args, const place &p,
                                            uint32_t owner, uint32_t segment) {
    float *to =
        args.shares + owner * args.share_stride +
        (size_t)(segment * Shape::WARPGROUPS + p.warpgroup) * Shape::BLOCKS * Shape::SUMS * 128;
    return (float4 *)to + p.thread;
}

template <typename Shape>
__device__ __forceinline__ void leave_share(const rp_matmul_tc_args &args, const place &p,
                                            uint32_t segment, const sums_of<Shape> &sums) {
    float4 *to = share_at<Shape>(args, p, blockIdx.x, segment);
#pragma unroll
    for (int i = 0; i < Shape::BLOCKS * Shape::SUMS / 4; i++) {
        const float *from = &sums[i / (Shape::SUMS / 4)][i % (Shape::SUMS / 4) * 4];
        if (i % (Shape::SUMS / 4) * 8 < p.columns)
            __stcg(to + i * 128, make_float4(from[0], from[1], from[2], from[3]));
    }
}

/* Adds segments [begin, segments) of this tile, which the following blocks have left. */
template <typename Shape>
__device__ __forceinline__ void take_shares(const rp_matmul_tc_args &args, const place &p,
                                            uint32_t begin, uint32_t share, sums_of<Shape> &total) {
    for (uint32_t owner = blockIdx.x + 1; begin < args.segments; owner++) {
        uint32_t *flag = args.flags + owner * Shape::WARPGROUPS + p.warpgroup;
        uint32_t end = min(args.segments, begin + share);
        while (rp_load_acquire(flag) == 0)
            ;
        rp_warpgroup_sync(p.warpgroup);
        if (p.thread == 0)
            *flag = 0;
        for (uint32_t segment = 0; begin < end; begin++, segment++) {
            const float4 *from = share_at<Shape>(args, p, owner, segment);
#pragma unroll
            for (int i = 0; i < Shape::BLOCKS * Shape::SUMS / 4; i++) {
                float *to = &total[i / (Shape::SUMS / 4)][i % (Shape::SUMS / 4) * 4];
                if (i % (Shape::SUMS / 4) * 8 < p.columns) {
                    float4 v = __ldcg(from + i * 128);
                    to[0] += v.x;
                    to[1] += v.y;
                    to[2] += v.z;
                    to[3] += v.w;
                }
            }
        }
    }
}

/* total + bias (+ out). Eight lanes hold eight neighbouring outputs of a token: whole 32-byte sectors. */
template <typename Shape>
__device__ __forceinline__ void store_out(const rp_matmul_tc_args &args, const place &p,
                                          const sums_of<Shape> &total) {
    float bias[Shape::BLOCKS][2];
#pragma unroll
    for (int i = 0; i < Shape::BLOCKS * 2; i++) {
        uint32_t row = p.row + i / 2 * 64 + i % 2 * 8;
        bias[i / 2][i % 2] = args.bias && row < args.n ? args.bias[row] : 0;
    }
    size_t first = (size_t)p.base * args.out_stride;
    if (args.out_bf16) {
        EACH_SUM(Shape, p, args, block, i, row, token) {
            float value = total[block][i];
            ((__nv_bfloat16 *)args.out)[first + token * args.out_stride + row] =
                __float2bfloat16_rn(args.bias ? value + bias[block][i / 2 % 2] : value);
        }
    } else {
        EACH_SUM(Shape, p, args, block, i, row, token) {
            float *at = (float *)args.out + first + token * args.out_stride + row;
            float value = args.bias ? total[block][i] + bias[block][i / 2 % 2] : total[block][i];
            *at = args.accumulate ? *at + value : value;
        }
    }
}

template <typename Shape> __device__ __forceinline__ void free_stage(const ring<Shape> &at) {
    if (threadIdx.x % 32 == 0)
        rp_barrier_arrive(at.empty_barrier());
}

/* One segment: a chain from zero over its columns in rising order. */
template <typename Shape>
__device__ __forceinline__ void multiply_segment(ring<Shape> &at, uint32_t warpgroup,
                                                 uint32_t blocks, sums_of<Shape> &sums) {
    ring<Shape> before = at;
    for (uint32_t k = 0; k < blocks; k += Shape::BOXES) {
        rp_barrier_wait(at.landed_barrier(), at.phase);
        rp_barrier_wait(at.full_barrier(), at.phase);
#pragma unroll
        for (int box = 0; box < Shape::BOXES; box++) {
            if (box > 0 && k + box >= blocks)
                break;
            uint32_t a =
                rp_wgmma_operand_low(at.weights(box) + warpgroup * Shape::BLOCKS * 64 * 128);
            uint32_t b = rp_wgmma_operand_low(at.tokens(box));
            rp_wgmma_fence();
#pragma unroll
            for (int i = 0; i < RP_MATMUL_BLOCK / 16; i++)
#pragma unroll
                for (int block = 0; block < Shape::BLOCKS; block++)
                    rp_wgmma<Shape::TOKENS>::run(
                        sums[block], rp_wgmma_operand_of(a + 2 * i + block * 64 * 128 / 16),
                        rp_wgmma_operand_of(b + 2 * i), (k | box | i) != 0);
            rp_wgmma_commit();
        }
        if (Shape::EAGER) {
            rp_wgmma_wait<0>();
            free_stage(at);
        } else {
            rp_wgmma_wait<1>();
            if (k > 0) {
                free_stage(before);
                before.next();
            }
        }
        at.next();
    }
    if (!Shape::EAGER) {
        rp_wgmma_wait<0>();
        free_stage(before);
    }
}

/* What becomes of the sums of a run: of segments [r.begin, r.end). */
template <typename Shape>
__device__ __forceinline__ void finish_run(const rp_matmul_tc_args &args, const place &p,
                                           const run &r, uint32_t share, sums_of<Shape> &total) {
    if (!Shape::ONE_SEGMENT && r.begin > 0) {
        __threadfence();
        rp_warpgroup_sync(p.warpgroup);
        if (p.thread == 0)
            rp_store_release(args.flags + blockIdx.x * Shape::WARPGROUPS + p.warpgroup, 1);
        return;
    }
    if (!Shape::ONE_SEGMENT && r.end < args.segments)
        take_shares<Shape>(args, p, r.end, share, total);
    store_out<Shape>(args, p, total);
}

template <typename Shape>
__device__ __forceinline__ void multiply_all(const rp_matmul_tc_args &args, ring<Shape> at,
                                             rp_stamp &stamp) {
    place p;
    p.warpgroup = rp_own_warpgroup();
    p.thread = threadIdx.x % 128;
    p.token = p.thread % 4 * 2;
    stamp.wait();
    TRACE(1);
    uint32_t live = *args.live;
    stamp.look();
    walk w = walk_begin<Shape>(args, live);
    run r;
    while (walk_next(args, w, r)) {
        p.base = r.token_tile * Shape::TOKENS;
        p.columns = live > p.base ? min(live - p.base, (uint32_t)Shape::TOKENS) : 0;
        p.row = r.row_tile * Shape::ROWS + p.warpgroup * Shape::BLOCKS * 64 + p.thread / 32 * 16 +
                p.thread % 32 / 4;
        sums_of<Shape> sums, total;
        for (uint32_t segment = r.begin; segment < r.end; segment++) {
            uint32_t blocks = min(args.segment_blocks, args.blocks - segment * args.segment_blocks);
            multiply_segment<Shape>(at, p.warpgroup, blocks, sums);
            if (args.partials)
                store_partial<Shape>(args, p, segment, sums);
            else if (!Shape::ONE_SEGMENT && r.begin > 0)
                leave_share<Shape>(args, p, segment - r.begin, sums);
#pragma unroll
            for (int block = 0; block < (Shape::ONE_SEGMENT ? 0 : Shape::BLOCKS); block++)
#pragma unroll
                for (int i = 0; i < Shape::SUMS; i++)
                    total[block][i] =
                        segment == r.begin ? sums[block][i] : total[block][i] + sums[block][i];
        }
        if (!args.partials)
            finish_run<Shape>(args, p, r, w.share, Shape::ONE_SEGMENT ? sums : total);
    }
}

template <int TOKENS, int ROWS, int BOXES, bool EAGER>
__global__ void __launch_bounds__((shape<TOKENS, ROWS, BOXES, EAGER>::THREADS), 1)
    matmul_tc(const __grid_constant__ rp_matmul_tc_args args) {
#if RP_CUDA_HOPPER
    using Shape = shape<TOKENS, ROWS, BOXES, EAGER>;
    constexpr uint32_t COPYING = 128 * Shape::WARPGROUPS; /* its first thread */
    extern __shared__ __align__(1024) unsigned char shared[];
    rp_stamp stamp(args.stamp);
    TRACE(0);
    ring<Shape> at;
    at.data = (rp_shared_address(shared) + 1023) & ~1023u;
    at.landed = at.data + args.stages * Shape::STAGE_BYTES;
    at.full = at.landed + 8 * args.stages;
    at.empty = at.full + 8 * args.stages;
    at.count = args.stages;
    at.stage = at.phase = 0;
    if (threadIdx.x == COPYING) {
        rp_map_prefetch(&args.weight_map);
        rp_map_prefetch(&args.in_map);
        for (uint32_t i = 0; i < args.stages; i++) {
            rp_barrier_init(at.landed + 8 * i, 1);
            rp_barrier_init(at.full + 8 * i, 1);
            rp_barrier_init(at.empty + 8 * i, 4 * Shape::WARPGROUPS); /* warps */
        }
        rp_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= COPYING) {
        if (Shape::WIDE)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == COPYING)
            copy_weights<Shape>(args, at);
        else if (threadIdx.x == COPYING + 32)
            copy_tokens<Shape>(args, at);
    } else {
        if (Shape::WIDE)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply_all<Shape>(args, at, stamp);
    }
    TRACE(2);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

struct kernel_entry {
    uint32_t tokens, rows, boxes;
    bool eager;
    void (*kernel)(rp_matmul_tc_args);
    uint32_t threads;
};

#define ENTRY(tokens, rows, boxes, eager)                                                          \
    {                                                                                              \
        tokens, rows, boxes, eager, matmul_tc<tokens, rows, boxes, eager>,                         \
            shape<tokens, rows, boxes, eager>::THREADS                                             \
    }
const kernel_entry kernels[] = {
    ENTRY(8, 64, 2, true),     ENTRY(8, 64, 4, true),     ENTRY(16, 64, 2, true),
    ENTRY(16, 64, 4, true),    ENTRY(32, 64, 2, true),    ENTRY(32, 64, 4, true),
    ENTRY(8, 128, 2, true),    ENTRY(16, 128, 2, true),   ENTRY(32, 128, 1, true),
    ENTRY(32, 128, 2, true),   ENTRY(64, 128, 1, true),   ENTRY(64, 128, 2, true),
    ENTRY(64, 64, 2, true),    ENTRY(128, 128, 1, true),  ENTRY(128, 128, 1, false),
    ENTRY(192, 128, 1, false), ENTRY(256, 128, 1, false),
};

const kernel_entry *find_kernel(const rp_matmul_tile &tile) {
    for (const kernel_entry &entry : kernels)
        if (entry.tokens == tile.tokens && entry.rows == tile.rows && entry.boxes == tile.boxes &&
            entry.eager == tile.eager)
            return &entry;
    return nullptr;
}

} // namespace

int rp_matmul_tc_cuda_prepare(const struct rp_matmul_tc_args *args) {
    const kernel_entry *entry = find_kernel(args->tile);
    if (!entry || args->dtype != RP_DTYPE_BF16)
        return RP_STATUS_NOT_FOUND;
    cudaError_t error = cudaFuncSetAttribute(
        entry->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)args->shared_most);
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_tc_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_tc_args *args = (const rp_matmul_tc_args *)args_void;
    const kernel_entry *entry = find_kernel(args->tile);
    return rp_cuda_start(entry->kernel, dim3(args->grid), dim3(entry->threads), args->shared_bytes,
                         stream, args->dependent, *args);
}
