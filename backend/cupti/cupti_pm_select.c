/* cupti_pm_select.c - which counters a GPU gives in one pass. */
#include "backend/cupti/cupti_pm_internal.h"
#include "base/memory.h"

#include <assert.h>
#include <stdio.h>

#define CONFIG_BYTES_MAX ((size_t)16 << 20)
#define PERCENT          ".avg.pct_of_peak_sustained_elapsed"
#define PER_SECOND       ".sum.per_second"

/* By importance: what does not fit with those before it is omitted. Metrics called Triage are
 * made by NVIDIA to fit into one pass together (GH100: all of these do, with CUPTI 13.0). */
static const struct counter {
    const char *name, *unit, *about;
    const char *metrics[2]; /* the first one that the chip has */
} table[] = {
    {"sm_active",
     "%",
     "cycles in which a multiprocessor had a warp",
     {"TPC.TriageCompute.sm__cycles_active" PERCENT, "sm__cycles_active" PERCENT}},
    {"tensor_active",
     "%",
     "cycles in which the tensor pipes were at work",
     {"TPC.TriageCompute.sm__pipe_tensor_cycles_active_realtime" PERCENT,
      "sm__pipe_tensor_cycles_active" PERCENT}},
    {"dram_read",
     "%",
     "of what the memory can read or write at most",
     {"dram__read_throughput" PERCENT, "FBSP.TriageCompute.dramc__read_throughput" PERCENT}},
    {"dram_write",
     "%",
     "of what the memory can read or write at most",
     {"dram__write_throughput" PERCENT, "FBSP.TriageCompute.dramc__write_throughput" PERCENT}},
    {"dram_read_bytes",
     "bytes/s",
     "read from the GPU's memory",
     {"dram__bytes_read" PER_SECOND, NULL}},
    {"dram_write_bytes",
     "bytes/s",
     "written to the GPU's memory",
     {"dram__bytes_write" PER_SECOND, NULL}},
    {"ipc",
     "instructions/cycle",
     "of a multiprocessor, of at most 4",
     {"TPC.TriageCompute.sm__inst_executed_realtime.avg.per_cycle_elapsed",
      "sm__inst_executed.avg.per_cycle_elapsed"}},
    {"warps_active",
     "%",
     "of the warps that fit onto the multiprocessors",
     {"TPC.TriageCompute.tpc__warps_active_realtime" PERCENT, "sm__warps_active" PERCENT}},
    {"l2_hit_rate",
     "%",
     "of the sectors that were looked up in the L2 cache",
     {"LTS.TriageCompute.lts__average_t_sector_hit_rate_realtime.pct",
      "lts__t_sector_hit_rate.pct"}},
    {"l2_throughput",
     "%",
     "of the sectors that the L2 cache can look up at most",
     {"LTS.TriageCompute.lts__t_sector_throughput" PERCENT, "lts__t_sectors" PERCENT}},
    {"compute_active",
     "%",
     "cycles in which the compute engine had work",
     {"FE_B.TriageCompute.gr__cycles_active" PERCENT, "gr__cycles_active" PERCENT}},
    {"pcie_read_bytes",
     "bytes/s",
     "came over PCIe",
     {"PCI.TriageCompute.pcie__read_bytes" PER_SECOND, "pcie__read_bytes" PER_SECOND}},
    {"pcie_write_bytes",
     "bytes/s",
     "left over PCIe",
     {"PCI.TriageCompute.pcie__write_bytes" PER_SECOND, "pcie__write_bytes" PER_SECOND}},
    {"nvlink_read_bytes",
     "bytes/s",
     "came over NVLink, with its headers",
     {"nvlrx__bytes" PER_SECOND, NULL}},
    {"nvlink_write_bytes",
     "bytes/s",
     "left over NVLink, with its headers",
     {"nvltx__bytes" PER_SECOND, NULL}},
};
static_assert(RP_ARRAY_COUNT(table) <= RP_DEVICE_COUNTERS_MAX, "the report holds them all");

static void release(struct rp_cupti_pm *pm, void *host) {
    struct rp_cupti_host_deinit deinit = {.host = host};
    if (host)
        (void)RP_CUPTI_PM_CALL(pm, cuptiProfilerHostDeinitialize, host_deinit, host, &deinit);
}

/* A host object with pm's metrics, its configuration and the passes that it takes. CUPTI's result,
 * or -1: no memory. */
