/* matmul_mid_cuda.cu - bf16 products of 65 to 256 rows of tokens on Hopper's tensor cores.
 *
 * At so many rows the crossbar between L2 and the multiprocessors is as busy as the memory: a tile of w
 * weight rows and t tokens brings (w + t) rows through it for w rows of weights. So a tile has all the
 * tokens and as many weight rows as registers hold sums for, and the blocks of a cluster, which work on
 * different weights at the same columns, each bring a part of the tokens to all.
 *
 * Tokens are the instruction's left operand, weights its right one: an instruction then takes up to 256
 * weight rows, and the operands are read from shared memory less often. Either way round gives equal bits.
 *
 *   a warp      boxes of weights -> stage, when this block has freed it
 *   a warp      boxes of tokens  -> stage, when all blocks of the cluster have freed it
 *   warpgroups  two: half of the tokens each
 *
 * A unit of work is a tile with all of K, or, where the reader sums up partials, one segment of it.
 *
 * Gated: the box of weights brings 8 gates, then their 8 ups, then the next 8 gates: a thread has a gate's
 * sum in sums[8 * j + i] and its up's in sums[8 * j + 4 + i]. */
#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/matmul_cluster.cuh"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_mid_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_wgmma.cuh"

namespace {

#define MULTIPLYING 256 /* threads: two warpgroups */
#define THREADS     (MULTIPLYING + 64)

template <int TOKENS_, int WIDTH_, int CLUSTER_, bool EAGER_, bool GATED_> struct shape {
    static constexpr int TOKENS = TOKENS_, WIDTH = WIDTH_, CLUSTER = CLUSTER_;
    static constexpr bool EAGER = EAGER_, GATED = GATED_;
    static constexpr int BLOCKS = TOKENS / 128; /* of 64 tokens, of a warpgroup */
    static constexpr int SUMS = WIDTH / 2;      /* registers of one block */
    static constexpr uint32_t WEIGHT_BYTES = WIDTH * 128, TOKEN_BYTES = TOKENS * 128; /* a box */
    static constexpr uint32_t STAGE_BYTES = WEIGHT_BYTES + TOKEN_BYTES;
};

/* Barriers and stages in shared memory. */
template <typename Shape> struct ring {
    /* Of 8 bytes each: the stage is there; this block, the whole cluster has done with it. */
    uint32_t full, empty, empty_all;
    uint32_t data; /* stages, 1024-aligned for the swizzle */
    uint32_t count, stage, phase;

    __device__ __forceinline__ uint32_t full_barrier() const { return full + 8 * stage; }
    __device__ __forceinline__ uint32_t empty_barrier() const { return empty + 8 * stage; }
    __device__ __forceinline__ uint32_t empty_all_barrier() const { return empty_all + 8 * stage; }
    __device__ __forceinline__ uint32_t weights() const { return data + stage * Shape::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t tokens() const { return weights() + Shape::WEIGHT_BYTES; }
    __device__ __forceinline__ void next() {
        if (++stage == count) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* The cluster's units in turn; segments [begin, end) of this block's tile of the unit. */
struct walk {
    uint32_t at, step;
    uint32_t tile, begin, end;

    template <typename Shape>
    __device__ __forceinline__ bool next(const rp_matmul_mid_args &args, uint32_t rank) {
        if (at >= args.units)
            return false;
        if (args.partials) {
            tile = at / args.segments;
            begin = at % args.segments;
            end = begin + 1;
        } else {
            tile = at;
            begin = 0;
            end = args.segments;
        }
        tile = tile * Shape::CLUSTER + rank;
        at += step;
        return true;
    }
};

template <typename Shape> __device__ __forceinline__ walk walk_begin() {
    walk w = {};
    w.at = blockIdx.x / Shape::CLUSTER;
    w.step = gridDim.x / Shape::CLUSTER;
    return w;
}

/* One thread. */
template <typename Shape>
__device__ __forceinline__ void copy_weights(const rp_matmul_mid_args &args, ring<Shape> at,
                                             walk w, uint32_t rank) {
    uint32_t bytes = args.tile.rows * 128, early = args.early;
    while (w.next<Shape>(args, rank)) {
        uint32_t end = min(w.end * args.segment_blocks, args.blocks);
        for (uint32_t block = w.begin * args.segment_blocks; block < end; block++) {
            if (early-- == 0)
                rp_pdl_wait();
            rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
            rp_barrier_expect(at.full_barrier(), bytes);
            if (Shape::GATED)
                rp_copy_box_4d(at.weights(), &args.weight_map, block * RP_MATMUL_BLOCK, 0, 0,
                               w.tile * (args.tile.rows / 16), at.full_barrier(),
                               RP_L2_EVICT_FIRST);
            else
                rp_copy_box(at.weights(), &args.weight_map, block * RP_MATMUL_BLOCK,
                            w.tile * args.tile.rows, at.full_barrier(), RP_L2_EVICT_FIRST);
            at.next();
        }
    }
}

/* One thread: its block's part of the tokens, for the whole cluster. */
template <typename Shape>
__device__ __forceinline__ void copy_tokens(const rp_matmul_mid_args &args, ring<Shape> at, walk w,
                                            uint32_t rank) {
    rp_pdl_wait();
    constexpr uint32_t PART = Shape::TOKENS / Shape::CLUSTER;
    while (w.next<Shape>(args, rank)) {
        uint32_t end = min(w.end * args.segment_blocks, args.blocks);
        for (uint32_t block = w.begin * args.segment_blocks; block < end; block++) {
            rp_barrier_wait(Shape::CLUSTER > 1 ? at.empty_all_barrier() : at.empty_barrier(),
                            at.phase ^ 1);
            rp_barrier_expect(at.full_barrier(), Shape::TOKEN_BYTES);
            if (Shape::CLUSTER > 1)
                rp_copy_box_to_all(at.tokens() + rank * PART * 128, &args.in_map,
                                   block * RP_MATMUL_BLOCK, rank * PART, at.full_barrier(),
                                   (1 << Shape::CLUSTER) - 1, RP_L2_EVICT_LAST);
            else
                rp_copy_box(at.tokens(), &args.in_map, block * RP_MATMUL_BLOCK, 0,
                            at.full_barrier(), RP_L2_EVICT_LAST);
            at.next();
        }
    }
}

template <typename Shape> __device__ __forceinline__ void free_stage(const ring<Shape> &at) {
    uint32_t lane = threadIdx.x % 32;
    if (lane == 0)
        rp_barrier_arrive(at.empty_barrier());
    if (Shape::CLUSTER > 1 && lane < Shape::CLUSTER)
        rp_barrier_arrive_at(at.empty_all_barrier(), lane);
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

/* stash: (block of threads)(SUMS / 4)(BLOCKS)(256 threads)(4) */
template <typename Shape>
__device__ __forceinline__ void move_stash(const rp_matmul_mid_args &args, bool add, bool store,
                                           sums_of<Shape> &sums) {
    float4 *at = (float4 *)args.stash +
                 (size_t)blockIdx.x * (Shape::BLOCKS * Shape::SUMS / 4) * MULTIPLYING + threadIdx.x;
#pragma unroll
    for (int i = 0; i < Shape::BLOCKS * Shape::SUMS / 4; i++) {
        float *s = &sums[i % Shape::BLOCKS][i / Shape::BLOCKS * 4];
        if (add) {
            float4 v = __ldcg(at + i * MULTIPLYING);
            s[0] = v.x + s[0];
            s[1] = v.y + s[1];
            s[2] = v.z + s[2];
            s[3] = v.w + s[3];
        }
        if (store)
            __stcg(at + i * MULTIPLYING, make_float4(s[0], s[1], s[2], s[3]));
    }
}

/* fn(gate) * up: row and rows count columns of out. */
template <typename Shape, typename Out, rp_activation FN>
__device__ __forceinline__ void store_gated(Out *to, size_t stride, const place &p,
                                            const sums_of<Shape> &sums) {
#pragma unroll
    for (int block = 0; block < Shape::BLOCKS; block++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t token = p.token + block * 64 + h * 8;
            Out *at = to + token * stride + p.row;
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
__device__ __forceinline__ void multiply_all(const rp_matmul_mid_args &args, ring<Shape> at, walk w,
                                             uint32_t rank) {
    uint32_t warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    place p;
    p.token = warpgroup * Shape::BLOCKS * 64 + thread / 32 * 16 + thread % 32 / 4;
    rp_pdl_wait();
    p.live = *args.live;
    while (w.next<Shape>(args, rank)) {
        uint32_t n = Shape::GATED ? args.n / 2 : args.n;
        uint32_t rows = Shape::GATED ? args.tile.rows / 2 : args.tile.rows;
        uint32_t first = w.tile * rows, column = thread % 4 * 2;
        p.row = first + column;
        rows = first < n ? min(rows, n - first) : 0;
        p.rows = rows > column ? rows - column : 0;
        sums_of<Shape> sums;
        for (uint32_t segment = w.begin; segment < w.end; segment++) {
            uint32_t blocks = min(args.segment_blocks, args.blocks - segment * args.segment_blocks);
            multiply_segment<Shape>(at, warpgroup, blocks, sums);
            if (w.end - w.begin > 1)
                move_stash<Shape>(args, segment > w.begin, segment + 1 < w.end, sums);
        }
        if (!Shape::GATED)
            store_sums<Shape>(args.partials ? args.partials + w.begin * args.split_stride
                                            : (float *)args.out,
                              args.partials ? args.n : args.out_stride, p, sums);
        else if (args.fn == RP_ACTIVATION_SILU)
            store_gated<Shape, __nv_bfloat16, RP_ACTIVATION_SILU>((__nv_bfloat16 *)args.out,
                                                                  args.out_stride, p, sums);
        else
            store_gated<Shape, __nv_bfloat16, RP_ACTIVATION_GELU_TANH>((__nv_bfloat16 *)args.out,
                                                                  args.out_stride, p, sums);
    }
}

template <int TOKENS, int WIDTH, int CLUSTER, bool EAGER, bool GATED>
__global__ void __launch_bounds__(THREADS, 1)
    matmul_mid(const __grid_constant__ rp_matmul_mid_args args) {
#if RP_CUDA_HOPPER
    using Shape = shape<TOKENS, WIDTH, CLUSTER, EAGER, GATED>;
    extern __shared__ __align__(1024) unsigned char shared[];
    rp_pdl_trigger();
    uint32_t rank = CLUSTER > 1 ? rp_cluster_rank() : 0;
    ring<Shape> at;
    at.data = (rp_shared_address(shared) + 1023) & ~1023u;
    at.count = args.stages;
    at.full = at.data + at.count * Shape::STAGE_BYTES;
    at.empty = at.full + 8 * at.count;
    at.empty_all = at.empty + 8 * at.count;
    at.stage = at.phase = 0;
    if (threadIdx.x == MULTIPLYING) {
        rp_map_prefetch(&args.weight_map);
        rp_map_prefetch(&args.in_map);
        for (uint32_t i = 0; i < at.count; i++) {
            rp_barrier_init(at.full + 8 * i, 2);
            rp_barrier_init(at.empty + 8 * i, MULTIPLYING / 32);
            rp_barrier_init(at.empty_all + 8 * i, MULTIPLYING / 32 * CLUSTER);
        }
        rp_barrier_init_fence();
    }
    if (CLUSTER > 1)
        rp_cluster_sync();
    else
        __syncthreads();
    walk w = walk_begin<Shape>();
    if (threadIdx.x < MULTIPLYING)
        multiply_all<Shape>(args, at, w, rank);
    else if (threadIdx.x == MULTIPLYING)
        copy_weights<Shape>(args, at, w, rank);
    else if (threadIdx.x == MULTIPLYING + 32)
        copy_tokens<Shape>(args, at, w, rank);
    /* The others may still send tokens here, or arrive. */
    if (CLUSTER > 1) {
        __syncwarp();
        rp_cluster_sync();
    }
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

struct kernel_entry {
    uint32_t tokens, width, cluster;
    bool eager, gated;
    void (*kernel)(rp_matmul_mid_args);
};

#define ENTRY(tokens, width, cluster, eager, gated)                                                \
    { tokens, width, cluster, eager, gated, matmul_mid<tokens, width, cluster, eager, gated> }
#define ENTRIES(tokens, width, gated)                                                              \
    ENTRY(tokens, width, 1, true, gated), ENTRY(tokens, width, 2, true, gated),                    \
        ENTRY(tokens, width, 4, true, gated)
const kernel_entry kernels[] = {
    ENTRIES(128, 128, false), ENTRIES(128, 192, false), ENTRIES(128, 224, true), ENTRIES(128, 256, false),
    ENTRIES(128, 128, true), ENTRIES(256, 112, true), ENTRIES(256, 128, false),
    ENTRY(128, 128, 1, false, false), ENTRY(128, 128, 4, false, false), ENTRY(128, 224, 1, false, true),
    ENTRY(128, 224, 2, false, true), 
};

const kernel_entry *find_kernel(const rp_matmul_mid_args &args) {
    const rp_matmul_mid_tile &tile = args.tile;
    for (const kernel_entry &entry : kernels)
        if (entry.tokens == tile.tokens && entry.width == tile.width &&
            entry.cluster == tile.cluster && entry.eager == tile.eager && entry.gated == args.gated)
            return &entry;
    return nullptr;
}

} // namespace

int rp_matmul_mid_cuda_prepare(const struct rp_matmul_mid_args *args, uint32_t *out_clusters) {
    const kernel_entry *entry = find_kernel(*args);
    if (!entry)
        return RP_STATUS_NOT_FOUND;
    cudaError_t error =
        cudaFuncSetAttribute(entry->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)args->shared_most);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = entry->cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(entry->cluster);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = args->shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveClusters(&clusters, entry->kernel, &config);
    *out_clusters = (uint32_t)clusters;
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_mid_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_mid_args *args = (const rp_matmul_mid_args *)args_void;
    return rp_cuda_start(find_kernel(*args)->kernel, dim3(args->grid), dim3(THREADS),
                         args->shared_bytes, stream, args->dependent, *args, args->tile.cluster);
}
