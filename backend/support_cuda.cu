/* Kernels that are no operators: random weights for benchmarks, and faults for tests. */
#include "device/device.h"
#include "device/quantise_packed.cuh"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

extern "C" {
int rp_cuda_fill_random(void *data, enum rp_dtype dtype, size_t count, uint64_t seed, float scale,
                        struct CUstream_st *stream);
int rp_cuda_fill_random_8(void *codes, float *scales, enum rp_dtype dtype, uint32_t rows,
                          uint32_t cols, uint64_t seed, float scale, struct CUstream_st *stream);
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

/* Blocks have a row at a time. Numbers are made twice: to look for the largest, and to become codes. */
static __global__ void __launch_bounds__(256)
    fill_random_8_kernel(unsigned char *codes, float *scales, rp_dtype dtype, uint32_t rows,
                         uint32_t cols, uint64_t seed, float scale) {
    __shared__ uint32_t shared[32];
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
        uint64_t first = (uint64_t)row * cols;
        uint32_t most = 0;
        for (uint32_t k = threadIdx.x; k < cols; k += blockDim.x)
            most = rp_largest(most, rp_pack_bf16(random_unit(seed, first + k) * scale, 0.0f));
        __syncthreads(); /* the row before has been read */
        rp_row_codes of = rp_row_codes_of(rp_block_largest(shared, most), dtype);
        for (uint32_t k = threadIdx.x; k < cols; k += blockDim.x) {
            uint32_t value = rp_pack_bf16(random_unit(seed, first + k) * scale, 0.0f);
            codes[first + k] = (unsigned char)of.code(__uint_as_float(value << 16));
        }
        if (threadIdx.x == 0)
            scales[row] = of.scale;
    }
}

int rp_cuda_fill_random_8(void *codes, float *scales, enum rp_dtype dtype, uint32_t rows,
                          uint32_t cols, uint64_t seed, float scale, struct CUstream_st *stream) {
    fill_random_8_kernel<<<1024, 256, 0, stream>>>((unsigned char *)codes, scales, dtype, rows,
                                                   cols, seed, scale);
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
