/* matmul_rows_kernel.cuh - GEMMs of few rows on Hopper's tensor cores, alone or with the activation
 * after them (gated): out = fn(in * gates^T) * (in * ups^T).
 *
 * All blocks compute the same number of outputs, over all of K, in tiles whose height need not be a
 * multiple of 64: so no SM waits for another, a sum is finished in registers without partial sums,
 * and tokens are read once for all rows of a tile. It pays off while tokens are a small part of a
 * stage.
 *
 * Weights are the instruction's left operand, as in matmul_tc_kernel.cuh, so the bits are the same.
 * An instruction reads 64 rows; in a smaller tile it also reads whatever follows in shared memory,
 * and those sums are discarded. Warpgroup w multiplies rows [64 w, 64 w + 64) of the tile; of a
 * gated one those of the gates and those of the ups: a thread has a gate and its up in the same
 * place of two accumulators.
 *
 * One warp copies weights, which depend on no earlier kernel, another copies tokens, which do.
 * Weights in flight are capped: full memory queues delay the loads of concurrent small kernels.
 *
 * 8-bit values have the layout of half as many bf16. A segment's sum is converted to f32 when
 * complete (matmul_scales.cuh); the code after that is the same for all types. */
#ifndef RP_QUANT_MATMUL_ROWS_KERNEL_CUH
#define RP_QUANT_MATMUL_ROWS_KERNEL_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_scales.cuh"
#include "quant/matmul_wgmma.cuh"
#include "quant/rows/matmul_rows_tokens.cuh"

/* Key of a kernel variant. */
struct rp_matmul_rows_kernel {
    uint32_t tokens, warpgroups;
    bool gated, split;
    rp_rows_source source;
    rp_wgmma_type type;
    void (*kernel)(rp_matmul_rows_args);
};
/* 8-bit GEMMs; NULL kernel: not compiled. */
extern "C" const rp_matmul_rows_kernel *rp_matmul_rows_8_kernels(size_t *out_count);

namespace {

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

/* One thread. Stages in flight are counted in the order in which they were requested. */
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

/* One thread: waits for earlier kernels, which may write the tokens, and lets the next one
 * start. */
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
/* As the instruction makes them. */
template <int TOKENS, rp_wgmma_type TYPE>
using accumulators = typename rp_wgmma_sum<TYPE>::type[TOKENS / 2];

/* Blocks [0, blocks) of one segment: a chain from zero over its columns in rising order. weights,
 * tokens: where this warpgroup's lie in a stage; rows: of the tile. MADE: tokens are quantized
 * values made here, and theirs the segment's first operand (quantized_operand_low). */
template <int TOKENS, bool GATED, bool MADE, rp_wgmma_type TYPE>
__device__ __forceinline__ void
multiply_segment(const rp_matmul_rows_args &args, ring &at, uint32_t weights, uint32_t tokens,
                 uint32_t rows, uint32_t blocks, accumulators<TOKENS, TYPE> (&out)[GATED ? 2 : 1]) {
    constexpr int HALVES = GATED ? 2 : 1;
    static_assert(!MADE || TOKENS == 8, "rows side by side");
    const uint32_t boxes = args.boxes;
    for (uint32_t k = 0; k < blocks; k += boxes) {
        rp_barrier_wait(at.landed_barrier(), at.phase);
        if (!MADE)
            rp_barrier_wait(at.full_barrier(), at.phase);
        uint32_t stage = at.weights();
#pragma unroll
        for (int box = 0; box < BOXES_MOST; box++) {
            if (box > 0 && (box >= (int)boxes || k + box >= blocks))
                break;
            uint32_t b = MADE ? tokens + (k + box) * (BOX_ROW_BYTES / 16) * args.max_rows
                              : rp_wgmma_operand_low(stage + tokens + box * TOKENS * BOX_ROW_BYTES);
            rp_wgmma_fence();
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                uint32_t a = rp_wgmma_operand_low(stage + weights +
                                                  (box * HALVES + half) * rows * BOX_ROW_BYTES);
#pragma unroll
                for (int i = 0; i < RP_MATMUL_BLOCK / 16; i++)
                    rp_wgmma<TOKENS, TYPE>::run(
                        out[half], rp_wgmma_operand_of(a + 2 * i),
                        MADE ? quantized_operand_of(b + 2 * i * args.max_rows)
                             : rp_wgmma_operand_of(b + 2 * i),
                        (k | box | i) != 0);
            }
            rp_wgmma_commit();
        }
        rp_wgmma_wait<0>();
        if (threadIdx.x % 32 == 0)
            rp_barrier_arrive(at.empty_barrier());
        at.next();
    }
}

/* Prefetches the values added to this thread's sums; no other thread writes them. */
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

/* gate, up: the inputs of rp_activation_cuda. */
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

/* Converts one thread's accumulators to f32: integer or FP8 sums by their scales; bf16 sums are f32
 * already. */
