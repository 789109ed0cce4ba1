/* matmul_cpu_simd.c - GEMMs on panels of 16 outputs, for AVX2, AVX-512 and AVX-512 BF16.
 *
 * A tile is R rows x P panels; its R * P accumulators of 16 outputs stay in registers while k runs:
 *
 *            panel 0   panel 1 ..            per step of k: P loads of weights, R broadcasts of
 *   row 0    acc[0][0] acc[0][1]             inputs, R * P multiply-adds
 *   row 1    acc[1][0] acc[1][1]
 *
 * Order of a sum (reduction contract, quant/matrix.h): each accumulator is one chain over all of k,
 * ascending, that begins at zero. Tiles of every size, and blocks of k whose accumulators wait in
 * memory (exact: they are f32), run the same chain.
 *   fma   (AVX2, AVX512; f32 and bf16)  acc = fma(w[k], x[k], acc), k = 0, 1, 2, ..
 *                                       both widths give the same bits
 *   dp    (AVX512_BF16; bf16)           acc = dpbf16(acc, w[2i..2i+1], x[2i..2i+1]), i = 0, 1, ..
 *                                       (denormals count as zero, as the instruction has it) */
#include "quant/cpu/matmul_internal.h"

#include "base/bf16.h"
#include "base/tsan.h"
#include "device/ops_simd.h"

#if RP_MATMUL_HAS_SIMD
#include <immintrin.h>
#include <string.h>

#define PANEL           16u
#define TILE_ROWS_MAX   6u
#define TILE_PANELS_MAX 4u
/* Rows whose accumulators are spilled to memory between blocks of k: 24 KiB of stack for 4
 * panels. */
#define BLOCK_ROWS (16 * TILE_ROWS_MAX)
/* Bytes of one panel's block of k: 4 panels' blocks take 128 KiB of L2, and the inputs of a tile
 * stay in L1. */
#define BLOCK_PANEL_BYTES (32u << 10)

/* Size of a work item: bytes of weights, with a row's arithmetic counted as 1/8 of the reading.
 * About 20 us on two Zen 4 cores; claiming an item costs about 20 ns. */
#define PART_BYTES  (512u << 10)
#define PART_ROWS   8u
#define SHARE_PARTS 16u /* of one worker, at most */

struct tile {
    const unsigned char *weights; /* first panel at the first step of k */
    const unsigned char *inputs;  /* first row at the first step of k */
    float *sums;                  /* (rows, TILE_PANELS_MAX, 16) */
    /* Strides from a panel to the next, and from the first two to the second two: both halves of
     * gate_up in one tile. */
    size_t panel_stride, pair_stride;
    size_t row_bytes;
    size_t steps;
    bool begin; /* the sums begin at zero */
    bool odd;   /* one more step, of which only the even half of the input exists */
};

typedef void (*tile_fn)(const struct tile *tile);

struct family {
    enum rp_cpu_isa isa;
    uint32_t step_k;                               /* inputs per step: 2 for bf16, 1 for f32 */
    uint32_t element_bytes;                        /* of weights and inputs */
    uint32_t rows[TILE_PANELS_MAX + 1];            /* most rows of a tile with that many panels */
    tile_fn tiles[TILE_ROWS_MAX][TILE_PANELS_MAX]; /* [rows - 1][panels - 1] */
};

#define INLINE(isa) static inline __attribute__((always_inline, target(isa)))
#define AVX2        "avx2,fma"
#define AVX512      "avx512f,avx512bw,avx512vl,avx512dq"
#define AVX512_BF16 "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"

