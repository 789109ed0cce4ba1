/* attention_cpu_simd.c - attention for AVX2 and AVX-512, in one pass over the keys.
 *
 * Order (the reduction contract): the keys of one (token, query head) are processed in blocks of 64
 * at absolute multiples of 64, whatever the page size. The first block is the one that holds
 * `first`; in it and in the last one, keys that the token does not see are neither read nor added.
 * Per block:
 *
 *   s_j   = scale * (q . k_j), one tree over d           m' = max(m, s_j ..)
 *   l     = l * exp(m - m') + sum of exp(s_j - m'), one tree over the 64 places
 *   out   = out * exp(m - m') + exp(s_j - m') v_j, j ascending
 *
 * and with a sink, once after the last block, as a key without a value: the same with s = sink. So
 * the bits depend only on the position, the window (or the program and its parameters) and the
 * instruction set. Caps and score rules change s_j after the matmul. A program's blocks are found
 * in attention_blocks.c; in a partially visible block, masked keys have the score -infinity and are
 * excluded from the sums.
 *
 * In pages of latents v_j is the beginning of k_j.
 *
 * A piece is up to 16 tokens of one chunk x up to 8 query heads of one KV head: their keys are
 * loaded from memory once. A tile is 4 (AVX2: 2) heads of one token, so that each K or V that is
 * widened to f32 is used 4 times. A piece of a prompt (4 tokens or more) first converts each block
 * to f32, K transposed (keys contiguous), and computes all its scores before all its sums: the same
 * operations on every number in a different loop order, so the same bits. */
#include "attention/cpu/attention_blocks.h"

#include "base/bf16.h"
#include "device/exp_simd.h"
#include "device/quantize_row.h"
#include "device/tanh_simd.h"

#if RP_ATTENTION_HAS_SIMD
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define BLOCK_KEYS   RP_ATTENTION_BLOCK_KEYS
#define BLOCK_SLACK  16u /* score tiles may write past the block's end */
#define PIECE_TOKENS RP_ATTENTION_PIECE_TOKENS
#define PIECE_HEADS  RP_ATTENTION_PIECE_HEADS
#define STATES_MAX   RP_ATTENTION_PIECE_ROWS
#define SUMS_MAX     16384u /* floats: 64 KiB of stack */
/* From this many tokens on, a block's K and V are first converted to f32 (wide), K transposed: 32
 * KiB of stack each, and 40 for scores. */
#define WIDE_TOKENS   4u
#define WIDE_HEAD_DIM 128u

/* An FP8 value, widened with its sign and moved by 20 bits, has its sign, exponent and mantissa
 * where f32 has them, 2^120 too small; denormals as well. */
#define FP8_BITS (int)0x87F00000u
#define FP8_UNIT 0x1p120f

/* A loop that must be fully unrolled, so that the arrays it indexes stay in registers. */
#define EACH(i, count) _Pragma("GCC unroll 16") for (uint32_t i = 0; i < (count); i++)

/* Addresses of the keys of one block; only entries [begin, end), visible to some token of the
 * piece, are set. With a program, entries in between that no token sees hold the address of a
 * visible key. */
struct block {
    const void *k[BLOCK_KEYS], *v[BLOCK_KEYS];
    uint32_t begin, end;
};

/* A block of 8-bit pages as f32: quantized values times scales. */
struct decoded {
    _Alignas(RP_CACHE_LINE) float k[BLOCK_KEYS * RP_ATTENTION_HEAD_DIM_MAX];
    _Alignas(RP_CACHE_LINE) float v[BLOCK_KEYS * RP_ATTENTION_HEAD_DIM_MAX];
    struct block block;
};

/* Softmax state of one (token, query head). */
struct state {
    float *out; /* sum of weight * v, before normalization */
    const float *q;
    float max, total;
    uint32_t position, head; /* for score rules */
};

/* Keys [begin, end) of a block, visible to one token. */
struct span {
    const struct block *block;
    const struct block *next; /* NULL: prefetched elsewhere */
    uint32_t begin, end;
    uint32_t at; /* the block's position */
    /* partially visible: bits of the visible keys, including the first and the last */
    uint64_t seen;
};

