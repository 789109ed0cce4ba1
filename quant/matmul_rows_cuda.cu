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

namespace {

#define BOX_ROW_BYTES (RP_MATMUL_BLOCK * 2)

/* Barriers and stages in shared memory. A stage: weights (half)(box)(tile_rows), then tokens (box); halves are
 * gates and ups. */
struct ring {
    uint32_t landed, full, empty; /* weights have come, tokens have come, all is read; 8 bytes each */
    uint32_t data;                /* stages 1024-aligned for the swizzle */
    uint32_t box_bytes, half_bytes, token_offset, stage_bytes;
    uint32_t count, stage, phase;

    __device__ __forceinline__ uint32_t landed_barrier() const { return landed + 8 * stage; }
    __device__ __forceinline__ uint32_t full_barrier() const { return full + 8 * stage; }
    __device__ __forceinline__ uint32_t empty_barrier() const { return empty + 8 * stage; }
    __device__ __forceinline__ uint32_t weights(uint32_t half, uint32_t box) const {
        return data + stage * stage_bytes + half * half_bytes + box * box_bytes;
    }
    __device__ __forceinline__ uint32_t tokens() const {
        return data + stage * stage_bytes + token_offset;
    }
    __device__ __forceinline__ void next() {
        if (++stage == count) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* The block's tiles, in steps of one stage: blocks [block, block + count) of K. */
struct steps {
    uint32_t first, end;        /* outputs: of this tile, of this block */
    uint32_t tile;              /* of the block */
    uint32_t block, count, cut; /* cut: where the segment ends */

    __device__ __forceinline__ void enter_segment(const rp_matmul_rows_args &args) {
        cut = min(block + args.segment_blocks, args.blocks);
        count = min(args.boxes, cut - block);
    }
    __device__ __forceinline__ explicit steps(const rp_matmul_rows_args &args) {
        first = min(blockIdx.x * args.share, args.rows);
        end = min(first + args.share, args.rows);
        tile = block = 0;
        enter_segment(args);
    }
    __device__ __forceinline__ bool valid() const { return first < end; }
    __device__ __forceinline__ void next(const rp_matmul_rows_args &args) {
        block += count;
        if (block < cut) {
            count = min(args.boxes, cut - block);
            return;
        }
        if (block == args.blocks) {
            block = 0;
            first += args.tile_rows;
            tile++;
        }
        enter_segment(args);
    }
};

template <bool GATED>
__device__ __forceinline__ void copy_step(const rp_matmul_rows_args &args, const ring &at,
                                          const steps &s) {
    bool last = s.tile == args.tiles - 1;
    const CUtensorMap *map = last ? &args.last_map : &args.weight_map;
    uint32_t height = last ? args.last_rows : args.tile_rows;
    rp_barrier_expect(at.landed_barrier(), (GATED ? 2 : 1) * s.count * height * BOX_ROW_BYTES);
    for (uint32_t half = 0; half < (GATED ? 2 : 1); half++)
        for (uint32_t box = 0; box < s.count; box++)
            rp_copy_box(at.weights(half, box), map, (s.block + box) * RP_MATMUL_BLOCK,
                        half * args.rows + s.first, at.landed_barrier(), RP_L2_EVICT_FIRST);
}

#ifdef RP_X
template <bool GATED>
__device__ __forceinline__ void prefetch_step(const rp_matmul_rows_args &args, const steps &s) {
    bool last = s.tile == args.tiles - 1;
    const CUtensorMap *map = last ? &args.last_map : &args.weight_map;
    for (uint32_t half = 0; half < (GATED ? 2 : 1); half++)
        for (uint32_t box = 0; box < s.count; box++)
            asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map),
                         "r"((s.block + box) * RP_MATMUL_BLOCK), "r"(half * args.rows + s.first)
                         : "memory");
}
#endif

/* One thread. Stages in flight are counted in the order in which they were asked for. */
template <bool GATED>
__device__ __forceinline__ void copy_weights(const rp_matmul_rows_args &args, ring at) {
    ring landing = at;
    uint32_t flying = 0, flight = args.flight_early, i = 0;
#ifdef RP_X
    steps ahead(args);
    bool ahead_on = false;
#endif
    for (steps s(args); s.valid(); s.next(args), at.next(), i++) {
        if (i == at.count)
            flight = args.flight;
#ifdef RP_X
        if (i == at.count && args.ahead) {
            ahead = s;
            ahead_on = true;
            long long last = clock64();
            for (uint32_t d = 0; d < args.ahead && ahead.valid(); d++) {
                bool freed;
                while (!(freed = rp_barrier_test(at.empty_barrier(), at.phase ^ 1))) {
                    if (flying > 0) {
                        if (rp_barrier_test(landing.landed_barrier(), landing.phase)) {
                            landing.next();
                            flying--;
                            break;
                        }
                    } else if (clock64() - last > args.pace)
                        break;
                }
                if (freed && args.stop)
                    break;
                last = clock64();
                prefetch_step<GATED>(args, ahead);
                ahead.next(args);
            }
        }
#endif
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        if (flying == flight) {
            rp_barrier_wait(landing.landed_barrier(), landing.phase);
            landing.next();
            flying--;
        }
        flying++;
        copy_step<GATED>(args, at, s);
#ifdef RP_X
        if (ahead_on && args.steady && ahead.valid()) {
            prefetch_step<GATED>(args, ahead);
            ahead.next(args);
        }
#endif
    }
}

/* All multiplying threads, and the warp of tokens too. */
template <int THREADS> __device__ __forceinline__ void sync_multiplying() {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}
template <int THREADS> __device__ __forceinline__ void sync_with_tokens() {
    asm volatile("bar.sync 2, %0;" ::"n"(THREADS + 32) : "memory");
}

/* Normed tokens, (row)(k) bf16 in shared memory, with the bits of norm_cuda.cu: a thread there has one quad of
 * columns; here it does the work of several, warp by warp. */
template <int THREADS>
__device__ __forceinline__ void normalise(const rp_matmul_rows_args &args, unsigned char *tokens) {
    constexpr int OWN = RP_MATMUL_NORM_COLS / 4 / THREADS;
    const struct rp_matmul_norm &norm = args.norm;
    uint32_t quads = norm.cols / 4, warps = RP_CEIL_DIV(quads, 128u) * 4;
    /* Behind the tokens: (row)(warp) */
    float(*sums)[RP_MATMUL_NORM_COLS / 128] =
        (float(*)[RP_MATMUL_NORM_COLS / 128])(tokens + RP_MATMUL_NORM_TOKEN_BYTES(args.max_rows, norm.cols));
    float4 weight[OWN], x[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t quad = threadIdx.x + THREADS * i;
        if (quad < quads)
            weight[i] = ((const float4 *)norm.weight)[quad];
    }
    rp_pdl_wait();
    uint32_t live = min(*args.live, (uint32_t)RP_MATMUL_NORM_ROWS);
    for (uint32_t row = 0; row < live; row++) {
        const float4 *from = (const float4 *)(norm.in + row * norm.in_stride);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t quad = threadIdx.x + THREADS * i;
            if (quad < quads)
                x[i] = __ldcg(from + quad);
        }
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
template <int TOKENS, int THREADS>
__device__ __forceinline__ void copy_normed(const rp_matmul_rows_args &args, ring at,
                                            const unsigned char *tokens) {
    uint32_t lane = threadIdx.x % 32;
    rp_pdl_wait();
    rp_pdl_trigger();
    uint32_t live = min(*args.live, (uint32_t)RP_MATMUL_NORM_ROWS);
    sync_with_tokens<THREADS>();
    for (steps s(args); s.valid(); s.next(args), at.next()) {
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        for (uint32_t row = 0; row < live; row++) {
            /* 16 bytes a lane: four boxes at once. */
            uint32_t box = lane / 8, chunk = lane % 8;
            if (box < s.count) {
                uint4 v = *(const uint4 *)(tokens + row * args.norm.cols * 2 +
                                           (s.block + box) * BOX_ROW_BYTES + chunk * 16);
                rp_store_shared(at.tokens() + (box * TOKENS + row) * BOX_ROW_BYTES +
                                    (chunk ^ row % 8) * 16,
                                v);
            }
        }
        rp_shared_fence_async();
        __syncwarp();
        if (lane == 0)
            rp_barrier_arrive(at.full_barrier());
    }
}

/* One thread: waits for the kernels before, which may be the tokens' writers, and lets the next one start. */
template <int TOKENS>
__device__ __forceinline__ void copy_tokens(const rp_matmul_rows_args &args, ring at) {
    rp_pdl_wait();
    rp_pdl_trigger();
    for (steps s(args); s.valid(); s.next(args), at.next()) {
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        rp_barrier_expect(at.full_barrier(), s.count * TOKENS * BOX_ROW_BYTES);
        for (uint32_t box = 0; box < s.count; box++)
            rp_copy_box(at.tokens() + box * TOKENS * BOX_ROW_BYTES, &args.in_map,
                        (s.block + box) * RP_MATMUL_BLOCK, 0, at.full_barrier(), RP_L2_EVICT_LAST);
    }
}

template <int TOKENS> using sums = float[TOKENS / 2];

/* One segment: a chain from zero over its columns in rising order. */
template <int TOKENS, bool GATED>
__device__ __forceinline__ void multiply_segment(const rp_matmul_rows_args &args, ring &at,
                                                 uint32_t first_row, uint32_t blocks,
                                                 sums<TOKENS> (&out)[GATED ? 2 : 1]) {
    for (uint32_t k = 0; k < blocks; k += args.boxes) {
        uint32_t count = min(args.boxes, blocks - k);
        rp_barrier_wait(at.landed_barrier(), at.phase);
        rp_barrier_wait(at.full_barrier(), at.phase);
        for (uint32_t box = 0; box < count; box++) {
            uint64_t b = rp_wgmma_operand(at.tokens() + box * TOKENS * BOX_ROW_BYTES);
            rp_wgmma_fence();
#pragma unroll
            for (int half = 0; half < (GATED ? 2 : 1); half++) {
                uint64_t a =
                    rp_wgmma_operand(at.weights(half, box) + first_row * BOX_ROW_BYTES);
#pragma unroll
                for (int i = 0; i < RP_MATMUL_BLOCK / 16; i++)
                    rp_wgmma<TOKENS>::run(out[half], a + 2 * i, b + 2 * i, (k | box | i) != 0);
            }
            rp_wgmma_commit();
        }
        rp_wgmma_wait<0>();
        if (threadIdx.x % 32 == 0)
            rp_barrier_arrive(at.empty_barrier());
        at.next();
    }
}

/* Outputs [col, end), of this thread's columns. */
template <int TOKENS>
__device__ __forceinline__ void store(const rp_matmul_rows_args &args, uint32_t col, uint32_t end,
                                      uint32_t live, const sums<TOKENS> (&total)[1]) {
#pragma unroll
    for (int i = 0; i < TOKENS / 2; i++) {
        uint32_t c = col + i / 2 % 2 * 8, token = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (c >= end || token >= live)
            continue;
        float value = args.bias ? total[0][i] + args.bias[c] : total[0][i];
        size_t at = token * args.out_stride + c;
        if (args.out_bf16)
            ((__nv_bfloat16 *)args.out)[at] = __float2bfloat16_rn(value);
        else
            ((float *)args.out)[at] = args.accumulate ? ((float *)args.out)[at] + value : value;
    }
}

/* gate, up: what rp_activation_cuda would read. */
template <int TOKENS>
__device__ __forceinline__ void store(const rp_matmul_rows_args &args, uint32_t col, uint32_t end,
                                      uint32_t live, const sums<TOKENS> (&total)[2]) {
#pragma unroll
    for (int i = 0; i < TOKENS / 2; i++) {
        uint32_t c = col + i / 2 % 2 * 8, token = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (c < end && token < live)
            ((__nv_bfloat16 *)args.out)[token * args.out_stride + c] =
                __float2bfloat16_rn(rp_activate(args.fn, total[0][i]) * total[1][i]);
    }
}

template <int TOKENS, bool GATED>
__device__ __forceinline__ void multiply(const rp_matmul_rows_args &args, ring at) {
    constexpr int HALVES = GATED ? 2 : 1;
    uint32_t warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    rp_pdl_wait();
    uint32_t live = min(*args.live, (uint32_t)TOKENS);
    steps s(args);
    for (; s.first < s.end; s.first += args.tile_rows) {
        sums<TOKENS> part[HALVES], total[HALVES];
        for (uint32_t begin = 0; begin < args.blocks; begin += args.segment_blocks) {
            uint32_t blocks = min(args.segment_blocks, args.blocks - begin);
            multiply_segment<TOKENS, GATED>(args, at, warpgroup * 64, blocks, part);
#pragma unroll
            for (int half = 0; half < HALVES; half++)
#pragma unroll
                for (int i = 0; i < TOKENS / 2; i++)
                    total[half][i] =
                        begin == 0 ? part[half][i] : total[half][i] + part[half][i];
        }
        uint32_t col = s.first + warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4;
        store<TOKENS>(args, col, min(s.first + args.tile_rows, s.end), live, total);
    }
}

template <int TOKENS, int WARPGROUPS, bool GATED, bool NORMED>
__global__ void __launch_bounds__(128 * WARPGROUPS + 64, 1)
    matmul_rows(const __grid_constant__ rp_matmul_rows_args args) {
#if RP_CUDA_HOPPER
    constexpr uint32_t COPYING = 128 * WARPGROUPS; /* a warp for weights and one for tokens */
    extern __shared__ __align__(1024) unsigned char shared[];
    ring at;
    at.data = (rp_shared_address(shared) + 1023) & ~1023u;
    at.box_bytes = args.tile_rows * BOX_ROW_BYTES;
    at.half_bytes = args.boxes * at.box_bytes;
    at.token_offset = (GATED ? 2 : 1) * at.half_bytes;
    at.stage_bytes = at.token_offset + args.boxes * TOKENS * BOX_ROW_BYTES;
    at.landed = at.data + args.data_bytes;
    at.full = at.landed + 8 * args.stages;
    at.empty = at.full + 8 * args.stages;
    unsigned char *normed = shared + (at.data - rp_shared_address(shared)) + args.norm_offset;
    at.count = args.stages;
    at.stage = at.phase = 0;
    if (threadIdx.x == COPYING) {
        rp_map_prefetch(&args.weight_map);
        rp_map_prefetch(&args.in_map);
        for (uint32_t i = 0; i < args.stages; i++) {
            rp_barrier_init(at.landed + 8 * i, 1);
            rp_barrier_init(at.full + 8 * i, 1);
            rp_barrier_init(at.empty + 8 * i, 4 * WARPGROUPS); /* warps */
        }
        rp_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == COPYING)
        copy_weights<GATED>(args, at);
    else if (NORMED && threadIdx.x >= COPYING + 32)
        copy_normed<TOKENS, COPYING>(args, at, normed);
    else if (!NORMED && threadIdx.x == COPYING + 32)
        copy_tokens<TOKENS>(args, at);
    else if (threadIdx.x < COPYING) {
        if constexpr (NORMED) {
            normalise<COPYING>(args, normed);
            sync_with_tokens<COPYING>();
        }
        multiply<TOKENS, GATED>(args, at);
    }
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

struct kernel_entry {
    uint32_t tokens, warpgroups;
    bool gated, normed;
    void (*kernel)(rp_matmul_rows_args);
};

#define ENTRIES(tokens, normed)                                                                    \
    {tokens, 1, false, normed, matmul_rows<tokens, 1, false, normed>},                             \
        {tokens, 2, false, normed, matmul_rows<tokens, 2, false, normed>},                         \
        {tokens, 1, true, normed, matmul_rows<tokens, 1, true, normed>},                           \
        {tokens, 2, true, normed, matmul_rows<tokens, 2, true, normed>}
const kernel_entry kernels[] = {ENTRIES(8, false), ENTRIES(16, false), ENTRIES(32, false),
                                ENTRIES(64, false), ENTRIES(8, true)};

const kernel_entry *find_kernel(const rp_matmul_rows_args *args) {
    for (const kernel_entry &entry : kernels)
        if (entry.tokens == args->tokens && entry.gated == args->gated &&
            entry.normed == (args->norm.weight != NULL) &&
            entry.warpgroups == (args->tile_rows > 64 ? 2 : 1))
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
