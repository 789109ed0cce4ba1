/* The GPU's hardware counters through CUPTI (backend/cupti/cupti_pm.h). */
#include "backend/cuda/device_cuda.h"
#include "backend/cupti/cupti_pm.h"

static int measure(struct rp_device *device, const struct rp_device_counter_options *options,
                   struct rp_device_counters *out, struct rp_error *err) {
    void *library = rp_cuda_cupti_library(err);
    if (!library)
        return RP_STATUS_NOT_FOUND;
    rp_cuda_cupti_load_host(library);
    /* For this thread alone; the device's own error text is the engine's. */
    cudaError_t error = cudaSetDevice(device->ordinal);
    if (error != cudaSuccess)
        return rp_error_set(err, RP_STATUS_DEVICE, "cudaSetDevice: %s", cudaGetErrorString(error));
    return rp_cupti_pm_measure(library, (uint32_t)device->ordinal, options, out, err);
}

const struct rp_device_counting rp_cuda_counting = {.measure = measure};
