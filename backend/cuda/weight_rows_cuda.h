/* weight_rows_cuda.h - rows of values that become 8-bit weights on the GPU: between upload_cuda.c
 * and the kernel in support_cuda.cu. */
#ifndef RP_BACKEND_WEIGHT_ROWS_CUDA_H
#define RP_BACKEND_WEIGHT_ROWS_CUDA_H

#include "device/program.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

struct rp_cuda_weight_rows {
    enum rp_dtype from, to;   /* F32, F16 or BF16; INT8 or FP8_E4M3 */
    uint32_t wide, col, cols; /* values of a row; of them [col, col + cols) are stored */
    unsigned char *quantized; /* (rows, cols), device memory, as the next */
    float *scales;            /* (rows) */
};

/* `count` rows of values in device memory become the rows from `first` on, with the bits of
 * rp_quantize_row. *bad (device memory) is set to 1 when one is not finite. A cudaError_t. */
int rp_cuda_quantize_rows(const struct rp_cuda_weight_rows *rows, const void *values,
                          uint32_t first, uint32_t count, uint32_t *bad,
                          struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
