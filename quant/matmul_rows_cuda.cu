/* matmul_rows_cuda.cu - bf16 products of few rows on Hopper's tensor cores, alone or with the activation behind
 * them (gated): out = fn(in * gates^T) * (in * ups^T).
 *
 * A block owns as many outputs as every other, over all of K, in tiles that need not be a multiple of 64 high: so
 * no multiprocessor waits for another, a sum is finished in registers, nothing is left to other blocks or to the
 * reader, and tokens are read once for all rows of a tile. It pays while tokens take little of a stage.
 *
 * Weights are the instruction's left operand, as in matmul_tc_cuda.cu, so the bits are the same. An instruction
 * reads 64 rows; where a tile has fewer it reads what lies behind them in shared memory, and those sums are
 * dropped. Warpgroup w multiplies rows [64 w, 64 w + 64) of the tile; of a gated one those of the gates and those
 * of the ups: a thread has a gate and its up in the same place of two accumulators.
 *
 * A warp asks for weights, which depend on no kernel before, another for tokens, which do. Weights in flight are
 * capped: full queues of the memory hold up the loads of the small kernels that run beside. */
#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_wgmma.cuh"

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

#define BOX_ROW_BYTES (RP_MATMUL_BLOCK * 2)
#define BOXES_MOST    4

/* Barriers and stages in shared memory. A stage: weights (part)(box)(half)(rows of the tile), then tokens
 * (part)(box). Halves are gates and ups; parts are segments, each with a warpgroup of its own. */
struct ring {
    /* 8 bytes each: weights have come, tokens have come, all is read; and one, the tokens are normed */
    uint32_t landed, full, empty, normed;
    uint32_t data; /* stages 1024-aligned for the swizzle */
    uint32_t token_offset, stage_bytes;
    uint32_t count, stage, phase;

    __device__ __forceinline__ uint32_t landed_barrier() const { return landed + 8 * stage; }
    __device__ __forceinline__ uint32_t full_barrier() const { return full + 8 * stage; }
    __device__ __forceinline__ uint32_t empty_barrier() const { return empty + 8 * stage; }
    __device__ __forceinline__ uint32_t weights() const { return data + stage * stage_bytes; }
    __device__ __forceinline__ uint32_t tokens() const { return weights() + token_offset; }
    __device__ __forceinline__ void next() {
        if (++stage == count) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* Outputs [begin, end) of this block. */
struct span {
    uint32_t begin, end;
};
__device__ __forceinline__ span own_span(const rp_matmul_rows_args &args) {
    uint32_t begin = min(blockIdx.x * args.share, args.rows);
    return {begin, min(begin + args.share, args.rows)};
}

/* The weights or tokens of one stage in one instruction. */
__device__ __forceinline__ void copy_weight_stage(uint32_t to, const CUtensorMap *map, uint32_t row,
                                                  uint32_t block, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %2, %4, %2}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(0), "r"(row), "r"(block), "r"(barrier), "l"(RP_L2_EVICT_FIRST)
                 : "memory");
}
__device__ __forceinline__ void copy_token_stage(uint32_t to, const CUtensorMap *map,
                                                 uint32_t block, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %2, %3, %2}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(0), "r"(block), "r"(barrier), "l"(RP_L2_EVICT_LAST)
                 : "memory");
}

/* One thread. Stages in flight are counted in the order in which they were asked for. */
__device__ __forceinline__ void copy_weights(const rp_matmul_rows_args &args, ring at) {
    ring landing = at;
    span own = own_span(args);
    const uint32_t blocks = args.part_blocks, boxes = args.boxes;
    uint32_t left = at.count; /* stages until the ring was full once */
    uint32_t flying = 0, flight = args.flight_early;
    for (uint32_t first = own.begin, tile = 1; first < own.end; first += args.tile_rows, tile++) {
        bool last = tile == args.tiles;
        const CUtensorMap *map = last ? &args.last_map : &args.weight_map;
        uint32_t bytes = last ? args.last_bytes : args.tile_bytes;
        for (uint32_t block = 0; block < blocks; block += boxes) {
            if (left-- == 0)
                flight = args.flight;
            rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
            if (flying == flight) {
                rp_barrier_wait(landing.landed_barrier(), landing.phase);
                landing.next();
                flying--;
            }
            flying++;
            rp_barrier_expect(at.landed_barrier(), bytes);
            copy_weight_stage(at.weights(), map, first, block, at.landed_barrier());
            at.next();
        }
    }
}

