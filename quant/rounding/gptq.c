#include "quant/rounding/gptq.h"

#include "base/bf16.h"
#include "base/checked.h"
#include "base/memory.h"
#include "device/quantize_row.h"
#include "quant/rounding/cholesky.h"
#include "quant/rounding/fp4.h"

#include <math.h>
#include <string.h>

#define DAMPING 0.01
#define BLOCK   64u  /* columns */
#define TOKENS  256u /* of inputs that are transposed at once */
#define GROUP   32u  /* rows of weights that a worker rounds together */

static int run(struct rp_cpu_team *team, rp_cpu_job job, void *arg, struct rp_error *err) {
    uint64_t number;
    int status = rp_cpu_team_submit(team, job, arg, 0, &number);
    if (status != RP_OK)
        return rp_error_set(err, status, "the workers take no job: %s", rp_status_text(status));
    while (!rp_cpu_team_wait(team, number, UINT64_MAX))
        continue;
    return RP_OK;
}

/* ---- the factor ----------------------------------------------------------------------- */

struct making {
    const uint16_t *inputs;
    size_t count, cols;
    const float *divisors;
    double *values, *columns; /* columns: (cols, TOKENS) */
    double least;
    rp_dots_fn add;
};

size_t rp_gptq_factor_bytes(size_t cols) {
    size_t square, columns, both;
    bool over = rp_mul_overflow(cols, cols, &square) ||
                rp_mul_overflow(square, sizeof(double), &square) ||
                rp_mul_overflow(cols, TOKENS * sizeof(double), &columns) ||
                rp_add_overflow(square, columns, &both);
    return over ? SIZE_MAX : both;
}

static void transpose_inputs(const struct making *m, size_t from, size_t tokens,
                             const struct rp_cpu_worker *worker) {
    size_t begin, end;
    rp_cpu_share(worker, m->cols, BLOCK, &begin, &end);
    for (size_t t = 0; t < tokens; t++)
        for (size_t j = begin; j < end; j++) {
            double x = (double)rp_bf16_to_f32(m->inputs[(from + t) * m->cols + j]);
            m->columns[j * TOKENS + t] = m->divisors ? x / (double)m->divisors[j] : x;
        }
}

/* Rows [row, to) of H, from the diagonal's block on. */
static void add_gram(const struct making *m, size_t row, size_t to, size_t tokens) {
    for (size_t col = row / BLOCK * BLOCK; col < m->cols; col += BLOCK) {
        const struct rp_dots dots = {.a = m->columns + row * TOKENS,
                                     .b = m->columns + col * TOKENS,
                                     .a_stride = TOKENS,
                                     .b_stride = TOKENS,
                                     .out_stride = m->cols,
                                     .rows_a = to - row,
                                     .rows_b = RP_MIN((size_t)BLOCK, m->cols - col),
                                     .len = tokens,
                                     .out = m->values + row * m->cols + col,
                                     .sign = 1.0};
        m->add(&dots);
    }
}

static void make_hessian(struct making *m, const struct rp_cpu_worker *worker) {
    for (size_t from = 0; from < m->count; from += TOKENS) {
        size_t tokens = RP_MIN((size_t)TOKENS, m->count - from), row, to;
        struct rp_cpu_parts parts;
        transpose_inputs(m, from, tokens, worker);
        rp_cpu_barrier(worker);
        rp_cpu_parts_begin(&parts, worker, m->cols, BLOCK, BLOCK);
        while (rp_cpu_parts_next(&parts, &row, &to))
            for (; row < to; row += BLOCK)
                add_gram(m, row, RP_MIN(row + BLOCK, to), tokens);
        rp_cpu_barrier(worker);
    }
}

static void damp(struct making *m) {
    double sum = 0.0;
    for (size_t j = 0; j < m->cols; j++)
        sum += m->values[j * m->cols + j];
    double lambda = sum > 0.0 ? DAMPING * sum / (double)m->cols : 1.0;
    for (size_t j = 0; j < m->cols; j++)
        m->values[j * m->cols + j] += lambda;
    m->least = lambda / 2;
}

