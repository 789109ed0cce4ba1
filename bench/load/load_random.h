/* load_random.h - reproducible random numbers for load tests: xoshiro256** (Blackman and Vigna,
 * 2018) seeded through splitmix64, and distributions built only from additions, multiplications,
 * divisions and square roots, which IEEE 754 rounds identically on every machine. (libm's logarithm
 * differs by a bit between libcs.)
 *
 * Every use has its own stream, so that drawing more numbers in one place does not change another.
 * Thread: a generator has one owner. */
#ifndef RP_BENCH_LOAD_RANDOM_H
#define RP_BENCH_LOAD_RANDOM_H

#include "base/base.h"

enum rp_load_stream {
    RP_LOAD_STREAM_ARRIVAL = 1,
    RP_LOAD_STREAM_LENGTHS,
    RP_LOAD_STREAM_PREFIX, /* the prefix shared by all prompts */
    RP_LOAD_STREAM_PROMPT, /* index: the request */
    RP_LOAD_STREAM_BLOCK,  /* index: the hash id */
    RP_LOAD_STREAM_SWEEP   /* index: the run; gives each run its own seed */
};

struct rp_load_random {
    uint64_t state[4];
};

/* Streams with different (seed, stream, index) are independent for the purposes of a load test. */
struct rp_load_random rp_load_random_begin(uint64_t seed, enum rp_load_stream stream,
                                           uint64_t index);

static inline uint64_t rp_load_random_next(struct rp_load_random *random) {
    uint64_t *s = random->state;
    uint64_t five = s[1] * 5, result = (five << 7 | five >> 57) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = s[3] << 45 | s[3] >> 19;
    return result;
}

/* Uniform in [0, n), n at least 1, without bias (Lemire, 2019). */
static inline uint32_t rp_load_random_below(struct rp_load_random *random, uint32_t n) {
    uint64_t product = (rp_load_random_next(random) >> 32) * n;
    if ((uint32_t)product < n) {
        uint32_t threshold = (0u - n) % n;
        while ((uint32_t)product < threshold)
            product = (rp_load_random_next(random) >> 32) * n;
    }
    return (uint32_t)(product >> 32);
}

/* Uniform in (0, 1): neither end occurs. */
static inline double rp_load_random_unit(struct rp_load_random *random) {
    return ((double)(rp_load_random_next(random) >> 12) + 0.5) * 0x1p-52;
}

double rp_load_random_normal(struct rp_load_random *random);
/* Gamma(shape, scale 1), shape above 0: exponential at 1, else Marsaglia and Tsang (2000). A shape
 * far below 1 may give 0. */
double rp_load_random_gamma(struct rp_load_random *random, double shape);

/* Natural logarithm of a positive normal number, and e^x (0 below the normal range); within 2
 * ulp. */
double rp_load_log(double x);
double rp_load_exp(double x);

#endif