/* All multiplying threads. */
template <int THREADS> __device__ __forceinline__ void sync_multiplying() {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

/* Normed tokens, (row)(k) bf16 in shared memory, with the bits of norm_cuda.cu: a thread there has one quad of
 * columns; here it does the work of several, warp by warp. */
template <int THREADS>
__device__ __forceinline__ void normalise(const rp_matmul_rows_args &args, unsigned char *tokens) {
    constexpr int OWN = RP_MATMUL_NORM_COLS / 4 / THREADS;
    const struct rp_matmul_norm &norm = args.norm;
    uint32_t quads = norm.cols / 4, warps = RP_CEIL_DIV(quads, 128u) * 4;
    /* Behind the tokens: (row)(warp) */
    float(*sums)[RP_MATMUL_NORM_COLS / 128] = (float(*)[RP_MATMUL_NORM_COLS / 128])(
        tokens + RP_MATMUL_NORM_TOKEN_BYTES(args.max_rows, norm.cols));
    float4 weight[OWN], x[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t quad = threadIdx.x + THREADS * i;
        if (quad < quads)
            weight[i] = ((const float4 *)norm.weight)[quad];
    }
    rp_pdl_wait();
    /* The first row is read while it is not known yet whether it is alive. */
    uint32_t live = 1;
    for (uint32_t row = 0; row < live; row++) {
        const float4 *from = (const float4 *)(norm.in + row * norm.in_stride);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t quad = threadIdx.x + THREADS * i;
            if (quad < quads)
                x[i] = __ldcg(from + quad);
        }
        if (row == 0)
            live = min(*args.live, args.max_rows);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t quad = threadIdx.x + THREADS * i;
            float sum = rp_warp_sum(quad < quads ? rp_add_squares(0.0f, x[i]) : 0.0f);
            if (threadIdx.x % 32 == 0)
                sums[row][quad / 32] = sum;
        }
        sync_multiplying<THREADS>();
        float total = 0.0f;
        for (uint32_t w = 0; w < warps; w += 4) {
            float4 four = *(const float4 *)&sums[row][w];
            total = (((total + four.x) + four.y) + four.z) + four.w;
        }
        float inverse = rp_inverse_root(total, norm.cols, norm.eps);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t quad = threadIdx.x + THREADS * i;
            if (quad >= quads)
                continue;
            float4 y = rp_norm_values(x[i], inverse, weight[i], norm.weight_offset);
            __nv_bfloat162 low = __floats2bfloat162_rn(y.x, y.y);
            __nv_bfloat162 high = __floats2bfloat162_rn(y.z, y.w);
            uint2 raw = {*(const uint32_t *)&low, *(const uint32_t *)&high};
            *(uint2 *)(tokens + (row * norm.cols + quad * 4) * 2) = raw;
        }
    }
}

/* One warp: normed tokens into the stages, as a bulk copy would swizzle them. */
template <int TOKENS>
__device__ __forceinline__ void copy_normed(const rp_matmul_rows_args &args, ring at,
                                            const unsigned char *tokens) {
    rp_pdl_wait();
    rp_pdl_trigger();
    uint32_t live = min(*args.live, (uint32_t)RP_MATMUL_NORM_ROWS), row_bytes = args.norm.cols * 2;
    rp_barrier_wait(at.normed, 0);
    span own = own_span(args);
    /* A lane has 16 bytes of one box, of up to four. */
    uint32_t lane = threadIdx.x % 32, box = lane / 8, chunk = lane % 8;
    uint32_t part = box / args.boxes, inside = box % args.boxes;
    const unsigned char *from =
        tokens + (part * args.part_blocks + inside) * BOX_ROW_BYTES + chunk * 16;
    for (uint32_t first = own.begin; first < own.end; first += args.tile_rows) {
        for (uint32_t block = 0; block < args.part_blocks; block += args.boxes) {
            rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
            uint32_t to = at.tokens() + box * TOKENS * BOX_ROW_BYTES;
            if (part < args.parts && block + inside < args.part_blocks)
                for (uint32_t row = 0; row < live; row++)
                    rp_store_shared(
                        to + row * BOX_ROW_BYTES + (chunk ^ row) * 16,
                        *(const uint4 *)(from + row * row_bytes + block * BOX_ROW_BYTES));
            rp_shared_fence_async();
            __syncwarp();
            if (lane == 0)
                rp_barrier_arrive(at.full_barrier());
            at.next();
        }
    }
}

