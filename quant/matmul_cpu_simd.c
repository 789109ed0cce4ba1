#include "quant/matmul_internal.h"

#if RP_MATMUL_HAS_SIMD

rp_matmul_fn rp_matmul_select_simd(enum rp_cpu_isa isa, const struct rp_matrix *weight) {
    (void)isa;
    (void)weight;
    return NULL;
}

#endif
