/* cuda_sm_count.h - for launches whose grid is as large as the GPU has room for. */
#ifndef RP_DEVICE_CUDA_SM_COUNT_H
#define RP_DEVICE_CUDA_SM_COUNT_H

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdlib.h>

/* Multiprocessors of the GPU in use. Allowed during a capture. */
static inline uint32_t rp_cuda_sm_count(void) {
    int device = 0, count = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return error == cudaSuccess && count > 0 ? (uint32_t)count : 1u;
}

/* Temporary, to compare: RP_NORM_OLD=1 selects the kernels of many rows as they were. */
static inline int rp_cuda_norm_old(void) {
    const char *value = getenv("RP_NORM_OLD");
    return value && value[0] == '1';
}

#endif
