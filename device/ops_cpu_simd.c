/* ops_cpu_simd.c - the small operators for AVX2 and AVX-512. */
#include "device/ops_simd.h"

#include "base/bf16.h"
#include "device/exp_simd.h"
#include "device/tanh_simd.h"

#include <math.h>
#include <string.h>

static const struct rp_fast_ops scalar_ops = {.norm = rp_norm_rows,
                                              .layer_norm = rp_layer_norm_rows,
                                              .rope = rp_rope_rows,
                                              .activation = rp_activation_rows,
                                              .add = rp_add_rows,
                                              .scale = rp_scale_rows,
                                              .activation_cols = rp_activation_cols,
                                              .soft_cap_cols = rp_soft_cap_cols,
                                              .gate = rp_gate_values};

#if defined(__x86_64__) && defined(__GNUC__)

/* --- AVX-512 --------------------------------------------------------------------------- */

#define TARGET  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define INLINE  TARGET static inline __attribute__((always_inline))
#define V(name) avx512_##name
#define VECTOR  __m512
#define LANES   16u

INLINE VECTOR V(set1)(float x) { return _mm512_set1_ps(x); }
INLINE VECTOR V(load)(const float *from) { return _mm512_loadu_ps(from); }
INLINE void V(store)(float *to, VECTOR x) { _mm512_storeu_ps(to, x); }
INLINE VECTOR V(add)(VECTOR a, VECTOR b) { return _mm512_add_ps(a, b); }
INLINE VECTOR V(sub)(VECTOR a, VECTOR b) { return _mm512_sub_ps(a, b); }
INLINE VECTOR V(mul)(VECTOR a, VECTOR b) { return _mm512_mul_ps(a, b); }
INLINE VECTOR V(div)(VECTOR a, VECTOR b) { return _mm512_div_ps(a, b); }
INLINE VECTOR V(exp)(VECTOR x) { return rp_exp_avx512(x); }
INLINE VECTOR V(tanh)(VECTOR x) { return rp_tanh_avx512(x); }
INLINE VECTOR V(most)(VECTOR x, VECTOR limit) { return _mm512_min_ps(limit, x); }
INLINE __mmask16 V(first)(uint32_t count) { return (__mmask16)((1u << count) - 1); }
INLINE VECTOR V(load_part)(const float *from, uint32_t count) {
    return _mm512_maskz_loadu_ps(V(first)(count), from);
}
INLINE void V(store_part)(float *to, VECTOR x, uint32_t count) {
    _mm512_mask_storeu_ps(to, V(first)(count), x);
}
INLINE void V(store_bf16)(uint16_t *to, VECTOR x, uint32_t count) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    bits = _mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, quiet), 16);
    _mm512_mask_cvtepi32_storeu_epi16(to, V(first)(count), bits);
}
INLINE double V(squares)(const float *from, uint32_t count) {
    __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
    for (uint32_t i = 0; i < count; i += LANES) {
        VECTOR x = count - i >= LANES ? V(load)(from + i) : V(load_part)(from + i, count - i);
        __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
        __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
        low = _mm512_fmadd_pd(a, a, low);
        high = _mm512_fmadd_pd(b, b, high);
    }
    return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}
INLINE double V(total)(const float *from, uint32_t count) {
    __m512d sum = _mm512_setzero_pd();
    for (uint32_t i = 0; i < count; i += LANES) {
        VECTOR x = count - i >= LANES ? V(load)(from + i) : V(load_part)(from + i, count - i);
        sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
        sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
    }
    return _mm512_reduce_add_pd(sum);
}
INLINE void V(angles)(const float *from, uint32_t count, VECTOR *cosines, VECTOR *sines) {
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    uint32_t floats = 2 * count, first = RP_MIN(floats, LANES);
    VECTOR a = V(load_part)(from, first), b = V(load_part)(from + first, floats - first);
    *cosines = _mm512_permutex2var_ps(a, even, b);
    *sines = _mm512_permutex2var_ps(a, _mm512_or_si512(even, _mm512_set1_epi32(1)), b);
}

#include "device/ops_tile.h"