template <int TOKENS, rp_rows_source SOURCE, rp_wgmma_type TYPE> struct scales {
    rp_column_scales<TOKENS> tokens;

    /* boards: where this block made the rows itself; after the wait. */
    __device__ __forceinline__ scales(const rp_matmul_rows_args &args,
                                      const rp_matmul_row_board *boards, uint32_t live) {
        if constexpr (SOURCE == RP_ROWS_READY) {
            tokens.load(args.in_scales, live);
        } else {
            static_assert(TOKENS <= 32, "a lane for each row");
            uint32_t row = threadIdx.x % 32;
            tokens.of[0] = row < live ? boards[row].scale : 0.0f;
        }
    }
    /* Prefetches weights [col, end) of one half. */
    struct weights {
        float of[2];
        __device__ __forceinline__ weights(const rp_matmul_rows_args &args, int half, uint32_t col,
                                           uint32_t end) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                of[i] =
                    col + 8 * i < end ? args.weight_scales[half * args.rows + col + 8 * i] : 0.0f;
        }
    };
    /* room: where they may be put. */
    __device__ __forceinline__ sums<TOKENS> &
    floats(const weights &w, accumulators<TOKENS, TYPE> &from, sums<TOKENS> &room) const {
#pragma unroll
        for (int i = 0; i < TOKENS / 2; i++)
            room[i] = rp_scaled(from[i], rp_scaled(tokens.at(i), w.of[i / 2 % 2]));
        return room;
    }
};
template <int TOKENS, rp_rows_source SOURCE> struct scales<TOKENS, SOURCE, RP_WGMMA_BF16> {
    struct weights {
        __device__ __forceinline__ weights(const rp_matmul_rows_args &, int, uint32_t, uint32_t) {}
    };
    __device__ __forceinline__ scales(const rp_matmul_rows_args &, const rp_matmul_row_board *,
                                      uint32_t) {}
    __device__ __forceinline__ sums<TOKENS> &floats(const weights &, sums<TOKENS> &from,
                                                    sums<TOKENS> &) const {
        return from;
    }
};

template <int TOKENS, bool GATED, rp_rows_source SOURCE, rp_wgmma_type TYPE>
__device__ __forceinline__ void multiply(const rp_matmul_rows_args &args, ring at,
                                         unsigned char *made, rp_stamp &stamp) {
    constexpr int HALVES = GATED ? 2 : 1;
    /* There are no registers for a total besides the sums and their f32 values. */
    constexpr bool ONE_SEGMENT = GATED && rp_wgmma_is_8<TYPE>;
    constexpr bool MADE = quantizes_output<SOURCE, TYPE>;
    using scales = scales<TOKENS, SOURCE, TYPE>;
    uint32_t warpgroup = rp_own_warpgroup(), thread = threadIdx.x % 128;
    stamp.wait();
    TRACE(1);
    uint32_t live = min(*args.live, (uint32_t)TOKENS);
    stamp.look();
    scales scale(args, row_boards(args, made), live);
    span own = own_span(args);
    for (uint32_t first = own.begin, tile = 1; first < own.end; first += args.tile_rows, tile++) {
        sums<TOKENS> total[HALVES];
        accumulators<TOKENS, TYPE> part[HALVES];
        uint32_t rows = tile == args.tiles ? args.last_rows : args.tile_rows;
        uint32_t col = first + warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4;
        uint32_t end = min(first + rows, own.end);
        addends<TOKENS> more(args, GATED ? end : col, end, live);
        typename scales::weights weights[2] = {{args, 0, col, end},
                                               {args, 1, GATED ? col : end, end}};
        for (uint32_t begin = 0; begin < args.blocks;
             begin += ONE_SEGMENT ? args.blocks : args.segment_blocks) {
            uint32_t blocks =
                ONE_SEGMENT ? args.blocks : min(args.segment_blocks, args.blocks - begin);
            multiply_segment<TOKENS, GATED, MADE, TYPE>(
                args, at, warpgroup * 64 * BOX_ROW_BYTES,
                MADE ? quantized_box_operand(args, made, begin) : at.token_offset, rows, blocks,
                part);
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                sums<TOKENS> room, &value = scale.floats(weights[half], part[half], room);
#pragma unroll
                for (int i = 0; i < TOKENS / 2; i++)
                    total[half][i] =
                        ONE_SEGMENT || begin == 0 ? value[i] : total[half][i] + value[i];
            }
        }
        if constexpr (GATED)
            store_gated<TOKENS>(args, col, end, live, total[0], total[1]);
        else
            store<TOKENS>(args, col, end, live, more, total[0]);
    }
}

/* Warpgroup w has segment w; the first one adds them up in order, from after what was made:
 * (segment)(sum)(128 threads). */
