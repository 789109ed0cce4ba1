/* Rows as 8-bit quantized values, where what made them does not quantize: after attention, after
 * gated GEMMs, where several GEMMs read them. A block has a row; its threads keep it in registers
 * between the look for its largest value and the quantized values, eight columns at a time. */
#include "device/ops_cuda.h"

#include "device/cuda_vector.cuh"
#include "device/quantize_packed.cuh"

#define EACH        8 /* columns of a thread at a time */
#define KEPT        4 /* such pieces in registers */
#define THREADS_MAX 1024
#define MANY_ROWS   128 /* more than this: fewer threads a row, that overlap with those of others */

/* Rows of bf16 in whole pieces: few threads with few registers, so that a block fits beside one of
 * the GEMM before on its multiprocessor. It waits there, and the GEMM after may start in
 * time. */
#define PACKED_THREADS      256
#define PACKED_THREADS_MOST 512
#define PACKED_MOST         14 /* pieces of a thread */

struct quantize_args {
    rp_cuda_rows rows;
    rp_values in;
    uint32_t cols;
    rp_cuda_quantized quantized;
    uint32_t each;
    bool wide;  /* rows start at a multiple of 16 bytes */
    bool early; /* the live count is complete before the wait */
};

static __device__ __forceinline__ uint32_t live_rows(const quantize_args &args) {
    return rp_live_count(args.rows.step, args.rows.rows) * args.each;
}

/* Columns [col, col + 8) of a row, packed; zeros from `cols` on. */
static __device__ __forceinline__ uint4 load_piece(const quantize_args &args, size_t row,
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

static __device__ __forceinline__ void store_piece(const quantize_args &args, size_t row,
                                                   uint32_t col, const uint4 &piece,
                                                   const rp_quantized_row &of) {
    const rp_cuda_quantized &quantized = args.quantized;
    if (col + EACH > args.cols) {
        rp_store_quantized(quantized, row, col, args.cols, make_uint2(piece.x, piece.y), of);
        rp_store_quantized(quantized, row, col + 4, args.cols, make_uint2(piece.z, piece.w), of);
        return;
    }
    *(uint2 *)((unsigned char *)quantized.data + row * quantized.stride + col) =
        make_uint2(rp_codes4(of, piece.x, piece.y), rp_codes4(of, piece.z, piece.w));
}

/* LONG: more columns than registers hold; they are read twice. */
template <bool LONG>
static __global__ void __launch_bounds__(THREADS_MAX) quantize_kernel(quantize_args args) {
    __shared__ uint32_t shared[32];
    uint32_t row = blockIdx.x, first = EACH * threadIdx.x, step = EACH * blockDim.x, most = 0;
    uint4 kept[LONG ? 1 : KEPT];
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    if (row >= live_rows(args))
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
    rp_quantized_row quantized =
        rp_quantized_row_of(rp_block_largest(shared, most), args.quantized.dtype);
    if (LONG) {
        for (uint32_t col = first; col < args.cols; col += step)
            store_piece(args, row, col, load_piece(args, row, col), quantized);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < KEPT; i++)
            if (first + step * i < args.cols)
                store_piece(args, row, first + step * i, kept[i], quantized);
    }
    if (threadIdx.x == 0)
        args.quantized.scales[row] = quantized.scale;
}

/* Where the live count comes after the wait, so do the loads of dead rows: their memory is there,
 * too. */
