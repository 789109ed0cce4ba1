/* matmul_rows_8_cuda.cu - the kernels of matmul_rows_kernel.cuh for FP8 and INT8, where
 * rp_matmul_rows_pays. */
#include "quant/rows/matmul_rows_kernel.cuh"

namespace {

#define ALL(tokens, source, type)                                                                  \
    RP_ROWS_PLAIN(tokens, source, type), RP_ROWS_GATED(tokens, source, type),                      \
        RP_ROWS_SPLIT(tokens, source, type)
#define OF_TYPE(type)                                                                              \
    ALL(8, RP_ROWS_READY, type), ALL(8, RP_ROWS_NORMED, type), ALL(8, RP_ROWS_QUANTIZED, type),    \
        ALL(16, RP_ROWS_READY, type), RP_ROWS_GATED(32, RP_ROWS_READY, type),                      \
        RP_ROWS_GATED(64, RP_ROWS_READY, type)
const rp_matmul_rows_kernel kernels[] = {OF_TYPE(RP_WGMMA_FP8), OF_TYPE(RP_WGMMA_INT8)};

} // namespace

const rp_matmul_rows_kernel *rp_matmul_rows_8_kernels(size_t *out_count) {
    *out_count = RP_ARRAY_COUNT(kernels);
    return kernels;
}