/* One thread: waits for the kernels before, which may be the tokens' writers, and lets the next one start. */
__device__ __forceinline__ void copy_tokens(const rp_matmul_rows_args &args, ring at) {
    rp_pdl_wait();
    rp_pdl_trigger();
    span own = own_span(args);
    const uint32_t blocks = args.part_blocks, boxes = args.boxes;
    for (uint32_t first = own.begin; first < own.end; first += args.tile_rows) {
        for (uint32_t block = 0; block < blocks; block += boxes) {
            rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
            rp_barrier_expect(at.full_barrier(), at.stage_bytes - at.token_offset);
            copy_token_stage(at.tokens(), &args.in_map, block, at.full_barrier());
            at.next();
        }
    }
}

template <int TOKENS> using sums = float[TOKENS / 2];

/* Blocks [0, blocks) of one segment: a chain from zero over its columns in rising order. weights, tokens: where this
 * warpgroup's lie in a stage; rows: of the tile. */
template <int TOKENS, bool GATED>
__device__ __forceinline__ void
multiply_segment(const rp_matmul_rows_args &args, ring &at, uint32_t weights, uint32_t tokens,
                 uint32_t rows, uint32_t blocks, sums<TOKENS> (&out)[GATED ? 2 : 1]) {
    constexpr int HALVES = GATED ? 2 : 1;
    const uint32_t boxes = args.boxes;
    for (uint32_t k = 0; k < blocks; k += boxes) {
        rp_barrier_wait(at.landed_barrier(), at.phase);
        rp_barrier_wait(at.full_barrier(), at.phase);
        uint32_t stage = at.weights();
#pragma unroll
        for (int box = 0; box < BOXES_MOST; box++) {
            if (box > 0 && (box >= (int)boxes || k + box >= blocks))
                break;
            uint32_t b = rp_wgmma_operand_low(stage + tokens + box * TOKENS * BOX_ROW_BYTES);
            rp_wgmma_fence();
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                uint32_t a = rp_wgmma_operand_low(stage + weights +
                                                  (box * HALVES + half) * rows * BOX_ROW_BYTES);
#pragma unroll
                for (int i = 0; i < RP_MATMUL_BLOCK / 16; i++)
                    rp_wgmma<TOKENS>::run(out[half], rp_wgmma_operand_of(a + 2 * i),
                                          rp_wgmma_operand_of(b + 2 * i), (k | box | i) != 0);
            }
            rp_wgmma_commit();
        }
        rp_wgmma_wait<0>();
        if (threadIdx.x % 32 == 0)
            rp_barrier_arrive(at.empty_barrier());
        at.next();
    }
}

/* What is added to this thread's sums, read while they are made: nobody else writes there. */
template <int TOKENS> struct addends {
    float bias[2];
    sums<TOKENS> old;

    __device__ __forceinline__ addends(const rp_matmul_rows_args &args, uint32_t col, uint32_t end,
                                       uint32_t live) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            bias[i] = args.bias && col + 8 * i < end ? args.bias[col + 8 * i] : 0.0f;
#pragma unroll
        for (int i = 0; i < TOKENS / 2; i++) {
            uint32_t c = col + i / 2 % 2 * 8, token = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
            old[i] = args.accumulate && c < end && token < live
                         ? __ldcg((const float *)args.out + token * args.out_stride + c)
                         : 0.0f;
        }
    }
};

/* Outputs [col, end), of this thread's columns. */
template <int TOKENS>
__device__ __forceinline__ void store(const rp_matmul_rows_args &args, uint32_t col, uint32_t end,
                                      uint32_t live, const addends<TOKENS> &more,
                                      const sums<TOKENS> &total) {
#pragma unroll
    for (int i = 0; i < TOKENS / 2; i++) {
        uint32_t c = col + i / 2 % 2 * 8, token = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (c >= end || token >= live)
            continue;
        float value = args.bias ? total[i] + more.bias[i / 2 % 2] : total[i];
        size_t at = token * args.out_stride + c;
        if (args.out_bf16)
            ((__nv_bfloat16 *)args.out)[at] = __float2bfloat16_rn(value);
        else
            ((float *)args.out)[at] = args.accumulate ? more.old[i] + value : value;
    }
}

