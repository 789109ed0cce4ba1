/* counters.h - what a device's hardware counts of itself over some seconds (PM sampling of CUPTI on
 * CUDA).
 *
 * The whole device is counted, whoever uses it. Nothing is serialized, and no kernel is touched:
 * the hardware writes a sample at every interval, a thread of the host reads them. Nothing of the
 * library is loaded before the first call. */
#ifndef RP_DEVICE_COUNTERS_H
#define RP_DEVICE_COUNTERS_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_device;

#define RP_DEVICE_COUNTERS_MAX 24

struct rp_device_counter {
    char name[24];    /* "sm_active" */
    char unit[24];    /* "%", "bytes/s", "instructions/cycle" */
    char about[88];   /* what it is, in words */
    char metric[112]; /* the library's name for it */
    char why[96];     /* "", or why it was not counted: the rest is 0 then */
    uint32_t samples; /* that have a value: a hit rate has none where nothing was looked up */
    double mean;      /* over the time that the samples cover */
    double p50, p99, max;
};

struct rp_device_counters {
    char source[64]; /* "CUPTI 130001" */
    char chip[16];   /* "GH100" */
    double seconds;  /* from start to stop, on the host's clock */
    double covered_seconds;
    uint32_t interval_us;
    uint32_t samples;
    uint32_t missing; /* intervals between samples that came, without a sample */
    bool overflowed;  /* the hardware's buffer was full: it ended early */
    /* What it took: setting up and taking down, and the processor time of the thread that read. */
    double setup_seconds, teardown_seconds, cpu_seconds;
    uint64_t hardware_buffer_bytes, host_bytes;
    struct rp_device_counter counters[RP_DEVICE_COUNTERS_MAX];
    uint32_t count;
};

#define RP_DEVICE_COUNTERS_SECONDS_MAX     10.0
#define RP_DEVICE_COUNTERS_SAMPLES_MAX     100000u /* longer intervals where there would be more */
#define RP_DEVICE_COUNTERS_INTERVAL_US_MIN 100u    /* a sample costs 80 us of CPU time */
#define RP_DEVICE_COUNTERS_INTERVAL_US_MAX 100000u

struct rp_device_counter_options {
    double seconds;       /* more than the maximum: that */
    uint32_t interval_us; /* 0: 1000 */
};

struct rp_device_counting {
    /* Any thread but the engine's: blocks as long as it counts, and some 100 ms more. One at a time
     * in a process, and not beside a profile (device/profiler.h). NOT_FOUND: no library;
     * UNSUPPORTED: refused, or one that is not known (err says what to do); IN_USE: another call or
     * a profile is in flight; NO_MEMORY; DEVICE: failed on the way. */
    int (*measure)(struct rp_device *device, const struct rp_device_counter_options *options,
                   struct rp_device_counters *out, struct rp_error *err);
};

#ifdef __cplusplus
}
#endif
#endif
