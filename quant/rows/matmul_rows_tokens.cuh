/* matmul_rows_tokens.cuh - tokens that a block of matmul_rows_kernel.cuh makes itself, of a few
 * rows: by the norm before the GEMM, or by quantizing rows of bf16. All of it runs while the first
 * weights come.
 *
 * Normed bf16 goes into the stages of the ring. Quantized values stay where they are made, all of K
 * once: (chunk)(row)(16 bytes), max_rows rows. Unswizzled, an instruction takes its eight tokens
 * from 16 bytes each, back to back: those past max_rows are what comes next in shared memory, and
 * their sums are dropped. */
#ifndef RP_QUANT_MATMUL_ROWS_TOKENS_CUH
#define RP_QUANT_MATMUL_ROWS_TOKENS_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "device/quantize_packed.cuh"
#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_scales.cuh"

/* Where tokens come from. */
enum rp_rows_source {
    RP_ROWS_READY,    /* from memory as they are */
    RP_ROWS_NORMED,   /* the norm's output, of 8-bit GEMMs as quantized values */
    RP_ROWS_QUANTIZED /* bf16 from memory, as quantized values */
};

namespace {

#define BOX_ROW_BYTES (RP_MATMUL_BLOCK * 2)
#define BOXES_MOST    4
#define CHUNK_BYTES   16 /* of a row, in what the tensor cores read unswizzled */

/* Quantized values are made in the block, and read where they were made. */
template <rp_rows_source SOURCE, rp_wgmma_type TYPE>
constexpr bool quantizes_output = SOURCE != RP_ROWS_READY &&rp_wgmma_is_8<TYPE>;

/* Barriers and stages in shared memory. A stage: weights (part)(box)(half)(rows of the tile), then
 * tokens (part)(box). Halves are gates and ups; parts are segments, each with a warpgroup of its
 * own. */
struct ring {
    /* 8 bytes each: weights have come, tokens have come, all is read; and one, tokens of bf16 are
     * normed */
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

/* Offset of the boards of quantized rows: after the quantized values. */
__device__ __forceinline__ rp_matmul_row_board *row_boards(const rp_matmul_rows_args &args,
                                                           unsigned char *made) {
    return (rp_matmul_row_board *)(made + (size_t)args.max_rows * args.blocks * BOX_ROW_BYTES);
}
/* Where quantized values of a row begin that start at this column, a multiple of 4. */
__device__ __forceinline__ unsigned char *
quantized_place(const rp_matmul_rows_args &args, unsigned char *made, uint32_t row, uint32_t col) {
    return made + (col / CHUNK_BYTES * args.max_rows + row) * CHUNK_BYTES + col % CHUNK_BYTES;
}
/* The instruction's operand, lower half: its chunks from `shared` on, `rows` of them side by side.
 * 32 quantized values of each row further: + 2 * rows. The upper half says that it is not
 * swizzled. */
__device__ __forceinline__ uint32_t quantized_operand_low(uint32_t shared, uint32_t rows) {
    return (shared & 0x3FFFF) >> 4 | rows << 16;
}
__device__ __forceinline__ uint64_t quantized_operand_of(uint32_t low) { return low; }
/* Address in box `box` of K; a box has BOX_ROW_BYTES / 16 chunks. */
__device__ __forceinline__ uint32_t quantized_box_operand(const rp_matmul_rows_args &args,
                                                          const unsigned char *made, uint32_t box) {
    return quantized_operand_low(rp_shared_address(made) + box * args.max_rows * BOX_ROW_BYTES,
                                 args.max_rows);
}

/* Quantizes a row with all consumer threads. most: a pair, of this thread's values. */
template <int THREADS, rp_wgmma_type TYPE>
__device__ __forceinline__ rp_quantized_row quantized_row_of(uint32_t most,
                                                             rp_matmul_row_board &board) {
    most = rp_warp_max_bits(max(most & 0xFFFFu, most >> 16));
    uint32_t lane = threadIdx.x % 32;
    if (lane == 0)
        board.most[threadIdx.x / 32] = most;
    rp_rows_sync<THREADS>();
    most = rp_warp_max_bits(lane < THREADS / 32 ? board.most[lane] : 0);
    rp_quantized_row quantized =
        rp_quantized_row_of(most, TYPE == RP_WGMMA_INT8 ? RP_DTYPE_INT8 : RP_DTYPE_FP8_E4M3);
    if (threadIdx.x == 0)
        board.scale = quantized.scale;
    return quantized;
}

/* After the last row: quantized values and boards are there for all multiplying threads, and for
 * their tensor cores. */
template <int THREADS> __device__ __forceinline__ void finish_quantized() {
    rp_shared_fence_async();
    rp_rows_sync<THREADS>();
}

/* What this thread has of a row of bf16: octets threadIdx.x + THREADS * i, zeros past the end. */
template <int THREADS, int OWN>
__device__ __forceinline__ void load_octets(const rp_matmul_rows_args &args, uint32_t row,
                                            uint4 (&x)[OWN]) {
    const uint4 *from = (const uint4 *)(args.in + row * args.in_stride);
    uint32_t octets = args.blocks * BOX_ROW_BYTES / 8;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t octet = threadIdx.x + THREADS * i;
        x[i] = octet < octets ? __ldcg(from + octet) : make_uint4(0, 0, 0, 0);
    }
}

/* Rows of bf16 as quantized values in shared memory, and their boards. The first row is read while
 * it is not known yet whether it is alive, each other one while the one before becomes quantized
 * values. */
template <int THREADS, rp_wgmma_type TYPE>
__device__ __forceinline__ void quantize(const rp_matmul_rows_args &args, unsigned char *made) {
    constexpr int OWN = RP_MATMUL_QUANTIZE_COLS / 8 / THREADS;
    rp_matmul_row_board *boards = row_boards(args, made);
    uint32_t octets = args.blocks * BOX_ROW_BYTES / 8;
    uint4 raw[OWN], next[OWN];
    rp_pdl_wait();
    load_octets<THREADS>(args, 0, next);
    uint32_t live = *args.live;
#pragma unroll 1
    for (uint32_t row = 0; row == 0 || row < min(live, args.max_rows); row++) {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < OWN; i++)
            raw[i] = next[i];
        if (row + 1 < args.max_rows)
            load_octets<THREADS>(args, row + 1, next);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            most = rp_largest_pair(rp_largest_pair(most, raw[i].x), raw[i].y);
            most = rp_largest_pair(rp_largest_pair(most, raw[i].z), raw[i].w);
        }
        rp_quantized_row quantized = quantized_row_of<THREADS, TYPE>(most, boards[row]);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t octet = threadIdx.x + THREADS * i;
            if (octet < octets)
                *(uint2 *)quantized_place(args, made, row, octet * 8) =
                    make_uint2(rp_codes4(quantized, raw[i].x, raw[i].y),
                               rp_codes4(quantized, raw[i].z, raw[i].w));
        }
    }
    finish_quantized<THREADS>();
}

