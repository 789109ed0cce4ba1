/* matmul_tc_8_cuda.cu - the kernels of matmul_tc_kernel.cuh for FP8 and INT8, in the tiles that
 * rp_matmul_cuda_choose picks. */
#include "quant/tc/matmul_tc_kernel.cuh"

namespace {

struct kernel_entry {
    uint32_t tokens;
    rp_wgmma_type type;
    bool block_scales;
    rp_matmul_tc_kernel kernel;
};

/* Tiles of 128 outputs. Block scales wait for each box, so their stages are freed early. */
#define ENTRY(tokens, boxes, eager, type, block_scales)                                            \
    {                                                                                              \
        tokens, type, block_scales,                                                                \
            rp_matmul_tc_kernel_of<shape<tokens, 128, boxes, eager, type, block_scales>>()         \
    }
#define ENTRIES(eager_128, type, block_scales)                                                     \
    ENTRY(8, 2, true, type, block_scales), ENTRY(16, 2, true, type, block_scales),                 \
        ENTRY(32, 2, true, type, block_scales), ENTRY(64, 2, true, type, block_scales),            \
        ENTRY(128, 1, eager_128, type, block_scales)
const kernel_entry kernels[] = {
    ENTRIES(false, RP_WGMMA_FP8, false),
    ENTRIES(false, RP_WGMMA_INT8, false),
    ENTRIES(true, RP_WGMMA_FP8, true),
};

} // namespace

rp_matmul_tc_kernel rp_matmul_tc_8_find(const struct rp_matmul_tc_args *args) {
    const rp_matmul_tile &tile = args->tile;
    uint32_t boxes = tile.tokens < 128 ? 2 : 1;
    for (const kernel_entry &entry : kernels)
        if (entry.tokens == tile.tokens && tile.rows == 128 && tile.boxes == boxes &&
            entry.type == rp_wgmma_type_of(args->dtype) && entry.block_scales == args->block_scales)
            return entry.kernel;
    return {};
}
