/* crash_format.h - the layout of a crash file, shared by its writer and its reader
 * (crash_dump.h). */
#ifndef RP_METRICS_CRASH_FORMAT_H
#define RP_METRICS_CRASH_FORMAT_H

#include "metrics/trace_model.h"

#define RP_CRASH_MAGIC        "RPCRASH1"
#define RP_CRASH_RECORD_MAGIC "RPSIGNAL"
#define RP_CRASH_NAMES_MAX    65536u

struct rp_crash_header {
    char magic[8];
    uint32_t header_bytes, name_count;
    uint32_t pid, event_bytes;
    uint64_t start_ns;
    char version[32], model[128];
};

struct rp_crash_name_entry {
    uint32_t of, bucket, value, pad;
    char text[RP_TRACE_NAME_MAX];
};

struct rp_crash_record {
    char magic[8];
    int32_t signal, thread;
    uint64_t address, end_ns, unix_ns;
    uint32_t ring_count, pad;
};

struct rp_crash_ring {
    char thread[16];
    uint64_t slots, head; /* slots: of the ring; that many of 32 bytes follow */
};

#endif
