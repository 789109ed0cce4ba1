/* matmul_tiles_find.cuh - the formats whose kernels are compiled, by file. */
#ifndef RP_QUANT_MATMUL_TILES_FIND_CUH
#define RP_QUANT_MATMUL_TILES_FIND_CUH

#include "quant/tiles/matmul_tiles_cuda.h"

/* bits, columns of a group, kind */
#define RP_TILE_FORMATS_INT4(X)                                                                    \
    X(4, 32, RP_TILE_SYM)                                                                          \
    X(4, 64, RP_TILE_SYM)                                                                          \
    X(4, 128, RP_TILE_SYM)                                                                         \
    X(4, 32, RP_TILE_ZERO)                                                                         \
    X(4, 64, RP_TILE_ZERO)                                                                         \
    X(4, 128, RP_TILE_ZERO)
#define RP_TILE_FORMATS_K(X)                                                                       \
    X(4, 32, RP_TILE_MIN_2)                                                                        \
    X(5, 32, RP_TILE_MIN_2)                                                                        \
    X(6, 16, RP_TILE_SYM_2)                                                                        \
    X(8, 32, RP_TILE_SYM)                                                                          \
    X(4, 16, RP_TILE_MIN_2)                                                                        \
    X(4, 16, RP_TILE_SYM_2)
#define RP_TILE_FORMATS_OTHER(X)                                                                   \
    X(4, 32, RP_TILE_FP4)                                                                          \
    X(4, 16, RP_TILE_FP4)                                                                          \
    X(4, 32, RP_TILE_MIN)                                                                          \
    X(5, 32, RP_TILE_SYM)                                                                          \
    X(5, 32, RP_TILE_MIN)                                                                          \
    X(8, 32, RP_TILE_SYM_2)                                                                        \
    X(16, 128, RP_TILE_PLAIN)

#define RP_TILE_FORMATS(X)                                                                         \
    RP_TILE_FORMATS_INT4(X)                                                                        \
    RP_TILE_FORMATS_K(X)                                                                           \
    RP_TILE_FORMATS_OTHER(X)

/* A kernel for a format and a block's tokens. */
struct rp_matmul_tiles_kernel {
    void (*kernel)(rp_matmul_tiles_args);
};
/* kernel NULL: of another file. */
rp_matmul_tiles_kernel rp_matmul_tiles_int4_find(const rp_matmul_tiles_args &args);
rp_matmul_tiles_kernel rp_matmul_tiles_k_find(const rp_matmul_tiles_args &args);
rp_matmul_tiles_kernel rp_matmul_tiles_other_find(const rp_matmul_tiles_args &args);

#endif
