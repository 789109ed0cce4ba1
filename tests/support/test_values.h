/* test_values.h - pseudo-random numbers for tests: a sequence, or a pure function of an index. */
#ifndef RP_TESTS_SUPPORT_TEST_VALUES_H
#define RP_TESTS_SUPPORT_TEST_VALUES_H

#include <stdint.h>

/* The next value of an xorshift sequence, uniform in [-1, 1). *state must not be 0. */
static inline float rp_test_next_value(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return (float)(int32_t)*state * 0x1p-31f;
}

/* A value in [-1, 1) for one element of K (what = 0), V (1) or q (2) of attention. */
static inline float rp_test_value_of(uint32_t what, uint32_t sequence, uint32_t position,
                                     uint32_t head, uint32_t d) {
    uint32_t x = what * 0x9E3779B9u ^ sequence * 0x85EBCA6Bu ^ position * 0xC2B2AE35u ^
                 head * 0x27D4EB2Fu ^ d * 0x165667B1u;
    for (int i = 0; i < 2; i++) {
        x ^= x >> 15;
        x *= 0x2C1B3C6Du;
        x ^= x >> 12;
        x *= 0x297A2D39u;
    }
    return (float)(int32_t)(x ^ (x >> 15)) * 0x1p-31f;
}

#endif
