/* matmul_wide_cuda.cu - the kernels of matmul_wide_kernel.cuh for bf16, and their launch. */
#include "quant/wide/matmul_wide_kernel.cuh"

namespace {

#define ENTRY(cols, held, stages, gated, bf16, mode)                                               \
    {                                                                                              \
        cols, gated, bf16, RP_WGMMA_BF16,                                                          \
            rp_matmul_wide_kernel_of<cols, held, stages, gated, bf16, RP_WGMMA_BF16, mode>()       \
    }
const rp_matmul_wide_entry kernels[] = {
    ENTRY(128, 64, 6, false, false, STORE_UNDER), ENTRY(128, 64, 6, false, true, STORE_UNDER),
    ENTRY(128, 64, 6, true, true, STORE_UNDER),   ENTRY(192, 96, 4, false, false, STORE_AFTER),
    ENTRY(192, 96, 4, false, true, STORE_AFTER),  ENTRY(256, 96, 4, false, false, STORE_AFTER),
    ENTRY(256, 96, 4, false, true, STORE_AFTER),  ENTRY(256, 0, 4, true, true, STORE_SUMS)};

rp_matmul_wide_kernel find_kernel(const rp_matmul_wide_args &args) {
    return args.dtype != RP_DTYPE_BF16 ? rp_matmul_wide_8_find(&args)
                                       : rp_matmul_wide_find(kernels, args);
}

} // namespace

int rp_matmul_wide_cuda_prepare(struct rp_matmul_wide_args *args) {
    rp_matmul_wide_kernel found = find_kernel(*args);
    if (!found.kernel)
        return RP_STATUS_NOT_FOUND;
    args->shared_bytes = found.shared_bytes;
    cudaError_t error = cudaFuncSetAttribute(
        found.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)found.shared_bytes);
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_wide_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_wide_args *args = (const rp_matmul_wide_args *)args_void;
    rp_matmul_wide_kernel found = find_kernel(*args);
    return rp_cuda_start(found.kernel, dim3(args->grid), dim3(THREADS), args->shared_bytes, stream,
                         args->dependent, *args, RP_WIDE_CLUSTER(args->cols));
}
