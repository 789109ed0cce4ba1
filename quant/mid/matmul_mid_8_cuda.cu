/* matmul_mid_8_cuda.cu - the kernels of matmul_mid_kernel.cuh for FP8 and INT8. */
#include "quant/mid/matmul_mid_kernel.cuh"

namespace {

struct kernel_entry {
    uint32_t tokens, width;
    bool gated;
    rp_wgmma_type type;
    rp_matmul_mid_kernel kernel;
};

#define ENTRY(tokens, width, gated, type)                                                          \
    { tokens, width, gated, type, matmul_mid<tokens, width, gated, type> }
#define ENTRIES(type)                                                                              \
    ENTRY(128, 128, false, type), ENTRY(128, 192, false, type), ENTRY(128, 256, false, type),      \
        ENTRY(128, 128, true, type), ENTRY(128, 224, true, type), ENTRY(256, 128, false, type),    \
        ENTRY(256, 112, true, type)
const kernel_entry kernels[] = {ENTRIES(RP_WGMMA_FP8), ENTRIES(RP_WGMMA_INT8)};

} // namespace

rp_matmul_mid_kernel rp_matmul_mid_8_find(const struct rp_matmul_mid_args *args) {
    const rp_matmul_mid_tile &tile = args->tile;
    for (const kernel_entry &entry : kernels)
        if (entry.tokens == tile.tokens && entry.width == tile.width &&
            entry.gated == args->gated && entry.type == rp_wgmma_type_of(args->dtype))
            return entry.kernel;
    return nullptr;
}
