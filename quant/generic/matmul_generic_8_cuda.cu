/* matmul_generic_8_cuda.cu - GEMMs with 8-bit weights, of any size, stride and alignment.
 *
 * A warp has two outputs of up to eight rows. Lane l reads columns [16 l + 512 j, + 16) of them, j
 * rising from 0, in one chain sum = fma(x, quantized value, sum) per output (INT8 by INT8: exact,
 * in int32); columns past the end count as zero. Lanes are reduced by a butterfly: l and l ^ 16, l
 * ^ 8, ... The columns of a chain depend only on the matrix:
 *
 *   W8A16     all of K; the sum * scales[n] (other bits than tensor cores give: a matrix has one
 *   family)
 *   W8A8      a segment of K (matmul_cuda.h); the sum * (in_scales[row] * scales[n]), segments
 *   added up in rising order
 *   blocks    sums of 16 columns are scaled as they are added to the chain: sum = fma(sixteen,
 *   scale, sum)
 *
 * So any number of rows gives equal bits, and INT8 W8A8 those of the other kernels. */
#include "device/cuda_kernel.cuh"
#include "quant/matmul_internal_cuda.h"

#include <type_traits>

namespace {

constexpr uint32_t warps = 4, warp_cols = 2, chunk = 16, stride_k = 32 * chunk;

struct generic_8_args {
    rp_cuda_rows rows;
    const unsigned char *weight, *in;
    const float *scales, *in_scales, *bias;
    rp_values out;
    size_t in_stride;
    uint32_t n, k, segment; /* segment: columns; k where there is one */
    uint32_t scale_cols;    /* of blocks; 0: a scale per channel */
    bool accumulate;
    bool wide; /* chunks of weights and inputs start at a multiple of 16 bytes */
};

/* E4M3 values are the sign, and 7 bits that placed at the top of a float's exponent and mantissa
 * give the value times 2^-120. */
__device__ __forceinline__ float fp8_to_float(uint32_t word, int byte) {
    uint32_t top = word << (24 - 8 * byte);
    return __fmul_rn(__uint_as_float((top & 0x80000000u) | (top >> 4 & 0x07F00000u)), 0x1p120f);
}

/* 2^23 + 128 + quantized value has the quantized value's bits, its sign turned, at the end. */
__device__ __forceinline__ float int8_to_float(uint32_t turned, int byte) {
    uint32_t bits = 0x4B000000u | (turned >> 8 * byte & 0xFFu);
    return __fsub_rn(__uint_as_float(bits), 0x1p23f + 128.0f);
}

struct sixteen_quantized {
    uint4 words;
};
struct sixteen_halves {
    uint4 words[2];
};

/* Sixteen elements from column `at`; from `end` on they are zeros, whose bits are 0 in every
 * type. */
template <typename BITS>
__device__ __forceinline__ BITS load_sixteen(const unsigned char *row, uint32_t at, uint32_t end,
                                             bool wide) {
    constexpr uint32_t element = sizeof(BITS) / chunk;
    BITS to;
    const unsigned char *from = row + (size_t)at * element;
    if (wide && at + chunk <= end) {
#pragma unroll
        for (uint32_t i = 0; i < element; i++)
            ((uint4 *)&to)[i] = ((const uint4 *)from)[i];
        return to;
    }
    uint32_t bytes[4 * element];
#pragma unroll
    for (uint32_t i = 0; i < 4 * element; i++) {
        bytes[i] = 0;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (at + (4 * i + j) / element < end)
                bytes[i] |= (uint32_t)from[4 * i + j] << 8 * j;
    }
#pragma unroll
    for (uint32_t i = 0; i < element; i++)
        ((uint4 *)&to)[i] =
            make_uint4(bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]);
    return to;
}

template <bool INT8>
__device__ __forceinline__ void to_floats(const sixteen_quantized &from, float (&to)[chunk]) {
    const uint32_t words[4] = {from.words.x, from.words.y, from.words.z, from.words.w};
#pragma unroll
    for (int i = 0; i < (int)chunk; i++)
        to[i] = INT8 ? int8_to_float(words[i / 4] ^ 0x80808080u, i % 4)
                     : fp8_to_float(words[i / 4], i % 4);
}

