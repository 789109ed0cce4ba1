/* matmul_mid_kernel.cuh - GEMMs of 65 to 256 rows of tokens on Hopper's tensor cores: bf16, FP8
 * and INT8 (W8A8).
 *
 * Tokens are the instruction's left operand, weights its right one: an instruction multiplies up to
 * 256 weight rows, so that a block's tile has all tokens and as many weight rows as its registers
 * hold sums for. Either way round gives equal bits.
 *
 *   a warp      boxes of weights -> stage, when it is free
 *   a warp      boxes of tokens  -> stage
 *   warpgroups  two: half of the tokens each
 *
 * A unit of work is a tile with all of K or, where the reader sums up partials, one segment of it.
 *
 * Gated: the box of weights brings 8 gates, then their 8 ups, then the next 8 gates: a thread has a
 * gate's sum in sums[8 * j + i] and its up's in sums[8 * j + 4 + i].
 *
 * 8 bits: K counts in pairs of bytes (rp_matmul_cuda_units). A unit's sums are multiplied by their
 * scales as it ends: those of its weight rows are staged in shared memory, read while the tensor
 * cores are busy. */
#ifndef RP_QUANT_MATMUL_MID_KERNEL_CUH
#define RP_QUANT_MATMUL_MID_KERNEL_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_scales.cuh"
#include "quant/matmul_wgmma.cuh"
#include "quant/mid/matmul_mid_internal_cuda.h"

typedef void (*rp_matmul_mid_kernel)(rp_matmul_mid_args);

/* 8-bit GEMMs; NULL: not compiled. */
extern "C" rp_matmul_mid_kernel rp_matmul_mid_8_find(const struct rp_matmul_mid_args *args);

