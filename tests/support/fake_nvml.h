/* fake_nvml.h - a fake of NVIDIA's management library (libfake_nvml.so, opened by dlopen). */
#ifndef RP_TESTS_SUPPORT_FAKE_NVML_H
#define RP_TESTS_SUPPORT_FAKE_NVML_H

#include <stdatomic.h>

/* dlsym: "fake_nvml_state". A result other than 0 makes its function fail. */
struct fake_nvml {
    _Atomic int init_result, find_result, power_result, energy_result, clock_result;
    _Atomic unsigned power_mw, sm_mhz, celsius;
    _Atomic unsigned long long energy_mj, reasons;
    _Atomic unsigned opened, closed;
};

#endif
