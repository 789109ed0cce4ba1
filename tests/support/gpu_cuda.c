#include "tests/support/gpu.h"

#include "base/bf16.h"
#include "base/memory.h"
#include "device/step_cpu.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANARY_BYTES 256
#define BUFFERS_MAX  4096

static struct {
    unsigned char *data;
    size_t bytes;
    bool canary;
} buffers[BUFFERS_MAX];
static size_t buffer_count;

static void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        RP_ASSERT(error == cudaSuccess);
    }
}
#define CHECK(call) check((call), #call)

bool rp_gpu_available(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

int rp_gpu_skip_code(void) {
    if (rp_gpu_available())
        return 0;
    printf("skipped: no CUDA GPU\n");
    return 77;
}

void rp_gpu_limits(struct rp_cuda_limits *out) {
    struct cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    *out = (struct rp_cuda_limits){.sm_count = (uint32_t)prop.multiProcessorCount,
                                   .compute_capability = (uint32_t)(prop.major * 10 + prop.minor),
                                   .shared_bytes_block = (uint32_t)prop.sharedMemPerBlockOptin,
                                   .l2_bytes = (uint32_t)prop.l2CacheSize,
                                   .memory_bytes = prop.totalGlobalMem,
                                   .dependent_launch = prop.major >= 9};
}

bool rp_gpu_is_tiny(void) { return getenv("REPRISE_TEST_TINY") != NULL; }

static void *make(size_t bytes, int byte, bool canary) {
    unsigned char *data = NULL;
    RP_ASSERT(buffer_count < BUFFERS_MAX);
    CHECK(cudaMalloc((void **)&data, bytes + CANARY_BYTES));
    CHECK(cudaMemset(data, byte, bytes));
    CHECK(cudaMemset(data + bytes, 0xA5, CANARY_BYTES));
    buffers[buffer_count].data = data;
    buffers[buffer_count].bytes = bytes;
    buffers[buffer_count++].canary = canary;
    return data;
}

void *rp_gpu_upload(const void *data, size_t bytes) {
    void *to = make(bytes, 0, true);
    CHECK(cudaMemcpy(to, data, bytes, cudaMemcpyHostToDevice));
    return to;
}

void *rp_gpu_poisoned(size_t bytes) { return make(bytes, 0xFF, true); }
void *rp_gpu_zeroed(size_t bytes) { return make(bytes, 0, true); }

void rp_gpu_download(void *to, const void *from, size_t bytes) {
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

bool rp_gpu_canaries_hold(void) {
    unsigned char seen[CANARY_BYTES];
    for (size_t i = 0; i < buffer_count; i++) {
        rp_gpu_download(seen, buffers[i].data + buffers[i].bytes, CANARY_BYTES);
        for (size_t b = 0; b < CANARY_BYTES; b++)
            if (seen[b] != 0xA5)
                return false;
    }
    return true;
}

void rp_gpu_free_all(void) {
    for (size_t i = 0; i < buffer_count; i++)
        CHECK(cudaFree(buffers[i].data));
    buffer_count = 0;
}

void rp_gpu_synchronize(void) { CHECK(cudaDeviceSynchronize()); }

void rp_gpu_step_open(struct rp_gpu_step *step, const struct rp_step_config *config) {
    memset(step, 0, sizeof *step);
    step->state_bytes = rp_step_state_carve(config, NULL, &step->host);
    size_t ring_bytes = rp_step_rings_carve(config, NULL, &step->host);
    step->host_state = rp_alloc_aligned(step->state_bytes, RP_CACHE_LINE);
    memset(step->host_state, 0, step->state_bytes);
    CHECK(cudaMalloc((void **)&step->device_state, step->state_bytes));
    CHECK(cudaHostAlloc((void **)&step->rings, ring_bytes, cudaHostAllocMapped));
    memset(step->rings, 0, ring_bytes);
    rp_step_state_carve(config, step->host_state, &step->host);
    rp_step_rings_carve(config, step->rings, &step->host);
    rp_step_state_carve(config, step->device_state, &step->device);
    rp_step_rings_carve(config, step->rings, &step->device);
    rp_gpu_step_upload(step);
}

void rp_gpu_step_open_rows(struct rp_gpu_step *step, uint32_t rows) {
    const struct rp_step_config config = {.slot_count = 4,
                                          .pages_per_slot = 1,
                                          .row_capacity = rows,
                                          .token_capacity = rows,
                                          .logit_row_capacity = rows,
                                          .edit_capacity = 1,
                                          .prompt_ring_capacity = 64};
    rp_gpu_step_open(step, &config);
}

void rp_gpu_step_upload(struct rp_gpu_step *step) {
    CHECK(cudaMemcpy(step->device_state, step->host_state, step->state_bytes,
                     cudaMemcpyHostToDevice));
}

void rp_gpu_step_download(struct rp_gpu_step *step) {
    rp_gpu_download(step->host_state, step->device_state, step->state_bytes);
}

void rp_gpu_step_close(struct rp_gpu_step *step) {
    rp_free_aligned(step->host_state);
    CHECK(cudaFree(step->device_state));
    CHECK(cudaFreeHost(step->rings));
}

double rp_relative_error(const float *a, const float *b, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        if (a[i] != a[i])
            return INFINITY;
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

void rp_test_put(void *to, enum rp_dtype dtype, size_t at, float value) {
    if (dtype == RP_DTYPE_F32)
        ((float *)to)[at] = value;
    else
        ((uint16_t *)to)[at] = rp_f32_to_bf16(value);
}

float rp_test_get(const void *from, enum rp_dtype dtype, size_t at) {
    return dtype == RP_DTYPE_F32 ? ((const float *)from)[at]
                                 : rp_bf16_to_f32(((const uint16_t *)from)[at]);
}

void rp_to_f32(float *out, const void *in, enum rp_dtype dtype, size_t n) {
    for (size_t i = 0; i < n; i++)
        out[i] = rp_test_get(in, dtype, i);
}
