/* clock.h - nanoseconds of CLOCK_MONOTONIC (never goes back; its zero means nothing), and of the
 * time of day. */
#ifndef RP_BASE_CLOCK_H
#define RP_BASE_CLOCK_H

#include "base/base.h"

#include <time.h>

static inline uint64_t rp_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Since 1970; may jump either way. Two moments are compared by rp_clock_ns or rp_tick_ns. */
static inline uint64_t rp_unix_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
