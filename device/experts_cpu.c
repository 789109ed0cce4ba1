#include "device/experts.h"

#include "base/bf16.h"

#include <math.h>
#include <string.h>

const double rp_expert_ratio_bounds[RP_EXPERT_BINS - 1] = {1.25, 1.5, 2,  2.5, 3,  4,  5,
                                                           6,    8,   12, 16,  32, 64, 128};

/* --- route ----------------------------------------------------------------------------------- */

static void softmax(float *x, uint32_t count) {
    float most = x[0], sum = 0.0f;
    for (uint32_t i = 1; i < count; i++)
        most = fmaxf(most, x[i]);
    for (uint32_t i = 0; i < count; i++) {
        x[i] = expf(x[i] - most);
        sum += x[i];
    }
    for (uint32_t i = 0; i < count; i++)
        x[i] /= sum;
}

/* NaN is the greatest, so that it is chosen and its weight is NaN. */
static bool is_greater(float a, float b) { return a > b || (isnan(a) && !isnan(b)); }

/* The first of the greatest that are not `taken`; there is one. It becomes taken. */
static uint32_t take_best(const float *scores, bool *taken, uint32_t count) {
    uint32_t best = count;
    for (uint32_t i = 0; i < count; i++)
        if (!taken[i] && (best == count || is_greater(scores[i], scores[best])))
            best = i;
    RP_ASSERT_CMP(best, <, count);
    taken[best] = true;
    return best;
}

/* Experts outside the best groups become taken. */
static void limit_groups(const struct rp_route_args *args, const float *scores, bool *taken) {
    uint32_t size = args->experts.count / args->groups;
    float totals[RP_EXPERTS_MAX];
    bool chosen[RP_EXPERTS_MAX] = {false};
    for (uint32_t g = 0; g < args->groups; g++) {
        bool counted[RP_EXPERTS_MAX] = {false};
        totals[g] = 0.0f;
        for (uint32_t i = 0; i < args->group_best; i++)
            totals[g] += scores[g * size + take_best(scores + g * size, counted, size)];
    }
    for (uint32_t i = 0; i < args->groups_used; i++)
        (void)take_best(totals, chosen, args->groups);
    for (uint32_t i = 0; i < args->experts.count; i++)
        taken[i] = !chosen[i / size];
}

static void route_row(const struct rp_route_args *args, const float *logits, float *out) {
    uint32_t count = args->experts.count, used = args->experts.used;
    float scores[RP_EXPERTS_MAX], choice[RP_EXPERTS_MAX], sum = 0.0f;
    bool taken[RP_EXPERTS_MAX] = {false};
    memcpy(scores, logits, count * sizeof *scores);
    if (args->score == RP_ROUTE_SOFTMAX)
        softmax(scores, count);
    for (uint32_t i = 0; i < count; i++) {
        if (args->score == RP_ROUTE_SIGMOID)
            scores[i] = 1.0f / (1.0f + expf(-scores[i]));
        choice[i] = args->bias ? scores[i] + args->bias[i] : scores[i];
    }
    if (args->groups > 1)
        limit_groups(args, choice, taken);
    for (uint32_t r = 0; r < used; r++) {
        uint32_t expert = take_best(choice, taken, count);
        out[r] = scores[expert];
        out[used + r] = (float)expert;
    }
    if (args->score == RP_ROUTE_SOFTMAX_CHOSEN)
        softmax(out, used);
    for (uint32_t r = 0; r < used; r++)
        sum += out[r];
    for (uint32_t r = 0; r < used; r++) {
        if (args->renormalize)
            out[r] /= sum + 1e-20f; /* as DeepSeek's code: sigmoids may all be zero */
        out[r] *= args->factor;
        if (args->scales)
            out[r] *= args->scales[(uint32_t)out[used + r]];
    }
}

void rp_route_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_route_args *args = args_void;
    for (uint32_t row = begin; row < end; row++)
        route_row(args, (const float *)args->logits.data + row * args->logits.stride,
                  (float *)args->out.data + row * args->out.stride);
}

