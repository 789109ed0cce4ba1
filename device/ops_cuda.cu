/* The operators that work column by column: each thread computes four of them. A row is cut into
 * blocks of BLOCK * 4 columns, so that a single row is shared by many multiprocessors. */
#include "device/ops_cuda.h"

#include "device/cuda_vector.cuh"
#include "device/ops_math.cuh"
#include "device/quantize_packed.cuh"

#define BLOCK 128

/* An activation with quantized output: one row per block, in registers as bf16. */
#define ROW_THREADS 1024
#define ROW_QUADS   8   /* of a thread */
#define ROW_MANY    128 /* more rows than this: fewer threads each, so that blocks overlap */

static dim3 grid_of(uint32_t columns, uint32_t rows) {
    return dim3((columns + BLOCK * 4 - 1) / (BLOCK * 4), rows);
}

static __device__ __forceinline__ uint32_t first_column() {
    return (blockIdx.x * BLOCK + threadIdx.x) * 4;
}

static __device__ __forceinline__ bool row_is_live(const rp_cuda_rows &rows, uint32_t row) {
    return row < rp_live_count(rows.step, rows.rows);
}

/* Launches kernel<true> or kernel<false>. */
#define START(kernel, vector, grid, block, stream, args)                                           \
    ((vector)                                                                                      \
         ? rp_cuda_start(kernel<true>, grid, block, 0, stream, !(args).rows.plain_edges, args)     \
         : rp_cuda_start(kernel<false>, grid, block, 0, stream, !(args).rows.plain_edges, args))

template <bool VEC>
static __global__ void __launch_bounds__(BLOCK) embed_kernel(rp_embed_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t row = blockIdx.y, col = first_column();
    stamp.begin();
    stamp.look();
    uint32_t id = (uint32_t)args.rows.step.token_ids[row] - args.first_id; /* wraps below it */
    if (!row_is_live(args.rows, row) || col >= args.hidden)
        return;
    if (args.is_shard && id >= args.vocab) {
        rp_store4<VEC>(args.out, row, col, args.hidden, make_float4(0, 0, 0, 0));
        return;
    }
    size_t at = (size_t)(id < args.vocab ? id : 0) * args.hidden + col;
    float4 value = rp_load4<VEC>(args.table, args.dtype, at, col, args.hidden);
    if (args.scale != 1.0f) {
        value.x *= args.scale;
        value.y *= args.scale;
        value.z *= args.scale;
        value.w *= args.scale;
    }
    rp_store4<VEC>(args.out, row, col, args.hidden, value);
}

/* Rows of quantized values, one at a time: q * scale, rounded, then the model's factor. */
static __global__ void __launch_bounds__(BLOCK) embed_quantized_kernel(rp_embed_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t row = blockIdx.y, col = first_column();
    stamp.begin();
    stamp.look();
    uint32_t id = (uint32_t)args.rows.step.token_ids[row] - args.first_id;
    if (!row_is_live(args.rows, row) || col >= args.hidden)
        return;
    if (args.is_shard && id >= args.vocab) {
        rp_store4<false>(args.out, row, col, args.hidden, make_float4(0, 0, 0, 0));
        return;
    }
    id = id < args.vocab ? id : 0;
    const unsigned char *from = (const unsigned char *)args.table + (size_t)id * args.hidden + col;
    float scale = args.scales[id], x[4] = {};
    for (uint32_t i = 0; i < 4 && col + i < args.hidden; i++) {
        float code = args.dtype == RP_DTYPE_INT8 ? (float)(int8_t)from[i] : rp_fp8_value(from[i]);
        x[i] = __fmul_rn(__fmul_rn(code, scale), args.scale);
    }
    rp_store4<false>(args.out, row, col, args.hidden, make_float4(x[0], x[1], x[2], x[3]));
}

int rp_embed_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_embed_cuda *args = (const rp_embed_cuda *)args_void;
    dim3 grid = grid_of(args->hidden, args->rows.max_rows);
    if (rp_dtype_bytes(args->dtype) == 1)
        return rp_cuda_start(embed_quantized_kernel, grid, BLOCK, 0, stream,
                             !args->rows.plain_edges, *args);
    bool vector = rp_vector_ok(args->table, args->dtype, args->hidden) && rp_vector_ok(args->out);
    return START(embed_kernel, vector, grid, BLOCK, stream, *args);
}

