/* matmul_tc_work.cuh - shapes of the kernel in matmul_tc_kernel.cuh: its work, block by block, and
 * its ring of stages. */
#ifndef RP_QUANT_MATMUL_TC_WORK_CUH
#define RP_QUANT_MATMUL_TC_WORK_CUH

#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_scales.cuh"

#define GROUP_TILES 16 /* token tiles that ORDER_WAVES keeps together */

namespace {

template <int TOKENS_, int ROWS_, int BOXES_, bool EAGER_, rp_wgmma_type TYPE_ = RP_WGMMA_BF16,
          bool BLOCK_SCALES_ = false, bool GATED_ = false>
struct shape {
    static constexpr int TOKENS = TOKENS_, ROWS = ROWS_;
    static constexpr int BOXES = BOXES_; /* of 128 bytes of K in a stage */
    static constexpr rp_wgmma_type TYPE = TYPE_;
    /* quantized weights by bf16 tokens: W8A16 */
    static constexpr bool HELD = rp_wgmma_is_held<TYPE>;
    static constexpr bool BLOCK_SCALES = BLOCK_SCALES_;
    static constexpr bool GATED = GATED_; /* HELD, one segment: 8 gates and their ups in turns */
    static constexpr int WARPGROUPS = ROWS > 64 ? 2 : 1;
    static constexpr int BLOCKS = ROWS / 64 / WARPGROUPS; /* of 64 rows, of one warpgroup */
    static constexpr int SUMS = TOKENS / 2;               /* registers of one block */
    /* A box of weights, and the tokens that it is multiplied by: the same columns, in bf16 two
     * boxes of 64. */
    static constexpr int TOKEN_BOXES = HELD ? 2 : 1;
    static constexpr uint32_t TOKEN_BOX_BYTES = TOKENS * 128;
    static constexpr uint32_t WEIGHT_BYTES = ROWS * 128;
    static constexpr uint32_t TOKEN_BYTES = TOKEN_BOXES * TOKEN_BOX_BYTES;
    static constexpr uint32_t STAGE_BYTES = BOXES * (WEIGHT_BYTES + TOKEN_BYTES);
    /* A stage's instructions are awaited at once, which frees it earlier, instead of under those of
     * the next stage: better wherever memory is the limit. */
    static constexpr bool EAGER = EAGER_;
    /* No registers for a total besides the current segment's sums: such a tile is used for matrices
     * of one segment, or leaves partial sums to the reader. */
    static constexpr bool ONE_SEGMENT = SUMS * BLOCKS > 96 || GATED;
    /* More registers than a third of the SM's: the copying warpgroup gives up its own. Quantized
     * values have a total, a segment's sum and the scaled sum of it. */
    static constexpr bool WIDE = TOKENS > (rp_wgmma_is_8<TYPE> ? 64 : 128);
    static constexpr int COPIER_REGISTERS = rp_wgmma_is_8<TYPE> ? 40 : 24;
    static constexpr int REGISTERS = rp_wgmma_is_8<TYPE> ? 232 : 240;
    static constexpr int THREADS = 128 * WARPGROUPS + (WIDE ? 128 : 64);
};

/* Sums of a segment as the instruction makes them, and as floats. */
template <typename Shape>
using sums_of = typename rp_wgmma_sum<Shape::TYPE>::type[Shape::BLOCKS][Shape::SUMS];
template <typename Shape> using parts_of = float[Shape::BLOCKS][Shape::SUMS];

/* Segments [begin, end) of one tile. */
struct run {
    uint32_t row_tile, token_tile, begin, end;
};

/* The tiles of one block in its order. */
struct walk {
    uint32_t at, end, step; /* units in ORDER_RUNS, else tiles */
    uint32_t token_tiles;   /* alive; in ORDER_ONCE all */
    uint32_t share;         /* units of a block in ORDER_RUNS */
};

template <typename Shape>
__device__ __forceinline__ walk walk_begin(const rp_matmul_tc_args &args, uint32_t live) {
    walk w;
    w.token_tiles = args.token_tiles;
    if (w.token_tiles > 1 && args.tile.order != RP_MATMUL_ORDER_ONCE)
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

/* The next run of the block; false at the end. Neighbors in the list share weights. */
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

/* Barriers and stages in shared memory. Weights and tokens of a stage come from different threads
 * and have a barrier each. */
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

/* Each multiplying warp calls it once per stage. */
template <typename Shape> __device__ __forceinline__ void free_stage(const ring<Shape> &at) {
    if (threadIdx.x % 32 == 0)
        rp_barrier_arrive(at.empty_barrier());
}

} // namespace

#endif
