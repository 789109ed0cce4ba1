/* random_pattern.h - random values for the memory of benchmarks: what is all zero costs a device
 * less power, and runs faster, than what is real. Thread: any. */
#ifndef RP_BENCH_RANDOM_PATTERN_H
#define RP_BENCH_RANDOM_PATTERN_H

#include "device/device.h"

#define RP_RANDOM_PATTERN_BYTES ((size_t)4 << 20)

/* As bf16, uniform in +-1; as pairs of them, f32 that are near it; no byte is a NaN of FP8. 64-byte
 * aligned, the caller's to free with rp_free_aligned; NULL when memory is out. */
unsigned char *rp_random_pattern(void);

/* Copies the pattern again and again; asynchronous. */
int rp_random_pattern_fill(const struct rp_backend *backend, struct rp_device *device, void *to,
                           const unsigned char *pattern, size_t bytes) RP_MUST_USE;

#endif