namespace {

#define MULTIPLYING 256 /* threads: two warpgroups */
#define THREADS     (MULTIPLYING + 64)

template <int TOKENS_, int WIDTH_, bool GATED_, rp_wgmma_type TYPE_> struct shape {
    static constexpr int TOKENS = TOKENS_, WIDTH = WIDTH_;
    static constexpr bool GATED = GATED_;
    static constexpr rp_wgmma_type TYPE = TYPE_;
    static constexpr bool SCALED = rp_wgmma_is_8<TYPE>;
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
    __device__ __forceinline__ uint32_t weights() const {
        return data + stage * Shape::STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t tokens() const { return weights() + Shape::WEIGHT_BYTES; }
    __device__ __forceinline__ void next() {
        if (++stage == count) {
            stage = 0;
            phase ^= 1;
        }
    }
    /* The stage, not its phase, of `steps` earlier. */
    __device__ __forceinline__ void back(uint32_t steps) {
        stage = stage >= steps ? stage - steps : stage + count - steps;
    }
};

/* Position of a block in its units of work. */
struct walk {
    uint32_t unit, step;
    uint32_t tile, segment;
    uint32_t block, end; /* of 64 columns: this one, the end of the segment */
    bool valid;

    __device__ __forceinline__ void enter(const rp_matmul_mid_args &args) {
        valid = unit < args.units;
        if (!valid)
            return;
        tile = unit / args.segments;
        segment = unit % args.segments;
        block = segment * args.segment_blocks;
        end = min(block + args.segment_blocks, args.blocks);
        unit += step;
    }
    __device__ __forceinline__ void next(const rp_matmul_mid_args &args) {
        if (++block == end)
            enter(args);
    }
};

__device__ __forceinline__ walk walk_begin(const rp_matmul_mid_args &args) {
    walk w = {};
    w.unit = blockIdx.x;
    w.step = gridDim.x;
    w.enter(args);
    return w;
}

/* One thread. */
template <typename Shape>
__device__ __forceinline__ void copy_weights(const rp_matmul_mid_args &args, ring<Shape> at) {
    uint32_t bytes = args.tile.rows * 128, early = args.tile.early;
    for (walk w = walk_begin(args); w.valid; w.next(args)) {
        if (early-- == 0)
            rp_pdl_wait();
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        rp_barrier_expect(at.full_barrier(), bytes);
        if (Shape::GATED)
            rp_copy_box_4d(at.weights(), &args.weight_map, w.block * RP_MATMUL_BLOCK, 0, 0,
                           w.tile * (args.tile.rows / 16), at.full_barrier(), RP_L2_EVICT_FIRST);
        else
            rp_copy_box(at.weights(), &args.weight_map, w.block * RP_MATMUL_BLOCK,
                        w.tile * args.tile.rows, at.full_barrier(), RP_L2_EVICT_FIRST);
        at.next();
    }
}

/* One thread. */
template <typename Shape>
__device__ __forceinline__ void copy_tokens(const rp_matmul_mid_args &args, ring<Shape> at) {
    rp_pdl_wait();
    rp_pdl_trigger(); /* not before: matmul_cuda.h */
    for (walk w = walk_begin(args); w.valid; w.next(args)) {
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

#define HELD 2

template <typename Shape>
using sums_of = typename rp_wgmma_sum<Shape::TYPE>::type[Shape::BLOCKS][Shape::SUMS];
template <typename Shape> using values_of = float[Shape::BLOCKS][Shape::SUMS];

/* One segment: a chain from zero over its columns in rising order. Its last two stages are not
 * freed: the epilogue stages the sums in them. */
template <typename Shape>
__device__ __forceinline__ void multiply_segment(ring<Shape> &at, uint32_t warpgroup,
                                                 uint32_t blocks, sums_of<Shape> &sums) {
    for (uint32_t k = 0; k < blocks; k++) {
        rp_barrier_wait(at.full_barrier(), at.phase);
        uint64_t a = rp_wgmma_operand(at.tokens() + warpgroup * Shape::BLOCKS * 64 * 128);
        uint64_t b = rp_wgmma_operand(at.weights());
        rp_wgmma_fence();
#pragma unroll
        for (int i = 0; i < RP_MATMUL_BLOCK / 16; i++)
#pragma unroll
            for (int block = 0; block < Shape::BLOCKS; block++)
                rp_wgmma<Shape::WIDTH, Shape::TYPE>::run(
                    sums[block], a + 2 * i + block * 64 * 128 / 16, b + 2 * i, (k | i) != 0);
        rp_wgmma_commit();
        rp_wgmma_wait<0>();
        if (k + HELD < blocks)
            free_stage(at);
        at.next();
    }
}

/* Where the sums of one thread lie: sums[block][4 * j + 2 * h + c] are of token + 64 * block + 8 *
 * h and column + 8 * j + c of the tile. */
struct place {
    uint32_t warpgroup, thread; /* thread of the warpgroup */
    uint32_t first, columns;    /* of out: the tile's first, how many the tile has alive (even) */
    uint32_t column, token;
    uint32_t live;
    uint32_t stage; /* shared memory for the sums of this warpgroup */
    uint32_t room;  /* its chunks */
};

/* Sums 4 * j to 4 * j + 3 past the tile's memory, straight to out. */
template <typename Shape>
__device__ __forceinline__ void store_directly(float *to, size_t stride, const place &p, int j,
                                               const values_of<Shape> &sums) {
    if (p.column + j * 8 >= p.columns)
        return;
#pragma unroll
    for (int block = 0; block < Shape::BLOCKS; block++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t token = p.token + block * 64 + h * 8;
            if (token < p.live)
                *(float2 *)(to + token * stride + p.first + p.column + j * 8) =
                    make_float2(sums[block][4 * j + 2 * h], sums[block][4 * j + 2 * h + 1]);
        }
}

/* The warpgroup's stores to shared memory are done and visible to bulk copies. */
__device__ __forceinline__ void hand_over(const place &p) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    rp_warpgroup_sync(p.warpgroup);
}

/* Waits until the copies have read shared memory. */
__device__ __forceinline__ void wait_for_copies(const place &p) {
    if (p.thread == 0)
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    rp_warpgroup_sync(p.warpgroup);
}

__device__ __forceinline__ void store_box(const rp_matmul_mid_args &args, uint32_t from, uint32_t x,
                                          uint32_t y, uint32_t z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 "cp.async.bulk.commit_group;" ::"l"(&args.out_map),
                 "r"(x), "r"(y), "r"(z), "r"(from)
                 : "memory");
}

/* Staged in shared memory, in chunks of 32 columns, to write whole lines to L2. Direct stores of a
 * warp touch one sector in each of eight lines, and the GEMM ends 0.7 microseconds later. */
template <typename Shape>
__device__ __forceinline__ void store_sums(const rp_matmul_mid_args &args, const place &p,
                                           uint32_t segment, const values_of<Shape> &sums) {
    constexpr uint32_t TOKENS = Shape::BLOCKS * 64, CHUNK_BYTES = TOKENS * 128;
    float *to = (float *)args.out + segment * args.split_stride;
    uint32_t base = p.warpgroup * TOKENS;
    bool boxes = args.boxes && p.room > 0 && p.live >= min(base + TOKENS, args.max_rows);
    uint32_t used = 0;
#pragma unroll
    for (int c = 0; c < Shape::WIDTH / 32; c++) {
        if (!boxes || (uint32_t)c * 32 + 32 > p.columns) {
#pragma unroll
            for (int j = c * 4; j < c * 4 + 4; j++)
                store_directly<Shape>(to, args.out_stride, p, j, sums);
            continue;
        }
        if (used == p.room) {
            wait_for_copies(p);
            used = 0;
        }
        uint32_t chunk = p.stage + used++ * CHUNK_BYTES;
#pragma unroll
        for (int block = 0; block < Shape::BLOCKS; block++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t row = p.token - base + block * 64 + i % 2 * 8;
                uint32_t piece = (i / 2 * 2 + p.column / 4) ^ row % 8; /* as the map swizzles */
                const float *s = &sums[block][c * 16 + i / 2 * 4 + i % 2 * 2];
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                 chunk + row * 128 + piece * 16 + p.column % 4 * 4),
                             "f"(s[0]), "f"(s[1])
                             : "memory");
            }
        hand_over(p);
        if (p.thread == 0)
            store_box(args, chunk, p.first + c * 32, base, segment);
    }
    if (used > 0)
        wait_for_copies(p);
}