static int configure(struct rp_cupti_pm *pm, void **out_host, uint8_t **out_config,
                     size_t *out_bytes, size_t *out_passes) {
    struct rp_cupti_host_init init = {.profiler = RP_CUPTI_PROFILER_PM_SAMPLING,
                                      .chip = pm->chip,
                                      .availability = pm->availability};
    int result = RP_CUPTI_PM_CALL(pm, cuptiProfilerHostInitialize, host_init, host, &init);
    *out_host = result == 0 ? init.host : NULL;
    *out_config = NULL;
    if (result != 0)
        return result;
    struct rp_cupti_host_add add = {.host = init.host, .metrics = pm->metrics, .count = pm->count};
    struct rp_cupti_host_config_size size = {.host = init.host};
    struct rp_cupti_host_config config = {.host = init.host};
    struct rp_cupti_host_passes passes = {0};
    result = RP_CUPTI_PM_CALL(pm, cuptiProfilerHostConfigAddMetrics, host_add, count, &add);
    if (result == 0)
        result = RP_CUPTI_PM_CALL(pm, cuptiProfilerHostGetConfigImageSize, host_config_size,
                                  config_bytes, &size);
    if (result == 0) {
        bool sane = size.config_bytes > 0 && size.config_bytes <= CONFIG_BYTES_MAX;
        config.config = sane ? rp_calloc(1, size.config_bytes) : NULL;
        config.config_bytes = size.config_bytes;
        result = config.config ? RP_CUPTI_PM_CALL(pm, cuptiProfilerHostGetConfigImage, host_config,
                                                  config, &config)
                               : -1;
    }
    if (result == 0) {
        passes.config = config.config;
        passes.config_bytes = config.config_bytes;
        result =
            RP_CUPTI_PM_CALL(pm, cuptiProfilerHostGetNumOfPasses, host_passes, passes, &passes);
    }
    *out_config = config.config;
    *out_bytes = config.config_bytes;
    *out_passes = passes.passes;
    return result;
}

/* Adds the metric if it can be counted with those already added. *why: CUPTI's result, 0: one pass
 * too many. */
static bool try_metric(struct rp_cupti_pm *pm, uint32_t entry, const char *metric, int *why) {
    void *host;
    uint8_t *config;
    size_t bytes = 0, passes = 0;
    pm->metrics[pm->count] = metric;
    pm->entries[pm->count++] = entry;
    *why = configure(pm, &host, &config, &bytes, &passes);
    if (*why == 0 && passes == 1) {
        rp_cupti_pm_select_undo(pm);
        pm->host = host;
        pm->config = config;
        pm->config_bytes = bytes;
        return true;
    }
    pm->count--;
    release(pm, host);
    rp_free(config);
    return false;
}

static void try_counter(struct rp_cupti_pm *pm, uint32_t entry, struct rp_device_counter *out) {
    const struct counter *counter = &table[entry];
    snprintf(out->name, sizeof out->name, "%s", counter->name);
    snprintf(out->unit, sizeof out->unit, "%s", counter->unit);
    snprintf(out->about, sizeof out->about, "%s", counter->about);
    for (size_t i = 0; i < RP_ARRAY_COUNT(counter->metrics) && counter->metrics[i]; i++) {
        const char *text = NULL;
        int why;
        if (try_metric(pm, entry, counter->metrics[i], &why)) {
            snprintf(out->metric, sizeof out->metric, "%s", counter->metrics[i]);
            out->why[0] = '\0';
            return;
        }
        if (i > 0)
            continue; /* the error of the better one is reported */
        snprintf(out->metric, sizeof out->metric, "%s", counter->metrics[i]);
        if (why == 0)
            snprintf(out->why, sizeof out->why, "it takes more than the one pass of sampling");
        else if (why < 0)
            snprintf(out->why, sizeof out->why, "no configuration");
        else if (pm->api.cuptiGetResultString(why, &text) != 0 || !text)
            snprintf(out->why, sizeof out->why, "this GPU does not give it (result %d)", why);
        else
            snprintf(out->why, sizeof out->why, "this GPU does not give it (%s)", text);
    }
}

int rp_cupti_pm_select(struct rp_cupti_pm *pm, struct rp_device_counters *out,
                       struct rp_error *err) {
    struct rp_cupti_host_init init = {.profiler = RP_CUPTI_PROFILER_PM_SAMPLING,
                                      .chip = pm->chip,
                                      .availability = pm->availability};
    int result = RP_CUPTI_PM_CALL(pm, cuptiProfilerHostInitialize, host_init, host, &init);
    if (result != 0) {
        int status = rp_cupti_pm_refused(pm, "cuptiProfilerHostInitialize", result, err);
        rp_error_hint(err, "libnvperf_host.so of the same CUDA must lie beside libcupti.so");
        return status;
    }
    release(pm, init.host);
    out->count = RP_ARRAY_COUNT(table);
    for (uint32_t i = 0; i < out->count; i++)
        try_counter(pm, i, &out->counters[i]);
    if (pm->count == 0)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "this GPU (%s) gives none of the counters: %s", pm->chip,
                            out->counters[0].why);
    return RP_OK;
}

void rp_cupti_pm_select_undo(struct rp_cupti_pm *pm) {
    release(pm, pm->host);
    rp_free(pm->config);
    pm->host = NULL;
    pm->config = NULL;
}
