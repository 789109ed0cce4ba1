/* bench_record.h - cost in nanoseconds of recording: a clock read, an event, a duration,
 * attributing a step's time to its requests.
 * Thread: one. Memory: a recorder of its own. */
#ifndef RP_BENCH_BENCH_RECORD_H
#define RP_BENCH_BENCH_RECORD_H

#include "base/status.h"

struct rp_bench_record_result {
    const char *name;
    double ns; /* ns per operation, median of nine passes */
};
#define RP_BENCH_RECORD_RESULTS 12

/* count: operations per pass; for steps with many rows, `count` is the total number of rows. */
int rp_bench_record(uint32_t count, struct rp_bench_record_result out[RP_BENCH_RECORD_RESULTS],
                    struct rp_error *err) RP_MUST_USE;

#endif