#undef TARGET
#undef INLINE
#undef V
#undef VECTOR
#undef LANES

/* --- AVX2 ------------------------------------------------------------------------------ */

#define TARGET  __attribute__((target("avx2,fma")))
#define INLINE  TARGET static inline __attribute__((always_inline))
#define V(name) avx2_##name
#define VECTOR  __m256
#define LANES   8u

INLINE VECTOR V(set1)(float x) { return _mm256_set1_ps(x); }
INLINE VECTOR V(load)(const float *from) { return _mm256_loadu_ps(from); }
INLINE void V(store)(float *to, VECTOR x) { _mm256_storeu_ps(to, x); }
INLINE VECTOR V(add)(VECTOR a, VECTOR b) { return _mm256_add_ps(a, b); }
INLINE VECTOR V(sub)(VECTOR a, VECTOR b) { return _mm256_sub_ps(a, b); }
INLINE VECTOR V(mul)(VECTOR a, VECTOR b) { return _mm256_mul_ps(a, b); }
INLINE VECTOR V(div)(VECTOR a, VECTOR b) { return _mm256_div_ps(a, b); }
INLINE VECTOR V(exp)(VECTOR x) { return rp_exp_avx2(x); }
INLINE VECTOR V(tanh)(VECTOR x) { return rp_tanh_avx2(x); }
INLINE VECTOR V(most)(VECTOR x, VECTOR limit) { return _mm256_min_ps(limit, x); }
INLINE VECTOR V(load_part)(const float *from, uint32_t count) {
    float part[LANES] = {0.0f};
    memcpy(part, from, count * sizeof *part);
    return _mm256_loadu_ps(part);
}
INLINE void V(store_part)(float *to, VECTOR x, uint32_t count) {
    float part[LANES];
    _mm256_storeu_ps(part, x);
    memcpy(to, part, count * sizeof *part);
}
INLINE void V(store_bf16)(uint16_t *to, VECTOR x, uint32_t count) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    bits = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
    __m128i halves =
        _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    if (count == LANES) {
        _mm_storeu_si128((__m128i *)(void *)to, halves);
    } else {
        uint16_t part[LANES];
        _mm_storeu_si128((__m128i *)(void *)part, halves);
        memcpy(to, part, count * sizeof *part);
    }
}
INLINE double V(squares)(const float *from, uint32_t count) {
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
    for (uint32_t i = 0; i < count; i += LANES) {
        VECTOR x = count - i >= LANES ? V(load)(from + i) : V(load_part)(from + i, count - i);
        __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
        __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
        low = _mm256_fmadd_pd(a, a, low);
        high = _mm256_fmadd_pd(b, b, high);
    }
    double sums[4];
    _mm256_storeu_pd(sums, _mm256_add_pd(low, high));
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}
INLINE double V(total)(const float *from, uint32_t count) {
    __m256d sum = _mm256_setzero_pd();
    for (uint32_t i = 0; i < count; i += LANES) {
        VECTOR x = count - i >= LANES ? V(load)(from + i) : V(load_part)(from + i, count - i);
        sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
        sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
    }
    double sums[4];
    _mm256_storeu_pd(sums, sum);
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}
INLINE void V(angles)(const float *from, uint32_t count, VECTOR *cosines, VECTOR *sines) {
    float cosine[LANES] = {0.0f}, sine[LANES] = {0.0f};
    for (uint32_t i = 0; i < count; i++) {
        cosine[i] = from[2 * i];
        sine[i] = from[2 * i + 1];
    }
    *cosines = V(load)(cosine);
    *sines = V(load)(sine);
}

#include "device/ops_tile.h"

const struct rp_fast_ops *rp_fast_ops_select(enum rp_cpu_isa isa) {
    if (isa == RP_ISA_SCALAR)
        return &scalar_ops;
    return isa == RP_ISA_AVX2 ? &avx2_ops : &avx512_ops;
}

#else

const struct rp_fast_ops *rp_fast_ops_select(enum rp_cpu_isa isa) {
    (void)isa;
    return &scalar_ops;
}

#endif