template <int TOKENS, int SEGMENTS, rp_rows_source SOURCE, rp_wgmma_type TYPE>
__device__ __forceinline__ void multiply_split(const rp_matmul_rows_args &args, ring at,
                                               unsigned char *made, rp_stamp &stamp) {
    using scales = scales<TOKENS, SOURCE, TYPE>;
    constexpr bool MADE = quantizes_output<SOURCE, TYPE>;
    uint32_t warpgroup = rp_own_warpgroup(), thread = threadIdx.x % 128;
    float *others = (float *)(made + args.others_offset);
    stamp.wait();
    TRACE(1);
    uint32_t live = min(*args.live, (uint32_t)TOKENS);
    stamp.look();
    scales scale(args, row_boards(args, made), live);
    span own = own_span(args);
    for (uint32_t first = own.begin, tile = 1; first < own.end; first += args.tile_rows, tile++) {
        accumulators<TOKENS, TYPE> part[1];
        sums<TOKENS> room;
        uint32_t rows = tile == args.tiles ? args.last_rows : args.tile_rows;
        uint32_t col = first + thread / 32 * 16 + thread % 32 / 4;
        uint32_t end = min(first + rows, own.end), box = warpgroup * args.boxes;
        addends<TOKENS> more(args, warpgroup == 0 ? col : end, end, live);
        typename scales::weights weights(args, 0, col, end);
        multiply_segment<TOKENS, false, MADE, TYPE>(
            args, at, box * rows * BOX_ROW_BYTES,
            MADE ? quantized_box_operand(args, made, warpgroup * args.part_blocks)
                 : at.token_offset + box * TOKENS * BOX_ROW_BYTES,
            rows, args.part_blocks, part);
        sums<TOKENS> &total = scale.floats(weights, part[0], room);
        if (warpgroup > 0)
#pragma unroll
            for (int i = 0; i < TOKENS / 2; i++)
                others[((warpgroup - 1) * TOKENS / 2 + i) * 128 + thread] = total[i];
        rp_rows_sync<SEGMENTS * 128>();
        if (warpgroup == 0) {
#pragma unroll
            for (int segment = 1; segment < SEGMENTS; segment++)
#pragma unroll
                for (int i = 0; i < TOKENS / 2; i++)
                    total[i] += others[((segment - 1) * TOKENS / 2 + i) * 128 + thread];
            store<TOKENS>(args, col, end, live, more, total);
        }
        rp_rows_sync<SEGMENTS * 128>();
    }
}

template <int TOKENS, int WARPGROUPS, bool GATED, bool SPLIT, rp_rows_source SOURCE,
          rp_wgmma_type TYPE>
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
    unsigned char *made = shared + (at.data - rp_shared_address(shared)) + args.norm_offset;
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
    constexpr bool READY = SOURCE == RP_ROWS_READY, MADE = quantizes_output<SOURCE, TYPE>;
    if (threadIdx.x == COPYING)
        copy_weights(args, at);
    else if (MADE && threadIdx.x >= COPYING + 32)
        rp_pdl_wait(), rp_pdl_trigger();
    else if (!READY && threadIdx.x >= COPYING + 32)
        copy_made<TOKENS>(args, at, made);
    else if (READY && threadIdx.x == COPYING + 32)
        copy_tokens(args, at);
    else if (threadIdx.x < COPYING) {
        if constexpr (rp_wgmma_is_8<TYPE>) {
            span own = own_span(args);
            for (int half = 0; half < (GATED ? 2 : 1); half++)
                rp_scales_prefetch(args.weight_scales + half * args.rows + own.begin,
                                   own.end - own.begin);
        }
        if constexpr (SOURCE == RP_ROWS_NORMED)
            normalize<COPYING, TYPE>(args, made);
        if constexpr (SOURCE == RP_ROWS_QUANTIZED)
            quantize<COPYING, TYPE>(args, made);
        if constexpr (!READY && !MADE)
            rp_barrier_arrive(at.normed); /* every thread arrives, so that racecheck tracks it */
        if constexpr (SPLIT)
            multiply_split<TOKENS, WARPGROUPS, SOURCE, TYPE>(args, at, made, stamp);
        else
            multiply<TOKENS, GATED, SOURCE, TYPE>(args, at, made, stamp);
    }
    TRACE(2);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

} // namespace

#define RP_ROWS_ENTRY(tokens, warpgroups, gated, split, source, type)                              \
    {                                                                                              \
        tokens, warpgroups, gated, split, source, type,                                            \
            matmul_rows<tokens, warpgroups, gated, split, source, type>                            \
    }
#define RP_ROWS_PLAIN(tokens, source, type)                                                        \
    RP_ROWS_ENTRY(tokens, 1, false, false, source, type),                                          \
        RP_ROWS_ENTRY(tokens, 2, false, false, source, type)
#define RP_ROWS_GATED(tokens, source, type)                                                        \
    RP_ROWS_ENTRY(tokens, 1, true, false, source, type),                                           \
        RP_ROWS_ENTRY(tokens, 2, true, false, source, type)
#define RP_ROWS_SPLIT(tokens, source, type)                                                        \
    RP_ROWS_ENTRY(tokens, 2, false, true, source, type),                                           \
        RP_ROWS_ENTRY(tokens, 4, false, true, source, type)

#endif
