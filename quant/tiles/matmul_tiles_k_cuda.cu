/* matmul_tiles_k_cuda.cu - the kernels of matmul_tiles_kernel.cuh for GGUF's most
 * common types. */
#include "quant/tiles/matmul_tiles_kernel.cuh"

rp_matmul_tiles_kernel rp_matmul_tiles_k_find(const rp_matmul_tiles_args &args) {
    RP_TILE_FORMATS_K(RP_TILE_FIND)
    return {};
}
