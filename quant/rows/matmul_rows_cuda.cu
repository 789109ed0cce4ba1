/* matmul_rows_cuda.cu - the kernels of matmul_rows_kernel.cuh for bf16, and their launch. */
#include "quant/rows/matmul_rows_kernel.cuh"

namespace {

#define BF16(shape, tokens, source) RP_ROWS_##shape(tokens, source, RP_WGMMA_BF16)
const rp_matmul_rows_kernel kernels[] = {
    BF16(PLAIN, 8, RP_ROWS_READY),  BF16(GATED, 8, RP_ROWS_READY),  BF16(SPLIT, 8, RP_ROWS_READY),
    BF16(PLAIN, 8, RP_ROWS_NORMED), BF16(GATED, 8, RP_ROWS_NORMED), BF16(SPLIT, 8, RP_ROWS_NORMED),
    BF16(PLAIN, 16, RP_ROWS_READY), BF16(GATED, 16, RP_ROWS_READY), BF16(SPLIT, 16, RP_ROWS_READY),
    BF16(PLAIN, 32, RP_ROWS_READY), BF16(GATED, 32, RP_ROWS_READY), BF16(PLAIN, 64, RP_ROWS_READY),
    BF16(GATED, 64, RP_ROWS_READY),
};

const rp_matmul_rows_kernel *find_kernel(const rp_matmul_rows_args *args) {
    uint32_t warpgroups = args->parts > 1 ? args->parts : args->tile_rows > 64 ? 2 : 1;
    rp_rows_source source = args->norm.weight ? RP_ROWS_NORMED
                            : args->quantizes ? RP_ROWS_QUANTIZED
                                              : RP_ROWS_READY;
    rp_wgmma_type type = rp_wgmma_type_of(args->dtype);
    size_t count = RP_ARRAY_COUNT(kernels);
    const rp_matmul_rows_kernel *entry =
        type == RP_WGMMA_BF16 ? kernels : rp_matmul_rows_8_kernels(&count);
    for (const rp_matmul_rows_kernel *end = entry + count; entry < end; entry++)
        if (entry->tokens == args->tokens && entry->gated == args->gated &&
            entry->source == source && entry->split == (args->parts > 1) &&
            entry->warpgroups == warpgroups && entry->type == type)
            return entry;
    return nullptr;
}

} // namespace

int rp_matmul_rows_cuda_prepare(const struct rp_matmul_rows_args *args) {
    const rp_matmul_rows_kernel *entry = find_kernel(args);
    if (!entry || args->tile_rows > 128)
        return RP_STATUS_NOT_FOUND;
    cudaError_t error = cudaFuncSetAttribute(
        entry->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)args->shared_most);
    return error == cudaSuccess ? RP_OK : RP_STATUS_DEVICE;
}

int rp_matmul_rows_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_matmul_rows_args *args = (const rp_matmul_rows_args *)args_void;
    const rp_matmul_rows_kernel *entry = find_kernel(args);
    return rp_cuda_start(entry->kernel, dim3(args->grid), dim3(128 * entry->warpgroups + 64),
                         args->shared_bytes, stream, args->dependent, *args);
}
