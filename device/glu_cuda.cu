/* GLU: an activation of one tensor times another, alone, or with what lies around it: the other
 * tensor's norm over groups of columns, and quantized rows as output.
 *
 * With either a block has a row. A warp takes units of a row: a group of the norm, or 128 columns;
 * a lane has four columns of each, in registers from the first load to the last store. A norm's sum
 * is that of norm_cuda.cu, where a warp is the team of such a group. */
#include "device/ops_cuda.h"

#include "device/cuda_vector.cuh"
#include "device/ops_math.cuh"
#include "device/quantize_packed.cuh"

#define BLOCK       128 /* a thread has four columns of the row */
#define ROW_THREADS 1024
#define UNIT        128u /* columns of a warp */
#define ROW_UNITS   4u   /* of a warp, at most */
#define ROW_MANY    128  /* more rows than this: fewer threads each, so that blocks overlap */

static __device__ __forceinline__ bool row_is_live(const rp_cuda_rows &rows, uint32_t row) {
    return row < rp_live_count(rows.step, rows.rows);
}

static __device__ __forceinline__ float4 glu4(rp_activation fn, float4 gate, float4 up) {
    if (fn != RP_ACTIVATION_SIGMOID)
        return rp_activate4(fn, gate, up);
    return make_float4(
        __fdividef(up.x, 1.0f + expf(-gate.x)), __fdividef(up.y, 1.0f + expf(-gate.y)),
        __fdividef(up.z, 1.0f + expf(-gate.z)), __fdividef(up.w, 1.0f + expf(-gate.w)));
}

template <bool VEC> static __global__ void __launch_bounds__(BLOCK) glu_kernel(rp_glu_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t row = blockIdx.y, col = (blockIdx.x * BLOCK + threadIdx.x) * 4, cols = args.cols;
    stamp.begin();
    stamp.look();
    if (!row_is_live(args.rows, row) || col >= cols)
        return;
    float4 gate = rp_load4<VEC>(args.gate, row, col, cols);
    float4 up = rp_load4<VEC>(args.up, row, col, cols);
    rp_store4<VEC>(args.out, row, col, cols, glu4(args.fn, gate, up));
}

/* A lane's columns of a row: `first` of unit 0, `step` further in each of the next. */
struct lane_columns {
    uint32_t first, step, end; /* end: no column from there on */
};

static __device__ __forceinline__ lane_columns columns_of(const rp_glu_cuda &args, uint32_t unit) {
    uint32_t own = threadIdx.x % 32 * 4;
    return {threadIdx.x / 32 * unit + own, blockDim.x / 32 * unit, own < unit ? args.cols : 0};
}

/* Vector accesses. UNITS: of a warp. */
template <uint32_t UNITS, bool NORM>
static __global__ void __launch_bounds__(ROW_THREADS) glu_row_kernel(rp_glu_cuda args) {
    __shared__ uint32_t shared[32];
    uint32_t row = blockIdx.x, most = 0;
    float4 gate[UNITS], up[UNITS], weight = make_float4(0, 0, 0, 0);
    uint2 packed[UNITS];
    rp_stamp stamp(args.rows.stamp);
    rp_pdl_trigger();
    const lane_columns at = columns_of(args, NORM ? args.norm.group : UNIT);
    if (NORM && at.end)
        weight = *(const float4 *)(args.norm.weight + threadIdx.x % 32 * 4);
    stamp.wait();
    stamp.look();
    if (!row_is_live(args.rows, row))
        return;
#pragma unroll
    for (uint32_t i = 0; i < UNITS; i++) {
        uint32_t col = at.first + at.step * i;
        gate[i] = up[i] = make_float4(0, 0, 0, 0);
        if (col >= at.end)
            continue;
        gate[i] = rp_load4<true>(args.gate, row, col, args.cols);
        up[i] = rp_load4<true>(args.up, row, col, args.cols);
    }
#pragma unroll
    for (uint32_t i = 0; i < UNITS; i++) {
        if (NORM) {
            float sum = rp_warp_sum(rp_add_squares(0.0f, up[i]));
            float inverse = rp_inverse_root(sum, args.norm.group, args.norm.eps);
            up[i] = rp_norm_values(up[i], inverse, weight, args.norm.weight_offset);
        }
        float4 out = glu4(args.fn, gate[i], up[i]);
        packed[i] = rp_pack_bf16(out);
        if (at.first + at.step * i >= at.end)
            continue;
        if (args.out.data)
            rp_store4<true>(args.out, row, at.first + at.step * i, args.cols, out);
        most = rp_largest(rp_largest(most, packed[i].x), packed[i].y);
    }
    if (!args.quantized.data)
        return;
    rp_quantized_row quantized =
        rp_quantized_row_of(rp_block_largest(shared, most), args.quantized.dtype);
#pragma unroll
    for (uint32_t i = 0; i < UNITS; i++)
        if (at.first + at.step * i < at.end)
            rp_store_quantized(args.quantized, row, at.first + at.step * i, args.cols, packed[i],
                               quantized);
    if (threadIdx.x == 0)
        args.quantized.scales[row] = quantized.scale;
}