template <bool VEC> static __global__ void __launch_bounds__(BLOCK) add_kernel(rp_add_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t row = blockIdx.y, col = first_column();
    stamp.begin();
    stamp.look();
    if (!row_is_live(args.rows, row) || col >= args.cols)
        return;
    float4 a = rp_load4<VEC>(args.a, row, col, args.cols);
    float4 b = rp_load4<VEC>(args.b, row, col, args.cols);
    rp_store4<VEC>(args.out, row, col, args.cols, rp_add4(a, b));
}

int rp_add_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_add_cuda *args = (const rp_add_cuda *)args_void;
    bool vector = rp_vector_ok(args->a) && rp_vector_ok(args->b) && rp_vector_ok(args->out);
    return START(add_kernel, vector, grid_of(args->cols, args->rows.max_rows), BLOCK, stream,
                 *args);
}

template <bool VEC>
static __global__ void __launch_bounds__(BLOCK) scale_kernel(rp_scale_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t row = blockIdx.y, col = first_column();
    stamp.begin();
    stamp.look();
    if (!row_is_live(args.rows, row) || col >= args.cols)
        return;
    float factor = args.factor;
    if (args.table) {
        uint32_t position = min(args.rows.step.positions[row], args.position_count - 1);
        factor = __fmul_rn(factor, args.table[position]);
    }
    float4 x = rp_load4<VEC>(args.in, row, col, args.cols);
    rp_store4<VEC>(args.out, row, col, args.cols,
                   make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor));
}

int rp_scale_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_scale_cuda *args = (const rp_scale_cuda *)args_void;
    bool vector = rp_vector_ok(args->in) && rp_vector_ok(args->out);
    return START(scale_kernel, vector, grid_of(args->cols, args->rows.max_rows), BLOCK, stream,
                 *args);
}

template <bool VEC>
static __global__ void __launch_bounds__(BLOCK) gather_kernel(rp_gather_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t row = blockIdx.y, col = first_column();
    stamp.begin();
    stamp.look();
    uint32_t token = args.rows.step.logit_tokens[row];
    if (!row_is_live(args.rows, row) || col >= args.cols)
        return;
    rp_store4<VEC>(args.out, row, col, args.cols, rp_load4<VEC>(args.in, token, col, args.cols));
}

int rp_gather_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_gather_cuda *args = (const rp_gather_cuda *)args_void;
    bool vector = rp_vector_ok(args->in) && rp_vector_ok(args->out);
    return START(gather_kernel, vector, grid_of(args->cols, args->rows.max_rows), BLOCK, stream,
                 *args);
}

/* Four pairs a thread. */
static __device__ __forceinline__ void rotate(float &low, float &high, float cosine, float sine) {
    float x = low, y = high;
    low = rp_rope_low(x, y, cosine, sine);
    high = rp_rope_high(x, y, cosine, sine);
}

template <bool VEC> static __global__ void __launch_bounds__(BLOCK) rope_kernel(rp_rope_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t half = args.rotary_dim / 2, threads_head = (half + 3) / 4;
    uint32_t at = blockIdx.x * BLOCK + threadIdx.x, row = blockIdx.y;
    uint32_t head = at / threads_head, i = (at % threads_head) * 4;
    stamp.begin();
    stamp.look();
    uint32_t position = args.rows.step.positions[row];
    if (!row_is_live(args.rows, row) || head >= args.heads)
        return;
    position = min(position, args.position_count - 1);
    const float *angles = args.table + ((size_t)position * half + i) * 2;
    size_t low_at = row * args.x.stride + (size_t)head * args.head_dim + i, high_at = low_at + half;
    void *x = args.x.data;
    float4 low = rp_load4<VEC>(x, args.x.dtype, low_at, i, half);
    float4 high = rp_load4<VEC>(x, args.x.dtype, high_at, i, half);
    float4 first = rp_load4<VEC>(angles, RP_DTYPE_F32, 0, 2 * i, 2 * half);
    float4 second = rp_load4<VEC>(angles, RP_DTYPE_F32, 4, 2 * i + 4, 2 * half);
    rotate(low.x, high.x, first.x, first.y);
    rotate(low.y, high.y, first.z, first.w);
    rotate(low.z, high.z, second.x, second.y);
    rotate(low.w, high.w, second.z, second.w);
    rp_store4<VEC>(x, args.x.dtype, low_at, i, half, low);
    rp_store4<VEC>(x, args.x.dtype, high_at, i, half, high);
}

