/* Goal: our declarations of CUPTI's PM sampling agree with the toolkit's headers (one of which is
 * C++). Method: compile-time comparison of sizes, offsets and values; there is nothing to run. */
#include "backend/cupti/cupti_pm_api.h"

#include <cstddef>
#include <cstdio>
#include <cuda.h>
#include <cupti_pmsampling.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_target.h>

/* The size up to the last field, which CUPTI calls STRUCT_SIZE. */
#define SAME(theirs, ours, last)                                                                   \
    static_assert(theirs##_STRUCT_SIZE == RP_CUPTI_BYTES(struct rp_cupti_##ours, last), #ours)
#define AT(theirs, their_field, ours, our_field)                                                   \
    static_assert(offsetof(theirs, their_field) == offsetof(struct rp_cupti_##ours, our_field) &&  \
                      sizeof(((theirs *)0)->their_field) ==                                        \
                          sizeof(((struct rp_cupti_##ours *)0)->our_field),                        \
                  #ours "." #our_field)

SAME(CUpti_Profiler_Initialize_Params, profiler_init, priv);
SAME(CUpti_Profiler_DeInitialize_Params, profiler_init, priv);
SAME(CUpti_Device_GetChipName_Params, chip_name, chip);
AT(CUpti_Device_GetChipName_Params, deviceIndex, chip_name, device);

SAME(CUpti_Profiler_Host_Initialize_Params, host_init, host);
AT(CUpti_Profiler_Host_Initialize_Params, profilerType, host_init, profiler);
AT(CUpti_Profiler_Host_Initialize_Params, pChipName, host_init, chip);
AT(CUpti_Profiler_Host_Initialize_Params, pCounterAvailabilityImage, host_init, availability);
SAME(CUpti_Profiler_Host_Deinitialize_Params, host_deinit, host);
SAME(CUpti_Profiler_Host_ConfigAddMetrics_Params, host_add, count);
AT(CUpti_Profiler_Host_ConfigAddMetrics_Params, ppMetricNames, host_add, metrics);
SAME(CUpti_Profiler_Host_GetConfigImageSize_Params, host_config_size, config_bytes);
SAME(CUpti_Profiler_Host_GetConfigImage_Params, host_config, config);
AT(CUpti_Profiler_Host_GetConfigImage_Params, configImageSize, host_config, config_bytes);
SAME(CUpti_Profiler_Host_GetNumOfPasses_Params, host_passes, passes);
AT(CUpti_Profiler_Host_GetNumOfPasses_Params, pConfigImage, host_passes, config);
SAME(CUpti_Profiler_Host_EvaluateToGpuValues_Params, host_evaluate, values);
AT(CUpti_Profiler_Host_EvaluateToGpuValues_Params, pCounterDataImage, host_evaluate, image);
AT(CUpti_Profiler_Host_EvaluateToGpuValues_Params, counterDataImageSize, host_evaluate,
   image_bytes);
AT(CUpti_Profiler_Host_EvaluateToGpuValues_Params, rangeIndex, host_evaluate, sample);
AT(CUpti_Profiler_Host_EvaluateToGpuValues_Params, ppMetricNames, host_evaluate, metrics);
AT(CUpti_Profiler_Host_EvaluateToGpuValues_Params, numMetrics, host_evaluate, count);

SAME(CUpti_PmSampling_GetCounterAvailability_Params, pm_availability, image);
AT(CUpti_PmSampling_GetCounterAvailability_Params, deviceIndex, pm_availability, device);
AT(CUpti_PmSampling_GetCounterAvailability_Params, counterAvailabilityImageSize, pm_availability,
   image_bytes);
SAME(CUpti_PmSampling_Enable_Params, pm_enable, sampler);
AT(CUpti_PmSampling_Enable_Params, deviceIndex, pm_enable, device);
SAME(CUpti_PmSampling_Disable_Params, pm_one, sampler);
SAME(CUpti_PmSampling_Start_Params, pm_one, sampler);
SAME(CUpti_PmSampling_Stop_Params, pm_one, sampler);
SAME(CUpti_PmSampling_SetConfig_Params, pm_config, append);
AT(CUpti_PmSampling_SetConfig_Params, pPmSamplingObject, pm_config, sampler);
AT(CUpti_PmSampling_SetConfig_Params, configSize, pm_config, config_bytes);
AT(CUpti_PmSampling_SetConfig_Params, pConfig, pm_config, config);
AT(CUpti_PmSampling_SetConfig_Params, hardwareBufferSize, pm_config, hardware_buffer_bytes);
AT(CUpti_PmSampling_SetConfig_Params, samplingInterval, pm_config, interval);
AT(CUpti_PmSampling_SetConfig_Params, triggerMode, pm_config, trigger);
SAME(CUpti_PmSampling_GetCounterDataSize_Params, pm_image_size, image_bytes);
AT(CUpti_PmSampling_GetCounterDataSize_Params, pMetricNames, pm_image_size, metrics);
AT(CUpti_PmSampling_GetCounterDataSize_Params, numMetrics, pm_image_size, count);
AT(CUpti_PmSampling_GetCounterDataSize_Params, maxSamples, pm_image_size, samples_max);
SAME(CUpti_PmSampling_CounterDataImage_Initialize_Params, pm_image_init, image);
AT(CUpti_PmSampling_CounterDataImage_Initialize_Params, counterDataSize, pm_image_init,
   image_bytes);
SAME(CUpti_PmSampling_DecodeData_Params, pm_decode, overflow);
AT(CUpti_PmSampling_DecodeData_Params, pCounterDataImage, pm_decode, image);
AT(CUpti_PmSampling_DecodeData_Params, counterDataImageSize, pm_decode, image_bytes);
AT(CUpti_PmSampling_DecodeData_Params, decodeStopReason, pm_decode, stopped);
SAME(CUpti_PmSampling_GetCounterDataInfo_Params, pm_image_info, completed);
AT(CUpti_PmSampling_GetCounterDataInfo_Params, pCounterDataImage, pm_image_info, image);
AT(CUpti_PmSampling_GetCounterDataInfo_Params, numTotalSamples, pm_image_info, total);
SAME(CUpti_PmSampling_CounterData_GetSampleInfo_Params, pm_sample_info, end);
AT(CUpti_PmSampling_CounterData_GetSampleInfo_Params, pPmSamplingObject, pm_sample_info, sampler);
AT(CUpti_PmSampling_CounterData_GetSampleInfo_Params, sampleIndex, pm_sample_info, sample);
AT(CUpti_PmSampling_CounterData_GetSampleInfo_Params, startTimestamp, pm_sample_info, begin);

static_assert((int)CUPTI_PROFILER_TYPE_PM_SAMPLING == RP_CUPTI_PROFILER_PM_SAMPLING, "type");
static_assert((int)CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_TIME_INTERVAL == RP_CUPTI_PM_TRIGGER_TIME,
              "trigger");
static_assert((int)CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_OLDEST ==
                  RP_CUPTI_PM_KEEP_OLDEST,
              "append");
static_assert((int)CUPTI_PM_SAMPLING_DECODE_STOP_REASON_COUNTER_DATA_FULL ==
                  RP_CUPTI_PM_STOPPED_IMAGE_FULL,
              "stop reason");
static_assert((int)CUPTI_ERROR_OUT_OF_MEMORY == RP_CUPTI_OUT_OF_MEMORY, "overflow");
static_assert((int)CUPTI_ERROR_HARDWARE_BUSY == RP_CUPTI_HARDWARE_BUSY, "busy");
static_assert((int)CUPTI_ERROR_INVALID_OPERATION == RP_CUPTI_INVALID_OPERATION, "operation");
static_assert((int)CUPTI_ERROR_NOT_SUPPORTED == RP_CUPTI_NOT_SUPPORTED, "not supported");
static_assert((int)CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES ==
                  RP_CUPTI_VIRTUAL_INSUFFICIENT_PRIVILEGES,
              "privileges");

int main() {
    std::puts("the layouts are the toolkit's");
    return 0;
}
