/* cupti_pm.h - the GPU's hardware counters over some seconds by CUPTI's PM sampling
 * (device/counters.h has the terms).
 *
 * Plain C with its own prototypes (cupti_pm_api.h), so that it is built and tested without CUDA;
 * the CUDA module loads the library (backend/cuda/counters_cuda.c). The counters are those of a
 * fixed table (cupti_pm_select.c). One whose name the chip does not know, or that does not fit into
 * the one pass that sampling has, is left out and named.
 *
 * The hardware writes samples into its own buffer; they are read into an image on the host every 10
 * to 50 ms. The image is larger than what arrives meanwhile: decoding into a full one loses the
 * rest (CUDA 13), so gaps between samples are counted. A buffer that has overflowed returns no more
 * samples: the call ends early and reports it. */
#ifndef RP_BACKEND_CUPTI_PM_H
#define RP_BACKEND_CUPTI_PM_H

#include "device/counters.h"

/* Thread: any, one at a time (IN_USE otherwise, and while rp_cupti_open has a session). library: a
 * handle of dlopen that stays open; device: CUPTI's number of the GPU, which is CUDA's. Memory:
 * all freed when it returns. */
int rp_cupti_pm_measure(void *library, uint32_t device,
                        const struct rp_device_counter_options *options,
                        struct rp_device_counters *out, struct rp_error *err) RP_MUST_USE;

#endif
