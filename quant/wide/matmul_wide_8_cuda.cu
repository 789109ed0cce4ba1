/* matmul_wide_8_cuda.cu - the kernels of matmul_wide_kernel.cuh for FP8 and INT8: the tiles whose
 * sums and totals fit in the registers. */
#include "quant/wide/matmul_wide_kernel.cuh"

namespace {

struct kernel_entry {
    uint32_t cols;
    bool gated, bf16;
    rp_wgmma_type type;
    rp_matmul_wide_kernel kernel;
};

#define ENTRY(cols, held, stages, gated, bf16, type)                                               \
    { cols, gated, bf16, type, rp_matmul_wide_kernel_of<cols, held, stages, gated, bf16, type>() }
#define ENTRIES(type)                                                                              \
    ENTRY(128, 64, 6, false, false, type), ENTRY(128, 64, 6, false, true, type),                   \
        ENTRY(128, 64, 6, true, true, type), ENTRY(192, 96, 4, false, false, type),                \
        ENTRY(192, 96, 4, false, true, type)
const kernel_entry kernels[] = {ENTRIES(RP_WGMMA_FP8), ENTRIES(RP_WGMMA_INT8)};

} // namespace

rp_matmul_wide_kernel rp_matmul_wide_8_find(const struct rp_matmul_wide_args *args) {
    for (const kernel_entry &entry : kernels)
        if (entry.cols == args->cols && entry.gated == args->gated &&
            entry.bf16 == args->out_bf16 && entry.type == rp_wgmma_type_of(args->dtype))
            return entry.kernel;
    return {};
}
