/* Kernels that are no operators: weights quantized at load, random ones for benchmarks, and faults
 * for tests. */
#include "backend/cuda/weight_rows_cuda.h"
#include "device/device.h"
#include "device/quantize_row.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern "C" {
int rp_cuda_fill_random(void *data, enum rp_dtype dtype, size_t count, uint64_t seed, float scale,
                        struct CUstream_st *stream);
int rp_cuda_fill_random_quantized(void *quantized, float *scales, enum rp_dtype dtype,
                                  uint32_t rows, uint32_t cols, uint64_t seed, float scale,
                                  struct CUstream_st *stream);
int rp_cuda_start_fault(enum rp_device_fault fault, struct CUstream_st *stream);
}

/* The same numbers as the CPU backend's: splitmix64 of the element's index. */
static __device__ float random_unit(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return (float)((double)(z >> 11) * 0x1p-52 - 1.0);
}

static __global__ void fill_random_kernel(void *data, bool is_f32, size_t count, uint64_t seed,
                                          float scale) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        float value = random_unit(seed, i) * scale;
        if (is_f32)
            ((float *)data)[i] = value;
        else
            ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(value);
    }
}

int rp_cuda_fill_random(void *data, enum rp_dtype dtype, size_t count, uint64_t seed, float scale,
                        struct CUstream_st *stream) {
    fill_random_kernel<<<1024, 256, 0, stream>>>(data, dtype == RP_DTYPE_F32, count, seed, scale);
    return (int)cudaGetLastError();
}

/* A block's row of `wide` values, of which [col, col + cols) are stored: the bits of
 * rp_quantize_row. The result, of all threads, is its scale. */
template <typename Value>
static __device__ float quantize_row(Value value, uint32_t wide, uint32_t col, uint32_t cols,
                                     rp_dtype dtype, unsigned char *quantized) {
    __shared__ uint32_t shared[32];
    uint32_t most = 0, lane = threadIdx.x % 32;
    for (uint32_t i = threadIdx.x; i < wide; i += blockDim.x)
        most = max(most, rp_magnitude_bits(value(i)));
    most = rp_warp_max_bits(most);
    if (lane == 0)
        shared[threadIdx.x / 32] = most;
    __syncthreads();
    const rp_quantized_row row(rp_warp_max_bits(lane < blockDim.x / 32 ? shared[lane] : 0), dtype);
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x)
        quantized[i] = (unsigned char)row.quantize(value(col + i));
    return row.scale;
}

/* One block per row: quantizes the bf16 values that fill_random_kernel would store. */
static __global__ void fill_random_quantized_kernel(unsigned char *quantized, float *scales,
                                                    rp_dtype dtype, uint32_t cols, uint64_t seed,
                                                    float scale) {
    size_t first = (size_t)blockIdx.x * cols;
    const float made = quantize_row(
        [=](uint32_t i) {
            return __bfloat162float(__float2bfloat16_rn(random_unit(seed, first + i) * scale));
        },
        cols, 0, cols, dtype, quantized + first);
    if (threadIdx.x == 0)
        scales[blockIdx.x] = made;
}

static __device__ float to_f32(float value) { return value; }
static __device__ float to_f32(__half value) { return __half2float(value); }
static __device__ float to_f32(__nv_bfloat16 value) { return __bfloat162float(value); }

/* One block per row. */
template <typename T>
static __global__ void quantize_rows_kernel(const T *values, rp_cuda_weight_rows rows,
                                            uint32_t first, uint32_t *bad) {
    const T *from = values + (size_t)blockIdx.x * rows.wide;
    const size_t row = (size_t)first + blockIdx.x;
    const float scale =
        quantize_row([=](uint32_t i) { return to_f32(from[i]); }, rows.wide, rows.col, rows.cols,
                     rows.to, rows.quantized + row * rows.cols);
    if (threadIdx.x != 0)
        return;
    rows.scales[row] = scale;
    if (isnan(scale))
        *bad = 1;
}

int rp_cuda_quantize_rows(const struct rp_cuda_weight_rows *rows, const void *values,
                          uint32_t first, uint32_t count, uint32_t *bad,
                          struct CUstream_st *stream) {
    if (rows->from == RP_DTYPE_F32)
        quantize_rows_kernel<<<count, 256, 0, stream>>>((const float *)values, *rows, first, bad);
    else if (rows->from == RP_DTYPE_F16)
        quantize_rows_kernel<<<count, 256, 0, stream>>>((const __half *)values, *rows, first, bad);
    else
        quantize_rows_kernel<<<count, 256, 0, stream>>>((const __nv_bfloat16 *)values, *rows, first,
                                                        bad);
    return (int)cudaGetLastError();
}

int rp_cuda_fill_random_quantized(void *quantized, float *scales, enum rp_dtype dtype,
                                  uint32_t rows, uint32_t cols, uint64_t seed, float scale,
                                  struct CUstream_st *stream) {
    fill_random_quantized_kernel<<<rows, 256, 0, stream>>>((unsigned char *)quantized, scales,
                                                           dtype, cols, seed, scale);
    return (int)cudaGetLastError();
}

static __global__ void illegal_address_kernel() { *(volatile int *)16 = 1; }

static __global__ void trap_kernel() { __trap(); }

static __global__ void hang_kernel() {
    for (;;)
        __nanosleep(1000);
}

int rp_cuda_start_fault(enum rp_device_fault fault, struct CUstream_st *stream) {
    switch (fault) {
    case RP_DEVICE_FAULT_ILLEGAL_ADDRESS:
        illegal_address_kernel<<<1, 1, 0, stream>>>();
        break;
    case RP_DEVICE_FAULT_TRAP:
        trap_kernel<<<1, 1, 0, stream>>>();
        break;
    default:
        hang_kernel<<<1, 1, 0, stream>>>();
        break;
    }
    return (int)cudaGetLastError();
}