/* The same of a row of f32 that is to be normed, in quads. */
template <int THREADS, int OWN>
__device__ __forceinline__ void load_quads(const rp_matmul_norm &norm, uint32_t row,
                                           float4 (&x)[OWN]) {
    const float4 *from = (const float4 *)(norm.in + row * norm.in_stride);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t quad = threadIdx.x + THREADS * i;
        x[i] = quad < norm.cols / 4 ? __ldcg(from + quad) : make_float4(0, 0, 0, 0);
    }
}

/* 1 / sqrt(mean of squares + eps) of a row, for all multiplying threads: x has this thread's quads,
 * zeros past the end. sums: of each warp's quads, as in norm_cuda.cu; those past the end are zeros
 * and change nothing. */
template <int THREADS, int OWN>
__device__ __forceinline__ float inverse_of_row(const rp_matmul_norm &norm, const float4 (&x)[OWN],
                                                float *sums) {
    constexpr int SUMS = OWN * THREADS / 32;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float sum = rp_warp_sum(rp_add_squares(0.0f, x[i]));
        if (threadIdx.x % 32 == 0)
            sums[(threadIdx.x + THREADS * i) / 32] = sum;
    }
    rp_rows_sync<THREADS>();
    float4 fours[SUMS / 4];
#pragma unroll
    for (int i = 0; i < SUMS / 4; i++)
        fours[i] = *(const float4 *)&sums[4 * i];
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < SUMS / 4; i++)
        total = (((total + fours[i].x) + fours[i].y) + fours[i].z) + fours[i].w;
    return rp_inverse_root(total, norm.cols, norm.eps);
}

