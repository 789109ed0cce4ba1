/* Goal: 8-bit weights and their scales are copied to a GPU unchanged, those that it quantizes have
 * the host's bits, random ones equal those of the CPU, and formats that no GEMM supports are
 * refused by name. */
#include "base/bf16.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/quantize_row.h"
#include "engine/weights_on_device.h"
#include "model/model.h"
#include "quant/rounding/quantize.h"
#include "tests/support/gpu_test.h"

#include <math.h>

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

/* A row-major matrix on the host, with quantized values and scales computed from their index. */
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

static void test_prepared_memory_is_counted_and_freed(void **state) {
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

/* --- quantized by the GPU -------------------------------------------------------------------- */

static uint32_t random_bits(uint64_t i) {
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    return (uint32_t)((z ^ (z >> 27)) >> 16);
}

static float f32_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rows of eight kinds: weights, one of them large; every magnitude; subnormal numbers; zeros of
 * both signs; ties of INT8 and of FP8, whose largest is the grid's; around 2^-100; large ones. */
static float special(uint32_t row, uint32_t col, uint64_t at) {
    uint32_t bits = random_bits(at), sign = bits & 0x80000000u;
    float unit = (float)(bits >> 8) * 0x1p-23f - 1.0f;
    switch (row % 8) {
    case 0:
        return col == 3 ? 7.0f : unit * 0.05f;
    case 1:
        return f32_of(sign | bits % 0x7F000000u);
    case 2:
        return f32_of(sign | (bits & 0x007F0000u));
    case 3:
        return f32_of(sign);
    case 4:
        return col == 0 ? 127.0f : (float)(bits % 253) * 0.5f - 63.0f;
    case 5:
        return col == 0 ? 448.0f : (float)(bits % 1793) * 0.25f - 224.0f;
    case 6:
        return f32_of(sign | (0x0D7E0000u + (bits % (row % 16 == 6 ? 2 : 4) << 16)));
    default:
        return unit * 65504.0f;
    }
}

/* Row-major values in host memory. F16: every pattern of bits
 * that is a number, and rows of subnormal numbers. */
static struct rp_matrix values_of(uint32_t rows, uint32_t cols, enum rp_dtype dtype) {
    struct rp_matrix made = {.rows = rows, .cols = cols, .dtype = dtype};
    made.data = rp_alloc_aligned(rp_matrix_bytes(&made), RP_CACHE_LINE);
    assert_non_null(made.data);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        float value = special((uint32_t)(i / cols), (uint32_t)(i % cols), i);
        if (dtype == RP_DTYPE_F32)
            ((float *)made.data)[i] = value;
        else if (dtype == RP_DTYPE_BF16)
            ((uint16_t *)made.data)[i] = rp_f32_to_bf16(value);
        else
            ((uint16_t *)made.data)[i] =
                (uint16_t)(random_bits(i) & (i / cols % 2 ? 0x83FF : 0xFBFF));
    }
    return made;
}

static float value_at(const struct rp_matrix *values, size_t i) {
    if (values->dtype == RP_DTYPE_F32)
        return ((const float *)values->data)[i];
    uint16_t half = ((const uint16_t *)values->data)[i];
    return values->dtype == RP_DTYPE_F16 ? rp_f16_to_f32(half) : rp_bf16_to_f32(half);
}

/* Columns [col, col + matrix->cols) of the rows' bytes, and their scales, are the host's. */
static void check_bits(const struct rp_matrix *values, uint32_t col,
                       const struct rp_matrix *matrix) {
    size_t bytes = rp_matrix_bytes(matrix), cols = matrix->cols, wide = values->cols;
    unsigned char *quantized = rp_alloc(bytes), *expected = rp_alloc(wide);
    float *scales = rp_alloc(matrix->rows * sizeof *scales), *row = rp_alloc(wide * sizeof *row);
    assert_true(quantized && expected && scales && row);
    download(quantized, matrix->data, bytes);
    download(scales, matrix->scales, matrix->rows * sizeof *scales);
    for (uint32_t r = 0; r < matrix->rows; r++) {
        for (size_t i = 0; i < wide; i++)
            row[i] = value_at(values, r * wide + i);
        float scale = rp_quantize_row(row, RP_DTYPE_F32, wide, matrix->dtype, expected);
        assert_false(isnan(scale));
        if (memcmp(&scale, &scales[r], sizeof scale) != 0 ||
            memcmp(expected + col, quantized + r * cols, cols) != 0)
            fail_msg("%u x %zu, row %u of %s as %s: other bits", matrix->rows, wide, r,
                     rp_dtype_name(values->dtype), rp_dtype_name(matrix->dtype));
    }
    rp_free(quantized);
    rp_free(expected);
    rp_free(scales);
    rp_free(row);
}

static const enum rp_dtype value_dtypes[] = {RP_DTYPE_BF16, RP_DTYPE_F16, RP_DTYPE_F32};

