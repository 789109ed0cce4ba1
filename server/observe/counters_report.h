/* counters_report.h - counters of the processor and of the device, as JSON and as text. Thread:
 * any. */
#ifndef RP_SERVER_COUNTERS_REPORT_H
#define RP_SERVER_COUNTERS_REPORT_H

#include "base/buffer.h"
#include "engine/observe/device_counting.h"
#include "metrics/perf_counters.h"

struct rp_counters_report {
    bool asked_host, asked_device;
    bool has_host, has_device;
    struct rp_error host_why, device_why; /* asked and not there: why */
    struct rp_perf_result host;
    struct rp_device_counters device;
    struct rp_profile_slowdown slowdown;
};

/* {"seconds", "threads"} of the host beside {"device"}; a part that was asked for and is not there
 * is {"error": TEXT}: "host" and "device". */
void rp_counters_write_json(const struct rp_counters_report *report, struct rp_buffer *out);
void rp_counters_write_text(const struct rp_counters_report *report, struct rp_buffer *out);

#endif