/* --- order ----------------------------------------------------------------------------------- */

/* One writer: a plain sum, stored so that a reader never sees half of it. */
static void add(uint64_t *to, uint64_t value) {
    __atomic_store_n(to, *to + value, __ATOMIC_RELAXED);
}

static void count_rows(struct rp_expert_stats *stats, const int32_t *offsets, uint32_t count) {
    uint32_t most = 0, touched = 0, bin;
    uint64_t rows = (uint64_t)offsets[count];
    for (uint32_t e = 0; e < count; e++) {
        uint32_t own = (uint32_t)(offsets[e + 1] - offsets[e]);
        if (own == 0)
            continue;
        for (bin = 0; bin < RP_EXPERT_BINS - 1 && own > 1u << bin; bin++)
            ;
        add(&stats->rows_bins[bin], 1);
        most = RP_MAX(most, own);
        touched++;
    }
    double ratio = (double)most * count / (double)rows;
    for (bin = 0; bin < RP_EXPERT_BINS - 1 && ratio > rp_expert_ratio_bounds[bin]; bin++)
        ;
    add(&stats->ratio_bins[bin], 1);
    add(&stats->ratio_thousandths, (uint64_t)(ratio * 1000 + 0.5));
    add(&stats->touched, touched);
    add(&stats->rows, rows);
    add(&stats->samples, 1);
}

void rp_expert_order_cpu(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct rp_expert_order_args *args = args_void;
    uint32_t count = args->experts.count, used = args->experts.used, at[RP_EXPERTS_MAX] = {0};
    uint32_t rows = rp_live_rows(&args->step, RP_ROWS_TOKEN), sum = 0;
    int32_t *offsets = args->order, *order = args->order + count + 1;
    if (worker->index != 0)
        return;
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t r = 0; r < used; r++)
            at[(uint32_t)((const float *)args->ids.data)[row * args->ids.stride + r]]++;
    for (uint32_t e = 0; e < count; e++) {
        uint32_t own = at[e];
        offsets[e] = (int32_t)sum;
        at[e] = sum;
        sum += own;
    }
    offsets[count] = (int32_t)sum;
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t r = 0; r < used; r++) {
            uint32_t id = (uint32_t)((const float *)args->ids.data)[row * args->ids.stride + r];
            order[at[id]++] = (int32_t)(row * used + r);
        }
    if (args->stats && rows > 0)
        count_rows(args->stats, offsets, count);
}

/* --- sum ------------------------------------------------------------------------------------- */

/* Columns that are summed at a time, in a buffer that stays in L1. */
#define SUM_COLS 256u

void rp_expert_sum_cols(const struct rp_expert_sum_args *args, uint32_t row, uint32_t col_begin,
                        uint32_t col_end) {
    const float *weights = (const float *)args->weights.data + row * args->weights.stride;
    float *out = (float *)args->out.data + row * args->out.stride;
    float scale = 1.0f;
    if (args->gate.data)
        scale = 1.0f / (1.0f + expf(-((const float *)args->gate.data)[row * args->gate.stride]));
    for (uint32_t c = col_begin; c < col_end; c += SUM_COLS) {
        uint32_t cols = RP_MIN(col_end - c, SUM_COLS);
        float sum[SUM_COLS] = {0.0f};
        for (uint32_t r = 0; r < args->used; r++) {
            size_t at = ((size_t)row * args->used + r) * args->in.stride + c;
            float weight = weights[r];
            if (args->in.dtype == RP_DTYPE_BF16)
                for (uint32_t i = 0; i < cols; i++)
                    sum[i] += weight * rp_bf16_to_f32(((const uint16_t *)args->in.data)[at + i]);
            else
                for (uint32_t i = 0; i < cols; i++)
                    sum[i] += weight * ((const float *)args->in.data)[at + i];
        }
        const float *shared = (const float *)args->shared.data;
        for (uint32_t i = 0; shared && i < cols; i++)
            sum[i] += scale * shared[row * args->shared.stride + c + i];
        memcpy(out + c, sum, cols * sizeof *out);
    }
}
