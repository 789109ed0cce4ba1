/* matmul_experts_kernel.cuh - GEMMs of experts on Hopper's tensor cores: bf16, FP8 and INT8 (W8A8),
 * where experts have few rows; what it shares with matmul_experts_many_kernel.cuh and
 * matmul_experts_tiles_kernel.cuh.
 *
 * Weights are the instruction's left operand, rows its right one: an instruction is as wide as the
 * rows of a tile need, and 128 weight rows are two warpgroups' work. Which of them stands where and
 * how wide an instruction is changes no bit.
 *
 *   a warp        boxes of weights -> stage of 128 bytes of K, when it is free
 *   other warps   rows, each from where it lies -> stage, by asynchronous copies of 16 bytes
 *   warpgroups    two: 64 weight rows each
 *
 * A unit of work is a tile of rows of one expert and a tile of its weights. Blocks take every
 * grid-th unit of the work list, so that blocks at work together read the same rows, and the
 * weights of an expert with several tiles of rows, from L2.
 *
 * FEW: tiles of up to 64 rows, in half of an SM: the block of the next GEMM fits beside this one
 * and is ready when this one is complete. (Its weights could be requested before, since only rows
 * depend on this one; that made a step of 8 rows 4 % slower.)
 *
 * Gated: a box of weights brings 8 gates, their 8 ups, the next 8 gates ...: a thread has a gate
 * and its up in the two halves of its sums. */
#ifndef RP_QUANT_MATMUL_EXPERTS_KERNEL_CUH
#define RP_QUANT_MATMUL_EXPERTS_KERNEL_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/experts/matmul_experts_internal_cuda.h"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_scales.cuh"
#include "quant/matmul_wgmma.cuh"

typedef void (*rp_matmul_experts_kernel)(rp_matmul_experts_args);

namespace {

constexpr uint32_t MULTIPLYING = 256; /* threads: two warpgroups */
constexpr uint32_t BOX_BYTES = 128;   /* of K, in a stage */
constexpr uint32_t CHUNK = 16;        /* bytes of a row that one copy brings */

/* !FEW: in the kernel of weights in tiles. */
template <bool FEW> constexpr uint32_t row_threads = FEW ? 32 : 96; /* that copy rows */
template <bool FEW> constexpr uint32_t threads = MULTIPLYING + 32 + row_threads<FEW>;
template <bool FEW> constexpr uint32_t most_rows = FEW ? RP_EXPERTS_FEW : RP_EXPERTS_MANY;
/* Stages whose rows are on their way before the oldest one is waited for. A stage becomes free when
 * the next one is multiplied, so a ring has at least two more. */
template <int BOXES>
constexpr uint32_t
    in_flight = (BOXES == 1 ? RP_EXPERTS_STAGES_LEAST : RP_EXPERTS_STAGES_LEAST_TILES) - 2;

struct unit {
    uint32_t expert, first, count; /* positions of the order */
    uint32_t col;                  /* first weight row of the expert */
};

/* The units of a block. Its first tile is read beside the count: there is memory for it. */
struct walk {
    uint32_t at, end;
    uint4 entry;

    __device__ __forceinline__ explicit walk(const rp_matmul_experts_args &args)
        : at(blockIdx.x), entry(read(args, blockIdx.x / args.col_tiles)) {
        end = __ldcg(&args.tiles->count) * args.col_tiles;
    }
    __device__ __forceinline__ static uint4 read(const rp_matmul_experts_args &args,
                                                 uint32_t tile) {
        return __ldcg((const uint4 *)(args.tiles + 1 + tile));
    }
    __device__ __forceinline__ bool next(const rp_matmul_experts_args &args, unit &out) {
        if (at >= end)
            return false;
        uint32_t tile = at / args.col_tiles;
        if (at >= gridDim.x)
            entry = read(args, tile);
        out = {entry.x, entry.y, entry.z, (at - tile * args.col_tiles) * args.cols};
        at += gridDim.x;
        return true;
    }
};

struct ring {
    uint32_t data, full, empty; /* stages 1024-aligned, for the swizzle; barriers of 8 bytes */
    uint32_t stage, phase;

