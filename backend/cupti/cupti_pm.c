#include "backend/cupti/cupti_pm.h"

#include "backend/cupti/cupti_api.h"
#include "backend/cupti/cupti_pm_internal.h"
#include "backend/cupti/cupti_session.h"
#include "base/clock.h"
#include "base/memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HARDWARE_BUFFER_BYTES ((size_t)32 << 20) /* 2000 samples of 16 KB */
#define IMAGE_SAMPLES         512u               /* 33 KB each, rewritten with every pass */
#define IMAGE_BYTES_MAX       ((size_t)512 << 20)
#define AVAILABILITY_MAX      ((size_t)64 << 20)
#define PERIOD_NS_MAX         50000000u
#define PERIOD_SAMPLES        128u
#define DRAIN_PASSES_MAX      16u /* after stop */
#define DEFAULT_INTERVAL_US   1000u

/* One call. */
struct sampling {
    struct rp_cupti_pm pm;
    void *sampler;
    uint8_t *image;
    size_t image_bytes;
    uint64_t interval_ns;
    uint32_t values_max;
    uint32_t value_counts[RP_DEVICE_COUNTERS_MAX];
    double *values[RP_DEVICE_COUNTERS_MAX];
    double weighted[RP_DEVICE_COUNTERS_MAX], weight[RP_DEVICE_COUNTERS_MAX];
    uint64_t last_end, covered_ns; /* the GPU's clock */
    struct rp_device_counters *out;
};

/* ---- refusals ------------------------------------------------------------------------------- */

static const char *text_of(const struct rp_cupti_pm *pm, int result) {
    const char *text = NULL;
    return pm->api.cuptiGetResultString(result, &text) == 0 && text ? text : "an unknown error";
}

int rp_cupti_pm_refused(const struct rp_cupti_pm *pm, const char *what, int result,
                        struct rp_error *err) {
    const char *text = text_of(pm, result);
    switch (result) {
    case RP_CUPTI_INSUFFICIENT_PRIVILEGES:
    case RP_CUPTI_VIRTUAL_INSUFFICIENT_PRIVILEGES:
        rp_error_fill(err, RP_STATUS_UNSUPPORTED,
                      "the driver gives the GPU's counters to administrators only (%s: %s)", what,
                      text);
        rp_error_hint(err,
                      "load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0, or give "
                      "the server CAP_SYS_ADMIN");
        break;
    case RP_CUPTI_HARDWARE_BUSY:
    case RP_CUPTI_INVALID_OPERATION:
    case RP_CUPTI_MULTIPLE_SUBSCRIBERS:
        rp_error_fill(err, RP_STATUS_UNSUPPORTED,
                      "another profiler holds the GPU's counters (%s: %s)", what, text);
        rp_error_hint(err, "end ncu, nsys or the like; of DCGM: dcgmi profile --pause");
        break;
    default:
        rp_error_fill(err, RP_STATUS_UNSUPPORTED, "the GPU's counters cannot be had (%s: %s)", what,
                      text);
    }
    return RP_STATUS_UNSUPPORTED;
}

static int load_api(struct rp_cupti_pm *pm, void *library, struct rp_error *err) {
    struct rp_cupti_pm_api *api = &pm->api;
    const char *missing = NULL;
    *(void **)&api->cuptiGetVersion = dlsym(library, "cuptiGetVersion");
    *(void **)&api->cuptiGetResultString = dlsym(library, "cuptiGetResultString");
    if (!api->cuptiGetVersion || !api->cuptiGetResultString)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "CUPTI: a function is missing");
    if (api->cuptiGetVersion(&pm->version) != RP_CUPTI_SUCCESS ||
        pm->version < RP_CUPTI_VERSION_MIN || pm->version >= RP_CUPTI_VERSION_BELOW)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "CUPTI: version %u, known are %u to %u (CUDA 12.9 to 13.x)",
                            pm->version, RP_CUPTI_VERSION_MIN, RP_CUPTI_VERSION_BELOW - 1);
