/* matmul_internal.h - interface of matmul_cpu_simd.c to matmul_cpu.c. */
#ifndef RP_QUANT_MATMUL_INTERNAL_H
#define RP_QUANT_MATMUL_INTERNAL_H

#include "quant/matmul.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define RP_MATMUL_HAS_SIMD 1
/* NULL when `isa` has no kernel for this format. */
rp_matmul_fn rp_matmul_select_simd(enum rp_cpu_isa isa, const struct rp_matrix *weight);
#else
#define RP_MATMUL_HAS_SIMD 0
#endif

/* matmul_cpu_8.c: GEMMs on 8-bit weights, every layout and level. */
rp_matmul_fn rp_matmul_select_8(enum rp_cpu_isa isa, const struct rp_matrix *weight);

/* --- tiles of matmul_cpu_8_simd.c ------------------------------------------------------ */

#define RP_TILE_8_ROWS   4u
#define RP_TILE_8_PANELS 2u

/* rows x panels outputs of 16, over `quads` of k. */
struct rp_tile_8 {
    const unsigned char *weights; /* first panel, first quad */
    const int32_t *heads;         /* first panel's -128 * sums */
    const unsigned char *inputs;  /* first row, first quad: f32, int8, or int8 + 128 (offset) */
    void *sums;                   /* (rows, RP_TILE_8_PANELS, 16) f32 or int32 */
    size_t panel_stride, row_bytes, quads;
    bool begin; /* the sums begin */
};

typedef void (*rp_tile_8_fn)(const struct rp_tile_8 *tile);

struct rp_kernel_8 {
    enum rp_cpu_isa isa;
    bool integers;                       /* sums are int32 */
    bool offset;                         /* inputs are int8 + 128 */
    uint32_t rows[RP_TILE_8_PANELS + 1]; /* most rows of a tile with that many panels */
    rp_tile_8_fn tiles[RP_TILE_8_ROWS][RP_TILE_8_PANELS];
};

#if RP_MATMUL_HAS_SIMD
/* NULL when `isa` has no tiles; `integers`: INT8 times quantized rows. */
const struct rp_kernel_8 *rp_kernel_8_select(enum rp_cpu_isa isa, enum rp_dtype dtype,
                                             bool integers);
#endif

#endif