    __device__ __forceinline__ uint32_t weights(const rp_matmul_experts_args &args) const {
        return data + stage * args.stage_bytes;
    }
    __device__ __forceinline__ uint32_t rows(const rp_matmul_experts_args &args) const {
        return weights(args) + args.weight_bytes;
    }
    __device__ __forceinline__ uint32_t full_barrier() const { return full + 8 * stage; }
    __device__ __forceinline__ uint32_t empty_barrier() const { return empty + 8 * stage; }
    __device__ __forceinline__ void next(const rp_matmul_experts_args &args) {
        if (++stage == args.stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* The first weight row of a unit; gated: of its gates. */
template <bool GATED>
__device__ __forceinline__ uint32_t weight_row(const rp_matmul_experts_args &args, const unit &u) {
    return u.expert * args.each + (GATED ? u.col / 2 : u.col);
}

/* The box of the stage `k` of K, from this weight row on. */
template <bool GATED>
__device__ __forceinline__ void copy_weight_box(const rp_matmul_experts_args &args, uint32_t to,
                                                uint32_t k, uint32_t row, uint32_t barrier) {
    if (GATED)
        rp_copy_box_4d(to, &args.weight_map, k * RP_MATMUL_BLOCK, 0, 0, row / 8, barrier,
                       args.weight_policy);
    else
        rp_copy_box(to, &args.weight_map, k * RP_MATMUL_BLOCK, row, barrier, args.weight_policy);
}

/* One thread. */
template <bool GATED>
__device__ __forceinline__ void copy_weights(const rp_matmul_experts_args &args, ring r) {
    rp_pdl_wait();
    unit u;
    for (walk w(args); w.next(args, u);) {
        uint32_t row = weight_row<GATED>(args, u);
        for (uint32_t k = 0; k < args.blocks; k++) {
            rp_barrier_wait(r.empty_barrier(), r.phase ^ 1);
            rp_barrier_expect(r.full_barrier(), args.cols * BOX_BYTES);
            copy_weight_box<GATED>(args, r.weights(args), k, row, r.full_barrier());
            r.next(args);
        }
    }
}

/* 16 bytes; zeros where there are none. */
__device__ __forceinline__ void copy_chunk(uint32_t to, const unsigned char *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

template <bool FEW> __device__ __forceinline__ void sync_row_threads() {
    if (FEW)
        __syncwarp();
    else
        asm volatile("bar.sync 1, %0;" ::"n"(row_threads<false>) : "memory");
}

/* Copies into the stage of this barrier are complete, and visible to tensor cores: those of this
 * warp, or where EACH, of this thread, which racecheck follows. */
template <bool EACH> __device__ __forceinline__ void hand_over(uint32_t full_barrier) {
    rp_shared_fence_async();
    if (!EACH)
        __syncwarp();
    if (EACH || threadIdx.x % 32 == 0)
        rp_barrier_arrive(full_barrier);
}

/* The row of the input that a position reads. */
__device__ __forceinline__ uint32_t input_row(const rp_matmul_experts_args &args,
                                              uint32_t position) {
    return args.in_divisor ? (uint32_t)__ldcg(args.choices + position) / args.in_divisor : position;
}

/* The rows of a unit, in shared memory. at: number of the thread. */
template <bool FEW>
__device__ __forceinline__ void list_rows(const rp_matmul_experts_args &args, const unit &u,
                                          uint32_t at, uint32_t *rows) {
    sync_row_threads<FEW>();
    for (uint32_t i = at; i < u.count; i += row_threads<FEW>)
        rows[i] = input_row(args, u.first + i);
    sync_row_threads<FEW>();
}

/* This thread's chunks of the stage `k` of BOXES boxes of 128 bytes. A chunk c of row i is at chunk
 * c ^ i % 8, as bulk copies swizzle. */
template <bool FEW, int BOXES>
__device__ __forceinline__ void copy_stage(const rp_matmul_experts_args &args, uint32_t to,
                                           uint32_t count, uint32_t k, uint32_t at,
                                           const uint32_t *rows) {
    const uint32_t chunk = at % 8, box_bytes = args.token_bytes / BOXES;
    const uint32_t column = k * BOXES * BOX_BYTES + chunk * CHUNK;
#pragma unroll 2
    for (uint32_t i = at / 8; i < count; i += row_threads<FEW> / 8) {
        const unsigned char *from = args.in + rows[i] * args.in_stride;
        uint32_t place = to + i * BOX_BYTES + (chunk ^ i % 8) * CHUNK;
#pragma unroll
        for (uint32_t box = 0; box < BOXES; box++) {
            bool there = column + box * BOX_BYTES < args.row_bytes;
            copy_chunk(place + box * box_bytes, from + (there ? column + box * BOX_BYTES : 0),
                       there);
        }
    }
}

/* The threads that copy rows. */
template <bool FEW, int BOXES = 1>
__device__ __forceinline__ void copy_rows(const rp_matmul_experts_args &args, ring r, uint32_t at,
                                          uint32_t *rows) {
    constexpr uint32_t LATE = in_flight<BOXES>;
    rp_pdl_wait();
    rp_pdl_trigger(); /* not before: matmul_cuda.h */
    uint32_t issued = 0;
    ring landing = r;
    unit u;
    for (walk w(args); w.next(args, u);) {
        list_rows<FEW>(args, u, at, rows);
        for (uint32_t k = 0; k < args.blocks; k++) {
            rp_barrier_wait(r.empty_barrier(), r.phase ^ 1);
            copy_stage<FEW, BOXES>(args, r.rows(args), u.count, k, at, rows);
            asm volatile("cp.async.commit_group;" ::: "memory");
            r.next(args);
            if (++issued > LATE) {
                asm volatile("cp.async.wait_group %0;" ::"n"(LATE) : "memory");
                hand_over<!FEW>(landing.full_barrier());
                landing.next(args);
            }
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    for (uint32_t i = 0; i < min(issued, LATE); i++) {
        hand_over<!FEW>(landing.full_barrier());
        landing.next(args);
    }
}

__device__ __forceinline__ void free_stage(uint32_t barrier) {
    if (threadIdx.x % 32 == 0)
        rp_barrier_arrive(barrier);
}

/* All of K into sums of WIDTH rows, in rising order. */
template <int WIDTH, rp_wgmma_type TYPE>
__device__ __forceinline__ void multiply(const rp_matmul_experts_args &args, ring &r,
                                         uint32_t warpgroup,
                                         typename rp_wgmma_sum<TYPE>::type (&sums)[WIDTH / 2]) {
    uint32_t before = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < args.blocks; k++) {
        rp_barrier_wait(r.full_barrier(), r.phase);
        uint64_t a = rp_wgmma_operand(r.weights(args) + warpgroup * 64 * BOX_BYTES);
        uint64_t b = rp_wgmma_operand(r.rows(args));
        rp_wgmma_fence();
#pragma unroll
        for (int i = 0; i < RP_MATMUL_BLOCK / 16; i++)
            rp_wgmma<WIDTH, TYPE>::run(sums, a + 2 * i, b + 2 * i, (k | i) != 0);
        rp_wgmma_commit();
        rp_wgmma_wait<1>();
        if (k > 0)
            free_stage(before);
        before = r.empty_barrier();
        r.next(args);
    }
    rp_wgmma_wait<0>();
    free_stage(before);
}

/* Sums as f32: bf16's are, those of 8 bits are multiplied by their scales. */
template <rp_wgmma_type TYPE>
__device__ __forceinline__ float scaled(typename rp_wgmma_sum<TYPE>::type sum, float row,
                                        float weight) {
    if constexpr (rp_wgmma_is_8<TYPE>)
        return rp_scaled(sum, rp_scaled(row, weight));
    else
        return sum;
}

/* The transposed matrix (8, 8) of bf16: a lane has two elements of row lane / 4, from column 2 *
 * (lane % 4) on. */
__device__ __forceinline__ uint32_t transpose(float first, float second) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    uint32_t out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                 : "=r"(out)
                 : "r"(*(const uint32_t *)&pair));
    return out;
}

__device__ __forceinline__ void store_pair(__nv_bfloat16 *to, bool paired, uint32_t value) {
    if (paired) {
        *(uint32_t *)to = value;
    } else {
        ((uint16_t *)to)[0] = (uint16_t)value;
        ((uint16_t *)to)[1] = (uint16_t)(value >> 16);
    }
}

/* The values, one for each weight row, of this thread's: row and row + 8 of a warp's 16. */
template <bool GATED>
__device__ __forceinline__ float2 values_of_rows(const rp_matmul_experts_args &args,
                                                 const float *values, const unit &u, uint32_t row) {
    values += (size_t)u.expert * args.each;
    uint32_t low = GATED ? (u.col + row / 16 * 16) / 2 + row % 16 : u.col + row;
    uint32_t high = low + (GATED ? args.each / 2 : 8), end = GATED ? args.each / 2 : args.each;
    return make_float2(low < end ? __ldg(values + low) : 0.0f,
                       high < args.each ? __ldg(values + high) : 0.0f);
}

/* What a thread adds to its sums, and the row of its first outputs: from memory, so kernels of few
 * rows load it before they multiply. */
struct store_values {
    float2 bias;
    uint32_t row;
};

/* The row of the output that a position of the unit has. */
__device__ __forceinline__ uint32_t output_row(const rp_matmul_experts_args &args, const unit &u,
                                               uint32_t at) {
    uint32_t position = u.first + at;
    return args.by_choice && at < u.count ? (uint32_t)__ldcg(args.choices + position) : position;
}

template <bool GATED>
__device__ __forceinline__ store_values load_store_values(const rp_matmul_experts_args &args,
                                                          const unit &u, uint32_t warpgroup) {
    uint32_t lane = threadIdx.x % 32, tile_row = warpgroup * 64 + threadIdx.x % 128 / 32 * 16;
    store_values values = {make_float2(-0.0f, -0.0f), output_row(args, u, lane / 4)};
    if (args.bias) /* -0 adds nothing */
        values.bias = values_of_rows<GATED>(args, args.bias, u, tile_row + lane / 4);
    return values;
}

/* Stores the sums of a unit. A thread has those of the rows 8 j + 2 * (lane % 4) (+ 1) of the tile
 * by the weight rows lane / 4 and lane / 4 + 8 of its warp's 16; turned, it has two neighboring
 * outputs of one row. */
template <int WIDTH, bool GATED, rp_wgmma_type TYPE>
__device__ __forceinline__ void store(const rp_matmul_experts_args &args, const unit &u,
                                      uint32_t warpgroup, const store_values &values,
                                      const typename rp_wgmma_sum<TYPE>::type (&sums)[WIDTH / 2]) {
    uint32_t lane = threadIdx.x % 32, tile_row = warpgroup * 64 + threadIdx.x % 128 / 32 * 16;
    uint32_t col = (GATED ? (u.col + tile_row) / 2 : u.col + tile_row) + lane % 4 * 2;
    uint32_t end = tile_row < args.cols ? GATED ? args.each / 2 : args.each : 0;
    float2 weight = make_float2(0.0f, 0.0f), bias = values.bias;
    if constexpr (rp_wgmma_is_8<TYPE>)
        weight = values_of_rows<GATED>(args, args.weight_scales, u, tile_row + lane / 4);
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++) {
        if (8 * j >= (int)u.count)
            break;
        float row[2] = {0.0f, 0.0f}, low[2], high[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t at = 8 * j + lane % 4 * 2 + i;
            if (rp_wgmma_is_8<TYPE> && at < u.count)
                row[i] = __ldcg(args.in_scales + input_row(args, u.first + at));
            low[i] = __fadd_rn(scaled<TYPE>(sums[4 * j + i], row[i], weight.x), bias.x);
            high[i] = __fadd_rn(scaled<TYPE>(sums[4 * j + 2 + i], row[i], weight.y), bias.y);
            if (GATED)
                low[i] = rp_gate(args.fn, low[i], high[i]);
        }
        uint32_t first = transpose(low[0], low[1]);
        uint32_t second = GATED ? 0 : transpose(high[0], high[1]);
        if (8 * j + lane / 4 >= u.count)
            continue;
        size_t out = j == 0 ? values.row : output_row(args, u, 8 * j + lane / 4);
        __nv_bfloat16 *to = (__nv_bfloat16 *)args.out + out * args.out_stride + col;
        if (col < end)
            store_pair(to, args.paired, first);
        if (!GATED && col + 8 < end)
            store_pair(to + 8, args.paired, second);
    }
}

template <int WIDTH, bool GATED, rp_wgmma_type TYPE>
__device__ __forceinline__ void run_unit(const rp_matmul_experts_args &args, ring &r, const unit &u,
                                         uint32_t warpgroup) {
    typename rp_wgmma_sum<TYPE>::type sums[WIDTH / 2];
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        sums[i] = 0;
    multiply<WIDTH, TYPE>(args, r, warpgroup, sums);
    store<WIDTH, GATED, TYPE>(args, u, warpgroup, load_store_values<GATED>(args, u, warpgroup),
                              sums);
}

template <bool GATED, rp_wgmma_type TYPE>
__device__ __forceinline__ void run_units(const rp_matmul_experts_args &args, ring r,
                                          rp_stamp &stamp) {
    uint32_t warpgroup = rp_own_warpgroup();
    stamp.wait();
    stamp.look();
    if (warpgroup * 64 >= args.cols)
        return; /* the tile is the other warpgroup's alone */
    unit u;
    for (walk w(args); w.next(args, u);) {
#define RUN(width) run_unit<width, GATED, TYPE>(args, r, u, warpgroup)
        if (u.count <= 8)
            RUN(8);
        else if (u.count <= 16)
            RUN(16);
        else if (u.count <= 32)
            RUN(32);
        else
            RUN(64);
#undef RUN
    }
}

template <bool GATED, rp_wgmma_type TYPE>
__global__ void __launch_bounds__(threads<true>, 2)
    matmul_experts(const __grid_constant__ rp_matmul_experts_args args) {
#if RP_CUDA_HOPPER
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ uint32_t rows[most_rows<true>];
    rp_stamp stamp(args.stamp);
    ring r;
    r.data = (rp_shared_address(shared) + 1023) & ~1023u;
    r.full = rp_shared_address(shared) + args.shared_bytes - 16 * args.stages;
    r.empty = r.full + 8 * args.stages;
    r.stage = r.phase = 0;
    if (threadIdx.x == MULTIPLYING) {
        rp_map_prefetch(&args.weight_map);
        for (uint32_t i = 0; i < args.stages; i++) {
            rp_barrier_init(r.full + 8 * i, 1 + row_threads<true> / 32);
            rp_barrier_init(r.empty + 8 * i, args.cols > 64 ? 8 : 4); /* warps */
        }
        rp_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < MULTIPLYING)
        run_units<GATED, TYPE>(args, r, stamp);
    else if (threadIdx.x >= MULTIPLYING + 32)
        copy_rows<true>(args, r, threadIdx.x - MULTIPLYING - 32, rows);
    else if (threadIdx.x == MULTIPLYING)
        copy_weights<GATED>(args, r);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

uint32_t threads_of(const rp_matmul_experts_args &args) {
    return args.many ? threads<false> : threads<true>;
}

} // namespace

#endif
