/* matmul_cpu_8_simd.c - tiles of 8-bit GEMMs for AVX2, AVX-512 and its VNNI.
 *
 * One 64-byte load is 16 outputs x 4 k; a 32-bit lane holds the quad of one output.
 *   int, AVX2   |w| (up to 128) times x with w's sign (up to 127): pairs reach 32,512 at most, so
 *   that the 16-bit sums of
 *               maddubs never saturate, then madd by ones into int32
 *   int, VNNI   dpbusd of x + 128 and w; the sums start at -128 * sum of w, stored in front of the
 *   panel
 *   fma         a quad's quantized values become f32, k after k, exactly; acc = fma(quantized
 *   value, x, acc) */
#include "base/tsan.h"
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

/* --- integers -------------------------------------------------------------------------- */

struct ymm2i {
    __m256i low, high; /* outputs 0-7 and 8-15 */
};

INLINE(AVX2) __m256i avx2_dot(__m256i acc, __m256i w, __m256i size, __m256i x) {
    __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE(AVX2)
void int_avx2_tile(const struct rp_tile_8 *t, const uint32_t rows, const uint32_t panels) {
    struct ymm2i acc[RP_TILE_8_ROWS][RP_TILE_8_PANELS];
    int32_t *sums = t->sums;
    _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)
        _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++) {
        const __m256i *at = (const void *)(sums + (r * RP_TILE_8_PANELS + p) * PANEL);
        acc[r][p].low = t->begin ? _mm256_setzero_si256() : _mm256_loadu_si256(at);
        acc[r][p].high = t->begin ? _mm256_setzero_si256() : _mm256_loadu_si256(at + 1);
    }
    for (size_t q = 0; q < t->quads; q++)
        _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++) {
            const __m256i *from = (const void *)(t->weights + p * t->panel_stride + q * QUAD_BYTES);
            __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
            __m256i low_size = _mm256_abs_epi8(low), high_size = _mm256_abs_epi8(high);
            _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) {
                __m256i x = _mm256_set1_epi32(load_i32(t->inputs + r * t->row_bytes + q * 4));
                acc[r][p].low = avx2_dot(acc[r][p].low, low, low_size, x);
                acc[r][p].high = avx2_dot(acc[r][p].high, high, high_size, x);
            }
        }
    _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)
        _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++) {
        __m256i *at = (void *)(sums + (r * RP_TILE_8_PANELS + p) * PANEL);
        _mm256_storeu_si256(at, acc[r][p].low);
        _mm256_storeu_si256(at + 1, acc[r][p].high);
    }
}

INLINE(VNNI)
void int_vnni_tile(const struct rp_tile_8 *t, const uint32_t rows, const uint32_t panels) {
    __m512i acc[RP_TILE_8_ROWS][RP_TILE_8_PANELS];
    int32_t *sums = t->sums;
    _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)
        _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++) acc[r][p] =
            t->begin ? _mm512_loadu_si512((const unsigned char *)t->heads + p * t->panel_stride)
                     : _mm512_loadu_si512(sums + (r * RP_TILE_8_PANELS + p) * PANEL);
    for (size_t q = 0; q < t->quads; q++) {
        __m512i w[RP_TILE_8_PANELS];
        _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++) w[p] =
            _mm512_loadu_si512(t->weights + p * t->panel_stride + q * QUAD_BYTES);
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) {
            __m512i x = _mm512_set1_epi32(load_i32(t->inputs + r * t->row_bytes + q * 4));
            _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++) acc[r][p] =
                _mm512_dpbusd_epi32(acc[r][p], x, w[p]);
        }
    }
    _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)
        _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++)
            _mm512_storeu_si512(sums + (r * RP_TILE_8_PANELS + p) * PANEL, acc[r][p]);
}

/* --- f32: quantized value i of each lane's quad, exactly ---- */

INLINE(AVX2) __m256 avx2_int8(__m256i quads, const int i) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(quads, 24 - 8 * i), 24));
}
/* Sign at bit 31, exponent and mantissa where f32 has them: 2^120 too small, denormals included. */
INLINE(AVX2) __m256 avx2_fp8(__m256i quads, const int i) {
    __m256i bits = _mm256_srai_epi32(_mm256_slli_epi32(quads, 24 - 8 * i), 4);
    bits = _mm256_and_si256(bits, _mm256_set1_epi32((int)0x87F00000u));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
}
INLINE(AVX512) __m512 avx512_int8(__m512i quads, const int i) {
    return _mm512_cvtepi32_ps(
        _mm512_srai_epi32(_mm512_slli_epi32(quads, (unsigned)(24 - 8 * i)), 24));
}
INLINE(AVX512) __m512 avx512_fp8(__m512i quads, const int i) {
    __m512i bits = _mm512_srai_epi32(_mm512_slli_epi32(quads, (unsigned)(24 - 8 * i)), 4);
    bits = _mm512_and_si512(bits, _mm512_set1_epi32((int)0x87F00000u));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
}

