/* GEMMs of experts of any type, size, alignment and scales, on any GPU.
 *
 * A warp has an output of a position: lane l multiplies the columns l + 32 j, j rising, in one
 * chain of f32 fma from 0, and lanes are added by halves (l and l ^ 16, l ^ 8, ...); INT8 by INT8
 * is exact in int32. Then the scale of the output, or of row and output, is multiplied, and the
 * bias is added. A scale per block is multiplied with each weight. */
#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "device/quantize_packed.cuh"
#include "quant/experts/matmul_experts_internal_cuda.h"
#include "quant/tiles/matmul_tiles_decode.cuh"

namespace {

constexpr uint32_t WARPS = 8;
using mxfp4 = tile_format<4, 32, RP_TILE_FP4>;

struct generic_args {
    rp_cuda_rows rows;
    const int32_t *order;
    const unsigned char *weight, *in;
    const float *weight_scales, *in_scales, *bias;
    rp_values out;
    size_t in_stride;
    uint32_t experts, used, each, cols; /* each: rows of an expert's matrix */
    uint32_t in_divisor, outputs;
    uint32_t scale_cols; /* of blocks; 0: a scale per output, or none */
    rp_dtype dtype, in_dtype;
    rp_activation fn;
    bool gated, by_choice;
};

__device__ __forceinline__ float value_at(const unsigned char *from, rp_dtype dtype, size_t at) {
    switch (dtype) {
    case RP_DTYPE_INT8:
        return (float)((const int8_t *)from)[at];
    case RP_DTYPE_FP8_E4M3:
        return rp_fp8_value(from[at]);
    default:
        return rp_load(from, dtype, at);
    }
}

/* A weight of tiles of MXFP4 (quant/tiles.h); the product is exact. */
__device__ float mxfp4_value(const unsigned char *tiles, uint32_t cols, size_t row, uint32_t col) {
    uint32_t k = col % RP_TILE_COLS, in = row % RP_TILE_ROWS, step = k / 16;
    tiles +=
        (row / RP_TILE_ROWS * RP_CEIL_DIV(cols, RP_TILE_COLS) + col / RP_TILE_COLS) * mxfp4::BYTES;
    uint2 words = *(const uint2 *)(tiles + mxfp4::SCALE_BYTES + step / 4 * 512 + in / 8 * 256 +
                                   (in % 8 * 4 + k % 8 / 2) * 8);
    uint32_t codes = fp4_register(words.x, words.y, 2 * (step % 4) + k % 16 / 8);
    uint32_t code = codes >> 16 * (k % 2) << 16; /* the bits of value * 2^-126 */
    return rp_load(tiles, RP_DTYPE_BF16, in * mxfp4::GROUPS + k / 32) *
           (__uint_as_float(code) * 0x1p126f);
}

/* The expert with the position: the last one that begins at or before it and is not empty. */
__device__ uint32_t expert_at(const generic_args &args, uint32_t position) {
    uint32_t low = 0, high = args.experts;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if ((uint32_t)args.order[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

__device__ float dot(const generic_args &args, size_t row, size_t input) {
    const unsigned char *in = args.in;
    size_t weights = row * args.cols, inputs = input * args.in_stride;
    const float *blocks =
        args.scale_cols ? args.weight_scales + row / 128 * args.scale_cols : nullptr;
    float sum = 0.0f;
    int32_t exact = 0;
    bool integers = args.dtype == RP_DTYPE_INT8 && args.in_dtype == RP_DTYPE_INT8;
    for (uint32_t k = threadIdx.x % 32; k < args.cols; k += 32) {
        if (integers) {
            exact += (int32_t)((const int8_t *)args.weight)[weights + k] *
                     (int32_t)((const int8_t *)in)[inputs + k];
            continue;
        }
        float w = args.dtype == RP_DTYPE_BLOCKS ? mxfp4_value(args.weight, args.cols, row, k)
                                                : value_at(args.weight, args.dtype, weights + k);
        if (blocks)
            w = __fmul_rn(w, blocks[k / 128]);
        sum = __fmaf_rn(value_at(in, args.in_dtype, inputs + k), w, sum);
    }
    sum = integers ? __int2float_rn(__reduce_add_sync(0xFFFFFFFFu, exact)) : rp_warp_sum(sum);
    float scale = args.weight_scales && !blocks ? args.weight_scales[row] : 1.0f;
    sum = __fmul_rn(sum, args.in_scales ? __fmul_rn(args.in_scales[input], scale) : scale);
    return args.bias ? __fadd_rn(sum, args.bias[row]) : sum;
}

__global__ void __launch_bounds__(WARPS * 32) generic_kernel(generic_args args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t position = blockIdx.y, col = blockIdx.x * WARPS + threadIdx.x / 32;
    stamp.wait();
    rp_pdl_trigger(); /* not before: matmul_cuda.h */
    stamp.look();
    for (; position < (uint32_t)args.order[args.experts]; position += gridDim.y) {
        uint32_t expert = expert_at(args, position);
        uint32_t choice = (uint32_t)args.order[args.experts + 1 + position];
        size_t input = args.in_divisor ? choice / args.in_divisor : position;
        size_t out = args.by_choice ? choice : position;
        if (col >= args.outputs)
            continue;
        size_t row = (size_t)expert * args.each + col;
        float value = dot(args, row, input);
        if (args.gated)
            value = rp_gate(args.fn, value, dot(args, row + args.outputs, input));
        if (threadIdx.x % 32 == 0)
            rp_store(args.out.data, args.out.dtype, out * args.out.stride + col, value);
    }
}

} // namespace

int rp_matmul_experts_generic_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_experts_generic *from = (const rp_matmul_experts_generic *)args_void;
    const rp_matmul_experts_cuda &op = from->op;
    const rp_matrix &w = from->weight;
    generic_args args = {};
    args.rows = op.rows;
    args.order = op.order;
    args.weight = (const unsigned char *)w.data;
    args.in = (const unsigned char *)op.in;
    args.weight_scales = w.scales;
    args.in_scales = op.in_scales;
    args.bias = op.bias;
    args.out = op.out;
    args.in_stride = op.in_stride;
    args.experts = op.experts.count;
    args.used = op.experts.used;
    args.each = w.rows / op.experts.count;
    args.cols = w.cols;
    args.in_divisor = op.in_divisor;
    args.outputs = op.gated ? args.each / 2 : args.each;
    args.scale_cols = w.scale_kind == RP_SCALE_BLOCK_128 ? RP_CEIL_DIV(w.cols, 128u) : 0;
    args.dtype = w.dtype;
    bool plain = w.dtype == RP_DTYPE_F32 || w.dtype == RP_DTYPE_BF16;
    args.in_dtype = op.in_scales || plain ? w.dtype : RP_DTYPE_BF16;
    args.fn = op.fn;
    args.gated = op.gated;
    args.by_choice = op.by_choice;
    dim3 grid(RP_CEIL_DIV(args.outputs, WARPS), RP_MIN(op.rows.max_rows, 65535u));
    return rp_cuda_start(generic_kernel, grid, dim3(WARPS * 32), 0, stream, !op.rows.plain_edges,
                         args);
}
