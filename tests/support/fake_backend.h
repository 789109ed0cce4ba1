/* fake_backend.h - a small fake GPU: the CPU's backend with separate device memory.
 *
 * - Device addresses point into inaccessible memory: a host that reads or writes them dies at once.
 *   The kernels see the same memory at other addresses, which capture puts into their arguments.
 * - Only the committed part of a reserved range exists. Fresh memory is NaN.
 * - The GPU has a size; contexts, captures and first replays use some of it, which only the memory
 *   call reports.
 * - Faults are the CPU backend's (inject_fault); captures can be made to fail.
 *
 * One device at a time. Thread: as the CPU's. */
#ifndef RP_TESTS_SUPPORT_FAKE_BACKEND_H
#define RP_TESTS_SUPPORT_FAKE_BACKEND_H

#include "device/device.h"

struct fake_backend_config {
    uint64_t memory_bytes;
    uint64_t context_bytes;      /* in use when the device is opened */
    uint64_t capture_bytes;      /* of each capture */
    uint64_t first_replay_bytes; /* of each graph, when it is launched first */
    size_t granule;              /* of commit; a multiple of 4096 */
    uint32_t failing_tokens;     /* captures of buckets of so many tokens fail; 0: none */
    bool decode_differs;
};

/* Read when a device is opened, failing_tokens at each capture. */
extern struct fake_backend_config fake_backend_config;

const struct rp_backend *fake_backend(void);
/* 256 MiB, 8 MiB of context, 64 KiB a capture and as much at its first replay, granule 128 KiB. */
void fake_backend_reset(void);
/* What the driver says of the device that is open. */
void fake_backend_memory(struct rp_device_memory *out);

#endif