static inline __attribute__((always_inline)) uint32_t load_u32(const void *from) {
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline __attribute__((always_inline)) uint32_t load_u16(const void *from) {
    uint16_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* --- What each family does in one step of k: load 16 outputs' weights, broadcast an input, add.
 * --- */

struct ymm2 {
    __m256 low, high; /* outputs 0-7 and 8-15 */
};

INLINE(AVX2) struct ymm2 avx2_zero(void) {
    return (struct ymm2){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
INLINE(AVX2) struct ymm2 avx2_load(const float *from) {
    return (struct ymm2){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
INLINE(AVX2) void avx2_store(float *to, struct ymm2 acc) {
    _mm256_storeu_ps(to, acc.low);
    _mm256_storeu_ps(to + 8, acc.high);
}

INLINE(AVX2) struct ymm2 avx2_f32_weights(const unsigned char *from) {
    return avx2_load((const float *)(const void *)from);
}
INLINE(AVX2) __m256 avx2_f32_input(uint32_t bits) {
    return _mm256_castsi256_ps(_mm256_set1_epi32((int)bits));
}
INLINE(AVX2) struct ymm2 avx2_f32_add(struct ymm2 acc, struct ymm2 w, __m256 x) {
    return (struct ymm2){_mm256_fmadd_ps(w.low, x, acc.low), _mm256_fmadd_ps(w.high, x, acc.high)};
}

/* Pairs of bf16: the even k in the low half of each 32 bits, the odd k in the high half. */
INLINE(AVX2) struct ymm2 avx2_bf16_weights(const unsigned char *from) {
    return avx2_load((const float *)(const void *)from);
}
INLINE(AVX2) __m256i avx2_bf16_input(uint32_t bits) { return _mm256_set1_epi32((int)bits); }
INLINE(AVX2) __m256 avx2_even(__m256i pair) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
}
INLINE(AVX2) __m256 avx2_odd(__m256i pair) {
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xFFFF0000u)));
}
INLINE(AVX2) struct ymm2 avx2_bf16_add(struct ymm2 acc, struct ymm2 w, __m256i x) {
    __m256i low = _mm256_castps_si256(w.low), high = _mm256_castps_si256(w.high);
    acc.low = _mm256_fmadd_ps(avx2_even(low), avx2_even(x), acc.low);
    acc.high = _mm256_fmadd_ps(avx2_even(high), avx2_even(x), acc.high);
    acc.low = _mm256_fmadd_ps(avx2_odd(low), avx2_odd(x), acc.low);
    acc.high = _mm256_fmadd_ps(avx2_odd(high), avx2_odd(x), acc.high);
    return acc;
}

INLINE(AVX512) __m512 avx512_zero(void) { return _mm512_setzero_ps(); }
INLINE(AVX512) __m512 avx512_load(const float *from) { return _mm512_loadu_ps(from); }
INLINE(AVX512) void avx512_store(float *to, __m512 acc) { _mm512_storeu_ps(to, acc); }

INLINE(AVX512) __m512 avx512_f32_weights(const unsigned char *from) {
    return _mm512_loadu_ps(from);
}
INLINE(AVX512) __m512 avx512_f32_input(uint32_t bits) {
    return _mm512_castsi512_ps(_mm512_set1_epi32((int)bits));
}
INLINE(AVX512) __m512 avx512_f32_add(__m512 acc, __m512 w, __m512 x) {
    return _mm512_fmadd_ps(w, x, acc);
}

INLINE(AVX512) __m512i avx512_bf16_weights(const unsigned char *from) {
    return _mm512_loadu_si512(from);
}
INLINE(AVX512) __m512i avx512_bf16_input(uint32_t bits) { return _mm512_set1_epi32((int)bits); }
INLINE(AVX512) __m512 avx512_even(__m512i pair) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
}
INLINE(AVX512) __m512 avx512_odd(__m512i pair) {
    return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xFFFF0000u)));
}
INLINE(AVX512) __m512 avx512_bf16_add(__m512 acc, __m512i w, __m512i x) {
    acc = _mm512_fmadd_ps(avx512_even(w), avx512_even(x), acc);
    return _mm512_fmadd_ps(avx512_odd(w), avx512_odd(x), acc);
}

INLINE(AVX512_BF16) __m512bh dp_bf16_weights(const unsigned char *from) {
    return (__m512bh)_mm512_loadu_si512(from);
}
INLINE(AVX512_BF16) __m512bh dp_bf16_input(uint32_t bits) {
    return (__m512bh)_mm512_set1_epi32((int)bits);
}
INLINE(AVX512_BF16) __m512 dp_bf16_add(__m512 acc, __m512bh w, __m512bh x) {
    return _mm512_dpbf16_ps(acc, w, x);
}

/* --- The tile, once for all families. -------------------------------------------------- */

/* `pair` inputs of 16 bits or one of 32 per step: 4 bytes either way, and 64 or 128 of weights...
 * of a panel: 16 outputs x 4 bytes. */
