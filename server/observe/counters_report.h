/* counters_report.h - hardware counters of the CPU and of the device, as JSON and text. Thread:
 * any. */
#ifndef RP_SERVER_COUNTERS_REPORT_H
#define RP_SERVER_COUNTERS_REPORT_H

#include "base/buffer.h"
#include "engine/observe/device_counting.h"
#include "metrics/perf_counters.h"

struct rp_counters_report {
    bool asked_host, asked_device;
    bool has_host, has_device;
    struct rp_error host_why, device_why; /* why a requested source is not available */
    struct rp_perf_result host;
    struct rp_device_counters device;
    struct rp_profile_slowdown slowdown;
};

/* {"seconds", "threads"} for the host and {"device"}; a part that was requested and is not
 * available is {"error": TEXT} under "host" or "device". */
void rp_counters_write_json(const struct rp_counters_report *report, struct rp_buffer *out);
void rp_counters_write_text(const struct rp_counters_report *report, struct rp_buffer *out);

#endif
