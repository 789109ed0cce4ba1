/* load_warmup.h - determines where the warm-up of a load test ends.
 *
 * Rule: a request is in flight from its intended send time until its end, also while it waits for
 * the client. The time between the first and the last intended send is split into 100 equal parts;
 * n[i] is the mean number in flight in part i. The run has settled at the first part k <= 50 from
 * which there is no rising trend:
 *
 *   mean of n[k, k + 10)  >=  mean of n[k + 10, 100) - allowance
 *
 * The allowance is the largest of a tenth of the right mean, half a request, and twice the standard
 * deviation of means over ten parts: that of the differences between neighboring tens in [k, 100),
 * over sqrt(2), which is insensitive to a trend. It also has not settled before its first request
 * has ended: until then requests arrive at an idle server, and in a closed loop all at once.
 *
 * A run that has not settled in its first half has no steady state to report: the load exceeds the
 * server's capacity, or it rises (a ramp), or it arrived all at once, or the run is short compared
 * with a request. */
#ifndef RP_BENCH_LOAD_WARMUP_H
#define RP_BENCH_LOAD_WARMUP_H

#include "bench/load/load.h"

struct rp_load_warm_up {
    bool settled;
    /* requests whose intended send time is at or after it count; not settled: the start of the
     * run */
    uint64_t end_ns;
    const char *why_not; /* settled: NULL */
};

void rp_load_warm_up_find(const struct rp_load_records *records, struct rp_load_warm_up *out);

/* Mean number in flight in each of `parts` equal parts of [begin_ns, end_ns), end_ns after
 * begin_ns. */
void rp_load_in_flight(const struct rp_load_records *records, uint64_t begin_ns, uint64_t end_ns,
                       double *out, uint32_t parts);

#endif
