/* Goal: a benchmark with 8 bits reports the error of its logits, and others report none. Method:
 * the demo's shape with random weights; coarser schemes have larger errors, and repeated runs equal
 * ones. */
#include "bench/quant_error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct rp_quant_error error_of(enum rp_quant_scheme scheme, enum rp_dtype kv_dtype) {
    const struct rp_bench_target target = {.shape = "demo",
                                           .device = {.threads = 2},
                                           .dtype = RP_DTYPE_BF16,
                                           .kv_dtype = kv_dtype,
                                           .quantization = {scheme, false}};
    struct rp_quant_error out;
    struct rp_error err = {0};
    if (rp_quant_error_measure(&target, &out, &err) != RP_OK)
        fail_msg("%s", err.text);
    return out;
}

static void test_without_8_bits_nothing_is_compared(void **state) {
    (void)state;
    assert_int_equal(error_of(RP_QUANT_NONE, RP_DTYPE_BF16).tokens, 0);
}

static void test_what_has_8_bits_is_compared_with_the_same_weights(void **state) {
    (void)state;
    struct rp_quant_error rows = error_of(RP_QUANT_INT8, RP_DTYPE_BF16),
                          weights = error_of(RP_QUANT_INT8_W8A16, RP_DTYPE_BF16),
                          fp8 = error_of(RP_QUANT_FP8, RP_DTYPE_BF16),
                          pages = error_of(RP_QUANT_NONE, RP_DTYPE_INT8);
    const struct rp_quant_error *all[] = {&rows, &weights, &fp8, &pages};
    for (size_t i = 0; i < RP_ARRAY_COUNT(all); i++) {
        assert_int_equal(all[i]->tokens, RP_QUANT_ERROR_TOKENS);
        assert_int_equal(all[i]->against, RP_DTYPE_BF16);
        assert_true(all[i]->cosine_min <= all[i]->cosine_mean && all[i]->cosine_mean < 1.0);
        assert_true(all[i]->cosine_min > 0.95 && all[i]->kl_mean > 0.0);
        assert_true(all[i]->top1_share >= 0.5 && all[i]->top1_share <= 1.0);
    }
    assert_true(weights.cosine_mean > rows.cosine_mean && rows.cosine_mean > fp8.cosine_mean);
    assert_true(rows.cosine_mean > 0.998);
}

static void test_it_is_the_same_every_time(void **state) {
    (void)state;
    struct rp_quant_error one = error_of(RP_QUANT_INT8, RP_DTYPE_INT8),
                          two = error_of(RP_QUANT_INT8, RP_DTYPE_INT8);
    assert_true(one.cosine_mean == two.cosine_mean && one.kl_mean == two.kl_mean);
}

static void test_a_shape_that_is_none_is_refused(void **state) {
    (void)state;
    const struct rp_bench_target target = {.shape = "no-such-shape",
                                           .quantization = {RP_QUANT_INT8, false}};
    struct rp_quant_error out;
    struct rp_error err = {0};
    assert_int_equal(rp_quant_error_measure(&target, &out, &err), RP_STATUS_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_8_bits_nothing_is_compared),
        cmocka_unit_test(test_what_has_8_bits_is_compared_with_the_same_weights),
        cmocka_unit_test(test_it_is_the_same_every_time),
        cmocka_unit_test(test_a_shape_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