/* U is stored below the diagonal, so that the feedback into a column is contiguous in a row. */
static void mirror(const struct making *m, size_t from, size_t to) {
    for (size_t i = 0; i < to; i++)
        for (size_t j = RP_MAX(from, i + 1); j < to; j++)
            m->values[j * m->cols + i] = m->values[i * m->cols + j] / m->values[j * m->cols + j];
}

static void make_factor(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    struct making *m = arg0;
    struct rp_cpu_parts parts;
    size_t from, to;
    (void)arg1;
    make_hessian(m, worker);
    if (worker->index == 0)
        damp(m);
    rp_cpu_barrier(worker);
    rp_cholesky_upper(m->values, m->cols, m->least, m->add, worker);
    rp_cpu_parts_begin(&parts, worker, m->cols, BLOCK, BLOCK);
    while (rp_cpu_parts_next(&parts, &from, &to))
        mirror(m, from, to);
    rp_cpu_barrier(worker);
}

int rp_gptq_factor_make(const uint16_t *inputs, size_t count, size_t cols, const float *divisors,
                        struct rp_cpu_team *team, struct rp_gptq_factor *out,
                        struct rp_error *err) {
    *out = (struct rp_gptq_factor){.cols = cols};
    if (rp_gptq_factor_bytes(cols) == SIZE_MAX)
        return rp_error_set(err, RP_STATUS_OVERFLOW, "inputs of %zu columns are too wide for GPTQ",
                            cols);
    struct making m = {.inputs = inputs,
                       .count = count,
                       .cols = cols,
                       .divisors = divisors,
                       .values = rp_calloc(cols * cols, sizeof *m.values),
                       .columns = rp_calloc(cols * TOKENS, sizeof *m.columns),
                       .add = rp_dots_find(rp_cpu_isa_detect())};
    int status = m.values && m.columns
                     ? run(team, make_factor, &m, err)
                     : rp_error_set(err, RP_STATUS_NO_MEMORY,
                                    "no memory for GPTQ's matrix of %zu inputs (%zu MiB)", cols,
                                    rp_gptq_factor_bytes(cols) >> 20);
    rp_free(m.columns);
    if (status == RP_OK)
        out->values = m.values;
    else
        rp_free(m.values);
    return status;
}

void rp_gptq_factor_deinit(struct rp_gptq_factor *factor) {
    rp_free(factor->values);
    memset(factor, 0, sizeof *factor);
}

/* ---- quantized values ---- */

enum task { ROUND, ERRORS, SIGNALS };

struct rounding {
    const struct rp_gptq_factor *factor;
    const struct rp_gptq_matrix *matrix;
    enum task task;
    double *errors;  /* or NULL */
    double *scratch; /* of each worker: deltas (GROUP, cols), then what is fed (GROUP, BLOCK) */
    rp_dots_fn add;
};

static void round_weight(const struct rp_gptq_matrix *matrix, size_t at, double wanted,
                         double scale) {
    float code = (float)(wanted / scale);
    bool int4 = matrix->grid == RP_GPTQ_INT4;
    float least = int4 ? -8.0f : -127.0f, most = int4 ? 7.0f : 127.0f;
    if (matrix->grid == RP_GPTQ_E2M1)
        ((int8_t *)matrix->quantized)[at] = (int8_t)rp_fp4_round_doubled(code);
    else if (matrix->dtype == RP_DTYPE_INT8)
        ((int8_t *)matrix->quantized)[at] = (int8_t)rintf(fminf(fmaxf(code, least), most));
    else
        ((uint8_t *)matrix->quantized)[at] = rp_f32_to_fp8(code);
}

/* delta of weight (row, j), to which `fed` comes. */
static double settle(const struct rounding *r, size_t row, size_t j, double fed) {
    const struct rp_gptq_matrix *matrix = r->matrix;
    size_t cols = r->factor->cols, at = row * cols + j, group = matrix->group;
    size_t place = group ? row * RP_CEIL_DIV(cols, group) + j / group : row;
    double weight = (double)matrix->weights[at], scale = (double)matrix->scales[place];
    if (r->task == SIGNALS)
        return weight;
    if (r->task == ROUND && fed != 0.0)
        round_weight(matrix, at, weight + fed, scale);
    return weight - (double)rp_quantized_to_f32(matrix->quantized, matrix->dtype, at) * scale;
}