template <int PIECES, rp_dtype DTYPE>
static __global__ void __launch_bounds__(PACKED_THREADS_MOST) quantize_packed(quantize_args args) {
    __shared__ uint32_t shared[32];
    uint32_t row = blockIdx.x, first = EACH * threadIdx.x, step = EACH * blockDim.x, most = 0;
    uint32_t live = row + 1;
    uint4 kept[PIECES];
    rp_stamp stamp(args.rows.stamp);
    rp_pdl_trigger();
    if (args.early) {
        live = live_rows(args);
        stamp.look();
    }
    stamp.wait();
    if (row >= live)
        return;
    if (!args.early) {
        live = live_rows(args);
        stamp.look();
    }
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)args.in.data + row * args.in.stride;
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++)
        kept[i] = first + step * i < args.cols ? __ldcg((const uint4 *)(from + first + step * i))
                                               : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++)
        most = largest_of(most, kept[i]);
    rp_quantized_row quantized = rp_quantized_row_of(rp_block_largest(shared, most), DTYPE);
    if (row >= live)
        return;
    unsigned char *to = (unsigned char *)args.quantized.data + row * args.quantized.stride;
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++)
        if (first + step * i < args.cols)
            *(uint2 *)(to + first + step * i) =
                make_uint2(rp_codes4(quantized, kept[i].x, kept[i].y),
                           rp_codes4(quantized, kept[i].z, kept[i].w));
    if (threadIdx.x == 0)
        args.quantized.scales[row] = quantized.scale;
}

typedef void (*packed_kernel)(quantize_args);

template <rp_dtype DTYPE> static packed_kernel packed_kernel_of(uint32_t each) {
    return each <= 2   ? quantize_packed<2, DTYPE>
           : each <= 4 ? quantize_packed<4, DTYPE>
           : each <= 7 ? quantize_packed<7, DTYPE>
                       : quantize_packed<PACKED_MOST, DTYPE>;
}

/* The kernel for rows of so many pieces; NULL where they are too long. */
static packed_kernel packed_kernel_for(uint32_t pieces, rp_dtype dtype, uint32_t *threads) {
    *threads = RP_MIN((uint32_t)RP_ALIGN_UP(pieces, 32u), (uint32_t)PACKED_THREADS);
    while (RP_CEIL_DIV(pieces, *threads) > PACKED_MOST)
        *threads *= 2;
    uint32_t each = RP_CEIL_DIV(pieces, *threads);
    return *threads > PACKED_THREADS_MOST ? NULL
           : dtype == RP_DTYPE_INT8       ? packed_kernel_of<RP_DTYPE_INT8>(each)
                                          : packed_kernel_of<RP_DTYPE_FP8_E4M3>(each);
}

int rp_quantize_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_quantize_cuda *from = (const rp_quantize_cuda *)args_void;
    size_t element = rp_dtype_bytes(from->in.dtype);
    quantize_args args = {
        from->rows,          from->in, from->cols, from->quantized, RP_MAX(from->each, 1u), false,
        from->behind_product};
    if (args.rows.max_rows == 0)
        return cudaSuccess;
    args.wide = (uintptr_t)args.in.data % 16 == 0 && args.in.stride * element % 16 == 0;
    uint32_t pieces = RP_CEIL_DIV(args.cols, (uint32_t)EACH);
    if (args.wide && args.in.dtype == RP_DTYPE_BF16 && args.cols % EACH == 0) {
        uint32_t threads;
        packed_kernel kernel = packed_kernel_for(pieces, args.quantized.dtype, &threads);
        if (kernel)
            return rp_cuda_start(kernel, dim3(args.rows.max_rows), dim3(threads), 0, stream,
                                 !args.rows.plain_edges, args);
    }
    bool is_long = pieces > KEPT * THREADS_MAX;
    uint32_t each = args.rows.max_rows > MANY_ROWS ? KEPT : 1;
    uint32_t threads = (uint32_t)RP_ALIGN_UP(RP_CEIL_DIV(pieces, each), 32u);
    dim3 block(RP_MAX(32u, RP_MIN(threads, (uint32_t)THREADS_MAX))), grid(args.rows.max_rows);
    return is_long ? rp_cuda_start(quantize_kernel<true>, grid, block, 0, stream,
                                   !args.rows.plain_edges, args)
                   : rp_cuda_start(quantize_kernel<false>, grid, block, 0, stream,
                                   !args.rows.plain_edges, args);
}
