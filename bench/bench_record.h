/* bench_record.h - nanoseconds of what is always recorded: a look at the clock, an event, a
 * duration, the shares of a step's requests.
 * Thread: one. Memory: a recorder of its own. */
#ifndef RP_BENCH_BENCH_RECORD_H
#define RP_BENCH_BENCH_RECORD_H

#include "base/status.h"

struct rp_bench_record_result {
    const char *name;
    double ns; /* of one, the median of nine passes */
};
#define RP_BENCH_RECORD_RESULTS 12

/* count: of each in a pass; of steps with many rows as many as have `count` rows together. */
int rp_bench_record(uint32_t count, struct rp_bench_record_result out[RP_BENCH_RECORD_RESULTS],
                    struct rp_error *err) RP_MUST_USE;

#endif
