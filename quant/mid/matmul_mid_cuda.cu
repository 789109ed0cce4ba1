/* matmul_mid_cuda.cu - the kernels of matmul_mid_kernel.cuh for bf16, and their launch. */
#include "quant/mid/matmul_mid_kernel.cuh"

namespace {

struct kernel_entry {
    uint32_t tokens, width;
    bool gated;
    rp_matmul_mid_kernel kernel;
};

#define ENTRY(tokens, width, gated)                                                                \
    { tokens, width, gated, matmul_mid<tokens, width, gated, RP_WGMMA_BF16> }
const kernel_entry kernels[] = {
    ENTRY(128, 128, false), ENTRY(128, 192, false), ENTRY(128, 256, false), ENTRY(128, 128, true),
    ENTRY(128, 224, true),  ENTRY(256, 128, false), ENTRY(256, 112, true),
};

rp_matmul_mid_kernel find_kernel(const rp_matmul_mid_args &args) {
    const rp_matmul_mid_tile &tile = args.tile;
    if (args.dtype != RP_DTYPE_BF16)
        return rp_matmul_mid_8_find(&args);
    for (const kernel_entry &entry : kernels)
        if (entry.tokens == tile.tokens && entry.width == tile.width && entry.gated == args.gated)
            return entry.kernel;
    return nullptr;
}

} // namespace

int rp_matmul_mid_cuda_prepare(const struct rp_matmul_mid_args *args) {
    rp_matmul_mid_kernel kernel = find_kernel(*args);
    if (!kernel)
        return RP_STATUS_NOT_FOUND;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)args->shared_most);
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_mid_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_mid_args *args = (const rp_matmul_mid_args *)args_void;
    return rp_cuda_start(find_kernel(*args), dim3(args->grid), dim3(THREADS), args->shared_bytes,
                         stream, args->dependent, *args);
}
