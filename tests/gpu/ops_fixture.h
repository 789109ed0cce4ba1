/* ops_fixture.h - tensors on the host and on the GPU, for the tests of the small operators: the
 * GPU's result is compared with the host's, and every byte around it must be unchanged. Included
 * once per test program. */
#ifndef RP_TESTS_GPU_OPS_FIXTURE_H
#define RP_TESTS_GPU_OPS_FIXTURE_H

#include "base/bf16.h"
#include "base/memory.h"
#include "device/ops_cuda.h"
#include "tests/support/gpu_test.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_ROWS        9
#define LIVE_ROWS       6
#define LIVE_LOGIT_ROWS 4
#define TWINS_MAX       64 /* of a case, and of failed ones before it */

#define EACH(name, array) for (size_t name = 0; name < RP_ARRAY_COUNT(array); name++)

static uint64_t random_state = 1;

static float random_float(void) { /* uniform in (-2, 2) */
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(random_state >> 32)) * 0x1p-30f;
}

static void *make_host(size_t bytes) {
    return rp_alloc_aligned(RP_ALIGN_UP(bytes + 1, RP_CACHE_LINE), RP_CACHE_LINE);
}

/* A tensor on the host and on the GPU, `offset` elements after an aligned address; all NaN. It
 * lives until end_case. */
struct twin {
    struct rp_values host, device;
    unsigned char *host_base, *device_base;
    size_t bytes;
    uint32_t cols;
};

static unsigned char *twin_bases[TWINS_MAX]; /* of the host */
static size_t twin_count;

static struct twin twin_make(uint32_t rows, uint32_t cols, size_t stride, uint32_t offset,
                             enum rp_dtype dtype) {
    struct twin t = {.cols = cols};
    size_t size = rp_dtype_bytes(dtype);
    t.bytes = (offset + rows * stride) * size;
    t.host_base = make_host(t.bytes);
    assert_true(twin_count < TWINS_MAX);
    twin_bases[twin_count++] = t.host_base;
    memset(t.host_base, 0xFF, t.bytes);
    t.device_base = rp_gpu_poisoned(t.bytes);
    t.host = (struct rp_values){t.host_base + offset * size, stride, dtype};
    t.device = (struct rp_values){t.device_base + offset * size, stride, dtype};
    return t;
}

static void twin_set(struct twin *t, size_t row, size_t col, float value) {
    size_t at = row * t->host.stride + col;
    rp_test_put(t->host.data, t->host.dtype, at, value);
}

static void twin_upload(struct twin *t) {
    assert_int_equal(cudaMemcpy(t->device_base, t->host_base, t->bytes, cudaMemcpyHostToDevice),
                     cudaSuccess);
}

/* The GPU's bytes into the host's copy. */
static inline void twin_download(struct twin *t) {
    rp_gpu_download(t->host_base, t->device_base, t->bytes);
}

/* Random values in the first `rows` rows; the rest stays NaN. */
static struct twin twin_random(uint32_t rows, uint32_t max_rows, uint32_t cols, size_t stride,
                               uint32_t offset, enum rp_dtype dtype) {
    struct twin t = twin_make(max_rows, cols, stride, offset, dtype);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++)
            twin_set(&t, r, c, random_float());
    twin_upload(&t);
    return t;
}

static struct twin vector_random(uint32_t n) { return twin_random(1, 1, n, n, 0, RP_DTYPE_F32); }

static void assert_row_near(const float *a, const float *b, uint32_t n, enum rp_dtype dtype) {
    float largest = 0;
    for (uint32_t c = 0; c < n; c++)
        largest = fmaxf(largest, fabsf(b[c]));
    float allowed = largest * (dtype == RP_DTYPE_F32 ? 1e-5f : 8 * 0x1p-8f);
    assert_true(rp_relative_error(a, b, n) <= (dtype == RP_DTYPE_F32 ? 1e-5 : 4e-3));
    for (uint32_t c = 0; c < n; c++)
        assert_true(fabsf(a[c] - b[c]) <= allowed);
}

