/* recurrent_cuda.h - CONV and GATED_DELTA on CUDA: one launcher each. Rules are those of
 * recurrent.h.
 *
 * A token's sums have an order that depends on the operator's sizes alone, another one than the
 * CPU's: an output has the same bits wherever a prompt is cut, in every batch and bucket.
 * Thread: the one that owns the stream. Errors: a cudaError_t as int. */
#ifndef RP_DEVICE_RECURRENT_CUDA_H
#define RP_DEVICE_RECURRENT_CUDA_H

#include "device/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_conv_cuda {
    struct rp_cuda_rows rows;
    struct rp_values in, gate_in, gate_out; /* (max_rows, cols) f32; the gates with conv.gated */
    struct rp_values out;
    const float *weight; /* (cols, width), 16-byte aligned */
    uint32_t cols;
    struct rp_conv conv;
    uint32_t max_seq_rows; /* rows (sequences) of the bucket */
    bool decode;           /* each row has one token */
};
int rp_conv_cuda_run(const void *args, struct CUstream_st *stream);

struct rp_gated_delta_cuda {
    struct rp_cuda_rows rows;
    struct rp_cuda_limits limits; /* all zeros: no kernel that needs to know the GPU */
    struct rp_values qkv, ba;     /* f32 */
    struct rp_values out;         /* (max_rows, value_heads * value_dim) f32 */
    const float *a_log, *dt_bias; /* (value_heads) */
    struct rp_gated_delta delta;
    uint32_t max_seq_rows;
    bool decode;
};
int rp_gated_delta_cuda_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
