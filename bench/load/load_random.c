#include "bench/load/load_random.h"

#include <math.h>

#define LN2_HIGH                                                                                   \
    0x1.62e42fefa0000p-1 /* low bits are zero, so that products with small integers are exact */
#define LN2_LOW 0x1.cf79abc9e3b3ap-40
#define SQRT_2  0x1.6a09e667f3bcdp+0

static uint64_t mix(uint64_t z) { /* splitmix64's output function */
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

struct rp_load_random rp_load_random_begin(uint64_t seed, enum rp_load_stream stream,
                                           uint64_t index) {
    struct rp_load_random random;
    uint64_t z = mix(mix(mix(seed) + (uint64_t)stream) + index);
    for (int i = 0; i < 4; i++)
        random.state[i] = mix(z + (uint64_t)i * 0x9E3779B97F4A7C15u);
    return random;
}

double rp_load_log(double x) {
    int exponent;
    double m = frexp(x, &exponent); /* exact; [0.5, 1) */
    if (m < SQRT_2 / 2) {
        m *= 2;
        exponent--;
    }
    /* log m = 2 atanh s, |s| below 0.172 */
    double s = (m - 1) / (m + 1), z = s * s, sum = 0;
    for (int k = 23; k >= 3; k -= 2)
        sum = (sum + 1.0 / k) * z;
    return exponent * LN2_HIGH + (2 * s + (2 * s * sum + exponent * LN2_LOW));
}

double rp_load_exp(double x) {
    if (x < -708)
        return 0;
    double k = floor(x / (LN2_HIGH + LN2_LOW) + 0.5);
    double r = x - k * LN2_HIGH - k * LN2_LOW, sum = 1;
    for (int n = 14; n >= 1; n--)
        sum = 1 + sum * r / n;
    return ldexp(sum, (int)k); /* exact */
}

double rp_load_random_normal(struct rp_load_random *random) {
    double u, v, square;
    /* Marsaglia's polar method; its second value is discarded, so that there is no other state. */
    do {
        u = 2 * rp_load_random_unit(random) - 1;
        v = 2 * rp_load_random_unit(random) - 1;
        square = u * u + v * v;
    } while (square >= 1 || square == 0);
    return u * sqrt(-2 * rp_load_log(square) / square);
}

double rp_load_random_gamma(struct rp_load_random *random, double shape) {
    if (shape == 1)
        return -rp_load_log(rp_load_random_unit(random));
    /* Gamma(a) = Gamma(a + 1) * U^(1/a) */
    double boost = 1;
    if (shape < 1) {
        boost = rp_load_exp(rp_load_log(rp_load_random_unit(random)) / shape);
        shape += 1;
    }
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = rp_load_random_normal(random), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        double u = rp_load_random_unit(random);
        if (rp_load_log(u) < 0.5 * x * x + d * (1 - v + rp_load_log(v)))
            return d * v * boost;
    }
}
