#include "model/balance.h"

#include "base/memory.h"
#include "model/weights_internal.h"
#include "quant/matmul.h"

#include <math.h>
#include <string.h>

#define STRENGTHS    5u /* a = 0 (no factors), 1/4, 1/2, 3/4, 1 */
#define EXPONENT_MAX 12 /* factors of 2^-12 to 2^12: well within the range of bf16 and f32 */
#define STEPS        127.0
#define WORTH_DB     0.5 /* smaller estimated gains do not justify changing the norms */

/* One site's weights and the statistics of its columns. */
struct site {
    const struct rp_matrix *weight;
    const struct rp_balance_sample *sample;
    uint32_t cols, group,
        head_dim;   /* group: heads that share a factor, of head_dim columns each; else 1 */
    float *row;     /* (cols) of the weights */
    float *largest; /* (cols) max over rows of |w_j| */
    double *energy; /* (cols) sum over rows of w_j^2 */
    float *factors; /* (STRENGTHS, cols) */
};

/* The first of the columns that share a factor with column j. */
static uint32_t leader(const struct site *s, uint32_t j) {
    uint32_t head = j / s->head_dim;
    return head / s->group * s->group * s->head_dim + j % s->head_dim;
}

static void look_at_weights(struct site *s) {
    for (uint32_t n = 0; n < s->weight->rows; n++) {
        rp_matrix_row_f32(s->weight, n, s->row);
        for (uint32_t j = 0; j < s->cols; j++) {
            s->largest[j] = fmaxf(s->largest[j], fabsf(s->row[j]));
            s->energy[j] += (double)s->row[j] * (double)s->row[j];
        }
    }
}

/* Exponents of max|x_j|^a / max|w_j|^(1-a), centered on their median so that norms keep their
 * magnitude. */
static void make_factors(const struct site *s, double a, float *out) {
    double sum = 0.0;
    uint32_t count = 0;
    for (uint32_t j = 0; j < s->cols; j++) {
        if (leader(s, j) != j)
            continue;
        float x = 0.0f, w = 0.0f;
        for (uint32_t g = 0; g < s->group; g++) {
            x = fmaxf(x, s->sample->largest[j + g * s->head_dim]);
            w = fmaxf(w, s->largest[j + g * s->head_dim]);
        }
        bool known = x > 0.0f && w > 0.0f && isfinite(x) && isfinite(w);
        out[j] = known ? (float)(a * log2((double)x) - (1.0 - a) * log2((double)w)) : NAN;
        sum += known ? (double)out[j] : 0.0;
        count += known;
    }
    for (uint32_t j = 0; j < s->cols; j++) {
        uint32_t from = leader(s, j);
        if (from != j)
            out[j] = out[from];
        else if (isnan(out[j]))
            out[j] = 1.0f;
        else
            out[j] = ldexpf(
                1.0f, (int)RP_MAX(RP_MIN(rint((double)out[j] - sum / count), (double)EXPONENT_MAX),
                                  (double)-EXPONENT_MAX));
    }
}

/* Rounding to steps of d adds d^2 / 12 to a number's square. */
static double noise_of_rows(const struct site *s, const float *factors) {
    double weights = 0.0, steps = 0.0;
    for (uint32_t j = 0; j < s->cols; j++)
        weights += (double)factors[j] * (double)factors[j] * s->energy[j];
    for (uint32_t t = 0; t < s->sample->rows; t++) {
        const float *x = s->sample->values + (size_t)t * s->cols;
        float most = 0.0f;
        for (uint32_t j = 0; j < s->cols; j++)
            most = fmaxf(most, fabsf(x[j]) / factors[j]);
        steps += ((double)most / STEPS) * ((double)most / STEPS);
    }
    return steps / 12.0 * weights;
}

static double energy_of_rows(const struct site *s, const float *factors) {
    double sum = 0.0;
    for (uint32_t t = 0; t < s->sample->rows; t++)
        for (uint32_t j = 0; j < s->cols; j++) {
            double x = (double)s->sample->values[(size_t)t * s->cols + j] / (double)factors[j];
            sum += x * x;
        }
    return sum;
}

/* Sums over the weights' rows of their squared steps, for each strength. */
static void steps_of_weights(const struct site *s, double *out) {
    memset(out, 0, STRENGTHS * sizeof *out);
    for (uint32_t n = 0; n < s->weight->rows; n++) {
        rp_matrix_row_f32(s->weight, n, s->row);
        for (uint32_t a = 0; a < STRENGTHS; a++) {
            const float *factors = s->factors + (size_t)a * s->cols;
            float most = 0.0f;
            for (uint32_t j = 0; j < s->cols; j++)
                most = fmaxf(most, fabsf(s->row[j]) * factors[j]);
            out[a] += ((double)most / STEPS) * ((double)most / STEPS);
        }
    }
}