#define STEP_WEIGHT_BYTES 64u
#define STEP_INPUT_BYTES  4u

#define DEFINE_TILE(isa, family, acc_type, weight_type, input_type, vec)                           \
    INLINE(isa)                                                                                    \
    void family##_tile(const struct tile *t, const uint32_t rows, const uint32_t panels) {         \
        acc_type acc[TILE_ROWS_MAX][TILE_PANELS_MAX];                                              \
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)                                \
            _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++) acc[r][p] =              \
                t->begin ? vec##_zero() : vec##_load(t->sums + (r * TILE_PANELS_MAX + p) * PANEL); \
        size_t count = t->steps + t->odd;                                                          \
        for (size_t s = 0; s < t->steps; s++) {                                                    \
            weight_type w[TILE_PANELS_MAX];                                                        \
            _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++) {                        \
                const unsigned char *from = t->weights + (p & 1) * t->panel_stride +               \
                                            (p >> 1) * t->pair_stride + s * STEP_WEIGHT_BYTES;     \
                w[p] = family##_weights(from);                                                     \
            }                                                                                      \
            _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) {                          \
                input_type x =                                                                     \
                    family##_input(load_u32(t->inputs + r * t->row_bytes + s * STEP_INPUT_BYTES)); \
                _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++) acc[r][p] =          \
                    family##_add(acc[r][p], w[p], x);                                              \
            }                                                                                      \
        }                                                                                          \
        for (size_t s = t->steps; s < count; s++)                                                  \
            _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) {                          \
                input_type x =                                                                     \
                    family##_input(load_u16(t->inputs + r * t->row_bytes + s * STEP_INPUT_BYTES)); \
                _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++) acc[r][p] =          \
                    family##_add(acc[r][p],                                                        \
                                 family##_weights(t->weights + (p & 1) * t->panel_stride +         \
                                                  (p >> 1) * t->pair_stride +                      \
                                                  s * STEP_WEIGHT_BYTES),                          \
                                 x);                                                               \
            }                                                                                      \
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)                                \
            _Pragma("GCC unroll 8") for (uint32_t p = 0; p < panels; p++)                          \
                vec##_store(t->sums + (r * TILE_PANELS_MAX + p) * PANEL, acc[r][p]);               \
    }

DEFINE_TILE(AVX2, avx2_f32, struct ymm2, struct ymm2, __m256, avx2)
DEFINE_TILE(AVX2, avx2_bf16, struct ymm2, struct ymm2, __m256i, avx2)
DEFINE_TILE(AVX512, avx512_f32, __m512, __m512, __m512, avx512)
DEFINE_TILE(AVX512, avx512_bf16, __m512, __m512i, __m512i, avx512)
DEFINE_TILE(AVX512_BF16, dp_bf16, __m512, __m512bh, __m512bh, avx512)

#define INSTANCE(isa, family, rows, panels)                                                        \
    RP_TSAN_LEAVE_ALONE __attribute__((target(isa))) static void family##_tile_##rows##x##panels(  \
        const struct tile *t) {                                                                    \
        family##_tile(t, rows, panels);                                                            \
    }

/* AVX2 has 16 registers, two for each accumulator. */
#define NARROW_INSTANCES(isa, family)                                                              \
    INSTANCE(isa, family, 1, 1)                                                                    \
    INSTANCE(isa, family, 2, 1)                                                                    \
    INSTANCE(isa, family, 3, 1)                                                                    \
    INSTANCE(isa, family, 4, 1)                                                                    \
    INSTANCE(isa, family, 5, 1)                                                                    \
    INSTANCE(isa, family, 6, 1)                                                                    \
    INSTANCE(isa, family, 1, 2)                                                                    \
    INSTANCE(isa, family, 2, 2)                                                                    \
    INSTANCE(isa, family, 3, 2)                                                                    \
    INSTANCE(isa, family, 1, 3)                                                                    \
    INSTANCE(isa, family, 1, 4)

