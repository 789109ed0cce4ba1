/* read_cpu.h - reads a range of memory once, as fast as the processor can, and forgets it: the bar
 * for what streams weights. Thread: every worker of a job. */
#ifndef RP_DEVICE_READ_CPU_H
#define RP_DEVICE_READ_CPU_H

#include "device/cpu_isa.h"
#include "device/cpu_team.h"

/* This worker's contiguous share, as one stream or as four: which is faster depends on the
 * processor's prefetchers. A tail below 64 bytes is not read. */
void rp_read_cpu(const void *data, size_t bytes, bool four_streams, enum rp_cpu_isa isa,
                 const struct rp_cpu_worker *worker);

#endif
