/* matmul_rows_tokens.cuh - tokens that a block of matmul_rows_kernel.cuh makes itself, of up to four rows: by the norm
 * before the product, or by quantising rows of bf16; then into the stages of its ring. All of it runs while the
 * first weights come. */
#ifndef RP_QUANT_MATMUL_ROWS_TOKENS_CUH
#define RP_QUANT_MATMUL_ROWS_TOKENS_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "device/quantise_row.cuh"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_scales.cuh"

/* Where tokens come from. */
enum rp_rows_source {
    RP_ROWS_READY,    /* from memory as they are */
    RP_ROWS_NORMED,   /* the norm's output, of 8-bit products as codes */
    RP_ROWS_QUANTISED /* bf16 from memory, as codes */
};

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

/* All multiplying threads. */
template <int THREADS> __device__ __forceinline__ void rp_rows_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

/* Where rows of codes have their boards: behind the codes. */
template <rp_wgmma_type TYPE>
__device__ __forceinline__ rp_matmul_row_board *row_boards(const rp_matmul_rows_args &args,
                                                           unsigned char *made) {
    return (rp_matmul_row_board *)(made + (size_t)args.max_rows * args.blocks * BOX_ROW_BYTES);
}

__device__ __forceinline__ float4 unpacked(uint2 raw) {
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF0000u),
                       __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xFFFF0000u));
}

/* One row of bf16 into codes and its scale; this thread has quads threadIdx.x + THREADS * i of it, zeros past the end. */
template <int THREADS, rp_wgmma_type TYPE, int OWN>
__device__ __forceinline__ void give_codes(const uint2 (&raw)[OWN], uint32_t quads, uint32_t *codes,
                                           rp_matmul_row_board &board) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float4 x = unpacked(raw[i]);
        most = max(most, max(max(rp_magnitude_bits(x.x), rp_magnitude_bits(x.y)),
                             max(rp_magnitude_bits(x.z), rp_magnitude_bits(x.w))));
    }
    most = rp_warp_max_bits(most);
    if (threadIdx.x % 32 == 0)
        board.most[threadIdx.x / 32] = most;
    rp_rows_sync<THREADS>();
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp += 4) {
        uint4 four = *(const uint4 *)&board.most[warp];
        most = max(most, max(max(four.x, four.y), max(four.z, four.w)));
    }
    rp_row_codes row(most, TYPE == RP_WGMMA_INT8 ? RP_DTYPE_INT8 : RP_DTYPE_FP8_E4M3);
    if (threadIdx.x == 0)
        board.scale = row.scale;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t quad = threadIdx.x + THREADS * i;
        float4 x = unpacked(raw[i]);
        if (quad < quads)
            codes[quad] =
                row.code(x.x) | row.code(x.y) << 8 | row.code(x.z) << 16 | row.code(x.w) << 24;
    }
}

/* Rows of bf16 as codes, (row)(k) in shared memory, and their boards. */
template <int THREADS, rp_wgmma_type TYPE>
__device__ __forceinline__ void quantise(const rp_matmul_rows_args &args, unsigned char *made) {
    constexpr int OWN = RP_MATMUL_QUANTISE_COLS / 4 / THREADS;
    rp_matmul_row_board *boards = row_boards<TYPE>(args, made);
    uint32_t quads = args.blocks * BOX_ROW_BYTES / 4;
    rp_pdl_wait();
    /* The first row is read while it is not known yet whether it is alive. */
    uint32_t live = 1;
    for (uint32_t row = 0; row < live; row++) {
        const uint2 *from = (const uint2 *)(args.in + row * args.in_stride);
        uint2 raw[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t quad = threadIdx.x + THREADS * i;
            raw[i] = quad < quads ? __ldcg(from + quad) : make_uint2(0, 0);
        }
        if (row == 0)
            live = min(*args.live, args.max_rows);
        give_codes<THREADS, TYPE>(raw, quads, (uint32_t *)made + row * quads, boards[row]);
    }
}

/* Normed tokens, (row)(k) bf16 or codes in shared memory, with the bits of norm_cuda.cu: a thread there has one quad
 * of columns; here it does the work of several, warp by warp. */
template <int THREADS, rp_wgmma_type TYPE>
__device__ __forceinline__ void normalise(const rp_matmul_rows_args &args, unsigned char *tokens) {
    constexpr int OWN = RP_MATMUL_NORM_COLS / 4 / THREADS;
    const struct rp_matmul_norm &norm = args.norm;
    uint32_t quads = norm.cols / 4, warps = RP_CEIL_DIV(quads, 128u) * 4;
    /* Behind the tokens: (row)(warp) */
    float(*sums)[RP_MATMUL_NORM_COLS / 128] = (float(*)[RP_MATMUL_NORM_COLS / 128])(
        tokens + RP_MATMUL_NORM_TOKEN_BYTES(args.max_rows, norm.cols));
    rp_matmul_row_board *boards = row_boards<TYPE>(args, tokens);
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
        float *sums_of_row = rp_wgmma_is_8<TYPE> ? boards[row].sums : sums[row];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t quad = threadIdx.x + THREADS * i;
            float sum = rp_warp_sum(quad < quads ? rp_add_squares(0.0f, x[i]) : 0.0f);
            if (threadIdx.x % 32 == 0)
                sums_of_row[quad / 32] = sum;
        }
        rp_rows_sync<THREADS>();
        float total = 0.0f;
        for (uint32_t w = 0; w < warps; w += 4) {
            float4 four = *(const float4 *)&sums_of_row[w];
            total = (((total + four.x) + four.y) + four.z) + four.w;
        }
        float inverse = rp_inverse_root(total, norm.cols, norm.eps);
        uint2 rounded[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t quad = threadIdx.x + THREADS * i;
            rounded[i] = make_uint2(0, 0);
            if (quad >= quads)
                continue;
            float4 y = rp_norm_values(x[i], inverse, weight[i], norm.weight_offset);
            __nv_bfloat162 low = __floats2bfloat162_rn(y.x, y.y);
            __nv_bfloat162 high = __floats2bfloat162_rn(y.z, y.w);
            uint2 raw = {*(const uint32_t *)&low, *(const uint32_t *)&high};
            if constexpr (rp_wgmma_is_8<TYPE>)
                rounded[i] = raw;
            else
                *(uint2 *)(tokens + (row * norm.cols + quad * 4) * 2) = raw;
        }
        if constexpr (rp_wgmma_is_8<TYPE>)
            give_codes<THREADS, TYPE>(rounded, quads, (uint32_t *)tokens + row * quads,
                                      boards[row]);
    }
}

/* One warp: tokens made here into the stages, as a bulk copy would swizzle them. */
template <int TOKENS, rp_wgmma_type TYPE>
__device__ __forceinline__ void copy_made(const rp_matmul_rows_args &args, ring at,
                                          const unsigned char *tokens) {
    rp_pdl_wait();
    rp_pdl_trigger();
    uint32_t live = min(*args.live, (uint32_t)RP_MATMUL_NORM_ROWS);
    uint32_t row_bytes = rp_wgmma_is_8<TYPE> ? args.blocks * BOX_ROW_BYTES : args.norm.cols * 2;
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

} // namespace

#endif
