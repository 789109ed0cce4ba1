/* matmul_experts_8_cuda.cu - the kernels of experts for FP8 and INT8. */
#include "quant/experts/matmul_experts_many_kernel.cuh"

rp_matmul_experts_kernel rp_matmul_experts_8_find(const struct rp_matmul_experts_args *args) {
    return args->dtype == RP_DTYPE_FP8_E4M3 ? kernel_of<RP_WGMMA_FP8>(*args)
           : args->dtype == RP_DTYPE_INT8   ? kernel_of<RP_WGMMA_INT8>(*args)
                                            : nullptr;
}