/* fn(gate) * up: sums 8 * j to 8 * j + 3 are gates of four outputs, the next four their ups. */
template <typename Shape, rp_activation FN>
__device__ __forceinline__ void store_gated(const rp_matmul_mid_args &args, const place &p,
                                            const values_of<Shape> &sums) {
    constexpr uint32_t TOKENS = Shape::BLOCKS * 64;
    uint32_t base = p.warpgroup * TOKENS, pitch = args.tile.rows; /* bytes of rows / 2 outputs */
    bool boxes = args.boxes && p.room > 0 && p.live >= min(base + TOKENS, args.max_rows);
#pragma unroll
    for (int block = 0; block < Shape::BLOCKS; block++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t token = p.token + block * 64 + h * 8;
            __nv_bfloat16 *to =
                (__nv_bfloat16 *)args.out + token * args.out_stride + p.first + p.column;
            uint32_t at = p.stage + (token - base) * pitch + p.column * 2;
#pragma unroll
            for (int j = 0; j < Shape::SUMS / 8; j++) {
                const float *s = &sums[block][8 * j + 2 * h];
                __nv_bfloat162 pair = __floats2bfloat162_rn(rp_activate(FN, s[0]) * s[4],
                                                            rp_activate(FN, s[1]) * s[5]);
                if ((uint32_t)j * 16 >= pitch)
                    break;
                if (boxes)
                    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + j * 16),
                                 "r"(*(uint32_t *)&pair)
                                 : "memory");
                else if (token < p.live && p.column + j * 8 < p.columns)
                    *(__nv_bfloat162 *)(to + j * 8) = pair;
            }
        }
    if (!boxes)
        return;
    hand_over(p);
    if (p.thread == 0)
        store_box(args, p.stage, p.first, base, 0);
    wait_for_copies(p);
}