template <bool INT8>
__device__ __forceinline__ void to_floats(const sixteen_halves &from, float (&to)[chunk]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 &raw = from.words[half];
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[8 * half + 2 * i] = __uint_as_float(words[i] << 16);
            to[8 * half + 2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
        }
    }
}

__device__ __forceinline__ int32_t dot(const uint4 &a, const uint4 &b, int32_t sum) {
    sum = __dp4a((int)a.x, (int)b.x, sum);
    sum = __dp4a((int)a.y, (int)b.y, sum);
    sum = __dp4a((int)a.z, (int)b.z, sum);
    return __dp4a((int)a.w, (int)b.w, sum);
}

/* INT8: weight type. WIDE_IN: rows are bf16 (W8A16), else quantized. */
template <bool INT8, bool WIDE_IN> struct kind {
    static constexpr bool exact = INT8 && !WIDE_IN;
    using in_bits = typename std::conditional<WIDE_IN, sixteen_halves, sixteen_quantized>::type;
    using sum = typename std::conditional<exact, int32_t, float>::type;
};

/* Adds this lane's share of columns [begin, end) to sums. */
template <bool INT8, bool WIDE_IN, int ROWS>
__device__ __forceinline__ void
add_chunk(const generic_8_args &args, const unsigned char *const (&weight)[warp_cols],
          const unsigned char *const (&in)[ROWS], uint32_t col0, uint32_t at, uint32_t end,
          bool wide, typename kind<INT8, WIDE_IN>::sum (&sums)[ROWS][warp_cols]) {
    using in_bits = typename kind<INT8, WIDE_IN>::in_bits;
    sixteen_quantized quantized[warp_cols];
#pragma unroll
    for (uint32_t c = 0; c < warp_cols; c++)
        quantized[c] = load_sixteen<sixteen_quantized>(weight[c], at, end, wide);
    if constexpr (kind<INT8, WIDE_IN>::exact) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            in_bits x = load_sixteen<in_bits>(in[r], at, end, wide);
#pragma unroll
            for (uint32_t c = 0; c < warp_cols; c++)
                sums[r][c] = dot(x.words, quantized[c].words, sums[r][c]);
        }
    } else {
        float w[warp_cols][chunk], scale[warp_cols];
#pragma unroll
        for (uint32_t c = 0; c < warp_cols; c++) {
            to_floats<INT8>(quantized[c], w[c]);
            uint32_t col = min(col0 + c, args.n - 1);
            scale[c] = args.scale_cols
                           ? args.scales[(size_t)(col / 128) * args.scale_cols + at / 128]
                           : 0.0f;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float x[chunk];
            to_floats<INT8>(load_sixteen<in_bits>(in[r], at, end, wide), x);
#pragma unroll
            for (uint32_t c = 0; c < warp_cols; c++) {
                float sum = args.scale_cols ? 0.0f : sums[r][c];
#pragma unroll
                for (uint32_t i = 0; i < chunk; i++)
                    sum = __fmaf_rn(x[i], w[c][i], sum);
                sums[r][c] = args.scale_cols ? __fmaf_rn(sum, scale[c], sums[r][c]) : sum;
            }
        }
    }
}

template <typename T> __device__ __forceinline__ T warp_total(T value) {
    for (int lane = 16; lane > 0; lane /= 2)
        value += __shfl_xor_sync(0xFFFFFFFFu, value, lane);
    return value;
}

