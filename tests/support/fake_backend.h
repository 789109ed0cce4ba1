/* fake_backend.h - a small fake GPU: the CPU's backend with separate device memory.
 *
 * - Device addresses point into inaccessible memory: a host access faults. Kernels use the same
 *   memory at other addresses, which capture writes into their arguments.
 * - Only the committed part of a reserved range exists. Fresh memory is NaN.
 * - The GPU has a size; contexts, captures and first replays use part of it, which only the memory
 *   call reports.
 * - Reserved matrices are zeros until matrices_end, the latest time at which a GPU may have them.
 * - Faults are the CPU backend's (inject_fault); captures can be made to fail.
 *
 * One device at a time, or the ranks of one group. Threads as in the CPU backend. */
#ifndef RP_TESTS_SUPPORT_FAKE_BACKEND_H
#define RP_TESTS_SUPPORT_FAKE_BACKEND_H

#include "device/device.h"

struct fake_backend_config {
    uint64_t memory_bytes;
    uint64_t context_bytes;      /* in use when the device is opened */
    uint64_t capture_bytes;      /* used by each capture */
    uint64_t first_replay_bytes; /* used by each graph's first launch */
    size_t granule;              /* granule of commit; a multiple of 4096 */
    uint32_t failing_tokens;     /* captures of buckets of this many tokens fail; 0: none */
    bool decode_differs;
    bool host_quantizes; /* the backend cannot quantize weights; read by fake_backend() */
    bool reserves;       /* it has matrix_reserve; read by fake_backend() */
    /* NULL, or: called before matrix number `count` (1, 2, ..) is filled, or a graph captured, by
     * the thread that does it; a status other than RP_OK makes it fail. */
    int (*on_fill)(uint32_t count), (*on_capture)(uint32_t count);
};

/* Read when a device is opened, failing_tokens at each capture. */
extern struct fake_backend_config fake_backend_config;

/* Matrices that it has quantized. */
extern uint32_t fake_backend_quantized;

const struct rp_backend *fake_backend(void);
/* 256 MiB, 8 MiB of context, 64 KiB per capture and again at its first replay, granule 128 KiB. */
void fake_backend_reset(void);
/* Memory of the open device as the driver reports it. */
void fake_backend_memory(struct rp_device_memory *out);

#endif
