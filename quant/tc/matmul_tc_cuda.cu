/* matmul_tc_cuda.cu - the kernels of matmul_tc_kernel.cuh for bf16, and their launch. */
#include "quant/tc/matmul_tc_kernel.cuh"

namespace {

struct kernel_entry {
    uint32_t tokens, rows, boxes;
    bool eager;
    rp_matmul_tc_kernel kernel;
};

#define ENTRY(tokens, rows, boxes, eager)                                                          \
    { tokens, rows, boxes, eager, rp_matmul_tc_kernel_of<shape<tokens, rows, boxes, eager>>() }
const kernel_entry kernels[] = {
    ENTRY(8, 64, 2, true),     ENTRY(8, 64, 4, true),     ENTRY(16, 64, 2, true),
    ENTRY(16, 64, 4, true),    ENTRY(32, 64, 2, true),    ENTRY(32, 64, 4, true),
    ENTRY(8, 128, 2, true),    ENTRY(16, 128, 2, true),   ENTRY(32, 128, 1, true),
    ENTRY(32, 128, 2, true),   ENTRY(64, 128, 1, true),   ENTRY(64, 128, 2, true),
    ENTRY(64, 64, 2, true),    ENTRY(128, 128, 1, true),  ENTRY(128, 128, 1, false),
    ENTRY(192, 128, 1, false), ENTRY(256, 128, 1, false),
};

rp_matmul_tc_kernel find_kernel(const rp_matmul_tc_args &args) {
    const rp_matmul_tile &tile = args.tile;
    if (args.dtype != args.in_dtype)
        return args.block_scales             ? rp_matmul_tc_w8a16_blocks_find(&tile, args.gated)
               : args.dtype == RP_DTYPE_INT8 ? rp_matmul_tc_w8a16_int8_find(&tile, args.gated)
                                             : rp_matmul_tc_w8a16_fp8_find(&tile, args.gated);
    if (args.dtype != RP_DTYPE_BF16)
        return rp_matmul_tc_8_find(&args);
    for (const kernel_entry &entry : kernels)
        if (entry.tokens == tile.tokens && entry.rows == tile.rows && entry.boxes == tile.boxes &&
            entry.eager == tile.eager)
            return entry.kernel;
    return {};
}

} // namespace

int rp_matmul_tc_cuda_prepare(const struct rp_matmul_tc_args *args) {
    rp_matmul_tc_kernel found = find_kernel(*args);
    if (!found.kernel)
        return RP_STATUS_NOT_FOUND;
    cudaError_t error = cudaFuncSetAttribute(
        found.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)args->shared_most);
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_tc_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_tc_args *args = (const rp_matmul_tc_args *)args_void;
    rp_matmul_tc_kernel found = find_kernel(*args);
    return rp_cuda_start(found.kernel, dim3(args->grid), dim3(found.threads), args->shared_bytes,
                         stream, args->dependent, *args);
}
