#include "quant/rounding/cholesky.h"

#include <math.h>

#define BLOCK 64u
#define GRAIN 32u /* rows per work item */

/* Columns [begin, end) of rows [from, to): less what the columns after them account for. */
static void update_rows(double *h, size_t n, size_t begin, size_t end, size_t from, size_t to,
                        rp_dots_fn add) {
    const struct rp_dots dots = {.a = h + from * n + end,
                                 .b = h + begin * n + end,
                                 .a_stride = n,
                                 .b_stride = n,
                                 .out_stride = n,
                                 .rows_a = to - from,
                                 .rows_b = end - begin,
                                 .len = n - end,
                                 .out = h + from * n + begin,
                                 .sign = -1.0};
    add(&dots);
}

/* The same of the block's own rows, of which only what lies on and above the diagonal is there. */
static void update_block(double *h, size_t n, size_t begin, size_t end, rp_dots_fn add) {
    for (size_t row = begin; row < end; row++) {
        const struct rp_dots dots = {.a = h + row * n + end,
                                     .b = h + row * n + end,
                                     .a_stride = n,
                                     .b_stride = n,
                                     .out_stride = n,
                                     .rows_a = 1,
                                     .rows_b = end - row,
                                     .len = n - end,
                                     .out = h + row * n + row,
                                     .sign = -1.0};
        add(&dots);
    }
}

/* Row i of columns [begin, end), from the last of them on; above the block's rows first = begin,
 * else i + 1. */
static void solve_row(double *h, size_t n, size_t i, size_t first, size_t end) {
    for (size_t j = end; j-- > first;) {
        double left = h[i * n + j];
        for (size_t m = j + 1; m < end; m++)
            left -= h[i * n + m] * h[j * n + m];
        h[i * n + j] = left / h[j * n + j];
    }
}

static void factor_block(double *h, size_t n, size_t begin, size_t end, double least) {
    for (size_t i = end; i-- > begin;) {
        solve_row(h, n, i, i + 1, end);
        double pivot = h[i * n + i];
        for (size_t m = i + 1; m < end; m++)
            pivot -= h[i * n + m] * h[i * n + m];
        h[i * n + i] = sqrt(pivot > least ? pivot : least);
    }
}

void rp_cholesky_upper(double *h, size_t n, double least, rp_dots_fn add,
                       const struct rp_cpu_worker *worker) {
    for (size_t end = n, begin; end > 0; end = begin) {
        struct rp_cpu_parts parts;
        size_t from, to;
        begin = (end - 1) / BLOCK * BLOCK;
        if (worker->index == 0) {
            update_block(h, n, begin, end, add);
            factor_block(h, n, begin, end, least);
        }
        rp_cpu_barrier(worker);
        rp_cpu_parts_begin(&parts, worker, begin, GRAIN, GRAIN);
        while (rp_cpu_parts_next(&parts, &from, &to)) {
            update_rows(h, n, begin, end, from, to, add);
            for (size_t i = from; i < to; i++)
                solve_row(h, n, i, begin, end);
        }
        rp_cpu_barrier(worker);
    }
}
