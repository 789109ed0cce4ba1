/* describe_cuda.c - driver and GPUs for `reprise doctor`; no device is opened. */
#include "backend/cuda/device_cuda.h"

#include "base/buffer.h"
#include "base/json_writer.h"

#include <stdio.h>
#include <string.h>

static void write_version(struct rp_json *json, const char *name, int version) {
    char text[24];
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    rp_json_string(json, name, version ? text : "none");
}

static void write_gpu(struct rp_json *json, int ordinal) {
    struct cudaDeviceProp prop;
    char capability[24];
    if (cudaGetDeviceProperties(&prop, ordinal) != cudaSuccess)
        return;
    snprintf(capability, sizeof capability, "%d.%d", prop.major, prop.minor);
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "name", prop.name);
    rp_json_uint(json, "memory_bytes", prop.totalGlobalMem);
    rp_json_string(json, "compute_capability", capability);
    rp_json_object_end(json);
}

int rp_cuda_describe(char *json_text, size_t size) {
    struct rp_buffer out = {.data = NULL};
    struct rp_json json;
    int driver = 0, runtime = 0, count = 0, status = RP_STATUS_NO_MEMORY;
    (void)cudaDriverGetVersion(&driver); /* 0: there is none */
    (void)cudaRuntimeGetVersion(&runtime);
    if (cudaGetDeviceCount(&count) != cudaSuccess)
        count = 0;
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    write_version(&json, "driver", driver);
    write_version(&json, "runtime", runtime);
    rp_json_array_begin(&json, "devices");
    for (int i = 0; i < count; i++)
        write_gpu(&json, i);
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    if (!out.failed && out.len < size) {
        memcpy(json_text, out.data, out.len);
        json_text[out.len] = '\0';
        status = (int)out.len;
    }
    rp_buffer_deinit(&out);
    return status;
}
