/* load_compare.c - comparison of interleaved runs, verdicts and their text; load_result.c compares
 * result files. */
#include "bench/load/load_compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A table up to 30 degrees, then the expansion around the normal quantile (Abramowitz and Stegun
 * 26.7.5). */
double rp_student_t975(uint32_t degrees) {
    static const double table[] = {12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912,
                                   2.364624,  2.306004, 2.262157, 2.228139, 2.200985, 2.178813,
                                   2.160369,  2.144787, 2.131450, 2.119905, 2.109816, 2.100922,
                                   2.093024,  2.085963, 2.079614, 2.073873, 2.068658, 2.063899,
                                   2.059539,  2.055529, 2.051831, 2.048407, 2.045230, 2.042272};
    const double z = 1.959963985, n = degrees;
    if (degrees == 0)
        return INFINITY;
    if (degrees <= RP_ARRAY_COUNT(table))
        return table[degrees - 1];
    double g1 = (pow(z, 3) + z) / 4, g2 = (5 * pow(z, 5) + 16 * pow(z, 3) + 3 * z) / 96;
    return z + g1 / n + g2 / (n * n);
}

void rp_compare_judge(struct rp_comparison *c) {
    c->ratio = c->b / c->a;
    if (!(c->low > 0 && c->high >= c->low))
        c->verdict = RP_COMPARE_NO_INTERVAL;
    else if ((c->low <= 1 && c->high >= 1) || (c->low >= 1 - c->margin && c->high <= 1 + c->margin))
        c->verdict = RP_COMPARE_SAME;
    else
        c->verdict = (c->low > 1) == c->larger_is_better ? RP_COMPARE_FASTER : RP_COMPARE_SLOWER;
}

int rp_compare_blocks(const char *metric, bool larger_is_better, const double *values,
                      uint32_t blocks, double margin, struct rp_comparison *out,
                      struct rp_error *err) {
    double sum = 0.0, squares = 0.0, sum_a = 0.0, sum_b = 0.0;
    *out = (struct rp_comparison){
        .larger_is_better = larger_is_better, .margin = margin, .samples = blocks};
    snprintf(out->metric, sizeof out->metric, "%s", metric);
    if (blocks == 0)
        return rp_error_set(err, RP_STATUS_INVALID, "%s: no block was measured", metric);
    for (uint32_t i = 0; i < 4 * blocks; i++)
        if (!(values[i] > 0) || !isfinite(values[i]))
            return rp_error_set(err, RP_STATUS_INVALID, "%s: block %u has a value of %g", metric,
                                i / 4 + 1, values[i]);
    for (uint32_t i = 0; i < blocks; i++) {
        const double *v = values + 4 * (size_t)i;
        double log_a = log(0.5 * (v[0] + v[3])), log_b = log(0.5 * (v[1] + v[2]));
        sum_a += log_a;
        sum_b += log_b;
        sum += log_b - log_a;
    }
    double mean = sum / blocks;
    out->a = exp(sum_a / blocks);
    out->b = exp(sum_b / blocks);
    if (blocks > 1) {
        for (uint32_t i = 0; i < blocks; i++) {
            const double *v = values + 4 * (size_t)i;
            double deviation = log((v[1] + v[2]) / (v[0] + v[3])) - mean;
            squares += deviation * deviation;
        }
        double half = rp_student_t975(blocks - 1) * sqrt(squares / (blocks - 1.0) / (double)blocks);
        out->low = exp(mean - half);
        out->high = exp(mean + half);
    }
    rp_compare_judge(out);
    return RP_OK;
}

void rp_compare_text(const struct rp_comparison *c, char *out, size_t size) {
    bool up = c->ratio > 1;
    double sign = up ? 100.0 : -100.0;
    double near = up ? c->low : c->high, far = up ? c->high : c->low;
    switch (c->verdict) {
    case RP_COMPARE_NO_INTERVAL:
        snprintf(out, size, "no interval%s",
                 c->samples == 0   ? ": only totals"
                 : c->samples == 1 ? ": one block"
                                   : "");
        break;
    case RP_COMPARE_SAME:
        snprintf(out, size, "no difference (ratio %.3f, 95 %% interval %.3f to %.3f%s)", c->ratio,
                 c->low, c->high, c->low <= 1 && c->high >= 1 ? "" : ", within the margin");
        break;
    case RP_COMPARE_UNRELIABLE:
        snprintf(out, size, "no verdict: a result is unreliable");
        break;
    case RP_COMPARE_FASTER:
    case RP_COMPARE_SLOWER:
        snprintf(out, size, "B is %.1f %% %s (95 %% interval %.1f to %.1f)", sign * (c->ratio - 1),
                 c->verdict == RP_COMPARE_FASTER ? "faster" : "slower", sign * (near - 1),
                 sign * (far - 1));
        break;
    }
}
