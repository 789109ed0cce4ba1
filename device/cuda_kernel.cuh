/* cuda_kernel.cuh - what every kernel uses: its launch, live rows, loads and stores of any dtype,
 * reductions with a fixed order. */
#ifndef RP_DEVICE_CUDA_KERNEL_CUH
#define RP_DEVICE_CUDA_KERNEL_CUH

#include "device/cuda_dependent.cuh"
#include "device/cuda_launch.h"
#include "device/cuda_stamp.cuh"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

/* Code compiled for sm_90a uses Hopper's own instructions: wgmma, bulk tensor copies, clusters. A
 * kernel that needs them has no body elsewhere; its planning asks the GPU's limits
 * (rp_cuda_has_hopper) and chooses another. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RP_CUDA_HOPPER 1
#else
#define RP_CUDA_HOPPER 0
#endif

#ifndef __CUDACC_RTC__
/* Launches with the attribute that makes rp_pdl_* mean something; without it they do nothing.
 *
 * Every kernel requests the largest share of shared memory: a multiprocessor that must change the
 * split between L1 and shared memory first runs empty, and the next GEMM is not prefetched
 * beside a kernel that holds another split (GEMMs of 32 rows with small kernels between them:
 * 4.24 ms, not 6.1).
 *
 * cluster: blocks of a cluster, along x. args: the kernel's one argument, which is copied. */
static inline int rp_cuda_start(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
                                cudaStream_t stream, bool dependent, const void *args,
                                uint32_t cluster = 1) {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    void *values[1] = {(void *)(uintptr_t)args};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    if (dependent) {
        cudaLaunchAttribute *attribute = &attributes[config.numAttrs++];
        attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute->val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        cudaLaunchAttribute *attribute = &attributes[config.numAttrs++];
        attribute->id = cudaLaunchAttributeClusterDimension;
        attribute->val.clusterDim.x = cluster;
        attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
    }
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                             cudaSharedmemCarveoutMaxShared);
    return (int)(error == cudaSuccess ? cudaLaunchKernelExC(&config, kernel, values) : error);
}

template <typename Args>
static inline int rp_cuda_start(void (*kernel)(Args), dim3 grid, dim3 block, size_t shared_bytes,
                                cudaStream_t stream, bool dependent, const Args &args,
                                uint32_t cluster = 1) {
    return rp_cuda_start((const void *)kernel, grid, block, shared_bytes, stream, dependent,
                         (const void *)&args, cluster);
}
#endif

__device__ __forceinline__ uint32_t rp_live_count(const rp_step_view &step, rp_rows rows) {
    return rows == RP_ROWS_TOKEN ? step.counts->token_count : step.counts->logit_row_count;
}

/* A token whose row is finished computes nothing. */
__device__ __forceinline__ bool rp_token_is_live(const rp_step_view &step, uint32_t token) {
    return step.token_rows[token] != RP_ROW_NONE;
}

__device__ __forceinline__ float rp_load(const void *data, rp_dtype dtype, size_t index) {
    return dtype == RP_DTYPE_F32 ? ((const float *)data)[index]
                                 : __bfloat162float(((const __nv_bfloat16 *)data)[index]);
}

/* Rounds to nearest even where the dtype is bf16. */
__device__ __forceinline__ void rp_store(void *data, rp_dtype dtype, size_t index, float value) {
    if (dtype == RP_DTYPE_F32)
        ((float *)data)[index] = value;
    else
        ((__nv_bfloat16 *)data)[index] = __float2bfloat16_rn(value);
}

/* The sum of partials in rising order, plus bias. */
__device__ __forceinline__ float rp_partials_sum(const rp_cuda_partials &partials, uint32_t row,
                                                 uint32_t col) {
    const float *at = partials.data + row * partials.row_stride + col;
    float sum = at[0];
    for (uint32_t i = 1; i < partials.count; i++)
        sum += at[i * partials.split_stride];
    return partials.bias ? sum + partials.bias[col] : sum;
}

/* All lanes get the sum, in an order that depends on nothing. */
__device__ __forceinline__ float rp_warp_sum(float value) {
    for (int lane = 16; lane > 0; lane /= 2)
        value += __shfl_xor_sync(0xFFFFFFFFu, value, lane);
    return value;
}

__device__ __forceinline__ float rp_warp_max(float value) {
    for (int lane = 16; lane > 0; lane /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, lane));
    return value;
}

#endif
