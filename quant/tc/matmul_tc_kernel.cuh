/* matmul_tc_kernel.cuh - GEMMs on Hopper's tensor cores, one kernel for every number of rows.
 *
 * Weights are the instruction's left operand, tokens its right one, so the same chain of
 * instructions makes an output whatever the tile. A block is two copying warps and one or two
 * multiplying warpgroups around a ring of stages in shared memory:
 *
 *   copying warps  boxes of weights, boxes of tokens -> stage, when the stage is empty
 *   warpgroups     wait until the stage is full; 4 instructions per box of K; free the stage
 *
 * The first stages' weights are requested before the kernel waits for its predecessor: weights
 * never depend on it. A block takes nearly all of an SM's shared memory, so that one at a time
 * fits: when a block of the GEMM before ends, one of this GEMM takes its place and fills its
 * stages, while slower blocks and the small kernels between are still at work. So memory is never
 * idle. Weights and tokens share stages: a separate, shallower ring for tokens, with a deeper one
 * for weights, was slower for any number of rows (3 to 7 %), because token boxes queue after weight
 * boxes in the copy engine.
 *
 * Work is a list of (tile, K segment), tile-major. In ORDER_RUNS each block takes an equal,
 * contiguous run of it. A tile that is split belongs to the block with its segment 0; the following
 * blocks compute their part of the tile first and store each segment in shares[block], so the
 * owner, which computes the tile last, finds them there and adds them in order. The owner takes 1
 * to 2 us for each segment that it adds. So GEMMs of few outputs have ORDER_ONCE: small tiles, one
 * for each block, with all of K.
 *
 * 8-bit values have the layout of half as many bf16: boxes, stages and work are the same. A
 * segment's sum is converted to f32 when complete, with the scales of its row and its weight; the
 * code after that is the same for all types. BLOCK_SCALES: each box is a separate chain, added to
 * the segment's sum with the scale of its block.
 *
 * W8A16: tokens are bf16, two boxes of them for one of weights, whose quantized values the
 * warpgroups convert to bf16 in registers (matmul_tc_w8a16.cuh). GATED: eight rows of gates and
 * their eight of ups in turns, so that a thread has both of an output and does the activation. */
#ifndef RP_QUANT_MATMUL_TC_KERNEL_CUH
#define RP_QUANT_MATMUL_TC_KERNEL_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_scales.cuh"
#include "quant/matmul_wgmma.cuh"
#include "quant/tc/matmul_tc_copy.cuh"
#include "quant/tc/matmul_tc_w8a16.cuh"
#include "quant/tc/matmul_tc_work.cuh"

/* A kernel and its launch parameters. */
struct rp_matmul_tc_kernel {
    void (*kernel)(rp_matmul_tc_args);
    uint32_t threads;
};
/* 8-bit GEMMs; NULL kernel: not compiled. W8A16 for INT8, FP8, and FP8 with block scales. */
extern "C" struct rp_matmul_tc_kernel rp_matmul_tc_8_find(const struct rp_matmul_tc_args *args);
extern "C" struct rp_matmul_tc_kernel
rp_matmul_tc_w8a16_int8_find(const struct rp_matmul_tile *tile, bool gated);
extern "C" struct rp_matmul_tc_kernel rp_matmul_tc_w8a16_fp8_find(const struct rp_matmul_tile *tile,
                                                                  bool gated);
extern "C" struct rp_matmul_tc_kernel
rp_matmul_tc_w8a16_blocks_find(const struct rp_matmul_tile *tile, bool gated);

