/* matmul_cpu_blocks_few.c - GEMMs on GGUF's blocks with one or two input rows, for AVX-512 VNNI: a
 * decode step, which is bound by the bytes of the weights if little else is done with them.
 *
 * Codes go from the block into the dot products without a buffer between. They are unsigned there,
 * 0 to 15, 31, 63 or 255, and the sum of the inputs times the offset is subtracted: these are
 * integers, so sums are those of the other kernels, and so are the bits (quant/matrix.h). */
#include "base/tsan.h"
#include "quant/blocks_decode.h"
#include "quant/cpu/matmul_internal.h"

#if RP_MATMUL_HAS_SIMD
#include <immintrin.h>

#define PANEL  16u
#define UNIT   64u /* bytes: four codes, or codes' parts, of 16 outputs */
#define VNNI   "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
#define INLINE static inline __attribute__((always_inline, target(VNNI)))

/* One row's sums, and where its inputs of the block begin. */
struct row {
    __m512 total;
    const int8_t *x;
    const float *scales;
    const int32_t *sums;
};

INLINE __m512i dot(__m512i sum, __m512i codes, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(four));
}

INLINE __m512i load(const unsigned char *p) { return _mm512_loadu_si512(p); }
INLINE __m512 halves(const unsigned char *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
INLINE __m512i bytes(const unsigned char *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}
INLINE __m512i signed_bytes(const unsigned char *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p));
}
/* Bits `from` to from + count - 1 of each byte, at the bit `to`. */
INLINE __m512i bits(__m512i v, const unsigned from, const unsigned count, const unsigned to) {
    __m512i mask = _mm512_set1_epi8((char)(((1u << count) - 1) << to));
    v = from > to   ? _mm512_srli_epi16(v, from - to)
        : from < to ? _mm512_slli_epi16(v, to - from)
                    : v;
    return _mm512_and_si512(v, mask);
}

INLINE int32_t inputs_of(const struct row *row, uint32_t first, const uint32_t count) {
    return count == 16 ? row->sums[first / 16] : row->sums[first / 16] + row->sums[first / 16 + 1];
}

/* The group of `count` columns from `first` on: its sum of unsigned codes, their offset. */
INLINE void add_group(struct row *row, uint32_t first, const uint32_t count, __m512i sum,
                      const int32_t offset, __m512 scale) {
    float xs = row->scales[first / 32];
    if (offset)
        sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(offset * inputs_of(row, first, count)));
    __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(xs));
    row->total = _mm512_fmadd_ps(scale, product, row->total);
}

INLINE void add_minimum(struct row *row, uint32_t first, __m512 minimum) {
    float inputs = row->scales[first / 32] * (float)inputs_of(row, first, 32);
    row->total = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(inputs), row->total);
}

INLINE void block_q8_0(const unsigned char *in, struct row *rows, const uint32_t count) {
    __m512 d = halves(in);
    __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    _Pragma("GCC unroll 8") for (uint32_t q = 0; q < 8; q++) {
        __m512i codes = _mm512_xor_si512(flip, load(in + 2 * PANEL + q * UNIT));
        for (uint32_t r = 0; r < count; r++)
            sum[r] = dot(sum[r], codes, rows[r].x + 4 * q);
    }
    for (uint32_t r = 0; r < count; r++)
        add_group(&rows[r], 0, 32, sum[r], 128, d);
}

/* Q4_0, and with fifth bits Q5_0: byte i of a unit's codes has k = i and i + 16. */
INLINE void block_split(const unsigned char *in, struct row *rows, const uint32_t count,
                        const bool fifth) {
    __m512 d = halves(in);
    __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()}, high;
    const unsigned char *from = in + (fifth ? 6 : 2) * PANEL;
    high = fifth ? load(in + 2 * PANEL) : sum[0];
    _Pragma("GCC unroll 4") for (uint32_t t = 0; t < 4; t++) {
        __m512i v = load(from + t * UNIT), a = bits(v, 0, 4, 0), b = bits(v, 4, 4, 0);
        if (fifth) {
            a = _mm512_or_si512(a, bits(high, t, 1, 4));
            b = _mm512_or_si512(b, bits(high, t + 4, 1, 4));
        }
        for (uint32_t r = 0; r < count; r++) {
            sum[r] = dot(sum[r], a, rows[r].x + 4 * t);
            sum[r] = dot(sum[r], b, rows[r].x + 4 * t + 16);
        }
    }
    for (uint32_t r = 0; r < count; r++)
        add_group(&rows[r], 0, 32, sum[r], fifth ? 16 : 8, d);
}