#define X(name, parameters, last)                                                                  \
    *(void **)&api->name = dlsym(library, #name);                                                  \
    if (!api->name)                                                                                \
        missing = #name;
    RP_CUPTI_PM_FUNCTIONS(X)
#undef X
    if (missing)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "CUPTI %u has no PM sampling: no %s",
                            pm->version, missing);
    return RP_OK;
}

/* ---- reading samples ------------------------------------------------------------------------ */

static int init_image(struct sampling *s) {
    struct rp_cupti_pm_image_init init = {
        .sampler = s->sampler, .image_bytes = s->image_bytes, .image = s->image};
    return RP_CUPTI_PM_CALL(&s->pm, cuptiPmSamplingCounterDataImageInitialize, pm_image_init, image,
                            &init);
}

static void keep(struct sampling *s, const struct rp_cupti_pm_sample_info *info,
                 const double *values) {
    uint64_t length = info->end - info->begin;
    if (s->last_end && info->begin > s->last_end) {
        uint64_t gap = (info->begin - s->last_end + s->interval_ns / 2) / s->interval_ns;
        s->out->missing += (uint32_t)RP_MIN(gap, UINT32_MAX / 2);
    }
    s->last_end = info->end;
    s->covered_ns += length;
    s->out->samples++;
    for (uint32_t i = 0; i < s->pm.count; i++) {
        if (!isfinite(values[i]) || s->value_counts[i] == s->values_max)
            continue;
        s->values[i][s->value_counts[i]++] = values[i];
        s->weighted[i] += values[i] * (double)length;
        s->weight[i] += (double)length;
    }
}

/* The first one reaches back to where the counters were last read: at the end of an earlier call,
 * seconds ago. */
static bool is_from_before(const struct sampling *s, const struct rp_cupti_pm_sample_info *info) {
    return s->last_end == 0 && info->end - info->begin > s->interval_ns + s->interval_ns / 2;
}

/* CUPTI's result of the first thing that failed. Samples without a length, as after a stop, are
 * ignored. */
static int read_image(struct sampling *s) {
    struct rp_cupti_pm_image_info image = {.image = s->image, .image_bytes = s->image_bytes};
    int result = RP_CUPTI_PM_CALL(&s->pm, cuptiPmSamplingGetCounterDataInfo, pm_image_info,
                                  completed, &image);
    size_t count = result == 0 ? RP_MIN(image.completed, (size_t)IMAGE_SAMPLES) : 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        double values[RP_DEVICE_COUNTERS_MAX] = {0};
        struct rp_cupti_pm_sample_info info = {
            .sampler = s->sampler, .image = s->image, .image_bytes = s->image_bytes, .sample = i};
        struct rp_cupti_host_evaluate evaluate = {.host = s->pm.host,
                                                  .image = s->image,
                                                  .image_bytes = s->image_bytes,
                                                  .sample = i,
                                                  .metrics = s->pm.metrics,
                                                  .count = s->pm.count,
                                                  .values = values};
        result = RP_CUPTI_PM_CALL(&s->pm, cuptiPmSamplingCounterDataGetSampleInfo, pm_sample_info,
                                  end, &info);
        if (result != 0 || info.end <= info.begin || info.begin < s->last_end)
            continue;
        if (is_from_before(s, &info)) {
            s->last_end = info.end;
            continue;
        }
        result = RP_CUPTI_PM_CALL(&s->pm, cuptiProfilerHostEvaluateToGpuValues, host_evaluate,
                                  values, &evaluate);
        if (result == 0)
            keep(s, &info, values);
    }
    return result;
}

/* Reads what the hardware has written. *more: the image was full. The result of the first thing
 * that failed; a buffer that has run over is none: out->overflowed. */
