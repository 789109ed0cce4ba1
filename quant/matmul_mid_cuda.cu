/* matmul_mid_cuda.cu - bf16 products of 65 to 256 rows of tokens on Hopper's tensor cores.
 *
 * Tokens are the instruction's left operand, weights its right one: an instruction takes up to 256 weight
 * rows, so that a block has a tile of all tokens and as many weight rows as its registers hold sums for;
 * either way round gives equal bits. Then a product is one tile a block, and what is lost is what passes
 * between the last weights of one product and the first of the next: sums stored, blocks ended and started,
 * stages filled. The memory is kept at work meanwhile: the thread that copies weights asks for those that
 * the next product's blocks will read first, into L2.
 *
 *   a warp      boxes of weights -> stage, when it is free; weights ahead -> L2
 *   a warp      boxes of tokens  -> stage
 *   warpgroups  two: half of the tokens each
 *
 * A unit of work is a tile with all of K or, where the reader sums up partials, one segment of it.
 *
 * Gated: the box of weights brings 8 gates, then their 8 ups, then the next 8 gates: a thread has a gate's
 * sum in sums[8 * j + i] and its up's in sums[8 * j + 4 + i]. */
#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_mid_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_wgmma.cuh"

namespace {

#define MULTIPLYING 256 /* threads: two warpgroups */
#define THREADS     (MULTIPLYING + 64)

template <int TOKENS_, int WIDTH_, bool EAGER_, bool GATED_> struct shape {
    static constexpr int TOKENS = TOKENS_, WIDTH = WIDTH_;
    static constexpr bool EAGER = EAGER_, GATED = GATED_;
    static constexpr int BLOCKS = TOKENS / 128; /* of 64 tokens, of a warpgroup */
    static constexpr int SUMS = WIDTH / 2;      /* registers of one block */
    static constexpr uint32_t WEIGHT_BYTES = WIDTH * 128, TOKEN_BYTES = TOKENS * 128; /* a box */
    static constexpr uint32_t STAGE_BYTES = WEIGHT_BYTES + TOKEN_BYTES;
};

/* Barriers and stages in shared memory. */
template <typename Shape> struct ring {
    uint32_t full, empty, data; /* 8 bytes each; stages 1024-aligned for the swizzle */
    uint32_t count, stage, phase;

    __device__ __forceinline__ uint32_t full_barrier() const { return full + 8 * stage; }
    __device__ __forceinline__ uint32_t empty_barrier() const { return empty + 8 * stage; }
    __device__ __forceinline__ uint32_t weights() const { return data + stage * Shape::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t tokens() const { return weights() + Shape::WEIGHT_BYTES; }
    __device__ __forceinline__ void next() {
        if (++stage == count) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* Where a block is in its units. */
struct walk {
    uint32_t unit, step;
    uint32_t tile, segment;
    uint32_t block, end; /* of 64 columns: this one, the end of the segment */
    bool valid;

    __device__ __forceinline__ void enter(const rp_matmul_mid_weights &weights) {
        valid = unit < weights.units;
        if (!valid)
            return;
        tile = unit / weights.segments;
        segment = unit % weights.segments;
        block = segment * weights.segment_blocks;
        end = min(block + weights.segment_blocks, weights.blocks);
        unit += step;
    }
    __device__ __forceinline__ void next(const rp_matmul_mid_weights &weights) {
        if (++block == end)
            enter(weights);
    }
};

__device__ __forceinline__ walk walk_begin(const rp_matmul_mid_weights &weights) {
    walk w = {};
    w.unit = blockIdx.x;
    w.step = weights.grid;
    w.enter(weights);
    return w;
}

__device__ __forceinline__ void prefetch(const rp_matmul_mid_weights &weights, const walk &w, uint64_t policy) {
    if (weights.gated)
        rp_prefetch_box_4d(&weights.map, w.block * RP_MATMUL_BLOCK, 0, 0,
                           w.tile * (weights.rows / 16), policy);
    else
        rp_prefetch_box(&weights.map, w.block * RP_MATMUL_BLOCK, w.tile * weights.rows,
                        policy);
}

/* Boxes asked for before their time, into L2: of this product, then of the next. */
struct scout {
    walk own, next;
    uint32_t at, left; /* own boxes counted with those in stages; of the next that may still be asked for */

    __device__ __forceinline__ void go_to(const rp_matmul_mid_args &args, uint32_t limit, uint32_t from, uint64_t policy) {
        for (; at < limit; at++) {
            if (own.valid) {
                if (at >= from)
                    prefetch(args.weights, own, policy);
                own.next(args.weights);
            } else if (next.valid && left > 0) {
                prefetch(args.next, next, policy);
                next.next(args.next);
                left--;
            } else {
                break;
            }
        }
    }
};

/* One thread. */
template <typename Shape>
__device__ __forceinline__ void copy_weights(const rp_matmul_mid_args &args, ring<Shape> at) {
    const rp_matmul_mid_weights &weights = args.weights;
    uint32_t bytes = weights.rows * 128, early = args.tile.early, group = args.tile.group;
    uint64_t policy = args.tile.policy & 1 ? RP_L2_EVICT_NORMAL : RP_L2_EVICT_FIRST, ppolicy = args.tile.policy & 2 ? RP_L2_EVICT_NORMAL : RP_L2_EVICT_FIRST;
    scout s;
    s.own = walk_begin(weights);
    s.next = walk_begin(args.next);
    s.at = 0;
    s.left = args.tile.next_ahead;
    uint32_t i = 0;
    for (walk w = s.own; w.valid; w.next(weights), i++) {
        if (i == early)
            rp_pdl_wait();
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        rp_barrier_expect(at.full_barrier(), bytes);
        if (Shape::GATED)
            rp_copy_box_4d(at.weights(), &weights.map, w.block * RP_MATMUL_BLOCK, 0, 0,
                           w.tile * (weights.rows / 16), at.full_barrier(), policy);
        else
            rp_copy_box(at.weights(), &weights.map, w.block * RP_MATMUL_BLOCK,
                        w.tile * weights.rows, at.full_barrier(), policy);
        at.next();
        if (args.tile.ahead && i % group == 0)
            s.go_to(args, i + group + args.tile.ahead, max(at.count, i + 1), ppolicy);
    }
    s.own.valid = false;
    s.go_to(args, UINT32_MAX, 0, ppolicy);
}

/* One thread. */
template <typename Shape>
__device__ __forceinline__ void copy_tokens(const rp_matmul_mid_args &args, ring<Shape> at) {
    rp_pdl_wait();
    for (walk w = walk_begin(args.weights); w.valid; w.next(args.weights)) {
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        rp_barrier_expect(at.full_barrier(), Shape::TOKEN_BYTES);
        rp_copy_box(at.tokens(), &args.in_map, w.block * RP_MATMUL_BLOCK, 0, at.full_barrier(),
                    RP_L2_EVICT_LAST);
        at.next();
    }
}

template <typename Shape> __device__ __forceinline__ void free_stage(const ring<Shape> &at) {
    if (threadIdx.x % 32 == 0)
        rp_barrier_arrive(at.empty_barrier());
}

template <typename Shape> using sums_of = float[Shape::BLOCKS][Shape::SUMS];

/* One segment: a chain from zero over its columns in rising order. */
template <typename Shape>
__device__ __forceinline__ void multiply_segment(ring<Shape> &at, uint32_t warpgroup,
                                                 uint32_t blocks, sums_of<Shape> &sums) {
    ring<Shape> before = at;
    for (uint32_t k = 0; k < blocks; k++) {
        rp_barrier_wait(at.full_barrier(), at.phase);
#ifndef COPY_ONLY
        uint64_t a = rp_wgmma_operand(at.tokens() + warpgroup * Shape::BLOCKS * 64 * 128);
        uint64_t b = rp_wgmma_operand(at.weights());
        rp_wgmma_fence();
#pragma unroll
        for (int i = 0; i < RP_MATMUL_BLOCK / 16; i++)
#pragma unroll
            for (int block = 0; block < Shape::BLOCKS; block++)
                rp_wgmma<Shape::WIDTH>::run(sums[block], a + 2 * i + block * 64 * 128 / 16,
                                            b + 2 * i, (k | i) != 0);
        rp_wgmma_commit();
#endif
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

/* Where the sums of one thread lie: sums[block][4 * j + 2 * h + c] are of token + 64 * block + 8 * h and
 * row + 8 * j + c. */
struct place {
    uint32_t row, token, live;
    uint32_t rows; /* alive in the tile, from `row` on; even */
};

/* Two neighbours of a token at a time; four lanes fill a sector of 32 bytes. */
template <typename Shape>
__device__ __forceinline__ void store_sums(float *to, size_t stride, const place &p,
                                           const sums_of<Shape> &sums) {
#pragma unroll
    for (int block = 0; block < Shape::BLOCKS; block++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t token = p.token + block * 64 + h * 8;
            float *at = to + token * stride + p.row;
            uint32_t rows = token < p.live ? p.rows : 0;
#pragma unroll
            for (int j = 0; j < Shape::SUMS / 4; j++)
                if ((uint32_t)j * 8 < rows)
                    *(float2 *)(at + j * 8) = make_float2(sums[block][4 * j + 2 * h],
                                                          sums[block][4 * j + 2 * h + 1]);
        }
}

/* fn(gate) * up: row and rows count columns of out. */
template <typename Shape, rp_activation FN>
__device__ __forceinline__ void store_gated(__nv_bfloat16 *to, size_t stride, const place &p,
                                            const sums_of<Shape> &sums) {
#pragma unroll
    for (int block = 0; block < Shape::BLOCKS; block++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t token = p.token + block * 64 + h * 8;
            __nv_bfloat16 *at = to + token * stride + p.row;
            uint32_t rows = token < p.live ? p.rows : 0;
#pragma unroll
            for (int j = 0; j < Shape::SUMS / 8; j++) {
                const float *s = &sums[block][8 * j + 2 * h];
                if ((uint32_t)j * 8 < rows)
                    *(__nv_bfloat162 *)(at + j * 8) = __floats2bfloat162_rn(
                        rp_activate(FN, s[0]) * s[4], rp_activate(FN, s[1]) * s[5]);
            }
        }
}

template <typename Shape>
__device__ __forceinline__ void multiply_all(const rp_matmul_mid_args &args, ring<Shape> at) {
    uint32_t warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, column = thread % 4 * 2;
    uint32_t tile_columns = Shape::GATED ? args.weights.rows / 2 : args.weights.rows;
    place p;
    p.token = warpgroup * Shape::BLOCKS * 64 + thread / 32 * 16 + thread % 32 / 4;
    rp_pdl_wait();
    p.live = *args.live;
    for (walk w = walk_begin(args.weights); w.valid; w.enter(args.weights)) {
        sums_of<Shape> sums;
        multiply_segment<Shape>(at, warpgroup, w.end - w.block, sums);
        uint32_t first = w.tile * tile_columns;
        uint32_t columns = min(tile_columns, args.columns - first);
        p.row = first + column;
        p.rows = columns > column ? columns - column : 0;
        if (!Shape::GATED)
            store_sums<Shape>((float *)args.out + w.segment * args.split_stride, args.out_stride, p,
                              sums);
        else if (args.fn == RP_ACTIVATION_SILU)
            store_gated<Shape, RP_ACTIVATION_SILU>((__nv_bfloat16 *)args.out, args.out_stride, p,
                                                   sums);
        else
            store_gated<Shape, RP_ACTIVATION_GELU_TANH>((__nv_bfloat16 *)args.out, args.out_stride,
                                                        p, sums);
    }
}

template <int TOKENS, int WIDTH, bool EAGER, bool GATED>
__global__ void __launch_bounds__(THREADS, 1)
    matmul_mid(const __grid_constant__ rp_matmul_mid_args args) {
#if RP_CUDA_HOPPER
    using Shape = shape<TOKENS, WIDTH, EAGER, GATED>;
    extern __shared__ __align__(1024) unsigned char shared[];
    rp_pdl_trigger();
    ring<Shape> at;
    at.data = (rp_shared_address(shared) + 1023) & ~1023u;
    at.count = args.stages;
    at.full = at.data + at.count * Shape::STAGE_BYTES;
    at.empty = at.full + 8 * at.count;
    at.stage = at.phase = 0;
    if (threadIdx.x == MULTIPLYING) {
        rp_map_prefetch(&args.weights.map);
        rp_map_prefetch(&args.in_map);
        for (uint32_t i = 0; i < at.count; i++) {
            rp_barrier_init(at.full + 8 * i, 2);
            rp_barrier_init(at.empty + 8 * i, MULTIPLYING / 32);
        }
        rp_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < MULTIPLYING)
        multiply_all<Shape>(args, at);
    else if (threadIdx.x == MULTIPLYING)
        copy_weights<Shape>(args, at);
    else if (threadIdx.x == MULTIPLYING + 32)
        copy_tokens<Shape>(args, at);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

struct kernel_entry {
    uint32_t tokens, width;
    bool eager, gated;
    void (*kernel)(rp_matmul_mid_args);
};

#define ENTRY(tokens, width, eager, gated)                                                         \
    { tokens, width, eager, gated, matmul_mid<tokens, width, eager, gated> }
const kernel_entry kernels[] = {
    ENTRY(128, 128, true, false), ENTRY(128, 192, true, false), ENTRY(128, 256, true, false),
    ENTRY(128, 128, true, true),  ENTRY(128, 224, true, true),  ENTRY(256, 128, true, false),
    ENTRY(256, 112, true, true),
#ifdef RP_EXP
    ENTRY(128, 128, false, false), ENTRY(128, 192, false, false), ENTRY(128, 224, false, true), ENTRY(256, 112, false, true), ENTRY(256, 128, false, false), ENTRY(128, 256, false, false),
#endif
};

const kernel_entry *find_kernel(const rp_matmul_mid_args &args) {
    const rp_matmul_mid_tile &tile = args.tile;
    for (const kernel_entry &entry : kernels)
        if (entry.tokens == tile.tokens && entry.width == tile.width &&
            entry.eager == tile.eager && entry.gated == args.weights.gated)
            return &entry;
    return nullptr;
}

} // namespace

int rp_matmul_mid_cuda_prepare(const struct rp_matmul_mid_args *args) {
    const kernel_entry *entry = find_kernel(*args);
    if (!entry)
        return RP_STATUS_NOT_FOUND;
    cudaError_t error = cudaFuncSetAttribute(
        entry->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)args->shared_most);
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_mid_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_mid_args *args = (const rp_matmul_mid_args *)args_void;
    return rp_cuda_start(find_kernel(*args)->kernel, dim3(args->weights.grid), dim3(THREADS),
                         args->shared_bytes, stream, args->dependent, *args);
}