static int choose_site(struct site *s, struct rp_balance_factors *out) {
    double steps[STRENGTHS], noise[STRENGTHS];
    uint32_t best = 0;
    look_at_weights(s);
    for (uint32_t j = 0; j < s->cols; j++)
        s->factors[j] = 1.0f;
    for (uint32_t a = 1; a < STRENGTHS; a++)
        make_factors(s, a / (double)(STRENGTHS - 1), s->factors + (size_t)a * s->cols);
    steps_of_weights(s, steps);
    for (uint32_t a = 0; a < STRENGTHS; a++) {
        const float *factors = s->factors + (size_t)a * s->cols;
        noise[a] = noise_of_rows(s, factors) + steps[a] / 12.0 * energy_of_rows(s, factors);
        if (noise[a] < noise[best])
            best = a;
    }
    double gain = 10.0 * log10(noise[0] / noise[best]);
    if (best == 0 || !(gain >= WORTH_DB))
        return RP_OK;
    out->values = rp_calloc(s->cols, sizeof *out->values);
    if (!out->values)
        return RP_STATUS_NO_MEMORY;
    memcpy(out->values, s->factors + (size_t)best * s->cols, s->cols * sizeof *out->values);
    out->noise_db = gain;
    return RP_OK;
}

static int open_site(const struct rp_model *model, uint32_t layer, enum rp_balance_site site,
                     const struct rp_balance_sample *sample, struct rp_balance_factors *out) {
    const struct rp_model_config *config = &model->config;
    const struct rp_matrix *weight = rp_model_matrix(model, rp_balance_role(site), layer);
    struct site s = {.weight = weight,
                     .sample = sample,
                     .cols = weight->cols,
                     .group = site == RP_BALANCE_O ? config->heads / config->kv_heads : 1,
                     .head_dim = site == RP_BALANCE_O ? config->head_dim : 1};
    RP_ASSERT(sample->cols == s.cols);
    s.row = rp_calloc(s.cols, sizeof *s.row);
    s.largest = rp_calloc(s.cols, sizeof *s.largest);
    s.energy = rp_calloc(s.cols, sizeof *s.energy);
    s.factors = rp_calloc((size_t)STRENGTHS * s.cols, sizeof *s.factors);
    int status =
        s.row && s.largest && s.energy && s.factors ? choose_site(&s, out) : RP_STATUS_NO_MEMORY;
    rp_free(s.row);
    rp_free(s.largest);
    rp_free(s.energy);
    rp_free(s.factors);
    return status;
}

/* Whether the operator before the site's GEMM can take the factors: a norm whose weights multiply
 * and that only this GEMM reads, or rows of v or up that are a tensor of their own. */
static bool can_balance(const struct rp_model_config *config, enum rp_balance_site site) {
    switch (site) {
    case RP_BALANCE_O:
        return !rp_weight_is_fused(config, RP_WEIGHT_QKV);
    case RP_BALANCE_DOWN:
        return !rp_weight_is_fused(config, RP_WEIGHT_GATE_UP);
    default:
        return config->norm_offset == 0.0f && !config->no_pre_norms && !config->parallel &&
               !config->layer_norm;
    }
}

int rp_balance_choose(const struct rp_model *model, const struct rp_balance_sample *samples,
                      struct rp_balance *out, struct rp_error *err) {
    uint32_t count = model->config.layers * RP_BALANCE_SITES;
    *out = (struct rp_balance){.layers = model->config.layers,
                               .sites = rp_calloc(count, sizeof *out->sites)};
    int status = out->sites ? RP_OK : RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < count && status == RP_OK; i++) {
        enum rp_balance_site site = (enum rp_balance_site)(i % RP_BALANCE_SITES);
        if (can_balance(&model->config, site))
            status = open_site(model, i / RP_BALANCE_SITES, site, &samples[i], &out->sites[i]);
    }
    if (status == RP_OK)
        return RP_OK;
    rp_balance_deinit(out);
    return rp_error_set(err, status, "no memory to balance the weights");
}

void rp_balance_deinit(struct rp_balance *balance) {
    for (uint32_t i = 0; balance->sites && i < balance->layers * RP_BALANCE_SITES; i++)
        rp_free(balance->sites[i].values);
    rp_free(balance->sites);
    memset(balance, 0, sizeof *balance);
}
