/* fake_module.c - the fake GPU as a module that `reprise` opens (REPRISE_CUDA_MODULE), to test the
 * program with a GPU. Environment: FAKE_GPU=abi (another interface), =refuses (no GPU);
 * FAKE_GPU_MIB the GPU's memory, FAKE_GPU_FAILS a size whose capture fails.
 * FAKE_GPU_COUNTERS: the GPU has hardware counters, through the fake CUPTI (REPRISE_FAKE_CUPTI):
 * "works", or the failure to simulate. */
#include "backend/cupti/cupti_pm.h"
#include "tests/support/fake_backend.h"
#include "tests/support/fake_cupti.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* As in backend/cuda/counters_cuda.c. */
static int count(struct rp_device *device, const struct rp_device_counter_options *options,
                 struct rp_device_counters *out, struct rp_error *err) {
    const char *path = getenv("REPRISE_FAKE_CUPTI"), *kind = getenv("FAKE_GPU_COUNTERS");
    void *library = path && kind && strcmp(kind, "absent") != 0 ? dlopen(path, RTLD_NOW) : NULL;
    struct fake_cupti *fake = library ? dlsym(library, "fake_cupti_state") : NULL;
    (void)device;
    if (!fake)
        return rp_error_set(err, RP_STATUS_NOT_FOUND, "fake: no libcupti.so.13");
    if (fake->version == 0) { /* the first call */
        *fake = (struct fake_cupti){.version = strcmp(kind, "old") == 0 ? 18 : 130001};
        fake->pm = (struct fake_cupti_pm){
            .unknown = "nvlrx__",
            .samples = UINT32_MAX,
            .per_decode = 40,
            .enable_result = strcmp(kind, "privileges") == 0 ? RP_FAKE_CUPTI_PRIVILEGES
                             : strcmp(kind, "busy") == 0     ? RP_FAKE_CUPTI_BUSY
                                                             : 0,
            .overflow_at = strcmp(kind, "overflow") == 0 ? 2 : 0,
            .decode_fails_at = strcmp(kind, "fails") == 0 ? 2 : 0};
    }
    return rp_cupti_pm_measure(library, 0, options, out, err);
}

static int refuse(const struct rp_device_config *config, struct rp_device **out,
                  struct rp_error *err) {
    (void)config;
    (void)out;
    return rp_error_set(err, RP_STATUS_DEVICE, "fake: no GPU in this machine");
}

static int describe(char *json, size_t size) {
    static const char text[] =
        "{\"driver\": \"13.0\", \"runtime\": \"13.0\", \"devices\": [{\"name\": \"fake GPU\", "
        "\"memory_bytes\": 268435456, \"compute_capability\": \"9.0\"}]}";
    if (size < sizeof text)
        return RP_STATUS_RANGE;
    memcpy(json, text, sizeof text);
    return (int)sizeof text - 1;
}

const struct rp_backend *rp_backend_cuda_table(void) {
    static struct rp_backend table;
    const char *kind = getenv("FAKE_GPU"), *mib = getenv("FAKE_GPU_MIB");
    const char *fails = getenv("FAKE_GPU_FAILS");
    fake_backend_reset();
    if (mib)
        fake_backend_config.memory_bytes = strtoull(mib, NULL, 10) << 20;
    if (fails)
        fake_backend_config.failing_tokens = (uint32_t)strtoul(fails, NULL, 10);
    table = *fake_backend();
    table.describe = describe;
    static const struct rp_device_counting counting = {.measure = count};
    if (getenv("FAKE_GPU_COUNTERS"))
        table.counting = &counting;
    if (kind && strcmp(kind, "abi") == 0)
        table.abi = 1;
    if (kind && strcmp(kind, "refuses") == 0)
        table.open = refuse;
    return &table;
}