/* The GPU's live rows against the host's; everything else must be unchanged, as on the host. */
static inline void assert_equal_twin(const struct twin *t, uint32_t live, bool exact) {
    size_t size = rp_dtype_bytes(t->host.dtype), count = t->bytes / size, stride = t->host.stride;
    size_t first = (size_t)((unsigned char *)t->host.data - t->host_base) / size;
    unsigned char *seen = make_host(t->bytes);
    float *a = make_host(t->cols * 4ull), *b = make_host(t->cols * 4ull);
    rp_gpu_download(seen, t->device_base, t->bytes);
    for (size_t i = 0; i < count; i++) {
        bool inside = i >= first && (i - first) / stride < live && (i - first) % stride < t->cols;
        if ((exact || !inside) && memcmp(seen + i * size, t->host_base + i * size, size) != 0)
            fail_msg("element %zu of %zu (stride %zu, %u columns) differs", i, count, stride,
                     t->cols);
    }
    for (uint32_t r = 0; r < live && !exact; r++) {
        rp_to_f32(a, seen + (first + r * stride) * size, t->host.dtype, t->cols);
        rp_to_f32(b, t->host_base + (first + r * stride) * size, t->host.dtype, t->cols);
        assert_row_near(a, b, t->cols, t->host.dtype);
    }
    rp_free_aligned(a);
    rp_free_aligned(b);
    rp_free_aligned(seen);
}

static struct rp_gpu_step step;
static struct rp_cuda_rows token_rows, logit_rows;

static int set_up(void **state) {
    (void)state;
    static const uint32_t tokens[LIVE_LOGIT_ROWS] = {5, 0, 3, 3};
    struct rp_step_config config = {.slot_count = 4,
                                    .pages_per_slot = 4,
                                    .row_capacity = MAX_ROWS,
                                    .token_capacity = MAX_ROWS,
                                    .logit_row_capacity = MAX_ROWS,
                                    .edit_capacity = 4,
                                    .prompt_ring_capacity = 16};
    rp_gpu_step_open(&step, &config);
    *step.host.counts = (struct rp_live_counts){
        .row_count = LIVE_ROWS, .token_count = LIVE_ROWS, .logit_row_count = LIVE_LOGIT_ROWS};
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        step.host.token_ids[i] = (int32_t)(i * 3 % 8);
        step.host.positions[i] = i * i;
        step.host.token_rows[i] = i;
        step.host.logit_tokens[i] = i < LIVE_LOGIT_ROWS ? tokens[i] : 0xFFFFFFFFu;
    }
    rp_gpu_step_upload(&step);
    token_rows =
        (struct rp_cuda_rows){.step = step.device, .rows = RP_ROWS_TOKEN, .max_rows = MAX_ROWS};
    logit_rows =
        (struct rp_cuda_rows){.step = step.device, .rows = RP_ROWS_LOGIT, .max_rows = MAX_ROWS};
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    rp_gpu_step_close(&step);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* Between cases: checks that nothing was written past a buffer, and frees the memory. */
static void end_case(void) {
    rp_gpu_synchronize();
    assert_true(rp_gpu_canaries_hold());
    rp_gpu_free_all();
    while (twin_count > 0)
        rp_free_aligned(twin_bases[--twin_count]);
}

/* Sums of partials into the live rows of `to`, on the host. */
static inline void sum_partials(const struct twin *parts, uint32_t count, const struct twin *bias,
                                struct twin *to) {
    size_t stride = parts->host.stride;
    for (uint32_t r = 0; r < LIVE_ROWS; r++)
        for (uint32_t c = 0; c < to->cols; c++) {
            const float *at = (const float *)parts->host.data + r * stride + c;
            float sum = at[0];
            for (uint32_t i = 1; i < count; i++)
                sum += at[i * MAX_ROWS * stride];
            twin_set(to, r, c, bias ? sum + ((const float *)bias->host.data)[c] : sum);
        }
    twin_upload(to);
}

static inline struct rp_cuda_partials partials_of(const struct twin *parts, uint32_t count,
                                                  const struct twin *bias) {
    return (struct rp_cuda_partials){.data = parts->device.data,
                                     .bias = bias ? bias->device.data : NULL,
                                     .count = count,
                                     .split_stride = MAX_ROWS * parts->host.stride,
                                     .row_stride = parts->host.stride};
}

static const uint32_t sizes[] = {1, 7, 100, 256, 257, 4096, 14336};
static const enum rp_dtype dtypes[] = {RP_DTYPE_F32, RP_DTYPE_BF16};
/* Added to the column count for the stride; distance of the first column from an aligned
 * address. */
static const struct {
    uint32_t stride, offset;
} places[] = {{0, 0}, {8, 0}, {3, 0}, {4, 4}, {5, 1}};

#endif
