#include "tests/support/fake_nvml.h"

#include <string.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

/* nvmlDeviceGetEnforcedPowerLimit and nvmlDeviceGetMemoryInfo are missing, as in a library of
 * another version. */

struct fake_nvml fake_nvml_state;

int nvmlInit_v2(void) {
    fake_nvml_state.opened += fake_nvml_state.init_result == 0;
    return fake_nvml_state.init_result;
}

int nvmlShutdown(void) {
    fake_nvml_state.closed++;
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
    *device = &fake_nvml_state;
    return strcmp(bus_id, "0000:1b:00.0") == 0 ? fake_nvml_state.find_result : 6;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    (void)device;
    *milliwatts = fake_nvml_state.power_mw;
    return fake_nvml_state.power_result;
}

int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *mhz) {
    (void)device;
    *mhz = type == 1 ? fake_nvml_state.sm_mhz : 3201;
    return fake_nvml_state.clock_result;
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) {
    (void)device;
    *celsius = fake_nvml_state.celsius;
    return sensor == 0 ? 0 : 2;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) {
    (void)device;
    *bits = fake_nvml_state.reasons;
    return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    (void)device;
    *millijoules = fake_nvml_state.energy_mj;
    return fake_nvml_state.energy_result;
}