int rp_rope_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_rope_cuda *args = (const rp_rope_cuda *)args_void;
    uint32_t half = args->rotary_dim / 2, threads = args->heads * ((half + 3) / 4);
    bool vector = rp_vector_ok(args->x) && half % 4 == 0 && args->head_dim % 4 == 0 &&
                  ((uintptr_t)args->table & 15u) == 0;
    if (threads == 0)
        return cudaSuccess;
    return START(rope_kernel, vector, dim3((threads + BLOCK - 1) / BLOCK, args->rows.max_rows),
                 BLOCK, stream, *args);
}

template <bool VEC, bool PARTIALS>
static __device__ __forceinline__ void activation_block(const rp_activation_cuda &args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t row = blockIdx.y, col = first_column(), cols = args.cols;
    stamp.begin();
    stamp.look();
    if (!row_is_live(args.rows, row) || col >= cols)
        return;
    float4 gate, up;
    if (PARTIALS) {
        gate = rp_partials_sum4<VEC>(args.partials, row, col, cols);
        up = rp_partials_sum4<VEC>(args.partials, row, cols + col, 2 * cols);
    } else {
        gate = rp_load4<VEC>(args.in, row, col, cols);
        up = rp_load4<VEC>(args.in, row, cols + col, 2 * cols);
    }
    rp_store4<VEC>(args.out, row, col, cols, rp_activate4(args.fn, gate, up));
}

template <bool VEC>
static __global__ void __launch_bounds__(BLOCK) activation_kernel(rp_activation_cuda args) {
    activation_block<VEC, false>(args);
}

template <bool VEC>
static __global__ void __launch_bounds__(BLOCK)
    activation_partials_kernel(rp_activation_cuda args) {
    activation_block<VEC, true>(args);
}

/* Vector loads and no partials. */
static __global__ void __launch_bounds__(ROW_THREADS)
    activation_quantize_kernel(rp_activation_cuda args) {
    __shared__ uint32_t shared[32];
    uint32_t row = blockIdx.x, first = 4 * threadIdx.x, step = 4 * blockDim.x, cols = args.cols;
    uint2 packed[ROW_QUADS];
    uint32_t most = 0;
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    if (!row_is_live(args.rows, row))
        return;
#pragma unroll
    for (uint32_t i = 0; i < ROW_QUADS; i++) {
        uint32_t col = first + step * i;
        if (col >= cols)
            continue;
        float4 out = rp_activate4(args.fn, rp_load4<true>(args.in, row, col, cols),
                                  rp_load4<true>(args.in, row, cols + col, 2 * cols));
        if (args.out.data)
            rp_store4<true>(args.out, row, col, cols, out);
        packed[i] = rp_pack_bf16(out);
        most = rp_largest(rp_largest(most, packed[i].x), packed[i].y);
    }
    rp_quantized_row quantized =
        rp_quantized_row_of(rp_block_largest(shared, most), args.quantized.dtype);
#pragma unroll
    for (uint32_t i = 0; i < ROW_QUADS; i++)
        if (first + step * i < cols)
            rp_store_quantized(args.quantized, row, first + step * i, cols, packed[i], quantized);
    if (threadIdx.x == 0)
        args.quantized.scales[row] = quantized.scale;
}

/* Columns [col, col + 4) of any row, computed as often as they are requested; zeros past its
 * end. */
