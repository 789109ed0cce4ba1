/* clock.h - nanoseconds of CLOCK_MONOTONIC (never goes back; its zero means nothing). */
#ifndef RP_BASE_CLOCK_H
#define RP_BASE_CLOCK_H

#include "base/base.h"

#include <time.h>

static inline uint64_t rp_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