/* Columns [begin, end) of one row, whose deltas before begin are known. */
static void round_columns(const struct rounding *r, size_t row, size_t begin, size_t end,
                          double *deltas, const double *fed) {
    double lost = 0.0;
    for (size_t j = begin; j < end; j++) {
        const double *factor = r->factor->values + j * r->factor->cols;
        double sum = fed[j - begin];
        for (size_t i = begin; i < j; i++)
            sum += deltas[i] * factor[i];
        deltas[j] = settle(r, row, j, sum);
        double error = factor[j] * (deltas[j] + sum);
        lost += error * error;
    }
    if (r->errors)
        r->errors[row] += lost;
}

static void round_group(const struct rounding *r, size_t row, size_t count, double *deltas) {
    size_t cols = r->factor->cols;
    double *fed = deltas + GROUP * cols;
    for (size_t begin = 0, end; begin < cols; begin = end) {
        end = RP_MIN(begin + BLOCK, cols);
        const struct rp_dots dots = {.a = deltas,
                                     .b = r->factor->values + begin * cols,
                                     .a_stride = cols,
                                     .b_stride = cols,
                                     .out_stride = BLOCK,
                                     .rows_a = count,
                                     .rows_b = end - begin,
                                     .len = begin,
                                     .out = fed,
                                     .sign = 1.0};
        memset(fed, 0, GROUP * BLOCK * sizeof *fed);
        r->add(&dots);
        for (size_t i = 0; i < count; i++)
            round_columns(r, row + i, begin, end, deltas + i * cols, fed + i * BLOCK);
    }
}

static size_t scratch_doubles(size_t cols) { return GROUP * (cols + BLOCK); }

static void round_rows(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    const struct rounding *r = arg0;
    struct rp_cpu_parts parts;
    size_t from, to;
    (void)arg1;
    rp_cpu_parts_begin(&parts, worker, r->matrix->rows, GROUP, GROUP);
    while (rp_cpu_parts_next(&parts, &from, &to))
        for (; from < to; from += GROUP)
            round_group(r, from, RP_MIN((size_t)GROUP, to - from),
                        r->scratch + worker->index * scratch_doubles(r->factor->cols));
}

static int go(const struct rp_gptq_factor *factor, const struct rp_gptq_matrix *matrix,
              enum task task, struct rp_cpu_team *team, double *errors, struct rp_error *err) {
    struct rounding r = {.factor = factor,
                         .matrix = matrix,
                         .task = task,
                         .errors = errors,
                         .scratch = rp_calloc(rp_cpu_team_size(team),
                                              scratch_doubles(factor->cols) * sizeof *r.scratch),
                         .add = rp_dots_find(rp_cpu_isa_detect())};
    RP_ASSERT(matrix->dtype == RP_DTYPE_INT8 || matrix->dtype == RP_DTYPE_FP8_E4M3);
    if (errors)
        memset(errors, 0, matrix->rows * sizeof *errors);
    int status = r.scratch ? run(team, round_rows, &r, err)
                           : rp_error_set(err, RP_STATUS_NO_MEMORY,
                                          "no memory to round rows of %zu weights", factor->cols);
    rp_free(r.scratch);
    return status;
}

int rp_gptq_round(const struct rp_gptq_factor *factor, const struct rp_gptq_matrix *matrix,
                  struct rp_cpu_team *team, double *errors, struct rp_error *err) {
    return go(factor, matrix, ROUND, team, errors, err);
}

int rp_gptq_errors(const struct rp_gptq_factor *factor, const struct rp_gptq_matrix *matrix,
                   struct rp_cpu_team *team, double *errors, struct rp_error *err) {
    return go(factor, matrix, ERRORS, team, errors, err);
}

int rp_gptq_signals(const struct rp_gptq_factor *factor, const struct rp_gptq_matrix *matrix,
                    struct rp_cpu_team *team, double *signals, struct rp_error *err) {
    return go(factor, matrix, SIGNALS, team, signals, err);
}