static int decode(struct sampling *s, bool *more, const char **what) {
    struct rp_cupti_pm_decode decode = {
        .sampler = s->sampler, .image = s->image, .image_bytes = s->image_bytes};
    int result = RP_CUPTI_PM_CALL(&s->pm, cuptiPmSamplingDecodeData, pm_decode, overflow, &decode);
    *more = false;
    *what = "cuptiPmSamplingDecodeData";
    if (result == RP_CUPTI_OUT_OF_MEMORY || (result == 0 && decode.overflow)) {
        s->out->overflowed = true;
        if (result != 0)
            return 0;
    }
    if (result != 0)
        return result;
    uint32_t before = s->out->samples;
    *what = "reading a sample";
    result = read_image(s);
    if (result != 0)
        return result;
    *more = decode.stopped == RP_CUPTI_PM_STOPPED_IMAGE_FULL && s->out->samples > before;
    *what = "cuptiPmSamplingCounterDataImageInitialize";
    return init_image(s);
}

static void sleep_ns(uint64_t ns) {
    struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u),
                            .tv_nsec = (long)(ns % 1000000000u)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

static int count_for(struct sampling *s, double seconds, struct rp_error *err) {
    uint64_t period = RP_MIN(s->interval_ns * PERIOD_SAMPLES, (uint64_t)PERIOD_NS_MAX);
    struct rp_cupti_pm_one one = {.sampler = s->sampler};
    bool more = false;
    const char *what = "cuptiPmSamplingStart";
    uint64_t begin = rp_clock_ns(), end = begin + (uint64_t)(seconds * 1e9);
    int result = RP_CUPTI_PM_CALL(&s->pm, cuptiPmSamplingStart, pm_one, sampler, &one);
    if (result != 0)
        return rp_cupti_pm_refused(&s->pm, what, result, err);
    for (uint64_t now = begin; now < end && result == 0 && !s->out->overflowed;
         now = rp_clock_ns()) {
        sleep_ns(RP_MIN(period, end - now));
        result = decode(s, &more, &what);
    }
    int stopped = RP_CUPTI_PM_CALL(&s->pm, cuptiPmSamplingStop, pm_one, sampler, &one);
    s->out->seconds = (double)(rp_clock_ns() - begin) * 1e-9;
    if (result == 0 && stopped != 0) {
        result = stopped;
        what = "cuptiPmSamplingStop";
    }
    more = true;
    for (uint32_t i = 0; i < DRAIN_PASSES_MAX && more && result == 0 && !s->out->overflowed; i++)
        result = decode(s, &more, &what);
    if (result == 0)
        return RP_OK;
    return rp_error_set(err, RP_STATUS_DEVICE, "CUPTI: %s: %s", what, text_of(&s->pm, result));
}

/* ---- setting up
 *
 --------------------------------------------------------------------------------------------- */

static int find_chip(struct sampling *s, struct rp_error *err) {
    struct rp_cupti_pm *pm = &s->pm;
    struct rp_cupti_chip_name name = {.device = pm->device};
    int result = RP_CUPTI_PM_CALL(pm, cuptiDeviceGetChipName, chip_name, chip, &name);
    if (result != 0 || !name.chip)
        return rp_cupti_pm_refused(pm, "cuptiDeviceGetChipName", result, err);
    snprintf(s->out->chip, sizeof s->out->chip, "%s", name.chip);
    pm->chip = s->out->chip;
    struct rp_cupti_pm_availability ask = {.device = pm->device};
    result =
        RP_CUPTI_PM_CALL(pm, cuptiPmSamplingGetCounterAvailability, pm_availability, image, &ask);
    if (result == 0) {
        bool sane = ask.image_bytes > 0 && ask.image_bytes <= AVAILABILITY_MAX;
        pm->availability = sane ? rp_calloc(1, ask.image_bytes) : NULL;
        if (!pm->availability)
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "CUPTI: out of memory");
        ask.image = pm->availability;
        result = RP_CUPTI_PM_CALL(pm, cuptiPmSamplingGetCounterAvailability, pm_availability, image,
                                  &ask);
    }
    return result == 0
               ? RP_OK
               : rp_cupti_pm_refused(pm, "cuptiPmSamplingGetCounterAvailability", result, err);
}