template <bool INT8, bool WIDE_IN, int ROWS>
__global__ void __launch_bounds__(warps * 32, 3) generic_8_kernel(generic_8_args args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t lane = threadIdx.x % 32, row0 = blockIdx.y * ROWS;
    uint32_t col0 = (blockIdx.x * warps + threadIdx.x / 32) * warp_cols;
    stamp.wait();
    rp_pdl_trigger();
    stamp.look();
    uint32_t live = min(rp_live_count(args.rows.step, args.rows.rows), args.rows.max_rows);
    if (row0 >= live || col0 >= args.n)
        return;
    const unsigned char *weight[warp_cols], *in[ROWS];
    float total[ROWS][warp_cols];
#pragma unroll
    for (uint32_t c = 0; c < warp_cols; c++) /* past the last: repeats the last */
        weight[c] = args.weight + (size_t)min(col0 + c, args.n - 1) * args.k;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        in[r] = args.in + (size_t)min(row0 + r, live - 1) * args.in_stride * (WIDE_IN ? 2 : 1);
    for (uint32_t begin = 0; begin < args.k; begin += args.segment) {
        uint32_t end = args.k - begin > args.segment ? begin + args.segment : args.k;
        uint32_t at = begin + chunk * lane;
        typename kind<INT8, WIDE_IN>::sum sums[ROWS][warp_cols] = {};
        if (args.wide) {
#pragma unroll(ROWS == 1 ? 4 : 1)
            for (; at + chunk <= end; at += stride_k)
                add_chunk<INT8, WIDE_IN, ROWS>(args, weight, in, col0, at, UINT32_MAX, true, sums);
        }
        for (; at < end; at += stride_k)
            add_chunk<INT8, WIDE_IN, ROWS>(args, weight, in, col0, at, end, false, sums);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (uint32_t c = 0; c < warp_cols; c++) {
                float scale = args.scale_cols ? 1.0f : args.scales[min(col0 + c, args.n - 1)];
                if (!WIDE_IN)
                    scale = __fmul_rn(args.in_scales[min(row0 + r, live - 1)], scale);
                float part = __fmul_rn((float)warp_total(sums[r][c]), scale);
                total[r][c] = begin ? __fadd_rn(total[r][c], part) : part;
            }
    }
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS * (int)warp_cols; i++)
        mine = lane == (uint32_t)i ? total[i / warp_cols][i % warp_cols] : mine;
    uint32_t row = row0 + lane / warp_cols, col = col0 + lane % warp_cols;
    if (lane >= ROWS * warp_cols || row >= live || col >= args.n)
        return;
    size_t at = row * args.out.stride + col;
    if (args.bias)
        mine += args.bias[col];
    if (args.accumulate)
        mine += rp_load(args.out.data, args.out.dtype, at);
    rp_store(args.out.data, args.out.dtype, at, mine);
}

template <bool INT8, bool WIDE_IN>
int start(const generic_8_args &args, bool dependent, cudaStream_t stream) {
    uint32_t rows = args.rows.max_rows, each = rows == 1 ? 1 : rows <= 4 ? 4 : 8;
    dim3 grid(RP_CEIL_DIV(args.n, warps * warp_cols), RP_CEIL_DIV(rows, each)), block(warps * 32);
    return rp_cuda_start(each == 1   ? generic_8_kernel<INT8, WIDE_IN, 1>
                         : each == 4 ? generic_8_kernel<INT8, WIDE_IN, 4>
                                     : generic_8_kernel<INT8, WIDE_IN, 8>,
                         grid, block, 0, stream, dependent, args);
}

} // namespace

int rp_matmul_generic_8_cuda_run(const rp_matmul_cuda *op, cudaStream_t stream) {
    const rp_matrix *weight = op->weight;
    bool quantized = weight->input == RP_INPUT_QUANTIZED;
    generic_8_args args = {};
    args.rows = op->rows;
    args.weight = (const unsigned char *)weight->data;
    args.in = (const unsigned char *)op->in;
    args.scales = weight->scales;
    args.in_scales = op->in_scales;
    args.bias = op->bias;
    args.out = op->out;
    args.in_stride = op->in_stride;
    args.n = weight->rows;
    args.k = weight->cols;
    args.segment =
        quantized
            ? 2 * rp_matmul_cuda_segment(weight->rows, RP_CEIL_DIV(weight->cols, 2u), op->gate_up)
            : weight->cols;
    args.scale_cols =
        weight->scale_kind == RP_SCALE_BLOCK_128 ? RP_CEIL_DIV(weight->cols, 128u) : 0;
    args.accumulate = op->accumulate;
    args.wide = (uintptr_t)weight->data % 16 == 0 && weight->cols % 16 == 0 &&
                (uintptr_t)op->in % 16 == 0 && op->in_stride % (quantized ? 16 : 8) == 0;
    bool dependent = op->limits.dependent_launch;
    if (weight->dtype == RP_DTYPE_INT8)
        return quantized ? start<true, false>(args, dependent, stream)
                         : start<true, true>(args, dependent, stream);
    return quantized ? start<false, false>(args, dependent, stream)
                     : start<false, true>(args, dependent, stream);
}