struct shape {
    uint32_t head_dim, value_dim;
    float scale;
    uint32_t key_bytes, value_bytes; /* value_bytes: to be prefetched; 0 where V is a part of K */
    /* wide: the block's keys as f32, (head_dim, BLOCK_KEYS); zeros for missing keys */
    const float *keys;
    float soft_cap;              /* 0: none; also for a program whose only rule is a cap */
    const struct rp_mask *rules; /* NULL: no score rules */
    const int32_t *params;
    int32_t layer, first_head;
};

typedef void (*piece_fn)(const struct rp_attention_args *args,
                         const struct rp_attention_piece *piece);

static inline uint32_t sums_stride(uint32_t head_dim) { return (head_dim + 15) & ~15u; }

/* params: with a program. */
static struct shape shape_of(const struct rp_attention_args *args, const float *keys,
                             const int32_t *params) {
    float soft_cap = args->soft_cap;
    bool rules = false;
    if (args->mask) {
        soft_cap = 0.0f;
        rules = rp_mask_has_score(args->mask) && !rp_mask_is_capped(args->mask, &soft_cap);
    }
    uint32_t key_bytes = args->head_dim * rp_dtype_bytes(args->kv.dtype);
    return (struct shape){.head_dim = args->head_dim,
                          .value_dim = rp_attention_value_dim(args),
                          .scale = args->scale,
                          .key_bytes = key_bytes,
                          .value_bytes = args->value_dim ? 0 : key_bytes,
                          .keys = keys,
                          .soft_cap = rules ? 0.0f : soft_cap,
                          .rules = rules ? args->mask : NULL,
                          .params = params,
                          .layer = (int32_t)args->layer,
                          .first_head = (int32_t)args->first_head};
}

/* Sets the addresses of keys [first, last] of the block at position `at`. */
static void locate(const struct rp_attention_args *args, const struct rp_attention_piece *piece,
                   uint32_t first, uint32_t last, uint32_t at, struct block *block) {
    const struct rp_kv_layout *kv = &args->kv;
    const struct rp_live_row *row = &args->step.rows[args->step.token_rows[piece->token]];
    const uint32_t *pages = rp_attention_pages(&args->step, row, args->table);
    size_t key_bytes = (size_t)kv->head_dim * rp_dtype_bytes(kv->dtype);
    block->begin = block->end = 0;
    if (at > last)
        return;
    uint32_t begin = RP_MAX(first, at), end = RP_MIN(last - at, BLOCK_KEYS - 1) + at;
    block->begin = begin - at;
    block->end = end - at + 1;
    for (uint32_t position = begin; position <= end;) {
        uint32_t page = pages[position / kv->page_tokens], in_page = position % kv->page_tokens;
        uint32_t count = RP_MIN(kv->page_tokens - in_page, end - position + 1);
        const unsigned char *k = rp_kv_run(kv, page, args->layer, 0, piece->kv_head);
        const unsigned char *v =
            rp_kv_run(kv, page, args->layer, rp_attention_value_plane(args), piece->kv_head);
        for (uint32_t i = 0; i < count; i++) {
            block->k[position - at + i] = k + (in_page + i) * key_bytes;
            block->v[position - at + i] = v + (in_page + i) * key_bytes;
        }
        position += count;
    }
}

/* The same for the keys that a program makes visible to some row: pages without a visible key are
 * not looked up. */
static void locate_seen(const struct rp_attention_args *args,
                        const struct rp_attention_piece *piece,
                        const struct rp_attention_seen *seen, struct block *block) {
    const struct rp_kv_layout *kv = &args->kv;
    const struct rp_live_row *row = &args->step.rows[args->step.token_rows[piece->token]];
    const uint32_t *pages = rp_attention_pages(&args->step, row, args->table);
    size_t key_bytes = (size_t)kv->head_dim * rp_dtype_bytes(kv->dtype);
    const unsigned char *k = NULL, *v = NULL;
    block->begin = (uint32_t)__builtin_ctzll(seen->any);
    block->end = BLOCK_KEYS - (uint32_t)__builtin_clzll(seen->any);
    for (uint32_t j = block->begin; j < block->end; j++) {
        uint32_t position = seen->at + j, in_page = position % kv->page_tokens;
        if (seen->any >> j & 1) {
            uint32_t page = pages[position / kv->page_tokens];
            k = rp_kv_run(kv, page, args->layer, 0, piece->kv_head) + in_page * key_bytes;
            v = rp_kv_run(kv, page, args->layer, rp_attention_value_plane(args), piece->kv_head) +
                in_page * key_bytes;
        }
        block->k[j] = k;
        block->v[j] = v;
    }
}