static __device__ __forceinline__ float4 activation_again(const rp_activation_cuda &args,
                                                          uint32_t row, uint32_t col) {
    uint32_t cols = args.cols;
    float4 gate, up;
    if (args.partials.count) {
        gate = rp_partials_sum4<false, 2>(args.partials, row, col, cols);
        up = rp_partials_sum4<false, 2>(args.partials, row, cols + col, 2 * cols);
    } else {
        gate = rp_load4<false>(args.in, row, col, cols);
        up = rp_load4<false>(args.in, row, cols + col, 2 * cols);
    }
    return rp_activate4(args.fn, gate, up); /* of zeros, past the end: 0 */
}

/* Anything else: the values are computed twice. */
static __global__ void __launch_bounds__(ROW_THREADS)
    activation_quantize_long_kernel(rp_activation_cuda args) {
    __shared__ uint32_t shared[32];
    uint32_t row = blockIdx.x, most = 0;
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    if (!row_is_live(args.rows, row))
        return;
    for (uint32_t col = 4 * threadIdx.x; col < args.cols; col += 4 * blockDim.x) {
        uint2 packed = rp_pack_bf16(activation_again(args, row, col));
        most = rp_largest(rp_largest(most, packed.x), packed.y);
    }
    rp_quantized_row quantized =
        rp_quantized_row_of(rp_block_largest(shared, most), args.quantized.dtype);
    for (uint32_t col = 4 * threadIdx.x; col < args.cols; col += 4 * blockDim.x) {
        float4 out = activation_again(args, row, col);
        rp_store_quantized(args.quantized, row, col, args.cols, rp_pack_bf16(out), quantized);
        if (args.out.data)
            rp_store4<false>(args.out, row, col, args.cols, out);
    }
    if (threadIdx.x == 0)
        args.quantized.scales[row] = quantized.scale;
}

static int start_activation_quantized(const rp_activation_cuda &args, bool vector,
                                      cudaStream_t stream) {
    uint32_t quads = (args.cols + 3) / 4;
    uint32_t each = args.rows.max_rows > ROW_MANY ? ROW_QUADS - 1 : 1;
    uint32_t threads = (uint32_t)RP_ALIGN_UP(RP_MAX(1u, (quads + each - 1) / each), 32u);
    dim3 grid(args.rows.max_rows), block(RP_MIN(threads, (uint32_t)ROW_THREADS));
    bool fits = quads <= ROW_QUADS * ROW_THREADS;
    return rp_cuda_start(vector && fits && args.partials.count == 0
                             ? activation_quantize_kernel
                             : activation_quantize_long_kernel,
                         grid, block, 0, stream, !args.rows.plain_edges, args);
}

int rp_activation_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_activation_cuda *args = (const rp_activation_cuda *)args_void;
    dim3 grid = grid_of(args->cols, args->rows.max_rows);
    bool vector = args->cols % 4 == 0 && rp_vector_ok(args->out);
    if (args->quantized.data)
        return start_activation_quantized(*args, vector && rp_vector_ok(args->in), stream);
    if (args->partials.count)
        return START(activation_partials_kernel, vector && rp_vector_ok(args->partials), grid,
                     BLOCK, stream, *args);
    return START(activation_kernel, vector && rp_vector_ok(args->in), grid, BLOCK, stream, *args);
}

template <bool VEC>
static __global__ void __launch_bounds__(BLOCK) soft_cap_kernel(rp_soft_cap_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    uint32_t row = blockIdx.y, col = first_column();
    stamp.begin();
    stamp.look();
    if (!row_is_live(args.rows, row) || col >= args.cols)
        return;
    float4 x = rp_load4<VEC>(args.in, row, col, args.cols);
    x.x = args.cap * tanhf(__fdiv_rn(x.x, args.cap));
    x.y = args.cap * tanhf(__fdiv_rn(x.y, args.cap));
    x.z = args.cap * tanhf(__fdiv_rn(x.z, args.cap));
    x.w = args.cap * tanhf(__fdiv_rn(x.w, args.cap));
    rp_store4<VEC>(args.out, row, col, args.cols, x);
}

int rp_soft_cap_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_soft_cap_cuda *args = (const rp_soft_cap_cuda *)args_void;
    bool vector = rp_vector_ok(args->in) && rp_vector_ok(args->out);
    return START(soft_cap_kernel, vector, grid_of(args->cols, args->rows.max_rows), BLOCK, stream,
                 *args);
}
