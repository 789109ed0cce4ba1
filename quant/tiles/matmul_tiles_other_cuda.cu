/* matmul_tiles_other_cuda.cu - the kernels of matmul_tiles_kernel.cuh for the other
 * types. */
#include "quant/tiles/matmul_tiles_kernel.cuh"

rp_matmul_tiles_kernel rp_matmul_tiles_other_find(const rp_matmul_tiles_args &args) {
    RP_TILE_FORMATS_OTHER(RP_TILE_FIND)
    return {};
}
