/* Goal: the random numbers of a load test have the distributions that they are named after, and are
 * the same on every machine. Method: xoshiro256** against the values of a second implementation
 * (Python, from the paper's text); mean, variance and Kolmogorov-Smirnov's distance at fixed seeds;
 * logarithm and exponential against libm's. */
#include "base/memory.h"
#include "bench/load/load_random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define SAMPLES 20000
/* Kolmogorov's distribution: the distance exceeds 1.95 / sqrt(n) for 1 sample in 1,000; the seeds
 * are fixed. */
#define KS_LIMIT 1.95

static double samples[SAMPLES];

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Regularized lower incomplete gamma function, by its series or by Lentz's continued fraction. */
static double gamma_cdf(double shape, double x) {
    double front = exp(shape * log(x) - x - lgamma(shape));
    if (x <= 0)
        return 0;
    if (x < shape + 1) {
        double term = 1 / shape, sum = term;
        for (int n = 1; n < 10000 && term > sum * 1e-15; n++)
            sum += term *= x / (shape + n);
        return sum * front;
    }
    double b = x + 1 - shape, c = 1e300, d = 1 / b, h = d;
    for (int n = 1; n < 10000; n++) {
        double a = -n * (n - shape);
        b += 2;
        d = 1 / (a * d + b);
        c = b + a / c;
        h *= d * c;
        if (fabs(d * c - 1) < 1e-15)
            break;
    }
    return 1 - front * h;
}

static double normal_cdf(double unused, double x) {
    (void)unused;
    return 0.5 * erfc(-x / sqrt(2));
}

static double uniform_cdf(double unused, double x) {
    (void)unused;
    return x;
}

static void check_samples(double (*cdf)(double shape, double x), double shape, double mean,
                          double variance) {
    double sum = 0, squares = 0, distance = 0;
    for (int i = 0; i < SAMPLES; i++)
        sum += samples[i];
    for (int i = 0; i < SAMPLES; i++)
        squares += (samples[i] - sum / SAMPLES) * (samples[i] - sum / SAMPLES);
    /* 4 standard errors; the variance of the variance is that of a distribution with heavy
     * tails. */
    assert_true(fabs(sum / SAMPLES - mean) < 4 * sqrt(variance / SAMPLES));
    assert_true(fabs(squares / SAMPLES / variance - 1) < 4 * sqrt((2 + 6 / shape) / SAMPLES));
    qsort(samples, SAMPLES, sizeof *samples, by_value);
    for (int i = 0; i < SAMPLES; i++) {
        double p = cdf(shape, samples[i]);
        distance = fmax(distance, fmax(p - (double)i / SAMPLES, (i + 1.0) / SAMPLES - p));
    }
    assert_true(distance < KS_LIMIT / sqrt(SAMPLES));
}

static void test_gamma_has_its_mean_variance_and_distribution(void **state) {
    static const double shapes[] = {0.05, 0.25, 0.5, 0.9, 1, 1.5, 4, 50, 1e4};
    (void)state;
    for (size_t s = 0; s < RP_ARRAY_COUNT(shapes); s++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            struct rp_load_random random = rp_load_random_begin(seed, RP_LOAD_STREAM_ARRIVAL, s);
            for (int i = 0; i < SAMPLES; i++)
                samples[i] = rp_load_random_gamma(&random, shapes[s]);
            check_samples(gamma_cdf, shapes[s], shapes[s], shapes[s]);
        }
}

static void test_normal_and_unit_have_their_distributions(void **state) {
    (void)state;
    struct rp_load_random random = rp_load_random_begin(7, RP_LOAD_STREAM_ARRIVAL, 0);
    for (int i = 0; i < SAMPLES; i++)
        samples[i] = rp_load_random_normal(&random);
    check_samples(normal_cdf, 1, 0, 1);
    for (int i = 0; i < SAMPLES; i++)
        samples[i] = rp_load_random_unit(&random);
    check_samples(uniform_cdf, 1, 0.5, 1.0 / 12);
}