#define WIDE_INSTANCES(isa, family)                                                                \
    NARROW_INSTANCES(isa, family)                                                                  \
    INSTANCE(isa, family, 4, 2)                                                                    \
    INSTANCE(isa, family, 5, 2)                                                                    \
    INSTANCE(isa, family, 6, 2)                                                                    \
    INSTANCE(isa, family, 2, 3)                                                                    \
    INSTANCE(isa, family, 3, 3)                                                                    \
    INSTANCE(isa, family, 4, 3)                                                                    \
    INSTANCE(isa, family, 5, 3)                                                                    \
    INSTANCE(isa, family, 6, 3)                                                                    \
    INSTANCE(isa, family, 2, 4)                                                                    \
    INSTANCE(isa, family, 3, 4)                                                                    \
    INSTANCE(isa, family, 4, 4)                                                                    \
    INSTANCE(isa, family, 5, 4)                                                                    \
    INSTANCE(isa, family, 6, 4)

NARROW_INSTANCES(AVX2, avx2_f32)
NARROW_INSTANCES(AVX2, avx2_bf16)
WIDE_INSTANCES(AVX512, avx512_f32)
WIDE_INSTANCES(AVX512, avx512_bf16)
WIDE_INSTANCES(AVX512_BF16, dp_bf16)

#define T(family, rows, panels) family##_tile_##rows##x##panels
#define NARROW_FAMILY(family)                                                                      \
    .rows = {0, 6, 3, 1, 1},                                                                       \
    .tiles = {{T(family, 1, 1), T(family, 1, 2), T(family, 1, 3), T(family, 1, 4)},                \
              {T(family, 2, 1), T(family, 2, 2)},                                                  \
              {T(family, 3, 1), T(family, 3, 2)},                                                  \
              {T(family, 4, 1)},                                                                   \
              {T(family, 5, 1)},                                                                   \
              {T(family, 6, 1)}}
#define WIDE_ROW(family, r)                                                                        \
    { T(family, r, 1), T(family, r, 2), T(family, r, 3), T(family, r, 4) }
#define WIDE_FAMILY(family)                                                                        \
    .rows = {0, 6, 6, 6, 6},                                                                       \
    .tiles = {WIDE_ROW(family, 1), WIDE_ROW(family, 2), WIDE_ROW(family, 3),                       \
              WIDE_ROW(family, 4), WIDE_ROW(family, 5), WIDE_ROW(family, 6)}
#define STEP_F32  .step_k = 1, .element_bytes = 4
#define STEP_BF16 .step_k = 2, .element_bytes = 2

static const struct family avx2_f32 = {.isa = RP_ISA_AVX2, STEP_F32, NARROW_FAMILY(avx2_f32)};
static const struct family avx2_bf16 = {.isa = RP_ISA_AVX2, STEP_BF16, NARROW_FAMILY(avx2_bf16)};
static const struct family avx512_f32 = {.isa = RP_ISA_AVX512, STEP_F32, WIDE_FAMILY(avx512_f32)};
static const struct family avx512_bf16 = {
    .isa = RP_ISA_AVX512, STEP_BF16, WIDE_FAMILY(avx512_bf16)};
static const struct family dp_bf16 = {.isa = RP_ISA_AVX512_BF16, STEP_BF16, WIDE_FAMILY(dp_bf16)};

/* --- Blocking, the same for all families. ---------------------------------------------- */

/* Constants of one GEMM, the same for all blocks. */
struct gemm {
    const struct rp_matmul_args *args;
    const struct family *family;
    size_t steps; /* of k */
    bool odd;
    size_t panel_bytes;
    size_t half;             /* gated: panels of each half; else 0 */
    const int32_t *out_rows; /* rp_expert_out_row */
};

/* Bias, accumulation and rounding of `count` outputs from column n of one row. */
static void finish_row(const struct rp_matmul_args *args, size_t row, size_t n, size_t count,
                       float *sums) {
    if (args->bias)
        for (size_t i = 0; i < count; i++)
            sums[i] += args->bias[n + i];
    if (args->out_dtype == RP_DTYPE_BF16) {
        uint16_t *out = (uint16_t *)args->out + row * args->out_stride + n;
        for (size_t i = 0; i < count; i++)
            out[i] = rp_f32_to_bf16(sums[i]);
    } else {
        float *out = (float *)args->out + row * args->out_stride + n;
        if (args->accumulate)
            for (size_t i = 0; i < count; i++)
                out[i] += sums[i];
        else
            memcpy(out, sums, count * sizeof *out);
    }
}

