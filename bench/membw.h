/* membw.h - read bandwidth of this machine: the upper bound for GEMMs with few rows.
 *
 * All workers of a team stream through contiguous parts of one buffer with the widest loads of the
 * CPU; the best of several passes counts, since interference can only lower it. Thread: any.
 * Memory: the buffer, during a call. */
#ifndef RP_BENCH_MEMBW_H
#define RP_BENCH_MEMBW_H

#include "device/device.h"

/* Bytes/s; 0 when out of memory or threads. threads 0: one per core. bytes should be many times the
 * last-level cache; passes at least 1. */
double rp_membw_read(uint32_t threads, size_t bytes, uint32_t passes);

/* The same for an open, idle device: a GPU repeatedly reads 2 GiB of its own memory; the CPU as
 * above. 0 when memory is out or the device failed. */
double rp_membw_device(const struct rp_backend *backend, struct rp_device *device,
                       uint32_t threads);

#endif