/* Applies the program's score rules to a span. Entries that are not visible hold scores of other
 * keys, or garbage. */
static void apply_rules(const struct shape *shape, const struct state *state,
                        const struct span *span, float *scores) {
    const struct rp_mask_pair pair = {.q = (int32_t)state->position,
                                      .kv = (int32_t)(span->at + span->begin),
                                      .h = shape->first_head + (int32_t)state->head,
                                      .layer = shape->layer};
    for (uint32_t j = span->begin; j < span->end; j++)
        scores[j] = span->seen >> j & 1 ? scores[j] : 0.0f;
    rp_mask_score_keys(shape->rules, &pair, shape->params, span->end - span->begin,
                       scores + span->begin);
}

/* Rules may mask keys with -infinity. When every key so far is masked, exp would get infinity -
 * infinity: set the weights to zero instead and return true. NaN scores do not count as masked. */
static bool hide_all(float *scores) {
    for (uint32_t j = 0; j < BLOCK_KEYS; j++)
        if (scores[j] != -INFINITY)
            return false;
    memset(scores, 0, BLOCK_KEYS * sizeof *scores);
    return true;
}

/* Prefetches `bytes` of the next block's key j while key j of this block is processed: runs are too
 * short for the hardware prefetcher. Into L2, since two blocks of K and V exceed L1 (decode of 8000
 * keys, 8 KV heads of 128, one Zen 4 core: 7.4 GB/s without, 9.3 into L1, 15.3 into L2). */
static inline __attribute__((always_inline)) void
prefetch(const struct block *next, uint32_t j, const void *const *places, uint32_t bytes) {
    if (j >= next->begin && j < next->end)
        for (uint32_t i = 0; i < bytes; i += RP_CACHE_LINE)
            _mm_prefetch((const char *)places[j] + i, _MM_HINT_T1);
}

/* total: the divisor; returns the factor of the sums. */
static float add_sink(float sink, float max, float *total) {
    float largest = fmaxf(max, sink), fade = max == -INFINITY ? 0.0f : expf(max - largest);
    *total = *total * fade + expf(sink - largest);
    return fade;
}

static void store_head(const struct rp_attention_args *args, uint32_t token, uint32_t head,
                       const struct state *state) {
    const uint32_t value_dim = rp_attention_value_dim(args);
    size_t at = token * args->out_stride + (size_t)head * value_dim;
    const float *sums = state->out;
    float total = state->total;
    if (args->sinks) {
        float fade = add_sink(args->sinks[head], state->max, &total);
        for (uint32_t d = 0; d < value_dim; d++)
            state->out[d] *= fade;
    }
    if (total == 0.0f) /* no key was seen: the sums are zeros */
        total = 1.0f;
    if (args->out_dtype == RP_DTYPE_F32) {
        float *out = (float *)args->out + at;
        for (uint32_t d = 0; d < value_dim; d++)
            out[d] = sums[d] / total;
    } else {
        uint16_t *out = (uint16_t *)args->out + at;
        for (uint32_t d = 0; d < value_dim; d++)
            out[d] = rp_f32_to_bf16(sums[d] / total);
    }
}

/* --- AVX-512 --------------------------------------------------------------------------- */

#define TARGET   __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define INLINE   TARGET static inline __attribute__((always_inline))
#define V(name)  avx512_##name
#define VECTOR   __m512
#define LANES    16u
#define ROWS_MAX 4

