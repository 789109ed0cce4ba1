/* rapl.h - energy of the CPU packages as Linux counts it (RAPL, /sys/class/powercap/intel-rapl:N;
 * AMD's processors have the same files).
 *
 * Counts what the packages use, whoever uses it, without memory and without the rest of the
 * machine. Only root may read it on most systems. Thread: one at a time. */
#ifndef RP_DEVICE_RAPL_H
#define RP_DEVICE_RAPL_H

#include "base/status.h"

#define RP_RAPL_DIR          "/sys/class/powercap"
#define RP_RAPL_PACKAGES_MAX 16u

struct rp_rapl {
    uint32_t count;
    uint64_t total_uj; /* since open */
    struct rp_rapl_package {
        int fd;
        uint64_t last_uj, range_uj; /* the counter restarts after range_uj */
    } packages[RP_RAPL_PACKAGES_MAX];
};

/* NOT_FOUND: the system has no such counters; IO: they cannot be read. */
int rp_rapl_open(const char *dir, struct rp_rapl *out, struct rp_error *err) RP_MUST_USE;
/* Energy since open; false: a counter could not be read. */
bool rp_rapl_read(struct rp_rapl *rapl, uint64_t *out_mj);
void rp_rapl_close(struct rp_rapl *rapl); /* legal on a zeroed struct */

#endif
