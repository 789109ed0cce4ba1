/* Goal: `bench kernels` runs every operator, only through a backend's table, with the bytes
 * and operations of their shapes. Times are not checked. */
#include "base/memory.h"
#include "bench/bench_kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct rp_device *device;
static struct rp_bench_kernels_result *result;

static int setup(void **state) {
    struct rp_device_config config = {.threads = 2};
    (void)state;
    result = rp_calloc(1, sizeof *result);
    return result && rp_backend_cpu()->open(&config, &device, NULL) == RP_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    rp_backend_cpu()->close(device);
    rp_free(result);
    return 0;
}

static int run_scheme(const char *shape, const char *only, const uint32_t *rows, uint32_t row_count,
                      double seconds, enum rp_quant_scheme scheme) {
    static const uint32_t contexts[] = {5, 40};
    struct rp_bench_kernels_config config = {.backend = rp_backend_cpu(),
                                             .device = device,
                                             .threads = 1,
                                             .shape = shape,
                                             .dtype = RP_DTYPE_BF16,
                                             .scheme = scheme,
                                             .rows = rows,
                                             .contexts = contexts,
                                             .row_count = row_count,
                                             .context_count = 2,
                                             .only = only,
                                             .cold_bytes = 1u << 16,
                                             .case_seconds = 0.02,
                                             .seconds = seconds};
    return rp_bench_kernels(&config, result, NULL);
}

static int run(const char *shape, const char *only, const uint32_t *rows, uint32_t row_count,
               double seconds) {
    return run_scheme(shape, only, rows, row_count, seconds, RP_QUANT_NONE);
}

static const struct rp_bench_kernel *find(const char *op, uint32_t rows, uint32_t context) {
    for (uint32_t i = 0; i < result->kernel_count; i++) {
        const struct rp_bench_kernel *k = &result->kernels[i];
        if (strcmp(k->op, op) == 0 && k->rows == rows && k->context == context)
            return k;
    }
    fail_msg("%s of %u rows, context %u, is missing", op, rows, context);
    return NULL;
}

static void every_operator_is_run_for_every_number_of_rows(void **state) {
    static const char *const ops[] = {
        "qkv",      "o",          "gate_up", "down",     "norm",
        "add+norm", "activation", "rope",    "kv_write", "rope+kv_write"};
    static const char *const decode_ops[] = {"head", "sample", "sample top"};
    static const uint32_t rows[] = {1, 3, 300};
    (void)state;
    assert_int_equal(run("demo", NULL, rows, 3, 600.0), RP_OK);
    assert_int_equal(result->skipped, 0);
    for (size_t r = 0; r < 3; r++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(ops); i++)
            (void)find(ops[i], rows[r], 0);
    for (size_t r = 0; r < 2; r++) {
        for (size_t i = 0; i < RP_ARRAY_COUNT(decode_ops); i++)
            (void)find(decode_ops[i], rows[r], 0);
        (void)find("attention", rows[r], 5);
        (void)find("attention", rows[r], 40);
    }
    (void)find("attention prompt", 300, 0);
    for (uint32_t i = 0; i < result->kernel_count; i++) {
        const struct rp_bench_kernel *k = &result->kernels[i];
        assert_true(k->samples >= 1 && k->repeats >= 1 && k->bytes > 0 && k->kernel[0] != '\0');
        assert_true(k->us_p50 >= 0 && k->us_p50 <= k->us_p99);
    }
    assert_true(result->read_bandwidth > 0 && result->gemm_flops > 0);
}

static void a_product_has_the_bytes_and_operations_of_its_shape(void **state) {
    static const uint32_t rows[] = {4};
    (void)state;
    assert_int_equal(run("demo", "qkv", rows, 1, 600.0), RP_OK);
    assert_int_equal(result->kernel_count, 1);
    const struct rp_bench_kernel *k = find("qkv", 4, 0);
    /* bytes = (n k + m k) 2 + m n 4 and flops = 2 m n k; n k follows from the second. */
    double nk = k->flops / 8;
    assert_true(k->bytes > 2 * nk && k->bytes < 3 * nk);
}

/* Uniform weights and rows: INT8 has 6 dB per bit, E4M3 about 31.5 for each of the two factors. */
static void a_product_of_8_bits_has_half_the_bytes_and_tells_its_error(void **state) {
    static const uint32_t rows[] = {4};
    static const struct {
        enum rp_quant_scheme scheme;
        double least_db, most_db;
    } cases[] = {{RP_QUANT_INT8, 36, 55},
                 {RP_QUANT_FP8, 26, 31},
                 {RP_QUANT_INT8_W8A16, 40, 60},
                 {RP_QUANT_FP8_W8A16, 29, 34}};
    (void)state;
    assert_int_equal(run("demo", "qkv", rows, 1, 600.0), RP_OK);
    double bytes = find("qkv", 4, 0)->bytes;
    assert_true(find("qkv", 4, 0)->sqnr_db == 0);
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        assert_int_equal(run_scheme("demo", "qkv", rows, 1, 600.0, cases[i].scheme), RP_OK);
        const struct rp_bench_kernel *k = find("qkv", 4, 0);
        printf("%s: %.1f dB\n", rp_quant_scheme_name(cases[i].scheme), k->sqnr_db);
        assert_true(k->bytes < 0.7 * bytes);
        assert_true(k->sqnr_db > cases[i].least_db && k->sqnr_db < cases[i].most_db);
    }
}

static void what_there_is_no_time_for_is_counted(void **state) {
    static const uint32_t rows[] = {1, 2};
    (void)state;
    assert_int_equal(run("demo", NULL, rows, 2, 1e-9), RP_OK);
    assert_int_equal(result->kernel_count, 0);
    assert_true(result->skipped > 20);
}

static void an_unknown_shape_is_refused(void **state) {
    static const uint32_t rows[] = {1};
    (void)state;
    assert_int_equal(run("no-such-shape", NULL, rows, 1, 1.0), RP_STATUS_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_is_run_for_every_number_of_rows),
        cmocka_unit_test(a_product_has_the_bytes_and_operations_of_its_shape),
        cmocka_unit_test(a_product_of_8_bits_has_half_the_bytes_and_tells_its_error),
        cmocka_unit_test(what_there_is_no_time_for_is_counted),
        cmocka_unit_test(an_unknown_shape_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
