/* load_warmup.h - where the warm-up of a run of load ends.
 *
 * The rule. A request is in flight from its intended time until its end, also while it waits for
 * the client. The time between the first and the last intended sending is cut into 100 equal parts;
 * n[i] is the mean number in flight in part i. The run has settled at the first part k <= 50 from
 * which it rises no more by trend:
 *
 *   mean of n[k, k + 10)  >=  mean of n[k + 10, 100) - allowance
 *
 * The allowance is the larger of a tenth of the right mean, half a request, and twice the scatter
 * of means over ten parts: sd of the differences between neighboring tens in [k, 100), over
 * sqrt(2), which a trend does not widen. It has not settled before its first request has ended
 * either: what is sent until then meets an idle server, and in a closed loop it comes all at once.
 *
 * A run that has settled nowhere in its first half has no steady state to report: the load is more
 * than the server takes, or it rises (a ramp), or it came all at once, or the run is short against
 * one request. */
#ifndef RP_BENCH_LOAD_WARMUP_H
#define RP_BENCH_LOAD_WARMUP_H

#include "bench/load/load.h"

struct rp_load_warm_up {
    bool settled;
    /* requests whose intended time is at or after it count; not settled: the run's beginning */
    uint64_t end_ns;
    const char *why_not; /* settled: NULL */
};

void rp_load_warm_up_find(const struct rp_load_records *records, struct rp_load_warm_up *out);

/* Mean number in flight in each of `parts` equal parts of [begin_ns, end_ns), end_ns after
 * begin_ns. */
void rp_load_in_flight(const struct rp_load_records *records, uint64_t begin_ns, uint64_t end_ns,
                       double *out, uint32_t parts);

#endif