INLINE VECTOR V(zero)(void) { return _mm512_setzero_ps(); }
INLINE VECTOR V(set1)(float x) { return _mm512_set1_ps(x); }
INLINE VECTOR V(load)(const float *from) { return _mm512_loadu_ps(from); }
INLINE void V(store)(float *to, VECTOR x) { _mm512_storeu_ps(to, x); }
INLINE VECTOR V(add)(VECTOR a, VECTOR b) { return _mm512_add_ps(a, b); }
INLINE VECTOR V(mul)(VECTOR a, VECTOR b) { return _mm512_mul_ps(a, b); }
INLINE VECTOR V(div)(VECTOR a, VECTOR b) { return _mm512_div_ps(a, b); }
INLINE VECTOR V(tanh)(VECTOR x) { return rp_tanh_avx512(x); }
INLINE VECTOR V(max)(VECTOR a, VECTOR b) { return _mm512_max_ps(a, b); }
INLINE VECTOR V(fma)(VECTOR a, VECTOR b, VECTOR c) { return _mm512_fmadd_ps(a, b, c); }
INLINE VECTOR V(load_part)(const float *from, uint32_t count) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
}
INLINE VECTOR V(widen)(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
INLINE VECTOR V(load_kv)(const void *run, uint32_t at, const bool half) {
    return half ? V(widen)(_mm256_loadu_si256((const void *)((const uint16_t *)run + at)))
                : _mm512_loadu_ps((const float *)run + at);
}
INLINE VECTOR V(load_kv_part)(const void *run, uint32_t at, const bool half, uint32_t count) {
    __mmask16 mask = (__mmask16)((1u << count) - 1);
    return half ? V(widen)(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)run + at))
                : _mm512_maskz_loadu_ps(mask, (const float *)run + at);
}
INLINE float V(sum)(VECTOR x) { return _mm512_reduce_add_ps(x); }
INLINE float V(largest)(VECTOR x) { return _mm512_reduce_max_ps(x); }

/* Lanes of 128 bits: { sum of a's four, of b's, of c's, of d's }, each ((0 + 2) + (1 + 3)). */
INLINE VECTOR V(load_int8)(const unsigned char *quantized) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)quantized)));
}
INLINE VECTOR V(load_fp8)(const unsigned char *quantized) {
    __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)quantized));
    __m512i bits = _mm512_and_si512(_mm512_slli_epi32(wide, 20), _mm512_set1_epi32(FP8_BITS));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(FP8_UNIT));
}
INLINE VECTOR V(quads)(VECTOR a, VECTOR b, VECTOR c, VECTOR d) {
    VECTOR ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    VECTOR cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    return _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
}
INLINE VECTOR V(pair)(VECTOR a, VECTOR b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}
INLINE VECTOR V(sums)(const VECTOR *v) {
    VECTOR low = V(pair)(V(quads)(v[0], v[1], v[2], v[3]), V(quads)(v[4], v[5], v[6], v[7]));
    VECTOR high = V(pair)(V(quads)(v[8], v[9], v[10], v[11]), V(quads)(v[12], v[13], v[14], v[15]));
    return V(pair)(low, high);
}
INLINE VECTOR V(exp)(VECTOR x) { return rp_exp_avx512(x); }
INLINE void V(transpose)(VECTOR *v) {
    VECTOR t[LANES];
    EACH(i, 4) {
        VECTOR *a = v + 4 * i;
        __m512d ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(a[0], a[1]));
        __m512d ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(a[0], a[1]));
        __m512d cd_low = _mm512_castps_pd(_mm512_unpacklo_ps(a[2], a[3]));
        __m512d cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(a[2], a[3]));
        t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low));
        t[4 + i] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low));
        t[8 + i] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high));
        t[12 + i] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high));
    }
    /* t[4 c + i]: columns c, 4 + c, 8 + c, 12 + c of rows 4 i .. 4 i + 3 */
    EACH(c, 4) {
        const VECTOR *a = t + 4 * c;
        VECTOR low01 = _mm512_shuffle_f32x4(a[0], a[1], 0x88);
        VECTOR low23 = _mm512_shuffle_f32x4(a[2], a[3], 0x88);
        VECTOR high01 = _mm512_shuffle_f32x4(a[0], a[1], 0xDD);
        VECTOR high23 = _mm512_shuffle_f32x4(a[2], a[3], 0xDD);
        v[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
        v[8 + c] = _mm512_shuffle_f32x4(low01, low23, 0xDD);
        v[4 + c] = _mm512_shuffle_f32x4(high01, high23, 0x88);
        v[12 + c] = _mm512_shuffle_f32x4(high01, high23, 0xDD);
    }
}