static int make_image(struct sampling *s, struct rp_error *err) {
    struct rp_cupti_pm *pm = &s->pm;
    struct rp_cupti_pm_image_size size = {.sampler = s->sampler,
                                          .metrics = pm->metrics,
                                          .count = pm->count,
                                          .samples_max = IMAGE_SAMPLES};
    int result =
        RP_CUPTI_PM_CALL(pm, cuptiPmSamplingGetCounterDataSize, pm_image_size, image_bytes, &size);
    if (result != 0)
        return rp_cupti_pm_refused(pm, "cuptiPmSamplingGetCounterDataSize", result, err);
    if (size.image_bytes > 0 && size.image_bytes <= IMAGE_BYTES_MAX)
        s->image = rp_alloc_aligned(size.image_bytes, 4096);
    for (uint32_t i = 0; i < pm->count && s->image; i++) {
        s->values[i] = rp_alloc((size_t)s->values_max * sizeof(double));
        if (!s->values[i])
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "CUPTI: out of memory");
    }
    if (!s->image)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "CUPTI: out of memory");
    memset(s->image, 0, size.image_bytes);
    s->image_bytes = size.image_bytes;
    s->out->host_bytes = size.image_bytes + (uint64_t)pm->count * s->values_max * sizeof(double);
    result = init_image(s);
    return result == 0
               ? RP_OK
               : rp_cupti_pm_refused(pm, "cuptiPmSamplingCounterDataImageInitialize", result, err);
}

static int set_up(struct sampling *s, struct rp_error *err) {
    struct rp_cupti_pm *pm = &s->pm;
    int status = find_chip(s, err);
    if (status == RP_OK)
        status = rp_cupti_pm_select(pm, s->out, err);
    if (status != RP_OK)
        return status;
    struct rp_cupti_pm_enable enable = {.device = pm->device};
    int result = RP_CUPTI_PM_CALL(pm, cuptiPmSamplingEnable, pm_enable, sampler, &enable);
    if (result != 0)
        return rp_cupti_pm_refused(pm, "cuptiPmSamplingEnable", result, err);
    s->sampler = enable.sampler;
    struct rp_cupti_pm_config config = {.sampler = s->sampler,
                                        .config_bytes = pm->config_bytes,
                                        .config = pm->config,
                                        .hardware_buffer_bytes = HARDWARE_BUFFER_BYTES,
                                        .interval = s->interval_ns,
                                        .trigger = RP_CUPTI_PM_TRIGGER_TIME,
                                        .append = RP_CUPTI_PM_KEEP_OLDEST};
    result = RP_CUPTI_PM_CALL(pm, cuptiPmSamplingSetConfig, pm_config, append, &config);
    if (result != 0)
        return rp_cupti_pm_refused(pm, "cuptiPmSamplingSetConfig", result, err);
    s->out->hardware_buffer_bytes = HARDWARE_BUFFER_BYTES;
    return make_image(s, err);
}

static void tear_down(struct sampling *s) {
    struct rp_cupti_pm_one one = {.sampler = s->sampler};
    if (s->sampler)
        (void)RP_CUPTI_PM_CALL(&s->pm, cuptiPmSamplingDisable, pm_one, sampler, &one);
    rp_cupti_pm_select_undo(&s->pm);
    rp_free(s->pm.availability);
    rp_free_aligned(s->image);
}

/* ---- the whole
 *
 --------------------------------------------------------------------------------------------- */

static int compare(const void *a_void, const void *b_void) {
    double a = *(const double *)a_void, b = *(const double *)b_void;
    return (a > b) - (a < b);
}

/* Nearest rank. */
static double quantile(const double *sorted, uint32_t count, double q) {
    uint32_t rank = (uint32_t)ceil(q * (double)count);
    return sorted[rank > 0 ? rank - 1 : 0];
}

