/* norm_stream_cuda.h - RMSNorm of many rows: f32 to bf16 or to 8-bit quantized values. */
#ifndef RP_DEVICE_NORM_STREAM_CUDA_H
#define RP_DEVICE_NORM_STREAM_CUDA_H

#include "device/ops_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether rp_norm_stream_run computes these rows. It has the bits of rp_norm_cuda_run. */
bool rp_norm_stream_takes(const struct rp_norm_cuda *args);
int rp_norm_stream_run(const struct rp_norm_cuda *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
