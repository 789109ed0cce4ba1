/* read_cuda.h - reads a range of device memory once and forgets it: the bar for what streams
 * weights. */
#ifndef RP_DEVICE_READ_CUDA_H
#define RP_DEVICE_READ_CUDA_H

#include "device/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_read_cuda {
    const void *data; /* 16-byte aligned; a tail below 16 bytes is not read */
    size_t bytes;
    uint32_t sm_count;
    uint32_t *sink; /* NULL */
};
int rp_read_cuda_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