/* Scale and minimum of group g in the twelve bytes of Q4_K and Q5_K. */
INLINE void scales_6(const unsigned char *in, const uint32_t g, __m512i *scale, __m512i *minimum) {
    const __m512i six = _mm512_set1_epi32(63), four = _mm512_set1_epi32(15);
    if (g < 4) {
        *scale = _mm512_and_si512(bytes(in + g * PANEL), six);
        *minimum = _mm512_and_si512(bytes(in + (g + 4) * PANEL), six);
        return;
    }
    __m512i low = bytes(in + (g + 4) * PANEL);
    __m512i a = _mm512_srli_epi32(bytes(in + (g - 4) * PANEL), 6);
    __m512i b = _mm512_srli_epi32(bytes(in + g * PANEL), 6);
    *scale = _mm512_or_si512(_mm512_and_si512(low, four), _mm512_slli_epi32(a, 4));
    *minimum = _mm512_or_si512(_mm512_srli_epi32(low, 4), _mm512_slli_epi32(b, 4));
}

/* Q4_K and, with fifth bits, Q5_K: two groups from each eight units. */
INLINE void block_k(const unsigned char *in, struct row *rows, const uint32_t count,
                    const bool fifth) {
    __m512 d = halves(in), dmin = halves(in + 2 * PANEL);
    const unsigned char *high = in + 16 * PANEL, *from = in + (fifth ? 48 : 16) * PANEL;
    _Pragma("GCC unroll 4") for (uint32_t pair = 0; pair < 4; pair++) {
        __m512i sum[2][2] = {{_mm512_setzero_si512(), _mm512_setzero_si512()},
                             {_mm512_setzero_si512(), _mm512_setzero_si512()}};
        _Pragma("GCC unroll 8") for (uint32_t q = 0; q < 8; q++) {
            __m512i v = load(from + (8 * pair + q) * UNIT);
            __m512i a = bits(v, 0, 4, 0), b = bits(v, 4, 4, 0);
            if (fifth) {
                __m512i bit = load(high + q * UNIT);
                a = _mm512_or_si512(a, bits(bit, 2 * pair, 1, 4));
                b = _mm512_or_si512(b, bits(bit, 2 * pair + 1, 1, 4));
            }
            for (uint32_t r = 0; r < count; r++) {
                sum[r][0] = dot(sum[r][0], a, rows[r].x + 64 * pair + 4 * q);
                sum[r][1] = dot(sum[r][1], b, rows[r].x + 64 * pair + 4 * q + 32);
            }
        }
        _Pragma("GCC unroll 2") for (uint32_t half = 0; half < 2; half++) {
            __m512i scale, minimum;
            uint32_t g = 2 * pair + half;
            scales_6(in + 4 * PANEL, g, &scale, &minimum);
            __m512 s = _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale));
            __m512 m = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(minimum));
            for (uint32_t r = 0; r < count; r++) {
                add_group(&rows[r], 32 * g, 32, sum[r][half], 0, s);
                add_minimum(&rows[r], 32 * g, m);
            }
        }
    }
}

/* 128 columns of Q6_K: part p has the columns 32 p, in groups of 16. */
INLINE void half_q6_k(const unsigned char *in, struct row *rows, const uint32_t count,
                      const uint32_t h) {
    __m512i sum[2][8];
    __m512 d = halves(in + 208 * PANEL);
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t g = 0; g < 8; g++)
            sum[r][g] = _mm512_setzero_si512();
    _Pragma("GCC unroll 8") for (uint32_t u = 0; u < 8; u++) {
        __m512i two = load(in + 128 * PANEL + (8 * h + u) * UNIT);
        __m512i v[2] = {load(in + (16 * h + u) * UNIT), load(in + (16 * h + 8 + u) * UNIT)};
        _Pragma("GCC unroll 4") for (uint32_t p = 0; p < 4; p++) {
            __m512i codes =
                _mm512_or_si512(bits(v[p % 2], p / 2 * 4, 4, 0), bits(two, 2 * p, 2, 4));
            for (uint32_t r = 0; r < count; r++)
                sum[r][2 * p + u / 4] =
                    dot(sum[r][2 * p + u / 4], codes, rows[r].x + 128 * h + 32 * p + 4 * u);
        }
    }
    _Pragma("GCC unroll 8") for (uint32_t g = 0; g < 8; g++) {
        __m512i scale = signed_bytes(in + (192 + 8 * h + g) * PANEL);
        __m512 s = _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale));
        for (uint32_t r = 0; r < count; r++)
            add_group(&rows[r], 128 * h + 16 * g, 16, sum[r][g], 32, s);
    }
}

