/* Goal: 8-bit weights and their scales reach a GPU as they are, random ones are those of the
 * CPU, and what no GEMM takes is refused by name. */
#include "base/memory.h"
#include "device/device.h"
#include "quant/rounding/quantize.h"
#include "tests/support/gpu_test.h"

#include <string.h>

static struct rp_device *gpu, *host;
static const struct rp_backend *cuda, *cpu;

static int set_up(void **state) {
    (void)state;
    const struct rp_device_config config = {.threads = 1, .scalar_only = true};
    cuda = rp_backend_cuda_table();
    cpu = rp_backend_cpu();
    return cuda->open(&config, &gpu, NULL) != RP_OK || cpu->open(&config, &host, NULL) != RP_OK;
}

static int tear_down(void **state) {
    (void)state;
    cuda->close(gpu);
    cpu->close(host);
    return 0;
}

static void download(void *to, const void *from, size_t bytes) {
    assert_int_equal(cuda->copy(gpu, to, from, bytes), RP_OK);
    assert_int_equal(cuda->synchronize(gpu), RP_OK);
}

/* A row-major matrix on the host: quantized values that follow from their place, scales too. */
static struct rp_matrix make(uint32_t rows, uint32_t cols, enum rp_dtype dtype,
                             enum rp_scale_kind kind) {
    struct rp_matrix matrix = {.rows = rows, .cols = cols, .dtype = dtype, .scale_kind = kind};
    size_t bytes = rp_matrix_bytes(&matrix), count = rp_matrix_scale_count(&matrix);
    float *scales = rp_alloc_aligned(count * sizeof *scales, RP_CACHE_LINE);
    matrix.data = rp_alloc_aligned(bytes, RP_CACHE_LINE);
    assert_true(scales && matrix.data);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)matrix.data)[i] = (uint8_t)(i * 7 % 127);
    for (size_t i = 0; i < count; i++)
        scales[i] = 0.5f + (float)i;
    matrix.scales = scales;
    return matrix;
}

static void check_prepared(enum rp_dtype dtype, enum rp_scale_kind kind) {
    enum { ROWS = 200, COLS = 300 };
    struct rp_matrix matrix = make(ROWS, COLS, dtype, kind);
    static uint8_t quantized[ROWS * COLS];
    static float scales[ROWS];
    assert_int_equal(cuda->matrix_prepare(gpu, &matrix, NULL), RP_OK);
    assert_int_equal(matrix.layout, RP_LAYOUT_ROW_MAJOR);
    assert_int_equal(matrix.scale_kind, kind == RP_SCALE_TENSOR ? RP_SCALE_CHANNEL : kind);
    size_t count = rp_matrix_scale_count(&matrix);
    download(quantized, matrix.data, sizeof quantized);
    download(scales, matrix.scales, count * sizeof *scales);
    for (size_t i = 0; i < sizeof quantized; i++)
        assert_int_equal(quantized[i], i * 7 % 127);
    for (size_t i = 0; i < count; i++)
        assert_true(scales[i] == (kind == RP_SCALE_TENSOR ? 0.5f : 0.5f + (float)i));
    cuda->matrix_release(gpu, &matrix);
    assert_true(!matrix.data && !matrix.scales);
}

static void test_quantized_values_and_scales_reach_the_gpu(void **state) {
    (void)state;
    check_prepared(RP_DTYPE_INT8, RP_SCALE_CHANNEL);
    check_prepared(RP_DTYPE_FP8_E4M3, RP_SCALE_CHANNEL);
    check_prepared(RP_DTYPE_FP8_E4M3, RP_SCALE_BLOCK_128);
}

static void test_a_scale_per_tensor_becomes_one_per_output(void **state) {
    (void)state;
    check_prepared(RP_DTYPE_INT8, RP_SCALE_TENSOR);
    check_prepared(RP_DTYPE_FP8_E4M3, RP_SCALE_TENSOR);
}

static void test_what_is_prepared_is_counted_and_given_back(void **state) {
    (void)state;
    struct rp_device_memory before, between, after;
    struct rp_matrix matrix = make(64, 128, RP_DTYPE_INT8, RP_SCALE_CHANNEL);
    cuda->memory(gpu, &before);
    assert_int_equal(cuda->matrix_prepare(gpu, &matrix, NULL), RP_OK);
    cuda->memory(gpu, &between);
    cuda->matrix_release(gpu, &matrix);
    cuda->memory(gpu, &after);
    assert_int_equal(between.allocated_bytes - before.allocated_bytes,
                     64 * 128 + 64 * sizeof(float));
    assert_int_equal(after.allocated_bytes, before.allocated_bytes);
}

static void test_random_weights_are_those_of_the_cpu(void **state) {
    (void)state;
    static const enum rp_quant_scheme schemes[] = {RP_QUANT_INT8, RP_QUANT_FP8_W8A16};
    static const uint32_t sizes[][2] = {{1, 1}, {3, 31}, {70, 300}, {5, 2049}};
    static uint8_t quantized[70 * 300];
    static float scales[70];
    for (size_t k = 0; k < RP_ARRAY_COUNT(schemes); k++)
        for (size_t s = 0; s < RP_ARRAY_COUNT(sizes); s++) {
            struct rp_matrix there = {
                .rows = sizes[s][0], .cols = sizes[s][1], .dtype = RP_DTYPE_BF16};
            rp_quant_describe(&there, schemes[k]);
            struct rp_matrix here = there;
            assert_int_equal(cuda->matrix_random(gpu, &there, 5, 0.03f, NULL), RP_OK);
            assert_int_equal(cpu->matrix_random(host, &here, 5, 0.03f, NULL), RP_OK);
            assert_int_equal(here.layout, RP_LAYOUT_ROW_MAJOR);
            size_t bytes = rp_matrix_bytes(&here);
            download(quantized, there.data, bytes);
            download(scales, there.scales, there.rows * sizeof *scales);
            assert_memory_equal(quantized, here.data, bytes);
            assert_memory_equal(scales, here.scales, here.rows * sizeof *scales);
            cuda->matrix_release(gpu, &there);
            cpu->matrix_release(host, &here);
        }
}

static void check_refused(struct rp_matrix matrix, const char *word) {
    struct rp_error err = {0};
    const void *data = matrix.data;
    assert_int_equal(cuda->matrix_prepare(gpu, &matrix, &err), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, word));
    assert_ptr_equal(matrix.data, data); /* as it was */
    rp_matrix_deinit(&matrix);
}

static void test_what_no_product_takes_is_refused_by_name(void **state) {
    (void)state;
    check_refused(make(130, 130, RP_DTYPE_INT8, RP_SCALE_BLOCK_128), "one scale per tensor");
    check_refused(make(1, RP_INT8_COLS_MAX + 1, RP_DTYPE_INT8, RP_SCALE_CHANNEL), "columns");
    struct rp_matrix groups = {.rows = 2,
                               .cols = 8,
                               .dtype = RP_DTYPE_FP8_E4M3,
                               .scale_kind = RP_SCALE_GROUP_K,
                               .scale_group = 4};
    check_refused(groups, "blocks of 128");
}

RP_GPU_TEST_MAIN(set_up, tear_down,
                 cmocka_unit_test(test_quantized_values_and_scales_reach_the_gpu),
                 cmocka_unit_test(test_a_scale_per_tensor_becomes_one_per_output),
                 cmocka_unit_test(test_what_is_prepared_is_counted_and_given_back),
                 cmocka_unit_test(test_random_weights_are_those_of_the_cpu),
                 cmocka_unit_test(test_what_no_product_takes_is_refused_by_name))