/* gate, up: what rp_activation_cuda would read. */
template <int TOKENS>
__device__ __forceinline__ void store_gated(const rp_matmul_rows_args &args, uint32_t col,
                                            uint32_t end, uint32_t live, const sums<TOKENS> &gate,
                                            const sums<TOKENS> &up) {
#pragma unroll
    for (int i = 0; i < TOKENS / 2; i++) {
        uint32_t c = col + i / 2 % 2 * 8, token = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (c < end && token < live)
            ((__nv_bfloat16 *)args.out)[token * args.out_stride + c] =
                __float2bfloat16_rn(rp_activate(args.fn, gate[i]) * up[i]);
    }
}

template <int TOKENS, bool GATED>
__device__ __forceinline__ void multiply(const rp_matmul_rows_args &args, ring at,
                                         rp_stamp &stamp) {
    constexpr int HALVES = GATED ? 2 : 1;
    uint32_t warpgroup = rp_own_warpgroup(), thread = threadIdx.x % 128;
    stamp.wait();
    TRACE(1);
    uint32_t live = min(*args.live, (uint32_t)TOKENS);
    stamp.look();
    span own = own_span(args);
    for (uint32_t first = own.begin, tile = 1; first < own.end; first += args.tile_rows, tile++) {
        sums<TOKENS> part[HALVES], total[HALVES];
        uint32_t rows = tile == args.tiles ? args.last_rows : args.tile_rows;
        uint32_t col = first + warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4;
        uint32_t end = min(first + rows, own.end);
        addends<TOKENS> more(args, GATED ? end : col, end, live);
        for (uint32_t begin = 0; begin < args.blocks; begin += args.segment_blocks) {
            uint32_t blocks = min(args.segment_blocks, args.blocks - begin);
            multiply_segment<TOKENS, GATED>(args, at, warpgroup * 64 * BOX_ROW_BYTES,
                                            at.token_offset, rows, blocks, part);
#pragma unroll
            for (int half = 0; half < HALVES; half++)
#pragma unroll
                for (int i = 0; i < TOKENS / 2; i++)
                    total[half][i] = begin == 0 ? part[half][i] : total[half][i] + part[half][i];
        }
        if constexpr (GATED)
            store_gated<TOKENS>(args, col, end, live, total[0], total[1]);
        else
            store<TOKENS>(args, col, end, live, more, total[0]);
    }
}

/* Warpgroup w has segment w; the first one adds them up in order. others: (segment)(sum)(128 threads) */
template <int TOKENS, int SEGMENTS>
__device__ __forceinline__ void multiply_split(const rp_matmul_rows_args &args, ring at,
                                               float *others, rp_stamp &stamp) {
    uint32_t warpgroup = rp_own_warpgroup(), thread = threadIdx.x % 128;
    stamp.wait();
    TRACE(1);
    uint32_t live = min(*args.live, (uint32_t)TOKENS);
    stamp.look();
    span own = own_span(args);
    for (uint32_t first = own.begin, tile = 1; first < own.end; first += args.tile_rows, tile++) {
        sums<TOKENS> total[1];
        uint32_t rows = tile == args.tiles ? args.last_rows : args.tile_rows;
        uint32_t col = first + thread / 32 * 16 + thread % 32 / 4;
        uint32_t end = min(first + rows, own.end), box = warpgroup * args.boxes;
        addends<TOKENS> more(args, warpgroup == 0 ? col : end, end, live);
        multiply_segment<TOKENS, false>(args, at, box * rows * BOX_ROW_BYTES,
                                        at.token_offset + box * TOKENS * BOX_ROW_BYTES, rows,
                                        args.part_blocks, total);
        if (warpgroup > 0)
#pragma unroll
            for (int i = 0; i < TOKENS / 2; i++)
                others[((warpgroup - 1) * TOKENS / 2 + i) * 128 + thread] = total[0][i];
        sync_multiplying<SEGMENTS * 128>();
        if (warpgroup == 0) {
#pragma unroll
            for (int segment = 1; segment < SEGMENTS; segment++)
#pragma unroll
                for (int i = 0; i < TOKENS / 2; i++)
                    total[0][i] += others[((segment - 1) * TOKENS / 2 + i) * 128 + thread];
            store<TOKENS>(args, col, end, live, more, total[0]);
        }
        sync_multiplying<SEGMENTS * 128>();
    }
}

