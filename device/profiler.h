/* profiler.h - the driver's own tracing of a device's kernels, for a few seconds at a time (CUPTI
 * on CUDA).
 *
 *   open    looks for the library and makes all memory; slow (tens of ms): not on the engine's thread
 *   begin   engine's thread, between two steps; nothing may be in flight on the device
 *   end     the same
 *   read    sorts and names what was recorded; slow
 *   close   ends first when it must
 *
 * While it runs every kernel costs more, and some of that stays for the life of the process: the
 * caller measures both. Nothing of the library is touched before the first open. One profile at a
 * time in a process. open, read and close: any thread, not two at once. */
#ifndef RP_DEVICE_PROFILER_H
#define RP_DEVICE_PROFILER_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_device;
struct rp_graph;
struct rp_profile;

/* A kernel of a replay. Times are rp_clock_ns. */
struct rp_kernel_record {
    uint64_t begin_ns, end_ns;
    const struct rp_graph *graph;
    uint32_t launch; /* as graph_launch_info has it; a launch may be several kernels */
    uint32_t replay; /* which call of `launch` since begin; UINT32_MAX: not told */
};

struct rp_profile_records {
    const struct rp_kernel_record *records; /* by begin; the profile's, until it is closed */
    uint32_t count;
    uint32_t replays; /* calls of `launch` between begin and end */
    char source[64];  /* "CUPTI 130001" */
    /* Records that are not among them: times were not taken; not from a graph; past the cap; lost
     * by the driver; of a graph that could not be told. */
    uint64_t without_time, outside, over, dropped, unmatched;
};

struct rp_profiler {
    /* records_max 0: the most. NOT_FOUND: no library; UNSUPPORTED: one that is not known; IN_USE;
     * NO_MEMORY. */
    int (*open)(struct rp_device *device, uint32_t records_max, struct rp_profile **out,
                struct rp_error *err);
    /* IN_USE: another tool traces this process (err names it); UNSUPPORTED: refused. Then only
     * close is legal. */
    int (*begin)(struct rp_profile *profile, struct rp_error *err);
    bool (*is_due)(const struct rp_profile *profile,
                   uint64_t now_ns); /* a cap is reached: end it */
    int (*end)(struct rp_profile *profile, struct rp_error *err);
    int (*read)(struct rp_profile *profile, struct rp_profile_records *out, struct rp_error *err);
    void (*close)(struct rp_profile *profile); /* NULL is legal */
};

#ifdef __cplusplus
}
#endif
#endif