/* In halves of 8 outputs for AVX2, of 16 for AVX-512. */
#define DEFINE_FMA_TILE(isa, name, vec, vec_int, lanes, zero, load, store, load_int, set1, fma,    \
                        code)                                                                      \
    INLINE(isa)                                                                                    \
    void name##_tile(const struct rp_tile_8 *t, const uint32_t rows, const uint32_t panels) {      \
        enum { PARTS = PANEL / (lanes) };                                                          \
        vec acc[RP_TILE_8_ROWS][RP_TILE_8_PANELS][PARTS];                                          \
        float *sums = t->sums;                                                                     \
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)                                \
            _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++)                          \
                _Pragma("GCC unroll 8") for (uint32_t h = 0; h < PARTS; h++) acc[r][p][h] =        \
                    t->begin ? zero()                                                              \
                             : load(sums + (r * RP_TILE_8_PANELS + p) * PANEL + h * (lanes));      \
        for (size_t q = 0; q < t->quads; q++)                                                      \
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)                                    \
                _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++)                      \
                    _Pragma("GCC unroll 8") for (uint32_t h = 0; h < PARTS; h++) {                 \
                vec w = code(load_int((const void *)(t->weights + p * t->panel_stride +            \
                                                     q * QUAD_BYTES + h * (lanes)*4)),             \
                             i);                                                                   \
                _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) acc[r][p][h] = fma(    \
                    w,                                                                             \
                    set1(((const float *)(const void *)(t->inputs +                                \
                                                        r * t->row_bytes))[q * 4 + (size_t)i]),    \
                    acc[r][p][h]);                                                                 \
            }                                                                                      \
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)                                \
            _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++)                          \
                _Pragma("GCC unroll 8") for (uint32_t h = 0; h < PARTS; h++)                       \
                    store(sums + (r * RP_TILE_8_PANELS + p) * PANEL + h * (lanes), acc[r][p][h]);  \
    }

#define DEFINE_AVX2(name, code)                                                                    \
    DEFINE_FMA_TILE(AVX2, name, __m256, __m256i, 8, _mm256_setzero_ps, _mm256_loadu_ps,            \
                    _mm256_storeu_ps, _mm256_loadu_si256, _mm256_set1_ps, _mm256_fmadd_ps, code)
#define DEFINE_AVX512(name, code)                                                                  \
    DEFINE_FMA_TILE(AVX512, name, __m512, __m512i, 16, _mm512_setzero_ps, _mm512_loadu_ps,         \
                    _mm512_storeu_ps, _mm512_loadu_si512, _mm512_set1_ps, _mm512_fmadd_ps, code)

DEFINE_AVX2(int8_avx2, avx2_int8)
DEFINE_AVX2(fp8_avx2, avx2_fp8)
DEFINE_AVX512(int8_avx512, avx512_int8)
DEFINE_AVX512(fp8_avx512, avx512_fp8)

#define INSTANCE(isa, name, rows, panels)                                                          \
    RP_TSAN_LEAVE_ALONE __attribute__((target(isa))) static void name##_##rows##x##panels(         \
        const struct rp_tile_8 *t) {                                                               \
        name##_tile(t, rows, panels);                                                              \
    }
#define INSTANCES(isa, name)                                                                       \
    INSTANCE(isa, name, 1, 1)                                                                      \
    INSTANCE(isa, name, 2, 1)                                                                      \
    INSTANCE(isa, name, 3, 1)                                                                      \
    INSTANCE(isa, name, 4, 1)                                                                      \
    INSTANCE(isa, name, 1, 2)                                                                      \
    INSTANCE(isa, name, 2, 2)
/* 32 registers hold 4 rows of 2 panels. */
#define WIDE_INSTANCES(isa, name)                                                                  \
    INSTANCES(isa, name)                                                                           \
    INSTANCE(isa, name, 3, 2)                                                                      \
    INSTANCE(isa, name, 4, 2)
#define TILES(name)                                                                                \
    .rows = {0, 4, 2},                                                                             \
    .tiles = {{name##_1x1, name##_1x2}, {name##_2x1, name##_2x2}, {name##_3x1}, {name##_4x1}}
#define WIDE_TILES(name)                                                                           \
    .rows = {0, 4, 4}, .tiles = {{name##_1x1, name##_1x2},                                         \
                                 {name##_2x1, name##_2x2},                                         \
                                 {name##_3x1, name##_3x2},                                         \
                                 {name##_4x1, name##_4x2}}

INSTANCES(AVX2, int_avx2)
INSTANCES(AVX2, int8_avx2)
INSTANCES(AVX2, fp8_avx2)
WIDE_INSTANCES(VNNI, int_vnni)
WIDE_INSTANCES(AVX512, int8_avx512)
WIDE_INSTANCES(AVX512, fp8_avx512)

static const struct rp_kernel_8 int_avx2 = {.isa = RP_ISA_AVX2, .integers = true, TILES(int_avx2)};
static const struct rp_kernel_8 int8_avx2 = {.isa = RP_ISA_AVX2, TILES(int8_avx2)};
static const struct rp_kernel_8 fp8_avx2 = {.isa = RP_ISA_AVX2, TILES(fp8_avx2)};
static const struct rp_kernel_8 int_vnni = {
    .isa = RP_ISA_AVX512, .integers = true, .offset = true, WIDE_TILES(int_vnni)};
static const struct rp_kernel_8 int8_avx512 = {.isa = RP_ISA_AVX512, WIDE_TILES(int8_avx512)};
static const struct rp_kernel_8 fp8_avx512 = {.isa = RP_ISA_AVX512, WIDE_TILES(fp8_avx512)};

const struct rp_kernel_8 *rp_kernel_8_select(enum rp_cpu_isa isa, enum rp_dtype dtype,
                                             bool integers) {
    if (isa == RP_ISA_SCALAR)
        return NULL;
    /* CPUs with AVX-512 but no VNNI use the AVX2 kernel for integers: the sums are exact. */
    if (integers)
        return isa >= RP_ISA_AVX512 && __builtin_cpu_supports("avx512vnni") ? &int_vnni : &int_avx2;
    if (dtype == RP_DTYPE_INT8)
        return isa >= RP_ISA_AVX512 ? &int8_avx512 : &int8_avx2;
    return isa >= RP_ISA_AVX512 ? &fp8_avx512 : &fp8_avx2;
}

#endif
