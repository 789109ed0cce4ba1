/* exp_simd.h - exp(x) of a vector, for the kernels of the CPU that need it: attention's softmax and
 * the activations.
 *
 * 2^n * p(r), |r| <= ln 2 / 2 (Cephes expf, 2 ulp), for x up to 88. Below -87.3, where 2^n would be denormal, zero.
 * NaN stays NaN. The bits of a lane depend on that lane alone. */
#ifndef RP_DEVICE_EXP_SIMD_H
#define RP_DEVICE_EXP_SIMD_H

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define RP_EXP_LOW    -87.3f
#define RP_EXP_LOG2E  1.44269504088896341f
#define RP_EXP_LN2_HI 0.693359375f
#define RP_EXP_LN2_LO -2.12194440e-4f
#define RP_EXP_P0     1.9875691500e-4f
#define RP_EXP_P1     1.3981999507e-3f
#define RP_EXP_P2     8.3334519073e-3f
#define RP_EXP_P3     4.1665795894e-2f
#define RP_EXP_P4     1.6666665459e-1f
#define RP_EXP_P5     5.0000001201e-1f

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"), always_inline)) static inline __m512
rp_exp_avx512(__m512 x) {
    __mmask16 low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(RP_EXP_LOW), _CMP_LT_OQ);
    __m512 y =
        _mm512_max_ps(_mm512_set1_ps(RP_EXP_LOW), x); /* the second operand when one is NaN */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(y, _mm512_set1_ps(RP_EXP_LOG2E)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(RP_EXP_LN2_HI), y);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(RP_EXP_LN2_LO), r);
    __m512 p = _mm512_set1_ps(RP_EXP_P0);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(RP_EXP_P1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(RP_EXP_P2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(RP_EXP_P3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(RP_EXP_P4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(RP_EXP_P5));
    p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
    __m512i scale =
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(scale));
    return _mm512_mask_mov_ps(p, low, _mm512_setzero_ps());
}

__attribute__((target("avx2,fma"), always_inline)) static inline __m256 rp_exp_avx2(__m256 x) {
    __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(RP_EXP_LOW), _CMP_LT_OQ);
    __m256 y =
        _mm256_max_ps(_mm256_set1_ps(RP_EXP_LOW), x); /* the second operand when one is NaN */
    __m256 n = _mm256_round_ps(_mm256_mul_ps(y, _mm256_set1_ps(RP_EXP_LOG2E)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(RP_EXP_LN2_HI), y);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(RP_EXP_LN2_LO), r);
    __m256 p = _mm256_set1_ps(RP_EXP_P0);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(RP_EXP_P1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(RP_EXP_P2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(RP_EXP_P3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(RP_EXP_P4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(RP_EXP_P5));
    p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    __m256i scale =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(scale));
    return _mm256_andnot_ps(low, p);
}

#endif
#endif