template <int TOKENS, int WARPGROUPS, bool GATED, bool SPLIT, bool NORMED>
__global__ void __launch_bounds__(128 * WARPGROUPS + 64, 1)
    matmul_rows(const __grid_constant__ rp_matmul_rows_args args) {
#if RP_CUDA_HOPPER
    constexpr uint32_t COPYING = 128 * WARPGROUPS; /* a warp for weights and one for tokens */
    extern __shared__ __align__(1024) unsigned char shared[];
    rp_stamp stamp(args.stamp);
    TRACE(0);
    ring at;
    at.data = (rp_shared_address(shared) + 1023) & ~1023u;
    at.token_offset = args.tile_bytes;
    at.stage_bytes = args.stage_bytes;
    at.landed = at.data + args.data_bytes;
    at.full = at.landed + 8 * args.stages;
    at.empty = at.full + 8 * args.stages;
    at.normed = at.empty + 8 * args.stages;
    at.count = args.stages;
    at.stage = at.phase = 0;
    unsigned char *normed = shared + (at.data - rp_shared_address(shared)) + args.norm_offset;
    if (threadIdx.x == COPYING) {
        rp_map_prefetch(&args.weight_map);
        rp_map_prefetch(&args.in_map);
        for (uint32_t i = 0; i < args.stages; i++) {
            rp_barrier_init(at.landed + 8 * i, 1);
            rp_barrier_init(at.full + 8 * i, 1);
            rp_barrier_init(at.empty + 8 * i, 4 * WARPGROUPS); /* warps */
        }
        rp_barrier_init(at.normed, COPYING);
        rp_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == COPYING)
        copy_weights(args, at);
    else if (NORMED && threadIdx.x >= COPYING + 32)
        copy_normed<TOKENS>(args, at, normed);
    else if (!NORMED && threadIdx.x == COPYING + 32)
        copy_tokens(args, at);
    else if (threadIdx.x < COPYING) {
        if constexpr (NORMED) {
            normalise<COPYING>(args, normed);
            rp_barrier_arrive(at.normed); /* each for itself: so racecheck follows it */
        }
        if constexpr (SPLIT)
            multiply_split<TOKENS, WARPGROUPS>(args, at, (float *)(normed + args.others_offset),
                                               stamp);
        else
            multiply<TOKENS, GATED>(args, at, stamp);
    }
    TRACE(2);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

struct kernel_entry {
    uint32_t tokens, warpgroups;
    bool gated, split, normed;
    void (*kernel)(rp_matmul_rows_args);
};

#define ENTRY(tokens, warpgroups, gated, split, normed)                                            \
    {                                                                                              \
        tokens, warpgroups, gated, split, normed,                                                  \
            matmul_rows<tokens, warpgroups, gated, split, normed>                                  \
    }
#define PLAIN(tokens, normed)                                                                      \
    ENTRY(tokens, 1, false, false, normed), ENTRY(tokens, 2, false, false, normed)
#define GATED(tokens, normed)                                                                      \
    ENTRY(tokens, 1, true, false, normed), ENTRY(tokens, 2, true, false, normed)
#define SPLIT(tokens, normed)                                                                      \
    ENTRY(tokens, 2, false, true, normed), ENTRY(tokens, 4, false, true, normed)
const kernel_entry kernels[] = {
    PLAIN(8, false),  GATED(8, false),  SPLIT(8, false),  PLAIN(8, true),   GATED(8, true),
    SPLIT(8, true),   PLAIN(16, false), GATED(16, false), SPLIT(16, false), PLAIN(32, false),
    GATED(32, false), PLAIN(64, false), GATED(64, false),
};

const kernel_entry *find_kernel(const rp_matmul_rows_args *args) {
    uint32_t warpgroups = args->parts > 1 ? args->parts : args->tile_rows > 64 ? 2 : 1;
    for (const kernel_entry &entry : kernels)
        if (entry.tokens == args->tokens && entry.gated == args->gated &&
            entry.normed == (args->norm.weight != NULL) && entry.split == (args->parts > 1) &&
            entry.warpgroups == warpgroups)
            return &entry;
    return nullptr;
}

} // namespace

int rp_matmul_rows_cuda_prepare(const struct rp_matmul_rows_args *args) {
    const kernel_entry *entry = find_kernel(args);
    if (!entry || args->tile_rows > 128)
        return RP_STATUS_NOT_FOUND;
    cudaError_t error = cudaFuncSetAttribute(
        entry->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)args->shared_most);
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_rows_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_rows_args *args = (const rp_matmul_rows_args *)args_void;
    const kernel_entry *entry = find_kernel(args);
    return rp_cuda_start(entry->kernel, dim3(args->grid), dim3(128 * entry->warpgroups + 64),
                         args->shared_bytes, stream, args->dependent, *args);
}
