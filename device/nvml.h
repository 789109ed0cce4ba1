/* nvml.h - what the driver's management library (NVML) tells of a GPU: power, clocks, temperature,
 * energy, memory.
 *
 * Opened at run time with prototypes of its own. Each value is there or not: a function that the
 * library lacks, or that fails, takes its value with it and nothing else. A call takes up to a
 * millisecond: never on the engine's thread.
 * Thread: one at a time. */
#ifndef RP_DEVICE_NVML_H
#define RP_DEVICE_NVML_H

#include "base/status.h"

enum rp_nvml_has {
    RP_NVML_POWER = 1,
    RP_NVML_LIMIT = 2,
    RP_NVML_SM_CLOCK = 4,
    RP_NVML_MEMORY_CLOCK = 8,
    RP_NVML_TEMPERATURE = 16,
    RP_NVML_REASONS = 32,
    RP_NVML_ENERGY = 64,
    RP_NVML_MEMORY = 128
};

/* Why clocks are lower than they could be; a subset of NVML's bits. */
#define RP_NVML_REASON_MAP(X)                                                                      \
    X(SW_POWER_CAP, 0x4, "power_cap")                                                              \
    X(HW_SLOWDOWN, 0x8, "hw_slowdown")                                                             \
    X(SW_THERMAL, 0x20, "sw_thermal")                                                              \
    X(HW_THERMAL, 0x40, "hw_thermal")                                                              \
    X(POWER_BRAKE, 0x80, "power_brake")

struct rp_nvml_sample {
    uint32_t has;                /* rp_nvml_has: what of the rest means something */
    uint32_t power_mw, limit_mw; /* of the board, over the last second */
    uint32_t sm_mhz, memory_mhz, celsius;
    uint64_t reasons;   /* NVML's bits */
    uint64_t energy_mj; /* since the driver was loaded; moves every 20 to 100 ms */
    uint64_t memory_used_bytes;
};

struct rp_nvml;

/* pci_bus_id: "0000:1b:00.0", as CUDA has it. path NULL: libnvidia-ml.so.1. NOT_FOUND: no such
 * library; UNSUPPORTED: one that lacks the basic functions; DEVICE: it does not start, or knows no
 * such GPU; NO_MEMORY. */
int rp_nvml_open(const char *pci_bus_id, const char *path, struct rp_nvml **out,
                 struct rp_error *err) RP_MUST_USE;
void rp_nvml_read(struct rp_nvml *nvml, struct rp_nvml_sample *out);
void rp_nvml_close(struct rp_nvml *nvml); /* NULL is legal */

#endif