static void sum_up(struct sampling *s) {
    s->out->covered_seconds = (double)s->covered_ns * 1e-9;
    for (uint32_t i = 0; i < s->pm.count; i++) {
        struct rp_device_counter *counter = &s->out->counters[s->pm.entries[i]];
        uint32_t count = s->value_counts[i];
        if (count == 0)
            continue;
        qsort(s->values[i], count, sizeof(double), compare);
        counter->samples = count;
        counter->mean = s->weight[i] > 0 ? s->weighted[i] / s->weight[i] : 0;
        counter->p50 = quantile(s->values[i], count, 0.5);
        counter->p99 = quantile(s->values[i], count, 0.99);
        counter->max = s->values[i][count - 1];
    }
}

static double cpu_seconds(void) {
    struct timespec at;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at) != 0)
        return 0;
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static int measure(struct sampling *s, double seconds, struct rp_error *err) {
    struct rp_cupti_profiler_init init = {0}, deinit = {0};
    double cpu = cpu_seconds();
    uint64_t begin = rp_clock_ns();
    int result = RP_CUPTI_PM_CALL(&s->pm, cuptiProfilerInitialize, profiler_init, priv, &init);
    if (result != 0)
        return rp_cupti_pm_refused(&s->pm, "cuptiProfilerInitialize", result, err);
    int status = set_up(s, err);
    s->out->setup_seconds = (double)(rp_clock_ns() - begin) * 1e-9;
    if (status == RP_OK)
        status = count_for(s, seconds, err);
    begin = rp_clock_ns();
    tear_down(s);
    (void)RP_CUPTI_PM_CALL(&s->pm, cuptiProfilerDeInitialize, profiler_init, priv, &deinit);
    s->out->teardown_seconds = (double)(rp_clock_ns() - begin) * 1e-9;
    if (status == RP_OK)
        sum_up(s);
    s->out->cpu_seconds = cpu_seconds() - cpu;
    return status;
}

int rp_cupti_pm_measure(void *library, uint32_t device,
                        const struct rp_device_counter_options *options,
                        struct rp_device_counters *out, struct rp_error *err) {
    double seconds = RP_MIN(options->seconds, RP_DEVICE_COUNTERS_SECONDS_MAX);
    uint32_t interval_us = options->interval_us ? options->interval_us : DEFAULT_INTERVAL_US;
    memset(out, 0, sizeof *out);
    if (!rp_cupti_take())
        return rp_error_set(err, RP_STATUS_IN_USE,
                            "the GPU's counters or its profiler are in use by another request");
    struct sampling *s = rp_calloc(1, sizeof *s);
    int status = s ? RP_OK : rp_error_set(err, RP_STATUS_NO_MEMORY, "CUPTI: out of memory");
    if (status == RP_OK)
        status = load_api(&s->pm, library, err);
    if (status == RP_OK) {
        uint32_t least = (uint32_t)ceil(seconds * 1e6 / RP_DEVICE_COUNTERS_SAMPLES_MAX);
        interval_us = RP_MAX(interval_us, RP_MAX(least, RP_DEVICE_COUNTERS_INTERVAL_US_MIN));
        interval_us = RP_MIN(interval_us, RP_DEVICE_COUNTERS_INTERVAL_US_MAX);
        s->out = out;
        s->interval_ns = (uint64_t)interval_us * 1000;
        s->values_max = (uint32_t)(seconds * 1e6 / interval_us) + IMAGE_SAMPLES;
        s->pm.device = device;
        out->interval_us = interval_us;
        snprintf(out->source, sizeof out->source, "CUPTI %u", s->pm.version);
        status = measure(s, seconds, err);
        for (uint32_t i = 0; i < RP_DEVICE_COUNTERS_MAX; i++)
            rp_free(s->values[i]);
    }
    rp_free(s);
    rp_cupti_give();
    return status;
}
