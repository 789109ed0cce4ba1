/* settled.h - from which sample on a list of times has settled.
 *
 * The rule: at the first index i for which the median of samples [i, i + 50) is within 2 % of the
 * median of the 50 that follow. A measurement is what comes from there on, at least 100 samples; a
 * list without such an index, or of fewer samples, is unreliable. Thread: any. */
#ifndef RP_BENCH_SETTLED_H
#define RP_BENCH_SETTLED_H

#include "base/base.h"

#define RP_SETTLED_WINDOW  50u
#define RP_SETTLED_SAMPLES (2 * RP_SETTLED_WINDOW) /* the least that make a measurement */

struct rp_settled {
    bool reliable;
    uint32_t after; /* samples before the first that counts; 0 when unreliable: then all count */
    const char *why_not; /* NULL when reliable */
};

/* Samples in the order in which they were measured. */
struct rp_settled rp_settled_find(const double *samples, uint32_t count);

#endif
