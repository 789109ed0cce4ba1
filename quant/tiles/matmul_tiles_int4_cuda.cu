/* matmul_tiles_int4_cuda.cu - the kernels of matmul_tiles_kernel.cuh for groups of 4-bit
 * integers. */
#include "quant/tiles/matmul_tiles_kernel.cuh"

rp_matmul_tiles_kernel rp_matmul_tiles_int4_find(const rp_matmul_tiles_args &args) {
    RP_TILE_FORMATS_INT4(RP_TILE_FIND)
    return {};
}
