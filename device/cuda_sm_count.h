/* cuda_sm_count.h - for launches whose grid is as large as the GPU has room for. */
#ifndef RP_DEVICE_CUDA_SM_COUNT_H
#define RP_DEVICE_CUDA_SM_COUNT_H

#include <cuda_runtime.h>
#include <stdint.h>

/* Multiprocessors of the GPU in use. Allowed during a capture. */
static inline uint32_t rp_cuda_sm_count(void) {
    int device = 0, count = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return error == cudaSuccess && count > 0 ? (uint32_t)count : 1u;
}

#endif
