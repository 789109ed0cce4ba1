/* tanh_simd.h - tanh(x) of a vector: what caps scores and logits on the CPU.
 *
 * x P(x^2) / Q(x^2) for |x| <= 9.01, beyond which it is 1: a least-squares fit, relative error 4e-7. NaN stays NaN. The
 * bits of a lane depend on that lane alone. */
#ifndef RP_DEVICE_TANH_SIMD_H
#define RP_DEVICE_TANH_SIMD_H

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define RP_TANH_END 9.01f
#define RP_TANH_P0  9.999999792e-01f
#define RP_TANH_P1  1.338037316e-01f
#define RP_TANH_P2  3.494812872e-03f
#define RP_TANH_P3  2.059630226e-05f
#define RP_TANH_P4  1.333688405e-08f
#define RP_TANH_Q1  4.671368858e-01f
#define RP_TANH_Q2  2.587403377e-02f
#define RP_TANH_Q3  3.284366139e-04f
#define RP_TANH_Q4  7.769298432e-07f

/* If one operand is NaN, min and max return the second. */
#define RP_TANH_BODY(name, vector, prefix)                                                         \
    static inline vector name(vector at) {                                                         \
        vector x = prefix##_max_ps(prefix##_set1_ps(-RP_TANH_END),                                 \
                                   prefix##_min_ps(prefix##_set1_ps(RP_TANH_END), at));            \
        vector t = prefix##_mul_ps(x, x);                                                          \
        vector p =                                                                                 \
            prefix##_fmadd_ps(prefix##_set1_ps(RP_TANH_P4), t, prefix##_set1_ps(RP_TANH_P3));      \
        vector q =                                                                                 \
            prefix##_fmadd_ps(prefix##_set1_ps(RP_TANH_Q4), t, prefix##_set1_ps(RP_TANH_Q3));      \
        p = prefix##_fmadd_ps(p, t, prefix##_set1_ps(RP_TANH_P2));                                 \
        q = prefix##_fmadd_ps(q, t, prefix##_set1_ps(RP_TANH_Q2));                                 \
        p = prefix##_fmadd_ps(p, t, prefix##_set1_ps(RP_TANH_P1));                                 \
        q = prefix##_fmadd_ps(q, t, prefix##_set1_ps(RP_TANH_Q1));                                 \
        p = prefix##_fmadd_ps(p, t, prefix##_set1_ps(RP_TANH_P0));                                 \
        q = prefix##_fmadd_ps(q, t, prefix##_set1_ps(1.0f));                                       \
        return prefix##_div_ps(prefix##_mul_ps(x, p), q);                                          \
    }

__attribute__((target("avx512f"), always_inline)) RP_TANH_BODY(rp_tanh_avx512, __m512, _mm512)

    __attribute__((target("avx2,fma"), always_inline)) RP_TANH_BODY(rp_tanh_avx2, __m256, _mm256)

#endif
#endif
