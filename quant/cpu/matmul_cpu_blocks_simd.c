/* matmul_cpu_blocks_simd.c - decoding and tiles of GEMMs on blocks, for AVX2 and AVX-512.
 *
 *   int, AVX2   |w| times x with w's sign, as in matmul_cpu_8_simd.c
 *   int, VNNI   dpbusd of w + 128 and x; the sums start at -128 * sum of x
 *   f32         acc = fma(w, x, acc), k after k */
#include "base/tsan.h"
#include "quant/blocks_decode.h"
#include "quant/cpu/matmul_internal.h"

#if RP_MATMUL_HAS_SIMD
#include <immintrin.h>
#include <string.h>

#define PANEL       16u
#define QUAD_BYTES  64u
#define INLINE(isa) static inline __attribute__((always_inline, target(isa)))
#define AVX2        "avx2,fma"
#define AVX512      "avx512f,avx512bw,avx512vl,avx512dq"
#define VNNI        "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"

static inline __attribute__((always_inline)) int32_t load_i32(const void *from) {
    int32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* --- decoding ------------------------------------------------------------------------------ */

/* n is a multiple of 32. A target that both levels include. */
INLINE("avx2")
void lookup_avx2(const uint8_t *in, int8_t *low, int8_t *high, const int8_t values[16],
                 uint32_t n) {
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)values));
    __m256i mask = _mm256_set1_epi8(15);
    for (uint32_t i = 0; i < n; i += 32) {
        __m256i codes = _mm256_loadu_si256((const void *)(in + i));
        __m256i above = _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask);
        _mm256_storeu_si256((void *)(low + i),
                            _mm256_shuffle_epi8(table, _mm256_and_si256(codes, mask)));
        _mm256_storeu_si256((void *)(high + i), _mm256_shuffle_epi8(table, above));
    }
}

#define DECODE(name, number, block, bytes)                                                         \
    case number:                                                                                   \
        if ((block) > 1)                                                                           \
            rp_block_decode(number, in, PANEL, lookup_avx2, codes, scale, minimum);                \
        break;

#define DEFINE_DECODE(isa, name)                                                                   \
    RP_TSAN_LEAVE_ALONE __attribute__((target(isa))) static void name(                             \
        uint32_t type, const unsigned char *in, int8_t *codes, float *scale, float *minimum) {     \
        switch (type) {                                                                            \
            RP_BLOCK_TYPE_MAP(DECODE)                                                              \
            DECODE(NVFP4, RP_BLOCK_NVFP4, 16, 9)                                                   \
        default:                                                                                   \
            rp_block_decode_int4(type, in, PANEL, codes, scale);                                   \
        }                                                                                          \
    }

DEFINE_DECODE(AVX2, decode_avx2)
DEFINE_DECODE(AVX512, decode_avx512)

#define DEFINE_WIDEN(isa, name)                                                                    \
    RP_TSAN_LEAVE_ALONE __attribute__((target(isa))) static void name(                             \
        uint32_t type, const unsigned char *values, uint32_t cols, float *w) {                     \
        const uint16_t *halves = (const uint16_t *)(const void *)values;                           \
        if (type == RP_BLOCK_F32)                                                                  \
            memcpy(w, values, cols *PANEL * sizeof *w);                                            \
        else if (type == RP_BLOCK_F16)                                                             \
            for (uint32_t i = 0; i < cols * PANEL; i++)                                            \
                w[i] = rp_half(halves[i]);                                                         \
        else                                                                                       \
            for (uint32_t i = 0; i < cols * PANEL; i++) {                                          \
                uint32_t bits = (uint32_t)halves[i] << 16;                                         \
                memcpy(&w[i], &bits, sizeof bits);                                                 \
            }                                                                                      \
    }

DEFINE_WIDEN(AVX2, widen_avx2)
DEFINE_WIDEN(AVX512, widen_avx512)

#define DEFINE_EXPAND(isa, name, vec, vec_int, lanes, load_int, load, store, set1, shl, sar, cvt,  \
                      mul, sub)                                                                    \
    RP_TSAN_LEAVE_ALONE __attribute__((target(isa))) static void name(                             \
        const int8_t *codes, const float *scale, const float *minimum, uint32_t group,             \
        uint32_t cols, float *w) {                                                                 \
        for (uint32_t k = 0; k < cols; k += 4)                                                     \
            for (uint32_t j = 0; j < PANEL; j += (lanes)) {                                        \
                vec_int quads = load_int((const void *)(codes + k / 4 * QUAD_BYTES + j * 4));      \
                vec s = load(scale + k / group * PANEL + j);                                       \
                vec m = minimum ? load(minimum + k / group * PANEL + j) : set1(0.0f);              \
                _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {                              \
                    vec value = mul(s, cvt(sar(shl(quads, 24 - 8 * i), 24)));                      \
                    if (minimum)                                                                   \
                        value = sub(value, m);                                                     \
                    store(w + (k + (uint32_t)i) * PANEL + j, value);                               \
                }                                                                                  \
            }                                                                                      \
    }

