/* Kernels that are no operators: random weights for benchmarks, and faults for tests. */
#include "device/device.h"
#include "device/quantize_row.cuh"

#include <cuda_bf16.h>
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

/* One block per row: quantizes the bf16 values that fill_random_kernel would store. */
static __global__ void fill_random_quantized_kernel(unsigned char *quantized, float *scales,
                                                    rp_dtype dtype, uint32_t cols, uint64_t seed,
                                                    float scale) {
    __shared__ uint32_t shared[32];
    size_t first = (size_t)blockIdx.x * cols;
    uint32_t most = 0, lane = threadIdx.x % 32;
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x) {
        float value = random_unit(seed, first + i) * scale;
        most = max(most, rp_magnitude_bits(__bfloat162float(__float2bfloat16_rn(value))));
    }
    most = rp_warp_max_bits(most);
    if (lane == 0)
        shared[threadIdx.x / 32] = most;
    __syncthreads();
    const rp_quantized_row row(rp_warp_max_bits(lane < blockDim.x / 32 ? shared[lane] : 0), dtype);
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x) {
        float value = random_unit(seed, first + i) * scale;
        quantized[first + i] =
            (unsigned char)row.quantize(__bfloat162float(__float2bfloat16_rn(value)));
    }
    if (threadIdx.x == 0)
        scales[blockIdx.x] = row.scale;
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
