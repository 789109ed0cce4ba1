#include "device/nvml.h"

#include "base/memory.h"

#include <dlfcn.h>

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0 };

struct memory_info {
    unsigned long long total, free, used;
};

struct rp_nvml {
    void *library, *device;
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *bus_id, void **device);
    /* Any of these may be NULL. */
    int (*power)(void *device, unsigned *milliwatts);
    int (*limit)(void *device, unsigned *milliwatts);
    int (*clock)(void *device, unsigned type, unsigned *mhz);
    int (*temperature)(void *device, unsigned sensor, unsigned *celsius);
    int (*reasons)(void *device, unsigned long long *bits);
    int (*energy)(void *device, unsigned long long *millijoules);
    int (*memory)(void *device, struct memory_info *info);
};

static bool load(struct rp_nvml *nvml) {
    void *library = nvml->library;
    *(void **)&nvml->init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml->shutdown = dlsym(library, "nvmlShutdown");
    *(void **)&nvml->find = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&nvml->power = dlsym(library, "nvmlDeviceGetPowerUsage");
    *(void **)&nvml->limit = dlsym(library, "nvmlDeviceGetEnforcedPowerLimit");
    *(void **)&nvml->clock = dlsym(library, "nvmlDeviceGetClockInfo");
    *(void **)&nvml->temperature = dlsym(library, "nvmlDeviceGetTemperature");
    *(void **)&nvml->reasons = dlsym(library, "nvmlDeviceGetCurrentClocksEventReasons");
    if (!nvml->reasons) /* its name until driver 535 */
        *(void **)&nvml->reasons = dlsym(library, "nvmlDeviceGetCurrentClocksThrottleReasons");
    *(void **)&nvml->energy = dlsym(library, "nvmlDeviceGetTotalEnergyConsumption");
    *(void **)&nvml->memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    return nvml->init && nvml->shutdown && nvml->find;
}

int rp_nvml_open(const char *pci_bus_id, const char *path, struct rp_nvml **out,
                 struct rp_error *err) {
    struct rp_nvml *nvml = rp_calloc(1, sizeof *nvml);
    const char *file = path ? path : "libnvidia-ml.so.1";
    int status = RP_OK, result;
    *out = NULL;
    if (!nvml)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "NVML: out of memory");
    nvml->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library)
        status = rp_error_set(err, RP_STATUS_NOT_FOUND, "NVML: %s: not found", file);
    else if (!load(nvml))
        status = rp_error_set(err, RP_STATUS_UNSUPPORTED, "NVML: a function is missing");
    else if ((result = nvml->init()) != 0)
        status = rp_error_set(err, RP_STATUS_DEVICE, "NVML: does not start (error %d)", result);
    if (status == RP_OK && (result = nvml->find(pci_bus_id, &nvml->device)) != 0) {
        (void)nvml->shutdown();
        status = rp_error_set(err, RP_STATUS_DEVICE, "NVML: no GPU at \"%.32s\" (error %d)",
                              pci_bus_id, result);
    }
    if (status != RP_OK) {
        if (nvml->library)
            dlclose(nvml->library);
        rp_free(nvml);
        return status;
    }
    *out = nvml;
    return RP_OK;
}

void rp_nvml_read(struct rp_nvml *nvml, struct rp_nvml_sample *out) {
    void *device = nvml->device;
    unsigned number = 0;
    unsigned long long wide = 0;
    struct memory_info memory = {0};
    *out = (struct rp_nvml_sample){0};
#define TAKE(flag, call, field, from)                                                              \
    if (call) {                                                                                    \
        out->has |= (flag);                                                                        \
        out->field = (from);                                                                       \
    }
    TAKE(RP_NVML_POWER, nvml->power && nvml->power(device, &number) == 0, power_mw, number)
    TAKE(RP_NVML_LIMIT, nvml->limit && nvml->limit(device, &number) == 0, limit_mw, number)
    TAKE(RP_NVML_SM_CLOCK, nvml->clock && nvml->clock(device, CLOCK_SM, &number) == 0, sm_mhz,
         number)
    TAKE(RP_NVML_MEMORY_CLOCK, nvml->clock && nvml->clock(device, CLOCK_MEMORY, &number) == 0,
         memory_mhz, number)
    TAKE(RP_NVML_TEMPERATURE,
         nvml->temperature && nvml->temperature(device, SENSOR_GPU, &number) == 0, celsius, number)
    TAKE(RP_NVML_REASONS, nvml->reasons && nvml->reasons(device, &wide) == 0, reasons, wide)
    TAKE(RP_NVML_ENERGY, nvml->energy && nvml->energy(device, &wide) == 0, energy_mj, wide)
    TAKE(RP_NVML_MEMORY, nvml->memory && nvml->memory(device, &memory) == 0, memory_used_bytes,
         memory.used)
#undef TAKE
}

void rp_nvml_close(struct rp_nvml *nvml) {
    if (!nvml)
        return;
    (void)nvml->shutdown();
    dlclose(nvml->library);
    rp_free(nvml);
}