DEFINE_EXPAND(AVX2, expand_avx2, __m256, __m256i, 8, _mm256_loadu_si256, _mm256_loadu_ps,
              _mm256_storeu_ps, _mm256_set1_ps, _mm256_slli_epi32, _mm256_srai_epi32,
              _mm256_cvtepi32_ps, _mm256_mul_ps, _mm256_sub_ps)
#define SHL512(v, n) _mm512_slli_epi32(v, (unsigned)(n))
DEFINE_EXPAND(AVX512, expand_avx512, __m512, __m512i, 16, _mm512_loadu_si512, _mm512_loadu_ps,
              _mm512_storeu_ps, _mm512_set1_ps, SHL512, _mm512_srai_epi32, _mm512_cvtepi32_ps,
              _mm512_mul_ps, _mm512_sub_ps)

/* --- f32 tiles ----------------------------------------------------------------------------- */

#define DEFINE_FLOATS(isa, name, vec, lanes, load, store, set1, fma)                               \
    INLINE(isa) void name##_tile(const struct rp_tile_blocks *t, const uint32_t rows) {            \
        enum { PARTS = PANEL / (lanes) };                                                          \
        vec acc[RP_TILE_BLOCKS_ROWS_MAX][PARTS];                                                   \
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)                                \
            _Pragma("GCC unroll 2") for (uint32_t h = 0; h < PARTS; h++) acc[r][h] =               \
                load(t->totals + r * PANEL + h * (lanes));                                         \
        for (size_t k = 0; k < t->cols; k++)                                                       \
            _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) {                          \
                vec x = set1(((const float *)(const void *)((const unsigned char *)t->x +          \
                                                            r * t->row_bytes))[k]);                \
                _Pragma("GCC unroll 2") for (uint32_t h = 0; h < PARTS; h++) acc[r][h] =           \
                    fma(load(t->w + k * PANEL + h * (lanes)), x, acc[r][h]);                       \
            }                                                                                      \
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)                                \
            _Pragma("GCC unroll 2") for (uint32_t h = 0; h < PARTS; h++)                           \
                store(t->totals + r * PANEL + h * (lanes), acc[r][h]);                             \
    }

DEFINE_FLOATS(AVX2, floats_avx2, __m256, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps,
              _mm256_fmadd_ps)
DEFINE_FLOATS(AVX512, floats_avx512, __m512, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps,
              _mm512_fmadd_ps)

/* --- integer tiles ------------------------------------------------------------------------- */

#define ROW(field, r) ((const void *)((const unsigned char *)t->field + (size_t)(r)*t->row_bytes))

/* The sum of the group's inputs. */
static inline __attribute__((always_inline)) int32_t
inputs_of(const struct rp_tile_blocks *t, uint32_t r, uint32_t k, const uint32_t group) {
    const int32_t *sums = ROW(input_sums, r);
    return group == 16 ? sums[k / 16] : sums[k / 16] + sums[k / 16 + 1];
}

INLINE(VNNI)
void group_vnni(const struct rp_tile_blocks *t, const uint32_t rows, const uint32_t group,
                const bool has_min) {
    __m512 total[RP_TILE_BLOCKS_ROWS_MAX];
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) total[r] =
        _mm512_loadu_ps(t->totals + r * PANEL);
    for (uint32_t k = 0; k < t->cols; k += group) {
        __m512i acc[RP_TILE_BLOCKS_ROWS_MAX];
        int32_t inputs[RP_TILE_BLOCKS_ROWS_MAX];
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) {
            inputs[r] = inputs_of(t, r, k, group);
            acc[r] = _mm512_set1_epi32(-128 * inputs[r]);
        }
        _Pragma("GCC unroll 8") for (uint32_t q = 0; q < group / 4; q++) {
            __m512i w =
                _mm512_xor_si512(flip, _mm512_loadu_si512(t->codes + (k / 4 + q) * QUAD_BYTES));
            _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) acc[r] =
                _mm512_dpbusd_epi32(
                    acc[r], w,
                    _mm512_set1_epi32(load_i32((const int8_t *)ROW(quantized, r) + k + q * 4)));
        }
        __m512 s = _mm512_loadu_ps(t->scale + k / group * PANEL);
        __m512 m = has_min ? _mm512_loadu_ps(t->minimum + k / group * PANEL) : s;
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) {
            float xs = ((const float *)ROW(input_scales, r))[k / 32];
            __m512 sum = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r]), _mm512_set1_ps(xs));
            total[r] = _mm512_fmadd_ps(s, sum, total[r]);
            if (has_min)
                total[r] = _mm512_fnmadd_ps(m, _mm512_set1_ps(xs * (float)inputs[r]), total[r]);
        }
    }
    _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)
        _mm512_storeu_ps(t->totals + r * PANEL, total[r]);
}