/* Normed tokens, (row)(k) bf16 or quantized values in shared memory, with the bits of norm_cuda.cu:
 * a thread there has one quad of columns; here it does the work of several, warp by warp. Rows are
 * read as above. */
template <int THREADS, rp_wgmma_type TYPE>
__device__ __forceinline__ void normalize(const rp_matmul_rows_args &args, unsigned char *tokens) {
    constexpr int OWN = RP_MATMUL_NORM_COLS / 4 / THREADS;
    const struct rp_matmul_norm &norm = args.norm;
    uint32_t quads = norm.cols / 4;
    /* After the tokens: (row)(warp) */
    float(*sums)[RP_MATMUL_NORM_COLS / 128] = (float(*)[RP_MATMUL_NORM_COLS / 128])(
        tokens + RP_MATMUL_NORM_TOKEN_BYTES(args.max_rows, norm.cols));
    rp_matmul_row_board *boards = row_boards(args, tokens);
    float4 weight[OWN], x[OWN], next[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t quad = threadIdx.x + THREADS * i;
        if (quad < quads)
            weight[i] = ((const float4 *)norm.weight)[quad];
    }
    rp_pdl_wait();
    load_quads<THREADS>(norm, 0, next);
    uint32_t live = *args.live;
#pragma unroll 1
    for (uint32_t row = 0; row == 0 || row < min(live, args.max_rows); row++) {
#pragma unroll
        for (int i = 0; i < OWN; i++)
            x[i] = next[i];
        if (row + 1 < args.max_rows)
            load_quads<THREADS>(norm, row + 1, next);
        float inverse =
            inverse_of_row<THREADS>(norm, x, rp_wgmma_is_8<TYPE> ? boards[row].sums : sums[row]);
        uint2 rounded[OWN];
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t quad = threadIdx.x + THREADS * i;
            rounded[i] = make_uint2(0, 0);
            if (quad >= quads)
                continue;
            rounded[i] = rp_pack_bf16(rp_norm_values(x[i], inverse, weight[i], norm.weight_offset));
            if constexpr (rp_wgmma_is_8<TYPE>)
                most = rp_largest_pair(rp_largest_pair(most, rounded[i].x), rounded[i].y);
            else
                *(uint2 *)(tokens + (row * norm.cols + quad * 4) * 2) = rounded[i];
        }
        if constexpr (rp_wgmma_is_8<TYPE>) {
            rp_quantized_row quantized = quantized_row_of<THREADS, TYPE>(most, boards[row]);
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                uint32_t quad = threadIdx.x + THREADS * i;
                if (quad < quads)
                    *(uint32_t *)quantized_place(args, tokens, row, quad * 4) =
                        rp_codes4(quantized, rounded[i].x, rounded[i].y);
            }
        }
    }
    if constexpr (rp_wgmma_is_8<TYPE>)
        finish_quantized<THREADS>();
}

/* One warp: normed tokens into the stages, as a bulk copy would swizzle them. */
template <int TOKENS>
__device__ __forceinline__ void copy_made(const rp_matmul_rows_args &args, ring at,
                                          const unsigned char *tokens) {
    rp_pdl_wait();
    rp_pdl_trigger();
    uint32_t live = min(*args.live, (uint32_t)RP_MATMUL_NORM_ROWS);
    uint32_t row_bytes = args.norm.cols * 2;
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
