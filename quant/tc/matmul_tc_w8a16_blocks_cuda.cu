/* matmul_tc_w8a16_blocks_cuda.cu - the kernels of matmul_tc_kernel.cuh for weights in FP8 with
 * scales of blocks, rows in bf16. */
#include "quant/tc/matmul_tc_kernel.cuh"

rp_matmul_tc_kernel rp_matmul_tc_w8a16_blocks_find(const struct rp_matmul_tile *tile, bool gated) {
    return gated ? rp_matmul_tc_w8a16_kernel_of<RP_WGMMA_FP8_BF16, true, true>(tile)
                 : rp_matmul_tc_w8a16_kernel_of<RP_WGMMA_FP8_BF16, true, false>(tile);
}
