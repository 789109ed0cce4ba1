/* matmul_wide_8_cuda.cu - the kernels of matmul_wide_kernel.cuh for FP8 and INT8: the tiles whose
 * sums and totals fit in the registers. */
#include "quant/wide/matmul_wide_kernel.cuh"

namespace {

#define ENTRY(cols, held, stages, gated, bf16, mode, type)                                         \
    {                                                                                              \
        cols, gated, bf16, type,                                                                   \
            rp_matmul_wide_kernel_of<cols, held, stages, gated, bf16, type, mode>()                \
    }
#define ENTRIES(type)                                                                              \
    ENTRY(128, 64, 6, false, false, STORE_UNDER, type),                                            \
        ENTRY(128, 64, 6, false, true, STORE_UNDER, type),                                         \
        ENTRY(128, 64, 6, true, true, STORE_UNDER, type),                                          \
        ENTRY(192, 96, 4, false, false, STORE_AFTER, type),                                        \
        ENTRY(192, 96, 4, false, true, STORE_AFTER, type),                                         \
        ENTRY(256, 96, 4, false, false, STORE_AFTER, type),                                        \
        ENTRY(256, 96, 4, false, true, STORE_AFTER, type),                                         \
        ENTRY(256, 0, 4, true, true, STORE_SUMS, type)
const rp_matmul_wide_entry kernels[] = {ENTRIES(RP_WGMMA_FP8), ENTRIES(RP_WGMMA_INT8)};

} // namespace

rp_matmul_wide_kernel rp_matmul_wide_8_find(const struct rp_matmul_wide_args *args) {
    return rp_matmul_wide_find(kernels, *args);
}