static struct rp_matrix described(uint32_t rows, uint32_t cols, bool is_int8) {
    struct rp_matrix matrix = {.rows = rows, .cols = cols, .dtype = RP_DTYPE_BF16};
    rp_quant_describe(&matrix, is_int8 ? RP_QUANT_INT8 : RP_QUANT_FP8);
    return matrix;
}

static void test_rows_that_the_gpu_quantizes_have_the_bits_of_the_host(void **state) {
    /* the last two are sent by several threads, in pieces */
    static const uint32_t sizes[][2] = {{1, 1},       {17, 2},      {40, 31},    {33, 255},
                                        {70, 300},    {16, 2049},   {9, 4095},   {8, 14336},
                                        {8, 131072u}, {600, 14336}, {2111, 4100}};
    (void)state;
    uint32_t count = rp_gpu_is_tiny() ? 6 : RP_ARRAY_COUNT(sizes);
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t kind = 0; kind < 6; kind++) {
            struct rp_matrix values = values_of(sizes[s][0], sizes[s][1], value_dtypes[kind % 3]);
            struct rp_matrix matrix = described(sizes[s][0], sizes[s][1], kind < 3);
            assert_int_equal(cuda->matrix_quantize(gpu, &values, 0, &matrix, NULL), RP_OK);
            check_bits(&values, 0, &matrix);
            cuda->matrix_release(gpu, &matrix);
            rp_matrix_deinit(&values);
        }
}

static void test_a_range_of_columns_has_the_scales_of_whole_rows(void **state) {
    static const uint32_t ranges[][2] = {{0, 512}, {512, 512}, {100, 33}, {1023, 1}};
    (void)state;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(ranges) * 3; i++) {
        struct rp_matrix values = values_of(65, 1024, value_dtypes[i % 3]);
        struct rp_matrix matrix = described(65, ranges[i / 3][1], i % 2);
        assert_int_equal(cuda->matrix_quantize(gpu, &values, ranges[i / 3][0], &matrix, NULL),
                         RP_OK);
        check_bits(&values, ranges[i / 3][0], &matrix);
        cuda->matrix_release(gpu, &matrix);
        rp_matrix_deinit(&values);
    }
}

static void put_bad(struct rp_matrix *values, size_t at, bool is_nan) {
    if (values->dtype == RP_DTYPE_F32)
        ((float *)values->data)[at] = is_nan ? NAN : -INFINITY;
    else if (values->dtype == RP_DTYPE_BF16)
        ((uint16_t *)values->data)[at] = is_nan ? 0x7FC1 : 0xFF80;
    else
        ((uint16_t *)values->data)[at] = is_nan ? 0x7E01 : 0xFC00;
}

/* Also in a column that is not stored. */
static void test_a_nan_and_an_infinity_are_refused_and_leave_no_memory(void **state) {
    struct rp_device_memory before, after;
    (void)state;
    cuda->matrices_end(gpu);
    cuda->memory(gpu, &before);
    for (uint32_t i = 0; i < 12; i++) {
        struct rp_error err = {0};
        uint32_t rows = i < 6 ? 50 : 2100;
        struct rp_matrix values = values_of(rows, 4096, value_dtypes[i % 3]);
        struct rp_matrix matrix = described(rows, 2048, i % 2);
        put_bad(&values, (size_t)(rows - 7) * 4096 + 4095, i % 6 < 3);
        assert_int_equal(cuda->matrix_quantize(gpu, &values, 0, &matrix, &err), RP_STATUS_FORMAT);
        assert_true(!matrix.data && !matrix.scales);
        rp_matrix_deinit(&values);
    }
    assert_string_equal(cuda->last_error(gpu), "");
    cuda->matrices_end(gpu);
    cuda->memory(gpu, &after);
    assert_int_equal(after.allocated_bytes, before.allocated_bytes);
}

static void test_memory_kept_between_matrices_is_not_counted_as_the_model_s(void **state) {
    struct rp_device_memory before, between, after;
    (void)state;
    cuda->memory(gpu, &before);
    struct rp_matrix values = values_of(2111, 4100, RP_DTYPE_BF16);
    struct rp_matrix matrix = described(2111, 4100, true);
    assert_int_equal(cuda->matrix_quantize(gpu, &values, 0, &matrix, NULL), RP_OK);
    cuda->memory(gpu, &between);
    cuda->matrices_end(gpu);
    cuda->memory(gpu, &after);
    uint64_t matrix_bytes = rp_matrix_bytes(&matrix) + matrix.rows * sizeof(float);
    assert_int_equal(between.allocated_bytes - before.allocated_bytes, matrix_bytes);
    assert_int_equal(after.allocated_bytes - before.allocated_bytes, matrix_bytes);
    cuda->matrix_release(gpu, &matrix);
    rp_matrix_deinit(&values);
}