/* Quantized rows of any size: the values are computed twice. */
static __global__ void __launch_bounds__(ROW_THREADS) glu_quantize_long_kernel(rp_glu_cuda args) {
    __shared__ uint32_t shared[32];
    uint32_t row = blockIdx.x, most = 0, cols = args.cols;
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    if (!row_is_live(args.rows, row))
        return;
    for (uint32_t col = 4 * threadIdx.x; col < cols; col += 4 * blockDim.x) {
        uint2 packed = rp_pack_bf16(glu4(args.fn, rp_load4<false>(args.gate, row, col, cols),
                                         rp_load4<false>(args.up, row, col, cols)));
        most = rp_largest(rp_largest(most, packed.x), packed.y); /* of zeros, past the end: 0 */
    }
    rp_quantized_row quantized =
        rp_quantized_row_of(rp_block_largest(shared, most), args.quantized.dtype);
    for (uint32_t col = 4 * threadIdx.x; col < cols; col += 4 * blockDim.x) {
        float4 out = glu4(args.fn, rp_load4<false>(args.gate, row, col, cols),
                          rp_load4<false>(args.up, row, col, cols));
        rp_store_quantized(args.quantized, row, col, cols, rp_pack_bf16(out), quantized);
        if (args.out.data)
            rp_store4<false>(args.out, row, col, cols, out);
    }
    if (threadIdx.x == 0)
        args.quantized.scales[row] = quantized.scale;
}

template <bool NORM>
static int start_row(const rp_glu_cuda &args, uint32_t units, cudaStream_t stream) {
    uint32_t each = args.rows.max_rows > ROW_MANY ? ROW_UNITS : 1, warps = ROW_THREADS / 32;
    each = RP_MAX(each, RP_CEIL_DIV(units, warps));
    dim3 grid(args.rows.max_rows), block(RP_CEIL_DIV(units, each) * 32);
    return rp_cuda_start(each == 1   ? glu_row_kernel<1, NORM>
                         : each == 2 ? glu_row_kernel<2, NORM>
                                     : glu_row_kernel<ROW_UNITS, NORM>,
                         grid, block, 0, stream, !args.rows.plain_edges, args);
}

int rp_glu_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_glu_cuda &args = *(const rp_glu_cuda *)args_void;
    bool vector = args.cols % 4 == 0 && rp_vector_ok(args.gate) && rp_vector_ok(args.up) &&
                  rp_vector_ok(args.out);
    uint32_t units = RP_CEIL_DIV(args.cols, UNIT);
    if (args.norm.group)
        return vector && rp_glu_cuda_norms(args.cols, args.norm.group)
                   ? start_row<true>(args, args.cols / args.norm.group, stream)
                   : cudaErrorInvalidValue;
    if (args.quantized.data && vector && units <= ROW_UNITS * ROW_THREADS / 32)
        return start_row<false>(args, units, stream);
    bool dependent = !args.rows.plain_edges;
    if (args.quantized.data)
        return rp_cuda_start(glu_quantize_long_kernel, dim3(args.rows.max_rows), dim3(ROW_THREADS),
                             0, stream, dependent, args);
    dim3 grid(RP_CEIL_DIV(args.cols, BLOCK * 4u), args.rows.max_rows);
    return rp_cuda_start(vector ? glu_kernel<true> : glu_kernel<false>, grid, dim3(BLOCK), 0,
                         stream, dependent, args);
}
