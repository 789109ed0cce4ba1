#include "bench/eval_ppl.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

/* ---- one token ------------------------------------------------------------------------------ */

struct row_sums {
    float max;
    uint32_t top;   /* the first id with the maximum */
    double log_sum; /* log of the sum of exp(logit - max) */
    bool finite;
};

static struct row_sums sum_row(const float *logits, uint32_t vocab) {
    struct row_sums row = {.max = logits[0], .finite = true};
    double sum = 0.0;
    for (uint32_t id = 0; id < vocab; id++) {
        row.finite = row.finite && isfinite(logits[id]);
        if (logits[id] > row.max) {
            row.max = logits[id];
            row.top = id;
        }
    }
    for (uint32_t id = 0; row.finite && id < vocab; id++)
        sum += exp((double)logits[id] - (double)row.max);
    row.log_sum = log(sum);
    return row;
}

static double log_prob(const struct row_sums *row, float logit) {
    return (double)logit - (double)row->max - row->log_sum;
}

static void count_difference(struct rp_eval_difference *out, const float *p, const float *q,
                             uint32_t vocab, const struct row_sums *p_row,
                             const struct row_sums *q_row) {
    double kl = 0.0, dot = 0.0, p_norm = 0.0, q_norm = 0.0;
    for (uint32_t id = 0; id < vocab; id++) {
        double a = (double)p[id], b = (double)q[id], difference = fabs(a - b);
        double q_log = log_prob(q_row, q[id]);
        kl += exp(q_log) * (q_log - log_prob(p_row, p[id]));
        dot += a * b;
        p_norm += a * a;
        q_norm += b * b;
        out->logit_sum += difference;
        out->logit_max = RP_MAX(out->logit_max, difference);
    }
    /* The cosine of two zero vectors is defined as 1. */
    double norms = sqrt(p_norm) * sqrt(q_norm);
    double cosine = norms > 0.0 ? RP_MIN(dot / norms, 1.0) : p_norm == q_norm ? 1.0 : 0.0;
    kl = RP_MAX(kl, 0.0); /* may be negative because of rounding */
    out->kl_sum += kl;
    out->kl_max = RP_MAX(out->kl_max, kl);
    out->cosine_sum += cosine;
    out->cosine_min = RP_MIN(out->cosine_min, cosine);
    out->top1_same += p_row->top == q_row->top;
}

static double count_nll(struct rp_eval_nll *out, double nll) {
    out->sum += nll;
    out->sum_squares += nll * nll;
    return nll;
}

bool rp_eval_count(struct rp_eval_sums *sums, const float *logits, const float *other,
                   uint32_t vocab, uint32_t target) {
    RP_ASSERT_CMP(target, <, vocab);
    struct row_sums row = sum_row(logits, vocab);
    if (!row.finite)
        return false;
    if (sums->tokens == 0)
        sums->difference.cosine_min = 1.0;
    if (other) {
        struct row_sums other_row = sum_row(other, vocab);
        if (!other_row.finite)
            return false;
        count_difference(&sums->difference, logits, other, vocab, &row, &other_row);
        double nll = count_nll(&sums->model, -log_prob(&row, logits[target]));
        double change = nll - count_nll(&sums->other, -log_prob(&other_row, other[target]));
        sums->difference.nll_sum += change;
        sums->difference.nll_square_sum += change * change;
    } else {
        count_nll(&sums->model, -log_prob(&row, logits[target]));
    }
    sums->tokens++;
    sums->vocab = vocab;
    return true;
}

/* ---- windows -------------------------------------------------------------------------------- */

struct evaluation {
    struct rp_eval_run *model, *other;
    const struct rp_eval_text *text;
    int32_t *ids; /* of a window, including its BOS */
    struct rp_eval_sums *sums;
    struct rp_error *err;
};

/* Runs ids[at, at + count) of a window; predictions of ids from index `first` on are counted. */
static int run_chunk(struct evaluation *e, uint32_t at, uint32_t count, uint32_t first) {
    const float *logits, *other = NULL;
    int status = rp_eval_run_feed(e->model, e->ids + at, count, at == 0, &logits, e->err);
    if (status == RP_OK && e->other)
        status = rp_eval_run_feed(e->other, e->ids + at, count, at == 0, &other, e->err);
    if (status != RP_OK)
        return status;
    for (uint32_t i = 0; i < count; i++) {
        size_t row = (size_t)i * e->model->vocab;
        if (at + i + 1 < first)
            continue;
        if (!rp_eval_count(e->sums, logits + row, other ? other + row : NULL, e->model->vocab,
                           (uint32_t)e->ids[at + i + 1]))
            return rp_error_set(e->err, RP_STATUS_FORMAT,
                                "the logits after token %llu of the text are not finite",
                                (unsigned long long)e->sums->tokens);
    }
    return RP_OK;
}

/* Runs the text's tokens [begin, end) as a window; those before `counted` are only context. */
static int run_window(struct evaluation *e, size_t begin, size_t end, size_t counted) {
    uint32_t bos = e->text->bos >= 0 ? 1 : 0, tokens = (uint32_t)(end - begin) + bos;
    uint32_t first = RP_MAX((uint32_t)(counted - begin) + bos, 1u);
    uint32_t chunk =
        e->other ? RP_MIN(e->model->config.chunk, e->other->config.chunk) : e->model->config.chunk;
    if (bos)
        e->ids[0] = (int32_t)e->text->bos;
    memcpy(e->ids + bos, e->text->ids + begin, (end - begin) * sizeof *e->ids);
    int status = RP_OK;
    /* The last token's logits are not needed. */
    for (uint32_t at = 0; status == RP_OK && at + 1 < tokens; at += chunk)
        status = run_chunk(e, at, RP_MIN(chunk, tokens - 1 - at), first);
    return status;
}

int rp_eval_ppl(struct rp_eval_run *model, struct rp_eval_run *other,
                const struct rp_eval_text *text,
                void (*progress)(void *ctx, size_t done, size_t total), void *ctx,
                struct rp_eval_sums *out, struct rp_error *err) {
    struct evaluation e = {.model = model, .other = other, .text = text, .sums = out, .err = err};
    uint32_t bos = text->bos >= 0 ? 1 : 0, width = text->window - bos;
    memset(out, 0, sizeof *out);
    RP_ASSERT(text->window > bos && text->stride > 0 && text->stride <= width);
    e.ids = rp_calloc(text->window, sizeof *e.ids);
    if (!e.ids)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    int status = RP_OK;
    for (size_t begin = 0, counted = 0; status == RP_OK && counted < text->count;
         begin += text->stride) {
        size_t end = RP_MIN(begin + width, text->count);
        status = run_window(&e, begin, end, counted);
        counted = end;
        if (progress && status == RP_OK)
            progress(ctx, counted, text->count);
    }
    rp_free(e.ids);
    return status;
}