static void test_below_is_uniform_and_stays_below(void **state) {
    uint32_t counts[7] = {0};
    double chi = 0;
    (void)state;
    struct rp_load_random random = rp_load_random_begin(3, RP_LOAD_STREAM_PROMPT, 0);
    for (int i = 0; i < 70000; i++)
        counts[rp_load_random_below(&random, 7)]++;
    for (int i = 0; i < 7; i++)
        chi += (counts[i] - 10000.0) * (counts[i] - 10000.0) / 10000;
    assert_true(chi < 16.8); /* 6 degrees of freedom, 1 % */
    for (int i = 0; i < 100; i++)
        assert_int_equal(rp_load_random_below(&random, 1), 0);
    for (int i = 0; i < 100000; i++) /* a third of all draws would be refused */
        assert_true(rp_load_random_below(&random, 0xAAAAAAABu) < 0xAAAAAAABu);
}

static void test_numbers_are_the_same_on_every_machine(void **state) {
    (void)state;
    struct rp_load_random raw = {{1, 2, 3, 4}};
    static const uint64_t published[] = {11520, 0, 1509978240, 1215971899390074240u};
    for (size_t i = 0; i < RP_ARRAY_COUNT(published); i++)
        assert_true(rp_load_random_next(&raw) == published[i]);
    struct rp_load_random random = rp_load_random_begin(42, RP_LOAD_STREAM_PROMPT, 9);
    assert_true(rp_load_random_next(&random) == 0xeef3d34430a16ef9u);
    assert_true(rp_load_random_gamma(&random, 0.5) == 0x1.9edcff28e9203p+0);
    assert_true(rp_load_random_gamma(&random, 1) == 0x1.53a782ff65f3ep+0);
    assert_true(rp_load_random_gamma(&random, 3) == 0x1.4607d83000d52p+0);
    assert_true(rp_load_random_normal(&random) == 0x1.42c7a48a071cdp+0);
}

static void test_seed_stream_and_index_each_give_other_numbers(void **state) {
    uint64_t seen[4 * 4 * 5 * 4];
    size_t count = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++)
        for (uint64_t index = 0; index < 4; index++)
            for (int stream = RP_LOAD_STREAM_ARRIVAL; stream <= RP_LOAD_STREAM_BLOCK; stream++) {
                struct rp_load_random random =
                    rp_load_random_begin(seed, (enum rp_load_stream)stream, index);
                for (int i = 0; i < 4; i++)
                    seen[count++] = rp_load_random_next(&random);
            }
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(seen[i] != seen[j]);
}

static void test_logarithm_and_exponential_agree_with_libm(void **state) {
    double worst_log = 0, worst_exp = 0;
    (void)state;
    struct rp_load_random random = rp_load_random_begin(1, RP_LOAD_STREAM_ARRIVAL, 0);
    for (int i = 0; i < 200000; i++) {
        double x =
            ldexp(rp_load_random_unit(&random) + 0.5, (int)rp_load_random_below(&random, 120) - 60);
        double y = 1400 * (rp_load_random_unit(&random) - 0.5);
        worst_log = fmax(worst_log, fabs(rp_load_log(x) - log(x)) / fabs(log(x)));
        worst_exp = fmax(worst_exp, fabs(rp_load_exp(y) - exp(y)) / exp(y));
    }
    assert_true(worst_log <= 2 * 0x1p-52);
    assert_true(worst_exp <= 2 * 0x1p-52);
    assert_true(rp_load_log(1) == 0 && rp_load_exp(0) == 1 && rp_load_exp(-1e9) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gamma_has_its_mean_variance_and_distribution),
        cmocka_unit_test(test_normal_and_unit_have_their_distributions),
        cmocka_unit_test(test_below_is_uniform_and_stays_below),
        cmocka_unit_test(test_numbers_are_the_same_on_every_machine),
        cmocka_unit_test(test_seed_stream_and_index_each_give_other_numbers),
        cmocka_unit_test(test_logarithm_and_exponential_agree_with_libm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
