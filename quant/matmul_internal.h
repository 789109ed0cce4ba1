/* matmul_internal.h - what matmul_cpu.c asks of matmul_cpu_simd.c. */
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

#endif
