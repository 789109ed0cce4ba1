/* power.h - a device's power once a second, and joules a token: a GPU's, with clocks and
 * temperature, by NVML (device/nvml.h), or that of the CPU packages by RAPL (device/rapl.h).
 *
 * A separate thread queries them, writes a POWER event to its ring, and publishes
 * the sample; neither the engine nor the loop thread ever waits for it. NVML's energy moves every
 * 20 to 100 ms, so that nothing shorter than a second is ever divided: joules a token are those of
 * the last RP_POWER_WINDOW seconds, idle ones included, over the tokens generated in them.
 *
 * Thread: start and stop by one owner; read: any. Memory: all at start. */
#ifndef RP_ENGINE_POWER_H
#define RP_ENGINE_POWER_H

#include "device/nvml.h"
#include "device/rapl.h"
#include "metrics/metrics.h"
#include "metrics/trace_ring.h"

#define RP_POWER_WINDOW  10u /* samples */
#define RP_POWER_REASONS 5u  /* of RP_NVML_REASON_MAP */

struct rp_power_view {
    struct rp_nvml_sample sample; /* the last one; has 0: none yet */
    uint64_t energy_mj;           /* since start */
    uint32_t mean_mw;             /* of the last interval; 0: unknown */
    uint64_t slowed_ms[RP_POWER_REASONS];
    uint64_t window_mj, window_tokens,
        window_ms; /* of the window; 0 tokens: joules a token are unknown */
};

/* ---- the arithmetic: one thread */

struct rp_power_sums {
    struct rp_power_view view;
    uint64_t last_ns, last_energy_mj, last_tokens;
    struct {
        uint64_t mj, tokens, ms;
    } window[RP_POWER_WINDOW];
    uint32_t count; /* samples added */
};

/* A sample and the tokens generated until then. An energy that is less than the one before (a GPU
 * that was reset) counts as nothing; without the counter, power times time is used. */
void rp_power_add(struct rp_power_sums *sums, uint64_t now_ns, const struct rp_nvml_sample *sample,
                  uint64_t tokens);

/* ---- the thread */

struct rp_power_config {
    const char *pci_bus_id;          /* of the GPU; read by start alone, as library is */
    const char *rapl_dir;            /* not NULL: RAPL there, instead of a GPU */
    const char *library;             /* NULL: the driver's */
    const struct rp_counter *tokens; /* generated so far; NULL: none */
    struct rp_trace_ring *ring;      /* the thread's own; NULL: no events */
    uint64_t period_ns;              /* 0: a second */
    /* Gets mean_mw after each sample, on the thread; NULL: nobody. */
    void (*publish)(void *ctx, uint32_t milliwatts);
    void *publish_ctx;
};

struct rp_power;

/* As rp_nvml_open or rp_rapl_open, or NO_MEMORY when there is no thread. */
int rp_power_start(const struct rp_power_config *config, struct rp_power **out,
                   struct rp_error *err) RP_MUST_USE;
void rp_power_stop(struct rp_power *power); /* NULL is legal */
/* What the last sample left. */
void rp_power_read(struct rp_power *power, struct rp_power_view *out);

/* The gauges and counters reprise_gpu_*, reprise_energy_joules_total and
 * reprise_generated_token_joules. */
void rp_power_register(struct rp_power *power, struct rp_registry *registry);

#endif
