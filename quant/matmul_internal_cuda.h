/* matmul_internal_cuda.h - the launchers that rp_matmul_cuda_plan chooses among. Each takes a
 * struct rp_matmul_cuda and copies what it needs of it (the matrix's struct too) into the kernel's
 * arguments: none of it is read after the call. */
#ifndef RP_QUANT_MATMUL_INTERNAL_CUDA_H
#define RP_QUANT_MATMUL_INTERNAL_CUDA_H

#include "quant/matmul_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Any size, stride and alignment, f32 or bf16: one fma chain in rising k per output. */
int rp_matmul_generic_cuda_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