namespace {

/* Position of one thread's accumulators in the output. */
struct place {
    uint32_t thread, warpgroup; /* thread of the warpgroup */
    uint32_t first_row;         /* of the warpgroup */
    uint32_t row, token;        /* of sum 0: in the matrix; in the tile */
    uint32_t base, columns;     /* first token of the tile; live ones in it */
};

/* For this thread's sums [begin, begin + count) of each block of 64 rows that are alive, or all of
 * them. */
#define EACH_SUM_OF(Shape, p, args, block, i, row, token, begin, count)                            \
    _Pragma("unroll") for (int block = 0; block < Shape::BLOCKS; block++)                          \
        _Pragma("unroll") for (int i = (begin); i < (begin) + (count);                             \
                               i++) if (uint32_t row = (p).row + block * 64 + i / 2 % 2 * 8,       \
                                        token = (p).token + i / 4 * 8 + i % 2;                     \
                                        row < (args).n && token < (p).columns)
#define EACH_SUM(Shape, p, args, block, i, row, token)                                             \
    EACH_SUM_OF(Shape, p, args, block, i, row, token, 0, Shape::SUMS)

/* Row `row` of a gated tile: the matrix row of its gate, or of the gate that belongs to its up row.
 * Also its output column. */
__device__ __forceinline__ uint32_t gated_row(uint32_t row) { return row / 16 * 8 + row % 8; }

template <typename Shape>
__device__ __forceinline__ void store_partial(const rp_matmul_tc_args &args, const place &p,
                                              uint32_t segment, const parts_of<Shape> &sums) {
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
                                            uint32_t segment, const parts_of<Shape> &sums) {
    float4 *to = share_at<Shape>(args, p, blockIdx.x, segment);
#pragma unroll
    for (int i = 0; i < Shape::BLOCKS * Shape::SUMS / 4; i++) {
        const float *from = &sums[i / (Shape::SUMS / 4)][i % (Shape::SUMS / 4) * 4];
        if (i % (Shape::SUMS / 4) * 8 < p.columns)
            __stcg(to + i * 128, make_float4(from[0], from[1], from[2], from[3]));
    }
}

/* Adds segments [begin, segments) of this tile, stored by the following blocks. */
template <typename Shape>
__device__ __forceinline__ void take_shares(const rp_matmul_tc_args &args, const place &p,
                                            uint32_t begin, uint32_t share,
                                            parts_of<Shape> &total) {
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

/* Sums i and i + 2 are the gate and the up of an output. */
template <typename Shape>
__device__ __forceinline__ void store_gated(const rp_matmul_tc_args &args, const place &p,
                                            const parts_of<Shape> &total) {
    __nv_bfloat16 *out = (__nv_bfloat16 *)args.out + (size_t)p.base * args.out_stride;
    EACH_SUM(Shape, p, args, block, i, row, token) {
        if (i % 4 < 2)
            out[token * args.out_stride + gated_row(row)] =
                __float2bfloat16_rn(rp_activate(args.fn, total[block][i]) * total[block][i + 2]);
    }
}

/* total + bias (+ out). Eight lanes hold eight neighboring outputs of a token: whole 32-byte
 * sectors. */
template <typename Shape>
__device__ __forceinline__ void store_out(const rp_matmul_tc_args &args, const place &p,
                                          const parts_of<Shape> &total) {
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
        /* Old values are loaded in batches: interleaved with stores, each load would be waited for
         * separately. */
        constexpr int TOGETHER = Shape::SUMS < 64 ? 1 : 16;
        float *out = (float *)args.out + first;
#pragma unroll
        for (int begin = 0; begin < Shape::SUMS; begin += TOGETHER) {
            float old[Shape::BLOCKS][TOGETHER];
            if (args.accumulate) {
                EACH_SUM_OF(Shape, p, args, block, i, row, token, begin, TOGETHER)
                old[block][i - begin] = out[token * args.out_stride + row];
            }
            EACH_SUM_OF(Shape, p, args, block, i, row, token, begin, TOGETHER) {
                float sum = total[block][i];
                float value = args.bias ? sum + bias[block][i / 2 % 2] : sum;
                out[token * args.out_stride + row] =
                    args.accumulate ? old[block][i - begin] + value : value;
            }
        }
    }
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
                    rp_wgmma<Shape::TOKENS, Shape::TYPE>::run(
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

/* The same with a scale per block of 128 rows and columns of weights: a chain per box. scales: of
 * this warpgroup's rows, from the segment's first box on. */
template <typename Shape>
__device__ __forceinline__ void multiply_scaled(ring<Shape> &at, uint32_t warpgroup,
                                                uint32_t blocks, const float *scales,
                                                sums_of<Shape> &sums) {
    static_assert(Shape::BLOCKS == 1 && Shape::TYPE == RP_WGMMA_FP8, "64 rows of a warpgroup");
#pragma unroll
    for (int i = 0; i < Shape::SUMS; i++)
        sums[0][i] = 0.0f;
    for (uint32_t k = 0; k < blocks; k += Shape::BOXES) {
        float scale[Shape::BOXES];
#pragma unroll
        for (int box = 0; box < Shape::BOXES; box++)
            scale[box] = k + box < blocks ? __ldg(scales + k + box) : 0.0f;
        rp_barrier_wait(at.landed_barrier(), at.phase);
        rp_barrier_wait(at.full_barrier(), at.phase);
#pragma unroll
        for (int box = 0; box < Shape::BOXES; box++) {
            if (box > 0 && k + box >= blocks)
                break;
            sums_of<Shape> chain;
            uint32_t a = rp_wgmma_operand_low(at.weights(box) + warpgroup * 64 * 128);
            uint32_t b = rp_wgmma_operand_low(at.tokens(box));
            rp_wgmma_fence();
#pragma unroll
            for (int i = 0; i < RP_MATMUL_BLOCK / 16; i++)
                rp_wgmma<Shape::TOKENS, Shape::TYPE>::run(chain[0], rp_wgmma_operand_of(a + 2 * i),
                                                          rp_wgmma_operand_of(b + 2 * i), i != 0);
            rp_wgmma_commit();
            rp_wgmma_wait<0>();
            if (box == Shape::BOXES - 1 || k + box + 1 >= blocks)
                free_stage(at);
#pragma unroll
            for (int i = 0; i < Shape::SUMS; i++)
                sums[0][i] = __fmaf_rn(chain[0][i], scale[box], sums[0][i]);
        }
        at.next();
    }
}

/* This thread's accumulators in one tile. */
template <typename Shape> struct scales_of {
    rp_column_scales<Shape::TOKENS> tokens; /* W8A16 has none */
    float weights[Shape::BLOCKS][2]; /* of its rows; with block scales they are in the sums */
    const float *blocks;             /* of the warpgroup's first row, from K = 0 on */
    uint32_t up_blocks;              /* from there to those of its ups; 0 where not gated */

    __device__ __forceinline__ void load(const rp_matmul_tc_args &args, const place &p) {
        if constexpr (!Shape::HELD)
            tokens.load(args.in_scales + p.base, p.columns);
        if constexpr (Shape::BLOCK_SCALES) {
            uint32_t row = min(p.first_row, args.n - 1);
            if (Shape::GATED)
                row /= 2;
            blocks = args.weight_scales + (size_t)(row / 128) * args.blocks;
            up_blocks = Shape::GATED ? ((row + args.n / 2) / 128 - row / 128) * args.blocks : 0;
        } else {
#pragma unroll
            for (int i = 0; i < Shape::BLOCKS * 2; i++) {
                uint32_t row = p.row + i / 2 * 64 + i % 2 * 8;
                uint32_t at = row;
                if (Shape::GATED)
                    at = gated_row(row) + i % 2 * (args.n / 2);
                float scale = row < args.n ? args.weight_scales[at] : 0.0f;
                weights[i / 2][i % 2] = Shape::HELD ? scale * held_unit<Shape::TYPE> : scale;
            }
        }
    }
    __device__ __forceinline__ void apply(const sums_of<Shape> &sums,
                                          parts_of<Shape> &parts) const {
#pragma unroll
        for (int i = 0; i < Shape::SUMS; i++) {
            float token = tokens.at(i);
#pragma unroll
            for (int block = 0; block < Shape::BLOCKS; block++)
                parts[block][i] = rp_scaled(
                    sums[block][i],
                    Shape::BLOCK_SCALES ? token : rp_scaled(token, weights[block][i / 2 % 2]));
        }
    }
    /* W8A16: rows have none. */
    __device__ __forceinline__ void apply(parts_of<Shape> &parts) const {
#pragma unroll
        for (int i = 0; i < (Shape::BLOCK_SCALES ? 0 : Shape::SUMS); i++)
#pragma unroll
            for (int block = 0; block < Shape::BLOCKS; block++)
                parts[block][i] = rp_scaled(parts[block][i], weights[block][i / 2 % 2]);
    }
};

/* Tiles of this block, when known before the live row count. */
template <typename Shape>
__device__ __forceinline__ void prefetch_scales(const rp_matmul_tc_args &args) {
    if (args.token_tiles > 1 || args.tile.order != RP_MATMUL_ORDER_RUNS)
        return;
    walk w = walk_begin<Shape>(args, 0);
    uint32_t begin = min(w.at / args.segments * Shape::ROWS, args.n);
    uint32_t end = min(RP_CEIL_DIV(w.end, args.segments) * Shape::ROWS, args.n);
    if (Shape::GATED) {
        rp_scales_prefetch(args.weight_scales + begin / 2, (end - begin) / 2);
        rp_scales_prefetch(args.weight_scales + (args.n + begin) / 2, (end - begin) / 2);
    } else {
        rp_scales_prefetch(args.weight_scales + begin, end - begin);
    }
}

/* Destination of the sums of a run: segments [r.begin, r.end). */
template <typename Shape>
__device__ __forceinline__ void finish_run(const rp_matmul_tc_args &args, const place &p,
                                           const run &r, uint32_t share, parts_of<Shape> &total) {
    if (!Shape::ONE_SEGMENT && r.begin > 0) {
        __threadfence();
        rp_warpgroup_sync(p.warpgroup);
        if (p.thread == 0)
            rp_store_release(args.flags + blockIdx.x * Shape::WARPGROUPS + p.warpgroup, 1);
        return;
    }
    if (!Shape::ONE_SEGMENT && r.end < args.segments)
        take_shares<Shape>(args, p, r.end, share, total);
    if (Shape::GATED)
        store_gated<Shape>(args, p, total);
    else
        store_out<Shape>(args, p, total);
}

/* Stores a segment's sum if required, and adds it to the total of the run. */
template <typename Shape>
__device__ __forceinline__ void leave_segment(const rp_matmul_tc_args &args, const place &p,
                                              const run &r, uint32_t segment,
                                              const parts_of<Shape> &sums, parts_of<Shape> &total) {
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

/* Where the run's sum is: tiles of one segment have no total beside it. */
template <typename Shape>
__device__ __forceinline__ parts_of<Shape> &total_of(sums_of<Shape> &sums, parts_of<Shape> &total) {
    if constexpr (Shape::ONE_SEGMENT && !rp_wgmma_is_8<Shape::TYPE>)
        return sums;
    else
        return total;
}

/* Segments of 8-bit quantized values. */
template <typename Shape>
__device__ __forceinline__ void multiply_quantized(const rp_matmul_tc_args &args, ring<Shape> &at,
                                                   const place &p, const run &r,
                                                   parts_of<Shape> &total) {
    scales_of<Shape> scales;
    scales.load(args, p);
    for (uint32_t segment = r.begin; segment < r.end; segment++) {
        uint32_t first = segment * args.segment_blocks;
        uint32_t blocks = min(args.segment_blocks, args.blocks - first);
        parts_of<Shape> scaled, &parts = Shape::ONE_SEGMENT ? total : scaled;
        if constexpr (Shape::HELD) {
            const float *own = Shape::BLOCK_SCALES ? scales.blocks + first : NULL;
            if constexpr (Shape::TOKENS <= 16)
                multiply_by_warps<Shape>(at, p.warpgroup, blocks, own, scales.up_blocks, parts);
            else
                multiply_held<Shape>(at, p.warpgroup, blocks, own, scales.up_blocks, parts);
            scales.apply(parts);
        } else {
            sums_of<Shape> sums;
            if constexpr (Shape::BLOCK_SCALES)
                multiply_scaled<Shape>(at, p.warpgroup, blocks, scales.blocks + first, sums);
            else
                multiply_segment<Shape>(at, p.warpgroup, blocks, sums);
            scales.apply(sums, parts);
        }
        leave_segment<Shape>(args, p, r, segment, parts, total);
    }
}

template <typename Shape>
__device__ __forceinline__ void multiply_all(const rp_matmul_tc_args &args, ring<Shape> at,
                                             rp_stamp &stamp) {
    place p;
    p.warpgroup = rp_own_warpgroup();
    p.thread = threadIdx.x % 128;
    p.token = p.thread % 4 * 2;
    if constexpr (rp_wgmma_is_8<Shape::TYPE> && !Shape::BLOCK_SCALES)
        prefetch_scales<Shape>(args);
    stamp.wait();
    TRACE(1);
    uint32_t live = *args.live;
    stamp.look();
    walk w = walk_begin<Shape>(args, live);
    run r;
    while (walk_next(args, w, r)) {
        p.base = r.token_tile * Shape::TOKENS;
        p.columns = live > p.base ? min(live - p.base, (uint32_t)Shape::TOKENS) : 0;
        p.first_row = r.row_tile * Shape::ROWS + p.warpgroup * Shape::BLOCKS * 64;
        p.row = p.first_row + p.thread / 32 * 16 + p.thread % 32 / 4;
        sums_of<Shape> sums;
        parts_of<Shape> total;
        if constexpr (rp_wgmma_is_8<Shape::TYPE>) {
            multiply_quantized<Shape>(args, at, p, r, total);
        } else {
            for (uint32_t segment = r.begin; segment < r.end; segment++) {
                uint32_t blocks =
                    min(args.segment_blocks, args.blocks - segment * args.segment_blocks);
                multiply_segment<Shape>(at, p.warpgroup, blocks, sums);
                leave_segment<Shape>(args, p, r, segment, sums, total);
            }
        }
        if (!args.partials)
            finish_run<Shape>(args, p, r, w.share, total_of<Shape>(sums, total));
    }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::THREADS, 1)
    matmul_tc(const __grid_constant__ rp_matmul_tc_args args) {
#if RP_CUDA_HOPPER
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
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::COPIER_REGISTERS));
        if (threadIdx.x == COPYING)
            copy_weights<Shape>(args, at);
        else if (threadIdx.x == COPYING + 32)
            copy_tokens<Shape>(args, at);
    } else {
        if (Shape::WIDE)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::REGISTERS));
        multiply_all<Shape>(args, at, stamp);
    }
    TRACE(2);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