/* The scale of the weight row that is threadIdx.x-th in a box of the tile; 0 past the last one. */
template <typename Shape>
__device__ __forceinline__ float load_scale(const rp_matmul_mid_args &args, uint32_t tile) {
    uint32_t row = tile * args.tile.rows + threadIdx.x, first = 0;
    if (Shape::GATED) {
        row = tile * (args.tile.rows / 2) + threadIdx.x / 16 * 8 + threadIdx.x % 8;
        first = threadIdx.x % 16 < 8 ? 0 : args.columns;
    }
    return row < args.columns ? __ldg(args.weight_scales + first + row) : 0.0f;
}

/* After a barrier of all threads that multiply: scales of two tiles' weight rows in turns, since
 * the other warpgroup may still read those of the unit before. */
template <typename Shape> struct scale_area {
    uint32_t met;
    __device__ __forceinline__ uint32_t rows(uint32_t unit) const {
        return met + 16 + unit % 2 * Shape::WIDTH * 4;
    }
};

/* Scales of this thread's tokens. */
template <typename Shape> using token_scales_of = float[Shape::BLOCKS][2];
template <typename Shape>
__device__ __forceinline__ void load_token_scales(const rp_matmul_mid_args &args, const place &p,
                                                  token_scales_of<Shape> &scales) {
#pragma unroll
    for (int block = 0; block < Shape::BLOCKS; block++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t token = p.token + block * 64 + h * 8;
            scales[block][h] = token < p.live ? __ldcg(args.in_scales + token) : 0.0f;
        }
}

/* Volatile: otherwise all of them are loaded first and registers spill. */
__device__ __forceinline__ float2 load_shared(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

/* rows: scales of the tile's weight rows, in shared memory. */
template <typename Shape>
__device__ __forceinline__ void scale_sums(const place &p, const token_scales_of<Shape> &tokens,
                                           uint32_t rows, const sums_of<Shape> &sums,
                                           values_of<Shape> &values) {
#pragma unroll
    for (int j = 0; j < Shape::WIDTH / 8; j++) {
        float2 row = load_shared(rows + (8 * j + p.column) * 4);
#pragma unroll
        for (int block = 0; block < Shape::BLOCKS; block++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int i = 4 * j + 2 * h;
                float token = tokens[block][h];
                values[block][i] = rp_scaled(sums[block][i], rp_scaled(token, row.x));
                values[block][i + 1] = rp_scaled(sums[block][i + 1], rp_scaled(token, row.y));
            }
    }
}

template <typename Shape>
__device__ __forceinline__ void store_unit(const rp_matmul_mid_args &args, const place &p,
                                           uint32_t segment, const values_of<Shape> &values) {
    if (!Shape::GATED)
        store_sums<Shape>(args, p, segment, values);
    else if (args.fn == RP_ACTIVATION_SILU)
        store_gated<Shape, RP_ACTIVATION_SILU>(args, p, values);
    else
        store_gated<Shape, RP_ACTIVATION_GELU_TANH>(args, p, values);
}

/* Both warpgroups have read the stages. With scales, of the unit-th of a block: those of its weight
 * rows lie in shared memory after it. Each thread arrives itself, so that racecheck can track what
 * bar.sync alone would order. */
template <typename Shape>
__device__ __forceinline__ void meet(const scale_area<Shape> &scales, uint32_t unit) {
    if constexpr (Shape::SCALED) {
        rp_barrier_arrive(scales.met);
        rp_barrier_wait(scales.met, unit % 2);
    } else {
        asm volatile("bar.sync 3, 256;" ::: "memory");
    }
}

template <typename Shape>
__device__ __forceinline__ void multiply_all(const rp_matmul_mid_args &args, ring<Shape> at,
                                             scale_area<Shape> scales, rp_stamp &stamp) {
    uint32_t tile_columns = Shape::GATED ? args.tile.rows / 2 : args.tile.rows;
    place p;
    p.warpgroup = threadIdx.x / 128;
    p.thread = threadIdx.x % 128;
    p.column = p.thread % 4 * 2;
    p.token = p.warpgroup * Shape::BLOCKS * 64 + p.thread / 32 * 16 + p.thread % 32 / 4;
    stamp.wait();
    p.live = *args.live;
    stamp.look();
    token_scales_of<Shape> token_scales;
    uint32_t unit = 0; /* of this block */
    if constexpr (Shape::SCALED)
        load_token_scales<Shape>(args, p, token_scales);
    for (walk w = walk_begin(args); w.valid;) {
        sums_of<Shape> sums;
        uint32_t blocks = w.end - w.block, tile = w.tile, segment = w.segment;
        float scale = 0;
        if constexpr (Shape::SCALED) {
            scale = load_scale<Shape>(args, tile);
            /* Zeros are never read, but end the live range of the previous unit's sums. */
#pragma unroll
            for (int i = 0; i < Shape::BLOCKS * Shape::SUMS; i++)
                sums[i / Shape::SUMS][i % Shape::SUMS] = 0;
        }
        multiply_segment<Shape>(at, p.warpgroup, blocks, sums);
        w.enter(args);
        p.first = tile * tile_columns;
        p.columns = min(tile_columns, args.columns - p.first);
        /* The last two stages, one for each warpgroup, or after the last unit, half of all. */
        ring<Shape> held = at;
        held.back(blocks > 1 ? HELD : 1);
        if (w.valid) {
            ring<Shape> own = held;
            if (p.warpgroup > 0)
                own.next();
            p.stage = own.weights();
            p.room = blocks > 1 ? Shape::STAGE_BYTES / (Shape::BLOCKS * 64 * 128) : 0;
        } else {
            p.stage = at.data + p.warpgroup * (at.count / 2) * Shape::STAGE_BYTES;
            p.room = at.count / 2 * Shape::STAGE_BYTES / (Shape::BLOCKS * 64 * 128);
        }
        if (Shape::SCALED && threadIdx.x < Shape::WIDTH)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(scales.rows(unit) + threadIdx.x * 4),
                         "f"(scale)
                         : "memory");
        meet<Shape>(scales, unit);
        if constexpr (Shape::SCALED) {
            values_of<Shape> values;
            scale_sums<Shape>(p, token_scales, scales.rows(unit++), sums, values);
            store_unit<Shape>(args, p, segment, values);
        } else {
            store_unit<Shape>(args, p, segment, sums);
        }
        for (uint32_t i = 0; w.valid && i < min(blocks, (uint32_t)HELD); i++) {
            free_stage(held);
            held.next();
        }
    }
}

