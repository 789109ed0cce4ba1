/* matmul_experts_cuda.cu - the kernels of experts for bf16, and their launch. */
#include "quant/experts/matmul_experts_many_kernel.cuh"

static rp_matmul_experts_kernel find_kernel(const rp_matmul_experts_args &args) {
    return args.dtype == RP_DTYPE_BF16 ? kernel_of<RP_WGMMA_BF16>(args)
                                       : rp_matmul_experts_8_find(&args);
}

int rp_matmul_experts_tc_prepare(const struct rp_matmul_experts_args *args) {
    rp_matmul_experts_kernel kernel = find_kernel(*args);
    if (!kernel)
        return RP_STATUS_NOT_FOUND;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)args->shared_most);
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_experts_tc_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_experts_args *args = (const rp_matmul_experts_args *)args_void;
    return rp_cuda_start(find_kernel(*args), dim3(args->grid), dim3(threads_of(*args)),
                         args->shared_bytes, stream, args->dependent, *args);
}
