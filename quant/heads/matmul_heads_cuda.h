/* matmul_heads_cuda.h - a GEMM for each head on CUDA (HEAD_LINEAR of device/program.h): head h's
 * columns of the input times its own matrix.
 *
 * An output is one sum over K in an order that the matrix and the alignment of the operands fix:
 * the number of rows changes no bit. */
#ifndef RP_QUANT_MATMUL_HEADS_CUDA_H
#define RP_QUANT_MATMUL_HEADS_CUDA_H

#include "device/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_matmul_heads_cuda {
    struct rp_cuda_rows rows;
    const void *weight; /* (heads, n, k) of dtype, row-major */
    const void *in;     /* (max_rows, in_stride) of dtype; head h's columns begin at h * in_step */
    size_t in_stride;
    struct rp_values out; /* f32 or bf16; head h's n columns begin at h * out_step */
    enum rp_dtype dtype;  /* F32 or BF16 */
    uint32_t heads, n, k, in_step, out_step;
    /* f32 columns of each head that follow its outputs, which are f32 then; 0: none */
    const float *copy;
    size_t copy_stride;
    uint32_t copied, copied_step;
};
int rp_matmul_heads_cuda_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
