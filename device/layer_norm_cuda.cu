/* LayerNorm: a block computes one group of one row. Thread t has columns 4 * (t + threads * i);
 * the number of threads, and with it the order of both sums, depends on the group's size alone,
 * so a row has the same bits in every batch. The variance is summed from differences to the
 * mean, in a second pass over columns that are in the cache by then. */
#include "device/ops_cuda.h"

#include "device/cuda_vector.cuh"

#define THREADS_MAX 512
#define WARPS_MAX   (THREADS_MAX / 32)

/* The sum over the block's threads, in all of them. */
static __device__ __forceinline__ float block_sum(float *shared, float value) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    value = rp_warp_sum(value);
    __syncthreads(); /* the sum before this one has been read */
    if (lane == 0)
        shared[warp] = value;
    __syncthreads();
    return rp_warp_sum(lane < warps ? shared[lane] : 0.0f);
}

template <bool VEC>
static __global__ void __launch_bounds__(THREADS_MAX) layer_norm_kernel(rp_layer_norm_cuda args) {
    __shared__ float shared[WARPS_MAX];
    uint32_t row = blockIdx.x, first = blockIdx.y * args.group, end = first + args.group;
    uint32_t step = 4 * blockDim.x;
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    if (row >= rp_live_count(args.rows.step, args.rows.rows))
        return;
    float sum = 0.0f, squares = 0.0f;
    for (uint32_t col = first + 4 * threadIdx.x; col < end; col += step) {
        float4 x = rp_load4<VEC>(args.in, row, col, end);
        sum += (x.x + x.y) + (x.z + x.w);
    }
    float mean = __fdiv_rn(block_sum(shared, sum), (float)args.group);
    for (uint32_t col = first + 4 * threadIdx.x; col < end; col += step) {
        float4 x = rp_load4<VEC>(args.in, row, col, end);
        float a = x.x - mean, b = col + 1 < end ? x.y - mean : 0.0f;
        float c = col + 2 < end ? x.z - mean : 0.0f, d = col + 3 < end ? x.w - mean : 0.0f;
        squares += (a * a + b * b) + (c * c + d * d);
    }
    float variance = __fdiv_rn(block_sum(shared, squares), (float)args.group);
    float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, args.eps)));
    for (uint32_t col = first + 4 * threadIdx.x; col < end; col += step) {
        float4 x = rp_load4<VEC>(args.in, row, col, end);
        float4 weight = rp_load4<VEC>(args.weight, RP_DTYPE_F32, col, col, end);
        float4 bias = args.bias ? rp_load4<VEC>(args.bias, RP_DTYPE_F32, col, col, end)
                                : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        x = make_float4(__fadd_rn(__fmul_rn(__fmul_rn(x.x - mean, inverse), weight.x), bias.x),
                        __fadd_rn(__fmul_rn(__fmul_rn(x.y - mean, inverse), weight.y), bias.y),
                        __fadd_rn(__fmul_rn(__fmul_rn(x.z - mean, inverse), weight.z), bias.z),
                        __fadd_rn(__fmul_rn(__fmul_rn(x.w - mean, inverse), weight.w), bias.w));
        rp_store4<VEC>(args.out, row, col, end, x);
    }
}

int rp_layer_norm_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_layer_norm_cuda *args = (const rp_layer_norm_cuda *)args_void;
    uint32_t quads = (args->group + 3) / 4;
    uint32_t threads = quads >= THREADS_MAX ? THREADS_MAX : (quads + 31) / 32 * 32;
    dim3 grid(args->rows.max_rows, args->cols / args->group);
    bool vector = rp_vector_ok(args->in) && rp_vector_ok(args->out) && args->group % 4 == 0 &&
                  ((uintptr_t)args->weight & 15u) == 0 && ((uintptr_t)args->bias & 15u) == 0;
    return vector ? rp_cuda_start(layer_norm_kernel<true>, grid, threads, 0, stream,
                                  !args->rows.plain_edges, *args)
                  : rp_cuda_start(layer_norm_kernel<false>, grid, threads, 0, stream,
                                  !args->rows.plain_edges, *args);
}