template <int TOKENS, int WIDTH, bool GATED, rp_wgmma_type TYPE>
__global__ void __launch_bounds__(THREADS, 1)
    matmul_mid(const __grid_constant__ rp_matmul_mid_args args) {
#if RP_CUDA_HOPPER
    using Shape = shape<TOKENS, WIDTH, GATED, TYPE>;
    extern __shared__ __align__(1024) unsigned char shared[];
    rp_stamp stamp(args.stamp);
    ring<Shape> at;
    at.data = (rp_shared_address(shared) + 1023) & ~1023u;
    at.count = args.stages;
    at.full = at.data + at.count * Shape::STAGE_BYTES;
    at.empty = at.full + 8 * at.count;
    at.stage = at.phase = 0;
    scale_area<Shape> scales = {at.empty + 8 * at.count};
    if (threadIdx.x == MULTIPLYING) {
        rp_map_prefetch(&args.weight_map);
        rp_map_prefetch(&args.in_map);
        for (uint32_t i = 0; i < at.count; i++) {
            rp_barrier_init(at.full + 8 * i, 2);
            rp_barrier_init(at.empty + 8 * i, MULTIPLYING / 32);
        }
        if (Shape::SCALED)
            rp_barrier_init(scales.met, MULTIPLYING);
        rp_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < MULTIPLYING)
        multiply_all<Shape>(args, at, scales, stamp);
    else if (threadIdx.x == MULTIPLYING)
        copy_weights<Shape>(args, at);
    else if (threadIdx.x == MULTIPLYING + 32)
        copy_tokens<Shape>(args, at);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

} // namespace

#endif