/* One half of the panel: 8 outputs from lane j on. */
INLINE(AVX2)
void half_avx2(const struct rp_tile_blocks *t, const uint32_t rows, const uint32_t group,
               const bool has_min, const uint32_t j) {
    __m256 total[RP_TILE_BLOCKS_ROWS_MAX];
    const __m256i ones = _mm256_set1_epi16(1);
    _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) total[r] =
        _mm256_loadu_ps(t->totals + r * PANEL + j);
    for (uint32_t k = 0; k < t->cols; k += group) {
        __m256i acc[RP_TILE_BLOCKS_ROWS_MAX];
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) acc[r] = _mm256_setzero_si256();
        _Pragma("GCC unroll 8") for (uint32_t q = 0; q < group / 4; q++) {
            __m256i w =
                _mm256_loadu_si256((const void *)(t->codes + (k / 4 + q) * QUAD_BYTES + j * 4));
            __m256i size = _mm256_abs_epi8(w);
            _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) {
                __m256i x =
                    _mm256_set1_epi32(load_i32((const int8_t *)ROW(quantized, r) + k + q * 4));
                __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w));
                acc[r] = _mm256_add_epi32(acc[r], _mm256_madd_epi16(pairs, ones));
            }
        }
        __m256 s = _mm256_loadu_ps(t->scale + k / group * PANEL + j);
        __m256 m = has_min ? _mm256_loadu_ps(t->minimum + k / group * PANEL + j) : s;
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) {
            float xs = ((const float *)ROW(input_scales, r))[k / 32];
            __m256 sum = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r]), _mm256_set1_ps(xs));
            total[r] = _mm256_fmadd_ps(s, sum, total[r]);
            if (has_min)
                total[r] = _mm256_fnmadd_ps(
                    m, _mm256_set1_ps(xs * (float)inputs_of(t, r, k, group)), total[r]);
        }
    }
    _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)
        _mm256_storeu_ps(t->totals + r * PANEL + j, total[r]);
}

INLINE(AVX2)
void group_avx2(const struct rp_tile_blocks *t, const uint32_t rows, const uint32_t group,
                const bool has_min) {
    half_avx2(t, rows, group, has_min, 0);
    half_avx2(t, rows, group, has_min, 8);
}

/* Every combination is code of its own: the accumulators must be registers. */
#define INTEGERS(isa, name, rows)                                                                  \
    RP_TSAN_LEAVE_ALONE __attribute__((target(isa))) static void integers_##name##_##rows(         \
        const struct rp_tile_blocks *t) {                                                          \
        if (t->group == 16 && t->minimum)                                                          \
            group_##name(t, rows, 16, true);                                                       \
        else if (t->group == 16)                                                                   \
            group_##name(t, rows, 16, false);                                                      \
        else if (t->minimum)                                                                       \
            group_##name(t, rows, 32, true);                                                       \
        else                                                                                       \
            group_##name(t, rows, 32, false);                                                      \
    }
#define FLOATS(isa, name, rows)                                                                    \
    RP_TSAN_LEAVE_ALONE __attribute__((target(isa))) static void floats_##name##_##rows(           \
        const struct rp_tile_blocks *t) {                                                          \
        floats_##name##_tile(t, rows);                                                             \
    }

INTEGERS(AVX2, avx2, 1)
INTEGERS(AVX2, avx2, 2)
INTEGERS(AVX2, avx2, 4)
INTEGERS(VNNI, vnni, 1)
INTEGERS(VNNI, vnni, 2)
INTEGERS(VNNI, vnni, 4)
INTEGERS(VNNI, vnni, 8)
FLOATS(AVX2, avx2, 1)
FLOATS(AVX2, avx2, 2)
FLOATS(AVX2, avx2, 4)
FLOATS(AVX512, avx512, 1)
FLOATS(AVX512, avx512, 2)
FLOATS(AVX512, avx512, 4)
FLOATS(AVX512, avx512, 8)

#define AVX2_TILES(name)                                                                           \
    { name##_avx2_1, name##_avx2_2, name##_avx2_4, NULL }

static const struct rp_kernel_blocks avx2 = {.isa = RP_ISA_AVX2,
                                             .decode = decode_avx2,
                                             .widen = widen_avx2,
                                             .expand = expand_avx2,
                                             .integers = AVX2_TILES(integers),
                                             .floats = AVX2_TILES(floats)};

#define AVX512_KERNEL                                                                              \
    .isa = RP_ISA_AVX512, .decode = decode_avx512, .widen = widen_avx512, .expand = expand_avx512, \
    .floats = {floats_avx512_1, floats_avx512_2, floats_avx512_4, floats_avx512_8}

static const struct rp_kernel_blocks avx512 = {AVX512_KERNEL, .integers = AVX2_TILES(integers)};
static const struct rp_kernel_blocks vnni = {
    AVX512_KERNEL, .integers = {integers_vnni_1, integers_vnni_2, integers_vnni_4, integers_vnni_8},
    .few = true};

const struct rp_kernel_blocks *rp_kernel_blocks_select(enum rp_cpu_isa isa) {
    if (isa == RP_ISA_SCALAR)
        return NULL;
    if (isa == RP_ISA_AVX2)
        return &avx2;
    return __builtin_cpu_supports("avx512vnni") ? &vnni : &avx512;
}

#endif