INLINE void block(const uint32_t type, const unsigned char *in, struct row *rows,
                  const uint32_t count) {
    if (type == RP_BLOCK_Q8_0) {
        block_q8_0(in, rows, count);
    } else if (type == RP_BLOCK_Q4_0 || type == RP_BLOCK_Q5_0) {
        block_split(in, rows, count, type == RP_BLOCK_Q5_0);
    } else if (type == RP_BLOCK_Q4_K || type == RP_BLOCK_Q5_K) {
        block_k(in, rows, count, type == RP_BLOCK_Q5_K);
    } else {
        half_q6_k(in, rows, count, 0);
        half_q6_k(in, rows, count, 1);
    }
}

INLINE void chunk(const uint32_t type, const unsigned char *in, const struct rp_tile_blocks *t,
                  const uint32_t count) {
    struct rp_block_info info = rp_block_info(type);
    struct row rows[2];
    for (uint32_t r = 0; r < count; r++) {
        size_t at = r * t->row_bytes;
        rows[r] = (struct row){
            _mm512_loadu_ps(t->totals + r * PANEL), t->quantized + at,
            (const float *)(const void *)((const unsigned char *)t->input_scales + at),
            (const int32_t *)(const void *)((const unsigned char *)t->input_sums + at)};
    }
    for (uint32_t k = 0; k < t->cols; k += info.values) {
        block(type, in, rows, count);
        in += info.bytes * PANEL;
        for (uint32_t r = 0; r < count; r++) {
            rows[r].x += info.values;
            rows[r].scales += info.values / 32;
            rows[r].sums += info.values / 16;
        }
    }
    for (uint32_t r = 0; r < count; r++)
        _mm512_storeu_ps(t->totals + r * PANEL, rows[r].total);
}

#define FEW(name, type)                                                                            \
    RP_TSAN_LEAVE_ALONE __attribute__((target(VNNI))) static void name##_1(                        \
        const unsigned char *in, const struct rp_tile_blocks *t) {                                 \
        chunk(type, in, t, 1);                                                                     \
    }                                                                                              \
    RP_TSAN_LEAVE_ALONE __attribute__((target(VNNI))) static void name##_2(                        \
        const unsigned char *in, const struct rp_tile_blocks *t) {                                 \
        chunk(type, in, t, 2);                                                                     \
    }

FEW(q8_0, RP_BLOCK_Q8_0)
FEW(q4_0, RP_BLOCK_Q4_0)
FEW(q5_0, RP_BLOCK_Q5_0)
FEW(q4_k, RP_BLOCK_Q4_K)
FEW(q5_k, RP_BLOCK_Q5_K)
FEW(q6_k, RP_BLOCK_Q6_K)

rp_few_blocks_fn rp_kernel_blocks_few(uint32_t type, size_t rows) {
    static const struct {
        uint32_t type;
        rp_few_blocks_fn fns[2];
    } kernels[] = {
        {RP_BLOCK_Q8_0, {q8_0_1, q8_0_2}}, {RP_BLOCK_Q4_0, {q4_0_1, q4_0_2}},
        {RP_BLOCK_Q5_0, {q5_0_1, q5_0_2}}, {RP_BLOCK_Q4_K, {q4_k_1, q4_k_2}},
        {RP_BLOCK_Q5_K, {q5_k_1, q5_k_2}}, {RP_BLOCK_Q6_K, {q6_k_1, q6_k_2}},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(kernels); i++)
        if (kernels[i].type == type && rows >= 1 && rows <= 2)
            return kernels[i].fns[rows - 1];
    return NULL;
}

#endif