#include "attention/cpu/attention_tile.h"

#undef TARGET
#undef INLINE
#undef V
#undef VECTOR
#undef LANES
#undef ROWS_MAX

/* --- AVX2 ------------------------------------------------------------------------------ */

#define TARGET   __attribute__((target("avx2,fma")))
#define INLINE   TARGET static inline __attribute__((always_inline))
#define V(name)  avx2_##name
#define VECTOR   __m256
#define LANES    8u
#define ROWS_MAX 2

INLINE VECTOR V(zero)(void) { return _mm256_setzero_ps(); }
INLINE VECTOR V(set1)(float x) { return _mm256_set1_ps(x); }
INLINE VECTOR V(load)(const float *from) { return _mm256_loadu_ps(from); }
INLINE void V(store)(float *to, VECTOR x) { _mm256_storeu_ps(to, x); }
INLINE VECTOR V(add)(VECTOR a, VECTOR b) { return _mm256_add_ps(a, b); }
INLINE VECTOR V(mul)(VECTOR a, VECTOR b) { return _mm256_mul_ps(a, b); }
INLINE VECTOR V(div)(VECTOR a, VECTOR b) { return _mm256_div_ps(a, b); }
INLINE VECTOR V(tanh)(VECTOR x) { return rp_tanh_avx2(x); }
INLINE VECTOR V(max)(VECTOR a, VECTOR b) { return _mm256_max_ps(a, b); }
INLINE VECTOR V(fma)(VECTOR a, VECTOR b, VECTOR c) { return _mm256_fmadd_ps(a, b, c); }
INLINE VECTOR V(load_part)(const float *from, uint32_t count) {
    float part[LANES] = {0.0f};
    memcpy(part, from, count * sizeof *part);
    return _mm256_loadu_ps(part);
}
INLINE VECTOR V(widen)(__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
INLINE VECTOR V(load_kv)(const void *run, uint32_t at, const bool half) {
    return half ? V(widen)(_mm_loadu_si128((const void *)((const uint16_t *)run + at)))
                : _mm256_loadu_ps((const float *)run + at);
}
INLINE VECTOR V(load_kv_part)(const void *run, uint32_t at, const bool half, uint32_t count) {
    uint16_t part[LANES] = {0};
    if (!half)
        return V(load_part)((const float *)run + at, count);
    memcpy(part, (const uint16_t *)run + at, count * sizeof *part);
    return V(widen)(_mm_loadu_si128((const void *)part));
}
INLINE VECTOR V(load_int8)(const unsigned char *quantized) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)quantized)));
}
INLINE VECTOR V(load_fp8)(const unsigned char *quantized) {
    __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)quantized));
    __m256i bits = _mm256_and_si256(_mm256_slli_epi32(wide, 20), _mm256_set1_epi32(FP8_BITS));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(FP8_UNIT));
}
INLINE VECTOR V(quads)(VECTOR a, VECTOR b, VECTOR c, VECTOR d) {
    VECTOR ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    VECTOR cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256d low = _mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd));
    __m256d high = _mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd));
    return _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high));
}
INLINE VECTOR V(sums)(const VECTOR *v) {
    VECTOR low = V(quads)(v[0], v[1], v[2], v[3]), high = V(quads)(v[4], v[5], v[6], v[7]);
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                         _mm256_permute2f128_ps(low, high, 0x31));
}
INLINE float V(sum)(VECTOR x) {
    VECTOR same[LANES] = {x, x, x, x, x, x, x, x};
    return _mm256_cvtss_f32(V(sums)(same));
}
INLINE float V(largest)(VECTOR x) {
    x = _mm256_max_ps(x, _mm256_permute2f128_ps(x, x, 1));
    x = _mm256_max_ps(x, _mm256_permute_ps(x, 0x4E));
    x = _mm256_max_ps(x, _mm256_permute_ps(x, 0xB1));
    return _mm256_cvtss_f32(x);
}
INLINE VECTOR V(exp)(VECTOR x) { return rp_exp_avx2(x); }
INLINE void V(transpose)(VECTOR *v) {
    VECTOR t[LANES];
    EACH(i, 2) {
        VECTOR *a = v + 4 * i;
        __m256d ab_low = _mm256_castps_pd(_mm256_unpacklo_ps(a[0], a[1]));
        __m256d ab_high = _mm256_castps_pd(_mm256_unpackhi_ps(a[0], a[1]));
        __m256d cd_low = _mm256_castps_pd(_mm256_unpacklo_ps(a[2], a[3]));
        __m256d cd_high = _mm256_castps_pd(_mm256_unpackhi_ps(a[2], a[3]));
        t[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_low, cd_low));
        t[2 + i] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_low, cd_low));
        t[4 + i] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_high, cd_high));
        t[6 + i] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_high, cd_high));
    }
    EACH(c, 4) {
        v[c] = _mm256_permute2f128_ps(t[2 * c], t[2 * c + 1], 0x20);
        v[4 + c] = _mm256_permute2f128_ps(t[2 * c], t[2 * c + 1], 0x31);
    }
}

