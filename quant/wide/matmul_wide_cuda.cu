/* matmul_wide_cuda.cu - the kernels of matmul_wide_kernel.cuh for bf16, and their launch. */
#include "quant/wide/matmul_wide_kernel.cuh"

namespace {

struct kernel_entry {
    uint32_t cols;
    bool gated, bf16;
    rp_matmul_wide_kernel kernel;
};

#define ENTRY(cols, held, stages, gated, bf16)                                                     \
    {                                                                                              \
        cols, gated, bf16,                                                                         \
            rp_matmul_wide_kernel_of<cols, held, stages, gated, bf16, RP_WGMMA_BF16>()             \
    }
#define ENTRIES(cols, held, stages)                                                                \
    ENTRY(cols, held, stages, false, false), ENTRY(cols, held, stages, false, true),               \
        ENTRY(cols, held, stages, true, true)
const kernel_entry kernels[] = {ENTRIES(128, 64, 6), ENTRIES(192, 96, 4), ENTRIES(224, 80, 4),
                                ENTRIES(256, 96, 4)};

rp_matmul_wide_kernel find_kernel(const rp_matmul_wide_args &args) {
    if (args.dtype != RP_DTYPE_BF16)
        return rp_matmul_wide_8_find(&args);
    for (const kernel_entry &entry : kernels)
        if (entry.cols == args.cols && entry.gated == args.gated && entry.bf16 == args.out_bf16)
            return entry.kernel;
    return {};
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
                         args->dependent, *args);
}