template <typename Shape> rp_matmul_tc_kernel rp_matmul_tc_kernel_of() {
    return {matmul_tc<Shape>, Shape::THREADS};
}

/* W8A16, in the tiles that rp_matmul_cuda_choose picks: 128 outputs. */
template <rp_wgmma_type TYPE, bool BLOCK_SCALES, bool GATED>
rp_matmul_tc_kernel rp_matmul_tc_w8a16_kernel_of(const struct rp_matmul_tile *tile) {
    if (tile->rows != 128 || (int)tile->boxes != held_boxes((int)tile->tokens))
        return {};
#define KERNEL_OF(tokens)                                                                          \
    rp_matmul_tc_kernel_of<                                                                        \
        shape<tokens, 128, held_boxes(tokens), false, TYPE, BLOCK_SCALES, GATED>>()
    switch (tile->tokens) {
    case 8:
        return KERNEL_OF(8);
    case 16:
        return KERNEL_OF(16);
    case 32:
        return KERNEL_OF(32);
    case 64:
        return KERNEL_OF(64);
    case 128:
        return KERNEL_OF(128);
    case 192: /* other tiles have no registers for totals or chains */
        if constexpr (GATED && !BLOCK_SCALES)
            return KERNEL_OF(192);
        return {};
    default:
        return {};
    }
#undef KERNEL_OF
}

} // namespace

#endif
