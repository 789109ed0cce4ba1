/* PM sampling of the fake (fake_cupti.h). Sample i has the value 1 + i % 100 in every metric; an
 * additional first sample begins a second earlier, as on a GPU. Structures of an unexpected size
 * and calls out of order are refused. */
#include "tests/support/fake_cupti.h"

#include "backend/cupti/cupti_api.h"
#include "backend/cupti/cupti_pm_api.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_PARAMETER = 1, IMAGE_SAMPLES_MAX = 4096, FIRST_NS = 2000000000 };

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

extern struct fake_cupti fake_cupti_state;

/* The contents of an image. */
struct image {
    uint32_t magic, count;
    struct {
        uint64_t begin, end, number;
    } samples[IMAGE_SAMPLES_MAX];
};
enum { MAGIC = 0x706d73 };

struct host {
    uint32_t metrics;
};

static struct fake_cupti_pm *pm(void) { return &fake_cupti_state.pm; }

#define CHECK(type, last)                                                                          \
    if (p->bytes != RP_CUPTI_BYTES(struct rp_cupti_##type, last) || p->priv)                       \
    return INVALID_PARAMETER
#define CHECK_SAMPLER()                                                                            \
    if (p->sampler != &fake_cupti_state.pm)                                                        \
    return INVALID_PARAMETER

static size_t or_usual(size_t bytes, size_t usual) { return bytes ? bytes : usual; }

int cuptiProfilerInitialize(struct rp_cupti_profiler_init *p) {
    CHECK(profiler_init, priv);
    if (pm()->init_result)
        return pm()->init_result;
    pm()->initialized++;
    return RP_CUPTI_SUCCESS;
}

int cuptiProfilerDeInitialize(struct rp_cupti_profiler_init *p) {
    CHECK(profiler_init, priv);
    pm()->deinitialized++;
    return RP_CUPTI_SUCCESS;
}

int cuptiDeviceGetChipName(struct rp_cupti_chip_name *p) {
    CHECK(chip_name, chip);
    p->chip = "GH100";
    return RP_CUPTI_SUCCESS;
}

int cuptiPmSamplingGetCounterAvailability(struct rp_cupti_pm_availability *p) {
    CHECK(pm_availability, image);
    if (pm()->availability_result)
        return pm()->availability_result;
    if (p->image)
        memset(p->image, 0xa5, p->image_bytes);
    else
        p->image_bytes = or_usual(pm()->availability_bytes, 100);
    return RP_CUPTI_SUCCESS;
}

int cuptiProfilerHostInitialize(struct rp_cupti_host_init *p) {
    CHECK(host_init, host);
    if (pm()->host_result)
        return pm()->host_result;
    if (p->profiler != RP_CUPTI_PROFILER_PM_SAMPLING || strcmp(p->chip, "GH100") != 0 ||
        !p->availability || p->availability[0] != 0xa5)
        return INVALID_PARAMETER;
    p->host = calloc(1, sizeof(struct host));
    pm()->hosts_made++;
    return RP_CUPTI_SUCCESS;
}

int cuptiProfilerHostDeinitialize(struct rp_cupti_host_deinit *p) {
    CHECK(host_deinit, host);
    free(p->host);
    pm()->hosts_freed++;
    return RP_CUPTI_SUCCESS;
}

int cuptiProfilerHostConfigAddMetrics(struct rp_cupti_host_add *p) {
    CHECK(host_add, count);
    for (size_t i = 0; i < p->count; i++)
        if (pm()->unknown && strstr(p->metrics[i], pm()->unknown))
            return INVALID_PARAMETER;
    ((struct host *)p->host)->metrics += (uint32_t)p->count;
    return RP_CUPTI_SUCCESS;
}

int cuptiProfilerHostGetConfigImageSize(struct rp_cupti_host_config_size *p) {
    CHECK(host_config_size, config_bytes);
    p->config_bytes = or_usual(pm()->config_bytes, 64);
    return RP_CUPTI_SUCCESS;
}

int cuptiProfilerHostGetConfigImage(struct rp_cupti_host_config *p) {
    CHECK(host_config, config);
    memset(p->config, 0, p->config_bytes);
    memcpy(p->config, &((struct host *)p->host)->metrics, sizeof(uint32_t));
    return RP_CUPTI_SUCCESS;
}

int cuptiProfilerHostGetNumOfPasses(struct rp_cupti_host_passes *p) {
    CHECK(host_passes, passes);
    uint32_t metrics;
    memcpy(&metrics, p->config, sizeof metrics);
    p->passes = pm()->one_pass_holds && metrics > pm()->one_pass_holds ? 2 : 1;
    return RP_CUPTI_SUCCESS;
}

int cuptiPmSamplingEnable(struct rp_cupti_pm_enable *p) {
    CHECK(pm_enable, sampler);
    if (pm()->enable_result)
        return pm()->enable_result;
    pm()->enabled++;
    p->sampler = pm();
    return RP_CUPTI_SUCCESS;
}

int cuptiPmSamplingDisable(struct rp_cupti_pm_one *p) {
    CHECK(pm_one, sampler);
    CHECK_SAMPLER();
    pm()->disabled++;
    return RP_CUPTI_SUCCESS;
}

int cuptiPmSamplingSetConfig(struct rp_cupti_pm_config *p) {
    CHECK(pm_config, append);
    CHECK_SAMPLER();
    if (pm()->config_result)
        return pm()->config_result;
    if (p->trigger != RP_CUPTI_PM_TRIGGER_TIME || p->append != RP_CUPTI_PM_KEEP_OLDEST ||
        p->interval == 0 || p->hardware_buffer_bytes == 0 || p->config_bytes == 0)
        return INVALID_PARAMETER;
    pm()->interval = p->interval;
    return RP_CUPTI_SUCCESS;
}

int cuptiPmSamplingGetCounterDataSize(struct rp_cupti_pm_image_size *p) {
    CHECK(pm_image_size, image_bytes);
    CHECK_SAMPLER();
    p->image_bytes = or_usual(pm()->image_bytes, sizeof(struct image));
    return RP_CUPTI_SUCCESS;
}

int cuptiPmSamplingCounterDataImageInitialize(struct rp_cupti_pm_image_init *p) {
    CHECK(pm_image_init, image);
    CHECK_SAMPLER();
    struct image *image = (struct image *)(void *)p->image;
    if (p->image_bytes < sizeof *image)
        return INVALID_PARAMETER;
    image->magic = MAGIC;
    image->count = 0;
    return RP_CUPTI_SUCCESS;
}

int cuptiPmSamplingStart(struct rp_cupti_pm_one *p) {
    CHECK(pm_one, sampler);
    CHECK_SAMPLER();
    if (pm()->start_result)
        return pm()->start_result;
    pm()->started++;
    return RP_CUPTI_SUCCESS;
}

int cuptiPmSamplingStop(struct rp_cupti_pm_one *p) {
    CHECK(pm_one, sampler);
    CHECK_SAMPLER();
    pm()->stopped++;
    return RP_CUPTI_SUCCESS;
}

static void put(struct image *image, uint64_t begin, uint64_t end, uint64_t number) {
    image->samples[image->count].begin = begin;
    image->samples[image->count].end = end;
    image->samples[image->count++].number = number;
}

int cuptiPmSamplingDecodeData(struct rp_cupti_pm_decode *p) {
    CHECK(pm_decode, overflow);
    CHECK_SAMPLER();
    struct image *image = (struct image *)(void *)p->image;
    uint32_t number = ++pm()->decodes,
             count = RP_MIN(pm()->per_decode, pm()->samples - pm()->given);
    if (image->magic != MAGIC || image->count != 0 || pm()->started == 0)
        return INVALID_PARAMETER;
    p->stopped = count && pm()->image_full ? RP_CUPTI_PM_STOPPED_IMAGE_FULL : 2;
    p->overflow = 0;
    if (pm()->decode_fails_at && number >= pm()->decode_fails_at)
        return 999;
    if (pm()->overflow_at && number >= pm()->overflow_at) {
        p->overflow = 1;
        return RP_CUPTI_OUT_OF_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = pm()->given++;
        uint64_t late = pm()->gap_at && at >= pm()->gap_at ? 3 : 0;
        uint64_t begin = FIRST_NS + (at + late) * pm()->interval;
        if (at == 0) /* the time since the counters were last read */
            put(image, FIRST_NS / 2, begin, 7777);
        put(image, begin, begin + pm()->interval, at);
    }
    if (pm()->image_full)
        put(image, 0, 0, 0); /* as with a full image */
    if (pm()->stopped)
        put(image, FIRST_NS, FIRST_NS, 0); /* as in the first decode after a stop */
    return RP_CUPTI_SUCCESS;
}

int cuptiPmSamplingGetCounterDataInfo(struct rp_cupti_pm_image_info *p) {
    CHECK(pm_image_info, completed);
    p->total = IMAGE_SAMPLES_MAX;
    p->populated = p->completed = ((const struct image *)(const void *)p->image)->count;
    return RP_CUPTI_SUCCESS;
}

int cuptiPmSamplingCounterDataGetSampleInfo(struct rp_cupti_pm_sample_info *p) {
    CHECK(pm_sample_info, end);
    CHECK_SAMPLER();
    const struct image *image = (const struct image *)(const void *)p->image;
    if (p->sample >= image->count)
        return INVALID_PARAMETER;
    p->begin = image->samples[p->sample].begin;
    p->end = image->samples[p->sample].end;
    return RP_CUPTI_SUCCESS;
}

int cuptiProfilerHostEvaluateToGpuValues(struct rp_cupti_host_evaluate *p) {
    CHECK(host_evaluate, values);
    const struct image *image = (const struct image *)(const void *)p->image;
    if (p->sample >= image->count || ((struct host *)p->host)->metrics != p->count)
        return INVALID_PARAMETER;
    for (size_t i = 0; i < p->count; i++)
        p->values[i] = pm()->without_value && strstr(p->metrics[i], pm()->without_value)
                           ? NAN
                           : 1.0 + (double)(image->samples[p->sample].number % 100);
    return RP_CUPTI_SUCCESS;
}