/* The same for `count` gates from column n, and for their ups. */
static void finish_gated(const struct gemm *gemm, size_t row, size_t n, size_t count, float *sums) {
    const struct rp_matmul_args *args = gemm->args;
    for (size_t i = 0; args->bias && i < count; i++) {
        sums[i] += args->bias[n + i];
        sums[count + i] += args->bias[gemm->half * PANEL + n + i];
    }
    size_t at = row * args->out_stride + n;
    rp_fast_ops_select(gemm->family->isa)
        ->gate(args->fn, sums, sums + count, count,
               (unsigned char *)args->out + at * rp_dtype_bytes(args->out_dtype), args->out_dtype);
}

/* Rows [row, row + rows) x panels [panel, panel + panels), all of k. Gated: the first half of the
 * panels are gates, the others the ups that belong to them. */
static void run_block(const struct gemm *gemm, size_t row, size_t rows, size_t panel,
                      uint32_t panels) {
    _Alignas(RP_CACHE_LINE) float sums[BLOCK_ROWS][TILE_PANELS_MAX * PANEL];
    const struct rp_matmul_args *args = gemm->args;
    const struct family *family = gemm->family;
    size_t steps = gemm->steps, half_bytes = gemm->half * gemm->panel_bytes;
    uint32_t tile_rows = family->rows[panels];
    /* Blocking k does not help with a single tile of rows. */
    size_t block_steps = rows <= tile_rows ? steps : BLOCK_PANEL_BYTES / STEP_WEIGHT_BYTES;
    for (size_t s = 0; s == 0 || s < steps; s += block_steps) {
        size_t end = RP_MIN(s + block_steps, steps);
        for (size_t r = 0; r < rows; r += tile_rows) {
            struct tile tile = {
                .weights = (const unsigned char *)args->weight->data + panel * gemm->panel_bytes +
                           s * STEP_WEIGHT_BYTES,
                .inputs = (const unsigned char *)args->in +
                          (row + r) * args->in_stride * family->element_bytes +
                          s * STEP_INPUT_BYTES,
                .sums = sums[r],
                .panel_stride = half_bytes && panels == 2 ? half_bytes : gemm->panel_bytes,
                .pair_stride = half_bytes ? half_bytes : 2 * gemm->panel_bytes,
                .row_bytes = args->in_stride * family->element_bytes,
                .steps = end - s,
                .begin = s == 0,
                .odd = gemm->odd && end == steps,
            };
            family->tiles[RP_MIN(rows - r, tile_rows) - 1][panels - 1](&tile);
        }
        if (block_steps == 0)
            break;
    }
    size_t n = panel * PANEL, count = RP_MIN(args->weight->rows - n, (size_t)panels * PANEL);
    for (size_t r = 0; r < rows; r++) {
        size_t to = rp_expert_out_row(gemm->out_rows, row + r);
        if (gemm->half)
            finish_gated(gemm, to, n, panels / 2 * PANEL, sums[r]);
        else
            finish_row(args, to, n, count, sums[r]);
    }
}

/* Panels (gated: pairs of panels) per work item, a multiple of `width`. */
static size_t part_panels(size_t panels, size_t width, size_t bytes, uint32_t m,
                          const struct rp_cpu_worker *worker) {
    size_t least = PART_BYTES / (bytes * (1 + m / PART_ROWS)) + 1;
    size_t part = RP_MAX(panels / worker->count / SHARE_PARTS + 1, least);
    return RP_CEIL_DIV(part, width) * width;
}

static struct gemm gemm_of(const struct rp_matmul_args *args, const struct family *family) {
    const struct rp_matrix *w = args->weight;
    struct gemm gemm = {.args = args,
                        .family = family,
                        .steps = w->cols / family->step_k,
                        .odd = w->cols % family->step_k != 0};
    RP_ASSERT(args->out_dtype == RP_DTYPE_F32 ||
              (args->out_dtype == RP_DTYPE_BF16 && !args->accumulate));
    RP_ASSERT(!args->gated || (rp_matmul_gates(w) && !args->accumulate));
    gemm.panel_bytes = (gemm.steps + gemm.odd) * STEP_WEIGHT_BYTES;
    gemm.half = args->gated ? w->rows / PANEL / 2 : 0;
    return gemm;
}