static void compare_models(const struct rp_model *there, const struct rp_model *here) {
    for (uint32_t i = 0; i < here->weights.count; i++) {
        const struct rp_matrix *device = &there->weights.entries[i].matrix;
        const struct rp_matrix *host_one = &here->weights.entries[i].matrix;
        if (!rp_weight_is_matrix(&here->weights.entries[i]))
            continue;
        size_t bytes = rp_matrix_bytes(host_one), count = rp_matrix_scale_count(host_one);
        unsigned char *data = rp_alloc(bytes);
        float *scales = rp_calloc(count + 1, sizeof *scales);
        assert_true(data && scales);
        assert_int_equal(rp_matrix_bytes(device), bytes);
        download(data, device->data, bytes);
        assert_memory_equal(data, host_one->data, bytes);
        if (count) {
            download(scales, device->scales, count * sizeof *scales);
            assert_memory_equal(scales, host_one->scales, count * sizeof *scales);
        }
        rp_free(data);
        rp_free(scales);
    }
}

static int go_on(void *ctx, uint32_t done, uint32_t total) {
    (void)ctx;
    assert_true(done > 0 && done <= total);
    return RP_OK;
}

/* In two parts, as when graphs are captured meanwhile. */
static void reserve_and_fill(struct rp_model *model, uint32_t *prepared) {
    struct rp_weights_fill fill = {.backend = cuda, .device = gpu, .model = model, .filled = go_on};
    struct rp_device_memory reserved, filled;
    assert_true(rp_weights_can_reserve(cuda, model));
    assert_int_equal(rp_weights_reserve(cuda, gpu, model, prepared, NULL), RP_OK);
    cuda->memory(gpu, &reserved);
    assert_int_equal(rp_weights_fill(&fill, NULL), RP_OK);
    cuda->matrices_end(gpu);
    cuda->memory(gpu, &filled);
    assert_int_equal(filled.allocated_bytes, reserved.allocated_bytes);
    assert_int_equal(fill.done, *prepared);
}

static void check_model_on_the_gpu(bool reserves) {
    static const enum rp_quant_scheme schemes[] = {RP_QUANT_INT8, RP_QUANT_FP8, RP_QUANT_INT8_W8A16,
                                                   RP_QUANT_NONE};
    for (size_t i = 0; i < RP_ARRAY_COUNT(schemes); i++) {
        const struct rp_model_quantization quantization = {schemes[i], i == 0};
        struct rp_model there, here;
        struct rp_device_memory before, after;
        uint32_t prepared;
        assert_int_equal(
            rp_model_open("models/demo", RP_DTYPE_BF16, &quantization, 0, &there, NULL), RP_OK);
        assert_int_equal(rp_model_load_quantized("models/demo", RP_DTYPE_BF16, &quantization, 0,
                                                 NULL, NULL, &here, NULL),
                         RP_OK);
        cuda->memory(gpu, &before);
        if (reserves)
            reserve_and_fill(&there, &prepared);
        else
            assert_int_equal(rp_weights_prepare(cuda, gpu, &there, &prepared, NULL, NULL, NULL),
                             RP_OK);
        compare_models(&there, &here);
        rp_weights_release(cuda, gpu, &there, prepared);
        cuda->memory(gpu, &after);
        assert_int_equal(after.allocated_bytes, before.allocated_bytes);
        rp_model_deinit(&there);
        rp_model_deinit(&here);
    }
}

static void test_a_model_quantized_on_the_gpu_has_the_bytes_of_the_host_s(void **state) {
    (void)state;
    check_model_on_the_gpu(false);
}

static void test_a_model_filled_after_its_memory_was_reserved_has_the_same_bytes(void **state) {
    (void)state;
    check_model_on_the_gpu(true);
}

static void check_refused(struct rp_matrix matrix, const char *word) {
    struct rp_error err = {0};
    const void *data = matrix.data;
    assert_int_equal(cuda->matrix_prepare(gpu, &matrix, &err), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, word));
    assert_ptr_equal(matrix.data, data); /* as it was */
    rp_matrix_deinit(&matrix);
}

static void test_formats_without_a_gemm_are_refused_by_name(void **state) {
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

RP_GPU_TEST_MAIN(
    set_up, tear_down, cmocka_unit_test(test_quantized_values_and_scales_reach_the_gpu),
    cmocka_unit_test(test_a_scale_per_tensor_becomes_one_per_output),
    cmocka_unit_test(test_prepared_memory_is_counted_and_freed),
    cmocka_unit_test(test_random_weights_are_those_of_the_cpu),
    cmocka_unit_test(test_rows_that_the_gpu_quantizes_have_the_bits_of_the_host),
    cmocka_unit_test(test_a_range_of_columns_has_the_scales_of_whole_rows),
    cmocka_unit_test(test_a_nan_and_an_infinity_are_refused_and_leave_no_memory),
    cmocka_unit_test(test_memory_kept_between_matrices_is_not_counted_as_the_model_s),
    cmocka_unit_test(test_a_model_quantized_on_the_gpu_has_the_bytes_of_the_host_s),
    cmocka_unit_test(test_a_model_filled_after_its_memory_was_reserved_has_the_same_bytes),
    cmocka_unit_test(test_formats_without_a_gemm_are_refused_by_name))
