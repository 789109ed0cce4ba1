#include "quant/cpu/dots.h"

#include "base/base.h"
#include "base/tsan.h"

#include <string.h>

#define TILE_A 4u
#define TILE_B 2u
#define LANES  4u
#define PIECE  512u /* of 64 rows: 256 KB, fits in L2 */
#define INLINE static inline __attribute__((always_inline))

typedef double lanes __attribute__((vector_size(LANES * sizeof(double))));

/* of TILE_A x TILE_B sums, or fewer: both counts are constants where this is inlined */
INLINE void tile(const struct rp_dots *d, size_t at_a, size_t at_b, size_t count_a,
                 size_t count_b) {
    const double *a = d->a + at_a * d->a_stride, *b = d->b + at_b * d->b_stride;
    lanes sums[TILE_A][TILE_B] = {{{0}}};
    size_t k = 0;
    for (; k + LANES <= d->len; k += LANES) {
        lanes right[TILE_B], left;
        for (size_t j = 0; j < count_b; j++)
            memcpy(&right[j], b + j * d->b_stride + k, sizeof right[j]);
        for (size_t i = 0; i < count_a; i++) {
            memcpy(&left, a + i * d->a_stride + k, sizeof left);
            for (size_t j = 0; j < count_b; j++)
                sums[i][j] += left * right[j];
        }
    }
    for (size_t i = 0; i < count_a; i++)
        for (size_t j = 0; j < count_b; j++) {
            double sum = sums[i][j][0] + sums[i][j][1] + sums[i][j][2] + sums[i][j][3];
            for (size_t rest = k; rest < d->len; rest++)
                sum += a[i * d->a_stride + rest] * b[j * d->b_stride + rest];
            d->out[(at_a + i) * d->out_stride + at_b + j] += d->sign * sum;
        }
}

INLINE void one_piece(const struct rp_dots *d) {
    size_t even_a = d->rows_a / TILE_A * TILE_A, even_b = d->rows_b / TILE_B * TILE_B;
    for (size_t i = 0; i < even_a; i += TILE_A) {
        for (size_t j = 0; j < even_b; j += TILE_B)
            tile(d, i, j, TILE_A, TILE_B);
        for (size_t j = even_b; j < d->rows_b; j++)
            tile(d, i, j, TILE_A, 1);
    }
    for (size_t i = even_a; i < d->rows_a; i++)
        for (size_t j = 0; j < d->rows_b; j++)
            tile(d, i, j, 1, 1);
}

INLINE void all_pieces(const struct rp_dots *d) {
    struct rp_dots piece = *d;
    for (size_t k = 0; k < d->len; k += PIECE) {
        piece.a = d->a + k;
        piece.b = d->b + k;
        piece.len = RP_MIN(d->len - k, (size_t)PIECE);
        one_piece(&piece);
    }
}

RP_TSAN_LEAVE_ALONE static void plain(const struct rp_dots *d) { all_pieces(d); }

#if defined(__x86_64__) && defined(__GNUC__)
RP_TSAN_LEAVE_ALONE __attribute__((target("avx2"))) static void wide(const struct rp_dots *d) {
    all_pieces(d);
}
#else
#define wide plain
#endif

rp_dots_fn rp_dots_find(enum rp_cpu_isa isa) { return isa >= RP_ISA_AVX2 ? wide : plain; }
