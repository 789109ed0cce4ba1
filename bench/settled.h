/* settled.h - finds the sample from which a series of times has settled.
 *
 * Rule: the first index i for which the median of samples [i, i + 50) is within 2 % of the median
 * of the next 50. The measurement is the samples from there on, at least 100; a series without such
 * an index, or with fewer samples, is unreliable. Thread: any. */
#ifndef RP_BENCH_SETTLED_H
#define RP_BENCH_SETTLED_H

#include "base/base.h"

#define RP_SETTLED_WINDOW  50u
#define RP_SETTLED_SAMPLES (2 * RP_SETTLED_WINDOW) /* minimum samples of a measurement */

struct rp_settled {
    bool reliable;
    uint32_t after;      /* samples before the first that counts; 0 when unreliable (all count) */
    const char *why_not; /* NULL when reliable */
};

/* Samples in the order of measurement. */
struct rp_settled rp_settled_find(const double *samples, uint32_t count);

#endif
