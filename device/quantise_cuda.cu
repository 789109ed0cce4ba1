/* Rows as 8-bit codes, where what made them does not quantise: behind attention, behind gated products, where several
 * products read them. A block has a row; its threads keep it in registers between the look for its largest value and the
 * codes, eight columns at a time. */
#include "device/ops_cuda.h"

#include "device/cuda_vector.cuh"
#include "device/quantise_packed.cuh"

#define EACH        8 /* columns of a thread at a time */
#define KEPT        4 /* such pieces in registers */
#define THREADS_MAX 1024
#define MANY_ROWS   128 /* more than this: fewer threads a row, that overlap with those of others */

struct quantise_args {
    rp_cuda_rows rows;
    rp_values in;
    uint32_t cols;
    rp_cuda_codes codes;
    bool wide; /* rows start at a multiple of 16 bytes */
};

/* Columns [col, col + 8) of a row, packed; zeros from `cols` on. */
static __device__ __forceinline__ uint4 load_piece(const quantise_args &args, size_t row,
                                                   uint32_t col) {
    size_t at = row * args.in.stride + col;
    if (args.wide && col + EACH <= args.cols) {
        if (args.in.dtype == RP_DTYPE_BF16)
            return *(const uint4 *)((const __nv_bfloat16 *)args.in.data + at);
        const float4 *from = (const float4 *)((const float *)args.in.data + at);
        float4 first = from[0], second = from[1];
        uint2 low = rp_pack_bf16(first), high = rp_pack_bf16(second);
        return make_uint4(low.x, low.y, high.x, high.y);
    }
    float x[EACH];
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        x[i] = col + i < args.cols ? rp_load(args.in.data, args.in.dtype, at + i) : 0.0f;
    return make_uint4(rp_pack_bf16(x[0], x[1]), rp_pack_bf16(x[2], x[3]), rp_pack_bf16(x[4], x[5]),
                      rp_pack_bf16(x[6], x[7]));
}

static __device__ __forceinline__ uint32_t largest_of(uint32_t most, const uint4 &piece) {
    return rp_largest(rp_largest(rp_largest(rp_largest(most, piece.x), piece.y), piece.z), piece.w);
}

static __device__ __forceinline__ void store_piece(const quantise_args &args, size_t row,
                                                   uint32_t col, const uint4 &piece,
                                                   const rp_row_codes &of) {
    const rp_cuda_codes &codes = args.codes;
    if (col + EACH > args.cols) {
        rp_store_codes(codes, row, col, args.cols, make_uint2(piece.x, piece.y), of);
        rp_store_codes(codes, row, col + 4, args.cols, make_uint2(piece.z, piece.w), of);
        return;
    }
    *(uint2 *)((unsigned char *)codes.data + row * codes.stride + col) =
        make_uint2(rp_codes4(of, piece.x, piece.y), rp_codes4(of, piece.z, piece.w));
}

/* LONG: more columns than registers hold; they are read twice. */
template <bool LONG>
static __global__ void __launch_bounds__(THREADS_MAX) quantise_kernel(quantise_args args) {
    __shared__ uint32_t shared[32];
    uint32_t row = blockIdx.x, first = EACH * threadIdx.x, step = EACH * blockDim.x, most = 0;
    uint4 kept[LONG ? 1 : KEPT];
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    if (row >= rp_live_count(args.rows.step, args.rows.rows))
        return;
    if (LONG) {
        for (uint32_t col = first; col < args.cols; col += step)
            most = largest_of(most, load_piece(args, row, col));
    } else {
#pragma unroll
        for (uint32_t i = 0; i < KEPT; i++)
            if (first + step * i < args.cols)
                kept[i] = load_piece(args, row, first + step * i);
#pragma unroll
        for (uint32_t i = 0; i < KEPT; i++)
            if (first + step * i < args.cols)
                most = largest_of(most, kept[i]);
    }
    rp_row_codes codes = rp_row_codes_of(rp_block_largest(shared, most), args.codes.dtype);
    if (LONG) {
        for (uint32_t col = first; col < args.cols; col += step)
            store_piece(args, row, col, load_piece(args, row, col), codes);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < KEPT; i++)
            if (first + step * i < args.cols)
                store_piece(args, row, first + step * i, kept[i], codes);
    }
    if (threadIdx.x == 0)
        args.codes.scales[row] = codes.scale;
}

int rp_quantise_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_quantise_cuda *from = (const rp_quantise_cuda *)args_void;
    size_t element = rp_dtype_bytes(from->in.dtype);
    quantise_args args = {from->rows, from->in, from->cols, from->codes, false};
    if (args.rows.max_rows == 0)
        return cudaSuccess;
    args.wide = (uintptr_t)args.in.data % 16 == 0 && args.in.stride * element % 16 == 0;
    uint32_t pieces = RP_CEIL_DIV(args.cols, (uint32_t)EACH);
    bool is_long = pieces > KEPT * THREADS_MAX;
    uint32_t each = args.rows.max_rows > MANY_ROWS ? KEPT : 1;
    uint32_t threads = (uint32_t)RP_ALIGN_UP(RP_CEIL_DIV(pieces, each), 32u);
    dim3 block(RP_MAX(32u, RP_MIN(threads, (uint32_t)THREADS_MAX))), grid(args.rows.max_rows);
    return is_long ? rp_cuda_start(quantise_kernel<true>, grid, block, 0, stream,
                                   !args.rows.plain_edges, args)
                   : rp_cuda_start(quantise_kernel<false>, grid, block, 0, stream,
                                   !args.rows.plain_edges, args);
}
