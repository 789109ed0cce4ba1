/* matmul_tc_w8a16_fp8_cuda.cu - the kernels of matmul_tc_kernel.cuh for weights in FP8, rows in
 * bf16. */
#include "quant/tc/matmul_tc_kernel.cuh"

rp_matmul_tc_kernel rp_matmul_tc_w8a16_fp8_find(const struct rp_matmul_tile *tile, bool gated) {
    return gated ? rp_matmul_tc_w8a16_kernel_of<RP_WGMMA_FP8_BF16, false, true>(tile)
                 : rp_matmul_tc_w8a16_kernel_of<RP_WGMMA_FP8_BF16, false, false>(tile);
}