#include "attention/cpu/attention_tile.h"

/* --- Work distribution ----------------------------------------------------------------- */

static void run(const struct rp_attention_args *args, const struct rp_cpu_worker *worker,
                piece_fn compute) {
    struct rp_attention_line line;
    /* Several units of a KV head with many query heads: latents have one for all of them. */
    uint32_t group = args->heads / args->kv_heads, units = RP_CEIL_DIV(group, PIECE_HEADS), count;
    uint32_t room =
        SUMS_MAX / (RP_MIN(group, PIECE_HEADS) * sums_stride(rp_attention_value_dim(args)));
    uint32_t limit = RP_MIN(room, PIECE_TOKENS);
    uint64_t at = 0;
    RP_ASSERT_CMP(args->head_dim, <=, RP_ATTENTION_HEAD_DIM_MAX);
    rp_attention_line_begin(&line, args, limit, args->kv_heads * units);
    for (uint32_t unit = 0; unit < args->kv_heads * units; unit++) {
        uint32_t kv_head = unit / units, h = unit % units * PIECE_HEADS, index = 0;
        for (uint32_t t = 0; t < args->step.counts->token_count; t += count, index++) {
            count = rp_attention_piece_tokens(&args->step, t, limit);
            uint64_t length = rp_attention_line_length(&line, args, index, t, count);
            if (length != 0 && rp_attention_is_mine(&line, at, worker)) {
                struct rp_attention_piece piece = {.token = t,
                                                   .token_count = count,
                                                   .head = kv_head * group + h,
                                                   .head_count = RP_MIN(group - h, PIECE_HEADS),
                                                   .kv_head = kv_head};
                compute(args, &piece);
            }
            at += length;
        }
    }
}

#define DEFINE_KERNEL(name)                                                                        \
    static void attention_##name(const struct rp_attention_args *args,                             \
                                 const struct rp_cpu_worker *worker) {                             \
        run(args, worker, args->mask ? name##_masked : name);                                      \
    }

DEFINE_KERNEL(avx2_piece_f32)
DEFINE_KERNEL(avx2_piece_bf16)
DEFINE_KERNEL(avx512_piece_f32)
DEFINE_KERNEL(avx512_piece_bf16)

rp_attention_fn rp_attention_select_simd(enum rp_cpu_isa isa, const struct rp_kv_layout *kv) {
    bool half = kv->dtype == RP_DTYPE_BF16; /* 8 bits: decoded to f32 */
    if (isa == RP_ISA_SCALAR)
        return NULL;
    if (isa == RP_ISA_AVX2)
        return half ? attention_avx2_piece_bf16 : attention_avx2_piece_f32;
    return half ? attention_avx512_piece_bf16 : attention_avx512_piece_f32;
}

#endif