/* The most panels for which m rows fit into registers; more panels are more concurrent memory
 * streams. Gated: pairs of panels. */
static uint32_t tile_width(const struct gemm *gemm, size_t m) {
    uint32_t width = TILE_PANELS_MAX;
    while (width > 1 && gemm->family->rows[width] < RP_MIN(m, (size_t)TILE_ROWS_MAX))
        width--;
    return gemm->half ? RP_MAX(width / 2, 1u) : width;
}

static void run(const struct rp_matmul_args *args, uint32_t m, const struct rp_cpu_worker *worker,
                const struct family *family) {
    const struct rp_matrix *w = args->weight;
    struct gemm gemm = gemm_of(args, family);
    size_t panels = gemm.half ? gemm.half : RP_CEIL_DIV((size_t)w->rows, PANEL), begin, end;
    if (m == 0 || panels == 0)
        return;
    for (size_t row = 0; row < m; row++)
        rp_tsan_reads((const unsigned char *)args->in +
                          row * args->in_stride * family->element_bytes,
                      (size_t)w->cols * family->element_bytes);
    uint32_t width = tile_width(&gemm, m), each = gemm.half ? 2 : 1; /* panels of one item */
    struct rp_cpu_parts parts;
    rp_cpu_parts_begin(&parts, worker, panels, 1,
                       part_panels(panels, width, each * gemm.panel_bytes + 1, m, worker));
    while (rp_cpu_parts_next(&parts, &begin, &end)) {
        for (size_t panel = begin; panel < end; panel += width) {
            uint32_t count = (uint32_t)RP_MIN(end - panel, (size_t)width) * each;
            for (size_t row = 0; row < m; row += BLOCK_ROWS)
                run_block(&gemm, row, RP_MIN(m - row, (size_t)BLOCK_ROWS), panel, count);
        }
    }
}

static const struct family *family_of(enum rp_cpu_isa isa, enum rp_dtype dtype) {
    bool half = dtype == RP_DTYPE_BF16;
    if (isa == RP_ISA_AVX2)
        return half ? &avx2_bf16 : &avx2_f32;
    if (isa == RP_ISA_AVX512_BF16 && half)
        return &dp_bf16;
    return half ? &avx512_bf16 : &avx512_f32;
}

void rp_expert_run_simd(enum rp_cpu_isa isa, const struct rp_expert_block *block, size_t panel,
                        size_t panels) {
    struct gemm gemm = gemm_of(&block->args, family_of(isa, block->weight.dtype));
    uint32_t width = tile_width(&gemm, block->rows), each = gemm.half ? 2 : 1;
    gemm.out_rows = block->out_rows;
    for (size_t at = panel; at < panel + panels; at += width)
        run_block(&gemm, 0, block->rows, at,
                  (uint32_t)RP_MIN(panel + panels - at, (size_t)width) * each);
}

#define DEFINE_KERNEL(family)                                                                      \
    static void matmul_##family(const struct rp_matmul_args *args, uint32_t m,                     \
                                const struct rp_cpu_worker *worker) {                              \
        run(args, m, worker, &family);                                                             \
    }

DEFINE_KERNEL(avx2_f32)
DEFINE_KERNEL(avx2_bf16)
DEFINE_KERNEL(avx512_f32)
DEFINE_KERNEL(avx512_bf16)
DEFINE_KERNEL(dp_bf16)

rp_matmul_fn rp_matmul_select_simd(enum rp_cpu_isa isa, const struct rp_matrix *weight) {
    if (weight->layout != RP_LAYOUT_PANEL_16)
        return NULL;
    bool half = weight->dtype == RP_DTYPE_BF16;
    switch (isa) {
    case RP_ISA_SCALAR:
        return NULL;
    case RP_ISA_AVX2:
        return half ? matmul_avx2_bf16 : matmul_avx2_f32;
    case RP_ISA_AVX512:
        return half ? matmul_avx512_bf16 : matmul_avx512_f32;
    case RP_ISA_AVX512_BF16:
        return half ? matmul_dp_bf16 : matmul_avx512_f32;
    }
    return NULL;
}

#endif
