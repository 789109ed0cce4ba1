/* membw.h - the read bandwidth of this machine: the bar that products with few rows are held
 * against.
 *
 * All workers of a team stream through their contiguous shares of one buffer with the widest loads
 * that the processor has; the best of several passes counts, since anything else running can only
 * lower it. Thread: any. Memory: the buffer, while it runs. */
#ifndef RP_BENCH_MEMBW_H
#define RP_BENCH_MEMBW_H

#include "device/device.h"

/* Bytes per second; 0 when memory or threads are out. threads 0: one per core. bytes should be many
 * times the last-level cache; passes at least 1. */
double rp_membw_read(uint32_t threads, size_t bytes, uint32_t passes);

/* The same of an open, idle device: a card reads 2 GiB of its own memory again and again; the CPU
 * as above. 0 when memory is out or the device failed. */
double rp_membw_device(const struct rp_backend *backend, struct rp_device *device,
                       uint32_t threads);

#endif
