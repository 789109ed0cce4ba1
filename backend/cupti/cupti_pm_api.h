/* cupti_pm_api.h - what is used of CUPTI's PM sampling: cupti_pmsampling.h, cupti_profiler_host.h,
 * cupti_profiler_target.h and cupti_target.h of CUDA 12.9 to 13.x.
 *
 * Each call takes one structure whose first member is its size: fields were only ever added at the
 * end. tests/gpu/test_cupti_layout_cuda.cu compares these layouts with the toolkit's headers. */
#ifndef RP_BACKEND_CUPTI_PM_API_H
#define RP_BACKEND_CUPTI_PM_API_H

#include "base/base.h"

#include <stddef.h>

enum rp_cupti_pm_result {
    RP_CUPTI_INVALID_OPERATION = 7,
    RP_CUPTI_OUT_OF_MEMORY = 8, /* of a decode: the hardware's buffer was full */
    RP_CUPTI_HARDWARE_BUSY = 26,
    RP_CUPTI_NOT_SUPPORTED = 27,
    RP_CUPTI_VIRTUAL_INSUFFICIENT_PRIVILEGES = 40
};
enum { RP_CUPTI_PROFILER_PM_SAMPLING = 1 };
enum { RP_CUPTI_PM_TRIGGER_TIME = 1 };       /* the interval is in ns */
enum { RP_CUPTI_PM_KEEP_OLDEST = 0 };        /* a full buffer is an error, not a loss in silence */
enum { RP_CUPTI_PM_STOPPED_IMAGE_FULL = 1 }; /* why a decode stopped */

/* What comes before the fields of each. */
#define RP_CUPTI_HEAD                                                                              \
    size_t bytes;                                                                                  \
    void *priv /* NULL */

struct rp_cupti_profiler_init { /* and deinit */
    RP_CUPTI_HEAD;
};
struct rp_cupti_chip_name {
    RP_CUPTI_HEAD;
    size_t device;
    const char *chip; /* out */
};

/* ---- host: names to configurations, counts to values ---------------------------------------- */

struct rp_cupti_host_init {
    RP_CUPTI_HEAD;
    int profiler;
    const char *chip;
    const uint8_t *availability;
    void *host; /* out */
};
struct rp_cupti_host_deinit {
    RP_CUPTI_HEAD;
    void *host;
};
struct rp_cupti_host_add {
    RP_CUPTI_HEAD;
    void *host;
    const char **metrics;
    size_t count;
};
struct rp_cupti_host_config_size {
    RP_CUPTI_HEAD;
    void *host;
    size_t config_bytes; /* out */
};
struct rp_cupti_host_config {
    RP_CUPTI_HEAD;
    void *host;
    size_t config_bytes;
    uint8_t *config; /* filled */
};
struct rp_cupti_host_passes {
    RP_CUPTI_HEAD;
    size_t config_bytes;
    uint8_t *config;
    size_t passes; /* out */
};
struct rp_cupti_host_evaluate {
    RP_CUPTI_HEAD;
    void *host;
    const uint8_t *image;
    size_t image_bytes;
    size_t sample;
    const char **metrics;
    size_t count;
    double *values; /* filled */
};

/* ---- target: the GPU ----------------------------------------------------------------------- */

struct rp_cupti_pm_availability {
    RP_CUPTI_HEAD;
    size_t device;
    size_t image_bytes; /* out where image is NULL */
    uint8_t *image;
};
struct rp_cupti_pm_enable {
    RP_CUPTI_HEAD;
    size_t device;
    void *sampler; /* out */
};
struct rp_cupti_pm_one { /* disable, start, stop */
    RP_CUPTI_HEAD;
    void *sampler;
};
struct rp_cupti_pm_config {
    RP_CUPTI_HEAD;
    void *sampler;
    size_t config_bytes;
    const uint8_t *config;
    size_t hardware_buffer_bytes;
    uint64_t interval; /* ns */
    int trigger;
    int append;
};
struct rp_cupti_pm_image_size {
    RP_CUPTI_HEAD;
    void *sampler;
    const char **metrics;
    size_t count;
    uint32_t samples_max;
    size_t image_bytes; /* out */
};
struct rp_cupti_pm_image_init {
    RP_CUPTI_HEAD;
    void *sampler;
    size_t image_bytes;
    uint8_t *image;
};
struct rp_cupti_pm_decode {
    RP_CUPTI_HEAD;
    void *sampler;
    uint8_t *image;
    size_t image_bytes;
    int stopped;      /* out */
    uint8_t overflow; /* out */
};
struct rp_cupti_pm_image_info {
    RP_CUPTI_HEAD;
    const uint8_t *image;
    size_t image_bytes;
    size_t total, populated, completed; /* out: samples */
};
struct rp_cupti_pm_sample_info {
    RP_CUPTI_HEAD;
    void *sampler;
    const uint8_t *image;
    size_t image_bytes;
    size_t sample;
    uint64_t begin, end; /* out: ns of the GPU's clock; both 0: not filled */
};

/* As CUPTI counts it: to the end of the last field, without padding. */
#define RP_CUPTI_BYTES(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

/* X(name, parameters, the last field) */
#define RP_CUPTI_PM_FUNCTIONS(X)                                                                   \
    X(cuptiProfilerInitialize, profiler_init, priv)                                                \
    X(cuptiProfilerDeInitialize, profiler_init, priv)                                              \
    X(cuptiDeviceGetChipName, chip_name, chip)                                                     \
    X(cuptiProfilerHostInitialize, host_init, host)                                                \
    X(cuptiProfilerHostDeinitialize, host_deinit, host)                                            \
    X(cuptiProfilerHostConfigAddMetrics, host_add, count)                                          \
    X(cuptiProfilerHostGetConfigImageSize, host_config_size, config_bytes)                         \
    X(cuptiProfilerHostGetConfigImage, host_config, config)                                        \
    X(cuptiProfilerHostGetNumOfPasses, host_passes, passes)                                        \
    X(cuptiProfilerHostEvaluateToGpuValues, host_evaluate, values)                                 \
    X(cuptiPmSamplingGetCounterAvailability, pm_availability, image)                               \
    X(cuptiPmSamplingEnable, pm_enable, sampler)                                                   \
    X(cuptiPmSamplingDisable, pm_one, sampler)                                                     \
    X(cuptiPmSamplingStart, pm_one, sampler)                                                       \
    X(cuptiPmSamplingStop, pm_one, sampler)                                                        \
    X(cuptiPmSamplingSetConfig, pm_config, append)                                                 \
    X(cuptiPmSamplingGetCounterDataSize, pm_image_size, image_bytes)                               \
    X(cuptiPmSamplingCounterDataImageInitialize, pm_image_init, image)                             \
    X(cuptiPmSamplingDecodeData, pm_decode, overflow)                                              \
    X(cuptiPmSamplingGetCounterDataInfo, pm_image_info, completed)                                 \
    X(cuptiPmSamplingCounterDataGetSampleInfo, pm_sample_info, end)

struct rp_cupti_pm_api {
    int (*cuptiGetVersion)(uint32_t *version);
    int (*cuptiGetResultString)(int result, const char **text);
#define X(name, parameters, last) int (*name)(struct rp_cupti_##parameters * in_out);
    RP_CUPTI_PM_FUNCTIONS(X)
#undef X
};

#endif
