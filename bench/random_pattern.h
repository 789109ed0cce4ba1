/* random_pattern.h - random values for the memory of benchmarks: all-zero data needs less power,
 * and so runs faster, than real data. Thread: any. */
#ifndef RP_BENCH_RANDOM_PATTERN_H
#define RP_BENCH_RANDOM_PATTERN_H

#include "device/device.h"

#define RP_RANDOM_PATTERN_BYTES ((size_t)4 << 20)

/* Read as bf16, uniform in +-1; read as f32, close to that; no byte is an FP8 NaN. 64-byte aligned,
 * freed by the caller with rp_free_aligned; NULL when memory is out. */
unsigned char *rp_random_pattern(void);

/* Fills memory with repetitions of the pattern; asynchronous. */
int rp_random_pattern_fill(const struct rp_backend *backend, struct rp_device *device, void *to,
                           const unsigned char *pattern, size_t bytes) RP_MUST_USE;

/* Allocates device memory and fills it, asynchronously. RP_STATUS_NO_MEMORY: more than half of the
 * free memory. */
int rp_random_pattern_alloc(const struct rp_backend *backend, struct rp_device *device,
                            const unsigned char *pattern, size_t bytes, unsigned char **out,
                            struct rp_error *err) RP_MUST_USE;

#endif
